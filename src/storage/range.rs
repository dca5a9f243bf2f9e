//! Reads a part of a queue while the broker runs: what memory had no room for.
//! Whatever of it can be read is given, also if something there is damaged.

use crate::model::record::{Recovered, StoredBlock};

use super::StoreError;
use super::durable::SledStore;

impl SledStore {
    /// See [`Store::read_range`](super::Store::read_range).
    pub(super) fn read_live(
        &mut self,
        queue: u64,
        first: u64,
        last: u64,
        sink: &mut dyn FnMut(Recovered),
    ) -> Result<(), StoreError> {
        let mut failure = None;
        let mut found = Vec::new();
        for block in self.index.blocks_from(queue, first).take_while(|block| block.first <= last) {
            for (number, extent) in block.extents().iter().enumerate() {
                let (from, to) = block.owned(number);
                if to < first || from > last {
                    continue;
                }
                let chunks = match self.reader.chunk(extent.segment, extent.offset, extent.span) {
                    Ok(chunk) => vec![chunk],
                    Err(error @ StoreError::Damaged { .. }) => {
                        failure.get_or_insert(error);
                        self.reader.salvage(extent.segment, extent.offset, extent.span)?
                    }
                    Err(error) => return Err(error),
                };
                for chunk in chunks {
                    self.reader.messages(&chunk, Some(queue), &mut |message| {
                        let wanted = message.seq >= from.max(first) && message.seq <= to.min(last);
                        if wanted && block.is_live(message.seq) {
                            found.push(message);
                        }
                    })?;
                    for message in found.drain(..) {
                        let body = match message.body.map(|at| self.reader.body(&chunk, at)).transpose() {
                            Ok(body) => body,
                            Err(error @ StoreError::Damaged { .. }) => {
                                failure.get_or_insert(error);
                                continue;
                            }
                            Err(error) => return Err(error),
                        };
                        let delivered = block.delivered(message.seq);
                        sink(Recovered::Message { queue, seq: message.seq, record: message.record, body, delivered });
                    }
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Gives what the index knows of every live message, queue by queue.
    pub(super) fn give_blocks(&self, sink: &mut dyn FnMut(StoredBlock)) -> u64 {
        let mut messages = 0;
        for queue in self.index.queue_ids() {
            for block in self.index.blocks_from(queue, 0) {
                for (number, extent) in block.extents().iter().enumerate() {
                    let (from, to) = block.owned(number);
                    let live = extent.live();
                    messages += live;
                    let Some((first, last)) = block.live_ends(from, to) else { continue };
                    let is_live = |seq| block.is_live(seq);
                    sink(StoredBlock::new(queue, first, last, live as u32, extent.live_bytes(), is_live));
                }
            }
        }
        messages
    }
}
