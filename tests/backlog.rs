//! Backlogs far larger than memory: a broker in its own process is filled and drained, its memory is watched.
//!
//! The usual run is small. For the real thing, in release:
//! `cargo test --release --test backlog -- --ignored --nocapture --test-threads 1`, with `LEVERET_BACKLOG=10000000`
//! for another number of messages and `LEVERET_BACKLOG_BYTES=16` for another size. It says what it measures.

#![forbid(unsafe_code)]
#![cfg(target_os = "linux")] // memory is read from /proc

#[allow(dead_code)] // every test binary uses its part
#[path = "support/broker.rs"]
mod broker;

mod backlog {
    mod large;
    pub mod load;
    mod small;
}
