//! Leveret.
