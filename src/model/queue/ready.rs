//! Which messages of a queue are ready, and in which order they go out.
//!
//! A plain queue needs one cursor: all messages from it on are ready, those before it were handed out, and
//! the few that came back stand in a sorted set. A queue with priorities keeps the sequences of each level.
//! A quorum queue keeps what came back in the order of its return, before everything else (§8.5).

use std::collections::{BTreeSet, VecDeque};

use super::segment::Segments;

/// How a queue orders its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// First in, first out; returned messages at their old place.
    Fifo,
    /// Highest level first, first in, first out within a level; returned messages at their old place (§11.5).
    Levels(u8),
    /// First in, first out; returned messages first, in the order of their return.
    Quorum,
    /// As `Quorum`, with as many strict levels (§12.1).
    QuorumLevels(u8),
    /// As `Quorum`, with two levels, of which the high one goes out twice for each time of the other.
    QuorumTwoToOne,
}

#[derive(Debug)]
pub struct Ready {
    fresh: Fresh,
    returned: Returned,
}

/// Messages that were never handed out.
#[derive(Debug)]
enum Fresh {
    /// All from here on.
    From(u64),
    Levels(Vec<VecDeque<u64>>),
    TwoToOne {
        high: VecDeque<u64>,
        normal: VecDeque<u64>,
        high_in_a_row: u8,
    },
}

/// Messages that were handed out and came back.
#[derive(Debug)]
enum Returned {
    Sorted(BTreeSet<u64>),
    SortedByLevel(Vec<BTreeSet<u64>>),
    First(VecDeque<u64>),
}

impl Ready {
    pub fn new(order: Order) -> Self {
        let levels = |count: u8| Fresh::Levels((0..=count).map(|_| VecDeque::new()).collect());
        let (fresh, returned) = match order {
            Order::Fifo => (Fresh::From(0), Returned::Sorted(BTreeSet::new())),
            Order::Levels(max) => (levels(max), Returned::SortedByLevel((0..=max).map(|_| BTreeSet::new()).collect())),
            Order::Quorum => (Fresh::From(0), Returned::First(VecDeque::new())),
            Order::QuorumLevels(max) => (levels(max), Returned::First(VecDeque::new())),
            Order::QuorumTwoToOne => {
                let (high, normal) = (VecDeque::new(), VecDeque::new());
                (Fresh::TwoToOne { high, normal, high_in_a_row: 0 }, Returned::First(VecDeque::new()))
            }
        };
        Self { fresh, returned }
    }

    /// A new message at the end of its level.
    #[inline]
    pub fn push(&mut self, seq: u64, level: u8) {
        match &mut self.fresh {
            // Found from the cursor on.
            Fresh::From(_) => {}
            Fresh::Levels(levels) => levels[level as usize].push_back(seq),
            Fresh::TwoToOne { high, .. } if level > 0 => high.push_back(seq),
            Fresh::TwoToOne { normal, .. } => normal.push_back(seq),
        }
    }

    /// The next to go out. `None` if nothing is ready.
    #[inline]
    pub fn peek(&mut self, messages: &Segments) -> Option<u64> {
        match &self.returned {
            Returned::Sorted(returned) => {
                if let Some(&seq) = returned.first() {
                    return Some(seq);
                }
            }
            Returned::First(returned) => {
                if let Some(&seq) = returned.front() {
                    return Some(seq);
                }
            }
            Returned::SortedByLevel(returned) => {
                let Fresh::Levels(fresh) = &self.fresh else { return None };
                // All returned ones of a level were handed out before all of its fresh ones.
                return returned
                    .iter()
                    .zip(fresh)
                    .rev()
                    .find_map(|(returned, fresh)| returned.first().or(fresh.front()).copied());
            }
        }
        match &mut self.fresh {
            Fresh::From(cursor) => {
                let seq = messages.next_live(*cursor)?;
                *cursor = seq;
                Some(seq)
            }
            Fresh::Levels(levels) => levels.iter().rev().find_map(|level| level.front().copied()),
            Fresh::TwoToOne { high, normal, high_in_a_row } => {
                let (first, second) = if *high_in_a_row < 2 { (high, normal) } else { (normal, high) };
                first.front().or(second.front()).copied()
            }
        }
    }

    /// Are so many messages with sequences `first..end` ready, and never handed out? So many are live there.
    pub fn holds_all(&self, first: u64, end: u64, live: u32) -> bool {
        let within = |level: &VecDeque<u64>| {
            let below = |limit: u64| level.partition_point(|seq| *seq < limit);
            below(end) - below(first)
        };
        match &self.fresh {
            Fresh::From(cursor) => *cursor <= first,
            Fresh::Levels(levels) => levels.iter().map(within).sum::<usize>() == live as usize,
            Fresh::TwoToOne { high, normal, .. } => within(high) + within(normal) == live as usize,
        }
    }

    /// Where the fresh messages of a queue without levels begin.
    pub fn cursor(&self) -> Option<u64> {
        match &self.fresh {
            Fresh::From(cursor) => Some(*cursor),
            Fresh::Levels(_) | Fresh::TwoToOne { .. } => None,
        }
    }

    /// Is its order that of arrival, but for what came back?
    pub fn is_plain(&self) -> bool {
        matches!(self.fresh, Fresh::From(_))
    }

    /// Some of the next fresh ones of a queue with levels, in about the order in which they will go out.
    pub fn upcoming(&self, count: usize) -> Vec<u64> {
        match &self.fresh {
            Fresh::From(_) => Vec::new(),
            Fresh::Levels(levels) => levels.iter().rev().flatten().take(count).copied().collect(),
            Fresh::TwoToOne { high, normal, .. } => {
                high.iter().take(count * 2 / 3).chain(normal.iter().take(count / 3)).copied().collect()
            }
        }
    }

    /// Forgets the fresh ones that do not stay: they are settled.
    pub fn retain(&mut self, stays: impl Fn(&u64) -> bool) {
        let stays = &stays;
        match &mut self.fresh {
            Fresh::From(_) => {}
            Fresh::Levels(levels) => levels.iter_mut().for_each(|level| level.retain(stays)),
            Fresh::TwoToOne { high, normal, .. } => {
                high.retain(stays);
                normal.retain(stays);
            }
        }
    }

    /// All sequences, in the order in which they go out. Walks over all of them.
    pub fn sequences(&self, messages: &Segments) -> Vec<u64> {
        let mut all: Vec<u64> = match (&self.returned, &self.fresh) {
            (Returned::SortedByLevel(returned), Fresh::Levels(fresh)) => {
                let levels = returned.iter().zip(fresh).rev();
                return levels.flat_map(|(returned, fresh)| returned.iter().chain(fresh)).copied().collect();
            }
            (Returned::SortedByLevel(returned), _) => returned.iter().flatten().copied().collect(),
            (Returned::Sorted(returned), _) => returned.iter().copied().collect(),
            (Returned::First(returned), _) => returned.iter().copied().collect(),
        };
        match &self.fresh {
            Fresh::From(cursor) => {
                all.extend(std::iter::successors(messages.next_live(*cursor), |seq| messages.next_live(seq + 1)));
            }
            Fresh::Levels(levels) => all.extend(levels.iter().rev().flatten()),
            Fresh::TwoToOne { high, normal, high_in_a_row } => {
                let (mut high, mut normal, mut row) =
                    (high.iter().peekable(), normal.iter().peekable(), *high_in_a_row);
                while high.peek().is_some() || normal.peek().is_some() {
                    let take_high = high.peek().is_some() && (row < 2 || normal.peek().is_none());
                    row = if take_high { (row + 1).min(2) } else { 0 };
                    all.extend(if take_high { high.next() } else { normal.next() });
                }
            }
        }
        all
    }

    /// Takes a head out.
    #[inline]
    pub fn take(&mut self, seq: u64, level: u8) {
        let was_returned = match &mut self.returned {
            Returned::Sorted(returned) => !returned.is_empty() && returned.remove(&seq),
            Returned::First(returned) => {
                let first = returned.front() == Some(&seq);
                if first {
                    returned.pop_front();
                }
                first
            }
            Returned::SortedByLevel(returned) => returned[level as usize].remove(&seq),
        };
        if was_returned {
            return;
        }
        match &mut self.fresh {
            Fresh::From(cursor) => *cursor = seq + 1,
            Fresh::Levels(levels) => {
                levels[level as usize].pop_front();
            }
            Fresh::TwoToOne { high, normal, high_in_a_row } => {
                if level > 0 {
                    high.pop_front();
                    *high_in_a_row = (*high_in_a_row + 1).min(2);
                } else {
                    normal.pop_front();
                    *high_in_a_row = 0;
                }
            }
        }
    }

    /// A message that was handed out comes back.
    pub fn put_back(&mut self, seq: u64, level: u8) {
        match &mut self.returned {
            Returned::Sorted(returned) => match &mut self.fresh {
                // The newest one comes back and nothing older waits: move the cursor instead of growing the set.
                Fresh::From(cursor) if returned.is_empty() && *cursor == seq + 1 => *cursor = seq,
                _ => {
                    returned.insert(seq);
                }
            },
            Returned::First(returned) => returned.push_back(seq),
            Returned::SortedByLevel(returned) => {
                returned[level as usize].insert(seq);
            }
        }
    }
}
