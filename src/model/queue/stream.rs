//! A stream: a queue that keeps its messages when they are read, and consumers that each have a place in it (§12.2).
//!
//! Offsets are the sequences of the queue. The log is cut into parts, which RabbitMQ calls segments: retention
//! takes whole parts from the front and never the last one, so the newest message is always there and after
//! a restart offsets go on where they ended. Every message has the time of its arrival where other queues
//! keep an expiry; times never fall along the log, so a time is found by halving. A chunk is what came
//! together: in one commit, or without a store in one turn.
//! Invariants: nothing is read before it is committed, or a crash could give its offset to another message;
//! nothing is taken by retention before it is committed; the parts hold exactly the retained messages.

mod consumer;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

pub use self::consumer::{Filter, Offset, with_offset};
use super::message::{NewMessage, Record};
use super::page::{PageOp, PagePlace};
use super::paging::Eviction;
use super::segment::{SegmentPool, Segments};
use super::{Queue, QueueType};
use crate::model::ids::ConsumerKey;
use crate::model::timer::Millis;

/// `x-stream-max-segment-size-bytes` where it is not set.
const PART_BYTES: u64 = 500_000_000;
/// What a message takes on top of its names, properties and body: head and time of arrival.
const RECORD_HEAD: u64 = 20;

/// Messages of a chunk at most.
const CHUNK_MAX: u64 = 4096;
/// The priority under which the first message of a chunk is kept: messages of a stream have no other use for it.
const CHUNK_BEGINS: u8 = 1;

const NO_STREAM: &str = "asked of streams only";

/// Some messages in a row; goes as a whole.
#[derive(Clone, Copy, Debug)]
struct Part {
    first: u64,
    messages: u64,
    bytes: u64,
    body_bytes: u64,
    /// When its newest message arrived.
    newest: Millis,
}

/// What one consumer has read.
#[derive(Debug)]
struct Reader {
    next: u64,
    filter: Option<Filter>,
}

/// What a reader finds when it looks for its next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    Message {
        seq: u64,
        body_len: u32,
    },
    /// It has read all there is.
    End,
    /// The next one is on disk: it goes on when that is here.
    Away(u64),
    /// It has looked at so many messages that it did not want that others should have their turn.
    Pause,
}

/// What a stream has on top of a queue.
#[derive(Debug, Default)]
pub struct Stream {
    /// Oldest first; the last one grows.
    parts: VecDeque<Part>,
    bytes: u64,
    readers: BTreeMap<ConsumerKey, Reader>,
    /// Consumers with credit that have read all there is.
    at_end: Vec<ConsumerKey>,
    /// Consumers with credit whose next message is on disk.
    stalled: Vec<ConsumerKey>,
    /// Sequences below this one may be read.
    committed: u64,
    /// What waits for its commit: the number of the commit, and the sequence after its last message.
    uncommitted: VecDeque<(u64, u64)>,
    /// Arrival of the newest message.
    newest: Millis,
    /// First sequence of the newest chunk.
    chunk: u64,
    /// Without a store: this turn has begun a chunk.
    chunk_open: bool,
    timer: Option<Millis>,
}

impl Stream {
    /// Notes a message at the end of the log, in a part of at most `part_bytes` (and at least one message).
    fn note(&mut self, seq: u64, bytes: u64, body_bytes: u64, arrived: Millis, part_bytes: u64) {
        self.newest = arrived;
        self.bytes += bytes;
        match self.parts.back_mut() {
            Some(part) if part.bytes < part_bytes => {
                part.messages += 1;
                part.bytes += bytes;
                part.body_bytes += body_bytes;
                part.newest = arrived;
            }
            _ => self.parts.push_back(Part { first: seq, messages: 1, bytes, body_bytes, newest: arrived }),
        }
    }

    /// The sequence of the oldest message, or of the next if there is none.
    fn first_offset(&self, messages: &Segments) -> u64 {
        self.parts.front().map_or(messages.next_seq(), |part| part.first)
    }

    /// Is the oldest part to go, and may it? Never the last one, nor one that is not committed.
    fn has_outlived(&self, max_bytes: Option<u64>, max_age_ms: Option<u64>, now: Millis) -> bool {
        let (Some(oldest), Some(second)) = (self.parts.front(), self.parts.get(1)) else { return false };
        second.first <= self.committed
            && (max_bytes.is_some_and(|max| self.bytes > max)
                || max_age_ms.is_some_and(|age| oldest.newest.saturating_add(age) < now))
    }
}

/// The first message at or after `from`.
fn next_message(messages: &Segments, from: u64) -> Option<(u64, Record<'_>)> {
    if let Some((record, _)) = messages.get(from) {
        return Some((from, record));
    }
    let seq = messages.next_live(from)?;
    messages.get(seq).map(|(record, _)| (seq, record))
}

fn bytes_of(record: &Record<'_>) -> u64 {
    let names = record.exchange.len() + record.routing_key.len();
    RECORD_HEAD + (names + record.properties.len()) as u64 + u64::from(record.body_len)
}

fn arrival_of(record: &Record<'_>) -> Millis {
    record.expires_at.unwrap_or_default()
}

/// The smallest sequence from `first` on whose message arrived at `time` or later.
fn find_time(messages: &Segments, first: u64, time: Millis) -> u64 {
    let (mut low, mut high) = (first, messages.next_seq());
    while low < high {
        let middle = low + (high - low) / 2;
        if let Some((first, end, newest)) = messages.page_around(middle) {
            // A page is one moment: its newest message decides.
            if newest < time {
                low = end
            } else {
                high = first.max(low).min(middle)
            }
            continue;
        }
        match next_message(messages, middle) {
            Some((seq, record)) if seq < high && arrival_of(&record) < time => low = seq + 1,
            _ => high = middle,
        }
    }
    low
}

impl Queue {
    #[inline]
    pub fn is_stream(&self) -> bool {
        self.queue_type == QueueType::Stream
    }

    fn stream(&self) -> &Stream {
        self.stream.as_deref().expect(NO_STREAM)
    }

    /// When the armed timer of this stream fires.
    pub fn stream_timer(&mut self) -> &mut Option<Millis> {
        &mut self.stream.as_deref_mut().expect(NO_STREAM).timer
    }

    fn part_bytes(&self) -> u64 {
        self.settings.segment_size_bytes.unwrap_or(PART_BYTES)
    }

    /// Appends a message that is to be part of this commit (`None`: nothing is kept on disk). Returns its offset,
    /// and whether it is the first of this stream in the commit. It can be read once it is committed.
    pub fn append(
        &mut self,
        message: &NewMessage<'_>,
        commit: Option<u64>,
        now: Millis,
        pool: &mut SegmentPool,
    ) -> (u64, bool) {
        let part_bytes = self.part_bytes();
        let stream = self.stream.as_deref_mut().expect(NO_STREAM);
        let seq = self.messages.next_seq();
        let first = match commit {
            Some(commit) => stream.uncommitted.back().is_none_or(|(last, _)| *last != commit),
            None => !std::mem::replace(&mut stream.chunk_open, true),
        };
        if first || seq - stream.chunk >= CHUNK_MAX {
            stream.chunk = seq;
        }
        // Over a restart the clock may have been set back.
        let arrived = now.max(stream.newest);
        let priority = if stream.chunk == seq { CHUNK_BEGINS } else { 0 };
        let message = NewMessage { persistent: true, priority, expires_at: Some(arrived), ..*message };
        self.messages.push(&message, pool);
        let body_len = message.body.as_slice().len() as u64;
        let rest = message.exchange.len() + message.routing_key.len() + message.properties.len();
        stream.note(seq, RECORD_HEAD + rest as u64 + body_len, body_len, arrived, part_bytes);
        self.ready_count += 1;
        self.ready_bytes += body_len;
        self.stats.entered += 1;
        match (commit, stream.uncommitted.back_mut()) {
            (None, _) => self.commit_below(seq + 1),
            (Some(_), Some((_, below))) if !first => *below = seq + 1,
            (Some(commit), _) => stream.uncommitted.push_back((commit, seq + 1)),
        }
        (seq, first)
    }

    /// Puts a recovered message back; policies are in effect.
    pub(super) fn restore_to_stream(
        &mut self,
        seq: u64,
        record: &[u8],
        body: Option<Bytes>,
        pool: &mut SegmentPool,
    ) -> bool {
        if !self.messages.restore(seq, record, body, pool) {
            return false;
        }
        let part_bytes = self.part_bytes();
        let stream = self.stream.as_deref_mut().expect(NO_STREAM);
        let Some((record, _)) = self.messages.get(seq) else { return false };
        let arrived = arrival_of(&record).max(stream.newest);
        if record.priority == CHUNK_BEGINS {
            stream.chunk = seq;
        }
        stream.note(seq, bytes_of(&record), record.body_len.into(), arrived, part_bytes);
        stream.committed = seq + 1;
        self.ready_count += 1;
        self.ready_bytes += u64::from(record.body_len);
        self.stored_below = seq + 1;
        self.stats.entered += 1;
        true
    }

    /// What comes from now on came later than what came before.
    pub fn end_chunk(&mut self) {
        self.stream.as_deref_mut().expect(NO_STREAM).chunk_open = false;
    }

    /// Everything up to this commit is on disk.
    pub fn stream_stored(&mut self, commit: u64) {
        let stream = self.stream.as_deref_mut().expect(NO_STREAM);
        let mut below = stream.committed;
        while let Some(&(_, next)) = stream.uncommitted.front().filter(|(awaited, _)| *awaited <= commit) {
            stream.uncommitted.pop_front();
            below = next;
        }
        self.commit_below(below);
    }

    /// Messages below this sequence may be read: whoever waits at the end goes on.
    fn commit_below(&mut self, below: u64) {
        let stream = self.stream.as_deref_mut().expect(NO_STREAM);
        stream.committed = below;
        for consumer in stream.at_end.drain(..) {
            self.waiting.push(consumer, 0);
        }
    }

    /// Has retention something to take?
    pub fn is_to_retain_less(&self, now: Millis) -> bool {
        self.stream().has_outlived(self.settings.max_length_bytes, self.settings.max_age_ms, now)
    }

    /// §12.2, retention: takes the oldest part away if it is to go. Returns its first and last sequence, and
    /// where in the paging log some of it was.
    pub fn retain(&mut self, now: Millis, pool: &mut SegmentPool) -> Option<(u64, u64, Vec<PagePlace>)> {
        if !self.is_to_retain_less(now) {
            return None;
        }
        let stream = self.stream.as_deref_mut().expect(NO_STREAM);
        let part = stream.parts.pop_front()?;
        let next = stream.first_offset(&self.messages);
        stream.bytes -= part.bytes;
        self.ready_count -= part.messages;
        self.ready_bytes -= part.body_bytes;
        let places = self.messages.drop_below(next, pool);
        Some((part.first, next - 1, places))
    }

    /// When the oldest part will be too old, if it can go at all.
    pub fn retention_due(&self) -> Option<Millis> {
        let age = self.settings.max_age_ms?;
        let parts = &self.stream().parts;
        let oldest = parts.front().filter(|_| parts.len() > 1)?;
        Some(oldest.newest.saturating_add(age).saturating_add(1))
    }

    /// Gives a new consumer its place.
    pub fn add_reader(&mut self, consumer: ConsumerKey, offset: Offset, filter: Option<Filter>) {
        let stream = self.stream.as_deref_mut().expect(NO_STREAM);
        let first = stream.first_offset(&self.messages);
        let next = match offset {
            Offset::First => first,
            Offset::Last if stream.parts.is_empty() => first,
            Offset::Last => stream.chunk,
            Offset::Next => self.messages.next_seq(),
            Offset::At(offset) => offset,
            Offset::Time(time) => find_time(&self.messages, first, time),
        };
        stream.readers.insert(consumer, Reader { next, filter });
    }

    /// Forgets a consumer; does nothing in other queues.
    pub(super) fn remove_reader(&mut self, consumer: ConsumerKey) {
        if let Some(stream) = &mut self.stream {
            stream.readers.remove(&consumer);
            stream.at_end.retain(|other| *other != consumer);
            stream.stalled.retain(|other| *other != consumer);
        }
    }

    /// The consumer has read all there is: it goes on when more is committed.
    pub fn wait_at_end(&mut self, consumer: ConsumerKey) {
        self.stream.as_deref_mut().expect(NO_STREAM).at_end.push(consumer);
    }

    /// Finds the consumer's next message and moves its place past it. Looks at no more than `looks` messages
    /// that the consumer does not want, and counts them down.
    pub fn read(&mut self, consumer: ConsumerKey, looks: &mut u32) -> Read {
        let stream = self.stream.as_deref_mut().expect(NO_STREAM);
        let first = stream.first_offset(&self.messages);
        let Some(reader) = stream.readers.get_mut(&consumer) else { return Read::End };
        reader.next = reader.next.max(first);
        loop {
            let Some((seq, record)) = next_message(&self.messages, reader.next) else {
                let away = self.messages.next_live(reader.next);
                return away.filter(|seq| *seq < stream.committed).map_or(Read::End, Read::Away);
            };
            if seq >= stream.committed {
                return Read::End;
            }
            if reader.filter.as_ref().is_none_or(|filter| filter.wants(record.raw_properties())) {
                reader.next = seq + 1;
                return Read::Message { seq, body_len: record.body_len };
            }
            if *looks == 0 {
                return Read::Pause;
            }
            *looks -= 1;
            reader.next = seq + 1;
        }
    }

    /// The consumer's next message is on disk.
    pub fn wait_for_page(&mut self, consumer: ConsumerKey) {
        self.stream.as_deref_mut().expect(NO_STREAM).stalled.push(consumer);
    }

    /// A page is here: whoever waited for one looks again. Does nothing in other queues.
    pub fn end_stall(&mut self) {
        if let Some(stream) = &mut self.stream {
            for consumer in stream.stalled.drain(..) {
                self.waiting.push(consumer, 0);
            }
        }
    }

    /// Sends away what no consumer reads soon. `pinned` are messages on their way to clients, in order.
    pub(in crate::model) fn evict_from_stream(
        &mut self,
        need: usize,
        eviction: &Eviction,
        pinned: &[u64],
        pool: &mut SegmentPool,
        ops: &mut Vec<PageOp>,
    ) -> usize {
        let stream = self.stream.as_deref().expect(NO_STREAM);
        let window = eviction.window / stream.readers.len().max(1);
        let mut near: Vec<u64> =
            stream.readers.values().flat_map(|reader| self.messages.segments_ahead(reader.next, window)).collect();
        near.sort_unstable();
        let keeps = |base: u64, end: u64, _| {
            let next_pinned = pinned.partition_point(|seq| *seq < base);
            end > stream.committed
                || near.binary_search(&base).is_ok()
                || pinned.get(next_pinned).is_some_and(|seq| *seq < end)
        };
        self.messages.evict(need, eviction, keeps, pool, ops)
    }
}
