//! Where a queue's messages lie: append-only segments of records, found by sequence number.
//!
//! A sequence number is given at enqueue and never changes; order of sequence is order of arrival.
//! A segment is freed as a whole when all of its messages are settled, so a drained queue gives its memory
//! back. Segments that reached full size go to a pool shared by the queues of a vhost: a queue that is
//! emptied and refilled all the time allocates nothing.
//! A segment may be away, on disk (`page.rs`, `paging.rs`): then its messages are live, and cannot be looked at.
//! This file does not know who is ready or unacked; it knows only settled or not.

use std::collections::VecDeque;

use bytes::Bytes;

use super::message::{NewMessage, PRIORITY_OFFSET, Record, flag, set_flag};
use super::page::{Page, PagePlace};

/// A segment is closed when its records have this many bytes. Large enough to make the per-segment
/// bookkeeping vanish, also that of the millions of messages that are away; small enough that one late message pins
/// little.
pub const SEGMENT_BYTES: usize = 128 << 10;
/// The last record of a segment mostly fits in behind that, so that its memory need not grow once more.
const LAST_RECORD: usize = 6 << 10;
/// Also closed at this many entries: bounds what a gap in the sequence can cost.
const SEGMENT_ENTRIES_MAX: usize = 4096;
/// Large bodies count less towards a full segment than its own bytes: they are not copied, and need no pool.
const OUTSIDE_SHARE: usize = 4;
/// Entry of a sequence number that has no message (lost in a gap after recovery).
pub(super) const HOLE: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(super) struct Segment {
    /// Sequence of entry 0.
    pub base: u64,
    /// Messages not settled.
    pub live: u32,
    /// What the pool counts of it; 0 while it is the one that grows.
    pub counted: u32,
    /// Where each record starts in `bytes`.
    pub entries: Vec<u32>,
    pub bytes: Vec<u8>,
    /// Bodies that stand outside the records; emptied as soon as their message is settled.
    pub bodies: Vec<Bytes>,
    /// Bytes of all bodies that ever stood in `bodies`.
    pub outside: usize,
    /// Set while the segment is away; the fields above are empty then, but for `base` and `live`.
    pub page: Option<Box<Page>>,
}

impl Segment {
    pub fn end(&self) -> u64 {
        let count = match &self.page {
            None => self.entries.len() as u64,
            Some(page) => page.count.into(),
        };
        self.base + count
    }

    fn is_full(&self, full_bytes: usize) -> bool {
        self.bytes.len() + self.outside / OUTSIDE_SHARE >= full_bytes
            || self.entries.len() >= SEGMENT_ENTRIES_MAX
            || self.page.is_some()
    }

    /// Bytes of memory that it takes.
    pub fn size(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * 4 + self.bodies.iter().map(Bytes::len).sum::<usize>()
    }

    /// Keeps only what is not settled.
    fn squeeze(&mut self) {
        let old = std::mem::take(&mut self.bytes);
        let mut bodies = std::mem::take(&mut self.bodies);
        for entry in &mut self.entries {
            if *entry == HOLE {
                continue;
            }
            let record = &old[*entry as usize..];
            let parsed = Record::parse(record).expect("records in segments are whole");
            if parsed.is(flag::SETTLED) {
                *entry = HOLE;
                continue;
            }
            let start = self.bytes.len();
            *entry = start as u32;
            self.bytes.extend_from_slice(&record[..parsed.len]);
            if let Some(index) = parsed.body_index {
                set_body_index(&mut self.bytes[start..], self.bodies.len());
                self.bodies.push(std::mem::take(&mut bodies[index as usize]));
            }
        }
        self.bytes.shrink_to_fit();
        self.entries.shrink_to_fit();
    }

    fn clear(&mut self, base: u64) {
        self.base = base;
        self.live = 0;
        self.counted = 0;
        self.outside = 0;
        self.entries.clear();
        self.bytes.clear();
        self.bodies.clear();
        self.page = None;
    }
}

/// Changes where the record that starts there finds its body.
pub(super) fn set_body_index(record: &mut [u8], index: usize) {
    let at = 12 + if record[0] & flag::EXPIRES != 0 { 8 } else { 0 };
    record[at..at + 4].copy_from_slice(&(index as u32).to_le_bytes());
}

/// Empty full-size segments for re-use, shared by all queues of a vhost; and how much memory the full ones
/// that are in use take.
#[derive(Debug)]
pub struct SegmentPool {
    free: Vec<Segment>,
    /// Bytes of the closed segments that are here.
    resident: usize,
    /// A segment is closed with so many bytes.
    full_bytes: usize,
}

impl Default for SegmentPool {
    fn default() -> Self {
        Self::new(SEGMENT_BYTES)
    }
}

impl SegmentPool {
    /// 32 segments of 128 KiB: 4 MiB are kept warm.
    const KEPT_MAX: usize = 32;

    /// Segments are closed with so many bytes; for tests, who want many of them.
    pub fn new(full_bytes: usize) -> Self {
        Self { free: Vec::new(), resident: 0, full_bytes }
    }

    /// Bytes of memory that closed segments take: what could be on disk instead.
    pub fn resident(&self) -> usize {
        self.resident
    }

    fn take(&mut self, base: u64) -> Segment {
        let mut segment = self.free.pop().unwrap_or_default();
        segment.clear(base);
        segment
    }

    /// Counts a segment that grows no more, or whose size has changed.
    pub(super) fn count(&mut self, segment: &mut Segment) {
        let size = u32::try_from(segment.size()).unwrap_or(u32::MAX);
        self.resident = self.resident + size as usize - segment.counted as usize;
        segment.counted = size;
    }

    pub(super) fn uncount(&mut self, segment: &mut Segment) {
        self.resident -= std::mem::take(&mut segment.counted) as usize;
    }

    pub(super) fn give(&mut self, mut segment: Segment) {
        self.uncount(&mut segment);
        let full_size = segment.bytes.capacity() >= SEGMENT_BYTES / 2;
        let oversized = segment.bytes.capacity() > 4 * SEGMENT_BYTES || segment.bodies.capacity() > SEGMENT_ENTRIES_MAX;
        if full_size && !oversized && self.free.len() < Self::KEPT_MAX {
            self.free.push(segment);
        }
    }
}

/// The messages of one queue.
#[derive(Debug, Default)]
pub struct Segments {
    pub(super) list: VecDeque<Segment>,
    next_seq: u64,
    /// Segments that are away.
    pub(super) away: u32,
}

impl Segments {
    /// The sequence that the next message gets.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// The smallest sequence that may still have a message.
    pub fn first_seq(&self) -> u64 {
        self.list.front().map_or(self.next_seq, |segment| segment.base)
    }

    /// Appends a message; returns its sequence.
    #[inline]
    pub fn push(&mut self, message: &NewMessage<'_>, pool: &mut SegmentPool) -> u64 {
        let seq = self.next_seq;
        let segment = self.tail(seq, pool);
        segment.entries.push(segment.bytes.len() as u32);
        let external = message.encode(segment.bodies.len() as u32, &mut segment.bytes);
        if external {
            segment.outside += message.body.as_slice().len();
            segment.bodies.push(match message.body {
                super::message::BodyRef::Slice(bytes) => Bytes::copy_from_slice(bytes),
                super::message::BodyRef::Shared(bytes) => bytes.clone(),
            });
        }
        segment.live += 1;
        self.next_seq += 1;
        seq
    }

    /// Puts a recovered record back at its own sequence, which must not be below `next_seq`.
    /// Returns false if the record does not parse.
    pub fn restore(&mut self, seq: u64, record: &[u8], body: Option<Bytes>, pool: &mut SegmentPool) -> bool {
        let Some(parsed) = Record::parse(record) else { return false };
        if parsed.is(flag::EXTERNAL) != body.is_some() || seq < self.next_seq {
            return false;
        }
        let gap = seq - self.next_seq;
        let room = self.list.back().is_some_and(|segment| {
            !segment.is_full(pool.full_bytes) && gap < (SEGMENT_ENTRIES_MAX - segment.entries.len()) as u64
        });
        self.next_seq = seq;
        if room && let Some(segment) = self.list.back_mut() {
            while segment.end() < seq {
                segment.entries.push(HOLE);
            }
        }
        let segment = self.tail(seq, pool);
        let start = segment.bytes.len();
        segment.entries.push(start as u32);
        segment.bytes.extend_from_slice(record);
        segment.bytes[start] &= flag::STORED;
        if let Some(body) = body {
            // The index in the record is the one it had in its old segment.
            set_body_index(&mut segment.bytes[start..], segment.bodies.len());
            segment.outside += body.len();
            segment.bodies.push(body);
        }
        segment.live += 1;
        self.next_seq += 1;
        true
    }

    /// The next message gets this sequence, unless it would get a larger one anyway.
    pub fn skip_to(&mut self, seq: u64) {
        self.next_seq = self.next_seq.max(seq);
    }

    /// Messages not settled.
    pub fn live_count(&self) -> u64 {
        self.list.iter().map(|segment| u64::from(segment.live)).sum()
    }

    #[inline]
    fn tail(&mut self, seq: u64, pool: &mut SegmentPool) -> &mut Segment {
        // After a gap in the sequence the last segment may end before.
        if self.list.back().is_none_or(|segment| segment.is_full(pool.full_bytes) || segment.end() != seq) {
            return self.new_tail(seq, pool);
        }
        self.list.back_mut().expect("just seen")
    }

    fn new_tail(&mut self, seq: u64, pool: &mut SegmentPool) -> &mut Segment {
        if let Some(closed) = self.list.back_mut()
            && closed.page.is_none()
        {
            pool.count(closed);
        }
        let mut segment = pool.take(seq);
        let is_full = |before: &Segment| before.bytes.len() >= pool.full_bytes;
        if segment.bytes.capacity() < pool.full_bytes && self.list.back().is_some_and(is_full) {
            // It will be full of records, as the one before is: doubling would leave half of it unused.
            segment.bytes.reserve_exact(pool.full_bytes + LAST_RECORD);
        }
        self.list.push_back(segment);
        self.list.back_mut().expect("just pushed")
    }

    #[inline]
    pub(super) fn position(&self, seq: u64) -> Option<usize> {
        let front = self.list.front()?;
        if seq < front.base {
            return None;
        }
        if seq < front.end() {
            return Some(0);
        }
        let after = self.list.partition_point(|segment| segment.base <= seq);
        let index = after - 1;
        (seq < self.list[index].end()).then_some(index)
    }

    /// The record of a message that is not settled, and not away.
    #[inline]
    pub fn get(&self, seq: u64) -> Option<(Record<'_>, Option<&Bytes>)> {
        let segment = &self.list[self.position(seq)?];
        // A segment that is away has no entries.
        let start = *segment.entries.get((seq - segment.base) as usize)?;
        if start == HOLE {
            return None;
        }
        let record = Record::parse(&segment.bytes[start as usize..]).expect("records in segments are whole");
        if record.is(flag::SETTLED) {
            return None;
        }
        let body = record.body_index.map(|index| &segment.bodies[index as usize]);
        Some((record, body))
    }

    /// The record of a message that is not settled, and not away, as bytes.
    pub fn raw(&self, seq: u64) -> Option<(&[u8], Option<&Bytes>)> {
        let (record, body) = self.get(seq)?;
        let segment = &self.list[self.position(seq)?];
        let start = segment.entries[(seq - segment.base) as usize] as usize;
        Some((&segment.bytes[start..start + record.len], body))
    }

    /// Is there a message that is not settled, and not away? Cheaper than [`Self::get`], which takes the record apart.
    #[inline]
    fn is_live(&self, seq: u64) -> bool {
        let Some(index) = self.position(seq) else { return false };
        let segment = &self.list[index];
        match segment.entries.get((seq - segment.base) as usize) {
            Some(&start) if start != HOLE => segment.bytes[start as usize] & flag::SETTLED == 0,
            _ => false,
        }
    }

    /// The smallest unsettled sequence at or after `seq`; `None` if there is none.
    pub fn next_live(&self, mut seq: u64) -> Option<u64> {
        seq = seq.max(self.first_seq());
        while seq < self.next_seq {
            if self.is_live(seq) {
                return Some(seq);
            }
            if let Some(index) = self.position(seq)
                && let Some(page) = &self.list[index].page
            {
                let base = self.list[index].base;
                match page.next_live((seq - base) as usize) {
                    Some(at) => return Some(base + at as u64),
                    None => seq = self.list[index].end(),
                }
            } else {
                seq += 1;
            }
            // Gaps between segments can be wide.
            if self.position(seq).is_none() {
                let after = self.list.partition_point(|segment| segment.base <= seq);
                seq = self.list.get(after).map_or(self.next_seq, |segment| segment.base);
            }
        }
        None
    }

    /// Marks a message so that its next delivery says redelivered.
    pub fn set_redelivered(&mut self, seq: u64) {
        self.mark(seq, flag::REDELIVERED);
    }

    /// Marks a message as refused with basic.reject.
    pub fn set_failed(&mut self, seq: u64) {
        self.mark(seq, flag::FAILED);
    }

    fn mark(&mut self, seq: u64, flag: u8) {
        if let Some(index) = self.position(seq) {
            let segment = &mut self.list[index];
            if let Some(&start) = segment.entries.get((seq - segment.base) as usize)
                && start != HOLE
            {
                set_flag(&mut segment.bytes[start as usize..], flag, true);
            }
        }
    }

    /// Changes the level that a message is kept under.
    pub fn set_priority(&mut self, seq: u64, priority: u8) {
        if let Some(index) = self.position(seq) {
            let segment = &mut self.list[index];
            if let Some(&start) = segment.entries.get((seq - segment.base) as usize)
                && start != HOLE
            {
                segment.bytes[start as usize + PRIORITY_OFFSET] = priority;
            }
        }
    }

    /// Forgets a message. Returns false if it was settled before.
    #[inline]
    pub fn settle(&mut self, seq: u64, pool: &mut SegmentPool) -> bool {
        let Some(index) = self.position(seq) else { return false };
        let segment = &mut self.list[index];
        let Some(&start) = segment.entries.get((seq - segment.base) as usize) else { return false };
        if start == HOLE {
            return false;
        }
        let bytes = &mut segment.bytes[start as usize..];
        if bytes[0] & flag::SETTLED != 0 {
            return false;
        }
        set_flag(bytes, flag::SETTLED, true);
        if bytes[0] & flag::EXTERNAL != 0 {
            let record = Record::parse(bytes).expect("records in segments are whole");
            if let Some(index) = record.body_index {
                segment.bodies[index as usize] = Bytes::new();
            }
        }
        segment.live -= 1;
        if segment.live == 0 {
            self.free_settled(index, pool);
        }
        true
    }

    /// Gives back what settled messages still take in the segment of this one, when few are left there. For
    /// holders whose messages go in any order: one that stays for long must not pin all that came with it.
    pub fn squeeze(&mut self, seq: u64, pool: &mut SegmentPool) {
        let Some(index) = self.position(seq) else { return };
        let segment = &mut self.list[index];
        // At every fourth power of two: each message is copied at most a few times, mostly never.
        let few = segment.live.is_power_of_two() && segment.live.trailing_zeros().is_multiple_of(2);
        if few && segment.live as usize <= segment.entries.len() / 4 && segment.bytes.capacity() > 1024 {
            segment.squeeze();
            if segment.counted > 0 {
                pool.count(segment);
            }
        }
    }

    pub(super) fn free_settled(&mut self, index: usize, pool: &mut SegmentPool) {
        let last = index + 1 == self.list.len();
        if last && self.list.len() == 1 && self.list[0].bytes.capacity() < SEGMENT_BYTES / 2 {
            // The usual case of a nearly empty queue: go on in the same small segment.
            pool.uncount(&mut self.list[0]);
            self.list[0].clear(self.next_seq);
            return;
        }
        // The tail may still grow: free it too, the next push starts a new one.
        if let Some(segment) = self.list.remove(index) {
            pool.give(segment);
        }
        if self.list.capacity() > 64 && self.list.len() < self.list.capacity() / 4 {
            self.list.shrink_to(16);
        }
    }

    /// Forgets every message below this sequence. Gives back where those were that are away.
    pub fn drop_below(&mut self, seq: u64, pool: &mut SegmentPool) -> Vec<PagePlace> {
        let mut places = Vec::new();
        while self.list.front().is_some_and(|segment| segment.end() <= seq)
            && let Some(segment) = self.list.pop_front()
        {
            self.away -= u32::from(segment.page.is_some());
            places.extend(segment.page.as_ref().and_then(|page| page.place()));
            pool.give(segment);
        }
        let first = self.first_seq();
        for seq in first..seq.min(self.next_seq) {
            self.settle(seq, pool);
        }
        if let Some(Segment { base, live, page: Some(page), .. }) = self.list.front_mut() {
            for at in 0..seq.saturating_sub(*base) as usize {
                *live -= u32::from(page.settle(at));
            }
        }
        places
    }

    /// Bytes held by this queue's segments, bodies included.
    pub fn memory(&self) -> usize {
        self.list
            .iter()
            .map(|segment| {
                let away = segment.page.as_ref().map_or(0, |page| size_of_val(page.as_ref()));
                segment.size() + away
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::BodyRef;
    use super::*;

    fn push(segments: &mut Segments, pool: &mut SegmentPool, body: &[u8]) -> u64 {
        segments.push(
            &NewMessage {
                exchange: b"",
                routing_key: b"q",
                properties: &[0, 0],
                body: BodyRef::Slice(body),
                persistent: false,
                priority: 0,
                expires_at: None,
                bcc: &[],
                died: false,
            },
            pool,
        )
    }

    #[test]
    fn messages_are_found_by_sequence_and_gone_when_settled() {
        let (mut segments, mut pool) = (Segments::default(), SegmentPool::default());
        for n in 0..10_000_u32 {
            assert_eq!(push(&mut segments, &mut pool, &n.to_be_bytes()), u64::from(n));
        }
        assert_eq!(segments.get(7_777).unwrap().0.inline_body, 7_777_u32.to_be_bytes());
        assert!(segments.settle(7_777, &mut pool));
        assert!(!segments.settle(7_777, &mut pool), "settled twice");
        assert!(segments.get(7_777).is_none());
        assert_eq!(segments.next_live(7_777), Some(7_778));
    }

    #[test]
    fn a_drained_queue_gives_its_memory_back() {
        let (mut segments, mut pool) = (Segments::default(), SegmentPool::default());
        for _ in 0..100_000 {
            push(&mut segments, &mut pool, &[0; 100]);
        }
        assert!(segments.memory() > 10 << 20);
        for seq in 0..100_000 {
            segments.settle(seq, &mut pool);
        }
        assert_eq!(segments.memory(), 0);
        assert!(pool.free.len() <= SegmentPool::KEPT_MAX);
        assert_eq!(push(&mut segments, &mut pool, b"x"), 100_000);
    }

    #[test]
    fn a_large_body_is_released_at_once() {
        let (mut segments, mut pool) = (Segments::default(), SegmentPool::default());
        let seq = push(&mut segments, &mut pool, &vec![1; 1 << 20]);
        push(&mut segments, &mut pool, b"keeps the segment alive");
        assert!(segments.memory() > 1 << 20);
        segments.settle(seq, &mut pool);
        assert!(segments.memory() < 10_000);
    }

    #[test]
    fn what_stays_for_long_does_not_pin_what_came_with_it() {
        let (mut segments, mut pool) = (Segments::default(), SegmentPool::default());
        let stays = |seq: u64| seq.is_multiple_of(100);
        let body = |seq: u64| vec![seq as u8; if seq.is_multiple_of(70) { 5000 } else { 100 }];
        for seq in 0..100_000 {
            push(&mut segments, &mut pool, &body(seq));
        }
        let full = segments.memory() - (0..100_000).step_by(70).count() * 5000;
        for seq in (0..100_000).filter(|seq| !stays(*seq)) {
            assert!(segments.settle(seq, &mut pool));
            segments.squeeze(seq, &mut pool);
        }
        let large_bodies = (0..100_000).step_by(700).count() * 5000;
        assert!(segments.memory() - large_bodies < full / 10, "{} of {full}", segments.memory());
        for seq in 0..100_000 {
            let found =
                segments.get(seq).map(|(record, shared)| shared.map_or(record.inline_body, |body| body).to_vec());
            assert_eq!(found, stays(seq).then(|| body(seq)));
        }
        assert_eq!(push(&mut segments, &mut pool, b"next"), 100_000);
        assert_eq!(segments.next_live(99_901), Some(100_000));
    }

    #[test]
    fn recovered_sequences_keep_their_numbers_over_gaps() {
        let (mut segments, mut pool) = (Segments::default(), SegmentPool::default());
        let mut record = Vec::new();
        NewMessage {
            exchange: b"",
            routing_key: b"q",
            properties: &[0, 0],
            body: BodyRef::Slice(b"b"),
            persistent: true,
            priority: 0,
            expires_at: None,
            bcc: &[],
            died: false,
        }
        .encode(0, &mut record);
        for seq in [3, 4, 9, 1_000_000, 1_000_001] {
            assert!(segments.restore(seq, &record, None, &mut pool));
        }
        assert!(!segments.restore(9, &record, None, &mut pool), "going back");
        let mut seen = Vec::new();
        let mut at = 0;
        while let Some(seq) = segments.next_live(at) {
            seen.push(seq);
            at = seq + 1;
        }
        assert_eq!(seen, [3, 4, 9, 1_000_000, 1_000_001]);
        assert_eq!(segments.next_seq(), 1_000_002);
        segments.skip_to(2_000_000);
        segments.skip_to(7);
        assert_eq!(push(&mut segments, &mut pool, b"after"), 2_000_000);
        assert_eq!(segments.next_live(1_000_002), Some(2_000_000));
        assert!(segments.settle(2_000_000, &mut pool) && segments.settle(1_000_001, &mut pool));
        assert_eq!(push(&mut segments, &mut pool, b"last"), 2_000_001);
        assert_eq!(segments.next_live(1_000_001), Some(2_000_001));
    }
}
