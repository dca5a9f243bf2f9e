//! Why a run ends early.

use std::io;

use super::process::Usage;

/// Display says what, where, and as a rule what to do.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    #[error("{0}; see leveret perf --help")]
    Usage(String),
    #[error("cannot connect to {address}: {reason}; check --uri")]
    Connect { address: String, reason: io::Error },
    #[error("{address} closed the connection during the handshake{hint}")]
    Handshake { address: String, hint: &'static str },
    #[error("the broker closed the {what}: {code} {text}")]
    Closed { what: &'static str, code: u16, text: String },
    #[error("the broker cancelled a consumer: its queue is gone")]
    Cancelled,
    #[error("the connection was lost: {0}")]
    Lost(#[from] io::Error),
    #[error("the broker sent what this client does not understand: {0}")]
    Protocol(String),
    #[error("cannot write the result to {path}: {reason}")]
    Result { path: String, reason: io::Error },
    #[error("there is no process {0} to look at; check --broker-pid")]
    NoProcess(u32),
}

impl PerfError {
    /// 2: what the user asked for cannot be; 1: anything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::NoProcess(_) => 2,
            _ => 1,
        }
    }

    /// The process that `--broker-pid` names.
    pub(super) fn usage_of(pid: u32) -> Result<Usage, Self> {
        Usage::of(pid).ok_or(Self::NoProcess(pid))
    }
}
