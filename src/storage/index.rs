//! Where every live message is: per queue, its blocks in order. Kept in memory, filled from the checkpoint
//! and the log's tail on start, and changed by every commit after it is on disk.
//!
//! Applying the log's operations twice, or to a state that is newer than they are, ends in the same state
//! once all of them were applied. The checkpoint depends on it: it is written bit by bit while commits go
//! on. So a message whose sequence a block covers is known already (sequences of a queue only increase),
//! and settling or moving what is not live changes nothing.
//!
//! Invariants: a queue's blocks are in order and do not overlap; only the last one may be empty; every
//! block that differs from its row in the checkpoint is in `dirty`; every row without a block in `removed`.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use super::block::{Block, Place};
use super::usage::Usages;

/// Key of a block: queue and first sequence.
pub(super) type BlockKey = (u64, u64);

/// Hash of a queue id. The ids are ours and not a client's: no defence is needed, and each operation hashes one.
#[derive(Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }
    fn write_u64(&mut self, id: u64) {
        self.0 = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

#[derive(Default)]
pub(super) struct Index {
    queues: Queues,
    pub usages: Usages,
    /// Blocks to write at the next checkpoint, some of which may be gone by then.
    dirty: Vec<BlockKey>,
    /// Rows to remove at the next checkpoint.
    removed: Vec<BlockKey>,
}

/// What the checkpoint has to do for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Row {
    Write,
    Remove,
}

impl Index {
    /// A message is in that frame.
    pub fn publish(&mut self, queue: u64, seq: u64, place: Place, bytes: u32) {
        let blocks = self.queues.entry(queue).or_default();
        let mut at = 0;
        if let Some(number) = position(blocks, seq) {
            let block = &mut blocks[number];
            if seq <= block.last() {
                return;
            }
            if block.has_room(seq) {
                block.push(seq, place, bytes, &mut self.usages);
                return touch(&mut self.dirty, queue, block);
            }
            at = number + 1;
            if block.live() == 0 {
                let gone = blocks.remove(number).expect("the block is there");
                forget(&mut self.removed, queue, &gone);
                at = number;
            }
        }
        let mut block = Block::new(seq);
        block.push(seq, place, bytes, &mut self.usages);
        touch(&mut self.dirty, queue, &mut block);
        blocks.insert(at, block);
    }

    /// Messages `first..=last` of the queue are settled.
    pub fn settle(&mut self, queue: u64, first: u64, last: u64) {
        let Some(blocks) = self.queues.get_mut(&queue) else { return };
        let start = match blocks.front() {
            // A queue is mostly consumed from its front.
            Some(front) if first <= front.last() => 0,
            _ => position(blocks, first).unwrap_or(0),
        };
        let mut end = start;
        let mut emptied = false;
        while let Some(block) = blocks.get_mut(end)
            && block.first <= last
        {
            if block.settle(first, last, &mut self.usages) > 0 {
                touch(&mut self.dirty, queue, block);
                emptied |= block.live() == 0;
            }
            end += 1;
        }
        if !emptied {
            return;
        }
        // The last block stays even if it is empty: the next message goes there.
        let mut gone = 0;
        while blocks.len() > 1 && blocks[0].live() == 0 {
            forget(&mut self.removed, queue, &blocks.pop_front().expect("there are two"));
            gone += 1;
        }
        for number in (start..end.saturating_sub(gone)).rev() {
            if number + 1 < blocks.len() && blocks[number].live() == 0 {
                let block = blocks.remove(number).expect("the block is there");
                forget(&mut self.removed, queue, &block);
            }
        }
        if blocks.capacity() > 16 && blocks.len() < blocks.capacity() / 4 {
            blocks.shrink_to(blocks.len() * 2);
        }
    }

    /// The message was delivered so often.
    pub fn delivered(&mut self, queue: u64, seq: u64, count: u32) {
        if let Some(block) = block_mut(&mut self.queues, queue, seq)
            && block.set_delivered(seq, count)
        {
            touch(&mut self.dirty, queue, block);
        }
    }

    /// The queue is gone.
    pub fn drop_queue(&mut self, queue: u64) {
        for mut block in self.queues.remove(&queue).unwrap_or_default() {
            block.clear(&mut self.usages);
            forget(&mut self.removed, queue, &block);
        }
    }

    /// A copy of the message is in that frame of another segment, and is the one that counts from now on.
    pub fn moved(&mut self, queue: u64, seq: u64, place: Place, bytes: u32) {
        if let Some(block) = block_mut(&mut self.queues, queue, seq)
            && block.relocate(seq, place, bytes, &mut self.usages)
        {
            touch(&mut self.dirty, queue, block);
        }
    }

    /// Takes over a row of the checkpoint. Rows come in the order of their keys.
    /// False if it is damaged or does not fit behind the ones before.
    pub fn load(&mut self, (queue, first): BlockKey, row: &[u8], last_segment: u32) -> bool {
        let Some(block) = Block::decode(first, row, last_segment, &mut self.usages) else { return false };
        let blocks = self.queues.entry(queue).or_default();
        if blocks.back().is_some_and(|back| back.last() >= first) {
            return false;
        }
        blocks.push_back(block);
        true
    }

    /// The largest sequence of any queue, settled or not; `None` if there is no block.
    pub fn last_sequence(&self) -> Option<u64> {
        self.queues.values().filter_map(|blocks| blocks.back().map(Block::last)).max()
    }

    /// Ids of the queues with live messages, in order.
    pub fn queue_ids(&self) -> Vec<u64> {
        let live = self.queues.iter().filter(|(_, blocks)| blocks.iter().any(|block| block.live() > 0));
        let mut ids: Vec<u64> = live.map(|(&queue, _)| queue).collect();
        ids.sort_unstable();
        ids
    }

    /// The queue's blocks with live messages from this sequence on.
    pub fn blocks_from(&self, queue: u64, seq: u64) -> impl Iterator<Item = &Block> {
        let blocks = self.queues.get(&queue);
        let start = blocks.and_then(|blocks| position(blocks, seq)).unwrap_or(0);
        let blocks = blocks.into_iter().flat_map(move |blocks| blocks.range(start..));
        blocks.filter(|block| block.live() > 0)
    }

    /// Whether the message is live and its place is in that segment.
    pub fn is_in(&self, queue: u64, seq: u64, segment: u32) -> bool {
        let Some(blocks) = self.queues.get(&queue) else { return false };
        position(blocks, seq).is_some_and(|number| blocks[number].segment_of(seq) == Some(segment))
    }

    /// Rows to write and rows to remove; nothing is left to do then.
    pub fn take_dirty(&mut self) -> (Vec<BlockKey>, Vec<BlockKey>) {
        (std::mem::take(&mut self.dirty), std::mem::take(&mut self.removed))
    }

    /// Takes back what could not be written.
    pub fn put_back(&mut self, dirty: &[BlockKey], removed: &[BlockKey]) {
        self.dirty.extend_from_slice(dirty);
        self.removed.extend_from_slice(removed);
    }

    /// Number of rows that differ from the checkpoint's, at most.
    pub fn dirty_count(&self) -> usize {
        self.dirty.len() + self.removed.len()
    }

    /// Says what to do with a dirty block's row, and encodes it if it is to be written.
    ///
    /// A block that is gone by now has its row removed at once: the checkpoint that is being written must not
    /// leave one behind from before its position. (That there may be none costs little.)
    pub fn row(&mut self, (queue, first): BlockKey, out: &mut Vec<u8>) -> Row {
        let Some(blocks) = self.queues.get_mut(&queue) else { return Row::Remove };
        let Some(number) = position(blocks, first).filter(|&number| blocks[number].first == first) else {
            return Row::Remove;
        };
        let block = &mut blocks[number];
        if block.live() > 0 {
            block.dirty = false;
            block.stored = true;
            block.encode(out);
            return Row::Write;
        }
        // Kept only for the next message: time to let it go.
        blocks.remove(number);
        if blocks.is_empty() {
            self.queues.remove(&queue);
        }
        Row::Remove
    }
}

type Queues = HashMap<u64, VecDeque<Block>, BuildHasherDefault<IdHasher>>;

/// The block that covers the sequence, or would if it went further.
fn position(blocks: &VecDeque<Block>, seq: u64) -> Option<usize> {
    match blocks.back() {
        Some(back) if back.first <= seq => Some(blocks.len() - 1),
        _ => blocks.partition_point(|block| block.first <= seq).checked_sub(1),
    }
}

fn block_mut(queues: &mut Queues, queue: u64, seq: u64) -> Option<&mut Block> {
    let blocks = queues.get_mut(&queue)?;
    let number = position(blocks, seq)?;
    blocks.get_mut(number)
}

fn touch(dirty: &mut Vec<BlockKey>, queue: u64, block: &mut Block) {
    if !block.dirty {
        block.dirty = true;
        dirty.push((queue, block.first));
    }
}

fn forget(removed: &mut Vec<BlockKey>, queue: u64, block: &Block) {
    if block.stored {
        removed.push((queue, block.first));
    }
}
