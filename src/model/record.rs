//! What the model asks the store to keep, and what the store gives back on start.
//!
//! A [`Batch`] is all that one group commit holds for one vhost. Order matters: operations are applied
//! in the order in which they stand, and a batch is durable as a whole or not at all.
//! This file holds no encoding of a definition's value (each kind has its own in `definitions.rs`).

use std::sync::Arc;

use bytes::Bytes;

/// The name of a vhost, exchange, queue or user. Cheap to clone.
pub type Name = Arc<str>;

/// The kind of a definition; its number is the first byte of the key on disk, so numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DefinitionKind {
    Vhost = 1,
    User = 2,
    /// Permissions of one user in one vhost.
    Permission = 3,
    TopicPermission = 4,
    Exchange = 5,
    Queue = 6,
    Binding = 7,
    Policy = 8,
    OperatorPolicy = 9,
    Parameter = 10,
}

impl DefinitionKind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Vhost,
        Self::User,
        Self::Permission,
        Self::TopicPermission,
        Self::Exchange,
        Self::Queue,
        Self::Binding,
        Self::Policy,
        Self::OperatorPolicy,
        Self::Parameter,
    ];

    /// The kind with this number on disk, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// Names one definition. `vhost` is empty for what belongs to no vhost (vhosts themselves, users).
/// `name` is opaque to the store: a queue's name, or a binding's encoded identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DefinitionKey {
    pub kind: DefinitionKind,
    pub vhost: Name,
    pub name: Bytes,
}

/// One change of durable state.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Create or replace a definition.
    Put { key: DefinitionKey, value: Bytes },
    /// Remove a definition; one that is not there is no error.
    Remove { key: DefinitionKey },
    /// Keep a message. Its record is `batch.bytes[start..start + len]`, opaque to the store;
    /// a large body is not in the record but is `batch.bodies[body]` (several operations of a batch may
    /// name the same body: it is stored once).
    /// Sequences of one queue are strictly increasing over all batches, with gaps.
    Publish { queue: u64, seq: u64, start: usize, len: usize, body: Option<usize> },
    /// Messages `first..=last` of the queue are settled: never to be seen again.
    /// Sequences in the range that were never published are ignored; none at or below `last` may be published later.
    Settle { queue: u64, first: u64, last: u64 },
    /// The message was handed out `count` times so far; replaces an earlier count. Kept until it is settled.
    Delivered { queue: u64, seq: u64, count: u32 },
    /// The queue is gone, with all its messages. Its id is never used again.
    Drop { queue: u64 },
}

/// The operations of one group commit of one vhost.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub ops: Vec<Op>,
    pub bytes: Vec<u8>,
    pub bodies: Vec<Bytes>,
}

impl Batch {
    /// True if there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Empties the batch and keeps its allocations up to a bound, for use by the next commit.
    pub fn clear(&mut self) {
        const BYTES_KEPT_MAX: usize = 4 << 20;
        const OPS_KEPT_MAX: usize = 64 << 10;
        self.ops.clear();
        self.bytes.clear();
        self.bodies.clear();
        self.bytes.shrink_to(BYTES_KEPT_MAX);
        self.ops.shrink_to(OPS_KEPT_MAX);
    }
}

/// Some messages of one queue that lie together in the store: what is known of them without reading them.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredBlock {
    pub queue: u64,
    /// Its first and last message.
    pub first: u64,
    pub last: u64,
    pub live: u32,
    /// Bytes of records and bodies, about.
    pub bytes: u64,
    /// A bit for each sequence from `first` on, set if its message is there; `None`: all are.
    pub bits: Option<Box<[u64]>>,
}

impl StoredBlock {
    pub fn new(queue: u64, first: u64, last: u64, live: u32, bytes: u64, is_live: impl Fn(u64) -> bool) -> Self {
        let span = (last - first + 1) as usize;
        let bits = (span != live as usize).then(|| {
            let mut bits = vec![0; span.div_ceil(64)].into_boxed_slice();
            for seq in (first..=last).filter(|seq| is_live(*seq)) {
                let at = (seq - first) as usize;
                bits[at / 64] |= 1 << (at % 64);
            }
            bits
        });
        Self { queue, first, last, live, bytes, bits }
    }
}

/// What the store found on start. Definitions come first, in key order; then the messages of each queue,
/// queue by queue in the order of their ids, sequences increasing.
#[derive(Clone, Debug, PartialEq)]
pub enum Recovered {
    Definition {
        key: DefinitionKey,
        value: Bytes,
    },
    /// `delivered` is the last count stored with [`Op::Delivered`], 0 if none.
    Message {
        queue: u64,
        seq: u64,
        record: Bytes,
        body: Option<Bytes>,
        delivered: u32,
    },
}
