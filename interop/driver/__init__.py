"""The parts of interop/run."""
