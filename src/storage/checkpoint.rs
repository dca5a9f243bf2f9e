//! Checkpoints: brings sled up to the index, a few rows at a time between commits.
//!
//! A checkpoint starts by noting where the log ends, and which rows differ. The rows are then written as
//! they are when their turn comes, which may be newer than that position: the replay from there ends in
//! the right state all the same (see `index.rs`). When all are on disk the position is written, and the
//! segments that nothing needs any more are removed.
//!
//! Invariants: a row never says more than the log has on disk; the position is written after all rows are
//! durable; a failed checkpoint loses nothing but time, since the log has everything.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::model::record::DefinitionKey;

use super::durable::SledStore;
use super::files::remove;
use super::index::{BlockKey, Row};
use super::log::{Position, segment_path};
use super::{Fsync, StoreError};

/// A row costs about 6 us: with more rows than this to write, a checkpoint waits for more log in proportion,
/// so that it costs little beside the log, up to [`WAIT_MAX`] times as much.
const ROWS_USUAL: u64 = 16 << 10;
const WAIT_MAX: u64 = 8;
/// Definitions wait in memory: so many at most.
const DEFINITIONS_MAX: usize = 64 << 10;
/// Segments without live messages that are worth a checkpoint of their own while commits go on.
const DEAD_SEGMENTS_MAX: usize = 4;
/// A tail without live messages is worth removing when it has one part in so many of a segment's size.
const RETIRE_PART: u64 = 16;
/// So much of log is read in a millisecond: not worth a checkpoint when the store is closed.
const REPLAY_BYTES_SMALL: u64 = 256 << 10;
/// Rows get this many times as much time in one call while idle as in a commit.
const IDLE_SLICES: u32 = 10;
/// Rows to write between two looks at the clock.
const ROWS_PER_LOOK: usize = 16;

/// A checkpoint on its way.
pub(super) struct Checkpoint {
    position: Position,
    /// What is left to do, each from the back.
    removed: Vec<BlockKey>,
    dirty: Vec<BlockKey>,
    definitions: BTreeMap<DefinitionKey, Option<Bytes>>,
    /// What is done, but not known to be durable.
    written: Vec<BlockKey>,
    defined: Vec<(DefinitionKey, Option<Bytes>)>,
    /// Rows there were to write.
    rows: usize,
}

impl Checkpoint {
    fn rows_left(&self) -> usize {
        self.removed.len() + self.dirty.len() + self.definitions.len()
    }
}

impl SledStore {
    /// The checkpoint's share of a commit of so many bytes. The commit is good whatever happens here.
    pub(super) fn checkpoint_with_commit(&mut self, commit_bytes: u64) {
        if self.checkpoint.is_none() {
            if !self.is_checkpoint_due() {
                return;
            }
            self.begin_checkpoint();
        }
        // Fast enough to be done when the log has grown by half of what the next checkpoint waits for.
        let rows = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.rows) as u64;
        let share = (rows * commit_bytes * 2).div_ceil(self.options.checkpoint_bytes.max(1)) as usize;
        if let Err(error) = self.step_checkpoint(share, self.options.checkpoint_slice) {
            tracing::error!(%error, "checkpoint failed: the log is kept, and it is tried again later");
        }
    }

    /// After a failed commit: if the disk is full, segments that nothing needs may help.
    pub(super) fn free_space(&mut self) {
        if self.checkpoint.is_some() || self.dead_segments().next().is_some() {
            if self.checkpoint.is_none() {
                self.begin_checkpoint();
            }
            if let Err(error) = self.step_checkpoint(usize::MAX, Duration::ZERO) {
                tracing::error!(%error, "checkpoint failed as well");
            }
        }
    }

    /// Goes on with a checkpoint, or starts one that is due or would free disk space; false if there is none.
    pub(super) fn checkpoint_when_idle(&mut self) -> Result<bool, StoreError> {
        if self.checkpoint.is_none() {
            self.retire_tail()?;
            if !self.is_checkpoint_due() && self.dead_segments().next().is_none() {
                return Ok(false);
            }
            self.begin_checkpoint();
        }
        self.step_checkpoint(0, self.options.checkpoint_slice * IDLE_SLICES)?;
        Ok(true)
    }

    /// Finishes the running checkpoint, and takes one of everything since unless that is little.
    pub(super) fn checkpoint_at_end(&mut self) -> Result<(), StoreError> {
        while self.checkpoint.is_some() {
            self.step_checkpoint(usize::MAX, Duration::ZERO)?;
        }
        if self.since_checkpoint >= REPLAY_BYTES_SMALL.min(self.options.checkpoint_bytes) {
            self.begin_checkpoint();
            self.step_checkpoint(usize::MAX, Duration::ZERO)?;
        }
        Ok(())
    }

    fn is_checkpoint_due(&self) -> bool {
        let usual = self.options.checkpoint_bytes;
        let rows = (self.index.dirty_count() + self.definitions.len()) as u64;
        self.since_checkpoint >= usual.saturating_mul((rows / ROWS_USUAL).clamp(1, WAIT_MAX))
            || self.definitions.len() >= DEFINITIONS_MAX
            || self.index.usages.dead() > DEAD_SEGMENTS_MAX
    }

    /// Segments before the tail in which nothing is live.
    fn dead_segments(&self) -> impl Iterator<Item = u32> {
        let tail = self.log.position().segment;
        let dead = self.index.usages.files().filter(move |&(number, usage)| number < tail && usage.live == 0);
        dead.map(|(number, _)| number)
    }

    /// Ends a tail of some size in which nothing is live, so that it can be removed.
    fn retire_tail(&mut self) -> Result<(), StoreError> {
        let Position { segment, offset, .. } = self.log.position();
        if offset >= self.options.segment_bytes / RETIRE_PART && self.index.usages.is_dead(segment) {
            self.log.roll()?;
            let Position { segment, offset, .. } = self.log.position();
            self.index.usages.set_size(segment, offset);
        }
        Ok(())
    }

    fn begin_checkpoint(&mut self) {
        let (dirty, removed) = self.index.take_dirty();
        let definitions = std::mem::take(&mut self.definitions);
        let rows = dirty.len() + removed.len() + definitions.len();
        let position = self.log.position();
        self.since_checkpoint = 0;
        let (written, defined) = (Vec::new(), Vec::new());
        self.checkpoint = Some(Checkpoint { position, removed, dirty, definitions, written, defined, rows });
    }

    /// Writes at least `rows_min` rows, and more if there is time; ends the checkpoint when none is left.
    fn step_checkpoint(&mut self, rows_min: usize, slice: Duration) -> Result<(), StoreError> {
        let Some(mut checkpoint) = self.checkpoint.take() else { return Ok(()) };
        let result = self.write_rows(&mut checkpoint, rows_min, slice).and_then(|()| {
            let done = checkpoint.rows_left() == 0;
            if done { self.end_checkpoint(checkpoint.position).map(|()| true) } else { Ok(false) }
        });
        match result {
            Ok(true) => {}
            Ok(false) => self.checkpoint = Some(checkpoint),
            Err(error) => {
                // What was written may not be durable: the position stays where it was, and all rows join
                // those of the next attempt.
                self.index.put_back(&checkpoint.dirty, &checkpoint.removed);
                self.index.put_back(&checkpoint.written, &[]);
                for (key, value) in checkpoint.definitions.into_iter().chain(checkpoint.defined) {
                    self.definitions.entry(key).or_insert(value);
                }
                self.index_failed = true;
                return Err(error);
            }
        }
        Ok(())
    }

    fn write_rows(&mut self, checkpoint: &mut Checkpoint, rows_min: usize, slice: Duration) -> Result<(), StoreError> {
        // With `Fsync::Always` there is nothing to sync. Otherwise each slice costs one, so it does more.
        self.log.sync()?;
        if self.index_failed {
            self.tables.reopen()?;
            self.index_failed = false;
        }
        let slice = if self.options.fsync == Fsync::Always { slice } else { slice * 16 };
        let start = Instant::now();
        let mut row = Vec::new();
        for number in 1.. {
            if let Some(&key) = checkpoint.removed.last() {
                self.tables.remove_block(key)?;
                checkpoint.removed.pop();
                checkpoint.written.push(key);
            } else if let Some(&key) = checkpoint.dirty.last() {
                row.clear();
                match self.index.row(key, &mut row) {
                    Row::Write => self.tables.put_block(key, &row)?,
                    Row::Remove => self.tables.remove_block(key)?,
                }
                checkpoint.dirty.pop();
                checkpoint.written.push(key);
            } else if let Some((key, value)) = checkpoint.definitions.last_key_value() {
                match value {
                    Some(value) => self.tables.put_definition(key, value)?,
                    None => self.tables.remove_definition(key)?,
                }
                checkpoint.defined.extend(checkpoint.definitions.pop_last());
            } else {
                break;
            }
            let look = number % ROWS_PER_LOOK == 0 || slice.is_zero();
            if number >= rows_min && look && start.elapsed() >= slice {
                break;
            }
        }
        Ok(())
    }

    fn end_checkpoint(&mut self, position: Position) -> Result<(), StoreError> {
        self.tables.flush()?;
        self.tables.set_position(position)?;
        self.tables.flush()?;
        let dead: Vec<u32> = self.dead_segments().filter(|&number| number < position.segment).collect();
        for number in dead {
            self.reader.forget(number);
            self.index.usages.set_size(number, 0);
            if let Err(error) = remove(&segment_path(self.log.dir(), number)) {
                // It is found again, and removed, after the next start.
                tracing::warn!(%error, "a log segment that is not needed any more stays");
            }
        }
        Ok(())
    }
}
