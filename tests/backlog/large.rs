//! The large runs, which say what they measure.

use std::time::Instant;

use super::load::{Load, Messages, Watch};
use crate::broker::{Broker, is_ours};

const MIB: u64 = 1 << 20;

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn fill_and_drain(persistent: bool) {
    if !is_ours() {
        return;
    }
    let (count, bytes) = (number("LEVERET_BACKLOG", 10_000_000), number("LEVERET_BACKLOG_BYTES", 1024));
    // In the working folder: /tmp may be memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut broker = Broker::in_folder(folder.path());
    let mut watch = Watch::on(broker.pid());
    let mut load = Load::connect(broker.address);
    load.declare("small", &[]);
    load.declare("q", &[]);
    let per_second = |count: u64, took: std::time::Duration| count as f64 / took.as_secs_f64() / 1000.0;
    // The speed of a queue that stays short.
    let few = Messages::new("small", 100_000, bytes as usize, persistent);
    let filled = load.fill(&few, 10_000);
    let (drained, _) = load.drain("small", few.count, |_, _| {});
    println!(
        "short queue: fill {:.0} k/s, drain {:.0} k/s",
        per_second(few.count, filled),
        per_second(few.count, drained)
    );
    let idle = watch.peak();
    let messages = Messages::new("q", count, bytes as usize, persistent);
    let took = load.fill(&messages, 10_000);
    println!("{count} messages of {bytes} bytes, persistent: {persistent}");
    println!("fill: {:.0} k/s, {} MiB (short queue: {} MiB)", per_second(count, took), watch.peak() / MIB, idle / MIB);
    assert_eq!(u64::from(load.ready("q")), count);
    if persistent {
        for signal in ["TERM", "KILL"] {
            broker.stop(signal);
            let since = Instant::now();
            broker = Broker::in_folder(folder.path());
            watch = Watch::on(broker.pid());
            load = Load::connect(broker.address);
            let got = load.get("small").or_else(|| load.get("q"));
            println!("first message after {signal}: {:?}, {got:?}, {} MiB", since.elapsed(), watch.peak() / MIB);
        }
    }
    let left = u64::from(load.ready("q"));
    let mut next = count - left;
    let (took, _) = load.drain("q", left, |number, _| {
        assert_eq!(number, next);
        next += 1;
    });
    let peak = watch.peak();
    println!("drain: {:.0} k/s, {} MiB", per_second(left, took), peak / MIB);
    assert_eq!(load.ready("q"), 0);
}

#[test]
#[ignore = "takes minutes and gigabytes"]
fn fill_and_drain_persistent() {
    fill_and_drain(true);
}

#[test]
#[ignore = "takes minutes and gigabytes"]
fn fill_and_drain_transient() {
    fill_and_drain(false);
}
