//! A block: up to [`BLOCK_SPAN`] consecutive sequences of one queue, which of them are live, and where in
//! the log they lie. It is what the index keeps in memory, and one row of the checkpoint.
//!
//! A message costs no memory of its own: neighbours in the log share an [`Extent`], and which of them are
//! live is a range while the queue is consumed in order, a bit each otherwise.
//!
//! Invariants: `live` is exact; extents are in order of `first`, each owns the sequences from its `first`
//! to the next one's, all its messages lie within its span, and it has at least one live message.

use super::format::{put_varint, read_varint};
use super::usage::Usages;

/// Sequences that one block covers at most.
pub(super) const BLOCK_SPAN: u64 = 4096;
/// A larger gap between two sequences starts a new block: a block costs about as much as this many bits.
const GAP_MAX: u32 = 1024;
/// A block that has so many extents is left for a new one, so that a row of the checkpoint stays small.
const EXTENTS_MAX: usize = 64;
/// Bytes of log that one extent spans at most, unless one frame is longer: what a read has to read at once.
const EXTENT_SPAN: u32 = 256 << 10;
/// An extent may span this many times the bytes of its messages (other queues' lie in between) plus
/// [`EXTENT_SLACK`]: bounds the work of reading it.
const EXTENT_DILUTION: u64 = 12;
const EXTENT_SLACK: u64 = 8 << 10;
/// What an entry costs in the log beside the message's bytes, about.
const ENTRY_OVERHEAD: u32 = 8;

/// A frame in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub segment: u32,
    /// Offset of the frame's first byte.
    pub offset: u32,
    /// Offset behind its last byte.
    pub end: u32,
}

/// Consecutive messages of one queue in a run of frames, maybe with other entries in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub segment: u32,
    pub offset: u32,
    /// Length of the run of frames in bytes.
    pub span: u32,
    /// Bytes of the messages put here, live or not.
    bytes: u32,
    /// First sequence, counted from the block's.
    first: u16,
    /// Messages put here, and how many of them are live.
    count: u16,
    live: u16,
}

impl Extent {
    fn new(place: Place, first: u32, bytes: u32) -> Self {
        let span = place.end - place.offset;
        Self { segment: place.segment, offset: place.offset, span, bytes, first: first as u16, count: 1, live: 1 }
    }

    /// Bytes of the live messages; exact while all are live, else by the average.
    pub fn live_bytes(&self) -> u64 {
        if self.live == self.count {
            u64::from(self.bytes)
        } else {
            u64::from(self.bytes) * u64::from(self.live) / u64::from(self.count)
        }
    }

    pub fn live(&self) -> u64 {
        u64::from(self.live)
    }

    /// Whether a message in that frame can join.
    fn accepts(&self, place: Place, bytes: u32) -> bool {
        if self.segment != place.segment || place.offset < self.offset {
            return false;
        }
        let span = place.end - self.offset;
        span <= self.span
            || span <= EXTENT_SPAN
                && u64::from(span) <= (u64::from(self.bytes) + u64::from(bytes)) * EXTENT_DILUTION + EXTENT_SLACK
    }

    fn add(&mut self, place: Place, bytes: u32) {
        self.span = self.span.max(place.end - self.offset);
        self.bytes = self.bytes.saturating_add(bytes);
        self.count += 1;
        self.live += 1;
    }
}

/// See the file's head. Sequences inside are relative to `first` ("positions").
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Sequence of the first message ever put here: the block's key.
    pub first: u64,
    /// One bit per position, set if live; empty while all of `head..=last` are live.
    bits: Vec<u64>,
    extents: Vec<Extent>,
    /// Position and delivery count, in order, of the live messages that were delivered.
    counts: Vec<(u16, u32)>,
    /// First live position.
    head: u16,
    /// Last position ever put here.
    last: u16,
    live: u16,
    /// The checkpoint has no row, or an older one.
    pub dirty: bool,
    /// The checkpoint has a row.
    pub stored: bool,
}

impl Block {
    /// An empty block that will start with this sequence.
    pub fn new(first: u64) -> Self {
        Self {
            first,
            bits: Vec::new(),
            extents: Vec::new(),
            counts: Vec::new(),
            head: 0,
            last: 0,
            live: 0,
            dirty: false,
            stored: false,
        }
    }

    pub fn live(&self) -> u64 {
        u64::from(self.live)
    }

    /// Last sequence ever put here.
    pub fn last(&self) -> u64 {
        self.first + u64::from(self.last)
    }

    /// First live sequence; meaningless if none is.
    pub fn head(&self) -> u64 {
        self.first + u64::from(self.head)
    }

    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The sequences that extent `number` owns, both ends included.
    pub fn owned(&self, number: usize) -> (u64, u64) {
        (self.first + u64::from(self.extents[number].first), self.first + u64::from(self.end_of(number)))
    }

    /// The first and the last live sequence among `from..=to`.
    pub fn live_ends(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        let live = |seq: &u64| self.is_live(*seq);
        Some(((from..=to).find(live)?, (from..=to).rev().find(live)?))
    }

    pub fn is_live(&self, seq: u64) -> bool {
        self.position(seq).is_some_and(|at| self.live_at(at))
    }

    /// The segment of a live message.
    pub fn segment_of(&self, seq: u64) -> Option<u32> {
        let at = self.position(seq).filter(|&at| self.live_at(at))?;
        Some(self.extents[self.extent_of(at)].segment)
    }

    /// How often the message was delivered.
    pub fn delivered(&self, seq: u64) -> u32 {
        if self.counts.is_empty() {
            return 0;
        }
        let at = (seq - self.first) as u16;
        self.counts.binary_search_by_key(&at, |entry| entry.0).map_or(0, |found| self.counts[found].1)
    }

    /// Whether a message with this sequence, larger than `last()`, belongs here.
    pub fn has_room(&self, seq: u64) -> bool {
        let at = seq - self.first;
        at < BLOCK_SPAN
            && (self.live == 0 || at as u32 - u32::from(self.last) <= GAP_MAX)
            && self.extents.len() < EXTENTS_MAX
    }

    /// Adds a message behind all others; `has_room` said yes.
    pub fn push(&mut self, seq: u64, place: Place, bytes: u32, usages: &mut Usages) {
        let at = (seq - self.first) as u32;
        if self.live == 0 {
            self.bits = Vec::new();
            self.head = at as u16;
        } else if !self.bits.is_empty() {
            self.set_bits(at, at);
        } else if at != u32::from(self.last) + 1 {
            self.set_bits(u32::from(self.head), u32::from(self.last));
            self.set_bits(at, at);
        }
        self.last = at as u16;
        self.live += 1;
        let bytes = bytes.saturating_add(ENTRY_OVERHEAD);
        match self.extents.last_mut() {
            Some(extent) if extent.accepts(place, bytes) => {
                usages.change(extent, |extent| extent.add(place, bytes));
            }
            _ => {
                let extent = Extent::new(place, at, bytes);
                usages.add(&extent);
                // A block of a thinly spread queue fills up its extents: no slack at the end.
                self.extents.reserve_exact(if self.extents.len() < 4 { 1 } else { self.extents.len() & !3 });
                self.extents.push(extent);
            }
        }
    }

    /// Settles the live messages among `first..=last`; returns how many there were.
    pub fn settle(&mut self, first: u64, last: u64, usages: &mut Usages) -> u64 {
        if self.live == 0 || last < self.head() || first > self.last() {
            return 0;
        }
        let from = first.saturating_sub(self.first).max(u64::from(self.head)) as u32;
        let to = (last - self.first).min(u64::from(self.last)) as u32;
        let settled = self.live_in(from, to);
        if settled == 0 {
            return 0;
        }
        if settled == u32::from(self.live) {
            self.clear(usages);
            return u64::from(settled);
        }
        self.settle_extents(from, to, usages);
        if !self.bits.is_empty() {
            self.clear_bits(from, to);
        } else if from == u32::from(self.head) {
            self.head = to as u16 + 1;
        } else {
            self.set_bits(u32::from(self.head), u32::from(self.last));
            self.clear_bits(from, to);
        }
        self.live -= settled as u16;
        if !self.bits.is_empty() {
            self.head = self.next_live(u32::from(self.head)) as u16;
            if self.live == self.last - self.head + 1 {
                self.bits = Vec::new();
            }
        }
        if !self.counts.is_empty() {
            self.counts.retain(|&(at, _)| u32::from(at) < from || u32::from(at) > to);
        }
        u64::from(settled)
    }

    /// Settles everything.
    pub fn clear(&mut self, usages: &mut Usages) {
        for extent in self.extents.drain(..) {
            usages.remove(&extent);
        }
        self.bits = Vec::new();
        self.counts = Vec::new();
        self.live = 0;
        self.head = self.last;
    }

    /// Notes a delivery count; false if the message is not live.
    pub fn set_delivered(&mut self, seq: u64, count: u32) -> bool {
        if !self.is_live(seq) {
            return false;
        }
        let at = (seq - self.first) as u16;
        match self.counts.binary_search_by_key(&at, |entry| entry.0) {
            Ok(found) => self.counts[found].1 = count,
            Err(place) => self.counts.insert(place, (at, count)),
        }
        true
    }

    /// The message now lies in another segment; false if it is not live, or is known to lie there already.
    pub fn relocate(&mut self, seq: u64, place: Place, bytes: u32, usages: &mut Usages) -> bool {
        let Some(at) = self.position(seq).filter(|&at| self.live_at(at)) else { return false };
        let number = self.extent_of(at);
        let old = self.extents[number];
        // A segment holds at most one copy of a message.
        if old.segment == place.segment {
            return false;
        }
        let (start, end) = (u32::from(old.first), self.end_of(number));
        let below = if at > start { self.live_in(start, at - 1) } else { 0 };
        let above = if at < end { self.live_in(at + 1, end) } else { 0 };
        let share = |live: u32| (u64::from(old.bytes) * u64::from(live) / u64::from(old.count.max(1))) as u32;
        let part = |first: u32, live: u32| Extent {
            first: first as u16,
            live: live as u16,
            count: live as u16,
            bytes: share(live),
            ..old
        };
        usages.remove(&old);
        // Compaction moves an extent's messages in order, so that `below` is mostly none.
        let mut next = number;
        if below > 0 {
            self.extents[number] = part(start, below);
            usages.add(&self.extents[number]);
            next += 1;
        } else {
            self.extents.remove(number);
        }
        if above > 0 {
            let rest = part(at + 1, above);
            usages.add(&rest);
            self.extents.insert(next, rest);
        }
        let bytes = bytes.saturating_add(ENTRY_OVERHEAD);
        if next > 0 && self.extents[next - 1].accepts(place, bytes) {
            usages.change(&mut self.extents[next - 1], |extent| extent.add(place, bytes));
        } else {
            let extent = Extent::new(place, at, bytes);
            usages.add(&extent);
            self.extents.insert(next, extent);
        }
        true
    }

    /// The row of the checkpoint, less the key.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(ROW_VERSION);
        let mut put = |value: u64| put_varint(out, value);
        for value in [self.head, self.last, self.live] {
            put(value.into());
        }
        put(self.bits.len() as u64);
        put(self.extents.len() as u64);
        put(self.counts.len() as u64);
        for extent in &self.extents {
            for value in [extent.segment, extent.offset, extent.span, extent.bytes] {
                put(value.into());
            }
            for value in [extent.first, extent.count, extent.live] {
                put(value.into());
            }
        }
        for &(at, count) in &self.counts {
            put(at.into());
            put(count.into());
        }
        for word in &self.bits {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// Reads a row; `None` if it is none, or points to a segment behind the last one. Counts its extents in.
    pub fn decode(first: u64, row: &[u8], last_segment: u32, usages: &mut Usages) -> Option<Self> {
        if *row.first()? != ROW_VERSION {
            return None;
        }
        let mut at = 1;
        let mut next = || read_varint(row, &mut at);
        let mut block = Self { stored: true, ..Self::new(first) };
        block.head = small(next()?)?;
        block.last = small(next()?)?;
        block.live = small(next()?)?;
        let (words, extents, counts) = (next()? as usize, next()? as usize, next()? as usize);
        if words > (BLOCK_SPAN / 64) as usize || extents > row.len() || counts > row.len() {
            return None;
        }
        for _ in 0..extents {
            let extent = Extent {
                segment: small(next()?)?,
                offset: small(next()?)?,
                span: small(next()?)?,
                bytes: small(next()?)?,
                first: small(next()?)?,
                count: small(next()?)?,
                live: small(next()?)?,
            };
            if extent.segment > last_segment
                || extent.live == 0
                || extent.live > extent.count
                || extent.offset.checked_add(extent.span).is_none()
            {
                return None;
            }
            block.extents.push(extent);
        }
        for _ in 0..counts {
            block.counts.push((small(next()?)?, small(next()?)?));
        }
        let bits = row.get(at..)?;
        if bits.len() != words * 8 {
            return None;
        }
        block.bits = bits.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect();
        block.is_sound().then_some(())?;
        for extent in &block.extents {
            usages.add(extent);
        }
        Some(block)
    }

    /// Whether the parts agree: what a row read from disk has to show before it is believed.
    pub fn is_sound(&self) -> bool {
        let span = self.live == 0 || self.head <= self.last && self.live_at(u32::from(self.head));
        let ordered = self.extents.windows(2).all(|pair| pair[0].first < pair[1].first)
            && self.counts.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let counted =
            self.live == 0 || self.live_in(u32::from(self.head), u32::from(self.last)) == u32::from(self.live);
        let covered = self.extents.iter().enumerate().all(|(number, extent)| {
            let (from, to) = (u32::from(extent.first), self.end_of(number));
            from <= to && self.live_in(from, to) == u32::from(extent.live)
        });
        let sum: u32 = self.extents.iter().map(|extent| u32::from(extent.live)).sum();
        u64::from(self.last) < BLOCK_SPAN && span && ordered && counted && covered && sum == u32::from(self.live)
    }

    fn position(&self, seq: u64) -> Option<u32> {
        (seq >= self.first && seq <= self.last()).then(|| (seq - self.first) as u32)
    }

    fn live_at(&self, at: u32) -> bool {
        if self.live == 0 || at < u32::from(self.head) || at > u32::from(self.last) {
            return false;
        }
        self.bits.is_empty() || self.bits.get(at as usize / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    /// Live messages among the positions `from..=to`.
    fn live_in(&self, from: u32, to: u32) -> u32 {
        let (from, to) = (from.max(self.head.into()), to.min(self.last.into()));
        if from > to || self.live == 0 {
            return 0;
        }
        if self.bits.is_empty() {
            return to - from + 1;
        }
        words(from, to).map(|(word, mask)| (self.bits.get(word).unwrap_or(&0) & mask).count_ones()).sum()
    }

    /// The first live position from `at` on; one is.
    fn next_live(&self, at: u32) -> u32 {
        words(at, u32::from(self.last))
            .find_map(|(word, mask)| {
                let bits = self.bits[word] & mask;
                (bits != 0).then(|| word as u32 * 64 + bits.trailing_zeros())
            })
            .expect("a block with live messages has a first one")
    }

    fn set_bits(&mut self, from: u32, to: u32) {
        let length = to as usize / 64 + 1;
        if self.bits.len() < length {
            self.bits.resize(length, 0);
        }
        words(from, to).for_each(|(word, mask)| self.bits[word] |= mask);
    }

    fn clear_bits(&mut self, from: u32, to: u32) {
        words(from, to).for_each(|(word, mask)| self.bits[word] &= !mask);
    }

    /// The extent that owns a live position.
    fn extent_of(&self, at: u32) -> usize {
        self.extents.partition_point(|extent| u32::from(extent.first) <= at).saturating_sub(1)
    }

    /// Last position that the extent owns.
    fn end_of(&self, number: usize) -> u32 {
        match self.extents.get(number + 1) {
            Some(next) => u32::from(next.first) - 1,
            None => u32::from(self.last),
        }
    }

    fn settle_extents(&mut self, from: u32, to: u32, usages: &mut Usages) {
        let mut emptied = false;
        for number in self.extent_of(from)..self.extents.len() {
            let start = u32::from(self.extents[number].first);
            if start > to {
                break;
            }
            let settled = self.live_in(start.max(from), self.end_of(number).min(to));
            if settled > 0 {
                usages.change(&mut self.extents[number], |extent| extent.live -= settled as u16);
                emptied |= self.extents[number].live == 0;
            }
        }
        if emptied {
            self.extents.retain(|extent| extent.live > 0);
        }
    }
}

/// First byte of a row.
const ROW_VERSION: u8 = 1;

fn small<T: TryFrom<u64>>(value: u64) -> Option<T> {
    T::try_from(value).ok()
}

/// The words that hold bits `from..=to`, each with the mask of those bits.
fn words(from: u32, to: u32) -> impl Iterator<Item = (usize, u64)> {
    (from / 64..=to / 64).map(move |word| {
        let low = if word == from / 64 { u64::MAX << (from % 64) } else { u64::MAX };
        let high = if word == to / 64 { u64::MAX >> (63 - to % 64) } else { u64::MAX };
        (word as usize, low & high)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        /// The gap to the last sequence, frames since then, bytes.
        Push(u64, u32, u32),
        Settle(u64, u64),
        /// Moves the live messages from a sequence on, so many, to another segment.
        Move(u64, usize, u32),
        Delivered(u64, u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (prop_oneof![8 => Just(1), 1 => 2..70_u64], 0..3_u32, 0..500_u32)
                .prop_map(|(gap, frames, bytes)| Step::Push(gap, frames, bytes)),
            2 => (0..400_u64, 0..20_u64).prop_map(|(first, length)| Step::Settle(first, first + length)),
            1 => (0..400_u64, 1..30_usize, 0..3_u32).prop_map(|(first, count, segment)| Step::Move(first, count, segment)),
            1 => (0..400_u64, 1..9_u32).prop_map(|(seq, count)| Step::Delivered(seq, count)),
        ]
    }

    proptest! {
        /// A block says the same as a map from sequence to segment, whatever happens to it.
        #[test]
        fn is_a_map(steps in prop::collection::vec(step(), 1..300)) {
            let mut usages = Usages::default();
            let mut block = Block::new(1000);
            let mut map: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
            let mut seq = 1000;
            let mut offset = 48;
            for (number, step) in steps.iter().enumerate() {
                match *step {
                    Step::Push(gap, frames, bytes) => {
                        seq += if number == 0 { 0 } else { gap };
                        offset += frames * 4000;
                        if (number == 0 || seq > block.last()) && block.has_room(seq) {
                            let place = Place { segment: 9, offset, end: offset + 4000 };
                            block.push(seq, place, bytes, &mut usages);
                            map.insert(seq, (9, 0));
                        }
                    }
                    Step::Settle(first, last) => {
                        let before = map.len();
                        map.retain(|&seq, _| seq < 1000 + first || seq > 1000 + last);
                        let settled = block.settle(1000 + first, 1000 + last, &mut usages);
                        prop_assert_eq!(settled as usize, before - map.len());
                    }
                    Step::Move(first, count, segment) => {
                        // Each to a segment of its own number range: a message never goes back.
                        let segment = 10 + segment + number as u32 * 3;
                        for (&seq, (at, _)) in map.range_mut(1000 + first..).take(count) {
                            let place = Place { segment, offset: 48 + seq as u32, end: 4000 };
                            prop_assert!(block.relocate(seq, place, 10, &mut usages));
                            *at = segment;
                        }
                    }
                    Step::Delivered(seq, count) => {
                        let known = map.get_mut(&(1000 + seq));
                        prop_assert_eq!(block.set_delivered(1000 + seq, count), known.is_some());
                        known.into_iter().for_each(|known| known.1 = count);
                    }
                }
                prop_assert!(block.is_sound());
                prop_assert_eq!(block.live() as usize, map.len());
            }
            for seq in 990..=block.last() + 10 {
                prop_assert_eq!(block.is_live(seq), map.contains_key(&seq));
                if let Some((segment, count)) = map.get(&seq) {
                    prop_assert_eq!(block.segment_of(seq), Some(*segment));
                    prop_assert_eq!(block.delivered(seq), *count);
                }
            }
            prop_assert_eq!(usages.all().map(|(_, usage)| usage.live).sum::<u64>(), block.live());
            let mut row = Vec::new();
            block.encode(&mut row);
            let mut again = Usages::default();
            if block.live() > 0 {
                let read = Block::decode(1000, &row, u32::MAX, &mut again).expect("what was encoded");
                prop_assert_eq!(again.live_bytes(), usages.live_bytes());
                prop_assert_eq!(Block { stored: false, ..read }, block.clone());
            }
            // Nothing is left over in the sums.
            block.clear(&mut usages);
            prop_assert_eq!((usages.live_bytes(), usages.all().count()), (0, 0));
        }

        /// A damaged row is refused, or is a sound block; it never panics.
        #[test]
        fn any_row_is_no_panic(mut row in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(version) = row.first_mut() {
                *version = ROW_VERSION;
            }
            let mut usages = Usages::default();
            if let Some(block) = Block::decode(5, &row, 100, &mut usages) {
                prop_assert!(block.is_sound());
            }
        }
    }
}
