//! basic.consume and cancel: checks, tags, exclusive consumers (§8.7, §8.8).

use leveret_protocol::{FieldValue, basic, queue};

use crate::client::{Channel, connect, consume, declare, declare_args, delete, open, table, text};

fn exclusive<'a>(queue: &'a str, tag: &'a str) -> basic::Consume<'a> {
    basic::Consume { exclusive: true, ..consume(queue, tag) }
}

fn with_argument<'a>(queue: &'a str, name: &str, value: FieldValue) -> basic::Consume<'a> {
    basic::Consume { arguments: table([(name, value)]), ..consume(queue, "tag") }
}

fn declared(queue: &str) -> Channel {
    let channel = open();
    channel.declare(declare(queue));
    channel
}

#[test]
fn s8_7_step_1_a_tag_in_use_is_530_whatever_else_is_wrong() {
    for queue in ["s8_7_reused", "s8_7_missing"] {
        let channel = declared("s8_7_reused");
        channel.consume(consume("s8_7_reused", "same"));
        channel.refuses_hard(consume(queue, "same"), 530, "attempt to reuse consumer tag 'same'");
    }
}

#[test]
fn s8_7_the_same_tag_may_be_used_on_two_channels_and_again_after_its_cancel() {
    let channel = declared("s8_7_same");
    let other = channel.connection.channel();
    channel.consume(consume("s8_7_same", "same"));
    other.consume(consume("s8_7_same", "same"));
    channel.cancel("same");
    channel.consume(consume("s8_7_same", "same"));
}

#[test]
fn s8_7_step_4_a_missing_queue_is_404() {
    let text = "no queue 's8_7_missing' in vhost '/'";
    open().refuses(with_argument("s8_7_missing", "x-priority", FieldValue::Void), 404, text);
}

#[test]
fn s8_7_step_5_a_queue_of_another_connection_is_405() {
    let owner = open();
    owner.declare(queue::Declare { exclusive: true, ..declare("s8_7_locked") });
    let text = "cannot obtain exclusive access to locked queue 's8_7_locked' in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration.";
    open().refuses(with_argument("s8_7_locked", "x-priority", FieldValue::Void), 405, text);
}

#[test]
fn s8_7_step_6_a_priority_is_an_integer() {
    let channel = declared("s8_7_priority");
    channel.consume(exclusive("s8_7_priority", "first"));
    for (value, type_) in [(text("5"), "longstr"), (FieldValue::F64(5.0), "double"), (FieldValue::Bool(true), "bool")] {
        let consume = with_argument("s8_7_priority", "x-priority", value);
        let text = format!(
            "invalid arg 'x-priority' for queue 's8_7_priority' in vhost '/': \"expected integer, got {type_}\""
        );
        // Before the exclusive consumer is noticed.
        open().refuses(consume, 406, &text);
    }
}

#[test]
fn s8_7_step_6_arguments_of_streams_are_refused() {
    declared("s8_7_stream_args");
    for (name, value) in [("x-stream-offset", text("first")), ("x-stream-filter", text("f"))] {
        let text = format!(
            "invalid arg '{name}' for queue 's8_7_stream_args' in vhost '/' of queue type rabbit_classic_queue"
        );
        open().refuses(with_argument("s8_7_stream_args", name, value), 406, &text);
    }
}

#[test]
fn s8_7_priorities_of_any_width_and_unknown_arguments_are_accepted() {
    let channel = declared("s8_7_accepted");
    let values = [
        ("x-priority", FieldValue::I8(-128)),
        ("x-priority", FieldValue::U16(1000)),
        ("x-priority", FieldValue::I64(i64::MAX)),
        ("x-cancel-on-ha-failover", FieldValue::Bool(true)),
        ("x-unheard-of", FieldValue::Void),
    ];
    for (name, value) in values {
        channel.consume(with_argument("s8_7_accepted", name, value));
        channel.cancel("tag");
    }
}

#[test]
fn s8_7_step_7_an_exclusive_consumer_is_alone() {
    let channel = declared("s8_7_alone");
    let text = "queue 's8_7_alone' in vhost '/' in exclusive use";
    channel.consume(exclusive("s8_7_alone", "only"));
    open().refuses(consume("s8_7_alone", "other"), 403, text);
    open().refuses(exclusive("s8_7_alone", "other"), 403, text);
    channel.connection.channel().refuses(consume("s8_7_alone", "other"), 403, text);
    channel.cancel("only");
    channel.consume(consume("s8_7_alone", "shared"));
    open().refuses(exclusive("s8_7_alone", "other"), 403, text);
    channel.close();
    open().consume(exclusive("s8_7_alone", "other"));
}

#[test]
fn s8_7_step_7_a_single_active_consumer_cannot_be_exclusive() {
    let channel = open();
    channel.declare(declare_args("s8_7_sac", [("x-single-active-consumer", FieldValue::Bool(true))]));
    channel.refuses(exclusive("s8_7_sac", "tag"), 403, "queue 's8_7_sac' in vhost '/' in exclusive use");
}

#[test]
fn s8_7_an_empty_tag_is_replaced_by_a_generated_one() {
    let channel = declared("s8_7_tags");
    let mut tags = std::collections::BTreeSet::new();
    for _ in 0..5 {
        let tag = channel.consume(consume("s8_7_tags", ""));
        let random = tag.strip_prefix("amq.ctag-").expect("generated tags begin with amq.ctag-");
        assert_eq!(random.len(), 22, "{tag}");
        tags.insert(tag);
    }
    assert_eq!(tags.len(), 5);
    for tag in tags {
        channel.cancel(&tag);
    }
    assert_eq!(channel.look("s8_7_tags").consumers, 0);
}

#[test]
fn s8_7_consume_ok_comes_before_the_first_delivery() {
    let channel = declared("s8_7_before");
    for round in 0..50 {
        channel.publish("", "s8_7_before", "x");
        channel.send(basic::Consume { no_ack: true, ..consume("s8_7_before", "tag") });
        channel.expect(basic::ConsumeOk::ID);
        assert_eq!(channel.delivery().text(), "x", "round {round}");
        channel.cancel("tag");
    }
}

#[test]
fn s8_7_no_wait_is_not_answered() {
    let channel = declared("s8_7_no_wait");
    channel.send(basic::Consume { no_wait: true, ..consume("s8_7_no_wait", "tag") });
    channel.expect_quiet();
    channel.publish("", "s8_7_no_wait", "x");
    assert_eq!(channel.delivery().consumer_tag, "tag");
}

#[test]
fn s8_7_no_local_is_ignored() {
    let channel = declared("s8_7_no_local");
    channel.consume(basic::Consume { no_local: true, ..consume("s8_7_no_local", "tag") });
    channel.publish("", "s8_7_no_local", "mine");
    assert_eq!(channel.delivery().text(), "mine");
}

#[test]
fn s8_7_a_server_named_queue_may_be_consumed_by_name_from_elsewhere() {
    let channel = open();
    let name = channel.declare(declare("")).queue;
    let other = open();
    other.consume(consume(&name, "tag"));
    channel.publish("", &name, "x");
    assert_eq!(other.delivery().text(), "x");
    channel.delete(delete(&name));
}

#[test]
fn s8_7_one_connection_takes_many_consumers() {
    let connection = connect();
    let channel = connection.channel();
    channel.declare(declare("s8_7_many"));
    for index in 0..300 {
        let tag = format!("tag {index}");
        channel.send(basic::Consume { no_wait: true, no_ack: true, ..consume("s8_7_many", &tag) });
    }
    assert_eq!(channel.look("s8_7_many").consumers, 300);
    for _ in 0..300 {
        channel.publish("", "s8_7_many", "x");
    }
    let tags: std::collections::BTreeSet<_> = (0..300).map(|_| channel.delivery().consumer_tag).collect();
    assert_eq!(tags.len(), 300, "each consumer gets one");
}

#[test]
fn s8_8_cancel_of_an_unknown_tag_is_answered() {
    let channel = open();
    channel.cancel("nobody");
    channel.cancel("");
}

#[test]
fn s8_8_after_cancel_ok_nothing_is_delivered() {
    let channel = declared("s8_8_after");
    let producer = open();
    for round in 0..20 {
        channel.consume(basic::Consume { no_ack: true, ..consume("s8_8_after", "tag") });
        for _ in 0..20 {
            producer.publish("", "s8_8_after", "x");
        }
        channel.cancel("tag");
        channel.expect_quiet();
        assert_eq!(channel.look("s8_8_after").consumers, 0, "round {round}");
    }
}

#[test]
fn s8_8_what_is_unacked_stays_unacked() {
    let channel = declared("s8_8_stays");
    for body in ["a", "b", "c"] {
        channel.publish("", "s8_8_stays", body);
    }
    channel.qos(2, false);
    channel.consume(consume("s8_8_stays", "tag"));
    let deliveries = [channel.delivery(), channel.delivery()];
    channel.cancel("tag");
    assert_eq!(channel.look("s8_8_stays").ready, 1);
    channel.ack(deliveries[0].tag);
    channel.reject(deliveries[1].tag, true);
    assert_eq!(channel.drain("s8_8_stays"), ["b", "c"]);
}

#[test]
fn s8_8_no_wait_is_not_answered() {
    let channel = declared("s8_8_no_wait");
    channel.consume(consume("s8_8_no_wait", "tag"));
    channel.send(basic::Cancel { consumer_tag: "tag", no_wait: true });
    channel.expect_quiet();
    assert_eq!(channel.look("s8_8_no_wait").consumers, 0);
}

#[test]
fn s8_8_messages_for_a_cancelled_consumer_go_to_the_others() {
    let (one, two) = (declared("s8_8_others"), open());
    one.consume(consume("s8_8_others", "one"));
    two.consume(consume("s8_8_others", "two"));
    one.cancel("one");
    for body in ["a", "b", "c"] {
        one.publish("", "s8_8_others", body);
    }
    assert_eq!(two.bodies(3), ["a", "b", "c"]);
}
