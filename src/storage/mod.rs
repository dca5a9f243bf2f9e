//! The store: keeps what the model's batches say, and gives it back on start.
//!
//! One [`Store`] serves all vhosts of a broker and is owned by one thread, which commits whatever
//! gathered while the last commit ran. Nothing here knows AMQP: records and definitions are opaque bytes.
//! Invariant: when `commit` returned `Ok`, everything in it survives `kill -9` and a power cut;
//! a commit is found whole or not at all after a crash.

mod log;
pub mod memory;
pub mod sled;

use std::path::PathBuf;

use crate::model::record::{Batch, Recovered};

/// Why a store could not do what was asked. Says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has the folder.
    #[error("data folder {} is in use by another leveret: stop it, or give this one another --data-dir", path.display())]
    Locked { path: PathBuf },
    /// The folder holds something that is not ours, or from a newer version.
    #[error("data folder {} {reason}: give an empty folder with --data-dir, or move this one away", path.display())]
    Foreign { path: PathBuf, reason: String },
    /// What is on disk contradicts itself beyond a torn tail.
    #[error("data file {} is damaged at byte {offset}: {reason}", path.display())]
    Damaged { path: PathBuf, offset: u64, reason: String },
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    /// sled refused.
    #[error("cannot {action} the index in {}: {source}", path.display())]
    Index { action: &'static str, path: PathBuf, source: ::sled::Error },
}

/// What `recover` found, for the log line and for the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// True after a clean stop (or on an empty folder): no delivery can have happened that is not counted.
    pub clean: bool,
    pub definitions: u64,
    pub messages: u64,
    /// Bytes of a torn last commit that were cut off.
    pub cut_bytes: u64,
}

/// Durable state of a broker.
pub trait Store: Send {
    /// Gives everything that is kept, in the order that [`Recovered`] says. Called once, before any commit.
    /// The unclean mark is set on disk before this returns.
    ///
    /// # Errors
    /// Anything unreadable; the caller must not go on to serve.
    fn recover(&mut self, sink: &mut dyn FnMut(Recovered)) -> Result<Recovery, StoreError>;

    /// Makes the batches durable together, in order.
    ///
    /// # Errors
    /// Nothing of it may be confirmed then. The store stays usable: the same batches may be tried again.
    fn commit(&mut self, batches: &[Batch]) -> Result<(), StoreError>;

    /// Writes the clean mark; the store takes no commits afterwards.
    ///
    /// # Errors
    /// The folder is still sound, but counts as uncleanly stopped.
    fn close(&mut self) -> Result<(), StoreError>;
}
