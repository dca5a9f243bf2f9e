//! What a worker thread has counted and timed, read by the reporter while it runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use hdrhistogram::Histogram;

/// The longest latency that is told from longer ones, in nanoseconds: an hour.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;
/// A stamp older than this is no stamp of ours, in nanoseconds: a day.
const STAMP_AGE_MAX_NS: u64 = 24 * LATENCY_MAX_NS;

/// Counts since the start. One writer each, so that adding is cheap.
#[derive(Debug, Default)]
pub struct Tally {
    pub published: AtomicU64,
    pub confirmed: AtomicU64,
    /// Refused by the broker.
    pub nacked: AtomicU64,
    /// Mandatory ones that no queue took.
    pub returned: AtomicU64,
    pub received: AtomicU64,
    /// Calls answered, connections or channels opened, queues declared.
    pub operations: AtomicU64,
    /// From sending to receiving; of the other modes, the time of an operation.
    pub latency: Latency,
    pub confirm_latency: Latency,
}

/// Adds to a counter of which this thread is the only writer.
pub fn add(counter: &AtomicU64, number: u64) {
    counter.store(counter.load(Ordering::Relaxed) + number, Ordering::Relaxed);
}

/// The sums over all threads at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub published: u64,
    pub confirmed: u64,
    pub nacked: u64,
    pub returned: u64,
    pub received: u64,
    pub operations: u64,
}

impl Counts {
    pub fn of(tallies: &[Arc<Tally>]) -> Self {
        let mut sum = Self::default();
        for tally in tallies {
            let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            sum.published += get(&tally.published);
            sum.confirmed += get(&tally.confirmed);
            sum.nacked += get(&tally.nacked);
            sum.returned += get(&tally.returned);
            sum.received += get(&tally.received);
            sum.operations += get(&tally.operations);
        }
        sum
    }

    /// What has been added.
    pub fn since(self, before: Self) -> Self {
        Self {
            published: self.published - before.published,
            confirmed: self.confirmed - before.confirmed,
            nacked: self.nacked - before.nacked,
            returned: self.returned - before.returned,
            received: self.received - before.received,
            operations: self.operations - before.operations,
        }
    }
}

/// Times that were recorded and not been fetched by the reporter yet.
#[derive(Debug)]
pub struct Latency(Mutex<Histogram<u64>>);

impl Default for Latency {
    fn default() -> Self {
        Self(Mutex::new(histogram()))
    }
}

impl Latency {
    /// Records many at once: the lock is taken when the first comes.
    pub fn record_all(&self, record: impl FnOnce(&mut Runs<'_>)) {
        let mut histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut runs = Runs { histogram: &mut histogram, value: 0, count: 0 };
        record(&mut runs);
        runs.end();
    }

    pub fn record(&self, elapsed_ns: u64) {
        self.record_all(|runs| runs.add(elapsed_ns));
    }

    /// Moves what there is into `sum`.
    pub fn fetch(&self, sum: &mut Histogram<u64>) {
        let mut histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sum.add(&*histogram).expect("all histograms have the same bounds");
        histogram.reset();
    }
}

/// Equal values in a row are recorded as one: messages of one write have one time.
#[derive(Debug)]
pub struct Runs<'a> {
    histogram: &'a mut Histogram<u64>,
    value: u64,
    count: u64,
}

impl Runs<'_> {
    #[inline]
    pub fn add(&mut self, elapsed_ns: u64) {
        if elapsed_ns != self.value {
            self.end();
            self.value = elapsed_ns;
        }
        self.count += 1;
    }

    /// A message's stamp, read at `now_ns`. What cannot be a time of ours is left out.
    #[inline]
    pub fn add_stamp(&mut self, stamp: [u8; 8], now_ns: u64) {
        let sent_ns = u64::from_be_bytes(stamp);
        // Another process' clock may be a little ahead.
        if sent_ns < now_ns + STAMP_AGE_MAX_NS && now_ns.saturating_sub(sent_ns) < STAMP_AGE_MAX_NS {
            self.add(now_ns.saturating_sub(sent_ns));
        }
    }

    fn end(&mut self) {
        if self.count > 0 {
            self.histogram.saturating_record_n(self.value, self.count);
            self.count = 0;
        }
    }
}

/// An empty one, in nanoseconds, three digits exact.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("the bounds are valid")
}

/// Nanoseconds since 1970 that never go back: comparable between processes of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    start_ns: u64,
}

impl Clock {
    pub fn start() -> Self {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), start_ns: since_1970.as_nanos() as u64 }
    }

    pub fn now_ns(&self) -> u64 {
        self.start_ns + self.start.elapsed().as_nanos() as u64
    }

    /// The moment that `now_ns` gives as this number.
    pub fn instant(&self, time_ns: u64) -> Instant {
        self.start + std::time::Duration::from_nanos(time_ns.saturating_sub(self.start_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_count_every_value() {
        let latency = Latency::default();
        latency.record_all(|runs| {
            let now = 1_000_000_000_000_000_000;
            for sent in [now - 5000, now - 5000, now - 7000] {
                runs.add_stamp(u64::to_be_bytes(sent), now);
            }
            runs.add_stamp(*b"........", now);
            runs.add_stamp([0; 8], now);
        });
        let mut sum = histogram();
        latency.fetch(&mut sum);
        latency.fetch(&mut sum);
        assert_eq!((sum.len(), sum.count_at(5000), sum.count_at(7000)), (3, 2, 1));
    }
}
