//! The thread that owns the store: commits whatever gathered while the last commit ran.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Directory;
use super::commits::Commits;
use super::pager::Pager;
use crate::model::record::{Batch, Op};
use crate::storage::{Store, StoreError};

/// How long a failed commit waits before it is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How often it is tried once the broker is to stop: a full disk must not keep it from that.
const TRIES_WHEN_STOPPING: u32 = 3;
/// How long the idle thread sleeps before it lets the store tidy up.
const IDLE: Duration = Duration::from_secs(1);

/// Tells the store thread that there is work.
#[derive(Debug, Default)]
pub struct StoreSignal {
    raised: AtomicBool,
    stopping: AtomicBool,
    thread: Mutex<Option<Thread>>,
    own: Mutex<Own>,
    pub(super) commits: Commits,
}

/// What the server itself, and no vhost's broker, has for the store.
#[derive(Debug, Default)]
struct Own {
    /// Users, vhosts, permissions.
    ops: Vec<Op>,
    /// Who waits until everything that was changed before is on disk.
    waiting: Vec<oneshot::Sender<()>>,
}

impl StoreSignal {
    /// There is something to commit.
    pub fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel)
            && let Some(thread) = &*self.thread.lock()
        {
            thread.unpark();
        }
    }

    /// Adds an operation that belongs to no vhost's broker.
    pub fn submit(&self, op: Op) {
        self.own.lock().ops.push(op);
        self.raise();
    }

    /// Adds operations that become durable together or not at all.
    pub fn submit_all(&self, ops: impl IntoIterator<Item = Op>) {
        self.own.lock().ops.extend(ops);
        self.raise();
    }

    /// Waits until all that was submitted or changed in any vhost before is on disk.
    pub async fn flushed(&self) {
        let (sender, receiver) = oneshot::channel();
        self.own.lock().waiting.push(sender);
        self.raise();
        // An error: the broker stops, and its last commits are on disk or it says so.
        let _ = receiver.await;
    }

    /// Lets the thread commit what is left, close the store, and end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.raised.store(true, Ordering::Release);
        if let Some(thread) = &*self.thread.lock() {
            thread.unpark();
        }
    }
}

/// Starts the thread. Should it panic, the process ends.
///
/// # Errors
/// The operating system gives no thread.
pub fn spawn(
    store: Box<dyn Store>,
    signal: Arc<StoreSignal>,
    directory: Arc<Directory>,
    pager: Pager,
) -> std::io::Result<JoinHandle<Result<(), StoreError>>> {
    std::thread::Builder::new().name("store".to_owned()).spawn(move || {
        *signal.thread.lock() = Some(std::thread::current());
        let result = catch_unwind(AssertUnwindSafe(|| run(store, &signal, &directory, pager)));
        result.unwrap_or_else(|_| {
            // Without it no confirm would ever come again, and nobody would know why.
            tracing::error!("the store's thread has failed, see above: the broker ends; nothing confirmed is lost");
            std::process::exit(1)
        })
    })
}

/// Until [`StoreSignal::stop`].
///
/// # Errors
/// The last commit, or the mark of a clean stop, could not be written.
fn run(
    mut store: Box<dyn Store>,
    signal: &StoreSignal,
    directory: &Directory,
    mut pager: Pager,
) -> Result<(), StoreError> {
    let mut batches: Vec<Batch> = Vec::new();
    loop {
        // The order matters: whoever raises after this is seen in the next round.
        let raised = signal.raised.swap(false, Ordering::AcqRel);
        let stopping = signal.stopping.load(Ordering::Acquire);
        if raised || pager.is_waiting() {
            // Before the commit: consumers wait for what is read, and nothing that is read is in it.
            pager.serve(store.as_mut(), directory);
        }
        if !raised && !stopping {
            idle(store.as_mut(), signal);
            continue;
        }
        let committed = commit_all(store.as_mut(), signal, directory, &mut batches)?;
        if stopping && !committed {
            break;
        }
    }
    store.close()
}

/// Nothing to commit: syncs what is due, tidies up, sleeps.
fn idle(store: &mut dyn Store, signal: &StoreSignal) {
    let done = store.sync_if_due().and_then(|due| Ok((due, store.maintain()?)));
    match done {
        Ok((_, true)) => {}
        Ok((due, false)) => std::thread::park_timeout(due.unwrap_or(IDLE).min(IDLE)),
        Err(error) => {
            tracing::error!(%error, "store maintenance failed, will be tried again");
            if !signal.raised.load(Ordering::Acquire) {
                std::thread::park_timeout(RETRY);
            }
        }
    }
}

/// One group commit over all vhosts. Returns false if there was nothing to commit.
///
/// # Errors
/// The broker is to stop, and it could not be written.
fn commit_all(
    store: &mut dyn Store,
    signal: &StoreSignal,
    directory: &Directory,
    batches: &mut Vec<Batch>,
) -> Result<bool, StoreError> {
    let mut committing = Vec::new();
    let mut used = 0;
    // Before the vhosts' batches: what they have now was changed before anybody in it began to wait.
    let Own { ops, waiting } = std::mem::take(&mut *signal.own.lock());
    if !ops.is_empty() {
        empty_batch(batches, used).ops = ops;
        used += 1;
    }
    for shard in directory.shards() {
        if let Some(commit) = shard.take_batch(empty_batch(batches, used)) {
            committing.push((shard, commit));
            used += 1;
        }
    }
    let filled = &batches[..used];
    if filled.iter().any(|batch| !batch.is_empty()) {
        let mut tries = 0;
        let started = Instant::now();
        // Until it is on disk nothing of it is confirmed, and publishers are held back by the backlog.
        while let Err(error) = store.commit(filled) {
            signal.commits.failed();
            tracing::error!(%error, retry_in_s = RETRY.as_secs(), "cannot write to the store; confirms wait");
            if signal.stopping.load(Ordering::Acquire) {
                tries += 1;
                if tries == TRIES_WHEN_STOPPING {
                    return Err(error);
                }
            }
            std::thread::sleep(RETRY);
        }
        signal.commits.committed(started.elapsed(), filled.iter().map(|batch| batch.ops.len()).sum());
    }
    for (shard, commit) in &committing {
        shard.stored(*commit);
    }
    for waiter in waiting {
        let _ = waiter.send(());
    }
    for batch in batches.iter_mut() {
        batch.clear();
    }
    Ok(used > 0)
}

/// The batch at `index`, which is empty: kept from an earlier commit, or new.
fn empty_batch(batches: &mut Vec<Batch>, index: usize) -> &mut Batch {
    if batches.len() == index {
        batches.push(Batch::default());
    }
    &mut batches[index]
}
