//! Segments that are not in memory: what stays here of each, and what goes out to the disk and comes back.
//!
//! The model does no I/O: it puts a [`PageOp`] on a list, the shell performs it and comes back with a
//! [`PageAnswer`]. A segment all of whose messages are in the store is just dropped, and read back from there by
//! its sequences; any other is written to the paging log as it is, which means nothing after a restart.
//! Invariant: a page has no message that is handed out, so nothing in it changes while it is away.

use bytes::Bytes;

use super::message::{Record, flag};
use super::segment::{HOLE, set_body_index};
use crate::model::ids::Holder;

/// Where a segment lies in the paging log. Only the shell knows what the numbers mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePlace {
    pub file: u32,
    pub offset: u32,
    pub len: u32,
}

/// Where the bytes of a page are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Every message is in the store.
    Store,
    /// On their way to the paging log.
    Leaving,
    /// In the paging log.
    Log(PagePlace),
}

/// Names a page: its holder, and the first sequence of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageKey {
    pub holder: Holder,
    pub base: u64,
}

/// What the shell is asked to do, in this order.
#[derive(Debug)]
pub enum PageOp {
    /// Write the image to the paging log; answer [`PageAnswer::Written`].
    Write { page: PageKey, image: Image },
    /// Read messages `first..=last` of that queue of the store; answer [`PageAnswer::Read`].
    ReadStore { page: PageKey, queue: u64, first: u64, last: u64 },
    /// Read from the paging log; answer [`PageAnswer::Read`].
    ReadLog { page: PageKey, place: PagePlace },
    /// Nobody needs that place any more. No answer.
    Free(PagePlace),
}

/// What became of a [`PageOp`].
#[derive(Debug)]
pub enum PageAnswer {
    /// The image is given back, for its allocations; or because it could not be written (`None`).
    Written { page: PageKey, image: Image, place: Option<PagePlace> },
    /// What could be read of the page: whatever is missing is lost to this process, and the shell has said why.
    Read { page: PageKey, image: Image },
}

/// The content of a segment.
#[derive(Debug, Default)]
pub struct Image {
    /// Where the record of each sequence starts in `bytes`.
    pub entries: Vec<u32>,
    pub bytes: Vec<u8>,
    pub bodies: Vec<Bytes>,
    /// Sequence and count of those that the store says were delivered.
    pub delivered: Vec<(u64, u32)>,
}

impl Image {
    /// Adds a message that was read from the store, of the page that begins with `base`. They come in order.
    /// False if it is no record; it is left out then.
    pub fn add(&mut self, base: u64, seq: u64, record: &[u8], body: Option<Bytes>, delivered: u32) -> bool {
        let Some(parsed) = Record::parse(record) else { return false };
        let Some(at) = seq.checked_sub(base).filter(|at| *at >= self.entries.len() as u64) else { return false };
        if parsed.is(flag::EXTERNAL) != body.is_some() || parsed.len != record.len() {
            return false;
        }
        self.entries.resize(at as usize, HOLE);
        let start = self.bytes.len();
        self.entries.push(start as u32);
        self.bytes.extend_from_slice(record);
        self.bytes[start] &= flag::STORED;
        if let Some(body) = body {
            set_body_index(&mut self.bytes[start..], self.bodies.len());
            self.bodies.push(body);
        }
        if delivered > 0 {
            self.delivered.push((seq, delivered));
        }
        true
    }

    /// Bytes that it holds.
    pub fn len(&self) -> usize {
        self.entries.len() * 4 + self.bytes.len() + self.bodies.iter().map(Bytes::len).sum::<usize>()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// What stays in memory of a segment that is away.
#[derive(Debug)]
pub struct Page {
    pub source: Source,
    /// Sequences that it covers.
    pub count: u32,
    /// Bytes that it takes when it is here, about.
    pub bytes: u32,
    /// Bytes of the bodies of its messages; a guess if nobody has seen them since the start.
    pub body_bytes: u64,
    /// It has persistent messages.
    pub persistent: bool,
    /// A read was asked for.
    pub wanted: bool,
    /// When the last of its messages expires; `u64::MAX` if one does not, or nobody knows.
    pub expired_at: u64,
    /// A bit per sequence, set if its message is not settled; `None`: all are live.
    pub live: Option<Box<[u64]>>,
    /// The flags of each record that the store does not have; `None`: it has all there is.
    pub marks: Option<Box<[u8]>>,
}

impl Page {
    pub fn is_live(&self, at: usize) -> bool {
        at < self.count as usize && self.live.as_ref().is_none_or(|live| live[at / 64] >> (at % 64) & 1 == 1)
    }

    /// The first live one from there on.
    pub fn next_live(&self, at: usize) -> Option<usize> {
        (at..self.count as usize).find(|at| self.is_live(*at))
    }

    /// Settles one; false if it was.
    pub fn settle(&mut self, at: usize) -> bool {
        if !self.is_live(at) {
            return false;
        }
        let live = self.live.get_or_insert_with(|| all_live(self.count as usize));
        live[at / 64] &= !(1 << (at % 64));
        true
    }

    /// Where it lies in the paging log.
    pub fn place(&self) -> Option<PagePlace> {
        match self.source {
            Source::Log(place) => Some(place),
            Source::Store | Source::Leaving => None,
        }
    }
}

/// A bit for each, all set.
pub fn all_live(count: usize) -> Box<[u64]> {
    let mut live = vec![u64::MAX; count.div_ceil(64)].into_boxed_slice();
    if let Some(last) = live.last_mut()
        && !count.is_multiple_of(64)
    {
        *last = (1 << (count % 64)) - 1;
    }
    live
}
