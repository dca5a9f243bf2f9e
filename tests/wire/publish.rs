//! basic.publish: every check in its order, CC and BCC, and what arrives (§8.1, §8.2, §8.3, §8.6).

use leveret_protocol::{FieldValue, Properties, basic, exchange};

use crate::client::{
    Confirm, bind, connect, consume, declare, exchange, expiring, headers, open, persistent, publish, table, text,
};

const LARGEST: usize = 16 * 1024 * 1024;

fn mandatory<'a>(exchange: &'a str, routing_key: &'a str) -> basic::Publish<'a> {
    basic::Publish { mandatory: true, ..publish(exchange, routing_key) }
}

#[test]
fn s8_1_step_0_immediate_is_540_whatever_else_is_wrong() {
    for exchange in ["", "s8_1_missing", "amq.rabbitmq.trace"] {
        let channel = open();
        let immediate = basic::Publish { immediate: true, ..publish(exchange, "k") };
        channel.publish_with(immediate, &expiring("nonsense"), b"x");
        channel.connection.expect_close(540, "immediate=true", basic::Publish::ID);
    }
}

#[test]
fn s8_1_step_1_a_body_over_the_limit_is_406_and_the_limit_itself_passes() {
    if !crate::broker::is_default_version() {
        return;
    }
    let channel = open();
    channel.declare(declare("s8_1_size"));
    let body = vec![b'x'; LARGEST + 1];
    channel.publish_with(publish("", "s8_1_size"), &Properties::default(), &body[..LARGEST]);
    assert_eq!(channel.pop("s8_1_size").body.len(), LARGEST);
    // Before a look at the exchange.
    channel.publish_with(publish("s8_1_missing", "k"), &Properties::default(), &body);
    let text = "message size 16777217 is larger than configured max size 16777216";
    channel.expect_close(406, text, basic::Publish::ID);
}

#[test]
fn s8_1_step_3_a_missing_exchange_is_404() {
    open().refuses_publish(
        publish("s8_1_missing", "k"),
        &expiring("nonsense"),
        404,
        "no exchange 's8_1_missing' in vhost '/'",
    );
}

#[test]
fn s8_1_step_4_internal_exchanges_are_403() {
    open().declare_exchange(exchange::Declare { internal: true, ..exchange("s8_1_internal", "fanout") });
    for name in ["s8_1_internal", "amq.rabbitmq.trace"] {
        let text = format!("cannot publish to internal exchange '{name}' in vhost '/'");
        open().refuses_publish(publish(name, "k"), &expiring("nonsense"), 403, &text);
    }
}

/// A message with everything wrong, put right bit by bit.
#[test]
fn s8_1_steps_5_to_9_come_in_their_order() {
    let connection = connect();
    let mut properties = Properties {
        reply_to: Some("amq.rabbitmq.reply-to".into()),
        expiration: Some("nonsense".into()),
        user_id: Some("somebody".into()),
        ..headers([("CC", text("no array"))])
    };
    let refused = |properties: &Properties, text: &str| {
        connection.channel().refuses_publish(publish("", "k"), properties, 406, text);
    };
    refused(&properties, "fast reply consumer does not exist");
    properties.reply_to = None;
    refused(&properties, "invalid expiration 'nonsense': no_integer");
    properties.expiration = Some("100".into());
    refused(&properties, "invalid message: {unacceptable_type_in_header,\"CC\",longstr}");
    properties.headers = None;
    refused(&properties, "user_id property set to 'somebody' but authenticated user was 'guest'");
    properties.user_id = Some("guest".into());
    let channel = connection.channel();
    channel.publish_properties("", "k", &properties, "x");
    channel.expect_quiet();
}

#[test]
fn s8_1_step_6_an_expiration_is_a_number_of_milliseconds() {
    let connection = connect();
    for (expiration, reason) in [
        ("", "no_integer"),
        ("abc", "no_integer"),
        (" 5", "no_integer"),
        ("100abc", "{leftover_string,\"abc\"}"),
        ("10.5", "{leftover_string,\".5\"}"),
        ("5 ", "{leftover_string,\" \"}"),
        ("-1", "{value_negative,-1}"),
        ("315360000001", "{value_too_large,315360000001}"),
        ("99999999999999999999999", "{value_too_large,99999999999999999999999}"),
    ] {
        let text = format!("invalid expiration '{expiration}': {reason}");
        connection.channel().refuses_publish(publish("", "k"), &expiring(expiration), 406, &text);
    }
}

#[test]
fn s8_1_step_7_cc_and_bcc_are_arrays() {
    let connection = connect();
    for (value, type_) in [
        (text("k"), "longstr"),
        (FieldValue::I32(1), "signedint"),
        (FieldValue::Void, "void"),
        (table([]).into(), "table"),
    ] {
        for header in ["CC", "BCC"] {
            let text = format!("invalid message: {{unacceptable_type_in_header,\"{header}\",{type_}}}");
            let properties = headers([(header, value.clone())]);
            connection.channel().refuses_publish(publish("", "k"), &properties, 406, &text);
        }
    }
    // Names in another case mean nothing.
    connection.channel().publish_properties("", "k", &headers([("cc", text("k"))]), "x");
}

#[test]
fn s8_1_step_9_a_user_id_is_that_of_the_login() {
    let channel = open();
    channel.declare(declare("s8_1_user"));
    let claim = |user: &str| Properties { user_id: Some(user.to_owned().into()), ..Properties::default() };
    channel.publish_properties("", "s8_1_user", &claim("guest"), "x");
    assert_eq!(channel.pop("s8_1_user").properties, claim("guest"));
    for user in ["", "Guest", "admin"] {
        let text = format!("user_id property set to '{user}' but authenticated user was 'guest'");
        open().refuses_publish(publish("", "s8_1_user"), &claim(user), 406, &text);
    }
}

#[test]
fn s8_1_a_mandatory_message_without_a_queue_comes_back_before_its_ack() {
    let channel = open();
    channel.confirm_select();
    let sent = Properties { message_id: Some("id".into()), ..headers([("h", FieldValue::I32(1))]) };
    for (exchange, key) in [("", "s8_1_nowhere"), ("amq.direct", "s8_1_nowhere"), ("amq.fanout", "")] {
        let body = vec![b'r'; 200_000];
        channel.publish_with(mandatory(exchange, key), &sent, &body);
        let back = channel.returned();
        assert_eq!((back.exchange.as_str(), back.routing_key.as_str()), (exchange, key));
        assert_eq!((&back.properties, back.body.len()), (&sent, body.len()));
        assert!(matches!(channel.confirm(), Confirm::Ack { multiple: false, .. }));
    }
    // Not mandatory: only confirmed.
    channel.publish("", "s8_1_nowhere", "x");
    assert_eq!(channel.confirm(), Confirm::Ack { tag: 4, multiple: false });
}

#[test]
fn s8_1_a_mandatory_message_that_reaches_a_queue_does_not_come_back() {
    let channel = open();
    channel.declare(declare("s8_1_reached"));
    channel.publish_with(mandatory("", "s8_1_reached"), &Properties::default(), b"x");
    assert_eq!(channel.pop("s8_1_reached").text(), "x");
    channel.expect_quiet();
}

fn keys(keys: &[&str]) -> FieldValue {
    FieldValue::Array(keys.iter().map(|key| text(key)).collect())
}

#[test]
fn s8_2_cc_and_bcc_are_further_keys_in_every_exchange() {
    let channel = open();
    let queues = ["s8_2_a", "s8_2_b", "s8_2_c", "s8_2_d"];
    for queue in queues {
        channel.declare(declare(queue));
        for exchange in ["amq.direct", "amq.topic"] {
            channel.bind(bind(queue, exchange, queue));
        }
    }
    let sent = headers([("BCC", keys(&["s8_2_c", "s8_2_b"])), ("CC", keys(&["s8_2_b", "s8_2_a"])), ("h", text("v"))]);
    let delivered = headers([("CC", keys(&["s8_2_b", "s8_2_a"])), ("h", text("v"))]);
    for exchange in ["", "amq.direct", "amq.topic"] {
        channel.publish_properties(exchange, "s8_2_a", &sent, "x");
        for queue in &queues[..3] {
            let got = channel.pop(queue);
            assert_eq!((got.routing_key.as_str(), got.exchange.as_str()), ("s8_2_a", exchange));
            assert_eq!(got.properties, delivered, "{queue}: BCC is gone, CC is kept");
            assert_eq!(channel.look(queue).ready, 0, "one copy");
        }
        assert_eq!(channel.look("s8_2_d").ready, 0);
    }
}

#[test]
fn s8_2_elements_that_are_no_strings_are_ignored() {
    let channel = open();
    channel.declare(declare("s8_2_odd"));
    let odd = FieldValue::Array(vec![FieldValue::I32(5), FieldValue::Void, text("s8_2_odd"), table([]).into()]);
    channel.publish_properties("", "s8_2_nowhere", &headers([("CC", odd.clone())]), "x");
    assert_eq!(channel.pop("s8_2_odd").properties, headers([("CC", odd)]));
}

#[test]
fn s8_2_empty_arrays_are_fine_and_a_lone_bcc_leaves_an_empty_table() {
    let channel = open();
    channel.declare(declare("s8_2_lone"));
    let empty = || FieldValue::Array(vec![]);
    channel.publish_properties("", "s8_2_lone", &headers([("BCC", empty()), ("CC", empty())]), "x");
    assert_eq!(channel.pop("s8_2_lone").properties, headers([("CC", empty())]));
    channel.publish_properties("", "s8_2_nowhere", &headers([("BCC", keys(&["s8_2_lone"]))]), "x");
    assert_eq!(channel.pop("s8_2_lone").properties, headers([]));
}

#[test]
fn s8_2_a_returned_message_has_no_bcc_either() {
    let channel = open();
    let sent = headers([("BCC", keys(&["s8_2_no_queue"])), ("CC", keys(&["s8_2_no_queue_2"]))]);
    channel.publish_with(mandatory("", "s8_2_nowhere"), &sent, b"x");
    assert_eq!(channel.returned().properties, headers([("CC", keys(&["s8_2_no_queue_2"]))]));
}

#[test]
fn s8_3_delivery_tags_count_every_delivery_of_the_channel() {
    let channel = open();
    let (one, two) = ("s8_3_one", "s8_3_two");
    channel.declare(declare(one));
    channel.declare(declare(two));
    channel.publish("", one, "1");
    assert_eq!(channel.take(one).tag, 1);
    channel.publish("", one, "2");
    // Also those that are not to be acked.
    assert_eq!(channel.pop(one).tag, 2);
    assert_eq!(channel.get(basic::Get { queue: one, no_ack: false }), None);
    channel.consume(basic::Consume { no_ack: true, ..consume(two, "t") });
    channel.publish("", two, "3");
    assert_eq!(channel.delivery().tag, 3);
    channel.publish("", one, "4");
    assert_eq!(channel.take(one).tag, 4);
    channel.publish("", two, "5");
    assert_eq!(channel.delivery().tag, 5);
    // Each channel has its own count.
    let other = channel.connection.channel();
    other.publish("", one, "x");
    assert_eq!(other.take(one).tag, 1);
}

#[test]
fn s8_3_a_delivery_says_where_it_was_published() {
    let channel = open();
    let queue = "s8_3_where";
    channel.declare(declare(queue));
    channel.bind(bind(queue, "amq.topic", "s8_3.#"));
    channel.publish("amq.topic", "s8_3.a.b", "topic");
    channel.publish("", queue, "default");
    channel.consume(consume(queue, "tag"));
    let first = channel.delivery();
    assert_eq!((first.exchange.as_str(), first.routing_key.as_str()), ("amq.topic", "s8_3.a.b"));
    assert_eq!((first.consumer_tag.as_str(), first.redelivered), ("tag", false));
    let second = channel.delivery();
    assert_eq!((second.exchange.as_str(), second.routing_key.as_str()), ("", queue));
}

#[test]
fn s8_6_an_expiration_is_passed_on_in_its_plain_form() {
    let channel = open();
    channel.declare(declare("s8_6_expiration"));
    for (sent, came) in [("60000", "60000"), ("+60000", "60000"), ("0060000", "60000")] {
        channel.publish_properties("", "s8_6_expiration", &expiring(sent), "x");
        assert_eq!(channel.pop("s8_6_expiration").properties, expiring(came));
    }
}

#[test]
fn s8_6_headers_in_no_order_come_back_all() {
    let channel = open();
    channel.declare(declare("s8_6_order"));
    let sent = headers([("z", FieldValue::I32(1)), ("a", text("x")), ("m", FieldValue::Void)]);
    channel.publish_properties("", "s8_6_order", &sent, "x");
    let came = channel.pop("s8_6_order").properties.headers.unwrap();
    assert_eq!(came.len(), 3);
    for (name, value) in &sent.headers.unwrap() {
        assert_eq!(came.get(name.as_str().unwrap()), Some(value));
    }
}

#[test]
fn s8_bodies_of_every_size_arrive_in_every_queue_as_they_were() {
    let channel = open();
    let queues = ["s8_size_a", "s8_size_b", "s8_size_c"];
    channel.declare_exchange(exchange("s8_size", "fanout"));
    for queue in queues {
        channel.declare(declare(queue));
        channel.bind(bind(queue, "s8_size", ""));
    }
    channel.confirm_select();
    let sizes = [0, 1, 255, 4000, 4095, 4096, 4097, 65_535, 65_536, 131_064, 131_065, 262_144, 1_000_000];
    let body = |size: usize| (0..size).map(|at| (at * 31 + size) as u8).collect::<Vec<_>>();
    for (index, &size) in sizes.iter().enumerate() {
        let properties = if index % 2 == 0 { persistent() } else { Properties::default() };
        channel.publish_with(publish("s8_size", "k"), &properties, &body(size));
    }
    channel.wait_for_confirms(sizes.len() as u64);
    for queue in queues {
        for size in sizes {
            assert!(channel.pop(queue).body == body(size), "{size} bytes in {queue}");
        }
    }
}
