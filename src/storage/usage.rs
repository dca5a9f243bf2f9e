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

impl Usage {
    fn is_dead(&self) -> bool {
        self.size > 0 && self.live == 0
    }
}

/// All segments, by number.
#[derive(Debug, Default)]
pub(super) struct Usages {
    /// Number of the first one in the list.
    base: u32,
    list: VecDeque<Usage>,
    /// Sums over all, and how many files have nothing live: every commit asks.
    size: u64,
    live_bytes: u64,
    dead: usize,
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

    /// Whether the file is there and nothing in it is live.
    pub fn is_dead(&self, segment: u32) -> bool {
        let at = segment.checked_sub(self.base);
        at.and_then(|at| self.list.get(at as usize)).is_some_and(Usage::is_dead)
    }

    /// Bytes of all files.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of all live messages.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Number of files, the tail included, in which nothing is live.
    pub fn dead(&self) -> usize {
        self.dead
    }

    pub fn set_size(&mut self, segment: u32, size: u64) {
        self.update(segment, |usage| usage.size = size);
        while self.list.front().is_some_and(|usage| usage.size == 0 && usage.live == 0) {
            self.list.pop_front();
            self.base += 1;
        }
    }

    pub fn add(&mut self, extent: &Extent) {
        self.update(extent.segment, |usage| {
            usage.live += extent.live();
            usage.live_bytes += extent.live_bytes();
        });
    }

    pub fn remove(&mut self, extent: &Extent) {
        self.update(extent.segment, |usage| {
            usage.live -= extent.live();
            usage.live_bytes -= extent.live_bytes();
        });
    }

    /// Changes an extent, which stays in its segment.
    pub fn change(&mut self, extent: &mut Extent, change: impl FnOnce(&mut Extent)) {
        let (live, bytes) = (extent.live(), extent.live_bytes());
        change(extent);
        self.update(extent.segment, |usage| {
            usage.live = usage.live + extent.live() - live;
            usage.live_bytes = usage.live_bytes + extent.live_bytes() - bytes;
        });
    }

    fn update(&mut self, segment: u32, change: impl FnOnce(&mut Usage)) {
        let usage = self.at(segment);
        let before = *usage;
        change(usage);
        let after = *usage;
        self.size = self.size + after.size - before.size;
        self.live_bytes = self.live_bytes + after.live_bytes - before.live_bytes;
        self.dead = self.dead + usize::from(after.is_dead()) - usize::from(before.is_dead());
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
