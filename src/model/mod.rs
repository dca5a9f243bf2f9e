//! The broker model: commands and a time in, effects out.
//!
//! Pure: no I/O, no async, no clock, no lock, no source of randomness; the same commands, times and seed
//! always give the same effects. The shell (`server`) feeds it and performs what it asks for.

pub mod arguments;
pub mod broker;
pub mod channel;
pub mod connection;
pub mod error;
pub mod exchange;
pub mod handshake;
pub mod ids;
pub mod output;
pub mod policy;
pub mod profile;
pub mod queue;
pub mod quota;
pub mod record;
pub mod timer;
pub mod vhost;

/// How this node calls itself in texts and properties.
pub const NODE_NAME: &str = "leveret@localhost";
