//! Which messages of a queue are ready, and in which order they go out.
//!
//! A plain queue needs one cursor: all messages from it on are ready, those before it were handed out, and
//! the few that came back stand in a sorted set. A priority queue keeps the sequences of each level.

use std::collections::{BTreeSet, VecDeque};

use super::segment::Segments;

#[derive(Debug)]
pub enum Ready {
    /// First in, first out; returned messages at their old place (classic queues).
    Fifo { cursor: u64, returned: BTreeSet<u64> },
    /// First in, first out; returned messages in the order of their return, before all others (quorum queues, §8.5).
    ReturnedFirst { cursor: u64, returned: VecDeque<u64> },
    /// One lane per priority, the highest level goes out first (§11.5).
    Lanes(Vec<Lane>),
}

/// The ready messages of one priority.
#[derive(Debug, Default)]
pub struct Lane {
    fresh: VecDeque<u64>,
    returned: BTreeSet<u64>,
}

impl Lane {
    fn head(&self) -> Option<u64> {
        // All returned ones were handed out before all fresh ones of the lane.
        self.returned.first().or(self.fresh.front()).copied()
    }
}

impl Ready {
    pub fn new(max_priority: Option<u8>, returned_first: bool) -> Self {
        match max_priority {
            Some(max) => Self::Lanes((0..=max).map(|_| Lane::default()).collect()),
            None if returned_first => Self::ReturnedFirst { cursor: 0, returned: VecDeque::new() },
            None => Self::Fifo { cursor: 0, returned: BTreeSet::new() },
        }
    }

    /// A new message at the end.
    #[inline]
    pub fn push(&mut self, seq: u64, priority: u8) {
        // Plain queues find it from the cursor on.
        if let Self::Lanes(lanes) = self {
            lanes[priority as usize].fresh.push_back(seq);
        }
    }

    /// The next to go out. `None` if nothing is ready.
    #[inline]
    pub fn peek(&mut self, messages: &Segments) -> Option<u64> {
        match self {
            Self::Fifo { cursor, returned } => match returned.first() {
                Some(&seq) => Some(seq),
                None => live_from(cursor, messages),
            },
            Self::ReturnedFirst { cursor, returned } => match returned.front() {
                Some(&seq) => Some(seq),
                None => live_from(cursor, messages),
            },
            Self::Lanes(lanes) => lanes.iter().rev().find_map(Lane::head),
        }
    }

    /// The head of each level: of all the places where an expiry is noticed.
    pub fn heads(&mut self, messages: &Segments) -> Vec<u64> {
        match self {
            Self::Lanes(lanes) => lanes.iter().filter_map(Lane::head).collect(),
            _ => self.peek(messages).into_iter().collect(),
        }
    }

    /// Every ready sequence, in the order in which they go out. For looking at a queue, not for serving it.
    pub fn sequences(&self, messages: &Segments) -> Vec<u64> {
        let from = |cursor: u64| {
            std::iter::successors(messages.next_live(cursor), |seq| messages.next_live(seq + 1))
        };
        match self {
            Self::Fifo { cursor, returned } => returned.iter().copied().chain(from(*cursor)).collect(),
            Self::ReturnedFirst { cursor, returned } => returned.iter().copied().chain(from(*cursor)).collect(),
            Self::Lanes(lanes) => {
                let lanes = lanes.iter().rev();
                lanes.flat_map(|lane| lane.returned.iter().chain(&lane.fresh)).copied().collect()
            }
        }
    }

    /// Takes a head out.
    #[inline]
    pub fn take(&mut self, seq: u64, priority: u8) {
        match self {
            Self::Fifo { cursor, returned } => {
                if returned.is_empty() || !returned.remove(&seq) {
                    *cursor = seq + 1;
                }
            }
            Self::ReturnedFirst { cursor, returned } => {
                if returned.front() == Some(&seq) {
                    returned.pop_front();
                } else {
                    *cursor = seq + 1;
                }
            }
            Self::Lanes(lanes) => {
                let lane = &mut lanes[priority as usize];
                if !lane.returned.remove(&seq) {
                    lane.fresh.pop_front();
                }
            }
        }
    }

    /// A message that was handed out comes back.
    pub fn put_back(&mut self, seq: u64, priority: u8) {
        match self {
            Self::Fifo { cursor, returned } => {
                // The newest one comes back and nothing older waits: move the cursor instead of growing the set.
                if returned.is_empty() && *cursor == seq + 1 {
                    *cursor = seq;
                } else {
                    returned.insert(seq);
                }
            }
            Self::ReturnedFirst { returned, .. } => returned.push_back(seq),
            Self::Lanes(lanes) => {
                lanes[priority as usize].returned.insert(seq);
            }
        }
    }
}

#[inline]
fn live_from(cursor: &mut u64, messages: &Segments) -> Option<u64> {
    let seq = messages.next_live(*cursor)?;
    *cursor = seq;
    Some(seq)
}
