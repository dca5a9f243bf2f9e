//! Resource alarms (§3.8): what runs short, who is held up because of it, and who watches.
//!
//! Short of memory or disk, no connection that publishes is read from.
//! All others go on, so that what is there can be consumed. Short of file descriptors, no connection is accepted.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::Directory;
use super::resources;
use crate::config::{DiskFreeLimit, MemoryWatermark};

/// What runs short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    Memory,
    /// Free space where the data folder is.
    Disk,
    FileDescriptors,
}

impl Alarm {
    pub const ALL: [Self; 3] = [Self::Memory, Self::Disk, Self::FileDescriptors];

    /// As RabbitMQ's health checks name the resource.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::FileDescriptors => "file_descriptor_limit",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// What holds publishers up.
const BLOCKS_PUBLISHERS: u8 = 1 << Alarm::Memory as u8 | 1 << Alarm::Disk as u8;

/// The alarms that are on. Shared by all who raise or heed them.
#[derive(Default)]
pub struct Alarms {
    on: AtomicU8,
    directory: Arc<Directory>,
    cleared: Notify,
    /// Bytes; 0 until known.
    memory_limit: AtomicU64,
    disk_free_limit: AtomicU64,
}

impl Alarms {
    pub fn new(directory: Arc<Directory>) -> Self {
        Self { directory, ..Self::default() }
    }

    /// What runs short now.
    pub fn active(&self) -> Vec<Alarm> {
        let on = self.on.load(Ordering::Acquire);
        Alarm::ALL.into_iter().filter(|alarm| on & alarm.bit() != 0).collect()
    }

    pub fn is_on(&self, alarm: Alarm) -> bool {
        self.on.load(Ordering::Acquire) & alarm.bit() != 0
    }

    /// The memory alarm goes on above this, in bytes; 0: never.
    pub fn memory_limit(&self) -> u64 {
        self.memory_limit.load(Ordering::Relaxed)
    }

    /// The disk alarm goes on below this, in bytes; 0: never.
    pub fn disk_free_limit(&self) -> u64 {
        self.disk_free_limit.load(Ordering::Relaxed)
    }

    /// Whether publishers are to wait.
    #[inline]
    pub fn block_publishers(&self) -> bool {
        self.on.load(Ordering::Acquire) & BLOCKS_PUBLISHERS != 0
    }

    /// Why, in RabbitMQ's words (§3.8).
    pub fn reason(&self) -> &'static str {
        match (self.is_on(Alarm::Memory), self.is_on(Alarm::Disk)) {
            (true, true) => "low on memory & disk",
            (false, true) => "low on disk",
            _ => "low on memory",
        }
    }

    /// Says whether this runs short. Publishers who may go on again are told. Returns whether that is news.
    pub fn set(&self, alarm: Alarm, on: bool) -> bool {
        let before = match on {
            true => self.on.fetch_or(alarm.bit(), Ordering::AcqRel),
            false => self.on.fetch_and(!alarm.bit(), Ordering::AcqRel),
        };
        let is_new = (before & alarm.bit() != 0) != on;
        if is_new && !on {
            self.cleared.notify_waiters();
            if !self.block_publishers() {
                self.directory.shards().iter().for_each(|shard| shard.wake_all());
            }
        }
        is_new
    }

    /// Waits until this does not run short.
    pub async fn cleared(&self, alarm: Alarm) {
        loop {
            let cleared = self.cleared.notified();
            if !self.is_on(alarm) {
                return;
            }
            cleared.await;
        }
    }
}

/// How often it is looked at least. Publishers fill memory, and clients take descriptors, at no more than the rates
/// below: the nearer an alarm, the sooner the next look.
const LOOK_MAX: Duration = Duration::from_secs(1);
const LOOK_MIN: Duration = Duration::from_millis(10);
const BYTES_PER_MS: u64 = 1 << 20;
const DESCRIPTORS_PER_MS: u64 = 10;
/// Descriptors kept for the store and the log.
const DESCRIPTORS_KEPT: u64 = 32;

/// Looks after memory, disk and file descriptors.
pub struct Monitor {
    alarms: Arc<Alarms>,
    data_dir: Option<PathBuf>,
    memory_limit: u64,
    disk_free_limit: u64,
    descriptors_limit: u64,
    most: Most,
}

/// The most that was resident, and what messages held then. What they hold less since is free, though the allocator
/// has not given it back to the system: new messages go there first. Without this a drained broker could stay above
/// its limit for ever.
#[derive(Clone, Copy, Debug, Default)]
struct Most {
    resident: u64,
    held: u64,
}

impl Most {
    /// Bytes in use, of so many resident.
    fn in_use(&mut self, resident: u64, held: u64) -> u64 {
        if resident > self.resident {
            *self = Self { resident, held };
        }
        resident.saturating_sub(self.held.saturating_sub(held))
    }
}

impl Monitor {
    /// `memory_override`: what to take for the memory there is, in bytes.
    pub fn new(
        alarms: Arc<Alarms>,
        data_dir: Option<PathBuf>,
        watermark: MemoryWatermark,
        memory_override: Option<u64>,
        disk_free: DiskFreeLimit,
    ) -> Self {
        let total = memory_override.or_else(resources::memory_total).unwrap_or(0);
        let memory_limit = match watermark {
            MemoryWatermark::Relative(part) => part_of(total, part),
            // As in RabbitMQ, more than there is means all there is.
            MemoryWatermark::Absolute(bytes) if total > 0 => bytes.min(total),
            MemoryWatermark::Absolute(bytes) => bytes,
        };
        let disk_free_limit = match disk_free {
            DiskFreeLimit::Relative(part) => part_of(total, part),
            DiskFreeLimit::Absolute(bytes) => bytes,
        };
        if memory_limit == 0 {
            tracing::warn!("the memory limit is 0 or not known: there is no memory alarm");
        }
        alarms.memory_limit.store(memory_limit, Ordering::Relaxed);
        alarms.disk_free_limit.store(disk_free_limit, Ordering::Relaxed);
        let descriptors = resources::descriptors_total().unwrap_or(u64::MAX);
        let descriptors_limit = descriptors.saturating_sub(DESCRIPTORS_KEPT).max(descriptors / 2);
        Self { alarms, data_dir, memory_limit, disk_free_limit, descriptors_limit, most: Most::default() }
    }

    /// Looks again and again, for ever.
    pub async fn run(mut self) {
        loop {
            let pause = self.look();
            tokio::time::sleep(pause).await;
        }
    }

    /// One look. Returns how long the next may wait.
    pub fn look(&mut self) -> Duration {
        let mut pause_ms = LOOK_MAX.as_millis() as u64;
        if let Some(resident) = resources::memory_used().filter(|_| self.memory_limit > 0) {
            let mut used = resident;
            if resident > self.memory_limit {
                used = self.most.in_use(resident, self.alarms.directory.queue_memory());
            } else {
                self.most = Most::default();
            }
            // Clears a little lower than it is raised, or it would come and go all the time.
            let limit = match self.alarms.is_on(Alarm::Memory) {
                true => self.memory_limit / 20 * 19,
                false => self.memory_limit,
            };
            self.set(Alarm::Memory, used > limit, used, self.memory_limit);
            pause_ms = pause_ms.min(used.abs_diff(self.memory_limit) / BYTES_PER_MS);
        }
        if let Some(free) = self.data_dir.as_deref().and_then(resources::disk_free) {
            self.set(Alarm::Disk, free < self.disk_free_limit, free, self.disk_free_limit);
            pause_ms = pause_ms.min(free.abs_diff(self.disk_free_limit) / BYTES_PER_MS);
        }
        if let Some(used) = resources::descriptors_used() {
            self.set(Alarm::FileDescriptors, used > self.descriptors_limit, used, self.descriptors_limit);
            pause_ms = pause_ms.min(used.abs_diff(self.descriptors_limit) / DESCRIPTORS_PER_MS);
        }
        Duration::from_millis(pause_ms).max(LOOK_MIN)
    }

    fn set(&self, alarm: Alarm, on: bool, now: u64, limit: u64) {
        if !self.alarms.set(alarm, on) {
            return;
        }
        let resource = alarm.name();
        match (alarm, on) {
            (Alarm::FileDescriptors, true) => {
                tracing::warn!(resource, now, limit, "resource alarm: no connection is accepted until it clears");
            }
            (_, true) => tracing::warn!(resource, now, limit, "resource alarm: publishers wait until it clears"),
            (_, false) => tracing::info!(resource, now, limit, "resource alarm cleared"),
        }
    }
}

fn part_of(total: u64, part: f64) -> u64 {
    (total as f64 * part) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §3.8
    #[test]
    fn s3_8_reasons_are_in_rabbitmqs_words() {
        let alarms = Alarms::default();
        for (on, reason) in [
            (vec![Alarm::Memory], "low on memory"),
            (vec![Alarm::Disk], "low on disk"),
            (vec![Alarm::Memory, Alarm::Disk], "low on memory & disk"),
        ] {
            Alarm::ALL.into_iter().for_each(|alarm| _ = alarms.set(alarm, on.contains(&alarm)));
            assert_eq!((alarms.reason(), alarms.block_publishers()), (reason, true));
            assert_eq!(alarms.active(), on);
        }
    }

    #[test]
    fn file_descriptors_hold_up_no_publisher() {
        let alarms = Alarms::default();
        assert!(alarms.set(Alarm::FileDescriptors, true), "it is news");
        assert!(!alarms.set(Alarm::FileDescriptors, true), "it is no news");
        assert_eq!((alarms.active(), alarms.block_publishers()), (vec![Alarm::FileDescriptors], false));
    }

    #[test]
    fn watermarks_are_shares_or_bytes() {
        let limits = |watermark, disk| {
            let alarms = Arc::new(Alarms::default());
            let monitor = Monitor::new(alarms.clone(), None, watermark, Some(1000), disk);
            assert_eq!(monitor.memory_limit, alarms.memory_limit());
            (alarms.memory_limit(), alarms.disk_free_limit())
        };
        assert_eq!(limits(MemoryWatermark::Relative(0.6), DiskFreeLimit::Relative(1.5)), (600, 1500));
        assert_eq!(limits(MemoryWatermark::Absolute(700), DiskFreeLimit::Absolute(7)), (700, 7));
        assert_eq!(limits(MemoryWatermark::Absolute(7000), DiskFreeLimit::Absolute(0)).0, 1000);
    }

    #[test]
    fn what_messages_held_is_free_again() {
        let mut most = Most::default();
        assert_eq!(most.in_use(130, 100), 130);
        assert_eq!(most.in_use(131, 104), 131);
        assert_eq!(most.in_use(131, 4), 31, "the queues were drained");
        assert_eq!(most.in_use(131, 84), 111, "and are filled again, from what was free");
        assert_eq!(most.in_use(140, 84), 140, "something else grew");
    }

    #[test]
    fn a_look_raises_and_clears() {
        let alarms = Arc::new(Alarms::default());
        let folder = tempfile::tempdir().unwrap();
        let mut monitor = Monitor::new(
            alarms.clone(),
            Some(folder.path().to_owned()),
            MemoryWatermark::Absolute(1 << 12),
            None,
            DiskFreeLimit::Absolute(u64::MAX),
        );
        monitor.descriptors_limit = 1;
        monitor.look();
        assert_eq!(alarms.active(), [Alarm::Memory, Alarm::Disk, Alarm::FileDescriptors]);
        (monitor.memory_limit, monitor.disk_free_limit, monitor.descriptors_limit) = (u64::MAX, 0, u64::MAX);
        assert_eq!(monitor.look(), LOOK_MAX);
        assert_eq!(alarms.active(), []);
    }
}
