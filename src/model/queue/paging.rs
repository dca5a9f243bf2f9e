//! Sending segments away and taking them back: what may go, what is needed next, what a page still tells.
//!
//! Only segments go that are closed, that have nothing handed out, and that are neither at the head nor near it.

use super::Queue;
use super::message::{Record, flag};
use super::page::{Image, Page, PageKey, PageOp, PagePlace, Source, all_live};
use super::segment::{HOLE, Segment, SegmentPool, Segments};
use crate::model::ids::Holder;
use crate::model::record::StoredBlock;
use crate::model::timer::Millis;

/// Bytes of a record beside the body, about.
const RECORD_USUAL: u64 = 40;

/// Flags that are remembered of a message that is away.
const MARKS: u8 = flag::PERSISTENT | flag::REDELIVERED | flag::FAILED;
/// Messages of a queue with levels that are looked at for what is needed next.
const UPCOMING: usize = 256;
/// Pages of a queue with levels that are asked for at once.
const AT_ONCE_MAX: usize = 8;

/// What the store has of a holder, for certain.
#[derive(Clone, Copy, Debug, Default)]
pub struct Durable {
    /// The last commit that took any of its messages.
    commit: u64,
    /// Sequences below this one were in commits before it.
    below: u64,
}

impl Durable {
    /// A commit takes messages; sequences below `stored_below` were taken before.
    pub fn taken(&mut self, commit: u64, stored_below: u64) {
        // One commit is on its way at most: when the next one is taken, all before are on disk.
        if self.commit != commit {
            *self = Self { commit, below: stored_below };
        }
    }

    /// Sequences below this one are on disk, if they are persistent.
    pub fn below(&self, stored: u64, stored_below: u64) -> u64 {
        if self.commit <= stored { stored_below } else { self.below }
    }
}

/// What the room is wanted for, and what may be used.
#[derive(Clone, Copy, Debug)]
pub struct Eviction {
    pub holder: Holder,
    /// The holder's id in the store.
    pub store_id: Option<u64>,
    /// What is on disk of it.
    pub durable_below: u64,
    /// Bytes to keep from the head on.
    pub window: usize,
    /// The paging log can be written.
    pub can_write: bool,
}

/// What one look at all records of a segment shows.
#[derive(Debug, Default)]
struct Survey {
    body_bytes: u64,
    /// The last persistent one.
    persistent: Option<u64>,
    transient: bool,
    /// One was redelivered or refused.
    marked: bool,
    expired_at: Millis,
}

impl Survey {
    fn of(segment: &Segment) -> Self {
        let mut survey = Self::default();
        for (at, &start) in segment.entries.iter().enumerate() {
            if start == HOLE || segment.bytes[start as usize] & flag::SETTLED != 0 {
                continue;
            }
            let record = Record::parse(&segment.bytes[start as usize..]).expect("records in segments are whole");
            survey.body_bytes += u64::from(record.body_len);
            if record.is(flag::PERSISTENT) {
                survey.persistent = Some(segment.base + at as u64);
            } else {
                survey.transient = true;
            }
            survey.marked |= record.flags & (flag::REDELIVERED | flag::FAILED) != 0;
            survey.expired_at = survey.expired_at.max(record.expires_at.unwrap_or(Millis::MAX));
        }
        survey
    }
}

/// What came back with a page.
#[derive(Debug)]
pub struct Returned {
    /// What the page told while it was away.
    pub page: Page,
    /// Live messages that are not in the image.
    pub missing: Vec<u64>,
    /// Bytes of the bodies that are here now.
    pub body_bytes: u64,
    pub expiring: bool,
    pub delivered: Vec<(u64, u32)>,
}

impl Segments {
    /// Is the message live, and away?
    #[inline]
    pub fn is_away(&self, seq: u64) -> bool {
        self.away > 0 && self.position(seq).is_some_and(|index| self.list[index].page.is_some())
    }

    /// Segments that are away.
    pub fn away(&self) -> u32 {
        self.away
    }

    /// Segments that are here.
    pub fn here(&self) -> usize {
        self.list.len() - self.away as usize
    }

    /// A segment of this holder comes back only when it is asked for: its messages are in the store.
    /// False if the sequences do not follow those before.
    pub fn restore_page(&mut self, first: u64, page: Page, live: u32) -> bool {
        if first < self.next_seq() || live == 0 {
            return false;
        }
        let end = first + u64::from(page.count);
        self.list.push_back(Segment { base: first, live, page: Some(Box::new(page)), ..Segment::default() });
        self.away += 1;
        self.skip_to(end);
        true
    }

    /// Sends segments away, the last ones first, until `need` bytes are free or nothing more can go.
    /// `keeps` says which cannot. Returns the bytes that are free now.
    pub(in crate::model) fn evict(
        &mut self,
        need: usize,
        eviction: &Eviction,
        keeps: impl Fn(u64, u64, u32) -> bool,
        pool: &mut SegmentPool,
        ops: &mut Vec<PageOp>,
    ) -> usize {
        let mut freed = 0;
        let mut left = self.here();
        for index in (0..self.list.len().saturating_sub(1)).rev() {
            if freed >= need || left == 0 {
                break;
            }
            let segment = &mut self.list[index];
            if segment.page.is_some() {
                continue;
            }
            left -= 1;
            if segment.live == 0 || keeps(segment.base, segment.end(), segment.live) {
                continue;
            }
            let survey = Survey::of(segment);
            let persistent = survey.persistent.filter(|_| eviction.store_id.is_some());
            let in_store = persistent.is_some() && !survey.transient;
            if persistent.is_some_and(|seq| seq >= eviction.durable_below) || (!in_store && !eviction.can_write) {
                continue;
            }
            freed += segment.counted as usize;
            let page = PageKey { holder: eviction.holder, base: segment.base };
            let image = send_away(segment, &survey, in_store, persistent.is_some(), pool);
            self.away += 1;
            if in_store {
                take_buffers(image, pool);
            } else {
                ops.push(PageOp::Write { page, image });
            }
        }
        freed
    }

    /// Asks for the segment that has this sequence, if it is away.
    pub(in crate::model) fn want(&mut self, seq: u64, holder: Holder, store_id: Option<u64>, ops: &mut Vec<PageOp>) {
        let Some(index) = self.position(seq) else { return };
        self.want_at(index, holder, store_id, ops);
    }

    fn want_at(&mut self, index: usize, holder: Holder, store_id: Option<u64>, ops: &mut Vec<PageOp>) {
        let segment = &mut self.list[index];
        let (base, last) = (segment.base, segment.end() - 1);
        let Some(page) = segment.page.as_mut().filter(|page| !page.wanted) else { return };
        page.wanted = true;
        ask(page, PageKey { holder, base }, last, store_id, ops);
    }

    /// Asks for what is away among the next segments from this sequence on, up to so many bytes.
    pub(in crate::model) fn want_ahead(
        &mut self,
        seq: u64,
        window: usize,
        holder: Holder,
        store_id: Option<u64>,
        ops: &mut Vec<PageOp>,
    ) {
        let from = self.list.partition_point(|segment| segment.end() <= seq);
        let mut bytes = 0;
        for index in from..self.list.len() {
            bytes += match &self.list[index].page {
                Some(page) => page.bytes as usize,
                None => self.list[index].counted as usize,
            };
            self.want_at(index, holder, store_id, ops);
            if bytes >= window {
                break;
            }
        }
    }

    /// The segment was written to the paging log, or could not be (`None`): then it is here again.
    pub(in crate::model) fn written(
        &mut self,
        key: PageKey,
        image: Image,
        place: Option<PagePlace>,
        pool: &mut SegmentPool,
        ops: &mut Vec<PageOp>,
    ) {
        let index = self.position(key.base).filter(|index| self.list[*index].base == key.base);
        let segment = index.map(|index| &mut self.list[index]);
        let Some(Segment { page: Some(page), .. }) = segment.filter(|segment| segment.page.is_some()) else {
            // Purged meanwhile, or its queue is gone.
            ops.extend(place.map(PageOp::Free));
            return take_buffers(image, pool);
        };
        let Some(place) = place else {
            self.bring_back(key.base, image, 0, None, pool);
            return;
        };
        page.source = Source::Log(place);
        if page.wanted {
            ops.push(PageOp::ReadLog { page: key, place });
        }
        take_buffers(image, pool);
    }

    /// Puts a segment back. `None` if nobody waits for it any more. Messages below `redelivered_below` say so;
    /// `level` is what a stored level is now.
    pub(in crate::model) fn bring_back(
        &mut self,
        base: u64,
        image: Image,
        redelivered_below: u64,
        level: Option<&dyn Fn(u8) -> u8>,
        pool: &mut SegmentPool,
    ) -> Option<Returned> {
        let index = self.position(base).filter(|index| self.list[*index].base == base)?;
        let segment = &mut self.list[index];
        let page = *segment.page.take()?;
        self.away -= 1;
        let Image { mut entries, mut bytes, mut bodies, delivered } = image;
        entries.resize(page.count as usize, HOLE);
        let (mut missing, mut body_bytes, mut expiring) = (Vec::new(), 0, false);
        for (at, entry) in entries.iter_mut().enumerate() {
            let live = page.is_live(at);
            if *entry == HOLE || !live {
                if live {
                    missing.push(base + at as u64);
                } else if *entry != HOLE
                    && let Some(body) = Record::parse(&bytes[*entry as usize..]).and_then(|record| record.body_index)
                {
                    bodies[body as usize] = Default::default();
                }
                *entry = HOLE;
                continue;
            }
            let record = &mut bytes[*entry as usize..];
            if page.source == Source::Store {
                record[0] |= page.marks.as_ref().map_or(0, |marks| marks[at]);
                if base + (at as u64) < redelivered_below {
                    record[0] |= flag::REDELIVERED;
                }
            }
            if let Some(level) = level {
                record[super::message::PRIORITY_OFFSET] = level(record[super::message::PRIORITY_OFFSET]);
            }
            let parsed = Record::parse(record).expect("records in images are whole");
            body_bytes += u64::from(parsed.body_len);
            expiring |= parsed.expires_at.is_some();
        }
        for &(seq, _) in &delivered {
            let at = (seq - base) as usize;
            if entries.get(at).is_some_and(|entry| *entry != HOLE) {
                bytes[entries[at] as usize] |= flag::REDELIVERED;
            }
        }
        segment.live -= missing.len() as u32;
        segment.outside = bodies.iter().map(bytes::Bytes::len).sum();
        (segment.entries, segment.bytes, segment.bodies) = (entries, bytes, bodies);
        pool.count(segment);
        if segment.live == 0 {
            self.free_settled(index, pool);
        }
        Some(Returned { page, missing, body_bytes, expiring, delivered })
    }

    /// Forgets all pages, or the one with this first sequence; gives each with that, and how many messages it had.
    pub(in crate::model) fn drop_pages(&mut self, only: Option<u64>) -> Vec<(u64, u32, Page)> {
        let mut dropped = Vec::new();
        if let Some(base) = only {
            let index = self.position(base).filter(|index| self.list[*index].page.is_some());
            let segment = index.and_then(|index| self.list.remove(index));
            dropped.extend(segment.and_then(|mut segment| Some((segment.base, segment.live, *segment.page.take()?))));
        } else if self.away > 0 {
            self.list.retain_mut(|segment| match segment.page.take() {
                None => true,
                Some(page) => {
                    dropped.push((segment.base, segment.live, *page));
                    false
                }
            });
        }
        self.away -= dropped.len() as u32;
        dropped
    }

    /// Forgets everything; gives back the places in the paging log.
    pub(in crate::model) fn drop_all(&mut self, pool: &mut SegmentPool) -> Vec<PagePlace> {
        let places = self.list.iter().filter_map(|segment| segment.page.as_ref()?.place()).collect();
        self.list.drain(..).for_each(|segment| pool.give(segment));
        self.away = 0;
        places
    }
}

/// What the shell is to do so that the page comes; nothing while it is on its way out, that comes first.
fn ask(page: &Page, key: PageKey, last: u64, store_id: Option<u64>, ops: &mut Vec<PageOp>) {
    match (page.source, store_id) {
        (Source::Store, Some(queue)) => ops.push(PageOp::ReadStore { page: key, queue, first: key.base, last }),
        (Source::Log(place), _) => ops.push(PageOp::ReadLog { page: key, place }),
        (Source::Leaving | Source::Store, _) => {}
    }
}

/// Takes the content out of a segment, and leaves what must be known meanwhile.
fn send_away(
    segment: &mut Segment,
    survey: &Survey,
    in_store: bool,
    persistent: bool,
    pool: &mut SegmentPool,
) -> Image {
    let count = segment.entries.len();
    let is_live = |start: &u32| *start != HOLE && segment.bytes[*start as usize] & flag::SETTLED == 0;
    let live = (segment.live as usize != count).then(|| {
        let mut live = all_live(count);
        for (at, _) in segment.entries.iter().enumerate().filter(|(_, start)| !is_live(start)) {
            live[at / 64] &= !(1 << (at % 64));
        }
        live
    });
    let flags = |start: &u32| if *start == HOLE { 0 } else { segment.bytes[*start as usize] };
    let marks = survey.marked.then(|| segment.entries.iter().map(|start| flags(start) & MARKS).collect());
    let bytes = segment.counted;
    pool.uncount(segment);
    segment.page = Some(Box::new(Page {
        source: if in_store { Source::Store } else { Source::Leaving },
        count: count as u32,
        bytes,
        body_bytes: survey.body_bytes,
        persistent,
        wanted: false,
        expired_at: survey.expired_at,
        live,
        marks,
    }));
    Image {
        entries: std::mem::take(&mut segment.entries),
        bytes: std::mem::take(&mut segment.bytes),
        bodies: std::mem::take(&mut segment.bodies),
        delivered: Vec::new(),
    }
}

/// Uses the allocations of an image again.
fn take_buffers(image: Image, pool: &mut SegmentPool) {
    let Image { entries, bytes, bodies, .. } = image;
    pool.give(Segment { entries, bytes, bodies, ..Segment::default() });
}

impl Queue {
    /// Is anything of it away?
    #[inline]
    pub fn has_pages(&self) -> bool {
        self.messages.away() > 0
    }

    /// The message that would be delivered next, if it is away.
    #[inline]
    pub fn head_away(&mut self) -> Option<u64> {
        if self.messages.away() == 0 || self.ready_count == 0 {
            return None;
        }
        self.ready.peek(&self.messages).filter(|seq| self.messages.is_away(*seq))
    }

    /// Sends ready messages away that are not needed soon. Returns the bytes that are free now.
    pub(in crate::model) fn evict(
        &mut self,
        need: usize,
        eviction: &Eviction,
        pool: &mut SegmentPool,
        ops: &mut Vec<PageOp>,
    ) -> usize {
        let head = if self.ready_count == 0 { None } else { self.ready.peek(&self.messages) };
        let Self { messages, ready, .. } = self;
        let mut near: Vec<u64> =
            ready.upcoming(UPCOMING).into_iter().filter_map(|seq| messages.segment_of(seq)).collect();
        near.extend(head.and_then(|head| messages.segment_of(head)));
        if let Some(cursor) = ready.cursor() {
            near.extend(messages.segments_ahead(cursor, eviction.window));
        }
        near.sort_unstable();
        let keeps =
            |base: u64, end: u64, live: u32| near.binary_search(&base).is_ok() || !ready.holds_all(base, end, live);
        messages.evict(need, eviction, keeps, pool, ops)
    }

    /// Asks for what is delivered next, `window` bytes of it, as far as it is away.
    pub(in crate::model) fn read_ahead(&mut self, holder: Holder, window: usize, ops: &mut Vec<PageOp>) {
        if self.ready_count == 0 {
            return;
        }
        let head = self.ready.peek(&self.messages);
        match self.ready.cursor() {
            Some(cursor) => self.messages.want_ahead(cursor, window, holder, self.store_id, ops),
            None => {
                let mut asked = 0;
                for seq in head.into_iter().chain(self.ready.upcoming(UPCOMING)) {
                    if asked == AT_ONCE_MAX {
                        break;
                    }
                    if self.messages.is_away(seq) {
                        let before = ops.len();
                        self.messages.want(seq, holder, self.store_id, ops);
                        asked += ops.len() - before;
                    }
                }
            }
        }
    }

    /// Asks for the head alone.
    pub(in crate::model) fn want_head(&mut self, holder: Holder, ops: &mut Vec<PageOp>) {
        if let Some(seq) = self.head_away() {
            self.messages.want(seq, holder, self.store_id, ops);
        }
    }

    /// A page is back. Returns how many of its messages are not, which are ready no more.
    pub(in crate::model) fn page_read(&mut self, base: u64, image: Image, pool: &mut SegmentPool) -> Option<Returned> {
        let levels = self.levels;
        let level = |level| levels.of_stored(level);
        let level: Option<&dyn Fn(u8) -> u8> = if self.has_levels() { Some(&level) } else { None };
        let redelivered_below = if self.is_stream() { 0 } else { self.redelivered_below };
        let returned = self.messages.bring_back(base, image, redelivered_below, level, pool)?;
        if !self.is_stream() {
            // What a stream retains is counted by its parts, readable or not.
            self.ready_count -= returned.missing.len() as u64;
            self.ready_bytes = (self.ready_bytes + returned.body_bytes).saturating_sub(returned.page.body_bytes);
        }
        self.stats.unreadable += returned.missing.len() as u64;
        if !returned.missing.is_empty() {
            self.ready.retain(|seq| returned.missing.binary_search(seq).is_err());
            self.returns.retain(|seq, _| returned.missing.binary_search(seq).is_err());
        }
        self.has_expiring |= returned.expiring && !self.is_stream();
        if self.queue_type == super::QueueType::Quorum {
            for &(seq, count) in &returned.delivered {
                self.returns.entry(seq).or_insert_with(|| super::Returns::from_stored(count));
            }
        }
        Some(returned)
    }

    /// Everything that is away goes, or the page with this first sequence: all of it is ready. Gives each page with
    /// its first sequence and the number of its messages.
    pub(in crate::model) fn drop_pages(&mut self, only: Option<u64>) -> Vec<(u64, u32, Page)> {
        let dropped = self.messages.drop_pages(only);
        for (base, live, page) in &dropped {
            let end = base + u64::from(page.count);
            self.ready_count -= u64::from(*live);
            self.ready_bytes = self.ready_bytes.saturating_sub(page.body_bytes);
            if !self.returns.is_empty() {
                self.returns.retain(|seq, _| seq < base || *seq >= end);
            }
        }
        if !self.ready.is_plain() && !dropped.is_empty() {
            let messages = &self.messages;
            self.ready.retain(|seq| messages.position(*seq).is_some());
        }
        dropped
    }

    /// Its content goes, and with it what lies in the paging log.
    pub(in crate::model) fn drop_messages(&mut self, pool: &mut SegmentPool) -> Vec<PagePlace> {
        self.messages.drop_all(pool)
    }

    /// The head's page, if everything in it has expired at `now` and goes without a look at it.
    pub(in crate::model) fn expired_page(&mut self, now: Millis) -> Option<u64> {
        let seq = self.head_away()?;
        if self.settings.dead_letter_exchange.is_some() || !self.ready.is_plain() {
            return None;
        }
        let segment = &self.messages.list[self.messages.position(seq)?];
        segment.page.as_ref().filter(|page| page.expired_at <= now).map(|_| segment.base)
    }

    /// Must its messages be seen one by one on start?
    pub fn needs_messages(&self) -> bool {
        self.is_stream() || !self.ready.is_plain() || self.settings.max_length_bytes.is_some()
    }

    /// Are there messages on disk that nobody has seen since a crash?
    pub fn has_unseen_redelivered(&self) -> bool {
        let unseen = |segment: &Segment| {
            segment.base < self.redelivered_below
                && segment.page.as_ref().is_some_and(|page| page.source == Source::Store)
        };
        !self.is_stream() && self.messages.list.iter().any(unseen)
    }

    /// A segment's worth of messages is in the store, and stays there until somebody needs it. How many bytes their
    /// bodies have is a guess until then.
    pub fn restore_block(&mut self, block: StoredBlock) -> bool {
        let StoredBlock { first, last, live, bytes, bits, .. } = block;
        let body_bytes = bytes.saturating_sub(u64::from(live) * RECORD_USUAL);
        let Ok(count) = u32::try_from(last - first + 1) else { return false };
        let page = Page {
            source: Source::Store,
            count,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            body_bytes,
            persistent: true,
            wanted: false,
            expired_at: Millis::MAX,
            live: bits,
            marks: None,
        };
        if !self.messages.restore_page(first, page, live) {
            return false;
        }
        // Of the head, at least, it must be known whether it expires.
        self.has_expiring |= self.ready_count == 0;
        self.ready_count += u64::from(live);
        self.ready_bytes += body_bytes;
        self.stats.entered += u64::from(live);
        self.stored_below = self.messages.next_seq();
        true
    }
}

impl Segments {
    /// First sequence, end, and newest time of the segment of this sequence, if that is away.
    pub(super) fn page_around(&self, seq: u64) -> Option<(u64, u64, Millis)> {
        if self.away == 0 {
            return None;
        }
        let segment = &self.list[self.position(seq)?];
        segment.page.as_ref().map(|page| (segment.base, segment.end(), page.expired_at))
    }

    /// Messages that are away and have all of these flags, as far as anybody has seen them.
    pub(super) fn marked_away(&self, wanted: u8) -> impl Iterator<Item = u64> {
        let pages = self.list.iter().filter_map(|segment| Some((segment.base, segment.page.as_ref()?)));
        pages.flat_map(move |(base, page)| {
            let marks = page.marks.iter().flat_map(|marks| marks.iter().enumerate());
            let marked = marks.filter(move |(at, marks)| **marks & wanted == wanted && page.is_live(*at));
            marked.map(move |(at, _)| base + at as u64)
        })
    }

    /// Names the segment of a sequence by its first one.
    fn segment_of(&self, seq: u64) -> Option<u64> {
        self.position(seq).map(|index| self.list[index].base)
    }

    /// The segments from this sequence on, up to so many bytes of them, and two at least.
    pub(super) fn segments_ahead(&self, seq: u64, window: usize) -> Vec<u64> {
        let from = self.list.partition_point(|segment| segment.end() <= seq);
        let mut bytes = 0;
        let mut ahead = Vec::new();
        for segment in self.list.range(from..) {
            if bytes >= window && ahead.len() >= 2 {
                break;
            }
            bytes += segment.page.as_ref().map_or(segment.counted, |page| page.bytes) as usize;
            ahead.push(segment.base);
        }
        ahead
    }
}
