//! What a simulation's shell does for messages that are away: late, and sometimes not at all.

use std::collections::{BTreeMap, VecDeque};

use leveret::model::broker::Broker;
use leveret::model::ids::Holder;
use leveret::model::queue::message::Record;
use leveret::model::queue::page::{Image, PageAnswer, PageOp, PagePlace};
use leveret::model::record::Recovered;
use leveret::model::timer::Millis;
use leveret::storage::Store;

use super::sim_script::body_name;

/// What a message that is away would show: the name in its body, and its level.
pub type Seen = (String, u8);

#[derive(Default)]
pub struct SimPager {
    todo: VecDeque<PageOp>,
    log: BTreeMap<u32, Image>,
    places: u32,
    /// The next page is not written.
    fail: bool,
    /// Messages that were in memory when they left.
    seen: BTreeMap<(Holder, u64), Seen>,
    /// Pages that came back, over all.
    pub loaded: u64,
}

impl SimPager {
    pub fn is_idle(&self) -> bool {
        self.todo.is_empty()
    }

    pub fn fail_next(&mut self) {
        self.fail = true;
    }

    /// The broker may have asked for something.
    pub fn take(&mut self, broker: &mut Broker) {
        for op in broker.take_page_ops() {
            if let PageOp::Write { page, image } = &op {
                for (at, start) in image.entries.iter().enumerate().filter(|(_, start)| **start != u32::MAX) {
                    let record = Record::parse(&image.bytes[*start as usize..]).expect("a record");
                    let body = match record.body_index {
                        Some(index) => &image.bodies[index as usize],
                        None => record.inline_body,
                    };
                    self.seen.insert((page.holder, page.base + at as u64), (body_name(body), record.priority));
                }
            }
            self.todo.push_back(op);
        }
    }

    /// What the message looked like that is away now.
    pub fn seen(&self, holder: Holder, seq: u64) -> Option<&Seen> {
        self.seen.get(&(holder, seq))
    }

    /// Does the first thing that was asked for. True if there was any.
    pub fn step(&mut self, broker: &mut Broker, store: &mut impl Store, now: Millis) -> bool {
        let Some(op) = self.todo.pop_front() else { return false };
        let answer = match op {
            PageOp::Write { page, image } => {
                let place = if std::mem::take(&mut self.fail) { None } else { Some(self.keep(&image)) };
                PageAnswer::Written { page, image, place }
            }
            PageOp::ReadLog { page, place } => {
                self.loaded += 1;
                PageAnswer::Read { page, image: copy(&self.log[&place.file]) }
            }
            PageOp::ReadStore { page, queue, first, last } => {
                self.loaded += 1;
                let mut image = Image::default();
                let read = store.read_range(queue, first, last, &mut |item| {
                    let Recovered::Message { seq, record, body, delivered, .. } = item else { return };
                    assert!(image.add(page.base, seq, &record, body, delivered), "message {seq} is sound");
                });
                read.expect("the store in memory can be read");
                PageAnswer::Read { page, image }
            }
            PageOp::Free(place) => {
                assert!(self.log.remove(&place.file).is_some(), "freed twice");
                return true;
            }
        };
        broker.paged(vec![answer], now);
        true
    }

    fn keep(&mut self, image: &Image) -> PagePlace {
        self.places += 1;
        self.log.insert(self.places, copy(image));
        PagePlace { file: self.places, offset: 0, len: 0 }
    }

    /// Pages in the log.
    pub fn kept(&self) -> usize {
        self.log.len()
    }
}

fn copy(image: &Image) -> Image {
    let Image { entries, bytes, bodies, delivered } = image;
    Image { entries: entries.clone(), bytes: bytes.clone(), bodies: bodies.clone(), delivered: delivered.clone() }
}
