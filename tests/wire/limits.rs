//! Queues with a limited length, and queues with priorities (§11.4, §11.5).

use leveret_protocol::{FieldValue, Properties, basic};

use crate::client::{Channel, Confirm, consume, declare, declare_args, open, text};

fn integer(value: i32) -> FieldValue {
    FieldValue::I32(value)
}

fn limited<const N: usize>(queue: &str, arguments: [(&str, FieldValue); N]) -> Channel {
    let channel = open();
    channel.declare(declare_args(queue, arguments));
    channel
}

/// Publishes and waits until every message is confirmed: true for those that were accepted.
fn publish_all(channel: &Channel, queue: &str, bodies: &[&str]) -> Vec<bool> {
    let publisher = channel.connection.channel();
    publisher.confirm_select();
    let accept = |body: &&str| {
        publisher.publish("", queue, body);
        matches!(publisher.confirm(), Confirm::Ack { .. })
    };
    let accepted = bodies.iter().map(accept).collect();
    publisher.close();
    accepted
}

fn with_priority(priority: u8) -> Properties {
    Properties { priority: Some(priority), ..Properties::default() }
}

#[test]
fn s11_4_drop_head_keeps_the_newest() {
    let channel = limited("s11_4_head", [("x-max-length", integer(3))]);
    assert_eq!(publish_all(&channel, "s11_4_head", &["a", "b", "c", "d", "e"]), [true; 5]);
    assert_eq!(channel.drain("s11_4_head"), ["c", "d", "e"]);
}

#[test]
fn s11_4_bytes_are_those_of_bodies() {
    let channel = limited("s11_4_bytes", [("x-max-length-bytes", integer(10))]);
    publish_all(&channel, "s11_4_bytes", &["aaaa", "bbbb", "cc"]);
    assert_eq!(channel.ready("s11_4_bytes", 3), 3, "exactly ten");
    publish_all(&channel, "s11_4_bytes", &["d"]);
    assert_eq!(channel.drain("s11_4_bytes"), ["bbbb", "cc", "d"]);
    // One that is too large alone is dropped itself, after all others.
    publish_all(&channel, "s11_4_bytes", &["e", "fffffffffff"]);
    assert_eq!(channel.drain("s11_4_bytes"), [] as [&str; 0]);
    publish_all(&channel, "s11_4_bytes", &["g"]);
    assert_eq!(channel.drain("s11_4_bytes"), ["g"]);
}

#[test]
fn s11_4_both_limits_hold() {
    let channel = limited("s11_4_both", [("x-max-length", integer(2)), ("x-max-length-bytes", integer(5))]);
    publish_all(&channel, "s11_4_both", &["a", "b", "c"]);
    assert_eq!(channel.drain("s11_4_both"), ["b", "c"]);
    publish_all(&channel, "s11_4_both", &["aaa", "bbb"]);
    assert_eq!(channel.drain("s11_4_both"), ["bbb"]);
}

#[test]
fn s11_4_only_ready_messages_count() {
    let channel = limited("s11_4_ready", [("x-max-length", integer(1))]);
    publish_all(&channel, "s11_4_ready", &["a"]);
    let taken = channel.take("s11_4_ready");
    publish_all(&channel, "s11_4_ready", &["b"]);
    let other = channel.take("s11_4_ready");
    assert_eq!((taken.text(), other.text()), ("a", "b"));
    channel.ack_multiple(0);
}

#[test]
fn s11_4_a_requeue_over_the_limit_drops_from_the_head() {
    let channel = limited("s11_4_requeue", [("x-max-length", integer(1))]);
    publish_all(&channel, "s11_4_requeue", &["a"]);
    let taken = channel.take("s11_4_requeue");
    publish_all(&channel, "s11_4_requeue", &["b"]);
    channel.nack(taken.tag, false, true);
    publish_all(&channel, "s11_4_requeue", &["c"]);
    assert_eq!(channel.drain("s11_4_requeue"), ["c"]);
}

#[test]
fn s11_4_a_consumer_that_waits_gets_what_the_queue_may_not_hold() {
    let channel = limited("s11_4_waiting", [("x-max-length", integer(0))]);
    publish_all(&channel, "s11_4_waiting", &["lost"]);
    channel.qos(1, false);
    channel.consume(consume("s11_4_waiting", "tag"));
    publish_all(&channel, "s11_4_waiting", &["taken", "lost too"]);
    let delivery = channel.delivery();
    assert_eq!(delivery.text(), "taken");
    channel.ack(delivery.tag);
    channel.expect_quiet();
}

#[test]
fn s11_4_reject_publish_keeps_the_oldest_and_nacks() {
    let channel = limited("s11_4_reject", [("x-max-length", integer(2)), ("x-overflow", text("reject-publish"))]);
    assert_eq!(publish_all(&channel, "s11_4_reject", &["a", "b", "c"]), [true, true, false]);
    // Without confirms it is dropped in silence.
    channel.publish("", "s11_4_reject", "d");
    channel.expect_quiet();
    assert_eq!(channel.pop("s11_4_reject").text(), "a");
    assert_eq!(publish_all(&channel, "s11_4_reject", &["e", "f"]), [true, false]);
    assert_eq!(channel.drain("s11_4_reject"), ["b", "e"]);
}

#[test]
fn s11_4_reject_publish_by_bytes() {
    let arguments = [("x-max-length-bytes", integer(10)), ("x-overflow", text("reject-publish"))];
    let channel = limited("s11_4_reject_bytes", arguments);
    let accepted = publish_all(&channel, "s11_4_reject_bytes", &["aaaaaa", "bbbb", "c"]);
    assert_eq!(accepted, [true, true, false]);
    assert_eq!(channel.drain("s11_4_reject_bytes"), ["aaaaaa", "bbbb"]);
}

#[test]
fn s11_4_reject_publish_dlx_dead_letters_the_new_message() {
    let channel = open();
    channel.declare(declare("s11_4_dlx_dead"));
    channel.declare(declare_args(
        "s11_4_dlx",
        [
            ("x-max-length", integer(1)),
            ("x-overflow", text("reject-publish-dlx")),
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text("s11_4_dlx_dead")),
        ],
    ));
    assert_eq!(publish_all(&channel, "s11_4_dlx", &["a", "b"]), [true, false]);
    let dead = channel.pop("s11_4_dlx_dead");
    assert_eq!((dead.text(), dead.header("x-first-death-reason")), ("b", Some(&text("maxlen"))));
    assert_eq!(channel.drain("s11_4_dlx"), ["a"]);
}

#[test]
fn s11_4_a_full_priority_queue_drops_what_would_be_next() {
    let channel = limited("s11_4_levels", [("x-max-length", integer(2)), ("x-max-priority", integer(9))]);
    for (priority, body) in [(1, "low"), (9, "high"), (5, "middle")] {
        channel.publish_properties("", "s11_4_levels", &with_priority(priority), body);
    }
    channel.expect_quiet();
    assert_eq!(channel.ready("s11_4_levels", 2), 2);
    assert_eq!(channel.drain("s11_4_levels"), ["middle", "low"]);
}

#[test]
fn s11_5_the_highest_level_goes_first_and_each_level_in_order() {
    let channel = limited("s11_5_levels", [("x-max-priority", integer(5))]);
    let sent = [(Some(1), "1a"), (Some(5), "5a"), (None, "0a"), (Some(3), "3a"), (Some(5), "5b"), (Some(0), "0b")];
    for (priority, body) in sent {
        channel.publish_properties("", "s11_5_levels", &Properties { priority, ..Properties::default() }, body);
    }
    channel.ready("s11_5_levels", 6);
    assert_eq!(channel.drain("s11_5_levels"), ["5a", "5b", "3a", "1a", "0a", "0b"]);
}

#[test]
fn s11_5_priorities_over_the_maximum_are_the_maximum_and_delivered_as_sent() {
    let channel = limited("s11_5_over", [("x-max-priority", integer(3))]);
    for (priority, body) in [(3, "a"), (200, "b"), (2, "c"), (4, "d")] {
        channel.publish_properties("", "s11_5_over", &with_priority(priority), body);
    }
    channel.ready("s11_5_over", 4);
    let all: Vec<_> = (0..4).map(|_| channel.pop("s11_5_over")).collect();
    let seen: Vec<_> = all.iter().map(|delivery| (delivery.text(), delivery.properties.priority.unwrap())).collect();
    assert_eq!(seen, [("a", 3), ("b", 200), ("d", 4), ("c", 2)]);
}

#[test]
fn s11_5_without_the_argument_priorities_mean_nothing() {
    let channel = limited("s11_5_none", []);
    for (priority, body) in [(1, "a"), (9, "b")] {
        channel.publish_properties("", "s11_5_none", &with_priority(priority), body);
    }
    channel.ready("s11_5_none", 2);
    assert_eq!(channel.drain("s11_5_none"), ["a", "b"]);
}

#[test]
fn s11_5_a_maximum_of_0_is_like_1() {
    let channel = limited("s11_5_zero", [("x-max-priority", integer(0))]);
    for (priority, body) in [(0, "a"), (1, "b"), (7, "c")] {
        channel.publish_properties("", "s11_5_zero", &with_priority(priority), body);
    }
    channel.ready("s11_5_zero", 3);
    assert_eq!(channel.drain("s11_5_zero"), ["b", "c", "a"]);
}

#[test]
fn s11_5_a_requeued_message_returns_to_its_place_in_its_level() {
    let channel = limited("s11_5_requeue", [("x-max-priority", integer(5))]);
    for (priority, body) in [(1, "1a"), (5, "5a"), (5, "5b"), (1, "1b")] {
        channel.publish_properties("", "s11_5_requeue", &with_priority(priority), body);
    }
    channel.ready("s11_5_requeue", 4);
    let taken: Vec<_> = (0..3).map(|_| channel.take("s11_5_requeue")).collect();
    assert_eq!(taken[2].text(), "1a");
    channel.nack(0, true, true);
    assert_eq!(channel.ready("s11_5_requeue", 4), 4);
    assert_eq!(channel.drain("s11_5_requeue"), ["5a", "5b", "1a", "1b"]);
}

#[test]
fn s11_5_what_a_consumer_holds_is_not_taken_back_for_something_higher() {
    let channel = limited("s11_5_held", [("x-max-priority", integer(5))]);
    channel.qos(1, false);
    channel.consume(consume("s11_5_held", "tag"));
    channel.publish_properties("", "s11_5_held", &with_priority(1), "first");
    let first = channel.delivery();
    for (priority, body) in [(2, "low"), (5, "high")] {
        channel.publish_properties("", "s11_5_held", &with_priority(priority), body);
    }
    assert_eq!(first.text(), "first");
    channel.ready("s11_5_held", 2);
    channel.ack(first.tag);
    let next = channel.delivery();
    assert_eq!(next.text(), "high");
    channel.ack(next.tag);
    assert_eq!(channel.delivery().text(), "low");
}

#[test]
fn s11_5_all_255_levels_can_be_used() {
    let channel = limited("s11_5_many", [("x-max-priority", FieldValue::U8(255))]);
    for priority in 0..=255 {
        channel.publish_properties("", "s11_5_many", &with_priority(priority), &priority.to_string());
    }
    channel.ready("s11_5_many", 256);
    channel.consume(basic::Consume { no_ack: true, ..consume("s11_5_many", "tag") });
    let expected: Vec<String> = (0..=255).rev().map(|priority: u8| priority.to_string()).collect();
    assert_eq!(channel.bodies(256), expected);
}
