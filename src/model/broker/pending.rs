//! What is to be committed next: positions and definitions, not copies of messages.
//!
//! The store takes a batch whenever its last commit is done; only then the records of the messages are
//! copied. A message that was settled by then is not written at all.
//! Invariant: a message is handed to the store at most once, and its settlement only if it was handed over.

use bytes::Bytes;
use slotmap::{SecondaryMap, SlotMap};

use super::delayed::Delayed;
use crate::model::ids::{ExchangeKey, QueueKey};
use crate::model::queue::Queue;
use crate::model::queue::message::flag;
use crate::model::queue::segment::Segments;
use crate::model::record::{Batch, DefinitionKey, Op};

#[derive(Debug)]
enum PendingOp {
    /// Messages `first..=last` of the queue, those that are persistent and not settled by then.
    Publish {
        queue: QueueKey,
        first: u64,
        last: u64,
    },
    /// The same of what an exchange delays.
    Delay {
        exchange: ExchangeKey,
        first: u64,
        last: u64,
    },
    Op(Op),
}

/// Operations in order, and the number of the commit that they will be in.
#[derive(Debug)]
pub struct Pending {
    ops: Vec<PendingOp>,
    commit: u64,
    /// The commit of the last change of a definition; 0: there was none.
    defined: u64,
    /// Bytes of messages that wait, roughly.
    bytes: usize,
}

/// More than this waiting for the store holds publishers back. It is in memory twice while it is committed, and a
/// commit of so much keeps a disk busy.
const BACKLOG_BYTES_MAX: usize = 16 << 20;
const BACKLOG_OPS_MAX: usize = 256 << 10;

impl Default for Pending {
    fn default() -> Self {
        Self { ops: Vec::new(), commit: 1, defined: 0, bytes: 0 }
    }
}

impl Pending {
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The number of the commit that gathers now. Numbers start at 1 and rise by one.
    pub fn commit(&self) -> u64 {
        self.commit
    }

    /// Once this commit is on disk, all definitions are as they are now.
    pub fn defined(&self) -> u64 {
        self.defined
    }

    /// Is the store so far behind that nothing more should be taken in?
    pub fn is_far_behind(&self) -> bool {
        self.bytes > BACKLOG_BYTES_MAX || self.ops.len() > BACKLOG_OPS_MAX
    }

    #[inline]
    pub fn publish(&mut self, queue: QueueKey, seq: u64, body_len: usize) {
        self.bytes += body_len + 64;
        if let Some(PendingOp::Publish { queue: last_queue, last, .. }) = self.ops.last_mut()
            && *last_queue == queue
        {
            *last = seq;
            return;
        }
        self.ops.push(PendingOp::Publish { queue, first: seq, last: seq });
    }

    pub fn publish_delayed(&mut self, exchange: ExchangeKey, seq: u64, body_len: usize) {
        self.bytes += body_len + 64;
        if let Some(PendingOp::Delay { exchange: last_exchange, last, .. }) = self.ops.last_mut()
            && *last_exchange == exchange
        {
            *last = seq;
            return;
        }
        self.ops.push(PendingOp::Delay { exchange, first: seq, last: seq });
    }

    #[inline]
    pub fn settle(&mut self, queue: u64, seq: u64) {
        if let Some(PendingOp::Op(Op::Settle { queue: last_queue, last, .. })) = self.ops.last_mut()
            && *last_queue == queue
            && *last + 1 == seq
        {
            *last = seq;
            return;
        }
        self.ops.push(PendingOp::Op(Op::Settle { queue, first: seq, last: seq }));
    }

    /// Everything from `first` to `last`, all of it handed over before.
    pub fn settle_range(&mut self, queue: u64, first: u64, last: u64) {
        self.ops.push(PendingOp::Op(Op::Settle { queue, first, last }));
    }

    pub fn put(&mut self, key: DefinitionKey, value: Bytes) {
        self.define(Op::Put { key, value });
    }

    pub fn remove(&mut self, key: DefinitionKey) {
        self.define(Op::Remove { key });
    }

    fn define(&mut self, op: Op) {
        self.defined = self.commit;
        self.ops.push(PendingOp::Op(op));
    }

    pub fn delivered(&mut self, queue: u64, seq: u64, count: u32) {
        self.ops.push(PendingOp::Op(Op::Delivered { queue, seq, count }));
    }

    pub fn drop_queue(&mut self, queue: u64) {
        self.ops.push(PendingOp::Op(Op::Drop { queue }));
    }

    /// Moves everything into `batch`; returns the number of this commit.
    pub fn take(
        &mut self,
        queues: &mut SlotMap<QueueKey, Queue>,
        delayed: &mut SecondaryMap<ExchangeKey, Delayed>,
        batch: &mut Batch,
    ) -> u64 {
        for op in self.ops.drain(..) {
            match op {
                PendingOp::Op(op) => batch.ops.push(op),
                PendingOp::Publish { queue, first, last } => {
                    if let Some(queue) = queues.get_mut(queue)
                        && let Some(store_id) = queue.store_id
                    {
                        let first = first.max(queue.stored_below);
                        copy_records(store_id, queue.messages(), first, last, batch);
                        queue.on_disk.taken(self.commit, queue.stored_below);
                        queue.stored_below = queue.stored_below.max(last + 1);
                    }
                }
                PendingOp::Delay { exchange, first, last } => {
                    if let Some(delayed) = delayed.get_mut(exchange)
                        && let Some(store_id) = delayed.store_id
                    {
                        let first = first.max(delayed.stored_below);
                        copy_records(store_id, &delayed.messages, first, last, batch);
                        delayed.on_disk.taken(self.commit, delayed.stored_below);
                        delayed.stored_below = delayed.stored_below.max(last + 1);
                    }
                }
            }
        }
        self.ops.shrink_to(64 << 10);
        self.bytes = 0;
        self.commit += 1;
        self.commit - 1
    }
}

/// `first` is past what an earlier range of the same batch or commit has covered.
fn copy_records(store_id: u64, messages: &Segments, first: u64, last: u64, batch: &mut Batch) {
    let mut at = first;
    while let Some(seq) = messages.next_live(at).filter(|&seq| seq <= last) {
        at = seq + 1;
        let Some((bytes, shared)) = messages.raw(seq) else { continue };
        if bytes[0] & flag::PERSISTENT == 0 {
            continue;
        }
        let start = batch.bytes.len();
        batch.bytes.extend_from_slice(bytes);
        batch.bytes[start] &= flag::STORED;
        let body = shared.map(|body| match batch.bodies.iter().rev().take(32).position(|other| same(other, body)) {
            Some(back) => batch.bodies.len() - 1 - back,
            None => {
                batch.bodies.push(body.clone());
                batch.bodies.len() - 1
            }
        });
        batch.ops.push(Op::Publish { queue: store_id, seq, start, len: bytes.len(), body });
    }
}

/// The very same bytes, as when one message went to several queues.
fn same(a: &Bytes, b: &Bytes) -> bool {
    a.as_ptr() == b.as_ptr() && a.len() == b.len()
}
