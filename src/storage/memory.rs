//! Stores in memory: one that keeps nothing, for `--ephemeral`, and one that keeps everything in plain
//! maps, fails on command, and can be started again, for tests and simulations.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::model::record::{Batch, DefinitionKey, Op, Recovered, StoredBlock};

use super::{Recovery, Store, StoreError};

/// Keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryStore;

impl Store for MemoryStore {
    fn recover_blocks(
        &mut self,
        _: &mut dyn FnMut(Recovered),
        _: &mut dyn FnMut(StoredBlock),
    ) -> Result<Recovery, StoreError> {
        Ok(Recovery { clean: true, ..Recovery::default() })
    }

    fn commit(&mut self, _: &[Batch]) -> Result<(), StoreError> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Messages of a block that a faulty store tells of on start: few, so that tests have many.
const BLOCK_MESSAGES: usize = 5;

/// Keeps everything in maps, in the most obvious way, and fails when it is told to.
///
/// A handle: clones share the state, so that a test can keep one while the broker owns another.
/// [`FaultyMemoryStore::restarted`] is the store that a new process would find.
#[derive(Clone, Debug, Default)]
pub struct FaultyMemoryStore {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Clone, Debug, Default)]
struct Inner {
    kept: Kept,
    commits: u64,
    /// Numbers of the commits that fail.
    failing: Vec<u64>,
    /// Commits after this many are lost.
    freeze_after: Option<u64>,
    opened: bool,
    closed: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Kept {
    definitions: BTreeMap<DefinitionKey, Bytes>,
    next_sequence: u64,
    queues: BTreeMap<u64, BTreeMap<u64, Message>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Message {
    record: Bytes,
    body: Option<Bytes>,
    delivered: u32,
}

impl FaultyMemoryStore {
    pub fn new() -> Self {
        Self::default()
    }

    /// The `n`-th commit from now on (the first is 0) fails; nothing of it is kept, and it may be tried again.
    pub fn fail_commit(&self, n: u64) {
        let mut inner = self.inner.lock();
        let number = inner.commits + n;
        inner.failing.push(number);
    }

    /// The process crashes after `n` more commits: those are kept, later ones fail and are lost.
    pub fn freeze_after(&self, n: u64) {
        let mut inner = self.inner.lock();
        inner.freeze_after = Some(inner.commits + n);
    }

    /// Number of commits so far, failed ones included.
    pub fn commits(&self) -> u64 {
        self.inner.lock().commits
    }

    /// What the next process finds: all that was committed, no faults. This one is not changed.
    #[must_use]
    pub fn restarted(&self) -> Self {
        let inner = self.inner.lock();
        let inner = Inner { kept: inner.kept.clone(), opened: inner.opened, closed: inner.closed, ..Inner::default() };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }
}

impl Store for FaultyMemoryStore {
    fn recover_blocks(
        &mut self,
        definitions: &mut dyn FnMut(Recovered),
        blocks: &mut dyn FnMut(StoredBlock),
    ) -> Result<Recovery, StoreError> {
        let mut inner = self.inner.lock();
        let clean = inner.closed || !inner.opened;
        inner.closed = false;
        let kept = inner.kept.clone();
        drop(inner);
        let mut recovery = Recovery { clean, next_sequence: kept.next_sequence, ..Recovery::default() };
        for (key, value) in kept.definitions {
            recovery.definitions += 1;
            definitions(Recovered::Definition { key, value });
        }
        for (queue, messages) in kept.queues {
            recovery.messages += messages.len() as u64;
            let all: Vec<(&u64, &Message)> = messages.iter().collect();
            for some in all.chunks(BLOCK_MESSAGES) {
                let bytes = |message: &Message| message.record.len() + message.body.as_ref().map_or(0, Bytes::len);
                let bytes: usize = some.iter().map(|(_, message)| bytes(message)).sum();
                let (first, last) = (*some[0].0, *some[some.len() - 1].0);
                let is_live = |seq| messages.contains_key(&seq);
                blocks(StoredBlock::new(queue, first, last, some.len() as u32, bytes as u64, is_live));
            }
        }
        Ok(recovery)
    }

    fn commit(&mut self, batches: &[Batch]) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        let number = inner.commits;
        inner.commits += 1;
        if inner.freeze_after.is_some_and(|after| number >= after) || inner.failing.contains(&number) {
            let source = io::Error::other("injected fault");
            return Err(StoreError::Io { action: "write", path: PathBuf::from("memory"), source });
        }
        for batch in batches {
            for op in &batch.ops {
                inner.opened = true;
                inner.kept.apply(batch, op);
            }
        }
        Ok(())
    }

    fn read(
        &mut self,
        queue: u64,
        first: u64,
        bytes_max: usize,
        sink: &mut dyn FnMut(Recovered),
    ) -> Result<Option<u64>, StoreError> {
        let messages = self.inner.lock().kept.queues.get(&queue).cloned().unwrap_or_default();
        let mut bytes = 0;
        for (&seq, Message { record, body, delivered }) in messages.range(first..) {
            if bytes >= bytes_max {
                return Ok(Some(seq));
            }
            bytes += record.len() + body.as_ref().map_or(0, Bytes::len);
            let (record, body, delivered) = (record.clone(), body.clone(), *delivered);
            sink(Recovered::Message { queue, seq, record, body, delivered });
        }
        Ok(None)
    }

    fn close(&mut self) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        if inner.freeze_after.is_none_or(|after| inner.commits < after) {
            inner.closed = true;
        }
        Ok(())
    }
}

impl Kept {
    fn apply(&mut self, batch: &Batch, op: &Op) {
        match op {
            Op::Put { key, value } => {
                self.definitions.insert(key.clone(), value.clone());
            }
            Op::Remove { key } => {
                self.definitions.remove(key);
            }
            Op::Publish { queue, seq, start, len, body } => {
                let record = Bytes::copy_from_slice(&batch.bytes[*start..*start + *len]);
                let body = body.map(|body| batch.bodies[body].clone());
                let message = Message { record, body, delivered: 0 };
                self.next_sequence = self.next_sequence.max(*seq + 1);
                self.queues.entry(*queue).or_default().insert(*seq, message);
            }
            Op::Settle { queue, first, last } => {
                if let Some(messages) = self.queues.get_mut(queue) {
                    messages.retain(|seq, _| seq < first || seq > last);
                }
            }
            Op::Delivered { queue, seq, count } => {
                if let Some(message) = self.queues.get_mut(queue).and_then(|messages| messages.get_mut(seq)) {
                    message.delivered = *count;
                }
            }
            Op::Drop { queue } => {
                self.queues.remove(queue);
            }
        }
    }
}
