//! Every row of the table of version differences (`model/profile.rs`), under every version: a client sees what is
//! written there. Each test is named for its row; the last one looks that none is missing.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use leveret_protocol::{
    FieldTable, FieldValue, FrameKind, Method, PROTOCOL_HEADER, Properties, basic, connection, put_method_frame, queue,
    split_frame,
};

use super::Settings;
use super::testing::{Rig, Sent};
use crate::auth::{Pattern, Permissions};
use crate::model::handshake::{Handshake, HandshakeLimits, Step};
use crate::model::profile::Profile;

/// Checks the same on a broker of each version, from 3.13 to 4.3, against what is expected of each. Nothing is kept,
/// so no answer waits for a disk.
#[track_caller]
fn under_each<T: PartialEq + std::fmt::Debug>(expected: [T; 5], check: impl Fn(&mut Rig) -> T) {
    let got = Profile::ALL.map(|profile| {
        let settings = Settings { profile, persistent: false, ..Settings::default() };
        check(&mut Rig::new(settings))
    });
    assert_eq!(got, expected, "from 3.13 to 4.3");
}

fn arguments<const N: usize>(fields: [(&str, FieldValue); N]) -> FieldTable {
    FieldTable::from_iter(fields)
}

fn of_type(queue_type: &str) -> FieldTable {
    arguments([("x-queue-type", queue_type.into())])
}

fn declare(queue: &str, arguments: FieldTable) -> queue::Declare<'_> {
    let (passive, durable, exclusive, auto_delete, no_wait) = (false, true, false, false, false);
    queue::Declare { queue, passive, durable, exclusive, auto_delete, no_wait, arguments }
}

fn consume<'a>(queue: &'a str, consumer_tag: &'a str, no_ack: bool) -> Method<'a> {
    let (no_local, exclusive, no_wait, arguments) = (false, false, true, FieldTable::new());
    basic::Consume { queue, consumer_tag, no_local, no_ack, exclusive, no_wait, arguments }.into()
}

/// What a request was answered with: `ok`, or the reply text of the close.
fn answer(sent: &[Sent]) -> String {
    match sent {
        [Sent::Method(method)] => match method.split_once("reply_text: \"") {
            Some((_, rest)) => rest.split("\", class_id").next().unwrap_or_default().replace("\\\"", "\""),
            None => "ok".to_owned(),
        },
        other => panic!("one answer is due: {other:?}"),
    }
}

fn bodies(sent: &[Sent]) -> Vec<String> {
    let body = |sent: &Sent| match sent {
        Sent::Content(_, body) => Some(String::from_utf8_lossy(body).into_owned()),
        Sent::Method(_) => None,
    };
    sent.iter().filter_map(body).collect()
}

/// The one message in the queue, if it is there: its properties and whether it says redelivered.
fn get(rig: &mut Rig, queue: &str) -> Option<(Properties, bool)> {
    match &rig.send(basic::Get { queue, no_ack: true }.into())[..] {
        [Sent::Method(get_ok), Sent::Content(properties, _)] => {
            Some((properties.as_ref().clone(), get_ok.contains("redelivered: true")))
        }
        [Sent::Method(empty)] if empty.contains("GetEmpty") => None,
        other => panic!("not an answer to basic.get: {other:?}"),
    }
}

fn header(properties: &Properties, name: &str) -> Option<FieldValue> {
    properties.headers.as_ref()?.get(name).cloned()
}

/// A client that has logged in: the version it was told, and the answer to this frame size.
fn shake_hands(profile: Profile, frame_max: u32) -> (String, String) {
    let limits = HandshakeLimits {
        profile,
        frame_max: 131_072,
        initial_frame_max: 8192,
        channel_max: 2047,
        heartbeat_s: 60,
        max_message_size: 1 << 20,
        anonymous: false,
    };
    let (mut handshake, mut out) = (Handshake::new(limits), BytesMut::new());
    let advance = |handshake: &mut Handshake, method: Option<Method<'_>>, out: &mut BytesMut| {
        let mut input = BytesMut::new();
        match &method {
            None => input.extend_from_slice(&PROTOCOL_HEADER),
            Some(method) => put_method_frame(&mut input, 0, method),
        }
        let mut consumed = 0;
        handshake.advance(&input, &mut consumed, out)
    };
    advance(&mut handshake, None, &mut out);
    let (frame, _) = split_frame(&out, 0).expect("a frame").expect("whole");
    assert_eq!(frame.kind, FrameKind::Method);
    let Method::ConnectionStart(start) = Method::decode(frame.payload).expect("a method") else { panic!("not start") };
    let version = start.server_properties.get("version").and_then(FieldValue::as_str).expect("a version").to_owned();
    let response = Bytes::from_static(b"\0guest\0guest");
    let start_ok = connection::StartOk {
        client_properties: FieldTable::new(),
        mechanism: "PLAIN",
        response: &response,
        locale: "en_US",
    };
    advance(&mut handshake, Some(start_ok.into()), &mut out);
    handshake.login_accepted(&mut out);
    let tune_ok = connection::TuneOk { channel_max: 2047, frame_max, heartbeat: 60 };
    let step = match advance(&mut handshake, Some(tune_ok.into()), &mut out) {
        Step::More => "accepted".to_owned(),
        Step::Refused { reason } => reason,
        other => panic!("{other:?}"),
    };
    (version, step)
}

#[test]
fn row_server_version() {
    for profile in Profile::ALL {
        let (version, _) = shake_hands(profile, 131_072);
        assert!(version.starts_with(&format!("{}.", profile.as_str())), "{version} of {profile:?}");
    }
}

#[test]
fn row_frame_max_min() {
    let refused = "NOT_ALLOWED - negotiated frame_max = 4096 is lower than the minimum allowed value (8192)";
    let got = Profile::ALL.map(|profile| shake_hands(profile, 4096).1);
    assert_eq!(got, ["accepted", "accepted", refused, refused, refused]);
    assert_eq!(Profile::ALL.map(|profile| shake_hands(profile, 8192).1), ["accepted"; 5]);
}

#[test]
fn row_max_message_size() {
    let of = |profile: &str| {
        let arguments = ["leveret", "--compat", profile].map(Into::into);
        crate::config::parse(arguments, []).expect("a good command line").max_message_size
    };
    assert_eq!(Profile::ALL.map(|profile| of(profile.as_str()) >> 20), [128, 16, 16, 16, 16]);
}

#[test]
fn row_has_channel_prefetch() {
    // Two consumers, four messages: one for the channel, or one for each.
    under_each([1, 1, 1, 1, 2], |rig| {
        rig.declare("q", FieldTable::new());
        rig.send(basic::Qos { prefetch_size: 0, prefetch_count: 1, global: true }.into());
        for body in ["1", "2", "3", "4"] {
            rig.publish("", "q", body);
        }
        rig.send_ahead(consume("q", "a", false));
        rig.send_ahead(consume("q", "b", false));
        bodies(&rig.take()).len()
    });
}

#[test]
fn row_ack_timeout_closes_channel() {
    let outcome = |rig: &mut Rig, queue_type: &str| {
        rig.declare("q", of_type(queue_type));
        rig.publish("", "q", "m");
        rig.send_ahead(consume("q", "c", false));
        rig.take();
        let mut sent = Vec::new();
        for _ in 0..40 {
            sent.extend(rig.wait(60_000));
        }
        let shown = format!("{sent:?}");
        ["ChannelClose", "BasicCancel"].into_iter().find(|name| shown.contains(name))
    };
    let close = Some("ChannelClose");
    under_each([close, close, close, close, None], |rig| outcome(rig, "classic"));
    under_each([close, close, close, close, Some("BasicCancel")], |rig| outcome(rig, "quorum"));
}

/// How often a message of a quorum queue is delivered that always comes back, at most 30 times.
fn deliveries(rig: &mut Rig, queue: &str, bring_back: impl Fn(u64) -> Method<'static>) -> usize {
    rig.publish("", queue, "m");
    rig.send_ahead(consume(queue, "c", false));
    let mut count = bodies(&rig.take()).len();
    for tag in 1..30 {
        if count as u64 == tag {
            count += bodies(&rig.send(bring_back(tag))).len();
        }
    }
    count
}

fn reject(delivery_tag: u64) -> Method<'static> {
    basic::Reject { delivery_tag, requeue: true }.into()
}

fn nack(delivery_tag: u64) -> Method<'static> {
    basic::Nack { delivery_tag, multiple: false, requeue: true }.into()
}

#[test]
fn row_default_delivery_limit() {
    under_each([30, 21, 21, 21, 21], |rig| {
        rig.declare("q", of_type("quorum"));
        deliveries(rig, "q", reject)
    });
}

#[test]
fn row_every_return_counts() {
    let limited = || arguments([("x-queue-type", "quorum".into()), ("x-delivery-limit", 2.into())]);
    under_each([3, 3, 3, 3, 30], |rig| {
        rig.declare("q", limited());
        deliveries(rig, "q", nack)
    });
    under_each([3; 5], |rig| {
        rig.declare("q", limited());
        deliveries(rig, "q", reject)
    });
}

#[test]
fn row_has_acquired_count() {
    under_each([None, None, None, None, Some(FieldValue::I64(1))], |rig| {
        rig.declare("q", of_type("quorum"));
        rig.publish("", "q", "m");
        rig.send(basic::Get { queue: "q", no_ack: false }.into());
        rig.send(nack(1));
        header(&get(rig, "q").expect("it came back").0, "x-acquired-count")
    });
}

#[test]
fn row_quorum_priorities() {
    let by_two = "h1 h2 l1 h3 h4 l2";
    under_each(["l1 h1 l2 h2 h3 h4", by_two, by_two, by_two, "h4 h1 h2 h3 l1 l2"], |rig| {
        rig.declare("q", of_type("quorum"));
        for (body, priority) in [("l1", 0), ("h1", 8), ("l2", 0), ("h2", 8), ("h3", 8), ("h4", 9)] {
            let publish = basic::Publish { exchange: "", routing_key: "q", mandatory: false, immediate: false };
            rig.publish_with(publish, &Properties { priority: Some(priority), ..Properties::default() }, body);
        }
        rig.send_ahead(consume("q", "c", true));
        bodies(&rig.take()).join(" ").leak() as &str
    });
}

#[test]
fn row_has_delayed_retry() {
    let retries = || {
        arguments([
            ("x-queue-type", "quorum".into()),
            ("x-delayed-retry-type", "all".into()),
            ("x-delayed-retry-min", 1000.into()),
        ])
    };
    // Known from 4.3 on; before, nobody looks at them, and the message comes back at once.
    under_each([true, true, true, true, false], |rig| {
        rig.declare("q", retries());
        rig.publish("", "q", "m");
        rig.send(basic::Get { queue: "q", no_ack: false }.into());
        rig.send(reject(1));
        get(rig, "q").is_some()
    });
    let invalid = "PRECONDITION_FAILED - invalid arg 'x-delayed-retry-min' for queue 'q' in vhost '/': \
                   {value_negative,-1}";
    under_each(["ok", "ok", "ok", "ok", invalid].map(str::to_owned), |rig| {
        let bad = arguments([("x-queue-type", "quorum".into()), ("x-delayed-retry-min", (-1).into())]);
        answer(&rig.send(declare("q", bad).into()))
    });
}

/// Queue `q`, whose dead letters go to queue `dead`.
fn with_dead_letters(rig: &mut Rig) {
    let dead_letters = [("x-dead-letter-exchange", "".into()), ("x-dead-letter-routing-key", "dead".into())];
    rig.declare("q", arguments(dead_letters));
    rig.declare("dead", FieldTable::new());
}

#[test]
fn row_trusts_published_deaths() {
    under_each([6, 1, 1, 1, 1], |rig| {
        with_dead_letters(rig);
        let death = arguments([
            ("queue", "q".into()),
            ("reason", "rejected".into()),
            ("count", FieldValue::I64(5)),
            ("exchange", "".into()),
            ("time", FieldValue::Timestamp(1)),
            ("routing-keys", FieldValue::Array(vec!["q".into()])),
        ]);
        let headers = arguments([("x-death", FieldValue::Array(vec![FieldValue::Table(death)]))]);
        let publish = basic::Publish { exchange: "", routing_key: "q", mandatory: false, immediate: false };
        rig.publish_with(publish, &Properties { headers: Some(headers), ..Properties::default() }, "m");
        rig.send(basic::Get { queue: "q", no_ack: false }.into());
        rig.send(basic::Reject { delivery_tag: 1, requeue: false }.into());
        let (properties, _) = get(rig, "dead").expect("it died");
        let Some(FieldValue::Array(deaths)) = header(&properties, "x-death") else { panic!("no x-death") };
        let FieldValue::Table(first) = &deaths[0] else { panic!("no table") };
        first.get("count").and_then(FieldValue::as_integer).expect("a count")
    });
}

#[test]
fn row_dead_letters_keep_redelivered() {
    under_each([false, false, false, false, true], |rig| {
        with_dead_letters(rig);
        rig.publish("", "q", "m");
        rig.send(basic::Get { queue: "q", no_ack: false }.into());
        rig.send(reject(1));
        rig.send(basic::Get { queue: "q", no_ack: false }.into());
        rig.send(basic::Reject { delivery_tag: 2, requeue: false }.into());
        get(rig, "dead").expect("it died").1
    });
}

/// The name that requests of a direct reply-to consumer carry.
fn reply_name(rig: &mut Rig) -> String {
    rig.declare("requests", FieldTable::new());
    rig.send_ahead(consume("amq.rabbitmq.reply-to", "c", true));
    let publish = basic::Publish { exchange: "", routing_key: "requests", mandatory: false, immediate: false };
    let reply_to = Some(Bytes::from_static(b"amq.rabbitmq.reply-to"));
    rig.publish_with(publish, &Properties { reply_to, ..Properties::default() }, "request");
    let (properties, _) = get(rig, "requests").expect("a request");
    String::from_utf8(properties.reply_to.expect("where to").to_vec()).expect("a name")
}

fn reply(rig: &mut Rig, to: &str) -> String {
    let publish = basic::Publish { exchange: "", routing_key: to, mandatory: true, immediate: false };
    format!("{:?}", rig.publish_with(publish, &Properties::default(), "reply"))
}

#[test]
fn row_returns_lost_replies() {
    under_each([true, true, true, false, false], |rig| {
        let name = reply_name(rig);
        rig.send(basic::Cancel { consumer_tag: "c", no_wait: true }.into());
        reply(rig, &name).contains("BasicReturn")
    });
}

#[test]
fn row_has_old_replies() {
    // Tags of two replies in a row; the request took the first.
    under_each([[2, 2], [2, 2], [2, 2], [2, 3], [2, 3]], |rig| {
        let name = reply_name(rig);
        let before = rig.broker.stats().unroutable;
        let tags = [(); 2].map(|()| {
            let sent = reply(rig, &name);
            let (_, rest) = sent.split_once("delivery_tag: ").expect("a delivery");
            rest.split(',').next().and_then(|tag| tag.parse::<u64>().ok()).expect("a tag")
        });
        let old = tags == [2, 2];
        assert_eq!(rig.broker.stats().unroutable - before, if old { 2 } else { 0 }, "{tags:?}");
        tags
    });
}

#[test]
fn row_quorum_in_texts() {
    let text = |name: &str| {
        format!(
            "RESOURCE_LOCKED - cannot obtain access to locked queue 'q' in vhost '/'. basic.get operations are not \
             supported by {name} queues with single active consumer"
        )
    };
    let (plain, quoted) = (text("quorum"), text("<<\"quorum\">>"));
    under_each([plain.clone(), plain.clone(), plain.clone(), plain, quoted], |rig| {
        rig.declare("q", arguments([("x-queue-type", "quorum".into()), ("x-single-active-consumer", true.into())]));
        answer(&rig.send(basic::Get { queue: "q", no_ack: true }.into()))
    });
}

#[test]
fn row_knows_newer_arguments() {
    let declared = |queue_type: &'static str, name: &'static str, value: FieldValue| {
        move |rig: &mut Rig| {
            let table = arguments([("x-queue-type", queue_type.into()), (name, value.clone())]);
            answer(&rig.send(declare("q", table).into())) == "ok"
        }
    };
    let from_4_1 = [true, true, false, false, false];
    under_each(from_4_1, declared("classic", "x-consumer-timeout", "soon".into()));
    under_each(from_4_1, declared("classic", "x-initial-cluster-size", 1.into()));
    under_each(from_4_1, declared("quorum", "x-stream-filter-size-bytes", 20.into()));
    let (old, new) = ("Invalid value for  x-stream-filter-size-bytes", "Invalid value for x-stream-filter-size-bytes");
    under_each([old, old, new, new, new].map(|text| format!("PRECONDITION_FAILED - {text}")), |rig| {
        let table = arguments([("x-queue-type", "stream".into()), ("x-stream-filter-size-bytes", 5.into())]);
        answer(&rig.send(declare("q", table).into()))
    });
}

#[test]
fn row_checks_queue_mode() {
    let refused = "PRECONDITION_FAILED - invalid arg 'x-queue-mode' for queue 'q' in vhost '/': \
                   \"unsupported queue mode 'odd'\"";
    under_each([refused, refused, "ok", "ok", "ok"].map(str::to_owned), |rig| {
        answer(&rig.send(declare("q", arguments([("x-queue-mode", "odd".into())])).into()))
    });
}

#[test]
fn row_has_queue_version_1() {
    let refused = "PRECONDITION_FAILED - invalid arg 'x-queue-version' for queue 'q' in vhost '/': \
                   \"unsupported queue version '1'\"";
    under_each(["ok", "ok", "ok", "ok", refused].map(str::to_owned), |rig| {
        answer(&rig.send(declare("q", arguments([("x-queue-version", 1.into())])).into()))
    });
}

#[test]
fn row_keeps_max_age_in_ms() {
    // Seven days are a week, if one looks at the time and not at the word.
    let differs = "PRECONDITION_FAILED - inequivalent arg 'x-max-age' for queue 'q' in vhost '/': received '24h' but \
                   current is '1D'";
    under_each([differs, differs, differs, differs, "ok"].map(str::to_owned), |rig| {
        let stream = |age: &str| arguments([("x-queue-type", "stream".into()), ("x-max-age", age.into())]);
        rig.declare("q", stream("1D"));
        answer(&rig.send(declare("q", stream("24h")).into()))
    });
}

#[test]
fn row_topic_hashes_max() {
    let refused = "PRECONDITION_FAILED - Topic binding key '#.a.#.b.#' uses 3 '#' wildcards, at most 2 are allowed";
    under_each(["ok", "ok", "ok", "ok", refused].map(str::to_owned), |rig| {
        rig.declare("q", FieldTable::new());
        let (exchange, no_wait, arguments) = ("amq.topic", false, FieldTable::new());
        answer(&rig.send(queue::Bind { queue: "q", exchange, routing_key: "#.a.#.b.#", no_wait, arguments }.into()))
    });
}

#[test]
fn row_passive_declare_needs_access() {
    let refused = "ACCESS_REFUSED - configure access to queue 'q' in vhost '/' refused for user 'guest'";
    under_each(["ok", "ok", "ok", "ok", refused].map(str::to_owned), |rig| {
        rig.declare("q", FieldTable::new());
        let none = || Pattern::new("").expect("a pattern");
        let permissions = Permissions { configure: none(), write: none(), read: none() };
        rig.broker.set_permissions("guest", Arc::new(permissions), None);
        answer(&rig.send(queue::Declare { passive: true, ..declare("q", FieldTable::new()) }.into()))
    });
}

#[test]
fn row_knows_reply_queues_in_bindings() {
    under_each([404, 404, 404, 404, 403], |rig| {
        let name = reply_name(rig);
        let (exchange, routing_key, no_wait, arguments) = ("amq.direct", "k", false, FieldTable::new());
        let sent = rig.send(queue::Bind { queue: &name, exchange, routing_key, no_wait, arguments }.into());
        let shown = format!("{sent:?}");
        [403, 404].into_iter().find(|code| shown.contains(&format!("reply_code: {code}"))).expect("refused")
    });
}

#[test]
fn row_denies_master_locator() {
    under_each([false, false, false, false, true], |rig| {
        let table = arguments([("x-queue-master-locator", "min-masters".into())]);
        let sent = format!("{:?}", rig.send(declare("q", table).into()));
        assert!(sent.contains("reply_code: 541") || sent.contains("DeclareOk"), "{sent}");
        sent.contains("ConnectionClose")
    });
}

#[test]
fn row_renders_missing_type_as_none() {
    let text = |received: &str| {
        format!(
            "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received {received} but \
             current is the value 'quorum' of type 'longstr'"
        )
    };
    let new = "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received 'classic' \
               but current is 'quorum'";
    under_each([text("none"), new.to_owned(), new.to_owned(), new.to_owned(), new.to_owned()], |rig| {
        rig.declare("q", of_type("quorum"));
        answer(&rig.send(declare("q", FieldTable::new()).into()))
    });
}

/// A vhost may be of another version than the rest, and so is all of the above decided by its own settings.
#[test]
fn every_row_has_its_test() {
    let (table, tests) = (include_str!("../profile.rs"), include_str!("profile_tests.rs"));
    let rows = table.lines().filter_map(|line| line.trim().strip_prefix("pub fn ")?.split('(').next());
    let rows: Vec<&str> = rows.filter(|row| !["parse", "as_str"].contains(row)).collect();
    assert!(rows.len() > 20, "the table was read: {rows:?}");
    let missing: Vec<&str> =
        rows.into_iter().filter(|row| !tests.contains(&format!("\nfn row_{row}() {{\n"))).collect();
    assert!(missing.is_empty(), "rows without a test: {missing:?}");
}
