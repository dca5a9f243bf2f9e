//! The driver of one vhost: the lock round its broker, and who is told what after each turn.
//!
//! Rules: nothing waits, writes to a socket or touches a disk while it holds the lock. Whoever ends a turn
//! wakes each connection once, after the lock is released. The store takes its batch under the same lock,
//! so batches cannot swap.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Context;

use atomic_waker::AtomicWaker;
use dashmap::DashMap;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use super::clock::Clock;
use super::store_thread::StoreSignal;
use crate::model::broker::{Broker, Effects};
use crate::model::ids::ConnectionKey;
use crate::model::queue::page::{PageAnswer, PageOp};
use crate::model::quota::{Quota, effective};
use crate::model::record::{Batch, Name};
use crate::model::timer::Millis;
use crate::model::vhost::Vhost;

/// Lets a connection's task be woken from anywhere.
#[derive(Debug, Default)]
pub struct Wakeup {
    woken: AtomicBool,
    waker: AtomicWaker,
}

impl Wakeup {
    pub fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Registers the calling task; call before looking at anything that may wake it.
    pub fn register(&self, context: &Context<'_>) {
        self.waker.register(context.waker());
    }

    /// True once per wake.
    pub fn take(&self) -> bool {
        // A plain load first: this is asked far more often than it is answered with yes.
        self.woken.load(Ordering::Acquire) && self.woken.swap(false, Ordering::AcqRel)
    }
}

/// A fault of ours within a turn leaves a broker that is half changed: nobody may go on with it, and least of all
/// may what it then says of messages reach the disk. What was confirmed is there, so a new start loses nothing.
struct EndOnPanic<'a> {
    vhost: &'a Name,
}

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        tracing::error!(
            vhost = %self.vhost,
            "a fault in the broker, see above: it ends, to be started again; nothing confirmed is lost. Please report it"
        );
        std::process::exit(1);
    }
}

/// A vhost in service.
pub struct Shard {
    pub name: Name,
    /// Connections that have entered, and how many may.
    pub connections: Arc<Quota>,
    /// What is known of it besides its contents.
    pub vhost: RwLock<Vhost>,
    broker: Mutex<Broker>,
    wakeups: DashMap<ConnectionKey, Arc<Wakeup>>,
    /// What the timer task sleeps for; `Millis::MAX`: nothing.
    armed: AtomicU64,
    rearm: Notify,
    store: Option<Arc<StoreSignal>>,
    /// Somebody waits for the store to catch up.
    held_back: AtomicBool,
    /// The vhost is deleted.
    closed: AtomicBool,
    pub clock: Clock,
}

impl Shard {
    /// `store`: whom to tell that there is something to commit; `None` when nothing is kept.
    pub fn new(vhost: &Vhost, broker: Broker, clock: Clock, store: Option<Arc<StoreSignal>>) -> Self {
        Self {
            name: vhost.name.clone(),
            connections: Quota::new(effective(vhost.limits.max_connections)),
            vhost: RwLock::new(vhost.clone()),
            broker: Mutex::new(broker),
            wakeups: DashMap::new(),
            armed: AtomicU64::new(Millis::MAX),
            rearm: Notify::new(),
            store,
            held_back: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            clock,
        }
    }

    /// One turn: `work` has the broker alone; then everybody concerned is told. `own` is the caller's own
    /// connection, which is not woken: returns true if it would have been.
    pub fn turn<T>(&self, own: Option<ConnectionKey>, work: impl FnOnce(&mut Broker, Millis) -> T) -> (T, bool) {
        let mut effects = Effects::default();
        let now = self.clock.now();
        let result = {
            let mut broker = self.broker.lock();
            let end_on_panic = EndOnPanic { vhost: &self.name };
            let result = work(&mut broker, now);
            broker.finish(now, &mut effects);
            std::mem::forget(end_on_panic);
            result
        };
        (result, self.perform(&effects, own))
    }

    /// Looks at the broker and changes nothing.
    pub fn look<T>(&self, look: impl FnOnce(&Broker) -> T) -> T {
        look(&self.broker.lock())
    }

    fn perform(&self, effects: &Effects, own: Option<ConnectionKey>) -> bool {
        if effects.store
            && let Some(store) = &self.store
        {
            store.raise();
        }
        if let Some(deadline) = effects.deadline
            && deadline < self.armed.load(Ordering::Acquire)
        {
            self.rearm.notify_one();
        }
        let mut own_woken = false;
        for &connection in &effects.wake {
            if Some(connection) == own {
                own_woken = true;
            } else if let Some(wakeup) = self.wakeups.get(&connection) {
                wakeup.wake();
            }
        }
        own_woken
    }

    pub fn add_wakeup(&self, connection: ConnectionKey, wakeup: Arc<Wakeup>) {
        self.wakeups.insert(connection, wakeup);
    }

    pub fn remove_wakeup(&self, connection: ConnectionKey) {
        self.wakeups.remove(&connection);
    }

    /// A connection does not read until the store has caught up.
    pub fn note_held_back(&self) {
        self.held_back.store(true, Ordering::Release);
    }

    /// Takes what is to be committed; the number is for [`Self::stored`].
    pub fn take_batch(&self, batch: &mut Batch) -> Option<u64> {
        self.broker.lock().take_batch(batch)
    }

    /// Takes what is to be done for messages that go away and come back.
    pub fn take_page_ops(&self) -> Vec<PageOp> {
        self.broker.lock().take_page_ops()
    }

    /// Some of it is done.
    pub fn paged(&self, answers: Vec<PageAnswer>) {
        self.turn(None, |broker, now| broker.paged(answers, now));
        self.let_go();
    }

    /// Those who waited for the disk look whether they may read again.
    fn let_go(&self) {
        if self.held_back.swap(false, Ordering::AcqRel) {
            self.wake_all();
        }
    }

    /// Every connection looks whether there is something new for it.
    pub fn wake_all(&self) {
        for wakeup in &self.wakeups {
            wakeup.wake();
        }
    }

    /// The commit is on disk.
    pub fn stored(&self, commit: u64) {
        self.turn(None, |broker, _| broker.stored(commit));
        self.let_go();
    }

    /// Lets [`Self::run_timers`] end.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.rearm.notify_one();
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Calls the broker whenever something is due, until [`Self::close`].
    pub async fn run_timers(self: Arc<Self>) {
        while !self.is_closed() {
            let mut deadline = None;
            self.turn(None, |broker, now| {
                broker.advance(now);
                deadline = broker.next_deadline();
                self.armed.store(deadline.unwrap_or(Millis::MAX), Ordering::Release);
            });
            let rearmed = self.rearm.notified();
            match deadline {
                // There was more to do than one turn may take: others first.
                Some(at) if at <= self.clock.now() => tokio::task::yield_now().await,
                Some(at) => {
                    let _ = tokio::time::timeout(self.clock.until(at), rearmed).await;
                }
                None => rearmed.await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::broker::Settings;

    /// Run by the test below, in a process of its own.
    #[test]
    #[ignore = "ends its process"]
    fn a_fault_in_a_turn() {
        let broker = Broker::new(Name::from("/"), Settings::default(), 0, [0; 32]);
        let shard = Shard::new(&Vhost::new(Name::from("/"), 0), broker, Clock::start(), None);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| shard.turn(None, |_, _| panic!("ours"))));
        unreachable!("the process goes on: {}", caught.is_err());
    }

    /// As tokio catches it: a task that panics would leave the others with a broker half changed.
    #[test]
    fn a_fault_in_a_turn_ends_the_process() {
        let own = std::env::current_exe().expect("a test has a file");
        let arguments = ["--exact", "server::shard::tests::a_fault_in_a_turn", "--ignored", "--nocapture"];
        let child = std::process::Command::new(own).args(arguments).output().expect("it starts");
        let stderr = String::from_utf8_lossy(&child.stderr);
        assert_eq!(child.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("ours"), "{stderr}");
    }
}
