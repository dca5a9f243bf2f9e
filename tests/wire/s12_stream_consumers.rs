//! Consumers of streams: where they begin, what they get, and what gives them credit back (§12.2).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leveret_protocol::{FieldValue, MethodId, Properties, basic, tx};

use crate::client::{Channel, bind, consume, delete, exchange, exchange_delete, headers, open, publish, table, text};
use crate::s12_streams::{fill, from, reader, stream};

fn offset_of(channel: &Channel) -> i64 {
    let delivery = channel.delivery();
    match delivery.header("x-stream-offset") {
        Some(FieldValue::I64(offset)) => *offset,
        other => panic!("no offset: {other:?}"),
    }
}

/// The bodies of so many deliveries that come before or after an answer.
fn bodies_around(channel: &Channel, answer: MethodId, count: usize) -> Vec<String> {
    let mut bodies = Vec::new();
    for _ in 0..count + 1 {
        let incoming = channel.next();
        if incoming.method().id() == answer {
            continue;
        }
        assert_eq!(incoming.method().id(), basic::Deliver::ID);
        bodies.push(String::from_utf8(incoming.body).unwrap());
    }
    bodies
}

#[test]
fn s12_2_a_consumer_begins_at_its_offset() {
    let queue = "s12_2_offsets";
    let channel = stream(queue, []);
    fill(&channel, queue, 0, 5);
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let rows: [(FieldValue, i64); 9] = [
        (text("first"), 0),
        (FieldValue::I32(0), 0),
        (FieldValue::I8(3), 3),
        (FieldValue::I64(4), 4),
        (FieldValue::I64(-1), 0),
        (text("1h"), 0),
        (text("1Y"), 0),
        (FieldValue::Timestamp(now_s - 3600), 0),
        (FieldValue::Timestamp(0), 0),
    ];
    for (offset, first) in rows {
        println!("{offset:?}");
        let reader = reader(queue, 10, offset);
        for expected in first..5 {
            assert_eq!(offset_of(&reader), expected);
        }
        reader.expect_quiet();
    }
    let last = reader(queue, 10, "last");
    assert!(offset_of(&last) > 0, "the last chunk is not the first: every message was confirmed alone");
    channel.delete(delete(queue));
}

#[test]
fn s12_2_next_is_the_default_and_waits_for_what_comes() {
    let queue = "s12_2_next";
    let channel = stream(queue, []);
    fill(&channel, queue, 0, 3);
    let readers = [
        reader(queue, 10, "next"),
        reader(queue, 10, FieldValue::I32(3)),
        reader(queue, 10, FieldValue::Timestamp(4_000_000_000)),
    ];
    let default = open();
    default.qos(10, false);
    default.consume(consume(queue, "c"));
    let later = reader(queue, 10, FieldValue::I32(5));
    fill(&channel, queue, 3, 4);
    for reader in readers.iter().chain([&default]) {
        assert_eq!(reader.bodies(4), ["m3", "m4", "m5", "m6"]);
    }
    assert_eq!(later.bodies(2), ["m5", "m6"], "an offset beyond the end is waited for");
    channel.delete(delete(queue));
}

#[test]
fn s12_2_everybody_reads_everything_as_often_as_they_like() {
    let queue = "s12_2_readers";
    let channel = stream(queue, []);
    fill(&channel, queue, 0, 3);
    let together = open();
    together.qos(10, false);
    for tag in ["a", "b"] {
        together.send(basic::Consume { consumer_tag: tag, no_wait: true, ..from(queue, "first") });
    }
    let mut got: Vec<(String, String)> = Vec::new();
    for _ in 0..6 {
        let delivery = together.delivery();
        assert!(!delivery.redelivered);
        got.push((delivery.consumer_tag.clone(), delivery.text().to_owned()));
    }
    got.sort();
    let all = ["a", "b"].map(|tag| ["m0", "m1", "m2"].map(|body| (tag.to_owned(), body.to_owned())));
    assert_eq!(got, all.concat());
    // What was not acked when its channel ended is not redelivered either.
    together.close();
    let again = reader(queue, 10, "first");
    for _ in 0..3 {
        assert!(!again.delivery().redelivered);
    }
    assert_eq!(channel.ready(queue, 3), 3, "nothing has left");
    channel.delete(delete(queue));
}

/// §12.2, §8.3: as published, plus the offset.
#[test]
fn s12_2_a_delivery_has_its_offset_its_exchange_and_its_key() {
    let (queue, topic) = ("s12_2_fields", "s12_2_topic");
    let channel = stream(queue, []);
    channel.declare_exchange(exchange(topic, "topic"));
    channel.bind(bind(queue, topic, "a.#"));
    channel.publish(topic, "a.b", "plain");
    let full = Properties {
        content_type: Some("text/plain".to_owned().into()),
        content_encoding: Some("x".to_owned().into()),
        delivery_mode: Some(1),
        priority: Some(5),
        expiration: Some("1".to_owned().into()),
        message_id: Some("id".to_owned().into()),
        ..headers([("k", text("v")), ("x-stream-offset", text("mine"))])
    };
    channel.publish_properties(topic, "a.c", &full, "full");
    channel.publish("", queue, "default");
    channel.wait_for_confirms(3);
    let reader = reader(queue, 10, "first");
    let plain = reader.delivery();
    assert_eq!((plain.exchange.as_str(), plain.routing_key.as_str(), plain.redelivered), (topic, "a.b", false));
    assert_eq!(plain.properties.headers, Some(table([("x-stream-offset", FieldValue::I64(0))])));
    assert_eq!(plain.properties.delivery_mode, Some(1), "set where there was none");
    let delivery = reader.delivery();
    assert_eq!((delivery.tag, delivery.routing_key.as_str()), (2, "a.c"));
    assert_eq!(delivery.header("x-stream-offset"), Some(&FieldValue::I64(1)));
    assert_eq!(delivery.header("k"), Some(&text("v")));
    assert_eq!(Properties { headers: None, ..delivery.properties }, Properties { headers: None, ..full });
    let default = reader.delivery();
    assert_eq!((default.exchange.as_str(), default.routing_key.as_str()), ("", queue));
    channel.delete(delete(queue));
    channel.delete_exchange(exchange_delete(topic));
}

#[test]
fn s12_2_every_way_to_settle_is_only_credit() {
    let queue = "s12_2_settle";
    let channel = stream(queue, []);
    fill(&channel, queue, 0, 6);
    type Settle = fn(&Channel);
    let rows: [(Settle, usize); 7] = [
        (|channel| channel.ack(1), 1),
        (|channel| channel.ack_multiple(2), 2),
        (|channel| channel.ack_multiple(0), 2),
        (|channel| channel.nack(1, false, true), 1),
        (|channel| channel.nack(2, true, false), 2),
        (|channel| channel.reject(2, true), 1),
        (|channel| channel.reject(1, false), 1),
    ];
    for (number, (settle, freed)) in rows.into_iter().enumerate() {
        println!("row {number}");
        let reader = reader(queue, 2, "first");
        assert_eq!(reader.bodies(2), ["m0", "m1"]);
        reader.expect_quiet();
        settle(&reader);
        assert_eq!(reader.bodies(freed), ["m2", "m3"][..freed]);
        reader.expect_quiet();
        reader.close();
    }
    assert_eq!(channel.ready(queue, 6), 6);
    let reader = reader(queue, 2, "first");
    reader.bodies(2);
    reader.send(basic::Recover { requeue: true });
    assert_eq!(bodies_around(&reader, basic::RecoverOk::ID, 2), ["m2", "m3"]);
    channel.delete(delete(queue));
}

#[test]
fn s12_2_an_unknown_tag_is_refused_as_anywhere() {
    let queue = "s12_2_tags";
    let channel = stream(queue, []);
    fill(&channel, queue, 0, 1);
    let reader = reader(queue, 2, "first");
    reader.delivery();
    reader.refuses(basic::Ack { delivery_tag: 2, multiple: false }, 406, "unknown delivery tag 2");
    channel.delete(delete(queue));
}

#[test]
fn s12_2_acks_of_a_transaction_give_credit_at_commit() {
    let queue = "s12_2_tx";
    let channel = stream(queue, []);
    fill(&channel, queue, 0, 2);
    let reader = open();
    reader.tx_select();
    reader.qos(1, false);
    reader.consume(from(queue, "first"));
    assert_eq!(reader.bodies(1), ["m0"]);
    reader.ack(1);
    reader.expect_quiet();
    reader.publish("", queue, "m2");
    for (tag, body) in [(2, "m1"), (3, "m2")] {
        reader.send(tx::Commit {});
        assert_eq!(bodies_around(&reader, tx::CommitOk::ID, 1), [body]);
        reader.ack(tag);
    }
    channel.delete(delete(queue));
}

#[test]
fn s12_2_cancel_ends_deliveries_and_acks_still_count() {
    let queue = "s12_2_cancel";
    let channel = stream(queue, []);
    fill(&channel, queue, 0, 3);
    let reader = open();
    reader.qos(1, false);
    let tag = reader.consume(from(queue, "first"));
    assert_eq!(reader.bodies(1), ["m0"]);
    reader.cancel(&tag);
    reader.ack(1);
    reader.expect_quiet();
    // The place is not kept: the client says again where to begin.
    reader.consume(basic::Consume { consumer_tag: &tag, ..from(queue, "first") });
    assert_eq!(reader.bodies(1), ["m0"]);
    channel.delete(delete(queue));
}

#[test]
fn s12_2_filters_choose_among_values() {
    let queue = "s12_2_filters";
    let channel = stream(queue, []);
    for (number, value) in [Some("a"), Some("b"), None, Some("a"), Some("c")].into_iter().enumerate() {
        let properties = match value {
            Some(value) => headers([("x-stream-filter-value", text(value))]),
            None => Properties::default(),
        };
        channel.publish_with(publish("", queue), &properties, format!("m{number}").as_bytes());
        channel.confirm();
    }
    let both = FieldValue::Array(vec![text("a"), text("b")]);
    let rows: [(FieldValue, bool, &[&str]); 4] = [
        (text("a"), false, &["m0", "m3"]),
        (text("a"), true, &["m0", "m2", "m3"]),
        (both, false, &["m0", "m1", "m3"]),
        (text("z"), false, &[]),
    ];
    for (filter, unfiltered, bodies) in rows {
        println!("{filter:?} {unfiltered}");
        let reader = open();
        reader.qos(10, false);
        let arguments = table([
            ("x-stream-offset", text("first")),
            ("x-stream-filter", filter),
            ("x-stream-match-unfiltered", FieldValue::Bool(unfiltered)),
        ]);
        reader.consume(basic::Consume { arguments, ..consume(queue, "") });
        assert_eq!(reader.bodies(bodies.len()), bodies);
        reader.expect_quiet();
    }
    channel.delete(delete(queue));
}

#[test]
fn s12_2_ttl_and_expiration_do_not_apply() {
    let queue = "s12_2_ttl";
    let channel = stream(queue, []);
    let expiring = Properties { expiration: Some("1".to_owned().into()), ..Properties::default() };
    channel.publish_properties("", queue, &expiring, "m0");
    channel.confirm();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(reader(queue, 1, "first").bodies(1), ["m0"]);
    channel.delete(delete(queue));
}

/// Large bodies are shared, not copied, and come back whole.
#[test]
fn s12_2_large_bodies_are_read_as_often_as_small_ones() {
    let queue = "s12_2_large";
    let channel = stream(queue, []);
    let body: Vec<u8> = (0..300_000_u32).map(|number| number as u8).collect();
    channel.publish_with(publish("", queue), &Properties::default(), &body);
    channel.confirm();
    for _ in 0..2 {
        assert!(reader(queue, 1, "first").delivery().body == body);
    }
    channel.delete(delete(queue));
}
