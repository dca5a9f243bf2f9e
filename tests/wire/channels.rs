//! Channels: numbers, limits, errors, and life after a close (§3.11).

use leveret_protocol::{Method, MethodId, Properties, basic, channel, confirm, queue};

use crate::broker;
use crate::client::{
    Confirm, Connection, Declared, Login, bind, connect, consume, declare, delete, header_frame, method_frame, open,
    publish, raw_frame,
};

fn close() -> channel::Close<'static> {
    channel::Close { reply_code: 200, reply_text: "bye", class_id: 0, method_id: 0 }
}

#[test]
fn s3_11_any_number_from_1_to_65535_may_be_used() {
    let connection = connect();
    for number in [65_535, 1, 2048, 40_000, 2] {
        let channel = connection.channel_number(number);
        channel.open();
        channel.declare(declare("s3_11_numbers"));
        channel.close();
    }
}

#[test]
fn s3_11_the_number_of_open_channels_is_limited() {
    let connection = Connection::open(broker::shared(), &Login { tune: (2, 0, 0), ..Login::default() });
    let (first, second) = (connection.channel_number(7), connection.channel_number(300));
    first.open();
    second.open();
    // One may go for another to come.
    first.close();
    first.open();
    connection.channel_number(1).send(channel::Open {});
    let text = "number of channels opened (2) has reached the negotiated channel_max (2)";
    connection.expect_close(530, text, MethodId::NONE);
}

#[test]
fn s3_11_a_closed_number_is_free_at_once_and_fresh() {
    let channel = open();
    channel.declare(declare("s3_11_fresh"));
    channel.confirm_select();
    channel.qos(1, false);
    for body in ["a", "b"] {
        channel.publish("", "s3_11_fresh", body);
    }
    channel.wait_for_confirms(2);
    channel.consume(consume("s3_11_fresh", "tag"));
    assert_eq!(channel.delivery().tag, 1);
    channel.close();
    channel.open();
    // The same consumer tag, no prefetch limit, delivery tags from 1, no confirms, no queue declared last.
    channel.consume(consume("s3_11_fresh", "tag"));
    let deliveries = [channel.delivery(), channel.delivery()];
    assert_eq!(deliveries.each_ref().map(|delivery| (delivery.tag, delivery.text())), [(1, "a"), (2, "b")]);
    assert_eq!(deliveries.map(|delivery| delivery.redelivered), [true, false]);
    channel.publish("", "s3_11_nowhere", "c");
    channel.expect_quiet();
    channel.refuses(basic::Get { queue: "", no_ack: true }, 404, "no previously declared queue");
}

#[test]
fn s3_11_many_channels_can_be_opened_and_closed_in_turn() {
    let connection = connect();
    for _ in 0..20 {
        let channels: Vec<_> = (1..=50).map(|number| connection.channel_number(number)).collect();
        for channel in &channels {
            channel.send(channel::Open {});
        }
        for channel in &channels {
            channel.expect(channel::OpenOk::ID);
            channel.send(close());
        }
        for channel in &channels {
            channel.expect(channel::CloseOk::ID);
        }
    }
    connection.expect_empty_inbox();
}

#[test]
fn s3_11_a_close_requeues_and_removes_consumers_before_close_ok() {
    let (channel, other) = (open(), open());
    let queue = "s3_11_requeue";
    channel.declare(declare(queue));
    for body in ["a", "b", "c"] {
        channel.publish("", queue, body);
    }
    channel.consume(consume(queue, "tag"));
    assert_eq!(channel.bodies(3), ["a", "b", "c"]);
    assert_eq!(other.look(queue), Declared { queue: queue.to_owned(), ready: 0, consumers: 1 });
    channel.close();
    assert_eq!(other.look(queue), Declared { queue: queue.to_owned(), ready: 3, consumers: 0 });
    for body in ["a", "b", "c"] {
        let again = other.take(queue);
        assert_eq!((again.text(), again.redelivered), (body, true));
    }
}

#[test]
fn s3_11_an_error_requeues_and_removes_consumers_too() {
    let (channel, other) = (open(), open());
    let queue = "s3_11_error_requeues";
    channel.declare(declare(queue));
    channel.publish("", queue, "a");
    channel.consume(consume(queue, "tag"));
    channel.delivery();
    channel.refuses(basic::Ack { delivery_tag: 99, multiple: false }, 406, "unknown delivery tag 99");
    let again = other.take(queue);
    assert_eq!((again.text(), again.redelivered), ("a", true));
    assert_eq!(other.look(queue).consumers, 0);
}

/// Nothing sent before close-ok does anything or is answered, not even what would be an error.
#[test]
fn s3_11_after_an_error_everything_is_swallowed_until_close_ok() {
    let channel = open();
    let queue = "s3_11_swallowed";
    channel.declare(declare(queue));
    channel.publish("s3_11_no_exchange", "k", "first");
    for _ in 0..100 {
        channel.publish("s3_11_no_exchange", "k", "more");
        channel.publish("", queue, "lost");
    }
    channel.send(delete(queue));
    channel.send(basic::Consume { no_wait: true, ..consume(queue, "tag") });
    channel.send(channel::Flow { active: false });
    channel.send(queue::DeclareOk { queue: "", message_count: 0, consumer_count: 0 });
    let text = "no exchange 's3_11_no_exchange' in vhost '/'";
    channel.expect_close(404, text, basic::Publish::ID);
    channel.open();
    assert_eq!(channel.look(queue), Declared { queue: queue.to_owned(), ready: 0, consumers: 0 });
    channel.connection.expect_empty_inbox();
}

#[test]
fn s3_11_the_frames_of_a_content_are_swallowed_also_when_their_method_came_before_the_error() {
    let connection = connect();
    let channel = connection.channel();
    channel.declare(declare("s3_11_pieces"));
    channel.send(basic::Ack { delivery_tag: 5, multiple: false });
    channel.send(publish("", "s3_11_pieces"));
    channel.expect_unanswered_close(406, "unknown delivery tag 5", basic::Ack::ID);
    connection.send_bytes(&header_frame(1, 60, 0, 2, &[0, 0]));
    connection.send_bytes(&raw_frame(3, 1, b"a"));
    connection.send_bytes(&raw_frame(3, 1, b"b"));
    channel.send(channel::CloseOk {});
    channel.open();
    assert_eq!(channel.look("s3_11_pieces").ready, 0);
}

/// A client that learns of the close in the middle of a content may answer it right there.
#[test]
fn s3_11_close_ok_may_come_in_the_middle_of_a_content() {
    let connection = connect();
    if !connection.is_leveret() {
        return; // RabbitMQ insists on the rest of the content.
    }
    let channel = connection.channel();
    channel.send(basic::Ack { delivery_tag: 5, multiple: false });
    channel.send(publish("", "s3_11_middle"));
    connection.send_bytes(&header_frame(1, 60, 0, 1000, &[0, 0]));
    channel.expect_close(406, "unknown delivery tag 5", basic::Ack::ID);
    channel.open();
    channel.declare(declare("s3_11_middle"));
}

#[test]
fn s3_11_a_close_that_crosses_the_servers_is_answered_and_the_number_free_after_both() {
    let channel = open();
    channel.send(basic::Ack { delivery_tag: 5, multiple: false });
    channel.send(close());
    channel.expect_unanswered_close(406, "unknown delivery tag 5", basic::Ack::ID);
    channel.expect(channel::CloseOk::ID);
    // Ours is still to be answered.
    channel.send(channel::CloseOk {});
    channel.open();
    channel.declare(declare("s3_11_crossed"));
}

#[test]
fn s3_11_opening_a_number_whose_close_is_not_answered_is_504() {
    let channel = open();
    channel.send(basic::Ack { delivery_tag: 5, multiple: false });
    channel.expect_unanswered_close(406, "unknown delivery tag 5", basic::Ack::ID);
    channel.refuses_hard(channel::Open {}, 504, "second 'channel.open' seen");
}

#[test]
fn s3_11_flow_can_be_turned_on_but_not_off() {
    let channel = open();
    let answer = channel.call(channel::Flow { active: true }, channel::FlowOk::ID);
    assert_eq!(answer.method(), channel::FlowOk { active: true }.into());
    channel.refuses_hard(channel::Flow { active: false }, 540, "active=false");
}

#[test]
fn s3_11_methods_may_be_sent_without_waiting_and_are_done_in_order() {
    let channel = open();
    let queue = "s3_11_pipelined";
    let mut bytes = method_frame(1, declare(queue));
    bytes.extend(method_frame(1, bind(queue, "amq.direct", "s3_11_key")));
    bytes.extend(method_frame(1, confirm::Select { no_wait: false }));
    bytes.extend(method_frame(1, consume(queue, "tag")));
    channel.connection.send_bytes(&bytes);
    channel.publish("amq.direct", "s3_11_key", "x");
    channel.send(queue::Purge { queue, no_wait: false });
    for id in [queue::DeclareOk::ID, queue::BindOk::ID, confirm::SelectOk::ID] {
        channel.expect(id);
    }
    // Of the rest only the delivery has to wait for consume-ok, which RabbitMQ's queue sends when it likes.
    let mut rest = [(); 4].map(|()| channel.next().method().name());
    let place = |name| rest.iter().position(|came| *came == name);
    assert!(place("basic.consume-ok") < place("basic.deliver"), "{rest:?}");
    rest.sort_unstable();
    assert_eq!(rest, ["basic.ack", "basic.consume-ok", "basic.deliver", "queue.purge-ok"]);
}

#[test]
fn s3_11_an_error_on_one_channel_does_not_disturb_the_others() {
    let connection = connect();
    let (faulty, healthy) = (connection.channel(), connection.channel());
    let queue = "s3_11_undisturbed";
    healthy.declare(declare(queue));
    healthy.consume(consume(queue, "tag"));
    healthy.confirm_select();
    for round in 1..=20 {
        faulty.publish("s3_11_none", "", "x");
        healthy.publish("", queue, "x");
        faulty.expect_close(404, "no exchange 's3_11_none' in vhost '/'", basic::Publish::ID);
        faulty.open();
        let came = [healthy.next(), healthy.next()];
        let mut names = came.each_ref().map(|incoming| incoming.method().name());
        names.sort_unstable();
        assert_eq!(names, ["basic.ack", "basic.deliver"], "round {round}");
    }
}

#[test]
fn s3_11_nothing_of_the_old_life_arrives_on_a_reopened_channel() {
    let (channel, other) = (open(), open());
    if !channel.connection.is_leveret() {
        return; // RabbitMQ 4.0 lets a delivery slip through now and then.
    }
    let queue = "s3_11_old_life";
    channel.declare(declare(queue));
    for _ in 0..20 {
        channel.consume(consume(queue, "old"));
        for _ in 0..50 {
            other.publish("", queue, "x");
        }
        channel.send(basic::Ack { delivery_tag: 1000, multiple: false });
        loop {
            let incoming = channel.next();
            match incoming.method() {
                Method::BasicDeliver(_) => {}
                Method::ChannelClose(close) => break assert_eq!(close.reply_code, 406),
                other => panic!("{other:?}"),
            }
        }
        channel.send(channel::CloseOk {});
        channel.send(channel::Open {});
        // Deliveries from before the close may still come, but not after open-ok.
        while channel.next().method().id() != channel::OpenOk::ID {}
        channel.expect_quiet();
        channel.purge(queue);
    }
}

#[test]
fn s3_11_confirms_of_publishes_before_an_error_may_come_those_after_do_not() {
    let channel = open();
    channel.declare(declare("s3_11_confirms"));
    channel.confirm_select();
    channel.publish("", "s3_11_confirms", "good");
    assert_eq!(channel.confirm(), Confirm::Ack { tag: 1, multiple: false });
    channel.publish("s3_11_none", "", "bad");
    channel.publish("", "s3_11_confirms", "too late");
    channel.expect_close(404, "no exchange 's3_11_none' in vhost '/'", basic::Publish::ID);
    channel.open();
    assert_eq!(channel.look("s3_11_confirms").ready, 1);
}

#[test]
fn s3_11_a_publish_is_counted_by_what_the_channel_does_next() {
    let channel = open();
    let queue = "s3_11_counted";
    channel.declare(declare(queue));
    for count in 1..=50 {
        channel.publish_with(publish("", queue), &Properties::default(), b"x");
        let ready = channel.ready(queue, count);
        assert_eq!(ready, count);
    }
}

#[test]
fn s3_11_close_ok_and_flow_ok_that_nobody_waits_for_are_503() {
    open().refuses_hard(channel::FlowOk { active: true }, 503, "unimplemented method");
    open().refuses_hard(channel::CloseOk {}, 503, "unimplemented method");
}
