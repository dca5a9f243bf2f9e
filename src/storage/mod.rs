//! The store: keeps what the model's batches say, and gives it back on start.
//!
//! One [`Store`] serves all vhosts of a broker and is owned by one thread, which commits whatever
//! gathered while the last commit ran. Nothing here knows AMQP: records and definitions are opaque bytes.
//! Invariant: when `commit` returned `Ok`, everything in it survives `kill -9` and a power cut;
//! a commit is found whole or not at all after a crash.

mod block;
mod checkpoint;
mod compact;
mod durable;
mod encode;
mod files;
mod format;
mod index;
mod log;
pub mod memory;
pub mod paging;
mod range;
mod reader;
mod replay;
pub mod shadow;
pub mod sled;
mod usage;

use std::path::PathBuf;
use std::time::Duration;

use crate::model::record::{Batch, Recovered, StoredBlock};

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
    Index { action: &'static str, path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
}

/// When a commit is on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fsync {
    /// When `commit` returns.
    #[default]
    Always,
    /// After this time at the latest, if the owner calls [`Store::sync_if_due`]: a power cut loses what was
    /// committed since, a crash of the process nothing.
    Interval(Duration),
    /// When the operating system likes, and at checkpoints.
    Never,
}

/// How a durable store works. The default is what a broker wants.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    pub fsync: Fsync,
    /// A log segment of this size is followed by a new one.
    pub segment_bytes: u64,
    /// A checkpoint is taken when the log has grown by this much.
    pub checkpoint_bytes: u64,
    /// Time that a commit gives to a running checkpoint, if the checkpoint does not need more to keep up.
    pub checkpoint_slice: Duration,
    /// sled's cache.
    pub cache_bytes: u64,
    /// [`Store::maintain`] does nothing before the last commit is so long ago: between the commits of a
    /// client that waits for each confirm, it would only delay the next one.
    pub idle_after: Duration,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            fsync: Fsync::Always,
            segment_bytes: 64 << 20,
            checkpoint_bytes: 32 << 20,
            checkpoint_slice: Duration::from_micros(200),
            cache_bytes: 1 << 20,
            idle_after: Duration::from_millis(20),
        }
    }
}

/// A failure of the operating system that a test asks for; it happens once.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A write stops after so many bytes: the disk is full.
    Write { after: usize },
    /// A sync fails.
    Sync,
    /// A new segment cannot be made.
    Create,
}

/// What `recover` found, for the log line and for the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// True after a clean stop (or on an empty folder): no delivery can have happened that is not counted.
    pub clean: bool,
    pub definitions: u64,
    pub messages: u64,
    /// Sequences from here on are free in every queue. A smaller one may be that of a message which is settled
    /// and not forgotten yet, and the store would take a new message for it.
    pub next_sequence: u64,
    /// Bytes of a torn last commit that were cut off.
    pub cut_bytes: u64,
}

/// Durable state of a broker.
pub trait Store: Send {
    /// Gives every definition, then where messages are, queue by queue in the order of their ids, sequences
    /// increasing; [`Self::read_range`] then gives the messages. Called once, before any commit. The unclean mark
    /// is set on disk before this returns.
    ///
    /// # Errors
    /// Anything unreadable; the caller must not go on to serve.
    fn recover_blocks(
        &mut self,
        definitions: &mut dyn FnMut(Recovered),
        blocks: &mut dyn FnMut(StoredBlock),
    ) -> Result<Recovery, StoreError>;

    /// All that the caller wants to have in memory is there.
    fn recovery_done(&mut self) {}

    /// Gives everything that is kept, messages included, in the order that [`Recovered`] says. In place of
    /// [`Self::recover_blocks`].
    ///
    /// # Errors
    /// As there.
    fn recover(&mut self, sink: &mut dyn FnMut(Recovered)) -> Result<Recovery, StoreError> {
        let mut queues = std::collections::BTreeSet::new();
        let recovery = self.recover_blocks(sink, &mut |block| {
            queues.insert(block.queue);
        })?;
        for queue in queues {
            self.read(queue, 0, usize::MAX, sink)?;
        }
        self.recovery_done();
        Ok(recovery)
    }

    /// Makes the batches durable together, in order.
    ///
    /// # Errors
    /// Nothing of it may be confirmed then. The store stays usable: the same batches may be tried again.
    fn commit(&mut self, batches: &[Batch]) -> Result<(), StoreError>;

    /// Does some work that can wait (checkpoints, giving disk space back), for a few milliseconds at most.
    /// To be called when there is nothing to commit; returns true if there is more to do at once.
    ///
    /// # Errors
    /// What was committed is safe. Trying again later may succeed; retry with a pause.
    fn maintain(&mut self) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// With [`Fsync::Interval`]: syncs if it is time, and says in how long it will be if not; `None` if
    /// everything is synced. A commit syncs as well when it is time, so this matters when none comes.
    ///
    /// # Errors
    /// What was committed since the last sync may be lost with a power cut. The next call tries again.
    fn sync_if_due(&mut self) -> Result<Option<Duration>, StoreError> {
        Ok(None)
    }

    /// Reads live messages of a queue back, in order from sequence `first` on, until `bytes_max` bytes
    /// (records and bodies; one message may exceed it) or the end. Gives [`Recovered::Message`] only.
    /// Returns the sequence to go on with, `None` at the end.
    ///
    /// # Errors
    /// A message that cannot be read; those before it were given.
    fn read(
        &mut self,
        queue: u64,
        first: u64,
        bytes_max: usize,
        sink: &mut dyn FnMut(Recovered),
    ) -> Result<Option<u64>, StoreError> {
        let _ = (queue, first, bytes_max, sink);
        Ok(None)
    }

    /// Reads the live messages `first..=last` of a queue back, in order, also while commits go on: the state is
    /// that after the last commit.
    ///
    /// # Errors
    /// Some of them cannot be read ([`StoreError::Damaged`]): all others were given. Or the operating system
    /// refused: trying again may succeed.
    fn read_range(
        &mut self,
        queue: u64,
        first: u64,
        last: u64,
        sink: &mut dyn FnMut(Recovered),
    ) -> Result<(), StoreError> {
        let mut wanted = |message| {
            if matches!(message, Recovered::Message { seq, .. } if seq <= last) {
                sink(message);
            }
        };
        self.read(queue, first, usize::MAX, &mut wanted).map(drop)
    }

    /// Writes the clean mark; the store takes no commits afterwards.
    ///
    /// # Errors
    /// The folder is still sound, but counts as uncleanly stopped.
    fn close(&mut self) -> Result<(), StoreError>;
}
