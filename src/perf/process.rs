//! What a process has cost so far, from Linux' `/proc`.

use std::fs;

/// Jiffies a second in `/proc/PID/stat`: 100 on every Linux that user space sees.
const TICKS_PER_S: f64 = 100.0;

/// CPU time and memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// User and system time of all its threads.
    pub cpu_s: f64,
    pub resident_kib: u64,
    /// The most it ever was.
    pub resident_peak_kib: u64,
}

impl Usage {
    /// Of a process of this machine; `None` if there is none of that number, or no `/proc`.
    pub fn of(pid: u32) -> Option<Self> {
        Self::parse(
            &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?,
            &fs::read_to_string(format!("/proc/{pid}/status")).ok()?,
        )
    }

    fn parse(stat: &str, status: &str) -> Option<Self> {
        // The name may hold anything, also spaces and parentheses.
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
        let kib = |name: &str| -> Option<u64> {
            status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
        };
        Some(Self {
            cpu_s: (ticks(11)? + ticks(12)?) / TICKS_PER_S,
            resident_kib: kib("VmRSS:")?,
            resident_peak_kib: kib("VmHWM:")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 1 0 1 1 1";
        let status = "Name:\tx\nVmHWM:\t  300 kB\nVmRSS:\t  200 kB\n";
        let usage = Usage { cpu_s: 2.0, resident_kib: 200, resident_peak_kib: 300 };
        assert_eq!(Usage::parse(stat, status), Some(usage));
    }

    #[test]
    fn this_process_uses_memory() {
        assert!(Usage::of(std::process::id()).unwrap().resident_kib > 100);
    }
}
