//! Where messages go: a few ways through each type of exchange; the rules have unit tests of their own (§7).

use leveret_protocol::{FieldTable, FieldValue, Properties, basic, exchange, queue};

use crate::client::{
    Channel, bind, connect, declare, exchange, exchange_bind, exchange_delete, headers, open, publish, table, text,
};

/// Publishes with each key, and gives back which of the queues got it, by the last part of their names.
fn who_gets(channel: &Channel, exchange: &str, queues: &[&str], properties: &Properties, keys: &[&str]) -> Vec<String> {
    keys.iter()
        .map(|key| {
            channel.publish_properties(exchange, key, properties, key);
            // Everything published before is where it belongs once this has come back.
            channel.publish_with(
                basic::Publish { mandatory: true, ..publish("", "s7_nowhere") },
                &Properties::default(),
                b"",
            );
            channel.returned();
            let got = queues.iter().filter(|queue| {
                let bodies = channel.drain(queue);
                assert!(bodies.is_empty() || bodies == [*key], "{queue} got {bodies:?}");
                !bodies.is_empty()
            });
            got.map(|queue| queue.rsplit('_').next().unwrap()).collect::<Vec<_>>().join(" ")
        })
        .collect()
}

/// A few queues, each bound as the row says.
fn bound<const N: usize>(exchange: &str, bindings: [(&'static str, &str); N]) -> (Channel, Vec<&'static str>) {
    let channel = open();
    let mut queues = Vec::new();
    for (queue, key) in bindings {
        channel.declare(declare(queue));
        channel.bind(bind(queue, exchange, key));
        if !queues.contains(&queue) {
            queues.push(queue);
        }
    }
    (channel, queues)
}

#[test]
fn s7_the_default_exchange_routes_to_the_queue_of_that_name() {
    let channel = open();
    let queues = ["s7_default_a", "s7_default_b"];
    for queue in queues {
        channel.declare(declare(queue));
    }
    let got = who_gets(&channel, "", &queues, &Properties::default(), &["s7_default_a", "s7_default_b", "s7_default_"]);
    assert_eq!(got, ["a", "b", ""]);
}

#[test]
fn s7_direct_compares_keys_byte_by_byte() {
    channel_of("s7_direct", "direct");
    let (channel, queues) = bound(
        "s7_direct",
        [("s7_direct_a", "k"), ("s7_direct_b", "k"), ("s7_direct_b", "l"), ("s7_direct_c", ""), ("s7_direct_d", "*")],
    );
    let got = who_gets(&channel, "s7_direct", &queues, &Properties::default(), &["k", "l", "", "K", "*", "kk"]);
    assert_eq!(got, ["a b", "b", "c", "", "d", ""]);
}

/// Declares an exchange.
fn channel_of(name: &str, type_: &str) {
    open().declare_exchange(exchange(name, type_));
}

#[test]
fn s7_fanout_ignores_the_key() {
    channel_of("s7_fanout", "fanout");
    let (channel, queues) = bound("s7_fanout", [("s7_fanout_a", "x"), ("s7_fanout_b", ""), ("s7_fanout_b", "y")]);
    assert_eq!(
        who_gets(&channel, "s7_fanout", &queues, &Properties::default(), &["", "x", "z"]),
        ["a b", "a b", "a b"]
    );
}

#[test]
fn s7_topic_matches_words() {
    channel_of("s7_topic", "topic");
    let (channel, queues) = bound(
        "s7_topic",
        [
            ("s7_topic_a", "#"),
            ("s7_topic_b", "*.b"),
            ("s7_topic_c", "a.#"),
            ("s7_topic_d", "#.c.*"),
            ("s7_topic_e", "a.b"),
            ("s7_topic_f", ""),
            ("s7_topic_g", "*"),
        ],
    );
    let keys = ["a.b", "a", "", "x.c.y", "a.c.b", ".b", "a..b", "A.b"];
    let got = who_gets(&channel, "s7_topic", &queues, &Properties::default(), &keys);
    assert_eq!(got, ["a b c e", "a c g", "a f", "a d", "a c d", "a b", "a c", "a b"]);
}

#[test]
fn s7_headers_match_all_or_any() {
    channel_of("s7_headers", "headers");
    let channel = open();
    let bindings: [(&str, FieldTable); 7] = [
        ("s7_headers_all", table([("x-match", text("all")), ("a", FieldValue::I32(1)), ("b", text("x"))])),
        ("s7_headers_any", table([("x-match", text("any")), ("a", FieldValue::I64(1)), ("b", text("x"))])),
        ("s7_headers_default", table([("a", FieldValue::I8(1))])),
        ("s7_headers_presence", table([("a", FieldValue::Void)])),
        ("s7_headers_none", table([])),
        ("s7_headers_skips", table([("x-other", text("1")), ("a", FieldValue::I32(1))])),
        ("s7_headers_withx", table([("x-match", text("all-with-x")), ("x-other", text("1"))])),
    ];
    let queues = bindings.each_ref().map(|(queue, _)| *queue);
    for (queue, arguments) in bindings {
        channel.declare(declare(queue));
        channel.bind(queue::Bind { arguments, ..bind(queue, "s7_headers", "ignored") });
    }
    let rows = [
        (headers([("a", FieldValue::I32(1)), ("b", text("x"))]), "all any default presence none skips"),
        (headers([("a", FieldValue::U8(1))]), "any default presence none skips"),
        (headers([("b", text("x"))]), "any none"),
        (headers([("a", text("1"))]), "presence none"),
        (headers([("x-other", text("1"))]), "none withx"),
        (Properties::default(), "none"),
    ];
    for (properties, expected) in rows {
        assert_eq!(who_gets(&channel, "s7_headers", &queues, &properties, &["k"]), [expected], "{properties:?}");
    }
}

#[test]
fn s7_headers_x_match_is_one_of_four_words() {
    let connection = connect();
    connection.channel().declare(declare("s7_x_match"));
    let with = |value| queue::Bind { arguments: table([("x-match", value)]), ..bind("s7_x_match", "amq.headers", "") };
    let text_ = "Invalid x-match field value <<\"some\">>; expected all, any, all-with-x, or any-with-x";
    connection.channel().refuses(with(text("some")), 406, text_);
    let text_ = "Invalid x-match field type signedint (value 5); expected longstr";
    connection.channel().refuses(with(FieldValue::I32(5)), 406, text_);
    for word in ["all", "any", "all-with-x", "any-with-x"] {
        connection.channel().bind(with(text(word)));
    }
}

#[test]
fn s7_exchange_to_exchange_keeps_key_and_the_name_of_the_first() {
    let channel = open();
    channel.declare_exchange(exchange("s7_e2e_1", "topic"));
    channel.declare_exchange(exchange("s7_e2e_2", "direct"));
    channel.declare_exchange(exchange::Declare { internal: true, ..exchange("s7_e2e_3", "fanout") });
    channel.declare(declare("s7_e2e_q"));
    channel.bind_exchange(exchange_bind("s7_e2e_2", "s7_e2e_1", "a.*"));
    channel.bind_exchange(exchange_bind("s7_e2e_3", "s7_e2e_2", "a.b"));
    channel.bind(bind("s7_e2e_q", "s7_e2e_3", ""));
    channel.publish("s7_e2e_1", "a.c", "lost");
    channel.publish("s7_e2e_1", "a.b", "found");
    let found = channel.pop("s7_e2e_q");
    assert_eq!((found.text(), found.exchange.as_str(), found.routing_key.as_str()), ("found", "s7_e2e_1", "a.b"));
}

#[test]
fn s7_a_queue_gets_one_copy_by_however_many_ways() {
    let channel = open();
    let queue = "s7_one_copy";
    channel.declare(declare(queue));
    for name in ["s7_copy_1", "s7_copy_2", "s7_copy_3"] {
        channel.declare_exchange(exchange(name, "fanout"));
        channel.bind(bind(queue, name, ""));
        channel.bind(bind(queue, name, "again"));
    }
    channel.bind_exchange(exchange_bind("s7_copy_2", "s7_copy_1", ""));
    channel.bind_exchange(exchange_bind("s7_copy_3", "s7_copy_1", ""));
    channel.bind_exchange(exchange_bind("s7_copy_3", "s7_copy_2", ""));
    channel.publish("s7_copy_1", "", "x");
    assert_eq!(channel.pop(queue).text(), "x");
    assert_eq!(channel.look(queue).ready, 0);
}

fn with_alternate<'a>(name: &'a str, type_: &'a str, alternate: &str) -> exchange::Declare<'a> {
    exchange::Declare { arguments: table([("alternate-exchange", text(alternate))]), ..exchange(name, type_) }
}

#[test]
fn s7_what_finds_no_queue_goes_to_the_alternate_exchange_and_on() {
    let channel = open();
    channel.declare_exchange(with_alternate("s7_ae_1", "direct", "s7_ae_2"));
    channel.declare_exchange(with_alternate("s7_ae_2", "direct", "s7_ae_3"));
    channel.declare_exchange(exchange::Declare { internal: true, ..exchange("s7_ae_3", "fanout") });
    for (queue, exchange, key) in
        [("s7_ae_first", "s7_ae_1", "one"), ("s7_ae_second", "s7_ae_2", "two"), ("s7_ae_third", "s7_ae_3", "")]
    {
        channel.declare(declare(queue));
        channel.bind(bind(queue, exchange, key));
    }
    let queues = ["s7_ae_first", "s7_ae_second", "s7_ae_third"];
    let got = who_gets(&channel, "s7_ae_1", &queues, &Properties::default(), &["one", "two", "three"]);
    assert_eq!(got, ["first", "second", "third"]);
    // It counts as routed.
    channel.confirm_select();
    let mandatory = basic::Publish { mandatory: true, ..publish("s7_ae_1", "anything") };
    channel.publish_with(mandatory, &Properties::default(), b"x");
    channel.wait_for_confirms(1);
    let delivered = channel.pop("s7_ae_third");
    assert_eq!((delivered.exchange.as_str(), delivered.routing_key.as_str()), ("s7_ae_1", "anything"));
}

#[test]
fn s7_an_alternate_exchange_that_is_missing_or_has_no_way_makes_a_message_unroutable() {
    let channel = open();
    channel.declare_exchange(with_alternate("s7_ae_missing", "direct", "s7_no_such"));
    channel.declare_exchange(with_alternate("s7_ae_unbound", "direct", "s7_ae_circle"));
    channel.declare_exchange(with_alternate("s7_ae_circle", "direct", "s7_ae_unbound"));
    for exchange in ["s7_ae_missing", "s7_ae_unbound"] {
        let mandatory = basic::Publish { mandatory: true, ..publish(exchange, "k") };
        channel.publish_with(mandatory, &Properties::default(), b"x");
        assert_eq!(channel.returned().exchange, exchange);
    }
}

#[test]
fn s7_the_alternate_exchange_helps_only_where_nothing_matches() {
    let channel = open();
    channel.declare_exchange(with_alternate("s7_ae_only", "fanout", "amq.fanout"));
    channel.declare_exchange(exchange("s7_ae_dead_end", "fanout"));
    channel.bind_exchange(exchange_bind("s7_ae_dead_end", "s7_ae_only", ""));
    // The exchange bound has no queues, but it is a destination.
    let mandatory = basic::Publish { mandatory: true, ..publish("s7_ae_only", "k") };
    channel.publish_with(mandatory, &Properties::default(), b"x");
    channel.returned();
    channel.delete_exchange(exchange_delete("s7_ae_dead_end"));
}

#[test]
fn s7_keys_of_255_bytes_route() {
    let channel = open();
    let key = "k".repeat(255);
    channel.declare(declare("s7_long"));
    for exchange in ["amq.direct", "amq.topic"] {
        channel.bind(bind("s7_long", exchange, &key));
        channel.publish(exchange, &key, exchange);
        assert_eq!(channel.pop("s7_long").routing_key, key);
    }
}

#[test]
fn s7_a_queue_declared_after_a_publish_to_its_name_gets_the_next() {
    let channel = open();
    for round in 0..3 {
        channel.publish("", "s7_later", "lost");
        channel.declare(declare("s7_later"));
        channel.publish("", "s7_later", "found");
        assert_eq!(channel.pop("s7_later").text(), "found", "round {round}");
        channel.delete(crate::client::delete("s7_later"));
    }
}

#[test]
fn s7_local_random_takes_one_queue() {
    let connection = connect();
    let channel = connection.channel();
    channel.declare_exchange(exchange("s7_random", "x-local-random"));
    for queue in ["s7_random_a", "s7_random_b"] {
        channel.declare(declare(queue));
        channel.bind(bind(queue, "s7_random", ""));
    }
    channel.confirm_select();
    for _ in 0..40 {
        channel.publish("s7_random", "any", "x");
    }
    channel.wait_for_confirms(40);
    let (a, b) = (channel.drain("s7_random_a").len(), channel.drain("s7_random_b").len());
    assert_eq!(a + b, 40);
    // One in 2^39 that chance does this.
    assert!(a > 0 && b > 0, "{a} and {b}");
    let text = "Non empty binding 'k' key not permitted";
    connection.channel().refuses(bind("s7_random_a", "s7_random", "k"), 406, text);
}
