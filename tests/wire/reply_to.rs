//! Replies straight to a channel, and consumers that the server cancels (§13).

use leveret_protocol::{FieldValue, Method, Properties, basic, queue};

use crate::broker;
use crate::client::{
    Channel, Confirm, Connection, Declared, Login, connect, consume, declare, declare_args, delete, expiring, open,
    publish, table,
};

const REPLY_TO: &str = "amq.rabbitmq.reply-to";

fn reply_consumer(tag: &str) -> basic::Consume<'_> {
    basic::Consume { no_ack: true, ..consume(REPLY_TO, tag) }
}

fn asking() -> Properties {
    Properties { reply_to: Some(REPLY_TO.into()), correlation_id: Some("7".into()), ..Properties::default() }
}

fn passive(queue: &str) -> queue::Declare<'_> {
    queue::Declare { passive: true, ..declare(queue) }
}

/// Sends a request to a queue and takes it there: the name for the reply.
fn reply_name(requester: &Channel, responder: &Channel, queue: &str) -> String {
    responder.declare(declare(queue));
    requester.publish_properties("", queue, &asking(), "request");
    let request = responder.pop(queue);
    String::from_utf8(request.properties.reply_to.expect("reply-to is there").to_vec()).unwrap()
}

#[test]
fn s13_1_a_reply_comes_straight_to_the_requester() {
    let (requester, responder) = (open(), open());
    assert_eq!(requester.consume(reply_consumer("replies")), "replies");
    let name = reply_name(&requester, &responder, "s13_1_requests");
    let opaque = name.strip_prefix("amq.rabbitmq.reply-to.").expect("the name begins like the queue");
    assert!(!opaque.is_empty() && name.len() <= 255 && name.is_ascii(), "{name}");
    let reply = Properties { correlation_id: Some("7".into()), ..Properties::default() };
    let counts = requester.connection.version() >= (4, 2);
    for (tag, body) in [(1, "reply"), (if counts { 2 } else { 1 }, "another")] {
        responder.publish_properties("", &name, &reply, body);
        let came = requester.delivery();
        assert_eq!((came.consumer_tag.as_str(), came.tag, came.redelivered), ("replies", tag, false));
        assert_eq!((came.exchange.as_str(), came.routing_key.as_str(), came.text()), ("", name.as_str(), body));
        assert_eq!(came.properties, reply);
    }
    // It has no queue of its own, and nothing to ack.
    requester.refuses(basic::Ack { delivery_tag: 1, multiple: false }, 406, "unknown delivery tag 1");
}

#[test]
fn s13_1_each_requester_has_a_name_of_its_own_that_stays_the_same() {
    let responder = open();
    let requesters = [open(), open()];
    let mut names = Vec::new();
    for requester in &requesters {
        requester.consume(reply_consumer(""));
        let name = reply_name(requester, &responder, "s13_1_names");
        assert_eq!(reply_name(requester, &responder, "s13_1_names"), name);
        names.push(name);
    }
    assert_ne!(names[0], names[1]);
    responder.publish("", &names[1], "for the second");
    assert_eq!(requesters[1].delivery().text(), "for the second");
    requesters[0].expect_quiet();
}

#[test]
fn s13_1_a_reply_consumer_cannot_ack_and_there_is_one_per_channel() {
    open().refuses(consume(REPLY_TO, "tag"), 406, "reply consumer cannot acknowledge");
    let channel = open();
    channel.consume(reply_consumer("one"));
    channel.refuses(reply_consumer("two"), 406, "reply consumer already set");
    let channel = open();
    channel.consume(reply_consumer("same"));
    channel.refuses(reply_consumer("same"), 406, "reply consumer already set");
    let channel = open();
    channel.declare(declare("s13_1_same_tag"));
    channel.consume(consume("s13_1_same_tag", "same"));
    channel.refuses_hard(reply_consumer("same"), 530, "attempt to reuse consumer tag 'same'");
}

#[test]
fn s13_1_a_generated_tag_and_exclusive_and_arguments_are_fine() {
    let channel = open();
    let strange =
        basic::Consume { exclusive: true, arguments: table([("x-priority", FieldValue::Void)]), ..reply_consumer("") };
    let tag = channel.consume(strange);
    assert!(tag.starts_with("amq.ctag-"), "{tag}");
}

#[test]
fn s13_1_a_request_needs_a_reply_consumer_on_its_own_channel() {
    let connection = connect();
    connection.channel().consume(reply_consumer(""));
    connection.channel().refuses_publish(
        publish("", "s13_1_nowhere"),
        &asking(),
        406,
        "fast reply consumer does not exist",
    );
    // A name that somebody made up is just text.
    let properties = Properties { reply_to: Some("amq.rabbitmq.reply-to.x".into()), ..Properties::default() };
    let channel = connection.channel();
    channel.declare(declare("s13_1_made_up"));
    channel.publish_properties("", "s13_1_made_up", &properties, "x");
    assert_eq!(channel.pop("s13_1_made_up").properties, properties);
}

#[test]
fn s13_1_a_requester_can_be_asked_for_by_name() {
    let (requester, responder) = (open(), open());
    requester.consume(reply_consumer("replies"));
    let name = reply_name(&requester, &responder, "s13_1_asked");
    for (queue, declare) in [
        (REPLY_TO, passive(REPLY_TO)),
        (REPLY_TO, declare(REPLY_TO)),
        (&name, passive(&name)),
        (&name, declare_args(&name, [("x-max-length", FieldValue::I32(1))])),
    ] {
        let expected = Declared { queue: queue.to_owned(), ready: 0, consumers: 1 };
        assert_eq!(responder.declare(declare), expected);
    }
    requester.cancel("replies");
    responder.refuses(passive(&name), 404, &format!("no queue '{name}' in vhost '/'"));
    assert_eq!(open().look(REPLY_TO).consumers, 1);
    if !requester.connection.is_leveret() {
        return; // RabbitMQ's channel crashes on a name that is none of its own.
    }
    let made_up = "amq.rabbitmq.reply-to.nobody";
    open().refuses(passive(made_up), 404, &format!("no queue '{made_up}' in vhost '/'"));
}

#[test]
fn s13_1_after_its_cancel_another_may_be_set() {
    let (requester, responder) = (open(), open());
    requester.consume(reply_consumer("one"));
    let old = reply_name(&requester, &responder, "s13_1_cancel");
    requester.cancel("one");
    requester.consume(reply_consumer("two"));
    let new = reply_name(&requester, &responder, "s13_1_cancel");
    responder.publish("", &new, "new");
    assert_eq!(requester.delivery().text(), "new");
    if old != new {
        responder.publish("", &old, "old");
        responder.expect_quiet();
        requester.expect_quiet();
    }
}

#[test]
fn s13_1_a_reply_to_a_requester_that_is_gone_is_dropped_and_confirmed() {
    let (requester, responder) = (open(), open());
    requester.consume(reply_consumer("replies"));
    let name = reply_name(&requester, &responder, "s13_1_gone");
    requester.close();
    responder.confirm_select();
    responder.publish("", &name, "lost");
    assert_eq!(responder.confirm(), Confirm::Ack { tag: 1, multiple: false });
    let mandatory = basic::Publish { mandatory: true, ..publish("", &name) };
    responder.publish_with(mandatory, &Properties::default(), b"lost");
    if responder.connection.version() < (4, 2) {
        assert_eq!(responder.returned().routing_key, name);
    }
    assert_eq!(responder.confirm(), Confirm::Ack { tag: 2, multiple: false });
}

#[test]
fn s13_1_replies_are_confirmed_and_mandatory_ones_count_as_routed_from_4_2_on() {
    let (requester, responder) = (open(), open());
    requester.consume(reply_consumer("replies"));
    let name = reply_name(&requester, &responder, "s13_1_confirmed");
    responder.confirm_select();
    let mandatory = basic::Publish { mandatory: true, ..publish("", &name) };
    responder.publish_with(mandatory, &Properties::default(), b"x");
    if responder.connection.version() < (4, 2) {
        // It is returned, although it is delivered too.
        responder.returned();
    }
    assert_eq!(responder.confirm(), Confirm::Ack { tag: 1, multiple: false });
    assert_eq!(requester.delivery().text(), "x");
}

#[test]
fn s13_1_large_replies_come_whole() {
    let (requester, responder) = (open(), open());
    requester.consume(reply_consumer("replies"));
    let name = reply_name(&requester, &responder, "s13_1_large");
    let body = vec![b'r'; 500_000];
    responder.publish_with(publish("", &name), &expiring("60000"), &body);
    assert!(requester.delivery().body == body);
}

#[test]
fn s13_1_a_reply_in_a_transaction_comes_with_its_commit() {
    let (requester, responder) = (open(), open());
    if responder.connection.version() < (4, 2) {
        return; // At once.
    }
    requester.consume(reply_consumer("replies"));
    let name = reply_name(&requester, &responder, "s13_1_tx");
    responder.tx_select();
    responder.publish("", &name, "dropped");
    responder.tx_rollback();
    responder.publish("", &name, "kept");
    responder.expect_quiet();
    requester.expect_quiet();
    responder.tx_commit();
    assert_eq!(requester.delivery().text(), "kept");
}

/// A consumer of a queue that is about to be deleted by another channel.
fn consumer_of(queue: &str, login: &Login<'_>) -> (Channel, Channel) {
    let channel = Connection::open(broker::shared(), login).channel();
    channel.declare(declare(queue));
    channel.consume(consume(queue, "tag"));
    (channel, open())
}

#[track_caller]
fn expect_cancel(channel: &Channel, tag: &str) {
    let incoming = channel.next();
    let expected = basic::Cancel { consumer_tag: tag, no_wait: true };
    assert_eq!(incoming.method(), Method::from(expected));
}

#[test]
fn s13_2_a_client_that_knows_it_is_told_when_its_queue_goes() {
    let (channel, other) = consumer_of("s13_2_told", &Login::default());
    other.delete(delete("s13_2_told"));
    expect_cancel(&channel, "tag");
    // The channel lives on, and the tag is free.
    channel.cancel("tag");
    channel.declare(declare("s13_2_told"));
    channel.consume(consume("s13_2_told", "tag"));
}

#[test]
fn s13_2_a_client_that_does_not_know_it_is_not_told() {
    let login = Login { properties: table([]), ..Login::default() };
    let (channel, other) = consumer_of("s13_2_untold", &login);
    other.delete(delete("s13_2_untold"));
    channel.expect_quiet();
}

#[test]
fn s13_2_whoever_deletes_its_own_queue_gets_both() {
    let (channel, _) = consumer_of("s13_2_own", &Login::default());
    channel.send(delete("s13_2_own"));
    let mut names = [channel.next(), channel.next()].map(|incoming| incoming.method().name());
    names.sort_unstable();
    assert_eq!(names, ["basic.cancel", "queue.delete-ok"]);
}

#[test]
fn s13_2_a_client_that_cancels_itself_is_not_told_again() {
    let (channel, other) = consumer_of("s13_2_itself", &Login::default());
    channel.cancel("tag");
    other.delete(delete("s13_2_itself"));
    channel.expect_quiet();
}

#[test]
fn s13_2_every_consumer_of_the_queue_is_told() {
    let (channel, other) = consumer_of("s13_2_every", &Login::default());
    let second = channel.connection.channel();
    second.consume(consume("s13_2_every", "second"));
    let third = open();
    third.consume(consume("s13_2_every", "third"));
    other.delete(delete("s13_2_every"));
    expect_cancel(&channel, "tag");
    expect_cancel(&second, "second");
    expect_cancel(&third, "third");
}

#[test]
fn s13_2_deliveries_before_the_deletion_can_still_be_acked() {
    let (channel, other) = consumer_of("s13_2_acked", &Login::default());
    other.publish("", "s13_2_acked", "x");
    let delivery = channel.delivery();
    other.delete(delete("s13_2_acked"));
    expect_cancel(&channel, "tag");
    channel.ack(delivery.tag);
    channel.expect_quiet();
}
