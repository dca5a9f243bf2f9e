//! The small runs: a budget that is tiny against what waits.

use std::ffi::OsString;
use std::path::Path;

use leveret_protocol::{FieldTable, FieldValue, Properties};

use super::load::{Load, Messages, Watch, resident};
use crate::broker::{Broker, is_ours};

const MIB: u64 = 1 << 20;
/// Messages of 1 KiB.
const COUNT: u64 = 60_000;
/// Publishes on their way at once.
const WINDOW: u64 = 500;
/// What they may take on top of an idle broker: the budget, what waits for its commit, and buffers.
const MEMORY_MAX: u64 = 30 * MIB;

fn start(folder: &Path) -> Broker {
    let arguments: [OsString; 6] =
        ["--data-dir".into(), folder.into(), "--queue-memory".into(), "2MiB".into(), "--fsync".into(), "never".into()];
    Broker::start(arguments)
}

fn assert_little(idle: u64, peak: u64) {
    println!("{} MiB of memory, {} MiB of them when idle", peak / MIB, idle / MIB);
    assert!(peak < idle + MEMORY_MAX, "{} MiB of memory, {} MiB of them when idle", peak / MIB, idle / MIB);
}

/// Fills, drains, and looks at the memory.
fn fill_and_drain(arguments: &[(&str, FieldValue)], messages: &Messages) {
    let folder = tempfile::tempdir().unwrap();
    let broker = start(folder.path());
    let watch = Watch::on(broker.pid());
    let mut load = Load::connect(broker.address);
    load.declare(messages.key, arguments);
    let idle = watch.peak();
    // What is on its way is in memory as well.
    let few = (1024.0 / messages.bytes as f64).min(1.0);
    load.prefetch = (f64::from(load.prefetch) * few) as u16;
    load.fill(messages, (WINDOW as f64 * few) as u64);
    let filled = watch.peak();
    assert_eq!(u64::from(load.ready(messages.key)), messages.count);
    let mut next = 0;
    load.drain(messages.key, messages.count, |number, redelivered| {
        assert_eq!((number, redelivered), (next, false));
        next += 1;
    });
    assert_eq!(load.ready(messages.key), if messages.key == "stream" { COUNT as u32 } else { 0 });
    let peak = watch.peak();
    assert_little(idle, peak.max(filled));
}

#[test]
fn a_long_queue_of_persistent_messages_takes_little_memory() {
    if is_ours() {
        fill_and_drain(&[], &Messages::new("q", COUNT, 1024, true));
    }
}

#[test]
fn a_long_queue_of_transient_messages_takes_little_memory() {
    if is_ours() {
        fill_and_drain(&[], &Messages::new("q", COUNT, 1024, false));
    }
}

#[test]
fn a_long_stream_takes_little_memory() {
    if is_ours() {
        fill_and_drain(&[("x-queue-type", "stream".into())], &Messages::new("stream", COUNT, 1024, true));
    }
}

#[test]
fn a_long_quorum_queue_takes_little_memory() {
    if is_ours() {
        fill_and_drain(&[("x-queue-type", "quorum".into())], &Messages::new("q", COUNT, 1024, false));
    }
}

#[test]
fn large_bodies_take_little_memory() {
    if is_ours() {
        fill_and_drain(&[], &Messages::new("q", COUNT / 20, 20 << 10, true));
    }
}

/// §11.5: highest first, in order within a level, though every segment has messages of all levels.
#[test]
fn a_long_priority_queue_keeps_its_order() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let broker = start(folder.path());
    let watch = Watch::on(broker.pid());
    let mut load = Load::connect(broker.address);
    load.declare("q", &[("x-max-priority", FieldValue::I32(3))]);
    let idle = watch.peak();
    let level = |number: u64| (number * 7 % 4) as u8;
    let properties = |number: u64| Properties { priority: Some((number * 7 % 4) as u8), ..Properties::default() };
    let messages = Messages { properties, ..Messages::new("q", COUNT, 1024, true) };
    load.fill(&messages, WINDOW);
    let mut got = Vec::new();
    load.drain("q", COUNT, |number, _| got.push(number));
    let mut expected: Vec<u64> = (0..COUNT).collect();
    expected.sort_by_key(|number| std::cmp::Reverse(level(*number)));
    assert!(got == expected, "another order");
    let peak = watch.peak();
    assert_little(idle, peak);
}

/// §7: messages that wait in an exchange go to the disk, and come when they are due.
#[test]
fn a_long_wait_in_an_exchange_takes_little_memory() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let broker = start(folder.path());
    let watch = Watch::on(broker.pid());
    let mut load = Load::connect(broker.address);
    load.declare_delayed("d", "q");
    let idle = watch.peak();
    let properties = |_| Properties {
        headers: Some(FieldTable::from_iter([("x-delay", FieldValue::I32(3000))])),
        ..Properties::default()
    };
    let messages = Messages { exchange: "d", properties, ..Messages::new("q", COUNT, 1024, true) };
    load.fill(&messages, WINDOW);
    let mut next = 0;
    load.drain("q", COUNT, |number, _| {
        assert_eq!(number, next);
        next += 1;
    });
    let peak = watch.peak();
    assert_little(idle, peak);
}

/// §11.2: what expires on disk goes, and what is got from there comes in order.
#[test]
fn messages_on_disk_expire_and_are_purged_and_got() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let broker = start(folder.path());
    let mut load = Load::connect(broker.address);
    load.declare("ttl", &[("x-message-ttl", FieldValue::I32(4000))]);
    load.declare("q", &[]);
    load.fill(&Messages::new("q", 20_000, 1024, true), WINDOW);
    load.fill(&Messages::new("ttl", 20_000, 1024, false), WINDOW);
    for number in 0..5000 {
        assert_eq!(load.get("q"), Some(number));
    }
    assert_eq!(load.purge("q"), 15_000);
    assert_eq!(load.get("q"), None);
    std::thread::sleep(std::time::Duration::from_millis(4500));
    assert_eq!(load.ready("ttl"), 0);
}

/// §16: a restart reads where messages are, not what they are; and nothing is lost over a kill.
#[test]
fn a_long_queue_is_there_after_a_restart() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let broker = start(folder.path());
    let mut load = Load::connect(broker.address);
    load.declare("q", &[]);
    let idle = resident(broker.pid());
    load.fill(&Messages::new("q", COUNT, 1024, true), WINDOW);
    broker.stop("TERM");
    for round in 0..2 {
        let broker = start(folder.path());
        let watch = Watch::on(broker.pid());
        let mut load = Load::connect(broker.address);
        let left = COUNT - round * 10_000;
        assert_eq!(u64::from(load.ready("q")), left);
        let mut next = round * 10_000;
        let count = if round == 0 { 10_000 } else { left };
        load.drain("q", count, |number, redelivered| {
            assert_eq!(number, next);
            assert!(!redelivered || number < 10_000 || round > 0, "{number} was never delivered");
            next += 1;
        });
        let peak = watch.peak();
        assert_little(idle, peak);
        // What is acked must be on disk before the kill.
        load.ready("q");
        std::thread::sleep(std::time::Duration::from_millis(300));
        broker.stop("KILL");
    }
}
