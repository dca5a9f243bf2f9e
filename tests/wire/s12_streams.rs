//! Stream queues as clients of AMQP 0-9-1 see them (§12.2): what they are, and what they refuse.

use std::time::Duration;

use leveret_protocol::{FieldTable, FieldValue, Properties, basic, queue};

use crate::broker::{Broker, is_default_version, is_ours};
use crate::client::{
    Channel, Connection, Login, connect, consume, declare, declare_args, delete, open, purge, table, text,
};

const STREAM: [(&str, FieldValue); 1] =
    [("x-queue-type", FieldValue::LongString(bytes::Bytes::from_static(b"stream")))];

/// A stream with these arguments, empty.
pub fn stream<const N: usize>(queue: &str, arguments: [(&str, FieldValue); N]) -> Channel {
    let channel = open();
    channel.delete(delete(queue));
    channel.declare(declare_stream(queue, arguments));
    channel.confirm_select();
    channel
}

fn declare_stream<'a, const N: usize>(queue: &'a str, arguments: [(&str, FieldValue); N]) -> queue::Declare<'a> {
    let arguments = FieldTable::from_iter(STREAM.into_iter().chain(arguments));
    queue::Declare { arguments, ..declare(queue) }
}

/// Publishes and waits for the confirm of each message, on a channel with `before` publishes.
pub fn fill(channel: &Channel, queue: &str, before: u64, count: u64) {
    for number in before..before + count {
        channel.publish("", queue, &format!("m{number}"));
        channel.confirm();
    }
}

pub fn from<'a>(queue: &'a str, offset: impl Into<FieldValue>) -> basic::Consume<'a> {
    basic::Consume { arguments: table([("x-stream-offset", offset.into())]), ..consume(queue, "") }
}

/// A consumer on a channel of its own.
pub fn reader(queue: &str, prefetch: u16, offset: impl Into<FieldValue>) -> Channel {
    let channel = open();
    channel.qos(prefetch, false);
    channel.consume(from(queue, offset));
    channel
}

pub fn rs(queue: &str) -> String {
    format!("queue '{queue}' in vhost '/'")
}

#[test]
fn s12_2_a_stream_is_durable_and_nobodys_own() {
    let queue = "s12_2_flags";
    let refused = |declare: queue::Declare<'_>, text: String| open().refuses(declare, 406, &text);
    refused(
        queue::Declare { durable: false, ..declare_stream(queue, []) },
        format!("invalid property 'non-durable' for {}", rs(queue)),
    );
    refused(
        queue::Declare { exclusive: true, ..declare_stream(queue, []) },
        format!("invalid property 'exclusive-owner' for {}", rs(queue)),
    );
    refused(
        queue::Declare { auto_delete: true, ..declare_stream(queue, []) },
        format!("invalid property 'auto-delete' for {}", rs(queue)),
    );
    refused(declare_stream("", []), "Cannot declare a server-named queue for type rabbit_stream_queue".to_owned());
}

#[test]
fn s5_5_arguments_that_a_stream_knows_are_checked() {
    if !is_default_version() {
        return;
    }
    let queue = "s12_2_arguments";
    let resource = rs(queue);
    let of_other_type = |name: &str| format!("invalid arg '{name}' for {resource} of queue type rabbit_stream_queue");
    let invalid = |name: &str, reason: &str| format!("invalid arg '{name}' for {resource}: {reason}");
    let segment = "x-stream-max-segment-size-bytes";
    let rows = [
        ("x-max-length", FieldValue::I32(5), of_other_type("x-max-length")),
        ("x-message-ttl", FieldValue::I32(5), of_other_type("x-message-ttl")),
        ("x-expires", FieldValue::I32(5), of_other_type("x-expires")),
        ("x-dead-letter-exchange", text("a"), of_other_type("x-dead-letter-exchange")),
        ("x-max-priority", FieldValue::I32(5), of_other_type("x-max-priority")),
        ("x-overflow", text("drop-head"), of_other_type("x-overflow")),
        ("x-single-active-consumer", FieldValue::Bool(true), of_other_type("x-single-active-consumer")),
        ("x-max-age", text("7"), invalid("x-max-age", "invalid_max_age")),
        ("x-max-age", text("0s"), invalid("x-max-age", "invalid_max_age")),
        ("x-max-age", FieldValue::I32(7), invalid("x-max-age", "{unacceptable_type,signedint}")),
        ("x-max-length-bytes", FieldValue::I32(-1), invalid("x-max-length-bytes", "{value_negative,-1}")),
        (segment, text("x"), invalid(segment, "\"expected integer, got longstr\"")),
        (segment, FieldValue::I64(3_000_000_001), format!("Exceeded max value for {segment}")),
        ("x-stream-filter-size-bytes", FieldValue::I32(15), "Invalid value for x-stream-filter-size-bytes".to_owned()),
        ("x-initial-cluster-size", FieldValue::I32(0), invalid("x-initial-cluster-size", "{value_zero,0}")),
    ];
    let channel = open();
    for (name, value, text) in rows {
        if name == "x-stream-filter-size-bytes"
            && !channel.connection.is_leveret()
            && channel.connection.version() < (4, 3)
        {
            // There are two blanks in its text.
            continue;
        }
        open().refuses(declare_stream(queue, [(name, value)]), 406, &text);
    }
    let fine = [
        ("x-max-age", text("7D")),
        ("x-max-length-bytes", FieldValue::I64(5_000_000_000)),
        (segment, FieldValue::I64(3_000_000_000)),
        ("x-stream-filter-size-bytes", FieldValue::I32(16)),
        ("x-queue-leader-locator", text("client-local")),
        ("x-something", FieldValue::Bool(true)),
    ];
    channel.delete(delete(queue));
    channel.declare(declare_stream(queue, fine.clone()));
    channel.declare(declare_stream(queue, fine));
    channel.delete(delete(queue));
}

#[test]
fn s5_5_segment_size_and_age_belong_to_streams_only() {
    for argument in ["x-max-age", "x-stream-max-segment-size-bytes"] {
        let text = format!("invalid arg '{argument}' for {} of queue type rabbit_classic_queue", rs("s12_2_classic"));
        open().refuses(declare_args("s12_2_classic", [(argument, FieldValue::I32(1))]), 406, &text);
    }
}

#[test]
fn s5_3_a_stream_is_not_redeclared_as_something_else() {
    if !is_default_version() {
        return;
    }
    let queue = "s12_2_redeclare";
    let channel = stream(queue, []);
    let inequivalent = |name: &str| format!("inequivalent arg '{name}' for {}: received ", rs(queue));
    open().refuses(declare(queue), 406, &(inequivalent("x-queue-type") + "'classic' but current is 'stream'"));
    let bytes = [("x-max-length-bytes", FieldValue::I32(9))];
    let text = inequivalent("x-max-length-bytes") + "the value '9' of type 'signedint' but current is none";
    open().refuses(declare_stream(queue, bytes), 406, &text);
    channel.delete(delete(queue));
}

#[test]
fn s12_2_a_consumer_needs_a_prefetch_and_acks() {
    let queue = "s12_2_consume";
    let channel = stream(queue, []);
    let no_prefetch = format!("consumer prefetch count is not set for stream {}", rs(queue));
    open().refuses(consume(queue, "c"), 406, &no_prefetch);
    // The missing prefetch comes first.
    let no_ack = || basic::Consume { no_ack: true, ..consume(queue, "c") };
    open().refuses(no_ack(), 406, &no_prefetch);
    let prefetching = open();
    prefetching.qos(1, false);
    prefetching.refuses_hard(
        no_ack(),
        540,
        &format!("automatic acknowledgement not supported by stream {}", rs(queue)),
    );
    if channel.connection.version() < (4, 3) {
        let global = open();
        global.qos(1, false);
        global.qos(1, true);
        global.refuses_hard(consume(queue, "c"), 540, &format!("{} does not support global qos", rs(queue)));
    }
    channel.delete(delete(queue));
}

#[test]
fn s8_7_a_consumer_of_a_stream_has_no_priority_and_is_never_exclusive() {
    let queue = "s12_2_priority";
    let channel = stream(queue, []);
    let prioritized = basic::Consume { arguments: table([("x-priority", FieldValue::I32(1))]), ..consume(queue, "c") };
    let text = format!("invalid arg 'x-priority' for {} of queue type rabbit_stream_queue", rs(queue));
    open().refuses(prioritized, 406, &text);
    let reader = open();
    reader.qos(1, false);
    for tag in ["a", "b"] {
        reader.consume(basic::Consume { exclusive: true, ..consume(queue, tag) });
    }
    for argument in ["x-stream-offset", "x-stream-filter", "x-stream-match-unfiltered"] {
        let text = format!("invalid arg '{argument}' for {} of queue type rabbit_classic_queue", rs("s12_2_no_stream"));
        open().declare(declare("s12_2_no_stream"));
        let arguments = table([(argument, FieldValue::Bool(true))]);
        open().refuses(basic::Consume { arguments, ..consume("s12_2_no_stream", "c") }, 406, &text);
    }
    channel.delete(delete(queue));
    channel.delete(delete("s12_2_no_stream"));
}

/// 4.0 dies of some of them (541).
#[test]
fn s12_2_a_bad_offset_is_406() {
    let queue = "s12_2_bad_offset";
    let channel = stream(queue, []);
    let mut rows = vec![("5", "<<\"5\">>"), ("1d", "<<\"1d\">>"), ("1.5h", "<<\"1.5h\">>"), ("0s", "<<\"0s\">>")];
    if channel.connection.is_leveret() || channel.connection.version() >= (4, 3) {
        rows.extend([("bad", "<<\"bad\">>"), ("", "<<>>"), (" 1h", "<<\" 1h\">>")]);
    }
    for (offset, term) in rows {
        let error = format!("{{invalid_stream_offset_arg,{{longstr,{term}}}}}");
        let prefetching = open();
        prefetching.qos(1, false);
        let text = format!("invalid arg 'x-stream-offset' for {}: {error}", rs(queue));
        prefetching.refuses(from(queue, offset), 406, &text);
    }
    channel.delete(delete(queue));
}

#[test]
fn s12_2_what_a_stream_cannot_do_is_540() {
    let queue = "s12_2_unsupported";
    let channel = stream(queue, []);
    open().refuses_hard(
        basic::Get { queue, no_ack: true },
        540,
        &format!("basic.get not supported by stream queues {}", rs(queue)),
    );
    open().refuses_hard(purge(queue), 540, &format!("queue.purge not supported by stream queues {}", rs(queue)));
    channel.delete(delete(queue));
}

/// §5.6: flags are ignored; §13.2: consumers are told.
#[test]
fn s5_6_a_stream_in_use_is_deleted_whatever_the_flags() {
    let queue = "s12_2_delete";
    let channel = stream(queue, []);
    fill(&channel, queue, 0, 1);
    let reader = reader(queue, 9, "first");
    let delivery = reader.delivery();
    channel.delete(queue::Delete { if_unused: true, if_empty: true, ..delete(queue) });
    let incoming = reader.expect(basic::Cancel::ID);
    assert_eq!(incoming.method(), basic::Cancel { consumer_tag: &delivery.consumer_tag, no_wait: true }.into());
    reader.ack(delivery.tag);
    reader.qos(1, false);
    assert!(!reader.exists(queue));
}

/// §12.2: whole segments go, the last one never.
#[test]
fn s12_2_a_stream_keeps_about_as_many_bytes_as_it_may() {
    let queue = "s12_2_bytes";
    let (max, segment) = (FieldValue::I32(5000), FieldValue::I32(1000));
    let channel = stream(queue, [("x-max-length-bytes", max), ("x-stream-max-segment-size-bytes", segment)]);
    for number in 0..100 {
        channel.publish("", queue, &format!("m{number:099}"));
        channel.confirm();
    }
    std::thread::sleep(Duration::from_millis(if channel.connection.is_leveret() { 0 } else { 1000 }));
    let reader = reader(queue, 200, "first");
    let first = reader.delivery();
    let number: usize = first.text()[1..].parse().unwrap();
    assert!((50..100).contains(&number), "the oldest is {number}");
    for number in number + 1..100 {
        assert_eq!(reader.delivery().text(), format!("m{number:099}"));
    }
    reader.expect_quiet();
    channel.delete(delete(queue));
}

/// §16: everything is kept whatever its delivery mode, offsets go on, and nothing says redelivered.
#[test]
fn s16_a_stream_survives_a_crash_and_offsets_go_on() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let queue = "s12_2_crash";
    let start = || {
        let broker = Broker::in_folder(folder.path());
        let channel = Connection::open(broker.address, &Login::default()).channel();
        channel.declare(declare_stream(queue, [("x-stream-max-segment-size-bytes", FieldValue::I32(200))]));
        channel.confirm_select();
        (broker, channel)
    };
    let (broker, channel) = start();
    // Sequences of another queue go far beyond.
    channel.declare(declare("s12_2_other"));
    for _ in 0..50 {
        channel.publish_properties("", "s12_2_other", &crate::client::persistent(), "x");
    }
    channel.publish("", queue, "m0");
    channel.publish_properties("", queue, &Properties { delivery_mode: Some(1), ..Properties::default() }, "m1");
    channel.wait_for_confirms(52);
    channel.qos(10, false);
    channel.consume(from(queue, "first"));
    assert_eq!(channel.bodies(2), ["m0", "m1"]);
    broker.stop("KILL");
    for (run, signal) in ["TERM", "KILL", "KILL"].into_iter().enumerate() {
        let (broker, channel) = start();
        let stored = 2 + run as u64;
        assert_eq!(u64::from(channel.look(queue).ready), stored);
        channel.publish("", queue, &format!("m{stored}"));
        channel.confirm();
        channel.qos(100, false);
        channel.consume(from(queue, "first"));
        for number in 0..=stored {
            let delivery = channel.delivery();
            assert_eq!((delivery.text(), delivery.redelivered), (format!("m{number}").as_str(), false));
            assert_eq!(delivery.header("x-stream-offset"), Some(&FieldValue::I64(number as i64)));
        }
        broker.stop(signal);
    }
}

/// A message may be dead-lettered into a stream.
#[test]
fn s12_2_dead_letters_enter_a_stream() {
    let queue = "s12_2_letters";
    let channel = stream(queue, []);
    let source = "s12_2_source";
    let arguments = [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text(queue))];
    let other = open();
    other.delete(delete(source));
    other.declare(declare_args(source, arguments));
    other.publish("", source, "m0");
    let rejected = other.take(source);
    other.reject(rejected.tag, false);
    let reader = reader(queue, 1, "first");
    let delivery = reader.delivery();
    assert!(delivery.header("x-death").is_some());
    assert_eq!(delivery.header("x-stream-offset"), Some(&FieldValue::I64(0)));
    channel.delete(delete(queue));
    channel.delete(delete(source));
}

#[test]
fn s5_4_a_passive_declare_counts_what_is_kept() {
    let queue = "s12_2_counts";
    let channel = stream(queue, []);
    fill(&channel, queue, 0, 4);
    let _reader = reader(queue, 2, "first");
    assert_eq!(channel.ready(queue, 4), 4);
    if connect().is_leveret() {
        assert_eq!(channel.look(queue).consumers, 1);
    }
    channel.delete(delete(queue));
}
