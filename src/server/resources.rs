//! What the operating system gives this process, and how much of it is used.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of memory that this process has resident; `None` where the system does not say.
pub fn memory_used() -> Option<u64> {
    value_of(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:").map(|kib| kib << 10)
}

/// Bytes of memory that this process may use: the least of the machine's, of its control groups' and of its own
/// limit on data. `None` where the system does not say.
pub fn memory_total() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| value_of(&text, "MemTotal:"));
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let data = value_of(&limits, "Max data size");
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group_folders(&groups).filter_map(|folder| group_limit(&folder)).min();
    [machine.map(|kib| kib << 10), data, group].into_iter().flatten().min()
}

/// File descriptors that are open.
pub fn descriptors_used() -> Option<u64> {
    // One is the folder's own.
    fs::read_dir("/proc/self/fd").ok().map(|entries| (entries.count() as u64).saturating_sub(1))
}

/// File descriptors that may be open at once.
pub fn descriptors_total() -> Option<u64> {
    value_of(&fs::read_to_string("/proc/self/limits").ok()?, "Max open files")
}

/// Bytes that we may still write into this folder.
pub fn disk_free(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// The number after `name` in a text of lines; `None` also for `unlimited`.
fn value_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Our control group of version 2 and those round it, of which each may have a limit.
fn group_folders(groups: &str) -> impl Iterator<Item = PathBuf> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let own = own.map(|path| Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/')));
    let folders: Vec<PathBuf> = own.iter().flat_map(|path| path.ancestors()).map(Path::to_owned).collect();
    folders.into_iter().take_while(|path| path.starts_with("/sys/fs/cgroup"))
}

fn group_limit(folder: &Path) -> Option<u64> {
    // `max` is no limit, and no number. Beyond `high` the system slows the process down: as good as a limit.
    let read = |name| fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok();
    [read("memory.max"), read("memory.high")].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_says_what_we_use() {
        let (used, total) = (memory_used().unwrap(), memory_total().unwrap());
        assert!(1 << 20 < used && used < total, "{used} of {total}");
        let (used, total) = (descriptors_used().unwrap(), descriptors_total().unwrap());
        assert!(3 <= used && used < total, "{used} of {total}");
        assert!(disk_free(Path::new("/")).is_some());
        assert_eq!(disk_free(Path::new("/no/such/folder")), None);
    }

    #[test]
    fn values_are_found_by_name() {
        let limits = "Max data size             unlimited            unlimited            bytes\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(value_of(limits, "Max open files"), Some(1024));
        assert_eq!(value_of(limits, "Max data size"), None);
        assert_eq!(value_of(limits, "Max nothing"), None);
    }

    #[test]
    fn the_limit_of_any_group_round_us_counts() {
        let folders: Vec<_> = group_folders("1:name=x:/y\n0::/a/b\n").collect();
        assert_eq!(folders, ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"].map(PathBuf::from));
        assert_eq!(group_folders("").count(), 0);
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(group_limit(folder.path()), None);
        fs::write(folder.path().join("memory.max"), "max\n").unwrap();
        assert_eq!(group_limit(folder.path()), None);
        fs::write(folder.path().join("memory.max"), "209715200\n").unwrap();
        fs::write(folder.path().join("memory.high"), "104857600\n").unwrap();
        assert_eq!(group_limit(folder.path()), Some(100 << 20));
    }
}
