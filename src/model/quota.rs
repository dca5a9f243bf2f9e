//! Counts that vhosts and connections share, each with the most it may reach (§14.4).
//!
//! The only thing the model shares with anybody: it counts up, counts down and compares, and never waits.
//! Whoever holds a [`Permit`] or a [`Share`] gives back what it counts by dropping it, so nothing is forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many there are of something, and how many there may be.
#[derive(Debug)]
pub struct Quota {
    used: AtomicU64,
    /// `u64::MAX`: any number.
    max: AtomicU64,
}

impl Quota {
    /// `max`: `None` for any number.
    pub fn new(max: Option<u64>) -> Arc<Self> {
        Arc::new(Self { used: AtomicU64::new(0), max: AtomicU64::new(max.unwrap_or(u64::MAX)) })
    }

    /// Another quota of the same limit, that begins with what this one counts apart from these.
    pub fn without(&self, held: usize) -> Arc<Self> {
        let used = AtomicU64::new(self.used().saturating_sub(held as u64));
        Arc::new(Self { used, max: AtomicU64::new(self.max()) })
    }

    /// What is counted already stays, even if it is more.
    pub fn set_max(&self, max: Option<u64>) {
        self.max.store(max.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    /// Counts one more.
    ///
    /// # Errors
    /// The limit, which is reached.
    pub fn take(self: &Arc<Self>) -> Result<Permit, u64> {
        let max = self.max();
        let one_more = |used| (used < max).then_some(used + 1);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(Permit(self.clone())),
            Err(_) => Err(max),
        }
    }

    /// Counts one more whatever the limit; [`Self::exceeded`] tells whether that was too many.
    pub fn join(self: &Arc<Self>) -> Permit {
        self.used.fetch_add(1, Ordering::Relaxed);
        Permit(self.clone())
    }

    /// The limit, if there is no room for one more.
    pub fn reached(&self) -> Option<u64> {
        let max = self.max();
        (self.used() >= max && max != u64::MAX).then_some(max)
    }

    /// The limit, if there are more than it allows.
    pub fn exceeded(&self) -> Option<u64> {
        let max = self.max();
        (self.used() > max).then_some(max)
    }
}

/// A limit as it was set: a negative number, or none at all, is no limit.
pub fn effective(limit: Option<i64>) -> Option<u64> {
    limit.and_then(|limit| u64::try_from(limit).ok())
}

/// What is counted over all vhosts.
#[derive(Clone, Debug)]
pub struct NodeQuotas {
    pub channels: Arc<Quota>,
    pub queues: Arc<Quota>,
    pub exchanges: Arc<Quota>,
    /// Bytes of memory that full segments of messages take.
    pub message_memory: Arc<Quota>,
    /// Vhosts that share that memory.
    pub vhosts: Arc<Quota>,
}

impl Default for NodeQuotas {
    /// Any number of each.
    fn default() -> Self {
        Self {
            channels: Quota::new(None),
            queues: Quota::new(None),
            exchanges: Quota::new(None),
            message_memory: Quota::new(None),
            vhosts: Quota::new(None),
        }
    }
}

/// One that is counted; dropped, it is counted no more.
#[derive(Debug)]
pub struct Permit(Arc<Quota>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The part of a quota's count that one vhost has.
#[derive(Debug)]
pub struct Share {
    quota: Arc<Quota>,
    held: u64,
}

impl Share {
    pub fn new(quota: &Arc<Quota>) -> Self {
        Self { quota: quota.clone(), held: 0 }
    }

    /// Makes the count right: this vhost has so many now.
    #[inline]
    pub fn set(&mut self, count: usize) {
        let count = count as u64;
        if count != self.held {
            // Wraps when there are fewer now, and so comes out right.
            self.quota.used.fetch_add(count.wrapping_sub(self.held), Ordering::Relaxed);
            self.held = count;
        }
    }

    /// The limit, if no vhost may have one more. Two vhosts that ask at the same moment may both get the last one.
    pub fn reached(&self) -> Option<u64> {
        self.quota.reached()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s14_4_a_permit_counts_until_it_is_dropped() {
        let quota = Quota::new(Some(2));
        let first = quota.take().unwrap();
        let _second = quota.take().unwrap();
        assert_eq!(quota.take().unwrap_err(), 2);
        drop(first);
        assert_eq!((quota.used(), quota.reached()), (1, None));
        assert!(quota.take().is_ok());
    }

    #[test]
    fn s14_4_zero_allows_none_and_no_limit_any_number() {
        let none = Quota::new(Some(0));
        assert_eq!((none.take().unwrap_err(), none.reached(), none.exceeded()), (0, Some(0), None));
        let any = Quota::new(None);
        let permits: Vec<Permit> = (0..1000).map(|_| any.take().unwrap()).collect();
        assert_eq!((permits.len(), any.reached(), any.exceeded()), (1000, None, None));
    }

    #[test]
    fn s14_4_a_lower_limit_takes_nothing_away() {
        let quota = Quota::new(None);
        let permits = [quota.take().unwrap(), quota.take().unwrap()];
        quota.set_max(Some(1));
        assert_eq!((quota.used(), quota.exceeded(), quota.take().unwrap_err()), (2, Some(1), 1));
        drop(permits);
        assert!(quota.take().is_ok());
    }

    #[test]
    fn s3_5_who_joins_is_counted_past_the_limit() {
        let quota = Quota::new(Some(1));
        let first = quota.join();
        assert_eq!(quota.exceeded(), None);
        let second = quota.join();
        assert_eq!(quota.exceeded(), Some(1));
        drop((first, second));
        assert_eq!(quota.used(), 0);
    }

    #[test]
    fn s14_4_shares_add_up_and_go_with_their_vhost() {
        let quota = Quota::new(Some(5));
        let (mut a, mut b) = (Share::new(&quota), Share::new(&quota));
        a.set(4);
        b.set(1);
        assert_eq!((quota.used(), a.reached(), b.reached()), (5, Some(5), Some(5)));
        a.set(2);
        assert_eq!((quota.used(), b.reached()), (3, None));
        drop(a);
        assert_eq!(quota.used(), 1);
    }
}
