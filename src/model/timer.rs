//! The one timer structure of the model: what is due when. Knows no clock; time comes in with commands.
//!
//! Entries are never removed early: whoever is called looks whether it is really due and arms again if
//! it is not. That keeps arming at one heap push and lets a busy queue re-arm rarely.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::ids::{ChannelKey, ConnectionKey, ExchangeKey, QueueKey};

/// Milliseconds since the Unix epoch, never going backwards within one run.
pub type Millis = u64;

/// What is to be looked at when its time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The message at the head of the queue may have expired (§11.2).
    QueueHead(QueueKey),
    /// The queue may have been unused for too long (`x-expires`).
    QueueExpires(QueueKey),
    /// Returned messages of a quorum queue may be due for their retry (§12.1).
    QueueDelayed(QueueKey),
    /// Consumers of a stream go on after a pause, or its oldest messages are too old (§12.2).
    Stream(QueueKey),
    /// Messages that the exchange holds back may be due (§7).
    DelayedExchange(ExchangeKey),
    /// Dead letters that no queue took are tried again.
    RetryDeaths,
    /// The oldest unacked delivery of the channel may be too old (§9.5).
    AckTimeout(ChannelKey),
    /// Time to look whether a heartbeat must be sent (§3.7).
    HeartbeatSend(ConnectionKey),
    /// Time to look whether anything was received (§3.7).
    HeartbeatReceive(ConnectionKey),
    /// The client has had its time to answer connection.close (§3.10).
    CloseConnection(ConnectionKey),
}

/// A heap of deadlines; equal ones fire in the order in which they were armed.
#[derive(Debug, Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(Millis, u64, Timer)>>,
    armed: u64,
}

impl Timers {
    pub fn arm(&mut self, at: Millis, timer: Timer) {
        self.armed += 1;
        self.heap.push(Reverse((at, self.armed, timer)));
    }

    /// When the next timer is due, if there is one.
    pub fn next_deadline(&self) -> Option<Millis> {
        self.heap.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Takes one timer that is due at `now`.
    pub fn pop_due(&mut self, now: Millis) -> Option<Timer> {
        if self.next_deadline()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, _, timer))| timer)
    }
}
