//! Does for the brokers what they ask for messages that memory has no room for: writes them to the paging log,
//! reads them back from there or from the store. Runs in the store's thread, between two commits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Directory;
use super::shard::Shard;
use crate::model::queue::page::{Image, PageAnswer, PageKey, PageOp, PagePlace};
use crate::model::record::Recovered;
use crate::storage::paging::PageLog;
use crate::storage::{Store, StoreError};

/// What the system refuses to read is tried again after so long: until then its queue waits.
const RETRY: Duration = Duration::from_secs(1);
/// Pages that are read from the store at once: neighbours share what has to be read.
const TOGETHER_MAX: usize = 16;
/// Bytes read before the broker is given what there is, so that consumers go on meanwhile.
const ANSWER_BYTES: usize = 1 << 20;

/// See the file's head.
pub struct Pager {
    log: PageLog,
    /// What could not be read.
    again: Vec<(Arc<Shard>, PageOp)>,
    retry_at: Instant,
    answer_bytes: usize,
}

impl Pager {
    pub fn new(log: PageLog) -> Self {
        Self { log, again: Vec::new(), retry_at: Instant::now(), answer_bytes: 0 }
    }

    /// Is there something to be tried again now?
    pub fn is_waiting(&self) -> bool {
        !self.again.is_empty() && Instant::now() >= self.retry_at
    }

    /// Does what all vhosts ask for.
    pub fn serve(&mut self, store: &mut dyn Store, directory: &Directory) {
        if self.is_waiting() {
            for (shard, op) in std::mem::take(&mut self.again) {
                self.perform(store, &shard, vec![op]);
            }
        }
        for shard in directory.shards() {
            let ops = shard.take_page_ops();
            if !ops.is_empty() {
                self.perform(store, &shard, ops);
            }
        }
    }

    fn perform(&mut self, store: &mut dyn Store, shard: &Arc<Shard>, ops: Vec<PageOp>) {
        let mut answers = Vec::new();
        let mut ops = ops.into_iter().peekable();
        while let Some(op) = ops.next() {
            match op {
                PageOp::Write { page, image } => {
                    let place = self.write(&image);
                    answers.push(PageAnswer::Written { page, image, place });
                }
                PageOp::ReadLog { page, place } => match self.log.read(place) {
                    Ok(image) => self.answer(&mut answers, page, image),
                    Err(error) if is_lasting(&error) => {
                        tracing::error!(%error, vhost = %shard.name, "messages that memory had no room for are lost");
                        self.answer(&mut answers, page, Image::default());
                    }
                    Err(error) => self.try_again(shard, &error, vec![op]),
                },
                PageOp::Free(place) => self.log.free(place),
                PageOp::ReadStore { queue, last, .. } => {
                    let (mut end, mut pages) = (last, vec![op]);
                    let follows = |op: &PageOp, end: u64| matches!(op, PageOp::ReadStore { queue: of, first, .. } if *of == queue && *first == end + 1);
                    while pages.len() < TOGETHER_MAX
                        && let Some(next) = ops.next_if(|op| follows(op, end))
                    {
                        if let PageOp::ReadStore { last, .. } = next {
                            end = last;
                        }
                        pages.push(next);
                    }
                    self.read_store(store, shard, pages, &mut answers);
                }
            }
            if self.answer_bytes >= ANSWER_BYTES {
                self.answer_bytes = 0;
                shard.paged(std::mem::take(&mut answers));
            }
        }
        self.answer_bytes = 0;
        if !answers.is_empty() {
            shard.paged(answers);
        }
    }

    fn write(&mut self, image: &Image) -> Option<PagePlace> {
        match self.log.write(image) {
            Ok(place) => Some(place),
            Err(error) => {
                tracing::error!(%error, "messages that memory has no room for stay in it");
                None
            }
        }
    }

    /// Reads neighbouring pages of one queue.
    fn read_store(
        &mut self,
        store: &mut dyn Store,
        shard: &Arc<Shard>,
        pages: Vec<PageOp>,
        answers: &mut Vec<PageAnswer>,
    ) {
        let mut images: BTreeMap<u64, (PageKey, Image)> = BTreeMap::new();
        let (mut queue_id, mut end) = (0, 0);
        for page in &pages {
            if let PageOp::ReadStore { page, queue, first, last } = page {
                images.insert(*first, (*page, Image::default()));
                (queue_id, end) = (*queue, *last);
            }
        }
        let Some((&start, _)) = images.first_key_value() else { return };
        let result = store.read_range(queue_id, start, end, &mut |item| {
            let Recovered::Message { seq, record, body, delivered, .. } = item else { return };
            if let Some((base, (_, image))) = images.range_mut(..=seq).next_back()
                && !image.add(*base, seq, &record, body, delivered)
            {
                tracing::error!(queue = queue_id, seq, "a stored message is no message");
            }
        });
        match result {
            Ok(()) => {}
            Err(error) if is_lasting(&error) => {
                tracing::error!(%error, vhost = %shard.name, "stored messages cannot be read");
            }
            Err(error) => return self.try_again(shard, &error, pages),
        }
        for (page, image) in images.into_values() {
            self.answer(answers, page, image);
        }
    }

    fn answer(&mut self, answers: &mut Vec<PageAnswer>, page: PageKey, image: Image) {
        self.answer_bytes += image.len();
        answers.push(PageAnswer::Read { page, image });
    }

    fn try_again(&mut self, shard: &Arc<Shard>, error: &StoreError, ops: Vec<PageOp>) {
        tracing::error!(%error, vhost = %shard.name, retry_in_s = RETRY.as_secs(), "messages cannot be read back; their queue waits");
        self.retry_at = Instant::now() + RETRY;
        self.again.extend(ops.into_iter().map(|op| (shard.clone(), op)));
    }
}

/// Will it never be readable? A file that is gone does not come back.
fn is_lasting(error: &StoreError) -> bool {
    match error {
        StoreError::Damaged { .. } => true,
        StoreError::Io { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
        _ => false,
    }
}
