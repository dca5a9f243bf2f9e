//! A queue: messages in segments, which of them are ready, and the consumers that wait for them.
//!
//! Positions only: who holds an unacked message is the channel's business, what happens to a dead one is
//! the broker's. Invariants: every unsettled message is either ready or handed out; `ready_count` and
//! `ready_bytes` count exactly the ready ones; a requeued message keeps its sequence, hence its place.
//! Segments may be on disk (`paging.rs`): their messages count like others, and cannot be looked at.
//! Streams (`stream.rs`) use the same segments and have rules of their own.

pub mod message;
pub mod page;
pub mod paging;
mod ready;
pub mod segment;
pub mod stream;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use leveret_protocol::{FieldTable, RawProperties};
use smallvec::SmallVec;

use self::message::{NewMessage, Record, flag};
use self::paging::Durable;
pub use self::ready::Order;
use self::ready::Ready;
use self::segment::{SegmentPool, Segments};
use super::arguments::{Overflow, QueueSettings, QueueType};
use super::ids::{ConnectionKey, ConsumerKey};
use super::profile::QuorumPriorities;
use super::record::Name;
use super::timer::Millis;

/// What a queue counts since it was declared or recovered. Exact; updated where the event happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Messages that entered, by publish, dead-lettering or recovery.
    pub entered: u64,
    /// Handed to a consumer or by basic.get, redeliveries included.
    pub delivered: u64,
    pub redelivered: u64,
    /// Of those delivered, the ones that need no ack.
    pub delivered_no_ack: u64,
    /// Of those delivered, the ones that basic.get took, and how many of these need no ack.
    pub got: u64,
    pub got_no_ack: u64,
    /// basic.get found nothing.
    pub got_empty: u64,
    /// Settled by an ack, or by being sent without acknowledgement.
    pub acked: u64,
    /// Of those acked, the ones that were sent without acknowledgement.
    pub sent_no_ack: u64,
    /// Returned to the queue by nack, reject, recover, or the end of a channel.
    pub requeued: u64,
    pub expired: u64,
    /// Dropped from the head by a length limit.
    pub overflowed: u64,
    /// Rejected or nacked without requeue.
    pub rejected: u64,
    pub purged: u64,
    /// Refused on entry by `reject-publish` (never entered).
    pub refused: u64,
    /// Gone with a delivery limit.
    pub over_delivery_limit: u64,
    /// Could not be read back from the disk, where they stay.
    pub unreadable: u64,
}

impl std::ops::AddAssign<&Self> for QueueStats {
    fn add_assign(&mut self, other: &Self) {
        // Named one by one: a new count must not be forgotten.
        let Self {
            entered,
            delivered,
            redelivered,
            delivered_no_ack,
            got,
            got_no_ack,
            got_empty,
            acked,
            sent_no_ack,
            requeued,
            expired,
            overflowed,
            rejected,
            purged,
            refused,
            over_delivery_limit,
            unreadable,
        } = other;
        self.entered += entered;
        self.delivered += delivered;
        self.redelivered += redelivered;
        self.delivered_no_ack += delivered_no_ack;
        self.got += got;
        self.got_no_ack += got_no_ack;
        self.got_empty += got_empty;
        self.acked += acked;
        self.sent_no_ack += sent_no_ack;
        self.requeued += requeued;
        self.expired += expired;
        self.overflowed += overflowed;
        self.rejected += rejected;
        self.purged += purged;
        self.refused += refused;
        self.over_delivery_limit += over_delivery_limit;
        self.unreadable += unreadable;
    }
}

/// A queue of one vhost.
#[derive(Debug)]
pub struct Queue {
    pub name: Name,
    /// Set when the queue is durable and the broker keeps anything on disk.
    pub store_id: Option<u64>,
    pub queue_type: QueueType,
    pub durable: bool,
    pub auto_delete: bool,
    /// The connection that alone may use it.
    pub exclusive_owner: Option<ConnectionKey>,
    pub arguments: FieldTable,
    /// What is in effect: the arguments, merged with policies. Changed by [`Self::set_settings`].
    pub settings: Arc<QueueSettings>,
    /// What the arguments alone say; the same as `settings` where no policy says otherwise.
    pub declared: Arc<QueueSettings>,
    /// Every consumer, active or not, in the order of registration.
    pub consumers: Vec<ConsumerKey>,
    pub exclusive_consumer: bool,
    /// With `x-single-active-consumer`: who receives.
    pub active_consumer: Option<ConsumerKey>,
    /// A quorum queue's active consumer makes room for one of higher priority: it receives nothing more.
    pub handing_over: bool,
    /// Has ready messages or free consumers that dispatch has not seen yet.
    pub dirty: bool,
    pub stats: QueueStats,
    /// Last use in the sense of `x-expires`.
    pub last_used: Millis,
    /// When the armed head timer fires.
    pub head_timer: Option<Millis>,
    /// Sequences below this one were handed to the store (those that are persistent).
    pub stored_below: u64,
    /// What of that is on disk.
    pub on_disk: Durable,
    /// Messages below this sequence were here when the broker was started after a crash: they may have been delivered.
    pub redelivered_below: u64,
    /// It is over a limit, and what is to go for that is away.
    pub trim_waits: bool,
    messages: Segments,
    ready: Ready,
    ready_count: u64,
    ready_bytes: u64,
    /// Handed out and neither settled nor requeued.
    pub unacked_count: u64,
    waiting: WaitingConsumers,
    /// A message with an expiry has entered: heads must be looked at.
    has_expiring: bool,
    levels: Levels,
    /// Quorum queues: how often messages that came back were handed out, and how often they failed.
    returns: BTreeMap<u64, Returns>,
    /// Quorum queues: messages that wait for their retry, by when it is due. They count as handed out.
    delayed: BTreeSet<(Millis, u64)>,
    /// What a stream has on top: there nothing is ever ready or handed out in the sense of the fields above,
    /// but `ready_count` and `ready_bytes` are what is retained.
    stream: Option<Box<stream::Stream>>,
    /// Kept for [`Self::is_plain`].
    plain: bool,
}

/// How often a message of a quorum queue came back (§12.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Returns {
    /// Assignments to a consumer that ended with a return: `x-acquired-count`.
    pub acquired: u32,
    /// Those of them that count towards the delivery limit: `x-delivery-count`.
    pub failed: u32,
}

impl Returns {
    /// As the store keeps it: one number, which is 0 only if there was no return.
    pub fn to_stored(self) -> u32 {
        self.acquired.min(0xFFFF) << 16 | self.failed.min(0xFFFF)
    }

    pub fn from_stored(stored: u32) -> Self {
        Self { acquired: stored >> 16, failed: stored & 0xFFFF }
    }
}

/// How the priority of a message becomes a level of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Levels {
    One,
    /// Absent is 0, above the maximum is the maximum.
    UpTo(u8),
    /// 0 to 31, absent is 4.
    Quorum,
    /// Above 4 is 1, everything else 0.
    HighAndNormal,
}

impl Levels {
    /// A stored message may come from a queue that had more levels, under another version profile.
    fn of_stored(self, level: u8) -> u8 {
        match self {
            Self::One => 0,
            Self::UpTo(max) => level.min(max),
            Self::Quorum => level.min(31),
            Self::HighAndNormal => level.min(1),
        }
    }
}

/// What a queue is declared with, checked.
#[derive(Debug)]
pub struct Declared {
    pub name: Name,
    pub queue_type: QueueType,
    pub durable: bool,
    pub auto_delete: bool,
    pub arguments: FieldTable,
    /// What the arguments mean.
    pub settings: QueueSettings,
}

impl Queue {
    pub fn new(declared: Declared, quorum_priorities: QuorumPriorities, now: Millis) -> Self {
        let Declared { name, queue_type, durable, auto_delete, arguments, settings } = declared;
        let (order, levels) = match (queue_type, settings.max_priority, quorum_priorities) {
            (QueueType::Quorum, _, QuorumPriorities::None) => (Order::Quorum, Levels::One),
            (QueueType::Quorum, _, QuorumPriorities::HighAndNormal) => (Order::QuorumTwoToOne, Levels::HighAndNormal),
            (QueueType::Quorum, _, QuorumPriorities::Strict) => (Order::QuorumLevels(31), Levels::Quorum),
            (_, Some(max), _) => (Order::Levels(max), Levels::UpTo(max)),
            (_, None, _) => (Order::Fifo, Levels::One),
        };
        let ready = Ready::new(order);
        let settings = settings.shared();
        let mut queue = Self {
            name,
            store_id: None,
            queue_type,
            durable,
            auto_delete,
            exclusive_owner: None,
            arguments,
            declared: settings.clone(),
            settings,
            consumers: Vec::new(),
            exclusive_consumer: false,
            active_consumer: None,
            handing_over: false,
            dirty: false,
            stats: QueueStats::default(),
            last_used: now,
            head_timer: None,
            stored_below: 0,
            on_disk: Durable::default(),
            redelivered_below: 0,
            trim_waits: false,
            messages: Segments::default(),
            ready,
            ready_count: 0,
            ready_bytes: 0,
            unacked_count: 0,
            waiting: WaitingConsumers::default(),
            has_expiring: false,
            levels,
            returns: BTreeMap::new(),
            delayed: BTreeSet::new(),
            stream: (queue_type == QueueType::Stream).then(Box::default),
            plain: false,
        };
        queue.set_settings(queue.declared.clone());
        queue
    }

    /// From now on these are in effect.
    pub fn set_settings(&mut self, settings: Arc<QueueSettings>) {
        self.plain = self.queue_type == QueueType::Classic
            && self.levels == Levels::One
            && settings.message_ttl_ms.is_none()
            && settings.max_length.is_none()
            && settings.max_length_bytes.is_none();
        self.settings = settings;
    }

    /// Does nothing ask for a look at a message before it enters?
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// Ready messages.
    pub fn ready_count(&self) -> u64 {
        self.ready_count
    }

    /// Bytes of the bodies of ready messages.
    pub fn ready_bytes(&self) -> u64 {
        self.ready_bytes
    }

    /// The sequences of the ready messages, in the order in which they go out. Walks over all of them.
    pub fn ready_sequences(&self) -> Vec<u64> {
        self.ready.sequences(&self.messages)
    }

    /// Are messages unacked or on their way to a client?
    pub fn has_handed_out(&self) -> bool {
        if self.is_stream() { self.unacked_count > 0 } else { self.messages.live_count() > self.ready_count }
    }

    /// Bytes of memory held by messages.
    pub fn memory(&self) -> usize {
        self.messages.memory()
    }

    pub fn messages(&self) -> &Segments {
        &self.messages
    }

    pub(super) fn messages_mut(&mut self) -> &mut Segments {
        &mut self.messages
    }

    /// True if a new message needs a look at limits or expiry right away (never on the plain path).
    pub fn needs_care(&self) -> bool {
        self.settings.max_length.is_some() || self.settings.max_length_bytes.is_some() || self.has_expiring
    }

    /// The level a message with these properties goes to.
    #[inline]
    pub fn level(&self, properties: RawProperties<'_>) -> u8 {
        match self.levels {
            Levels::One => 0,
            Levels::UpTo(max) => properties.priority().unwrap_or(0).min(max),
            Levels::Quorum => properties.priority().unwrap_or(4).min(31),
            Levels::HighAndNormal => u8::from(properties.priority().is_some_and(|priority| priority > 4)),
        }
    }

    /// Does it order messages by priority?
    pub fn has_levels(&self) -> bool {
        self.levels != Levels::One
    }

    /// A quorum queue's message came back.
    pub fn count_return(&mut self, seq: u64, failed: bool) -> Returns {
        let returns = self.returns.entry(seq).or_default();
        returns.acquired = returns.acquired.saturating_add(1);
        returns.failed = returns.failed.saturating_add(u32::from(failed));
        *returns
    }

    /// How often the message came back so far.
    #[inline]
    pub fn returns_of(&self, seq: u64) -> Option<Returns> {
        if self.returns.is_empty() { None } else { self.returns.get(&seq).copied() }
    }

    /// The message waits until `at` before it is ready again.
    /// True if it is the first to be due.
    pub fn delay(&mut self, seq: u64, at: Millis) -> bool {
        self.delayed.insert((at, seq));
        self.delayed.first() == Some(&(at, seq))
    }

    /// Makes the messages ready whose wait is over; returns when the next one's is.
    pub fn end_delays(&mut self, now: Millis) -> Option<Millis> {
        while let Some(&(at, seq)) = self.delayed.first() {
            if at > now {
                return Some(at);
            }
            self.delayed.pop_first();
            self.requeue(seq, true);
        }
        None
    }

    /// Messages that wait for their retry.
    pub fn delayed_count(&self) -> usize {
        self.delayed.len()
    }

    /// Would one more message of this size be over a limit? (§11.4, reject-publish)
    pub fn would_overflow(&self, body_len: u64) -> bool {
        self.settings.max_length.is_some_and(|max| self.ready_count + 1 > max)
            || self.settings.max_length_bytes.is_some_and(|max| self.ready_bytes + body_len > max)
    }

    /// Does the queue refuse new messages instead of dropping old ones?
    pub fn rejects_publishes(&self) -> bool {
        matches!(self.settings.overflow, Some(Overflow::RejectPublish | Overflow::RejectPublishDlx))
    }

    /// Is the queue over a limit now? (§11.4, drop-head) Never a stream: it has retention.
    pub fn is_over_limit(&self) -> bool {
        if self.is_stream() {
            return false;
        }
        self.settings.max_length.is_some_and(|max| self.ready_count > max)
            || self.settings.max_length_bytes.is_some_and(|max| self.ready_bytes > max)
    }

    /// Appends a message and makes it ready. Returns its sequence.
    #[inline]
    pub fn push(&mut self, message: &NewMessage<'_>, pool: &mut SegmentPool) -> u64 {
        let seq = self.messages.push(message, pool);
        self.ready.push(seq, message.priority);
        self.ready_count += 1;
        self.ready_bytes += message.body.as_slice().len() as u64;
        self.stats.entered += 1;
        self.has_expiring |= message.expires_at.is_some();
        seq
    }

    /// Puts a recovered message back. Returns false if its record is unreadable.
    pub fn restore(
        &mut self,
        seq: u64,
        record: &[u8],
        body: Option<Bytes>,
        returns: Returns,
        pool: &mut SegmentPool,
    ) -> bool {
        if self.is_stream() {
            return self.restore_to_stream(seq, record, body, pool);
        }
        if !self.messages.restore(seq, record, body, pool) {
            return false;
        }
        if returns != Returns::default() || seq < self.redelivered_below {
            self.messages.set_redelivered(seq);
        }
        if returns != Returns::default() && self.queue_type == QueueType::Quorum {
            self.returns.insert(seq, returns);
        }
        let (priority, body_len, expires) = {
            let (record, _) = self.messages.get(seq).expect("just restored");
            (record.priority, record.body_len, record.expires_at.is_some())
        };
        let priority = self.levels.of_stored(priority);
        self.messages.set_priority(seq, priority);
        self.ready.push(seq, priority);
        self.ready_count += 1;
        self.ready_bytes += u64::from(body_len);
        self.stats.entered += 1;
        self.has_expiring |= expires;
        self.stored_below = seq + 1;
        true
    }

    /// New messages get sequences from this one on.
    /// Not those of a stream, of which the newest message is never settled: its offsets just go on.
    pub fn skip_sequences(&mut self, next: u64) {
        if !self.is_stream() {
            self.messages.skip_to(next);
        }
    }

    /// The next delivery of the message will say redelivered.
    pub fn mark_redelivered(&mut self, seq: u64) {
        // What a stream delivers is never redelivered (§8.3).
        if !self.is_stream() {
            self.messages.set_redelivered(seq);
        }
    }

    /// The message was refused with basic.reject.
    pub fn mark_failed(&mut self, seq: u64) {
        self.messages.set_failed(seq);
    }

    /// The message that entered last says redelivered, if it is still here.
    pub fn mark_newest_redelivered(&mut self) {
        self.mark_redelivered(self.messages.next_seq() - 1);
    }

    /// Persistent messages that were delivered before and are here, with what the store is to remember.
    pub fn redelivered_on_disk(&self) -> Vec<(u64, u32)> {
        let wanted = flag::PERSISTENT | flag::REDELIVERED;
        let mut found = Vec::new();
        if self.is_stream() {
            return found;
        }
        let mut at = 0;
        while let Some(seq) = self.messages.next_live(at) {
            at = seq + 1;
            if self.messages.get(seq).is_some_and(|(record, _)| record.flags & wanted == wanted) {
                let returns = self.returns_of(seq).unwrap_or(Returns { acquired: 1, failed: 0 });
                found.push((seq, returns.to_stored()));
            }
        }
        found.extend(self.messages.marked_away(wanted).map(|seq| {
            let returns = self.returns_of(seq).unwrap_or(Returns { acquired: 1, failed: 0 });
            (seq, returns.to_stored())
        }));
        found
    }

    /// The message that would be delivered next. `None` if none is ready, or that one is away
    /// ([`Self::head_away`]).
    #[inline]
    pub fn peek(&mut self) -> Option<(u64, Record<'_>)> {
        if self.ready_count == 0 {
            return None;
        }
        let seq = self.ready.peek(&self.messages)?;
        let found = self.messages.get(seq);
        debug_assert!(found.is_some() || self.messages.is_away(seq), "a ready message is not settled");
        found.map(|(record, _)| (seq, record))
    }

    /// Takes the message that [`Self::peek`] showed out of the ready ones: it is handed out.
    #[inline]
    pub fn take(&mut self, seq: u64, body_len: u32, priority: u8) {
        self.ready.take(seq, priority);
        self.ready_count -= 1;
        self.ready_bytes -= u64::from(body_len);
    }

    /// The message that would be delivered next, if it has expired at `now`. Messages behind it, and those of
    /// lower priority, are not looked at: that is what RabbitMQ does (§11.2 speaks of each level).
    pub fn expired_head(&mut self, now: Millis) -> Option<u64> {
        if !self.has_expiring || self.ready_count == 0 {
            return None;
        }
        let seq = self.ready.peek(&self.messages)?;
        self.expiry_of(seq).filter(|&at| at <= now).map(|_| seq)
    }

    /// When the head expires.
    pub fn next_head_expiry(&mut self) -> Option<Millis> {
        if !self.has_expiring {
            return None;
        }
        if self.ready_count == 0 {
            // Those that come back with an expiry set it again.
            self.has_expiring = false;
            return None;
        }
        let seq = self.ready.peek(&self.messages)?;
        self.expiry_of(seq)
    }

    /// Has a message with an expiry entered?
    pub fn may_expire(&self) -> bool {
        self.has_expiring
    }

    fn expiry_of(&self, seq: u64) -> Option<Millis> {
        self.messages.get(seq).and_then(|(record, _)| record.expires_at)
    }

    /// Takes a head out of the ready ones, whichever level it heads.
    pub fn take_head(&mut self, seq: u64) {
        if let Some((record, _)) = self.messages.get(seq) {
            let (body_len, priority) = (record.body_len, record.priority);
            self.take(seq, body_len, priority);
        }
    }

    /// Makes a handed-out message ready again, in its old place. Does nothing if it is settled.
    pub fn requeue(&mut self, seq: u64, redelivered: bool) {
        let Some((record, _)) = self.messages.get(seq) else { return };
        let (body_len, priority) = (record.body_len, record.priority);
        self.has_expiring |= record.expires_at.is_some();
        if redelivered {
            self.messages.set_redelivered(seq);
        }
        self.ready.put_back(seq, priority);
        self.ready_count += 1;
        self.ready_bytes += u64::from(body_len);
    }

    /// Forgets a handed-out message. Returns whether the store must be told: `Some(true)` if it was handed
    /// to the store, `Some(false)` if not; `None` if it was already settled.
    #[inline]
    pub fn settle(&mut self, seq: u64, pool: &mut SegmentPool) -> Option<bool> {
        if !self.returns.is_empty() {
            self.returns.remove(&seq);
        }
        let on_disk = self.store_id.is_some() && seq < self.stored_below && {
            self.messages.get(seq).is_some_and(|(record, _)| record.is(flag::PERSISTENT))
        };
        self.messages.settle(seq, pool).then_some(on_disk)
    }

    /// A consumer that could receive, if there is one: highest priority first, round robin among equals.
    #[inline]
    pub fn next_waiting(&mut self) -> Option<ConsumerKey> {
        self.waiting.pop()
    }

    /// Is there a consumer that might receive?
    #[inline]
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The consumer may receive (again); it joins the end of its priority's round.
    #[inline]
    pub fn add_waiting(&mut self, consumer: ConsumerKey, priority: i64) {
        self.waiting.push(consumer, priority);
    }

    /// The consumer is gone or may not receive.
    pub fn remove_waiting(&mut self, consumer: ConsumerKey) {
        self.waiting.remove(consumer);
        self.remove_reader(consumer);
    }
}

/// Consumers with credit, by priority.
#[derive(Debug, Default)]
struct WaitingConsumers {
    /// Highest priority first; levels stay when they are empty, there are few.
    levels: SmallVec<[(i64, VecDeque<ConsumerKey>); 1]>,
    count: usize,
}

impl WaitingConsumers {
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn push(&mut self, consumer: ConsumerKey, priority: i64) {
        self.count += 1;
        match self.levels.binary_search_by(|(level, _)| priority.cmp(level)) {
            Ok(index) => self.levels[index].1.push_back(consumer),
            Err(index) => self.levels.insert(index, (priority, VecDeque::from([consumer]))),
        }
    }

    fn pop(&mut self) -> Option<ConsumerKey> {
        let found = self.levels.iter_mut().find_map(|(_, ring)| ring.pop_front());
        self.count -= usize::from(found.is_some());
        found
    }

    fn remove(&mut self, consumer: ConsumerKey) {
        for (_, ring) in &mut self.levels {
            if let Some(index) = ring.iter().position(|&other| other == consumer) {
                ring.remove(index);
                self.count -= 1;
            }
        }
        self.levels.retain(|(_, ring)| !ring.is_empty());
    }
}
