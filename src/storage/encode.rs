//! Encodes one commit into frames, straight into one buffer that every commit uses again.
//! It writes nothing itself: the store hands full stretches of the buffer to the log.
//!
//! Invariants: no allocation per message; a body is encoded before the first message that refers to it,
//! once; `frames` says which operation is the first in each frame, so that the index learns afterwards
//! where a message went without another structure.

use crate::model::record::{Batch, DefinitionKey, Op};

use super::block::Place;
use super::format::{
    BodyRef, FRAME_HEADER, FRAME_TARGET, LAST_FRAME, TAG_BODY, TAG_CLOSED, TAG_DELIVERED, TAG_DROP, TAG_MESSAGE,
    TAG_MESSAGE_BODY, TAG_MOVED, TAG_OPENED, TAG_PUT, TAG_QUEUE, TAG_REMOVE, TAG_SETTLE, put_bytes, put_varint,
    seal_frame,
};
use super::log::Start;

/// A full buffer is handed to the file when it has this many bytes: then it is still in the processor's
/// cache, and the buffer stays small.
pub(super) const WRITE_BYTES: usize = 512 << 10;
/// A frame that has messages of [`MIXED_QUEUES`] queues (or so many changes between them) is closed at this
/// size already: reading one of them back means reading the frame.
const MIXED_FRAME_TARGET: usize = 4 << 10;
const MIXED_QUEUES: u32 = 8;
/// A batch is sorted if it changes between queues so often, and after so many operations on average.
const MIXED_CHANGES: usize = 16;
const MIXED_PART: usize = 8;
const BUFFER_KEPT_MAX: usize = 2 << 20;

/// The order in which the operations of a batch are encoded and applied: queue by queue if the batch jumps
/// among few queues, as when every message goes to ten of them. Then what one queue has in the commit lies
/// together, and is read back without the others.
///
/// Operations of one queue, and those on definitions, keep their order; others do not depend on each other.
#[derive(Default)]
pub(super) struct Order {
    /// Numbers of the operations; empty if they stay as they are.
    numbers: Vec<u32>,
}

impl Order {
    /// Finds the order for a batch.
    pub fn find(&mut self, batch: &Batch) {
        self.numbers.clear();
        let changes = batch.ops.windows(2).filter(|pair| queue_of(&pair[0]) != queue_of(&pair[1])).count();
        if changes < MIXED_CHANGES || changes < batch.ops.len() / MIXED_PART {
            return;
        }
        self.numbers.extend(0..batch.ops.len() as u32);
        self.numbers.sort_by_key(|&number| queue_of(&batch.ops[number as usize]));
    }

    /// The batch's operations in this order.
    pub fn ops<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = &'a Op> {
        let as_they_are = if self.numbers.is_empty() { batch.ops.as_slice() } else { &[] };
        as_they_are.iter().chain(self.numbers.iter().map(|&number| &batch.ops[number as usize]))
    }
}

/// The queue that an operation is about, `None` for a definition.
fn queue_of(op: &Op) -> Option<u64> {
    match op {
        Op::Put { .. } | Op::Remove { .. } => None,
        Op::Publish { queue, .. } | Op::Settle { queue, .. } | Op::Delivered { queue, .. } | Op::Drop { queue } => {
            Some(*queue)
        }
    }
}

/// A finished frame and the number (within the commit) of the first operation in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameMark {
    pub first_op: usize,
    pub place: Place,
}

/// Where in the commit's segment a body was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyPlace {
    frame: u64,
    at: u32,
    len: u32,
}

/// The running commit.
pub(super) struct Encoder {
    buffer: Vec<u8>,
    /// Frames of this commit in order; the last one is open.
    pub frames: Vec<FrameMark>,
    start: Start,
    /// Offset in the file of `buffer[0]`.
    base: u64,
    /// Where the open frame starts in `buffer`.
    frame: usize,
    ops: usize,
    /// Queue of the last message in the open frame, and whether it was a moved one.
    queue: Option<(u64, bool)>,
    /// How often that changed in the open frame.
    changes: u32,
    seq: u64,
    /// For the batch being encoded: where its bodies are.
    bodies: Vec<Option<BodyPlace>>,
}

impl Encoder {
    pub fn new() -> Self {
        Self {
            buffer: Vec::new(),
            frames: Vec::new(),
            start: Start::default(),
            base: 0,
            frame: 0,
            ops: 0,
            queue: None,
            changes: 0,
            seq: 0,
            bodies: Vec::new(),
        }
    }

    /// Starts a commit.
    pub fn begin(&mut self, start: Start) {
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_KEPT_MAX);
        self.frames.clear();
        // Left by a commit that failed half-way.
        self.bodies.clear();
        self.start = start;
        self.base = start.offset;
        self.ops = 0;
        self.open_frame();
    }

    /// Encodes one operation of the batch; call `batch_done` behind its last one.
    pub fn op(&mut self, batch: &Batch, op: &Op) {
        match op {
            Op::Publish { queue, seq, start, len, body } => {
                let record = &batch.bytes[*start..*start + *len];
                let body = body.map(|number| self.body_of(batch, number));
                if !matches!(body, Some((_, true))) {
                    self.room(record.len());
                }
                self.message(*queue, *seq, false, record, body.map(|(place, _)| place));
            }
            Op::Settle { queue, first, last } => {
                if first <= last {
                    self.room(32);
                    self.buffer.push(TAG_SETTLE);
                    put_varint(&mut self.buffer, *queue);
                    put_varint(&mut self.buffer, *first);
                    put_varint(&mut self.buffer, last - first);
                }
            }
            Op::Delivered { queue, seq, count } => {
                self.room(32);
                self.buffer.push(TAG_DELIVERED);
                put_varint(&mut self.buffer, *queue);
                put_varint(&mut self.buffer, *seq);
                put_varint(&mut self.buffer, u64::from(*count));
            }
            Op::Drop { queue } => {
                self.room(16);
                self.buffer.push(TAG_DROP);
                put_varint(&mut self.buffer, *queue);
            }
            Op::Put { key, value } => {
                self.room(value.len());
                self.definition(TAG_PUT, key);
                put_bytes(&mut self.buffer, value);
            }
            Op::Remove { key } => {
                self.room(64);
                self.definition(TAG_REMOVE, key);
            }
        }
        self.ops += 1;
    }

    /// Forgets where the batch's bodies went: the next batch has its own numbers.
    pub fn batch_done(&mut self) {
        self.bodies.clear();
    }

    /// Encodes a copy of a message that is already stored; counts as an operation.
    pub fn moved(&mut self, queue: u64, seq: u64, record: &[u8], body: Option<BodyPlace>) {
        self.room(record.len());
        self.message(queue, seq, true, record, body);
        self.ops += 1;
    }

    /// Encodes bytes for later messages of this commit to refer to.
    pub fn body(&mut self, body: &[u8]) -> BodyPlace {
        self.room(body.len());
        self.buffer.reserve(body.len() + 16);
        self.buffer.push(TAG_BODY);
        put_varint(&mut self.buffer, body.len() as u64);
        let place = BodyPlace {
            frame: self.base + self.frame as u64,
            at: (self.buffer.len() - self.frame - FRAME_HEADER) as u32,
            len: body.len() as u32,
        };
        self.buffer.extend_from_slice(body);
        place
    }

    /// Marks that the store was opened, or closed.
    pub fn mark(&mut self, closed: bool) {
        self.room(1);
        self.buffer.push(if closed { TAG_CLOSED } else { TAG_OPENED });
        self.ops += 1;
    }

    /// Bytes that the file can have already, once they are [`WRITE_BYTES`]: whole frames only.
    pub fn full(&self) -> Option<&[u8]> {
        (self.frame >= WRITE_BYTES).then(|| &self.buffer[..self.frame])
    }

    /// The file has what `full` gave.
    pub fn written(&mut self) {
        let open = self.buffer.len() - self.frame;
        self.buffer.copy_within(self.frame.., 0);
        self.buffer.truncate(open);
        self.base += self.frame as u64;
        self.frame = 0;
    }

    /// Ends the commit and gives the bytes that the file does not have yet.
    pub fn finish(&mut self) -> &[u8] {
        self.close_frame(LAST_FRAME);
        &self.buffer
    }

    fn message(&mut self, queue: u64, seq: u64, moved: bool, record: &[u8], body: Option<BodyPlace>) {
        self.buffer.reserve(record.len() + 64);
        if self.queue != Some((queue, moved)) || seq < self.seq {
            self.buffer.push(if moved { TAG_MOVED } else { TAG_QUEUE });
            put_varint(&mut self.buffer, queue);
            self.queue = Some((queue, moved));
            self.changes += 1;
            self.seq = 0;
        }
        self.buffer.push(if body.is_some() { TAG_MESSAGE_BODY } else { TAG_MESSAGE });
        put_varint(&mut self.buffer, seq - self.seq);
        self.seq = seq;
        put_bytes(&mut self.buffer, record);
        if let Some(body) = body {
            let back = self.base + self.frame as u64 - body.frame;
            let body = BodyRef { back: back as u32, at: body.at, len: body.len };
            put_varint(&mut self.buffer, u64::from(body.back));
            put_varint(&mut self.buffer, u64::from(body.at));
            put_varint(&mut self.buffer, u64::from(body.len));
        }
    }

    /// Where body `number` of the batch is, and whether it was written just now: then its message goes into
    /// the same frame, however long that is, and is read back with one read.
    fn body_of(&mut self, batch: &Batch, number: usize) -> (BodyPlace, bool) {
        if self.bodies.len() <= number {
            self.bodies.resize(number + 1, None);
        }
        if let Some(place) = self.bodies[number] {
            return (place, false);
        }
        let place = self.body(&batch.bodies[number]);
        self.bodies[number] = Some(place);
        (place, true)
    }

    fn definition(&mut self, tag: u8, key: &DefinitionKey) {
        self.buffer.push(tag);
        self.buffer.push(key.kind as u8);
        put_bytes(&mut self.buffer, key.vhost.as_bytes());
        put_bytes(&mut self.buffer, &key.name);
    }

    /// Starts a new frame if the open one is full, or would be made too long by what comes.
    fn room(&mut self, coming: usize) {
        let payload = self.buffer.len() - self.frame - FRAME_HEADER;
        let target = if self.changes >= MIXED_QUEUES { MIXED_FRAME_TARGET } else { FRAME_TARGET };
        if payload >= target || (coming >= FRAME_TARGET && payload > 0) {
            self.close_frame(0);
            self.open_frame();
        }
    }

    fn open_frame(&mut self) {
        self.frame = self.buffer.len();
        self.buffer.resize(self.frame + FRAME_HEADER, 0);
        self.queue = None;
        self.changes = 0;
        let offset = self.base + self.frame as u64;
        let place = Place { segment: self.start.segment, offset: offset as u32, end: 0 };
        self.frames.push(FrameMark { first_op: self.ops, place });
    }

    fn close_frame(&mut self, flags: u32) {
        let Start { salt, commit, durable_lag, .. } = self.start;
        seal_frame(&mut self.buffer[self.frame..], salt, flags, commit, durable_lag);
        let end = self.base + self.buffer.len() as u64;
        self.frames.last_mut().expect("a frame is open").place.end = end as u32;
    }
}
