//! Transactions (§10).

use leveret_protocol::{Properties, basic, confirm, put_content, put_method_frame, queue, tx};

use crate::broker::{self, Broker};
use crate::client::{
    Channel, Connection, Login, connect, consume, declare, declare_args, open, persistent, publish, text,
};

fn transactional(queue: &str) -> Channel {
    let channel = open();
    channel.declare(declare(queue));
    channel.tx_select();
    channel
}

#[test]
fn s10_select_may_be_repeated_but_not_mixed_with_confirms() {
    let channel = open();
    channel.tx_select();
    channel.tx_select();
    let text = "cannot switch from tx to confirm mode";
    channel.refuses(confirm::Select { no_wait: false }, 406, text);
    let channel = open();
    channel.confirm_select();
    channel.confirm_select();
    channel.refuses(tx::Select {}, 406, "cannot switch from confirm to tx mode");
}

#[test]
fn s10_commit_and_rollback_need_a_select() {
    open().refuses(tx::Commit {}, 406, "channel is not transactional");
    open().refuses(tx::Rollback {}, 406, "channel is not transactional");
}

#[test]
fn s10_publishes_become_visible_at_commit() {
    let channel = transactional("s10_visible");
    let other = open();
    for body in ["a", "b"] {
        channel.publish_with(publish("", "s10_visible"), &persistent(), body.as_bytes());
    }
    channel.expect_quiet();
    assert_eq!(other.look("s10_visible").ready, 0);
    channel.tx_commit();
    assert_eq!(other.drain("s10_visible"), ["a", "b"]);
    // An empty one is fine too.
    channel.tx_commit();
}

#[test]
fn s10_rollback_drops_publishes() {
    let channel = transactional("s10_dropped");
    channel.publish("", "s10_dropped", "lost");
    channel.tx_rollback();
    channel.publish("", "s10_dropped", "kept");
    channel.tx_commit();
    assert_eq!(channel.drain("s10_dropped"), ["kept"]);
}

#[test]
fn s10_closing_the_channel_drops_publishes_and_requeues_what_was_acked() {
    let channel = transactional("s10_closed");
    let other = open();
    other.publish("", "s10_closed", "a");
    let taken = channel.take("s10_closed");
    channel.ack(taken.tag);
    channel.publish("", "s10_closed", "lost");
    channel.close();
    let back = other.take("s10_closed");
    assert_eq!((back.text(), back.redelivered), ("a", true));
    assert_eq!(other.look("s10_closed").ready, 0);
}

#[test]
fn s10_acks_count_at_commit() {
    let channel = transactional("s10_acks");
    let other = open();
    for body in ["a", "b", "c"] {
        other.publish("", "s10_acks", body);
    }
    let taken: Vec<_> = (0..3).map(|_| channel.take("s10_acks")).collect();
    channel.ack(taken[0].tag);
    channel.reject(taken[1].tag, true);
    channel.nack(taken[2].tag, false, false);
    channel.expect_quiet();
    assert_eq!(other.look("s10_acks").ready, 0);
    channel.tx_commit();
    assert_eq!(other.drain("s10_acks"), ["b"]);
}

/// After a rollback they are outstanding as before: not redelivered, and may be settled another way.
#[test]
fn s10_rollback_makes_acked_deliveries_outstanding_again() {
    let channel = transactional("s10_outstanding");
    let other = open();
    for body in ["a", "b", "c"] {
        other.publish("", "s10_outstanding", body);
    }
    channel.consume(consume("s10_outstanding", "tag"));
    let tags = [channel.delivery().tag, channel.delivery().tag, channel.delivery().tag];
    channel.ack(tags[2]);
    channel.ack(tags[0]);
    channel.tx_rollback();
    channel.expect_quiet();
    assert_eq!(other.look("s10_outstanding").ready, 0);
    channel.ack_multiple(tags[1]);
    channel.tx_commit();
    channel.close();
    assert_eq!(other.drain("s10_outstanding"), ["c"]);
}

#[test]
fn s10_a_tag_acked_in_the_transaction_is_not_outstanding() {
    let channel = transactional("s10_twice");
    channel.publish("", "s10_twice", "a");
    channel.tx_commit();
    let taken = channel.take("s10_twice");
    channel.ack(taken.tag);
    channel.refuses(basic::Ack { delivery_tag: taken.tag, multiple: false }, 406, "unknown delivery tag 1");
}

#[test]
fn s10_errors_come_when_the_offence_does_not_at_commit() {
    let channel = transactional("s10_errors");
    channel.publish("s10_missing", "k", "x");
    channel.expect_close(404, "no exchange 's10_missing' in vhost '/'", basic::Publish::ID);
    channel.open();
    channel.tx_select();
    channel.refuses(basic::Ack { delivery_tag: 7, multiple: false }, 406, "unknown delivery tag 7");
}

#[test]
fn s10_mandatory_messages_come_back_during_commit() {
    let channel = transactional("s10_returns");
    let mandatory = basic::Publish { mandatory: true, ..publish("", "s10_nowhere") };
    channel.publish_with(mandatory, &Properties::default(), b"back");
    channel.publish("", "s10_returns", "kept");
    channel.expect_quiet();
    channel.send(tx::Commit {});
    assert_eq!(channel.returned().text(), "back");
    channel.expect(tx::CommitOk::ID);
    assert_eq!(channel.drain("s10_returns"), ["kept"]);
}

#[test]
fn s10_recover_leaves_what_is_acked_in_the_transaction() {
    let channel = transactional("s10_recover");
    let other = open();
    for body in ["a", "b"] {
        other.publish("", "s10_recover", body);
    }
    let taken = [channel.take("s10_recover"), channel.take("s10_recover")];
    channel.ack(taken[0].tag);
    channel.call(basic::Recover { requeue: true }, basic::RecoverOk::ID);
    // What recover requeues does not wait for the commit.
    assert_eq!(other.ready("s10_recover", 1), 1);
    channel.tx_commit();
    assert_eq!(other.drain("s10_recover"), ["b"]);
}

#[test]
fn s10_consumption_without_ack_is_no_part_of_it() {
    let channel = transactional("s10_no_ack");
    let other = open();
    other.publish("", "s10_no_ack", "a");
    assert_eq!(channel.pop("s10_no_ack").text(), "a");
    channel.tx_rollback();
    channel.close();
    assert_eq!(other.look("s10_no_ack").ready, 0);
}

#[test]
fn s10_a_queue_that_rejects_makes_the_commit_fail() {
    let connection = connect();
    let channel = connection.channel();
    let arguments = [("x-max-length", leveret_protocol::FieldValue::I32(1)), ("x-overflow", text("reject-publish"))];
    channel.declare(declare_args("s10_rejects", arguments));
    channel.tx_select();
    channel.publish("", "s10_rejects", "a");
    channel.tx_commit();
    channel.publish("", "s10_rejects", "b");
    channel.refuses(tx::Commit {}, 406, "partial tx completion");
    assert_eq!(connection.channel().drain("s10_rejects"), ["a"]);
}

#[test]
fn s10_routes_are_those_at_the_time_of_the_publish() {
    let channel = transactional("s10_routes");
    channel.publish("", "s10_routes_later", "lost");
    channel.declare(declare("s10_routes_later"));
    channel.publish("", "s10_routes_later", "found");
    channel.tx_commit();
    assert_eq!(channel.drain("s10_routes_later"), ["found"]);
}

#[test]
fn s10_the_order_of_publishes_and_their_prefetch_survive() {
    let channel = transactional("s10_order");
    let consumer = open();
    consumer.qos(1, false);
    consumer.consume(consume("s10_order", "tag"));
    for body in ["a", "b", "c"] {
        channel.publish("", "s10_order", body);
    }
    channel.tx_commit();
    for body in ["a", "b", "c"] {
        let delivery = consumer.delivery();
        assert_eq!(delivery.text(), body);
        consumer.ack(delivery.tag);
    }
}

/// Only where the commit takes its time: the disk has to have the messages first.
#[test]
fn s10_anything_between_commit_and_commit_ok_is_504() {
    let folder = tempfile::tempdir().unwrap();
    let ours = broker::is_ours().then(|| Broker::in_folder(folder.path()));
    let address = ours.as_ref().map_or_else(broker::shared, |broker| broker.address);
    let channel = Connection::open(address, &Login::default()).channel();
    channel.declare(declare("s10_between"));
    channel.tx_select();
    // All in one packet, or the answer may be faster than the offence.
    let mut packet = bytes::BytesMut::new();
    let mut encoded = bytes::BytesMut::new();
    persistent().encode(&mut encoded);
    for _ in 0..50 {
        put_method_frame(&mut packet, 1, &publish("", "s10_between").into());
        put_content(&mut packet, 1, 131_072, &encoded, &[b'x'; 1000]);
    }
    put_method_frame(&mut packet, 1, &tx::Commit {}.into());
    put_method_frame(&mut packet, 1, &declare("s10_between").into());
    channel.connection.send_bytes(&packet);
    channel.connection.expect_close(504, "unexpected command while processing 'tx.commit'", queue::Declare::ID);
}
