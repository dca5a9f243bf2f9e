//! The large runs, which say what they measure.

use std::time::{Duration, Instant};

use super::load::{Load, Messages, Watch, cpu};
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
    // With confirms; a large window is a publisher that does not wait for them.
    let window = number("LEVERET_BACKLOG_WINDOW", 10_000);
    // In the working folder: /tmp may be memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut broker = Broker::in_folder(folder.path());
    let mut watch = Watch::on(broker.pid());
    let mut load = Load::connect(broker.address);
    load.declare("small", &[]);
    load.declare("q", &[]);
    // The speed of a queue that stays short, and of one that does not; noise is least in the processor time.
    let say = |what: &str, count: u64, took: Duration, cpu: Duration, memory: u64| {
        let (rate, cpu) = (count as f64 / took.as_secs_f64() / 1000.0, cpu.as_secs_f64() * 1e6 / count as f64);
        println!("{what}: {rate:.0} k/s, {cpu:.2} us of processor each, {} MiB", memory / MIB);
    };
    let few = Messages::new("small", 20_000, bytes as usize, persistent);
    let (mut filled, mut drained) = (Duration::ZERO, Duration::ZERO);
    let (mut fill_cpu, mut drain_cpu) = (Duration::ZERO, Duration::ZERO);
    const ROUNDS: u64 = 10;
    for _ in 0..ROUNDS {
        let before = cpu(broker.pid());
        filled += load.fill(&few, window);
        let between = cpu(broker.pid());
        drained += load.drain("small", few.count, |_, _| {}).0;
        (fill_cpu, drain_cpu) = (fill_cpu + between - before, drain_cpu + cpu(broker.pid()) - between);
    }
    let peak = watch.peak();
    say("fill a short queue", few.count * ROUNDS, filled, fill_cpu, peak);
    say("drain a short queue", few.count * ROUNDS, drained, drain_cpu, peak);
    let messages = Messages::new("q", count, bytes as usize, persistent);
    println!("{count} messages of {bytes} bytes, persistent: {persistent}");
    let before = cpu(broker.pid());
    let took = load.fill(&messages, window);
    say("fill", count, took, cpu(broker.pid()) - before, watch.peak());
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
    let before = cpu(broker.pid());
    let (took, _) = load.drain("q", left, |number, _| {
        assert_eq!(number, next);
        next += 1;
    });
    say("drain", left, took, cpu(broker.pid()) - before, watch.peak());
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
