//! exchange.declare and delete, check by check, and how long exchanges live (§4).

use bytes::Bytes;
use leveret_protocol::{FieldTable, FieldValue, Method, exchange};

use crate::client::{
    bind, connect, declare, delete, exchange, exchange_bind, exchange_delete, exchange_unbind, open, table, text,
    unbind,
};

fn passive(name: &str) -> exchange::Declare<'_> {
    exchange::Declare { passive: true, ..exchange(name, "direct") }
}

fn with_alternate<'a>(name: &'a str, alternate: &str) -> exchange::Declare<'a> {
    exchange::Declare { arguments: table([("alternate-exchange", text(alternate))]), ..exchange(name, "fanout") }
}

#[test]
fn s4_1_the_predeclared_exchanges_are_there() {
    let channel = open();
    for (name, type_, internal) in [
        ("amq.direct", "direct", false),
        ("amq.fanout", "fanout", false),
        ("amq.topic", "topic", false),
        ("amq.headers", "headers", false),
        ("amq.match", "headers", false),
        ("amq.rabbitmq.trace", "topic", true),
    ] {
        channel.declare_exchange(passive(name));
        // An equivalent declaration of them is allowed.
        channel.declare_exchange(exchange::Declare { internal, ..exchange(name, type_) });
    }
}

#[test]
fn s4_2_step_1_an_unknown_type_is_406_whatever_else_is_wrong() {
    let connection = connect();
    for name in ["s4_2_type", "", "amq.s4_2", "amq.direct"] {
        for type_ in ["Direct", "nonsense"] {
            let text = format!("unknown exchange type '{type_}'");
            connection.channel().refuses(exchange(name, type_), 406, &text);
        }
    }
}

#[test]
fn s4_2_step_2_cr_and_lf_are_taken_out_of_the_name() {
    let channel = open();
    channel.declare_exchange(exchange("s4_2\r_cr\n_lf\r\n", "fanout"));
    assert!(channel.exchange_exists("s4_2_cr_lf"));
    channel.delete_exchange(exchange_delete("s4_2_cr\r\n_lf"));
    assert!(!channel.exchange_exists("s4_2_cr_lf"));
}

#[test]
fn s4_2_step_3_the_default_exchange_cannot_be_declared() {
    let connection = connect();
    for name in ["", "\r\n"] {
        for declare in [exchange(name, "direct"), passive(name)] {
            connection.channel().refuses(declare, 403, "operation not permitted on the default exchange");
        }
    }
}

#[test]
fn s4_2_step_6_new_names_may_not_begin_with_amq() {
    let connection = connect();
    for name in ["amq.s4_2_new", "amq."] {
        // Before a look at the arguments.
        let declare = exchange::Declare {
            arguments: table([("alternate-exchange", FieldValue::I32(1))]),
            ..exchange(name, "direct")
        };
        let text = format!("exchange name '{name}' contains reserved prefix 'amq.*'");
        connection.channel().refuses(declare, 403, &text);
    }
    connection.channel().declare_exchange(exchange("amqp.s4_2", "direct"));
}

#[test]
fn s4_2_step_7_the_alternate_exchange_is_a_string() {
    let connection = connect();
    for (value, type_) in [(FieldValue::I32(5), "signedint"), (FieldValue::Bool(true), "bool")] {
        let declare = exchange::Declare {
            arguments: table([("alternate-exchange", value)]),
            ..exchange("s4_2_ae_type", "fanout")
        };
        let text =
            format!("invalid type '{type_}' for arg 'alternate-exchange' in exchange 's4_2_ae_type' in vhost '/'");
        connection.channel().refuses(declare, 406, &text);
    }
    // It need not exist.
    connection.channel().declare_exchange(with_alternate("s4_2_ae", "s4_2_nowhere"));
}

#[test]
fn s4_2_step_9_a_redeclaration_must_be_equivalent() {
    let connection = connect();
    let channel = connection.channel();
    let name = "s4_2_equivalent";
    channel.declare_exchange(exchange(name, "topic"));
    channel.declare_exchange(exchange(name, "topic"));
    let all_different = || exchange::Declare {
        durable: false,
        auto_delete: true,
        internal: true,
        arguments: table([("alternate-exchange", text("ae"))]),
        ..exchange(name, "fanout")
    };
    // Field by field, in the order of the checks: each is right in the rows below its own.
    let rows = [
        (all_different(), "type", "'fanout'", "'topic'"),
        (exchange::Declare { type_: "topic", ..all_different() }, "durable", "'false'", "'true'"),
        (exchange::Declare { type_: "topic", durable: true, ..all_different() }, "auto_delete", "'true'", "'false'"),
        (
            exchange::Declare { type_: "topic", durable: true, auto_delete: false, ..all_different() },
            "internal",
            "'true'",
            "'false'",
        ),
        (
            exchange::Declare { arguments: all_different().arguments, ..exchange(name, "topic") },
            "alternate-exchange",
            "the value 'ae' of type 'longstr'",
            "none",
        ),
    ];
    for (declare, argument, received, current) in rows {
        let text = format!(
            "inequivalent arg '{argument}' for exchange '{name}' in vhost '/': received {received} but current is {current}"
        );
        connection.channel().refuses(declare, 406, &text);
    }
}

#[test]
fn s4_2_step_9_alternate_exchanges_are_compared() {
    let connection = connect();
    let name = "s4_2_alternates";
    connection.channel().declare_exchange(with_alternate(name, "ae1"));
    connection.channel().declare_exchange(with_alternate(name, "ae1"));
    let number = exchange::Declare {
        arguments: table([("alternate-exchange", FieldValue::I64(-7))]),
        ..exchange(name, "fanout")
    };
    let rows = [
        (with_alternate(name, "ae2"), "'ae2'", "'ae1'"),
        (exchange(name, "fanout"), "none", "the value 'ae1' of type 'longstr'"),
        (number, "'-7'", "'ae1'"),
    ];
    for (declare, received, current) in rows {
        let text = format!(
            "inequivalent arg 'alternate-exchange' for exchange '{name}' in vhost '/': received {received} but current is {current}"
        );
        connection.channel().refuses(declare, 406, &text);
    }
}

#[test]
fn s4_2_the_predeclared_must_be_redeclared_as_they_are() {
    let text =
        "inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': received 'fanout' but current is 'direct'";
    open().refuses(exchange("amq.direct", "fanout"), 406, text);
    let declare = exchange::Declare { durable: false, ..exchange("amq.topic", "topic") };
    let text =
        "inequivalent arg 'durable' for exchange 'amq.topic' in vhost '/': received 'false' but current is 'true'";
    open().refuses(declare, 406, text);
}

#[test]
fn s4_2_other_arguments_of_any_type_are_accepted_and_not_compared() {
    let channel = open();
    let arguments = table([
        ("array", FieldValue::Array(vec![FieldValue::Void, FieldValue::I8(-1)])),
        ("bytes", FieldValue::ByteArray(Bytes::from_static(&[0, 255]))),
        ("decimal", FieldValue::Decimal { scale: 1, value: 15 }),
        ("double", FieldValue::F64(0.5)),
        ("nested", table([("deep", table([("x", FieldValue::Timestamp(5))]).into())]).into()),
        ("void", FieldValue::Void),
    ]);
    channel.declare_exchange(exchange::Declare { arguments, ..exchange("s4_2_arguments", "direct") });
    channel.declare_exchange(exchange("s4_2_arguments", "direct"));
    let other = table([("array", text("not an array"))]);
    channel.declare_exchange(exchange::Declare { arguments: other, ..exchange("s4_2_arguments", "direct") });
}

#[test]
fn s4_2_no_wait_is_not_answered_but_errors_are() {
    let channel = open();
    channel.send(exchange::Declare { no_wait: true, ..exchange("s4_2_no_wait", "direct") });
    channel.expect_quiet();
    assert!(channel.exchange_exists("s4_2_no_wait"));
    let text = "unknown exchange type 'nonsense'";
    channel.refuses(exchange::Declare { no_wait: true, ..exchange("s4_2_no_wait", "nonsense") }, 406, text);
}

#[test]
fn s4_2_passive_declare_ignores_type_flags_and_arguments() {
    let channel = open();
    channel.declare_exchange(exchange("s4_2_passive", "topic"));
    let strange = exchange::Declare {
        passive: true,
        durable: false,
        auto_delete: true,
        internal: true,
        arguments: table([("alternate-exchange", FieldValue::I32(5))]),
        ..exchange("s4_2_passive", "nonsense")
    };
    channel.declare_exchange(strange.clone());
    channel.send(exchange::Declare { no_wait: true, ..strange });
    channel.expect_quiet();
}

#[test]
fn s4_2_passive_declare_of_a_missing_exchange_is_404() {
    open().refuses(passive("s4_2_missing"), 404, "no exchange 's4_2_missing' in vhost '/'");
    let no_wait = exchange::Declare { no_wait: true, ..passive("s4_2_missing") };
    open().refuses(no_wait, 404, "no exchange 's4_2_missing' in vhost '/'");
}

#[test]
fn s4_2_names_may_be_any_utf8_of_255_bytes() {
    let channel = open();
    let name = "s4_2_ü€🐇 '\"{x}".to_owned() + &"x".repeat(300);
    let name = &name[..255];
    channel.declare_exchange(exchange(name, "direct"));
    channel.declare_exchange(passive(name));
    channel.delete_exchange(exchange_delete(name));
}

/// The text of a refusal that names this exchange, with whatever ends it where it is cut.
fn long_text(name: &str) -> String {
    let channel = open();
    channel.send(passive(name));
    let incoming = channel.next();
    let Method::ChannelClose(close) = incoming.method() else { panic!("{:?}", incoming.method()) };
    assert_eq!(close.reply_code, 404);
    close.reply_text.to_owned()
}

#[test]
fn s4_2_a_text_that_is_too_long_is_cut_and_marked() {
    let name = "x".repeat(255);
    let whole = format!("NOT_FOUND - no exchange '{name}' in vhost '/'");
    assert_eq!(long_text(&name), format!("{}...", &whole[..252]));
    let just_fits = "x".repeat(255 - "NOT_FOUND - no exchange '' in vhost '/'".len());
    assert_eq!(long_text(&just_fits), format!("NOT_FOUND - no exchange '{just_fits}' in vhost '/'"));
}

/// RabbitMQ's channel crashes on it.
#[test]
fn s4_2_a_cut_text_is_still_utf8() {
    if !connect().is_leveret() {
        return;
    }
    for shift in ["", "x", "xx", "xxx"] {
        let name = shift.to_owned() + &"🐇".repeat(60);
        let text = long_text(&name);
        let whole = format!("NOT_FOUND - no exchange '{name}' in vhost '/'");
        let kept = text.strip_suffix("...").expect("the cut is marked");
        assert!(whole.starts_with(kept) && text.len() > 250, "{text}");
    }
}

#[test]
fn s4_2_a_declared_exchange_is_there_for_every_connection_at_once() {
    let (one, two) = (open(), open());
    for round in 0..20 {
        let name = format!("s4_2_visible_{round}");
        one.declare_exchange(exchange(&name, "fanout"));
        two.declare_exchange(passive(&name));
    }
}

#[test]
fn s4_2_auto_delete_goes_with_the_last_binding_it_is_the_source_of() {
    let channel = open();
    let auto_delete = |name| exchange::Declare { auto_delete: true, ..exchange(name, "direct") };
    let name = "s4_2_auto_delete";
    channel.declare(declare("s4_2_auto_delete_q"));
    channel.declare_exchange(auto_delete(name));
    channel.declare_exchange(exchange("s4_2_auto_delete_other", "fanout"));
    // To be a destination does not count.
    channel.bind_exchange(exchange_bind(name, "s4_2_auto_delete_other", ""));
    channel.unbind_exchange(exchange_unbind(name, "s4_2_auto_delete_other", ""));
    assert!(channel.exchange_exists(name));
    channel.bind(bind("s4_2_auto_delete_q", name, "a"));
    channel.bind(bind("s4_2_auto_delete_q", name, "b"));
    channel.unbind(unbind("s4_2_auto_delete_q", name, "a"));
    assert!(channel.exchange_exists(name));
    channel.unbind(unbind("s4_2_auto_delete_q", name, "b"));
    assert!(!channel.exchange_exists(name), "after unbind");

    channel.declare_exchange(auto_delete(name));
    channel.bind(bind("s4_2_auto_delete_q", name, "a"));
    channel.delete(delete("s4_2_auto_delete_q"));
    assert!(!channel.exchange_exists(name), "after the deletion of its queue");

    channel.declare_exchange(auto_delete(name));
    channel.bind_exchange(exchange_bind("s4_2_auto_delete_other", name, ""));
    channel.delete_exchange(exchange_delete("s4_2_auto_delete_other"));
    assert!(!channel.exchange_exists(name), "after the deletion of its exchange");
}

#[test]
fn s4_2_auto_delete_cascades_along_a_chain() {
    let channel = open();
    let names = ["s4_2_chain_1", "s4_2_chain_2", "s4_2_chain_3"];
    for name in names {
        channel.declare_exchange(exchange::Declare { auto_delete: true, ..exchange(name, "fanout") });
    }
    channel.declare(declare("s4_2_chain_q"));
    channel.bind_exchange(exchange_bind(names[1], names[0], ""));
    channel.bind_exchange(exchange_bind(names[2], names[1], ""));
    channel.bind(bind("s4_2_chain_q", names[2], ""));
    channel.delete(delete("s4_2_chain_q"));
    for name in names {
        assert!(!channel.exchange_exists(name), "{name}");
    }
}

#[test]
fn s4_3_the_default_exchange_cannot_be_deleted() {
    for name in ["", "\n"] {
        open().refuses(exchange_delete(name), 403, "operation not permitted on the default exchange");
    }
}

#[test]
fn s4_3_system_exchanges_cannot_be_deleted() {
    for name in ["amq.direct", "amq.rabbitmq.trace", "amq.s4_3_that_does_not_exist"] {
        let text = format!("deletion of system exchange '{name}' in vhost '/' not allowed");
        open().refuses(exchange_delete(name), 403, &text);
    }
}

#[test]
fn s4_3_deleting_a_missing_exchange_is_fine() {
    let channel = open();
    channel.delete_exchange(exchange_delete("s4_3_missing"));
    channel.delete_exchange(exchange::Delete { if_unused: true, ..exchange_delete("s4_3_missing") });
}

#[test]
fn s4_3_if_unused_refuses_an_exchange_that_is_a_source() {
    let connection = connect();
    let channel = connection.channel();
    let if_unused = |name| exchange::Delete { if_unused: true, ..exchange_delete(name) };
    channel.declare_exchange(exchange("s4_3_source", "fanout"));
    channel.declare_exchange(exchange("s4_3_destination", "fanout"));
    channel.bind_exchange(exchange_bind("s4_3_destination", "s4_3_source", ""));
    let text = "exchange 's4_3_source' in vhost '/' in use";
    connection.channel().refuses(if_unused("s4_3_source"), 406, text);
    channel.delete_exchange(if_unused("s4_3_destination"));
    channel.delete_exchange(if_unused("s4_3_source"));
    assert!(!channel.exchange_exists("s4_3_source"));
}

#[test]
fn s4_3_bindings_go_with_either_end_and_do_not_come_back() {
    let channel = open();
    let (source, destination, queue) = ("s4_3_from", "s4_3_to", "s4_3_q");
    channel.declare(declare(queue));
    for gone in [source, destination] {
        for name in [source, destination] {
            channel.declare_exchange(exchange(name, "fanout"));
        }
        channel.bind_exchange(exchange_bind(destination, source, ""));
        channel.bind(bind(queue, destination, ""));
        channel.publish(source, "", "x");
        assert_eq!(channel.pop(queue).text(), "x");
        channel.delete_exchange(exchange_delete(gone));
        channel.declare_exchange(exchange(gone, "fanout"));
        channel.publish(source, "", "lost");
        assert_eq!(channel.look(queue).ready, 0, "{gone} was deleted");
    }
}

#[test]
fn s4_3_no_wait_is_not_answered() {
    let channel = open();
    channel.declare_exchange(exchange("s4_3_no_wait", "fanout"));
    channel.send(exchange::Delete { no_wait: true, ..exchange_delete("s4_3_no_wait") });
    channel.expect_quiet();
    assert!(!channel.exchange_exists("s4_3_no_wait"));
    channel.send(exchange::Delete { no_wait: true, ..exchange_delete("s4_3_no_wait") });
    channel.expect_quiet();
}

#[test]
fn s4_2_plugin_types_check_their_own_arguments() {
    let connection = connect();
    if !connection.is_leveret() {
        return; // The plugins are not on.
    }
    let both = table([("hash-header", text("h")), ("hash-property", text("message_id"))]);
    let property = table([("hash-property", text("nonsense"))]);
    let rows: [(&str, FieldTable, &str); 2] = [
        ("x-consistent-hash", both, "hash-header and hash-property are mutually exclusive"),
        ("x-consistent-hash", property, "Unsupported property: nonsense"),
    ];
    for (type_, arguments, text) in rows {
        let declare = exchange::Declare { arguments, ..exchange("s4_2_plugin", type_) };
        connection.channel().refuses(declare, 406, text);
    }
}
