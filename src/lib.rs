//! Leveret: a small, fast message broker that RabbitMQ's client libraries use unchanged.

#![forbid(unsafe_code)]

pub mod auth;
pub mod config;
pub mod ctl;
pub mod definitions;
pub mod management;
pub mod metrics;
pub mod model;
pub mod perf;
pub mod server;
pub mod storage;
pub mod store_tool;
