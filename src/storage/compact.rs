//! Compaction: copies the few live messages of an old segment to the end of the log, so that the segment
//! can be removed.
//!
//! A segment that is consumed in order dies by itself; this is for messages that stay long among others
//! that do not. The segment is read once from start to end, a stretch at a time. A copy is an entry like
//! any other, in the same commit as the batches of that moment.
//! Invariants: only segments before the tail are compacted, so a segment never has two copies of a message;
//! the index learns of copies after their commit, and ignores those that were settled meanwhile.

use bytes::Bytes;

use crate::model::record::Batch;

use super::StoreError;
use super::durable::SledStore;
use super::format::SEGMENT_HEADER;
use super::reader::BodyAt;

/// A segment of which less than one part in so many is live is compacted.
const LIVE_PART: u64 = 4;
/// Bytes that are read while idle at once.
const IDLE_BYTES: usize = 4 << 20;
/// Bytes that are read with a commit at least. A larger commit takes twice its length: then compaction keeps
/// up with any load, since it copies less than one byte for four that it frees.
const COMMIT_BYTES_MIN: usize = 256 << 10;
/// Bytes that are read at once, unless a frame is longer.
const CHUNK_BYTES: usize = 256 << 10;
/// Dead bytes that do not matter while commits go on, in segments.
const DEAD_SEGMENTS: u64 = 2;

/// What is being compacted.
#[derive(Default)]
pub(super) struct Compaction {
    /// The segment, 0 if none.
    segment: u32,
    /// Where to go on in it, and where after the running commit.
    next: u64,
    after: u64,
    /// Segments that could not be read.
    unreadable: Vec<u32>,
}

/// A message to be copied.
pub(super) struct Moved {
    pub queue: u64,
    pub seq: u64,
    pub record: Bytes,
    pub body: Option<(BodyAt, Bytes)>,
}

impl SledStore {
    /// The copies to be made in the next commit: none unless the log is mostly dead.
    pub(super) fn moves_with_commit(&mut self, batches: &[Batch]) -> Vec<Moved> {
        if self.compaction.segment == 0 && !self.is_mostly_dead() {
            return Vec::new();
        }
        let bytes: usize = batches.iter().map(|batch| batch.bytes.len()).sum();
        self.next_moves(COMMIT_BYTES_MIN.max(2 * bytes))
    }

    /// Copies some messages of a segment that is mostly dead; false if there is none.
    pub(super) fn compact_when_idle(&mut self) -> Result<bool, StoreError> {
        let moved = self.next_moves(IDLE_BYTES);
        if !moved.is_empty() {
            self.commit_with(&[], &moved)?;
        }
        self.moves_done();
        Ok(self.compaction.segment != 0)
    }

    /// The copies are in the log.
    pub(super) fn moves_done(&mut self) {
        let Compaction { segment, after, .. } = self.compaction;
        if segment != 0 {
            self.compaction.next = after;
            if self.index.usages.is_dead(segment) {
                self.compaction.segment = 0;
                self.reader.rest();
            }
        }
    }

    /// While commits go on, copying waits until more than half of the disk space is wasted: what is consumed
    /// in order is about to die anyway.
    fn is_mostly_dead(&self) -> bool {
        let usages = &self.index.usages;
        usages.size() > 2 * usages.live_bytes() + DEAD_SEGMENTS * self.options.segment_bytes
    }

    /// Reads on in the segment, at most so many bytes.
    fn next_moves(&mut self, bytes_max: usize) -> Vec<Moved> {
        let mut moved = Vec::new();
        if self.compaction.segment == 0 && !self.choose_segment() {
            return moved;
        }
        self.compaction.after = self.compaction.next;
        let end = self.compaction.next.saturating_add(bytes_max as u64);
        while self.compaction.after < end {
            if let Err(error) = self.copy_chunk(&mut moved) {
                // What a failed commit left behind the end of the segment is no error: nothing is live by then.
                if moved.is_empty() && !self.index.usages.is_dead(self.compaction.segment) {
                    tracing::error!(%error, "a log segment cannot be compacted");
                    self.compaction.unreadable.push(self.compaction.segment);
                    self.compaction.segment = 0;
                }
                break;
            }
        }
        moved
    }

    /// Picks the segment with the smallest live part, if it is small enough.
    fn choose_segment(&mut self) -> bool {
        let tail = self.log.position().segment;
        let usages = self.index.usages.files().filter(|&(number, usage)| {
            number < tail
                && usage.live > 0
                && usage.live_bytes < usage.size / LIVE_PART
                && !self.compaction.unreadable.contains(&number)
        });
        // Parts in a million: no float decides what is on disk.
        let Some((segment, _)) = usages.min_by_key(|(_, usage)| usage.live_bytes * 1_000_000 / usage.size) else {
            return false;
        };
        self.compaction.segment = segment;
        self.compaction.next = SEGMENT_HEADER as u64;
        true
    }

    /// Reads the next frames, and adds the messages that are live and whose place is there.
    fn copy_chunk(&mut self, moved: &mut Vec<Moved>) -> Result<(), StoreError> {
        let Compaction { segment, after, .. } = self.compaction;
        let chunk = self.reader.frames_from(segment, after as u32, CHUNK_BYTES)?;
        let mut found = Vec::new();
        self.reader.messages(&chunk, None, &mut |message| {
            if self.index.is_in(message.queue, message.seq, segment) {
                found.push(message);
            }
        })?;
        for message in found {
            let body = message.body.map(|at| self.reader.body(&chunk, at).map(|body| (at, body))).transpose()?;
            moved.push(Moved { queue: message.queue, seq: message.seq, record: message.record, body });
        }
        self.compaction.after = chunk.end();
        Ok(())
    }
}
