//! A channel: what it holds unacked, its prefetch, its confirms, its transaction.
//!
//! Plain data with its own rules; who may do what, and what an ack means for a queue, is `broker`'s.
//! Invariants: delivery tags rise by one per delivery of any kind; every number published after
//! confirm.select is confirmed exactly once; `Unacked` is in the order of tags.

use std::collections::VecDeque;

use bytes::Bytes;

use super::exchange::Keepers;
use super::ids::{ChannelKey, ConnectionKey, ConsumerKey, ExchangeKey, QueueKey};
use super::quota::Permit;
use super::record::Name;
use super::timer::Millis;

/// A delivery that waits for its ack.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    pub tag: u64,
    pub queue: QueueKey,
    pub seq: u64,
    /// Null for a message taken with basic.get.
    pub consumer: ConsumerKey,
    /// When the delivery acknowledgement timeout strikes; `Millis::MAX` for never.
    pub deadline: Millis,
}

/// The unacked deliveries of a channel, in the order of their tags.
#[derive(Debug, Default)]
pub struct Unacked {
    entries: VecDeque<Entry>,
    count: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    delivery: Delivery,
    settled: bool,
}

impl Unacked {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn push(&mut self, delivery: Delivery) {
        self.entries.push_back(Entry { delivery, settled: false });
        self.count += 1;
    }

    pub fn iter(&self) -> impl Iterator<Item = &Delivery> {
        self.entries.iter().filter(|entry| !entry.settled).map(|entry| &entry.delivery)
    }

    fn position(&self, tag: u64) -> Option<usize> {
        // Acks mostly come in order.
        let index = match self.entries.front() {
            Some(first) if first.delivery.tag == tag => 0,
            _ => self.entries.binary_search_by_key(&tag, |entry| entry.delivery.tag).ok()?,
        };
        (!self.entries[index].settled).then_some(index)
    }

    /// Takes the delivery with this tag, or with `multiple` all up to it (tag 0: all), into `taken`,
    /// in the order of tags (§8.5). Returns false, and takes nothing, if the tag is not outstanding.
    /// Tags over `sent` are on their way: the client cannot mean them, and they stay.
    #[inline]
    pub fn take(&mut self, tag: u64, multiple: bool, sent: u64, taken: &mut Vec<Delivery>) -> bool {
        let end = match (multiple, tag) {
            (true, 0) => self.entries.partition_point(|entry| entry.delivery.tag <= sent),
            _ if tag > sent => return false,
            _ => match self.position(tag) {
                Some(index) => index + 1,
                None => return false,
            },
        };
        if multiple {
            let before = taken.len();
            taken.extend(self.entries.drain(..end).filter(|entry| !entry.settled).map(|entry| entry.delivery));
            self.count -= taken.len() - before;
        } else {
            let index = end - 1;
            taken.push(self.entries[index].delivery);
            self.entries[index].settled = true;
            self.count -= 1;
        }
        while self.entries.front().is_some_and(|entry| entry.settled) {
            self.entries.pop_front();
        }
        // One old delivery must not keep the places of millions of settled ones.
        if self.entries.len() > 64 && self.entries.len() > 4 * self.count {
            self.entries.retain(|entry| !entry.settled);
        }
        true
    }

    /// Puts deliveries back that a transaction gave up (§10).
    pub fn put_back(&mut self, deliveries: Vec<Delivery>) {
        for delivery in deliveries {
            match self.entries.binary_search_by_key(&delivery.tag, |entry| entry.delivery.tag) {
                Ok(index) => self.entries[index] = Entry { delivery, settled: false },
                Err(index) => self.entries.insert(index, Entry { delivery, settled: false }),
            }
            self.count += 1;
        }
    }
}

/// A consumer of a queue.
#[derive(Debug)]
pub struct Consumer {
    pub tag: Box<[u8]>,
    pub connection: ConnectionKey,
    pub channel: super::ids::ChannelKey,
    pub queue: QueueKey,
    pub no_ack: bool,
    pub exclusive: bool,
    pub priority: i64,
    pub arguments: leveret_protocol::FieldTable,
    /// Its own `x-consumer-timeout` (4.3, quorum queues).
    pub timeout_ms: Option<u64>,
    /// Unacked deliveries it may hold; 0: any number.
    pub prefetch: u32,
    pub unacked: u32,
    /// Is in its queue's round of waiting consumers.
    pub waiting: bool,
    /// Deliveries in the outbox that are not encoded yet; they need the tag even after a cancel.
    pub queued: u32,
    pub cancelled: bool,
}

impl Consumer {
    /// Has it room for one more, as far as its own limit goes?
    pub fn has_credit(&self) -> bool {
        self.no_ack || self.prefetch == 0 || self.unacked < self.prefetch
    }
}

/// A run of confirm numbers that share their fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    last: u64,
    /// Number of the commit that must be on disk; 0: none.
    commit: u64,
    refused: bool,
}

/// Publisher confirms of a channel (§11.1). Numbers are answered in order.
#[derive(Debug, Default)]
pub struct Confirms {
    published: u64,
    answered: u64,
    runs: VecDeque<Run>,
}

/// One answer to a publisher: all numbers from the last answer on up to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub last: u64,
    pub multiple: bool,
    pub refused: bool,
}

impl Confirms {
    /// A publish that is confirmed once `commit` is on disk (0: at once), or refused.
    #[inline]
    pub fn publish(&mut self, commit: u64, refused: bool) {
        self.published += 1;
        match self.runs.back_mut() {
            // Commits only rise, so the later one covers the earlier.
            Some(run) if run.refused == refused && !refused && (run.commit == commit || commit == 0) => {
                run.last = self.published;
            }
            _ => self.runs.push_back(Run { last: self.published, commit, refused }),
        }
    }

    /// The next answer that may be sent when all commits up to `stored` are on disk.
    pub fn next_answer(&mut self, stored: u64) -> Option<Answer> {
        let first = *self.runs.front().filter(|run| run.commit <= stored)?;
        self.runs.pop_front();
        let mut last = first.last;
        while let Some(run) = self.runs.front() {
            if run.refused != first.refused || run.commit > stored {
                break;
            }
            last = run.last;
            self.runs.pop_front();
        }
        let multiple = last > self.answered + 1;
        self.answered = last;
        Some(Answer { last, multiple, refused: first.refused })
    }

    /// Published since `confirm.select`.
    pub fn published(&self) -> u64 {
        self.published
    }

    /// Published and not answered.
    pub fn outstanding(&self) -> u64 {
        self.published - self.answered
    }
}

/// Where a publish of a transaction goes when it commits.
#[derive(Debug)]
pub struct Destinations {
    pub queues: Vec<QueueKey>,
    pub keepers: Keepers,
    /// Channels that wait for it as a direct reply.
    pub replies: Vec<ChannelKey>,
}

/// A publish inside a transaction, routed and not yet handed over.
#[derive(Debug)]
pub struct TxPublish {
    pub destinations: Destinations,
    pub exchange: Bytes,
    pub routing_key: Bytes,
    pub properties: Bytes,
    pub body: Bytes,
    pub bcc: Vec<Vec<u8>>,
    pub expiration_ms: Option<u64>,
    pub mandatory: bool,
}

/// How deliveries are settled inside a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    Ack,
    /// basic.nack with requeue, and recover.
    Return,
    /// basic.reject with requeue: counts as a failure for quorum queues of 4.3.
    RejectReturn,
    /// basic.nack without requeue: dead-lettered or dropped.
    Discard,
    /// basic.reject without requeue: as `Discard`, but counts as a failure.
    RejectDiscard,
}

/// What a transaction has gathered since the last commit or rollback (§10).
#[derive(Debug, Default)]
pub struct Tx {
    pub publishes: Vec<TxPublish>,
    pub settlements: Vec<(Settlement, Vec<Delivery>)>,
    /// The commit whose storing commit-ok waits for.
    pub committing: Option<u64>,
}

/// Where the last message of this channel went; valid while the topology's epoch is the same.
#[derive(Debug, Default)]
pub struct RouteCache {
    pub valid: bool,
    pub epoch: u64,
    pub exchange: Vec<u8>,
    pub routing_key: Vec<u8>,
    pub queues: Vec<QueueKey>,
}

#[derive(Debug)]
pub struct Channel {
    pub number: u16,
    pub connection: ConnectionKey,
    /// The last delivery tag given out.
    pub delivery_tag: u64,
    /// The last one that was encoded for the client.
    pub sent_tag: u64,
    pub unacked: Unacked,
    pub consumers: Vec<ConsumerKey>,
    /// For consumers started from now on; 0: any number.
    pub prefetch: u16,
    /// Shared by all consumers of the channel; 0: none.
    pub global_prefetch: u16,
    pub confirms: Option<Confirms>,
    /// Is in the connection's list of channels with something to confirm.
    pub confirm_listed: bool,
    /// The last commit that the broker was asked to report to this channel.
    pub awaited_commit: u64,
    pub tx: Option<Tx>,
    pub last_queue: Option<Name>,
    pub route: RouteCache,
    /// The exchange this user was last allowed to write to.
    pub writable: Option<ExchangeKey>,
    pub ack_timer: Millis,
    /// The consumer of `amq.rabbitmq.reply-to` and its opaque name (§13.1).
    pub reply_consumer: Option<ReplyConsumer>,
    /// It is counted among the channels of its user and of the node as long as it lives.
    pub permits: Option<[Permit; 2]>,
}

/// A direct reply-to consumer.
#[derive(Clone, Debug)]
pub struct ReplyConsumer {
    pub tag: Box<[u8]>,
    /// The full reply-to name that requests carry.
    pub name: Name,
}

impl Channel {
    /// Whether anything was published here, as far as can be told without counting.
    pub fn has_published(&self) -> bool {
        self.route.valid || self.confirms.as_ref().is_some_and(|confirms| confirms.published() > 0)
    }

    pub fn new(number: u16, connection: ConnectionKey) -> Self {
        Self {
            number,
            connection,
            delivery_tag: 0,
            sent_tag: 0,
            unacked: Unacked::default(),
            consumers: Vec::new(),
            prefetch: 0,
            global_prefetch: 0,
            confirms: None,
            confirm_listed: false,
            awaited_commit: 0,
            tx: None,
            last_queue: None,
            route: RouteCache::default(),
            writable: None,
            ack_timer: Millis::MAX,
            reply_consumer: None,
            permits: None,
        }
    }

    pub fn next_tag(&mut self) -> u64 {
        self.delivery_tag += 1;
        self.delivery_tag
    }

    /// Has the channel-wide limit room for one more?
    pub fn has_credit(&self) -> bool {
        // What a transaction has acked is settled only by its commit.
        let in_tx = || self.tx.as_ref().map_or(0, |tx| tx.settlements.iter().map(|(_, held)| held.len()).sum());
        self.global_prefetch == 0 || self.unacked.len() + in_tx() < self.global_prefetch as usize
    }
}

#[cfg(test)]
mod tests {
    use slotmap::Key as _;

    use super::*;

    fn unacked(tags: impl IntoIterator<Item = u64>) -> Unacked {
        let mut unacked = Unacked::default();
        for tag in tags {
            unacked.push(Delivery {
                tag,
                queue: QueueKey::null(),
                seq: tag,
                consumer: ConsumerKey::null(),
                deadline: Millis::MAX,
            });
        }
        unacked
    }

    fn take(unacked: &mut Unacked, tag: u64, multiple: bool) -> Option<Vec<u64>> {
        let mut taken = Vec::new();
        unacked.take(tag, multiple, u64::MAX, &mut taken).then(|| taken.iter().map(|delivery| delivery.tag).collect())
    }

    /// §8.5: the table of tags.
    #[test]
    fn s8_5_tags_are_taken_once_and_multiple_needs_its_own_tag() {
        let mut held = unacked(1..=5);
        assert_eq!(take(&mut held, 3, false), Some(vec![3]));
        assert_eq!(take(&mut held, 3, false), None);
        assert_eq!(take(&mut held, 3, true), None, "3 itself is not outstanding");
        assert_eq!(take(&mut held, 0, false), None);
        assert_eq!(take(&mut held, 4, true), Some(vec![1, 2, 4]));
        assert_eq!(take(&mut held, 0, true), Some(vec![5]));
        assert_eq!(take(&mut held, 0, true), Some(vec![]), "never an error");
        assert_eq!(held.len(), 0);
    }

    #[test]
    fn one_old_delivery_does_not_keep_settled_ones_in_memory() {
        let mut held = unacked(1..=10_000);
        for tag in 2..=10_000 {
            take(&mut held, tag, false).unwrap();
        }
        assert_eq!(held.len(), 1);
        assert!(held.entries.len() <= 64);
        assert_eq!(take(&mut held, 1, false), Some(vec![1]));
    }

    #[test]
    fn s10_rolled_back_deliveries_are_outstanding_again() {
        let mut held = unacked(1..=4);
        let mut taken = Vec::new();
        held.take(1, false, u64::MAX, &mut taken);
        held.take(3, false, u64::MAX, &mut taken);
        held.put_back(taken);
        assert_eq!(take(&mut held, 4, true), Some(vec![1, 2, 3, 4]));
    }

    /// §11.1: batched, in order, each number once; a nack is never covered by an ack.
    #[test]
    fn s11_1_confirms_wait_for_their_commit_and_keep_nacks_apart() {
        let mut confirms = Confirms::default();
        confirms.publish(0, false);
        confirms.publish(0, false);
        confirms.publish(0, true);
        confirms.publish(7, false);
        confirms.publish(0, false);
        confirms.publish(8, false);
        assert_eq!(confirms.next_answer(6), Some(Answer { last: 2, multiple: true, refused: false }));
        assert_eq!(confirms.next_answer(6), Some(Answer { last: 3, multiple: false, refused: true }));
        assert_eq!(confirms.next_answer(6), None);
        assert_eq!(confirms.next_answer(7), Some(Answer { last: 5, multiple: true, refused: false }));
        assert_eq!(confirms.next_answer(8), Some(Answer { last: 6, multiple: false, refused: false }));
        assert_eq!(confirms.outstanding(), 0);
    }
}
