//! What the tests of the exchanges share, and property tests of the whole.
