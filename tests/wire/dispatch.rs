//! Who gets which message: prefetch, turns, priorities, single active consumers, timeouts (§9).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use leveret_protocol::{FieldValue, MethodId, basic};

use crate::client::{Channel, connect, consume, declare, declare_args, open, table};

fn declared(queue: &str) -> Channel {
    let channel = open();
    channel.declare(declare(queue));
    channel
}

fn publish_all(channel: &Channel, queue: &str, bodies: &[&str]) {
    for body in bodies {
        channel.publish("", queue, body);
    }
}

fn with_priority<'a>(queue: &'a str, tag: &'a str, priority: i32) -> basic::Consume<'a> {
    basic::Consume { arguments: table([("x-priority", FieldValue::I32(priority))]), ..consume(queue, tag) }
}

#[test]
fn s9_1_a_prefetch_size_is_540() {
    let qos = basic::Qos { prefetch_size: 1000, prefetch_count: 1, global: false };
    open().refuses_hard(qos, 540, "prefetch_size!=0 (1000)");
}

#[test]
fn s9_1_each_way_to_settle_makes_room_for_the_next() {
    let channel = declared("s9_1_room");
    publish_all(&channel, "s9_1_room", &["a", "b", "c", "d", "e"]);
    channel.qos(1, false);
    channel.consume(consume("s9_1_room", "tag"));
    let settle: [&dyn Fn(u64); 4] =
        [&|tag| channel.ack(tag), &|tag| channel.reject(tag, false), &|tag| channel.nack(tag, false, false), &|tag| {
            channel.ack_multiple(tag)
        }];
    for (settle, body) in settle.into_iter().zip(["a", "b", "c", "d"]) {
        let delivery = channel.delivery();
        assert_eq!(delivery.text(), body);
        channel.expect_quiet();
        settle(delivery.tag);
    }
    // A requeue too; what comes back comes first.
    let last = channel.delivery();
    channel.nack(last.tag, false, true);
    let again = channel.delivery();
    assert_eq!((again.text(), again.redelivered), ("e", true));
}

#[test]
fn s9_1_a_limit_is_for_each_consumer_started_later() {
    let channel = declared("s9_1_later");
    let other = "s9_1_later_2";
    channel.declare(declare(other));
    channel.qos(1, false);
    channel.consume(consume("s9_1_later", "one"));
    channel.qos(2, false);
    channel.consume(consume(other, "two"));
    channel.qos(0, false);
    for queue in ["s9_1_later", other] {
        publish_all(&channel, queue, &["a", "b", "c"]);
    }
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..3 {
        *count.entry(channel.delivery().consumer_tag).or_default() += 1;
    }
    assert_eq!(count, BTreeMap::from([("one".to_owned(), 1), ("two".to_owned(), 2)]));
    channel.expect_quiet();
}

#[test]
fn s9_1_zero_is_no_limit() {
    let channel = declared("s9_1_unlimited");
    channel.qos(0, false);
    channel.consume(consume("s9_1_unlimited", "tag"));
    for _ in 0..500 {
        channel.publish("", "s9_1_unlimited", "x");
    }
    assert_eq!(channel.bodies(500).len(), 500);
}

#[test]
fn s9_1_consumers_without_ack_have_no_limit_of_their_own() {
    let channel = declared("s9_1_no_ack");
    channel.qos(1, false);
    channel.consume(basic::Consume { no_ack: true, ..consume("s9_1_no_ack", "tag") });
    publish_all(&channel, "s9_1_no_ack", &["a", "b", "c"]);
    assert_eq!(channel.bodies(3), ["a", "b", "c"]);
}

/// Whether the broker knows a limit for the whole channel.
fn has_channel_limit(channel: &Channel) -> bool {
    channel.connection.version() < (4, 3)
}

#[test]
fn s9_1_global_is_one_limit_for_all_consumers_of_the_channel() {
    let channel = declared("s9_1_global");
    if !has_channel_limit(&channel) {
        return;
    }
    channel.declare(declare("s9_1_global_2"));
    channel.consume(consume("s9_1_global", "one"));
    channel.qos(3, true);
    channel.consume(consume("s9_1_global_2", "two"));
    for queue in ["s9_1_global", "s9_1_global_2"] {
        publish_all(&channel, queue, &["a", "b", "c", "d"]);
    }
    let first = [channel.delivery(), channel.delivery(), channel.delivery()];
    channel.expect_quiet();
    channel.ack(first[0].tag);
    channel.delivery();
    channel.expect_quiet();
    // Raising it counts at once, and so does lowering it.
    channel.qos(4, true);
    let last = channel.delivery();
    channel.expect_quiet();
    channel.qos(2, true);
    channel.ack(first[1].tag);
    channel.ack(first[2].tag);
    channel.expect_quiet();
    channel.ack(last.tag);
    channel.delivery();
    channel.expect_quiet();
}

#[test]
fn s9_1_under_a_global_limit_no_consumer_starves() {
    let channel = declared("s9_1_starve");
    if !has_channel_limit(&channel) || !channel.connection.is_leveret() {
        return; // RabbitMQ 4.0 does not always manage.
    }
    channel.declare(declare("s9_1_starve_2"));
    channel.qos(1, true);
    for (queue, tag) in [("s9_1_starve", "one"), ("s9_1_starve_2", "two")] {
        channel.consume(consume(queue, tag));
    }
    let bodies: Vec<String> = (0..20).map(|index| index.to_string()).collect();
    for queue in ["s9_1_starve", "s9_1_starve_2"] {
        for body in &bodies {
            channel.publish("", queue, body);
        }
    }
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..20 {
        let delivery = channel.delivery();
        channel.ack(delivery.tag);
        *count.entry(delivery.consumer_tag).or_default() += 1;
    }
    assert!(count.len() == 2 && count.values().all(|&got| got >= 3), "{count:?}");
}

#[test]
fn s9_1_both_limits_hold_and_the_other_kind_takes_the_global_one_away() {
    let channel = declared("s9_1_both");
    if !has_channel_limit(&channel) {
        return;
    }
    channel.qos(1, false);
    channel.qos(2, true);
    for tag in ["one", "two", "three"] {
        channel.consume(consume("s9_1_both", tag));
    }
    publish_all(&channel, "s9_1_both", &["a", "b", "c", "d"]);
    let first = [channel.delivery(), channel.delivery()];
    assert_ne!(first[0].consumer_tag, first[1].consumer_tag);
    channel.expect_quiet();
    channel.qos(1, false);
    // The third has room now; the limit of each remains.
    channel.delivery();
    channel.expect_quiet();
}

#[test]
fn s9_1_what_is_unacked_when_a_global_limit_is_set_counts() {
    let channel = declared("s9_1_counts");
    if !has_channel_limit(&channel) {
        return;
    }
    channel.declare(declare("s9_1_counts_2"));
    publish_all(&channel, "s9_1_counts", &["a"]);
    channel.consume(consume("s9_1_counts", "one"));
    let unacked = channel.delivery();
    channel.qos(1, true);
    channel.consume(consume("s9_1_counts_2", "two"));
    publish_all(&channel, "s9_1_counts_2", &["b", "c"]);
    channel.expect_quiet();
    channel.ack(unacked.tag);
    assert_eq!(channel.delivery().text(), "b");
    channel.expect_quiet();
}

#[test]
fn s9_1_a_quorum_queue_refuses_a_channel_with_a_global_limit() {
    let channel = open();
    if !has_channel_limit(&channel) {
        return;
    }
    channel.declare(declare_args("s9_1_quorum", [("x-queue-type", crate::client::text("quorum"))]));
    channel.qos(5, true);
    let text = "queue 's9_1_quorum' in vhost '/' does not support global qos";
    channel.refuses_hard(consume("s9_1_quorum", "tag"), 540, text);
}

#[test]
fn s9_2_consumers_take_turns() {
    let connection = connect();
    let channel = connection.channel();
    channel.declare(declare("s9_2_turns"));
    let channels: Vec<Channel> = (0..3).map(|_| open()).collect();
    for channel in &channels {
        channel.consume(consume("s9_2_turns", "tag"));
    }
    for index in 0..9 {
        channel.publish("", "s9_2_turns", &index.to_string());
    }
    for (index, channel) in channels.iter().enumerate() {
        let expected: Vec<String> = (0..3).map(|turn| (index + 3 * turn).to_string()).collect();
        assert_eq!(channel.bodies(3), expected, "consumer {index}");
    }
}

#[test]
fn s9_2_a_full_consumer_is_passed_over() {
    let (one, two) = (declared("s9_2_full"), open());
    one.qos(1, false);
    one.consume(consume("s9_2_full", "one"));
    two.consume(consume("s9_2_full", "two"));
    publish_all(&one, "s9_2_full", &["a", "b", "c", "d"]);
    assert_eq!(one.delivery().text(), "a");
    assert_eq!(two.bodies(3), ["b", "c", "d"]);
    one.expect_quiet();
}

#[test]
fn s9_2_a_higher_priority_goes_first_until_it_is_full() {
    let channel = declared("s9_2_priority");
    let (low, middle, high) = (open(), open(), open());
    for consumer in [&low, &middle, &high] {
        consumer.qos(2, false);
    }
    low.consume(with_priority("s9_2_priority", "low", -5));
    middle.consume(consume("s9_2_priority", "middle"));
    high.consume(with_priority("s9_2_priority", "high", 10));
    publish_all(&channel, "s9_2_priority", &["1", "2", "3", "4", "5", "6"]);
    let first = [high.delivery(), high.delivery()];
    assert_eq!(first.each_ref().map(|delivery| delivery.text()), ["1", "2"]);
    assert_eq!(middle.bodies(2), ["3", "4"]);
    assert_eq!(low.bodies(2), ["5", "6"]);
    // As soon as it has room it is first again.
    high.ack(first[0].tag);
    high.expect_quiet();
    publish_all(&channel, "s9_2_priority", &["7"]);
    assert_eq!(high.delivery().text(), "7");
}

#[test]
fn s9_2_equal_priorities_take_turns() {
    let channel = declared("s9_2_equal");
    let (one, two) = (open(), open());
    one.consume(with_priority("s9_2_equal", "one", 3));
    two.consume(with_priority("s9_2_equal", "two", 3));
    open().consume(with_priority("s9_2_equal", "never", 2));
    publish_all(&channel, "s9_2_equal", &["a", "b", "c", "d"]);
    assert_eq!(one.bodies(2), ["a", "c"]);
    assert_eq!(two.bodies(2), ["b", "d"]);
}

#[test]
fn s9_2_a_queue_keeps_its_order_towards_one_channel() {
    let channel = declared("s9_2_order");
    let producer = open();
    channel.qos(7, false);
    channel.consume(consume("s9_2_order", "one"));
    let bodies: Vec<String> = (0..500).map(|index| index.to_string()).collect();
    for body in &bodies {
        producer.publish("", "s9_2_order", body);
    }
    for body in &bodies {
        let delivery = channel.delivery();
        assert_eq!(delivery.text(), body);
        channel.ack(delivery.tag);
    }
}

fn single_active(queue: &str) -> Channel {
    let channel = open();
    channel.declare(declare_args(queue, [("x-single-active-consumer", FieldValue::Bool(true))]));
    channel
}

#[test]
fn s9_3_only_the_first_consumer_is_active_and_all_are_counted() {
    let channel = single_active("s9_3_first");
    let (one, two) = (open(), open());
    one.consume(consume("s9_3_first", "one"));
    two.consume(with_priority("s9_3_first", "two", 10));
    publish_all(&channel, "s9_3_first", &["a", "b", "c"]);
    assert_eq!(one.bodies(3), ["a", "b", "c"]);
    two.expect_quiet();
    assert_eq!(channel.look("s9_3_first").consumers, 2);
}

#[test]
fn s9_3_after_a_cancel_the_next_is_active_and_the_unacked_stay() {
    let channel = single_active("s9_3_next");
    let (one, two) = (open(), open());
    one.consume(consume("s9_3_next", "one"));
    two.consume(consume("s9_3_next", "two"));
    publish_all(&channel, "s9_3_next", &["a"]);
    let unacked = one.delivery();
    one.cancel("one");
    publish_all(&channel, "s9_3_next", &["b"]);
    assert_eq!(two.delivery().text(), "b");
    one.nack(unacked.tag, false, true);
    let again = two.delivery();
    assert_eq!((again.text(), again.redelivered), ("a", true));
}

#[test]
fn s9_3_after_a_close_the_next_gets_what_comes_back() {
    let channel = single_active("s9_3_close");
    let (one, two) = (open(), open());
    one.consume(consume("s9_3_close", "one"));
    two.consume(consume("s9_3_close", "two"));
    publish_all(&channel, "s9_3_close", &["a", "b"]);
    assert_eq!(one.bodies(2), ["a", "b"]);
    one.close();
    assert_eq!(two.bodies(2), ["a", "b"]);
}

#[test]
fn s9_3_of_those_that_wait_the_highest_priority_follows_the_oldest_first() {
    let channel = single_active("s9_3_follows");
    let connection = connect();
    let start = |tag: &'static str, priority| {
        let channel = connection.channel();
        channel.consume(with_priority("s9_3_follows", tag, priority));
        channel
    };
    let active = start("active", 0);
    let (_low, old, young) = (start("low", 1), start("old", 5), start("young", 5));
    active.cancel("active");
    publish_all(&channel, "s9_3_follows", &["a"]);
    assert_eq!(old.delivery().text(), "a");
    old.cancel("old");
    publish_all(&channel, "s9_3_follows", &["b"]);
    assert_eq!(young.delivery().text(), "b");
}

#[test]
fn s9_3_a_full_active_consumer_keeps_the_others_waiting() {
    let channel = single_active("s9_3_full");
    let (one, two) = (open(), open());
    one.qos(1, false);
    one.consume(consume("s9_3_full", "one"));
    two.consume(consume("s9_3_full", "two"));
    publish_all(&channel, "s9_3_full", &["a", "b"]);
    let first = one.delivery();
    two.expect_quiet();
    one.ack(first.tag);
    assert_eq!(one.delivery().text(), "b");
}

/// RabbitMQ looks once a minute, and not at all from 4.3 on.
#[test]
fn s9_5_a_delivery_that_is_not_acked_in_time_closes_its_channel() {
    let channel = open();
    if !channel.connection.is_leveret() || channel.connection.version() >= (4, 3) {
        return;
    }
    channel.declare(declare_args("s9_5_timeout", [("x-consumer-timeout", FieldValue::I32(300))]));
    channel.declare(declare("s9_5_no_timeout"));
    for queue in ["s9_5_timeout", "s9_5_no_timeout"] {
        publish_all(&channel, queue, &["a"]);
    }
    let other = channel.connection.channel();
    other.take("s9_5_no_timeout");
    channel.consume(consume("s9_5_timeout", "tag"));
    let since = Instant::now();
    channel.delivery();
    let text = format!(
        "delivery acknowledgement on channel {} timed out. Timeout value used: 300 ms. This timeout value can be configured, see consumers doc guide to learn more",
        channel.number
    );
    channel.expect_close(406, &text, MethodId::NONE);
    let took = since.elapsed();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(2), "{took:?}");
    // The other channel is not disturbed, and the message is there again.
    let again = other.take("s9_5_timeout");
    assert!(again.redelivered);
    other.ack(again.tag);
    channel.open();
    channel.expect_quiet();
}

#[test]
fn s9_5_the_oldest_delivery_counts_and_acks_in_time_prevent_it() {
    let channel = open();
    if !channel.connection.is_leveret() || channel.connection.version() >= (4, 3) {
        return;
    }
    channel.declare(declare_args("s9_5_oldest", [("x-consumer-timeout", FieldValue::I32(400))]));
    channel.consume(consume("s9_5_oldest", "tag"));
    let since = Instant::now();
    // Each is acked in time: nothing happens for longer than the timeout.
    while since.elapsed() < Duration::from_millis(900) {
        channel.publish("", "s9_5_oldest", "x");
        let delivery = channel.delivery();
        std::thread::sleep(Duration::from_millis(50));
        channel.ack(delivery.tag);
    }
    channel.expect_quiet();
    // Deliveries of basic.get are included; a later ack of another one does not help.
    publish_all(&channel, "s9_5_oldest", &["old", "young"]);
    channel.delivery();
    let young = channel.delivery();
    channel.ack(young.tag);
    assert!(
        matches!(channel.next().method(), leveret_protocol::Method::ChannelClose(close) if close.reply_code == 406)
    );
}
