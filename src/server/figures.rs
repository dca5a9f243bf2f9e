//! Figures of the whole node, for metrics: read vhost by vhost and in slices, so that no client waits long.

use std::fs;

use super::Server;
use crate::model::broker::{ByKind, QueueFigures, Totals};
use crate::model::record::Name;

/// Queues that are looked at before others may have the vhost.
const SLICE: usize = 1024;

/// One vhost.
#[derive(Debug)]
pub struct VhostFigures {
    pub name: Name,
    pub totals: Totals,
    /// Counts of all queues there are or were.
    pub counts: ByKind,
    pub queues: Vec<QueueFigures>,
    /// What a newer version would treat differently: the finding, the user, the object, how often.
    pub lint: Vec<(&'static str, Name, String, u64)>,
}

/// What the operating system says of this process; 0 where it does not.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessFigures {
    pub open_files: u64,
    pub open_files_max: u64,
    pub resident_bytes: u64,
    pub disk_available_bytes: u64,
}

impl Server {
    /// Every vhost, by name.
    pub fn vhost_figures(&self) -> Vec<VhostFigures> {
        let mut shards = self.directory.shards();
        shards.sort_by(|one, other| one.name.cmp(&other.name));
        let figures = shards.iter().map(|shard| {
            let ((totals, lint), _) = shard.turn(None, |broker, _| {
                let lint = broker.lint_findings();
                let lint =
                    lint.map(|(what, user, object, count)| (what.label(), user.clone(), object.to_owned(), count));
                (broker.totals(), lint.collect())
            });
            let mut counts = totals.gone.clone();
            let mut queues = Vec::with_capacity(totals.queues);
            loop {
                let (slice, _) = shard.turn(None, |broker, _| broker.queue_figures(queues.len(), SLICE, &mut counts));
                let is_last = slice.len() < SLICE;
                queues.extend(slice);
                if is_last {
                    break;
                }
            }
            queues.sort_by(|one, other| one.name.cmp(&other.name));
            VhostFigures { name: shard.name.clone(), totals, counts, queues, lint }
        });
        figures.collect()
    }

    pub fn process_figures(&self) -> ProcessFigures {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let number = |text: &str, name: &str, column: usize| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().nth(column)?.parse::<u64>().ok()
        };
        let folder = self.config.data_dir.as_deref().unwrap_or(std::path::Path::new("/"));
        ProcessFigures {
            open_files: fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64),
            open_files_max: number(&limits, "Max open files", 0).unwrap_or_default(),
            resident_bytes: number(&status, "VmRSS:", 0).unwrap_or_default() << 10,
            disk_available_bytes: rustix::fs::statvfs(folder).map_or(0, |disk| disk.f_bavail * disk.f_frsize),
        }
    }
}
