//! basic.get, and how deliveries are acked, refused and returned (§8.4, §8.5).

use leveret_protocol::{Method, basic, queue};

use crate::client::{Channel, Delivery, connect, consume, declare, delete, open};

fn get(queue: &str) -> basic::Get<'_> {
    basic::Get { queue, no_ack: false }
}

fn ack(delivery_tag: u64, multiple: bool) -> basic::Ack {
    basic::Ack { delivery_tag, multiple }
}

/// A channel with a queue of these messages.
fn filled(queue: &str, bodies: &[&str]) -> Channel {
    let channel = open();
    channel.declare(declare(queue));
    for body in bodies {
        channel.publish("", queue, body);
    }
    channel.ready(queue, bodies.len() as u32);
    channel
}

/// Takes so many messages, unacked.
fn take(channel: &Channel, queue: &str, count: usize) -> Vec<Delivery> {
    (0..count).map(|_| channel.take(queue)).collect()
}

#[test]
fn s8_4_get_takes_one_message_and_counts_what_is_left() {
    let channel = filled("s8_4_get", &["a", "b", "c"]);
    for (tag, body) in [(1, "a"), (2, "b"), (3, "c")] {
        let got = channel.take("s8_4_get");
        assert_eq!((got.tag, got.text(), got.redelivered), (tag, body, false));
        assert_eq!((got.exchange.as_str(), got.routing_key.as_str()), ("", "s8_4_get"));
        assert_eq!(u64::from(got.left), 3 - tag);
    }
    assert_eq!(channel.get(get("s8_4_get")), None);
}

#[test]
fn s8_4_get_without_ack_is_for_good() {
    let channel = filled("s8_4_no_ack", &["a"]);
    assert_eq!(channel.pop("s8_4_no_ack").text(), "a");
    let other = open();
    channel.connection.close();
    assert_eq!(other.look("s8_4_no_ack").ready, 0);
}

#[test]
fn s8_4_get_from_a_missing_queue_is_404() {
    open().refuses(get("s8_4_missing"), 404, "no queue 's8_4_missing' in vhost '/'");
}

#[test]
fn s8_4_get_is_not_held_up_by_prefetch_or_an_exclusive_consumer() {
    let channel = filled("s8_4_prefetch", &["a", "b", "c"]);
    channel.qos(1, false);
    channel.consume(basic::Consume { exclusive: true, ..consume("s8_4_prefetch", "tag") });
    assert_eq!(channel.delivery().text(), "a");
    assert_eq!(channel.take("s8_4_prefetch").text(), "b");
    assert_eq!(open().take("s8_4_prefetch").text(), "c");
}

#[test]
fn s8_5_an_ack_takes_a_delivery_out_for_good() {
    let channel = filled("s8_5_ack", &["a", "b"]);
    let taken = take(&channel, "s8_5_ack", 2);
    channel.ack(taken[1].tag);
    channel.close();
    channel.open();
    let back = channel.take("s8_5_ack");
    assert_eq!((back.text(), back.redelivered), ("a", true));
    assert_eq!(channel.look("s8_5_ack").ready, 0);
}

#[test]
fn s8_5_a_tag_that_is_not_outstanding_is_406() {
    let never_given: [Method<'_>; 4] = [
        ack(1, false).into(),
        ack(1, true).into(),
        basic::Nack { delivery_tag: 1, multiple: false, requeue: true }.into(),
        basic::Reject { delivery_tag: 1, requeue: false }.into(),
    ];
    for method in never_given {
        open().refuses(method, 406, "unknown delivery tag 1");
    }
    let channel = filled("s8_5_unknown", &["a", "b", "c", "d"]);
    let settle = |settle: &dyn Fn(&Channel), text: &str, id| {
        let channel = channel.connection.channel();
        take(&channel, "s8_5_unknown", 3);
        settle(&channel);
        channel.expect_close(406, text, id);
        // What was not settled is back, so that the next row finds three messages.
        assert!(channel.connection.channel().ready("s8_5_unknown", 3) >= 3);
    };
    let id = basic::Ack::ID;
    settle(&|channel| channel.ack(4), "unknown delivery tag 4", id);
    settle(&|channel| channel.ack(0), "unknown delivery tag 0", id);
    settle(&|channel| channel.ack(u64::MAX), &format!("unknown delivery tag {}", u64::MAX), id);
    settle(&|channel| channel.ack_multiple(4), "unknown delivery tag 4", id);
    settle(&|channel| channel.nack(0, false, true), "unknown delivery tag 0", basic::Nack::ID);
    settle(&|channel| channel.reject(0, true), "unknown delivery tag 0", basic::Reject::ID);
    let twice = |channel: &Channel| {
        channel.reject(2, true);
        channel.ack(2);
    };
    settle(&twice, "unknown delivery tag 2", id);
    let covered = |channel: &Channel| {
        channel.nack(2, true, true);
        channel.ack(1);
    };
    settle(&covered, "unknown delivery tag 1", id);
    // The tag itself must be outstanding, even if smaller ones are.
    let hole = |channel: &Channel| {
        channel.reject(2, true);
        channel.ack_multiple(2);
    };
    settle(&hole, "unknown delivery tag 2", id);
}

#[test]
fn s8_5_a_delivery_without_ack_cannot_be_acked() {
    let channel = filled("s8_5_no_ack", &["a", "b"]);
    let got = channel.pop("s8_5_no_ack");
    channel.refuses(ack(got.tag, false), 406, "unknown delivery tag 1");
    channel.open();
    channel.consume(basic::Consume { no_ack: true, ..consume("s8_5_no_ack", "tag") });
    let got = channel.delivery();
    channel.refuses(ack(got.tag, false), 406, "unknown delivery tag 1");
}

#[test]
fn s8_5_a_tag_of_another_channel_is_unknown() {
    let channel = filled("s8_5_other_channel", &["a"]);
    let got = channel.take("s8_5_other_channel");
    channel.connection.channel().refuses(ack(got.tag, false), 406, "unknown delivery tag 1");
    channel.ack(got.tag);
    channel.expect_quiet();
}

#[test]
fn s8_5_multiple_covers_everything_up_to_the_tag() {
    let channel = filled("s8_5_multiple", &["a", "b", "c", "d", "e"]);
    let taken = take(&channel, "s8_5_multiple", 5);
    channel.ack(taken[1].tag);
    channel.ack_multiple(taken[2].tag);
    channel.nack(taken[4].tag, true, true);
    assert_eq!(channel.drain("s8_5_multiple"), ["d", "e"]);
}

#[test]
fn s8_5_tag_0_with_multiple_is_all_even_if_that_is_nothing() {
    let channel = filled("s8_5_all", &["a", "b", "c"]);
    channel.ack_multiple(0);
    channel.nack(0, true, true);
    take(&channel, "s8_5_all", 2);
    channel.ack_multiple(0);
    channel.ack_multiple(0);
    take(&channel, "s8_5_all", 1);
    channel.nack(0, true, true);
    let back = channel.pop("s8_5_all");
    assert_eq!((back.text(), back.redelivered), ("c", true));
}

/// Back in its old place, and marked.
#[test]
fn s8_5_what_is_returned_comes_first_again() {
    let channel = filled("s8_5_returned", &["a", "b", "c"]);
    let settle: [&dyn Fn(u64); 2] = [&|tag| channel.reject(tag, true), &|tag| channel.nack(tag, false, true)];
    for (round, settle) in settle.into_iter().enumerate() {
        let first = channel.take("s8_5_returned");
        assert_eq!((first.text(), first.redelivered), ("a", round > 0));
        settle(first.tag);
    }
    let all = take(&channel, "s8_5_returned", 3);
    let seen: Vec<_> = all.iter().map(|delivery| (delivery.text(), delivery.redelivered)).collect();
    assert_eq!(seen, [("a", true), ("b", false), ("c", false)]);
}

#[test]
fn s8_5_requeued_messages_keep_their_order_whatever_the_order_of_their_return() {
    let channel = filled("s8_5_order", &["1", "2", "3", "4", "5", "6"]);
    let orders: [&[usize]; 4] = [&[0, 1, 2, 3], &[3, 2, 1, 0], &[2, 0, 3, 1], &[1, 3]];
    for order in orders {
        let taken = take(&channel, "s8_5_order", 4);
        for &index in order {
            channel.reject(taken[index].tag, true);
        }
        channel.nack(0, true, true);
        assert_eq!(channel.ready("s8_5_order", 6), 6);
        let all = take(&channel, "s8_5_order", 6);
        let bodies: Vec<_> = all.iter().map(Delivery::text).collect();
        assert_eq!(bodies, ["1", "2", "3", "4", "5", "6"], "returned as {order:?}");
        channel.nack(0, true, true);
    }
}

#[test]
fn s8_5_what_is_refused_without_requeue_is_gone() {
    let channel = filled("s8_5_discard", &["a", "b", "c", "d"]);
    let taken = take(&channel, "s8_5_discard", 4);
    channel.reject(taken[0].tag, false);
    channel.nack(taken[1].tag, false, false);
    channel.nack(taken[3].tag, true, false);
    assert_eq!(channel.look("s8_5_discard").ready, 0);
    channel.close();
    assert_eq!(open().look("s8_5_discard").ready, 0);
}

#[test]
fn s8_5_an_ack_after_cancel_or_deletion_is_accepted() {
    let channel = filled("s8_5_late", &["a", "b"]);
    channel.consume(consume("s8_5_late", "tag"));
    let (one, two) = (channel.delivery(), channel.delivery());
    channel.cancel("tag");
    channel.ack(one.tag);
    channel.delete(delete("s8_5_late"));
    channel.ack(two.tag);
    channel.expect_quiet();
}

#[test]
fn s8_5_recover_requeues_deliveries_and_gets_of_its_channel_only() {
    let channel = filled("s8_5_recover", &["a", "b", "c"]);
    let other = channel.connection.channel();
    let kept = other.take("s8_5_recover");
    assert_eq!(kept.text(), "a");
    channel.qos(1, false);
    channel.consume(consume("s8_5_recover", "tag"));
    assert_eq!(channel.delivery().text(), "b");
    assert_eq!(channel.take("s8_5_recover").text(), "c");
    channel.send(basic::Recover { requeue: true });
    // Either may come first.
    let came = [channel.next(), channel.next()];
    let mut names = came.each_ref().map(|incoming| incoming.method().name());
    names.sort_unstable();
    assert_eq!(names, ["basic.deliver", "basic.recover-ok"]);
    let again = came.iter().find(|incoming| incoming.method().id() == basic::Deliver::ID).unwrap();
    let Method::BasicDeliver(deliver) = again.method() else { unreachable!() };
    assert_eq!((deliver.redelivered, deliver.delivery_tag, again.body.as_slice()), (true, 3, &b"b"[..]));
    other.ack(kept.tag);
    other.expect_quiet();
    channel.ack(3);
    let last = channel.delivery();
    assert_eq!((last.text(), last.redelivered), ("c", true));
}

#[test]
fn s8_5_recover_async_is_not_answered() {
    let channel = filled("s8_5_recover_async", &["a"]);
    channel.take("s8_5_recover_async");
    channel.send(basic::RecoverAsync { requeue: true });
    channel.expect_quiet();
    assert!(channel.take("s8_5_recover_async").redelivered);
}

#[test]
fn s8_5_recover_without_requeue_is_540() {
    open().refuses_hard(basic::Recover { requeue: false }, 540, "requeue=false");
    open().refuses_hard(basic::RecoverAsync { requeue: false }, 540, "requeue=false");
}

#[test]
fn s8_5_redelivered_is_true_for_whoever_gets_it_next() {
    let channel = filled("s8_5_redelivered", &["a"]);
    let other = open();
    assert!(!channel.take("s8_5_redelivered").redelivered);
    channel.nack(1, false, true);
    let again = other.take("s8_5_redelivered");
    assert!(again.redelivered);
    other.connection.close();
    assert!(channel.take("s8_5_redelivered").redelivered);
}

#[test]
fn s8_5_a_wrong_tag_settles_nothing() {
    let channel = filled("s8_5_nothing", &["a", "b"]);
    take(&channel, "s8_5_nothing", 2);
    channel.refuses(ack(5, true), 406, "unknown delivery tag 5");
    let back = open();
    assert_eq!(back.ready("s8_5_nothing", 2), 2);
}

#[test]
fn s8_5_acks_of_several_queues_on_one_channel_do_not_mix() {
    let connection = connect();
    let channel = connection.channel();
    for queue in ["s8_5_mix_a", "s8_5_mix_b"] {
        channel.declare(declare(queue));
        for body in ["1", "2", "3"] {
            channel.publish("", queue, body);
        }
        channel.ready(queue, 3);
    }
    // Tags 1, 3, 5 are of a, 2, 4, 6 of b.
    for _ in 0..3 {
        channel.take("s8_5_mix_a");
        channel.take("s8_5_mix_b");
    }
    channel.ack_multiple(3);
    channel.nack(0, true, true);
    assert_eq!(channel.drain("s8_5_mix_a"), ["3"]);
    assert_eq!(channel.drain("s8_5_mix_b"), ["2", "3"]);
    channel.send(queue::Purge { queue: "s8_5_mix_a", no_wait: false });
    channel.expect(queue::PurgeOk::ID);
}
