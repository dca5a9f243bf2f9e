//! The broker as a client library sees it: lapin over TCP against the real binary, restarts and crashes
//! between, and disks that do not play along.
//!
//! `LEVERET_CRASH_TRIALS=100 cargo test --test clients crash` for the long crash test.

#![forbid(unsafe_code)]

#[allow(dead_code)] // every test binary uses its part
#[path = "support/broker.rs"]
mod broker;

mod clients {
    mod crash;
    mod crowd;
    mod disk;
    mod harness;
    mod messages;
    mod refusals;
    mod restart;
    mod routing;
}
