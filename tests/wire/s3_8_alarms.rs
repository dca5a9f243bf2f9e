//! Blocking by resource alarms (§3.8). Most brokers here have limits that nothing keeps, so that alarms are on from the
//! start.

use std::time::{Duration, Instant};

use leveret_protocol::{FrameKind, Method, MethodId, Properties, basic, connection};

use crate::broker;
use crate::client::{Channel, Connection, Login, consume, declare};
use crate::s14_limits::{start, start_in, with_file};

/// No memory is enough, and no disk is looked at.
const LOW_ON_MEMORY: &str = "vm_memory_high_watermark.absolute = 1MB";

#[track_caller]
fn expect_blocked(channel: &Channel, reason: &str) {
    let blocked = channel.connection.next(0);
    match blocked.method() {
        Method::ConnectionBlocked(blocked) => assert_eq!(blocked.reason, reason),
        other => panic!("{other:?}"),
    }
}

fn publish(channel: &Channel, body: &str) {
    channel.publish("", "q", body);
}

#[test]
fn s3_8_a_publisher_is_blocked_at_its_first_publish_and_told_once() {
    let Some(broker) = start(LOW_ON_MEMORY) else { return };
    let watcher = Connection::open(broker.address, &Login::default()).channel();
    watcher.declare(declare("q"));
    let publisher = Connection::open(broker.address, &Login::default()).channel();
    // Opening, and anything that is no publish, blocks nobody.
    publisher.look("q");
    publish(&publisher, "1");
    expect_blocked(&publisher, "low on memory");
    publish(&publisher, "2");
    publisher.send(basic::Get { queue: "q", no_ack: true });
    publisher.connection.expect_nothing_for(Duration::from_millis(300));
    // Seen on 4.0.5: the header stops it, so that the body is not taken any more.
    assert_eq!(watcher.look("q").ready, 0);
}

#[test]
fn s3_8_a_publish_without_a_body_is_taken_before_the_block() {
    let Some(broker) = start(LOW_ON_MEMORY) else { return };
    let watcher = Connection::open(broker.address, &Login::default()).channel();
    watcher.declare(declare("q"));
    let publisher = Connection::open(broker.address, &Login::default()).channel();
    publish(&publisher, "");
    expect_blocked(&publisher, "low on memory");
    assert_eq!(watcher.ready("q", 1), 1);
}

#[test]
fn s3_8_a_client_that_does_not_ask_is_blocked_without_a_word() {
    let Some(broker) = start(LOW_ON_MEMORY) else { return };
    let login = Login { properties: leveret_protocol::FieldTable::default(), ..Login::default() };
    let publisher = Connection::open(broker.address, &login).channel();
    publisher.declare(declare("q"));
    publish(&publisher, "1");
    publisher.send(basic::Get { queue: "q", no_ack: true });
    publisher.connection.expect_nothing_for(Duration::from_millis(300));
}

/// Memory runs short while a backlog is there; it is consumed, and what was held up goes on where it stopped.
#[test]
fn s3_8_consumers_go_on_and_publishers_too_once_there_is_room() {
    const BODY: usize = 1 << 20;
    const COUNT: usize = 120;
    let settings = "vm_memory_high_watermark.absolute = 100MiB";
    let Some(broker) = start(settings) else { return };
    let consumer = Connection::open(broker.address, &Login::default()).channel();
    consumer.declare(declare("q"));
    let address = broker.address;
    let publisher = std::thread::spawn(move || {
        let publisher = Connection::open(address, &Login::default()).channel();
        let body = vec![b'x'; BODY];
        let method = basic::Publish { exchange: "", routing_key: "q", mandatory: false, immediate: false };
        for _ in 0..COUNT {
            publisher.publish_with(method.clone(), &Properties::default(), &body);
        }
        let mut told = Vec::new();
        publisher.send(leveret_protocol::confirm::Select { no_wait: false });
        while told.last() != Some(&MethodId { class: 85, method: 11 }) {
            let channel = if told.len() < 2 { 0 } else { 1 };
            told.push(publisher.connection.next(channel).method().id());
        }
        told
    });
    // It is full: what is there stays there.
    let mut before = 0;
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let now = consumer.look("q").ready;
        if now > 0 && now == before {
            break;
        }
        before = now;
    }
    assert!((before as usize) < COUNT, "{before} were taken: there was no alarm");
    consumer.consume(consume("q", "c"));
    for tag in 1..=COUNT as u64 {
        consumer.delivery();
        consumer.ack(tag);
    }
    let told = publisher.join().unwrap();
    assert_eq!(told[..2], [connection::Blocked::ID, connection::Unblocked::ID]);
}

#[test]
fn s3_8_the_disk_has_an_alarm_too() {
    if !broker::is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let publish_to = |settings: &str, reason: &str| {
        let broker = start_in(folder.path(), settings);
        let publisher = Connection::open(broker.address, &Login::default()).channel();
        publisher.declare(declare("q"));
        publish(&publisher, "1");
        expect_blocked(&publisher, reason);
        // A blocked client does not keep the broker from its end.
        assert_eq!(broker.stop("TERM").code, Some(0));
    };
    publish_to("disk_free_limit.absolute = 1000TB", "low on disk");
    publish_to(
        &format!("disk_free_limit.relative = 999\ntotal_memory_available_override_value = 1PiB\n{LOW_ON_MEMORY}"),
        "low on memory & disk",
    );
}

/// §3.7: nothing is read from it, so nothing can be missed; but it hears from us.
#[test]
fn s3_8_heartbeats_go_on_while_blocked() {
    let Some(broker) = start(LOW_ON_MEMORY) else { return };
    let login = Login { tune: (0, 0, 1), ..Login::default() };
    let publisher = Connection::open(broker.address, &login).channel();
    publisher.declare(declare("q"));
    publish(&publisher, "1");
    expect_blocked(&publisher, "low on memory");
    // Nothing but heartbeats, and no end.
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        assert_eq!(publisher.connection.next_frame_kind(Duration::from_millis(900)), Some(FrameKind::Heartbeat));
    }
}

#[test]
fn s3_8_wrong_watermarks_are_named() {
    if !broker::is_ours() {
        return;
    }
    for (line, expected) in [
        ("vm_memory_high_watermark.relative = 1.5", "a number from 0 to 1"),
        ("vm_memory_high_watermark.absolute = much", "bytes"),
        ("disk_free_limit.absolute = -1", "bytes"),
        ("disk_free_limit.relative = x", "a number from 0"),
    ] {
        let exit = with_file(line, |file| broker::run(["--ephemeral", "--config", file]));
        assert_eq!(exit.code, Some(2), "{line}");
        assert!(exit.stderr.contains(expected), "{line}: {}", exit.stderr);
    }
}

/// The most that the broker had resident so far, in bytes.
fn most_memory(broker: &broker::Broker) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", broker.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Ten fast publishers and a slow consumer, twice as much as there is memory, and nothing on disk: the broker stays
/// within its memory, and everything arrives.
#[test]
fn s3_8_publishers_cannot_make_the_broker_exceed_its_memory() {
    const MEMORY: usize = 200 << 20;
    const BODY: usize = 16 << 10;
    const PUBLISHERS: usize = 10;
    const EACH: usize = 2 * MEMORY / BODY / PUBLISHERS;
    let Some(broker) = start("total_memory_available_override_value = 200MiB") else { return };
    let consumer = Connection::open(broker.address, &Login::default()).channel();
    consumer.declare(declare("q"));
    consumer.qos(100, false);
    let address = broker.address;
    let publishers: Vec<_> = (0..PUBLISHERS)
        .map(|_| {
            std::thread::spawn(move || {
                let publisher = Connection::open(address, &Login::default()).channel();
                let method = basic::Publish { exchange: "", routing_key: "q", mandatory: false, immediate: false };
                for _ in 0..EACH {
                    publisher.publish_with(method.clone(), &Properties::default(), &[b'x'; BODY]);
                }
                // Closing only the socket could lose what is not read yet.
                let connection = publisher.connection;
                connection.send(0, connection::Close { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 });
                while connection.next(0).method().id() != connection::CloseOk::ID {}
            })
        })
        .collect();
    std::thread::sleep(Duration::from_secs(2));
    consumer.consume(consume("q", "c"));
    for tag in 1..=(PUBLISHERS * EACH) as u64 {
        consumer.delivery();
        if tag % 50 == 0 || tag == (PUBLISHERS * EACH) as u64 {
            consumer.ack_multiple(tag);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
    let most = most_memory(&broker);
    assert!(most < MEMORY, "{} MiB were resident", most >> 20);
}
