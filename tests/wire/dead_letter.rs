//! Where dead messages go, and what is written on them (§11.3).

use std::time::{SystemTime, UNIX_EPOCH};

use leveret_protocol::{FieldTable, FieldValue, Properties, basic};

use crate::client::{
    Channel, Delivery, bind, declare, declare_args, exchange, exchange_delete, expiring, headers, open, table, text,
};

fn integer(value: i32) -> FieldValue {
    FieldValue::I32(value)
}

/// A queue whose dead go to the default exchange with this key.
fn declare_dying<const N: usize>(channel: &Channel, queue: &str, key: &str, more: [(&str, FieldValue); N]) {
    let mut declare = declare_args(queue, more);
    declare.arguments.insert("x-dead-letter-exchange", "");
    declare.arguments.insert("x-dead-letter-routing-key", key);
    channel.declare(declare);
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// The entries of `x-death`.
fn deaths(delivery: &Delivery) -> Vec<FieldTable> {
    let entries = delivery.header("x-death").and_then(FieldValue::as_array).expect("x-death is an array");
    entries.iter().map(|entry| entry.as_table().expect("of tables").clone()).collect()
}

/// (queue, reason, count) of each entry.
fn summary(delivery: &Delivery) -> Vec<(String, String, i64)> {
    let field = |entry: &FieldTable, name| entry.get(name).and_then(FieldValue::as_str).unwrap().to_owned();
    let count = |entry: &FieldTable| match entry.get("count") {
        Some(FieldValue::I64(count)) => *count,
        other => panic!("count is a long: {other:?}"),
    };
    deaths(delivery).iter().map(|entry| (field(entry, "queue"), field(entry, "reason"), count(entry))).collect()
}

fn row(queue: &str, reason: &str, count: i64) -> (String, String, i64) {
    (queue.to_owned(), reason.to_owned(), count)
}

#[test]
fn s11_3_what_is_written_on_a_rejected_message() {
    let channel = open();
    let (queue, dead) = ("s11_3_rejected", "s11_3_rejected_dead");
    channel.declare(declare(dead));
    declare_dying(&channel, queue, dead, []);
    channel.bind(bind(queue, "amq.topic", "s11_3.rejected"));
    let cc = || FieldValue::Array(vec![text("s11_3_cc")]);
    let bcc = ("BCC", FieldValue::Array(vec![text("s11_3_bcc")]));
    let sent = Properties {
        message_id: Some("id".into()),
        delivery_mode: Some(2),
        ..headers([bcc, ("CC", cc()), ("own", text("header"))])
    };
    channel.publish_properties("amq.topic", "s11_3.rejected", &sent, "body");
    let taken = channel.take(queue);
    let before = now_s();
    channel.reject(taken.tag, false);
    let came = channel.pop(dead);
    assert_eq!((came.text(), came.exchange.as_str(), came.routing_key.as_str()), ("body", "", dead));
    assert_eq!((&came.properties.message_id, came.properties.delivery_mode), (&sent.message_id, Some(2)));
    assert_eq!((came.header("own"), came.header("CC")), (Some(&text("header")), Some(&cc())));

    let entries = deaths(&came);
    assert_eq!(entries.len(), 1);
    let entry = &entries[0];
    assert_eq!(entry.len(), 6, "{entry:?}");
    assert_eq!(entry.get("count"), Some(&FieldValue::I64(1)));
    assert_eq!(entry.get("reason"), Some(&text("rejected")));
    assert_eq!(entry.get("queue"), Some(&text(queue)));
    assert_eq!(entry.get("exchange"), Some(&text("amq.topic")));
    let keys = FieldValue::Array(vec![text("s11_3.rejected"), text("s11_3_cc")]);
    assert_eq!(entry.get("routing-keys"), Some(&keys), "with CC, without BCC");
    let Some(FieldValue::Timestamp(time)) = entry.get("time") else { panic!("{entry:?}") };
    assert!((before..=now_s()).contains(time), "{time}");
    for (name, value) in [
        ("x-first-death-reason", "rejected"),
        ("x-first-death-queue", queue),
        ("x-first-death-exchange", "amq.topic"),
        ("x-last-death-reason", "rejected"),
        ("x-last-death-queue", queue),
        ("x-last-death-exchange", "amq.topic"),
    ] {
        assert_eq!(came.header(name), Some(&text(value)), "{name}");
    }
}

#[test]
fn s11_3_the_expiration_moves_into_the_history() {
    let channel = open();
    let (queue, dead) = ("s11_3_expired", "s11_3_expired_dead");
    channel.declare(declare(dead));
    declare_dying(&channel, queue, dead, []);
    channel.publish_properties("", queue, &expiring("20"), "a");
    let came = channel.pop(dead);
    assert_eq!(came.properties.expiration, None);
    let entries = deaths(&came);
    assert_eq!(entries[0].get("original-expiration"), Some(&text("20")));
    assert_eq!(summary(&came), [row(queue, "expired", 1)]);
}

#[test]
fn s11_3_without_a_key_of_its_own_a_dead_message_keeps_its_keys() {
    let channel = open();
    let queue = "s11_3_keys";
    channel.declare_exchange(exchange("s11_3_keys_x", "direct"));
    channel.declare(declare_args(queue, [("x-dead-letter-exchange", text("s11_3_keys_x"))]));
    for dead in ["s11_3_keys_own", "s11_3_keys_cc", "s11_3_keys_bcc"] {
        channel.declare(declare(dead));
        channel.bind(bind(dead, "s11_3_keys_x", dead));
    }
    channel.bind(bind(queue, "amq.direct", "s11_3_keys_own"));
    let keys = |key| FieldValue::Array(vec![text(key)]);
    let sent = headers([("BCC", keys("s11_3_keys_bcc")), ("CC", keys("s11_3_keys_cc"))]);
    channel.publish_properties("amq.direct", "s11_3_keys_own", &sent, "a");
    let taken = channel.take(queue);
    channel.reject(taken.tag, false);
    for dead in ["s11_3_keys_own", "s11_3_keys_cc", "s11_3_keys_bcc"] {
        let came = channel.pop(dead);
        assert_eq!((came.exchange.as_str(), came.routing_key.as_str()), ("s11_3_keys_x", "s11_3_keys_own"), "{dead}");
        assert_eq!(came.header("BCC"), None);
    }
}

#[test]
fn s11_3_nothing_happens_where_the_exchange_is_missing_or_routes_nowhere() {
    let channel = open();
    channel.declare_exchange(exchange("s11_3_gone_x", "fanout"));
    channel.declare(declare_args("s11_3_gone", [("x-dead-letter-exchange", text("s11_3_gone_x"))]));
    for body in ["unbound", "missing"] {
        channel.publish("", "s11_3_gone", body);
        let taken = channel.take("s11_3_gone");
        channel.reject(taken.tag, false);
        channel.delete_exchange(exchange_delete("s11_3_gone_x"));
    }
    channel.expect_quiet();
    // One that is made later is used.
    channel.declare_exchange(exchange("s11_3_gone_x", "fanout"));
    channel.declare(declare("s11_3_gone_dead"));
    channel.bind(bind("s11_3_gone_dead", "s11_3_gone_x", ""));
    channel.publish("", "s11_3_gone", "found");
    let taken = channel.take("s11_3_gone");
    channel.nack(taken.tag, false, false);
    assert_eq!(channel.pop("s11_3_gone_dead").text(), "found");
}

/// Two deaths of the same kind are one entry with a count, moved to the front.
#[test]
fn s11_3_repeated_deaths_are_counted_newest_first() {
    let channel = open();
    let (work, retry) = ("s11_3_work", "s11_3_retry");
    declare_dying(&channel, work, retry, []);
    declare_dying(&channel, retry, work, [("x-message-ttl", integer(20))]);
    channel.publish("", work, "job");
    let mut first_time = None;
    for round in 0..4 {
        let taken = channel.take(work);
        if round == 0 {
            assert_eq!(taken.properties.headers, None);
        } else {
            assert_eq!(summary(&taken), [row(retry, "expired", round), row(work, "rejected", round)]);
            assert_eq!(taken.header("x-first-death-queue"), Some(&text(work)));
            assert_eq!(taken.header("x-first-death-reason"), Some(&text("rejected")));
            assert_eq!(taken.header("x-last-death-queue"), Some(&text(retry)));
            assert_eq!(taken.header("x-last-death-reason"), Some(&text("expired")));
            let time = deaths(&taken)[1].get("time").cloned();
            assert_eq!(*first_time.get_or_insert_with(|| time.clone()), time, "the time is that of the first death");
        }
        channel.reject(taken.tag, false);
    }
    let last = channel.pop(work);
    assert_eq!(summary(&last), [row(retry, "expired", 4), row(work, "rejected", 4)]);
}

#[test]
fn s11_3_a_circle_without_a_reject_is_cut() {
    let channel = open();
    let (one, two) = ("s11_3_circle_1", "s11_3_circle_2");
    declare_dying(&channel, one, two, [("x-message-ttl", integer(10))]);
    declare_dying(&channel, two, one, [("x-message-ttl", integer(10))]);
    let itself = "s11_3_circle_itself";
    declare_dying(&channel, itself, itself, [("x-message-ttl", integer(10))]);
    // Its dead letters, seen from a queue that is no part of the circle.
    let seen = "s11_3_circle_seen";
    channel.declare(declare(seen));
    channel.declare_exchange(exchange("s11_3_circle_x", "fanout"));
    let through = "s11_3_circle_through";
    channel.declare(declare_args(
        through,
        [("x-dead-letter-exchange", text("s11_3_circle_x")), ("x-message-ttl", integer(10))],
    ));
    channel.bind(bind(through, "s11_3_circle_x", ""));
    channel.bind(bind(seen, "s11_3_circle_x", ""));
    for queue in [one, itself, through] {
        channel.publish("", queue, queue);
    }
    assert_eq!(channel.pop(seen).text(), through);
    // Everything has come to rest well before ten more lifetimes.
    std::thread::sleep(std::time::Duration::from_millis(200));
    for queue in [one, two, itself, through, seen] {
        assert_eq!(channel.look(queue).ready, 0, "{queue}");
    }
}

#[test]
fn s11_3_a_message_rejected_into_its_own_queue_goes_round() {
    let channel = open();
    let queue = "s11_3_round";
    declare_dying(&channel, queue, queue, []);
    channel.publish("", queue, "a");
    for round in 0..5 {
        let taken = channel.take(queue);
        if round > 0 {
            assert_eq!(summary(&taken), [row(queue, "rejected", round)]);
        }
        channel.reject(taken.tag, false);
    }
    assert_eq!(channel.pop(queue).text(), "a");
}

/// An `x-death` that a publisher sends is data; it does not count, and is replaced.
#[test]
fn s11_3_a_history_that_a_client_sends_is_replaced() {
    if !crate::broker::is_default_version() {
        return;
    }
    let channel = open();
    let (queue, dead) = ("s11_3_forged", "s11_3_forged_dead");
    channel.declare(declare(dead));
    declare_dying(&channel, queue, dead, []);
    let entry = table([("count", FieldValue::I64(7)), ("queue", text(queue)), ("reason", text("rejected"))]);
    let forged = || FieldValue::Array(vec![entry.clone().into()]);
    channel.publish_properties("", dead, &headers([("x-death", forged())]), "only data");
    assert_eq!(channel.pop(dead).header("x-death"), Some(&forged()));
    channel.publish_properties("", queue, &headers([("x-death", forged())]), "dies");
    let taken = channel.take(queue);
    assert_eq!(taken.header("x-death"), Some(&forged()));
    channel.reject(taken.tag, false);
    let came = channel.pop(dead);
    assert_eq!(summary(&came), [row(queue, "rejected", 1)]);
    // Published again by a client, with all its headers: it starts anew.
    channel.publish_properties("", queue, &came.properties, "again");
    let taken = channel.take(queue);
    channel.reject(taken.tag, false);
    assert_eq!(summary(&channel.pop(dead)), [row(queue, "rejected", 1)]);
}

#[test]
fn s11_3_an_overflow_kills_from_the_head() {
    let channel = open();
    let (queue, dead) = ("s11_3_maxlen", "s11_3_maxlen_dead");
    channel.declare(declare(dead));
    declare_dying(&channel, queue, dead, [("x-max-length", integer(2))]);
    for body in ["a", "b", "c", "d"] {
        channel.publish("", queue, body);
    }
    for body in ["a", "b"] {
        let came = channel.pop(dead);
        assert_eq!((came.text(), summary(&came)), (body, vec![row(queue, "maxlen", 1)]));
    }
    assert_eq!(channel.drain(queue), ["c", "d"]);
}

#[test]
fn s11_3_a_dead_message_takes_its_priority_along() {
    let channel = open();
    let (queue, dead) = ("s11_3_priority", "s11_3_priority_dead");
    channel.declare(declare_args(dead, [("x-max-priority", integer(5))]));
    declare_dying(&channel, queue, dead, []);
    let with = |priority| Properties { priority: Some(priority), ..Properties::default() };
    for (priority, body) in [(1, "low"), (5, "high"), (3, "middle")] {
        channel.publish_properties("", queue, &with(priority), body);
    }
    channel.ready(queue, 3);
    for _ in 0..3 {
        channel.take(queue);
    }
    channel.nack(0, true, false);
    assert_eq!(channel.ready(dead, 3), 3);
    assert_eq!(channel.drain(dead), ["high", "middle", "low"]);
}

#[test]
fn s11_3_dead_letters_are_not_confirmed_and_not_mandatory() {
    let channel = open();
    declare_dying(&channel, "s11_3_quiet", "s11_3_nowhere", []);
    channel.confirm_select();
    let mandatory = basic::Publish { mandatory: true, ..crate::client::publish("", "s11_3_quiet") };
    channel.publish_with(mandatory, &Properties::default(), b"x");
    channel.wait_for_confirms(1);
    let taken = channel.take("s11_3_quiet");
    channel.reject(taken.tag, false);
    channel.expect_quiet();
}

#[test]
fn s11_3_the_dead_may_be_many_queues_long() {
    let channel = open();
    let names: Vec<String> = (0..20).map(|index| format!("s11_3_long_{index}")).collect();
    for pair in names.windows(2) {
        declare_dying(&channel, &pair[0], &pair[1], [("x-message-ttl", integer(0))]);
    }
    let last = names.last().unwrap();
    channel.declare(declare(last));
    channel.publish("", &names[0], "far");
    let came = channel.pop(last);
    let expected: Vec<_> = names[..19].iter().rev().map(|name| row(name, "expired", 1)).collect();
    assert_eq!(summary(&came), expected);
    assert_eq!(came.header("x-first-death-queue"), Some(&text(&names[0])));
}
