//! How much of each log segment is still needed.
//!
//! Invariant: a segment's `live` is the exact number of live messages in it, so 0 means that nothing points
//! there; `live_bytes` is the sum of the extents' estimates, a body shared by several messages counted once
//! for each, so it is never too low by more than rounding.

use std::collections::VecDeque;

use super::block::Extent;

/// One segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Length of the file in bytes; 0 if there is no such segment.
    pub size: u64,
    pub live: u64,
    pub live_bytes: u64,
}

/// All segments, by number.
#[derive(Debug, Default)]
pub(super) struct Usages {
    /// Number of the first one in the list.
    base: u32,
    list: VecDeque<Usage>,
}

impl Usages {
    /// The segments whose file exists, lowest number first.
    pub fn files(&self) -> impl Iterator<Item = (u32, Usage)> {
        self.all().filter(|(_, usage)| usage.size > 0)
    }

    /// Every segment that has a file or live messages.
    pub fn all(&self) -> impl Iterator<Item = (u32, Usage)> {
        (self.base..).zip(self.list.iter().copied()).filter(|(_, usage)| usage.size > 0 || usage.live > 0)
    }

    pub fn set_size(&mut self, segment: u32, size: u64) {
        self.at(segment).size = size;
        while self.list.front().is_some_and(|usage| usage.size == 0 && usage.live == 0) {
            self.list.pop_front();
            self.base += 1;
        }
    }

    pub fn add(&mut self, extent: &Extent) {
        let usage = self.at(extent.segment);
        usage.live += extent.live();
        usage.live_bytes += extent.live_bytes();
    }

    pub fn remove(&mut self, extent: &Extent) {
        let usage = self.at(extent.segment);
        usage.live -= extent.live();
        usage.live_bytes -= extent.live_bytes();
    }

    /// Changes an extent, which stays in its segment.
    pub fn change(&mut self, extent: &mut Extent, change: impl FnOnce(&mut Extent)) {
        let (live, bytes) = (extent.live(), extent.live_bytes());
        change(extent);
        let usage = self.at(extent.segment);
        usage.live = usage.live + extent.live() - live;
        usage.live_bytes = usage.live_bytes + extent.live_bytes() - bytes;
    }

    fn at(&mut self, segment: u32) -> &mut Usage {
        if self.list.is_empty() {
            self.base = segment;
        }
        while segment < self.base {
            self.list.push_front(Usage::default());
            self.base -= 1;
        }
        let at = (segment - self.base) as usize;
        if self.list.len() <= at {
            self.list.resize(at + 1, Usage::default());
        }
        &mut self.list[at]
    }
}
