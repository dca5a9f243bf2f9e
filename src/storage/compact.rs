//! Compaction: copies the few live messages of an old segment to the end of the log, so that the segment
//! can be removed.
//!
//! A segment that is consumed in order dies by itself; this is for messages that stay long among others
//! that do not. A copy is an entry like any other, in the same commit as the batches of that moment.
//! Invariants: only segments before the tail are compacted, so a segment never has two copies of a message;
//! all live messages of an extent are copied in one commit; the index learns of it after that commit.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::model::record::Batch;

use super::StoreError;
use super::durable::SledStore;
use super::index::BlockKey;
use super::reader::BodyAt;

/// A segment of which less than one part in so many is live is compacted.
const LIVE_PART: u64 = 4;
/// Bytes that are copied while idle at once (and one extent more).
const IDLE_COPY_BYTES: usize = 1 << 20;
/// Bytes that are copied with a commit, if it is not longer itself.
const COMMIT_COPY_BYTES: usize = 128 << 10;
/// Dead bytes that do not matter, in segments.
const DEAD_SEGMENTS: u64 = 2;

/// What is being compacted.
#[derive(Default)]
pub(super) struct Compaction {
    segment: u32,
    /// Offset and block of the extents that are left.
    extents: VecDeque<(u32, BlockKey)>,
    /// How many of them the copies of the running commit cover.
    copied: usize,
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
        if self.compaction.extents.is_empty() && !self.is_mostly_dead() {
            return Vec::new();
        }
        // Each byte written to a segment that is then compacted is copied but a few times in all.
        let bytes: usize = batches.iter().map(|batch| batch.bytes.len()).sum();
        self.next_moves(bytes.max(COMMIT_COPY_BYTES))
    }

    /// Copies some messages of a segment that is mostly dead; false if there is none.
    pub(super) fn compact_when_idle(&mut self) -> Result<bool, StoreError> {
        let moved = self.next_moves(IDLE_COPY_BYTES);
        if moved.is_empty() {
            return Ok(false);
        }
        self.commit_with(&[], &moved)?;
        self.moves_done(&moved);
        Ok(true)
    }

    /// The copies are in the log.
    pub(super) fn moves_done(&mut self, moved: &[Moved]) {
        if !moved.is_empty() {
            self.compaction.extents.drain(..self.compaction.copied);
            self.reader.rest();
        }
        self.compaction.copied = 0;
    }

    /// While commits go on, copying waits until more than half of the disk space is wasted: what is consumed
    /// in order is about to die anyway.
    fn is_mostly_dead(&self) -> bool {
        let usages = &self.index.usages;
        usages.size() > 2 * usages.live_bytes() + DEAD_SEGMENTS * self.options.segment_bytes
    }

    fn next_moves(&mut self, bytes_max: usize) -> Vec<Moved> {
        let mut moved = Vec::new();
        if self.compaction.extents.is_empty() && !self.choose_segment() {
            return moved;
        }
        let mut bytes = 0;
        self.compaction.copied = 0;
        while bytes < bytes_max
            && let Some(&(offset, key)) = self.compaction.extents.get(self.compaction.copied)
        {
            match self.copy_extents(key, offset, &mut moved) {
                Ok(copied) => bytes += copied,
                Err(error) => {
                    tracing::error!(%error, "a log segment cannot be compacted");
                    self.compaction.unreadable.push(self.compaction.segment);
                    self.compaction.extents.clear();
                    self.compaction.copied = 0;
                    return Vec::new();
                }
            }
            self.compaction.copied += 1;
        }
        if moved.is_empty() {
            // What was left has died in the meantime.
            self.compaction.extents.clear();
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
        self.compaction.extents = self.index.extents_in(segment).into();
        true
    }

    /// Adds the block's live messages in its extents at that offset of the segment, if there still are any.
    fn copy_extents(&mut self, key: BlockKey, offset: u32, moved: &mut Vec<Moved>) -> Result<usize, StoreError> {
        let segment = self.compaction.segment;
        let Some(block) = self.index.block(key) else { return Ok(0) };
        let mut bytes = 0;
        let mut found = Vec::new();
        for (number, extent) in block.extents().iter().enumerate() {
            if (extent.segment, extent.offset) != (segment, offset) {
                continue;
            }
            let (from, to) = block.owned(number);
            let chunk = self.reader.chunk(segment, offset, extent.span)?;
            self.reader.messages(&chunk, key.0, &mut |message| {
                if message.seq >= from && message.seq <= to && block.is_live(message.seq) {
                    found.push(message);
                }
            })?;
            for message in found.drain(..) {
                let body = message.body.map(|at| self.reader.body(&chunk, at).map(|body| (at, body))).transpose()?;
                bytes += message.record.len() + body.as_ref().map_or(0, |(_, body)| body.len());
                moved.push(Moved { queue: key.0, seq: message.seq, record: message.record, body });
            }
        }
        Ok(bytes)
    }
}
