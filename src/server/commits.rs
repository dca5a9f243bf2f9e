//! How large group commits are and how long they take, for metrics. The store's thread counts, anybody reads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Seconds, from a fast disk to one that hangs.
const SECONDS: [f64; 12] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0, 10.0];
const OPERATIONS: [f64; 8] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0];

/// Counts of the store's thread.
#[derive(Debug, Default)]
pub(super) struct Commits {
    seconds: [AtomicU64; SECONDS.len()],
    operations: [AtomicU64; OPERATIONS.len()],
    count: AtomicU64,
    microseconds: AtomicU64,
    operations_sum: AtomicU64,
    failures: AtomicU64,
    /// The last try failed.
    failing: AtomicBool,
}

/// What was counted up to now.
#[derive(Clone, Debug)]
pub struct CommitFigures {
    pub seconds: HistogramFigures,
    pub operations: HistogramFigures,
    pub failures: u64,
    /// The store cannot be written to, and is tried again.
    pub is_failing: bool,
}

/// A histogram: for each upper bound how many were at most that.
#[derive(Clone, Debug)]
pub struct HistogramFigures {
    pub buckets: Vec<(f64, u64)>,
    pub count: u64,
    pub sum: f64,
}

impl Commits {
    pub fn committed(&self, took: Duration, operations: usize) {
        count(&self.seconds, &SECONDS, took.as_secs_f64());
        count(&self.operations, &OPERATIONS, operations as f64);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.microseconds.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        self.operations_sum.fetch_add(operations as u64, Ordering::Relaxed);
        self.failing.store(false, Ordering::Relaxed);
    }

    pub fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.failing.store(true, Ordering::Relaxed);
    }

    pub fn figures(&self) -> CommitFigures {
        let count = self.count.load(Ordering::Relaxed);
        let histogram = |buckets: &[AtomicU64], bounds: &[f64], sum: f64| {
            let mut so_far = 0;
            let buckets = bounds.iter().zip(buckets).map(|(bound, bucket)| {
                so_far += bucket.load(Ordering::Relaxed);
                (*bound, so_far)
            });
            HistogramFigures { buckets: buckets.collect(), count, sum }
        };
        let seconds = self.microseconds.load(Ordering::Relaxed) as f64 / 1e6;
        CommitFigures {
            seconds: histogram(&self.seconds, &SECONDS, seconds),
            operations: histogram(&self.operations, &OPERATIONS, self.operations_sum.load(Ordering::Relaxed) as f64),
            failures: self.failures.load(Ordering::Relaxed),
            is_failing: self.failing.load(Ordering::Relaxed),
        }
    }
}

/// One more in the first bucket that it fits in; none if it is beyond all.
fn count(buckets: &[AtomicU64], bounds: &[f64], value: f64) {
    if let Some(bucket) = bounds.iter().position(|bound| value <= *bound) {
        buckets[bucket].fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_what_is_beyond_counts_in_the_total() {
        let commits = Commits::default();
        commits.committed(Duration::from_micros(100), 1);
        commits.committed(Duration::from_millis(3), 20);
        commits.committed(Duration::from_secs(20), 100_000);
        let CommitFigures { seconds, operations, .. } = commits.figures();
        assert_eq!((seconds.buckets[0], seconds.buckets[5], seconds.count), ((0.0001, 1), (0.005, 2), 3));
        assert_eq!((seconds.buckets[11].1, operations.buckets[7].1), (2, 2));
        assert!((seconds.sum - 20.0031).abs() < 1e-9 && (operations.sum - 100_021.0).abs() < 1e-9);
        commits.failed();
        assert!(commits.figures().is_failing);
        commits.committed(Duration::ZERO, 1);
        assert!(!commits.figures().is_failing && commits.figures().failures == 1);
    }
}
