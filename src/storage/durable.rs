//! The durable store: ties the log, the index in memory, and the checkpoints in sled together.
//!
//! ```text
//! DIR/leveret-store      marks the folder as ours, says the format's version; locked while in use
//! DIR/log/0000000001.log messages and operations (`format.rs`)
//! DIR/index/             sled: the state at the last checkpoint (`sled.rs`)
//! ```
//!
//! A commit is encoded, written and synced once, and only then applied to the index: the index never knows
//! more than the log. Recovery is the last checkpoint and the log behind it.
//! Invariant: a segment is removed only when nothing live is in it and a completed checkpoint is behind it.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::model::record::{Batch, DefinitionKey, Op, Recovered, StoredBlock};

use super::checkpoint::Checkpoint;
use super::compact::{Compaction, Moved};
use super::encode::{Encoder, Order};
use super::files::{failed, open_or_create, sync_dir};
use super::format::Entry;
use super::index::Index;
use super::log::{Log, Position, segment_numbers, segment_path};
use super::reader::Reader;
use super::replay::{damaged, replay};
use super::sled::Tables;
use super::{Fault, Fsync, Recovery, Store, StoreError, StoreOptions};

/// Version of everything on disk; a folder with a larger one is refused.
const FORMAT_VERSION: u32 = 1;
pub(super) const MARKER: &str = "leveret-store";
/// Files that do not make a folder foreign: the root of an ext4 volume has the first, and a power cut right
/// after the first start may leave the others (without a segment of the log) and no marker.
const IGNORED: [&str; 3] = ["lost+found", "log", "index"];

/// See the file's head.
pub struct SledStore {
    pub(super) options: StoreOptions,
    /// Holds the lock.
    marker: File,
    dir: PathBuf,
    /// The folder was made just now.
    is_new: bool,
    pub(super) tables: Tables,
    /// A checkpoint failed: the tables are to be opened again before the next one.
    pub(super) index_failed: bool,
    pub(super) log: Log,
    pub(super) index: Index,
    pub(super) reader: Reader,
    encoder: Encoder,
    /// For each batch of the commit.
    orders: Vec<Order>,
    /// Definitions that changed since the last checkpoint began; `None` if removed.
    pub(super) definitions: BTreeMap<DefinitionKey, Option<Bytes>>,
    /// The checkpoint that is being written.
    pub(super) checkpoint: Option<Checkpoint>,
    /// Bytes of log since the last checkpoint began.
    pub(super) since_checkpoint: u64,
    pub(super) compaction: Compaction,
    committed_at: Instant,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Opened,
    Recovered,
    Closed,
}

impl SledStore {
    /// Opens the store in that folder; makes the folder if it is missing.
    ///
    /// # Errors
    /// The folder is in use, not ours, from a newer version, or not accessible.
    pub fn open(dir: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        let is_new = !dir.exists();
        let marker = claim(dir)?;
        let log_dir = dir.join("log");
        fs::create_dir_all(&log_dir).map_err(failed("create", &log_dir))?;
        Ok(Self {
            options,
            marker,
            dir: dir.to_owned(),
            is_new,
            tables: Tables::open(dir.join("index"), options.cache_bytes)?,
            index_failed: false,
            log: Log::new(log_dir.clone(), options.fsync, options.segment_bytes),
            index: Index::default(),
            reader: Reader::new(log_dir),
            encoder: Encoder::new(),
            orders: Vec::new(),
            definitions: BTreeMap::new(),
            checkpoint: None,
            since_checkpoint: 0,
            compaction: Compaction::default(),
            committed_at: Instant::now(),
            state: State::Opened,
        })
    }

    /// Makes the next operations on the log's files fail. For tests.
    #[doc(hidden)]
    pub fn inject(&mut self, fault: Fault) {
        self.log.inject(fault);
    }

    /// Makes durable what the running checkpoint has written so far, as sled may do at any time. For tests.
    #[doc(hidden)]
    pub fn flush_index(&mut self) {
        self.tables.flush().expect("sled can write");
    }

    fn load(&mut self) -> Result<Recovery, StoreError> {
        let index = &mut self.index;
        let last_segment = segment_numbers(self.log.dir())?.last().copied().unwrap_or(0);
        self.tables.blocks(&mut |key, row| index.load(key, row, last_segment))?;
        let mut highest = index.last_sequence();
        let checkpoint = self.tables.position()?;
        let definitions = &mut self.definitions;
        let dir = self.log.dir().to_owned();
        let replayed = replay(&dir, checkpoint, &mut |entry, place| match *entry {
            Entry::Message { queue, seq, moved, record, body } => {
                let bytes = message_bytes(record.len(), body.map_or(0, |body| body.len as usize));
                highest = highest.max(Some(seq));
                if moved {
                    index.moved(queue, seq, place, bytes);
                } else {
                    index.publish(queue, seq, place, bytes);
                }
            }
            Entry::Settle { queue, first, last } => {
                highest = highest.max(Some(last));
                index.settle(queue, first, last);
            }
            Entry::Delivered { queue, seq, count } => index.delivered(queue, seq, count),
            Entry::Drop { queue } => index.drop_queue(queue),
            Entry::Put { kind, vhost, name, value } => {
                let key = DefinitionKey { kind, vhost: vhost.into(), name: Bytes::copy_from_slice(name) };
                definitions.insert(key, Some(Bytes::copy_from_slice(value)));
            }
            Entry::Remove { kind, vhost, name } => {
                let key = DefinitionKey { kind, vhost: vhost.into(), name: Bytes::copy_from_slice(name) };
                definitions.insert(key, None);
            }
            Entry::Body | Entry::Opened | Entry::Closed => {}
        })?;
        self.since_checkpoint = replayed.bytes;
        for number in segment_numbers(&dir)? {
            let path = segment_path(&dir, number);
            let size = fs::metadata(&path).map_err(failed("read", &path))?.len();
            let size = if number == replayed.end.segment { replayed.end.offset } else { size };
            self.index.usages.set_size(number, size);
        }
        if let Some((number, _)) = self.index.usages.all().find(|(_, usage)| usage.size == 0) {
            return Err(damaged(&segment_path(&dir, number), 0, "the file is missing, and messages are in it"));
        }
        if replayed.end.segment > 0 {
            self.log.resume(replayed.end, replayed.salt, checkpoint.commit)?;
            self.sync_segments(checkpoint.segment, replayed.end.segment)?;
            self.mark(false)?;
        }
        let next_sequence = highest.map_or(0, |highest| highest.saturating_add(1));
        Ok(Recovery { clean: replayed.closed, cut_bytes: replayed.cut_bytes, next_sequence, ..Recovery::default() })
    }

    /// After a kill, what was read may be in the kernel's memory only; it is about to be taken for stored.
    fn sync_segments(&self, first: u32, last: u32) -> Result<(), StoreError> {
        if self.options.fsync == Fsync::Never {
            return Ok(());
        }
        for number in first.max(1)..=last {
            let path = segment_path(self.log.dir(), number);
            // Opened for writing, since Windows syncs no other.
            let file = File::options().write(true).open(&path);
            file.and_then(|file| file.sync_data()).map_err(failed("sync", &path))?;
        }
        Ok(())
    }

    /// Gives the definitions: those of the checkpoint, and over them those of the log's tail.
    fn recover_definitions(&self, sink: &mut dyn FnMut(Recovered)) -> Result<u64, StoreError> {
        let mut count = 0;
        let mut give = |key, value| {
            count += 1;
            sink(Recovered::Definition { key, value });
        };
        let mut changed = self.definitions.iter().peekable();
        self.tables.definitions(&mut |key, value| {
            while let Some((earlier, value)) = changed.next_if(|(changed, _)| **changed < key) {
                value.clone().into_iter().for_each(|value| give(earlier.clone(), value));
            }
            match changed.next_if(|(changed, _)| **changed == key) {
                Some((_, None)) => {}
                Some((_, Some(value))) => give(key, value.clone()),
                None => give(key, value),
            }
        })?;
        for (key, value) in changed {
            value.clone().into_iter().for_each(|value| give(key.clone(), value));
        }
        Ok(count)
    }

    /// Writes a commit that only says that the store was opened, or closed; synced whatever the policy,
    /// except that opening with [`Fsync::Never`] syncs nothing.
    fn mark(&mut self, closed: bool) -> Result<(), StoreError> {
        let result = self.log.begin().and_then(|start| {
            self.encoder.begin(start);
            self.encoder.mark(closed);
            self.log.write(self.encoder.finish())?;
            self.log.finish()
        });
        if let Err(error) = result {
            self.log.abort();
            return Err(error);
        }
        if closed || self.options.fsync != Fsync::Never {
            self.log.sync()?;
        }
        let Position { segment, offset, .. } = self.log.position();
        self.index.usages.set_size(segment, offset);
        Ok(())
    }

    /// Makes the marker and the folders durable, so that the first commit does not end in a foreign folder.
    fn settle_in(&self) -> Result<(), StoreError> {
        self.marker.sync_all().map_err(failed("sync", &self.dir.join(MARKER)))?;
        sync_dir(&self.dir)?;
        if self.is_new {
            let parent = self.dir.parent().filter(|parent| !parent.as_os_str().is_empty());
            sync_dir(parent.unwrap_or(Path::new(".")))?;
        }
        Ok(())
    }

    /// Writes and syncs the batches, and behind them the copies that compaction makes.
    fn write(&mut self, batches: &[Batch], moved: &[Moved]) -> Result<u64, StoreError> {
        if self.log.position().segment == 0 {
            self.settle_in()?;
        }
        let start = self.log.begin()?;
        let encoder = &mut self.encoder;
        encoder.begin(start);
        self.orders.resize_with(self.orders.len().max(batches.len()), Order::default);
        for (batch, order) in batches.iter().zip(&mut self.orders) {
            order.find(batch);
            for op in order.ops(batch) {
                encoder.op(batch, op);
                if let Some(bytes) = encoder.full() {
                    self.log.write(bytes)?;
                    encoder.written();
                }
            }
            encoder.batch_done();
        }
        let mut bodies = HashMap::new();
        for message in moved {
            let body = message.body.as_ref().map(|(at, body)| *bodies.entry(*at).or_insert_with(|| encoder.body(body)));
            encoder.moved(message.queue, message.seq, &message.record, body);
            if let Some(bytes) = encoder.full() {
                self.log.write(bytes)?;
                encoder.written();
            }
        }
        self.log.write(encoder.finish())?;
        self.log.finish()?;
        Ok(self.log.position().offset - start.offset)
    }

    /// Brings the index up to date with a commit that is in the log.
    fn apply(&mut self, batches: &[Batch], moved: &[Moved]) {
        let mut frames = self.encoder.frames.iter().peekable();
        let mut place = frames.peek().expect("a commit has a frame").place;
        let mut number = 0;
        let mut place_of = |number| {
            while let Some(frame) = frames.next_if(|frame| frame.first_op <= number) {
                place = frame.place;
            }
            place
        };
        for (batch, order) in batches.iter().zip(&self.orders) {
            for op in order.ops(batch) {
                match op {
                    Op::Publish { queue, seq, len, body, .. } => {
                        let bytes = message_bytes(*len, body.map_or(0, |body| batch.bodies[body].len()));
                        self.index.publish(*queue, *seq, place_of(number), bytes);
                    }
                    Op::Settle { queue, first, last } => self.index.settle(*queue, *first, *last),
                    Op::Delivered { queue, seq, count } => self.index.delivered(*queue, *seq, *count),
                    Op::Drop { queue } => self.index.drop_queue(*queue),
                    Op::Put { key, value } => {
                        self.definitions.insert(key.clone(), Some(value.clone()));
                    }
                    Op::Remove { key } => {
                        self.definitions.insert(key.clone(), None);
                    }
                }
                number += 1;
            }
        }
        for message in moved {
            let body = message.body.as_ref().map_or(0, |(_, body)| body.len());
            let bytes = message_bytes(message.record.len(), body);
            self.index.moved(message.queue, message.seq, place_of(number), bytes);
            number += 1;
        }
        let Position { segment, offset, .. } = self.log.position();
        self.index.usages.set_size(segment, offset);
    }

    /// Commits the batches, and copies messages forward in the same commit.
    pub(super) fn commit_with(&mut self, batches: &[Batch], moved: &[Moved]) -> Result<u64, StoreError> {
        assert!(self.state == State::Recovered, "a store takes commits between recover and close");
        match self.write(batches, moved) {
            Ok(bytes) => {
                self.apply(batches, moved);
                self.since_checkpoint += bytes;
                Ok(bytes)
            }
            Err(error) => {
                self.log.abort();
                Err(error)
            }
        }
    }
}

impl Store for SledStore {
    fn recover_blocks(
        &mut self,
        definitions: &mut dyn FnMut(Recovered),
        blocks: &mut dyn FnMut(StoredBlock),
    ) -> Result<Recovery, StoreError> {
        assert!(self.state == State::Opened, "a store is recovered once");
        let mut recovery = self.load()?;
        recovery.definitions = self.recover_definitions(definitions)?;
        recovery.messages = self.give_blocks(blocks);
        self.reader.share_bodies();
        self.state = State::Recovered;
        Ok(recovery)
    }

    fn recovery_done(&mut self) {
        self.reader.rest();
    }

    fn commit(&mut self, batches: &[Batch]) -> Result<(), StoreError> {
        if batches.iter().all(Batch::is_empty) {
            return Ok(());
        }
        let moved = self.moves_with_commit(batches);
        let bytes = self.commit_with(batches, &moved).inspect_err(|_| self.free_space())?;
        self.moves_done();
        self.checkpoint_with_commit(bytes);
        self.committed_at = Instant::now();
        Ok(())
    }

    fn maintain(&mut self) -> Result<bool, StoreError> {
        if self.state != State::Recovered || self.committed_at.elapsed() < self.options.idle_after {
            return Ok(false);
        }
        Ok(self.checkpoint_when_idle()? || self.compact_when_idle()?)
    }

    fn sync_if_due(&mut self) -> Result<Option<Duration>, StoreError> {
        let Fsync::Interval(interval) = self.options.fsync else { return Ok(None) };
        if !self.log.is_unsynced() {
            return Ok(None);
        }
        let left = interval.saturating_sub(self.log.synced_at().elapsed());
        if left.is_zero() {
            self.log.sync()?;
            return Ok(None);
        }
        Ok(Some(left))
    }

    fn read(
        &mut self,
        queue: u64,
        first: u64,
        bytes_max: usize,
        sink: &mut dyn FnMut(Recovered),
    ) -> Result<Option<u64>, StoreError> {
        let mut bytes = 0;
        let mut found = Vec::new();
        for block in self.index.blocks_from(queue, first) {
            for (number, extent) in block.extents().iter().enumerate() {
                let (from, to) = block.owned(number);
                if to < first {
                    continue;
                }
                let chunk = self.reader.chunk(extent.segment, extent.offset, extent.span)?;
                self.reader.messages(&chunk, Some(queue), &mut |message| {
                    if message.seq >= from.max(first) && message.seq <= to && block.is_live(message.seq) {
                        found.push(message);
                    }
                })?;
                for message in found.drain(..) {
                    if bytes >= bytes_max {
                        return Ok(Some(message.seq));
                    }
                    let body = message.body.map(|at| self.reader.body(&chunk, at)).transpose()?;
                    bytes += message.record.len() + body.as_ref().map_or(0, Bytes::len);
                    let delivered = block.delivered(message.seq);
                    sink(Recovered::Message { queue, seq: message.seq, record: message.record, body, delivered });
                }
            }
        }
        Ok(None)
    }

    fn read_range(
        &mut self,
        queue: u64,
        first: u64,
        last: u64,
        sink: &mut dyn FnMut(Recovered),
    ) -> Result<(), StoreError> {
        self.read_live(queue, first, last, sink)
    }

    fn close(&mut self) -> Result<(), StoreError> {
        if self.state == State::Recovered && self.log.position().segment > 0 {
            if let Err(error) = self.checkpoint_at_end() {
                tracing::error!(%error, "checkpoint failed: the log has everything, and the next start reads it");
            }
            self.mark(true)?;
            self.log.trim()?;
        }
        self.state = State::Closed;
        Ok(())
    }
}

/// What a message costs in the log beside the entry's own few bytes.
fn message_bytes(record: usize, body: usize) -> u32 {
    u32::try_from(record + body).unwrap_or(u32::MAX)
}

/// Makes the folder ours, or checks that it is, and locks it. The file returned holds the lock.
fn claim(dir: &Path) -> Result<File, StoreError> {
    let foreign = |reason: String| StoreError::Foreign { path: dir.to_owned(), reason };
    let path = dir.join(MARKER);
    if !path.exists() {
        if dir.exists() && !dir.is_dir() {
            return Err(foreign("is a file".into()));
        }
        fs::create_dir_all(dir).map_err(failed("create", dir))?;
        let log_dir = dir.join("log");
        let has_log = log_dir.is_dir() && !segment_numbers(&log_dir)?.is_empty();
        for entry in fs::read_dir(dir).map_err(failed("list", dir))? {
            let name = entry.map_err(failed("list", dir))?.file_name();
            if has_log || !IGNORED.iter().any(|ignored| name == *ignored) {
                return Err(foreign(format!("is not empty and not a leveret store (it has {})", name.display())));
            }
        }
    }
    let mut marker = open_or_create(&path)?;
    match marker.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(StoreError::Locked { path: dir.to_owned() }),
        Err(TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
    }
    let mut text = String::new();
    marker.read_to_string(&mut text).map_err(failed("read", &path))?;
    if text.is_empty() {
        // New, or a crash came right after it was made. The first segment's creation syncs the folder.
        let text = format!("leveret store, format {FORMAT_VERSION}\n");
        marker.write_all(text.as_bytes()).map_err(failed("write", &path))?;
        return Ok(marker);
    }
    match text.trim().strip_prefix("leveret store, format ").and_then(|version| version.parse::<u32>().ok()) {
        Some(FORMAT_VERSION) => Ok(marker),
        Some(version) => {
            Err(foreign(format!("was written by a newer leveret (format {version}, this one knows {FORMAT_VERSION})")))
        }
        None => Err(foreign(format!("has a file {MARKER} that is not ours"))),
    }
}
