//! Publisher confirms (§11.1).

use std::collections::BTreeSet;

use leveret_protocol::{FieldValue, Properties, basic, confirm};

use crate::client::{
    Channel, Confirm, bind, connect, consume, declare, declare_args, delete, exchange, open, persistent, publish, text,
};

fn confirming() -> Channel {
    let channel = open();
    channel.confirm_select();
    channel
}

/// A queue that takes one message and refuses more.
fn declare_full(channel: &Channel, queue: &str, overflow: &str) {
    channel.declare(declare_args(queue, [("x-max-length", FieldValue::I32(1)), ("x-overflow", text(overflow))]));
}

#[test]
fn s11_1_select_is_answered_unless_no_wait() {
    let channel = open();
    channel.send(confirm::Select { no_wait: true });
    channel.publish("", "s11_1_nowhere", "x");
    assert_eq!(channel.confirm(), Confirm::Ack { tag: 1, multiple: false });
    channel.confirm_select();
    channel.publish("", "s11_1_nowhere", "x");
    assert_eq!(channel.confirm(), Confirm::Ack { tag: 2, multiple: false });
}

#[test]
fn s11_1_without_select_there_are_no_confirms() {
    let channel = open();
    channel.publish("", "s11_1_nowhere", "x");
    channel.expect_quiet();
}

#[test]
fn s11_1_numbers_start_at_the_select_and_count_every_publish() {
    let channel = open();
    channel.publish("", "s11_1_nowhere", "before");
    channel.confirm_select();
    channel.declare(declare("s11_1_numbers"));
    channel.publish("", "s11_1_numbers", "1");
    assert_eq!(channel.confirm(), Confirm::Ack { tag: 1, multiple: false });
    channel.publish("", "s11_1_nowhere", "2");
    assert_eq!(channel.confirm(), Confirm::Ack { tag: 2, multiple: false });
    channel.publish_properties("", "s11_1_numbers", &persistent(), "3");
    assert_eq!(channel.confirm(), Confirm::Ack { tag: 3, multiple: false });
    // Each channel counts for itself.
    let other = channel.connection.channel();
    other.confirm_select();
    other.publish("", "s11_1_nowhere", "x");
    assert_eq!(other.confirm(), Confirm::Ack { tag: 1, multiple: false });
}

#[test]
fn s11_1_every_publish_is_confirmed_exactly_once() {
    let channel = confirming();
    for queue in ["s11_1_once", "s11_1_once_2"] {
        channel.declare(declare(queue));
        channel.bind(bind(queue, "amq.direct", "s11_1_once"));
    }
    for index in 0..1000 {
        let key = ["s11_1_once", "s11_1_nowhere"][index % 2];
        let properties = if index % 3 == 0 { persistent() } else { Properties::default() };
        channel.publish_properties("amq.direct", key, &properties, "x");
    }
    channel.wait_for_confirms(1000);
    channel.expect_quiet();
    assert_eq!(channel.look("s11_1_once_2").ready, 500);
}

#[test]
fn s11_1_bursts_are_confirmed_with_multiple() {
    let channel = confirming();
    channel.declare(declare("s11_1_burst"));
    for round in 1..=20 {
        for _ in 0..200 {
            channel.publish_properties("", "s11_1_burst", &persistent(), "x");
        }
        let mut answered = 200 * (round - 1);
        while answered < 200 * round {
            match channel.confirm() {
                Confirm::Ack { multiple: true, .. } => return,
                Confirm::Ack { .. } => answered += 1,
                refused => panic!("{refused:?}"),
            }
        }
    }
    panic!("no confirm with multiple");
}

#[test]
fn s11_1_a_refused_publish_is_nacked_also_when_others_accept() {
    let channel = confirming();
    declare_full(&channel, "s11_1_full", "reject-publish");
    channel.declare(declare("s11_1_roomy"));
    channel.declare_exchange(exchange("s11_1_both", "fanout"));
    for queue in ["s11_1_full", "s11_1_roomy"] {
        channel.bind(bind(queue, "s11_1_both", ""));
    }
    channel.publish("s11_1_both", "", "a");
    assert_eq!(channel.confirm(), Confirm::Ack { tag: 1, multiple: false });
    channel.publish("s11_1_both", "", "b");
    assert!(matches!(channel.confirm(), Confirm::Nack { tag: 2, .. }));
    channel.publish("", "s11_1_roomy", "c");
    assert_eq!(channel.confirm(), Confirm::Ack { tag: 3, multiple: false });
    assert_eq!(channel.drain("s11_1_full"), ["a"]);
    assert_eq!(channel.drain("s11_1_roomy"), ["a", "b", "c"]);
    channel.publish("s11_1_both", "", "d");
    assert_eq!(channel.confirm(), Confirm::Ack { tag: 4, multiple: false });
}

#[test]
fn s11_1_acks_and_nacks_of_a_burst_do_not_cover_each_other() {
    let channel = confirming();
    declare_full(&channel, "s11_1_mixed", "reject-publish");
    let mut expected = BTreeSet::new();
    for number in 1..=60 {
        if number % 3 == 0 {
            channel.publish("", "s11_1_nowhere", "x");
            expected.insert(number);
        } else {
            channel.publish("", "s11_1_mixed", "x");
        }
    }
    // The first one of the queue was taken.
    expected.insert(1);
    let mut open: BTreeSet<u64> = (1..=60).collect();
    let mut acked = BTreeSet::new();
    while !open.is_empty() {
        let (tag, multiple, ack) = match channel.confirm() {
            Confirm::Ack { tag, multiple } => (tag, multiple, true),
            Confirm::Nack { tag, multiple } => (tag, multiple, false),
        };
        assert!(open.contains(&tag), "{tag} is confirmed twice");
        let covered: Vec<u64> = if multiple { open.range(..=tag).copied().collect() } else { vec![tag] };
        for number in covered {
            open.remove(&number);
            if ack {
                acked.insert(number);
            }
        }
    }
    assert_eq!(acked, expected);
}

#[test]
fn s11_1_whatever_becomes_of_a_message_it_is_confirmed() {
    let channel = confirming();
    channel.declare(declare_args("s11_1_ttl", [("x-message-ttl", FieldValue::I32(0))]));
    declare_full(&channel, "s11_1_drop", "drop-head");
    channel.declare(declare_args("s11_1_none", [("x-max-length", FieldValue::I32(0))]));
    channel.declare(declare("s11_1_taken"));
    channel.declare(declare("s11_1_deleted"));
    let consumer = channel.connection.channel();
    consumer.consume(basic::Consume { no_ack: true, ..consume("s11_1_taken", "tag") });
    for queue in ["s11_1_ttl", "s11_1_drop", "s11_1_none", "s11_1_taken", "s11_1_deleted"] {
        for _ in 0..3 {
            channel.publish_properties("", queue, &persistent(), "x");
        }
    }
    channel.send(delete("s11_1_deleted"));
    let mut confirmed = 0;
    while confirmed < 15 {
        let incoming = channel.next();
        match incoming.method() {
            leveret_protocol::Method::BasicAck(ack) => {
                confirmed = if ack.multiple { ack.delivery_tag } else { confirmed + 1 };
            }
            leveret_protocol::Method::QueueDeleteOk(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn s11_1_a_confirmed_message_can_be_taken_at_once_elsewhere() {
    let (channel, other) = (confirming(), open());
    channel.declare(declare("s11_1_at_once"));
    for tag in 1..=50 {
        channel.publish_properties("", "s11_1_at_once", &persistent(), "x");
        assert_eq!(channel.confirm(), Confirm::Ack { tag, multiple: false });
        let got = other.get(basic::Get { queue: "s11_1_at_once", no_ack: true });
        assert!(got.is_some(), "message {tag}");
    }
}

#[test]
fn s11_1_a_publish_that_fails_is_not_confirmed() {
    let connection = connect();
    let channel = connection.channel();
    channel.confirm_select();
    channel.refuses_publish(
        publish("s11_1_missing", ""),
        &Properties::default(),
        404,
        "no exchange 's11_1_missing' in vhost '/'",
    );
    channel.open();
    channel.expect_quiet();
}
