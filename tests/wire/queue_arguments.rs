//! The arguments of queue.declare: which are valid, and what is said about the others (§5.5).

use leveret_protocol::{FieldTable, FieldValue, queue};

use crate::client::{connect, declare, declare_args, open, text};

const CLASSIC: &str = "classic";
const QUORUM: &str = "quorum";

fn typed<'a>(name: &'a str, queue_type: &str, argument: &str, value: FieldValue) -> queue::Declare<'a> {
    let mut declare = declare_args(name, [(argument, value)]);
    declare.arguments.insert("x-queue-type", queue_type);
    declare
}

fn integer(value: i64) -> FieldValue {
    FieldValue::I64(value)
}

/// Queue type, argument, value, and the term that says what is wrong.
#[test]
fn s5_5_bad_values_are_406_with_the_reason() {
    const TEN_YEARS: i64 = 315_360_000_000;
    let connection = connect();
    let rows = vec![
        (CLASSIC, "x-expires", integer(0), "{value_zero,0}"),
        (CLASSIC, "x-expires", FieldValue::I8(-5), "{value_negative,-5}"),
        (CLASSIC, "x-expires", integer(TEN_YEARS + 1), "{value_too_large,315360000001}"),
        (CLASSIC, "x-expires", text("5"), "\"expected integer, got longstr\""),
        (CLASSIC, "x-expires", FieldValue::F64(5.0), "\"expected integer, got double\""),
        (CLASSIC, "x-expires", FieldValue::F32(5.0), "\"expected integer, got float\""),
        (CLASSIC, "x-expires", FieldValue::Bool(true), "\"expected integer, got bool\""),
        (CLASSIC, "x-expires", FieldValue::Void, "\"expected integer, got void\""),
        (CLASSIC, "x-expires", FieldValue::Timestamp(5), "\"expected integer, got timestamp\""),
        (CLASSIC, "x-expires", FieldValue::Array(vec![]), "\"expected integer, got array\""),
        (CLASSIC, "x-expires", FieldTable::new().into(), "\"expected integer, got table\""),
        (CLASSIC, "x-message-ttl", integer(-1), "{value_negative,-1}"),
        (CLASSIC, "x-message-ttl", integer(TEN_YEARS + 1), "{value_too_large,315360000001}"),
        (CLASSIC, "x-message-ttl", text("60000"), "\"expected integer, got longstr\""),
        (CLASSIC, "x-max-length", integer(-1), "{value_negative,-1}"),
        (CLASSIC, "x-max-length", text("5"), "\"expected integer, got longstr\""),
        (CLASSIC, "x-max-length-bytes", integer(-1), "{value_negative,-1}"),
        (CLASSIC, "x-max-length-bytes", FieldValue::Bool(true), "\"expected integer, got bool\""),
        (CLASSIC, "x-max-priority", integer(256), "{max_value_exceeded,256}"),
        (CLASSIC, "x-max-priority", integer(-1), "{value_negative,-1}"),
        (CLASSIC, "x-max-priority", text("9"), "\"expected integer, got longstr\""),
        (CLASSIC, "x-overflow", text("drop-tail"), "invalid_overflow"),
        (CLASSIC, "x-overflow", integer(1), "{unacceptable_type,long}"),
        (CLASSIC, "x-dead-letter-routing-key", text("k"), "routing_key_but_no_dlx_defined"),
        (CLASSIC, "x-single-active-consumer", text("true"), "{unacceptable_type,longstr}"),
        (CLASSIC, "x-single-active-consumer", integer(1), "{unacceptable_type,long}"),
        (CLASSIC, "x-queue-leader-locator", text("nearby"), "invalid_queue_locator_arg"),
        (CLASSIC, "x-queue-version", integer(3), "\"unsupported queue version '3'\""),
        (CLASSIC, "x-queue-version", text("2"), "\"expected integer, got longstr\""),
        (QUORUM, "x-dead-letter-strategy", text("at-all-costs"), "invalid_dlx_strategy"),
        (QUORUM, "x-quorum-initial-group-size", integer(0), "{value_zero,0}"),
        (QUORUM, "x-max-in-memory-length", integer(-1), "{value_negative,-1}"),
    ];
    for (queue_type, argument, value, reason) in rows {
        println!("{queue_type} {argument} {value:?}");
        let declare = typed("s5_5_bad", queue_type, argument, value);
        let text = format!("invalid arg '{argument}' for queue 's5_5_bad' in vhost '/': {reason}");
        connection.channel().refuses(declare, 406, &text);
    }
}

#[test]
fn s5_5_a_dead_letter_routing_key_is_a_string() {
    let declare = declare_args(
        "s5_5_key",
        [("x-dead-letter-exchange", text("dlx")), ("x-dead-letter-routing-key", FieldValue::I32(5))],
    );
    let text =
        "invalid arg 'x-dead-letter-routing-key' for queue 's5_5_key' in vhost '/': {unacceptable_type,signedint}";
    open().refuses(declare, 406, text);
}

#[test]
fn s5_5_a_queue_type_is_a_word_that_is_known() {
    let rows = [
        (text("nonsense"), "\"unsupported queue type 'nonsense'\""),
        (text("Classic"), "\"unsupported queue type 'Classic'\""),
        (FieldValue::I32(1), "{unacceptable_type,signedint}"),
        (FieldValue::Bool(true), "{unacceptable_type,bool}"),
    ];
    for (value, reason) in rows {
        let declare = declare_args("s5_5_type", [("x-queue-type", value)]);
        open().refuses(
            declare,
            406,
            &format!("invalid arg 'x-queue-type' for queue 's5_5_type' in vhost '/': {reason}"),
        );
    }
}

#[test]
fn s5_5_arguments_of_another_queue_type_are_refused() {
    let connection = connect();
    let rows = [
        (CLASSIC, "x-delivery-limit", integer(5)),
        (CLASSIC, "x-dead-letter-strategy", text("at-least-once")),
        (CLASSIC, "x-quorum-initial-group-size", integer(3)),
        (CLASSIC, "x-max-in-memory-length", integer(3)),
        (CLASSIC, "x-max-in-memory-bytes", integer(3)),
        (CLASSIC, "x-max-age", text("1D")),
        (CLASSIC, "x-stream-max-segment-size-bytes", integer(1000)),
        (QUORUM, "x-max-priority", integer(5)),
        (QUORUM, "x-queue-mode", text("lazy")),
        (QUORUM, "x-queue-version", integer(2)),
        (QUORUM, "x-max-age", text("1D")),
    ];
    for (queue_type, argument, value) in rows {
        println!("{queue_type} {argument}");
        let declare = typed("s5_5_other", queue_type, argument, value);
        let text = format!(
            "invalid arg '{argument}' for queue 's5_5_other' in vhost '/' of queue type rabbit_{queue_type}_queue"
        );
        connection.channel().refuses(declare, 406, &text);
    }
}

#[test]
fn s5_5_good_values_are_accepted() {
    let channel = open();
    let dlx = || ("x-dead-letter-exchange", text(""));
    let rows: Vec<(&str, Vec<(&str, FieldValue)>)> = vec![
        (CLASSIC, vec![]),
        (CLASSIC, vec![("x-expires", integer(600_000))]),
        (CLASSIC, vec![("x-expires", integer(315_360_000_000))]),
        (CLASSIC, vec![("x-message-ttl", integer(0))]),
        (CLASSIC, vec![("x-message-ttl", integer(315_360_000_000))]),
        (CLASSIC, vec![("x-max-length", integer(0)), ("x-max-length-bytes", integer(0))]),
        (CLASSIC, vec![("x-max-length", integer(i64::MAX))]),
        (CLASSIC, vec![("x-max-priority", integer(0))]),
        (CLASSIC, vec![("x-max-priority", FieldValue::U8(255))]),
        (CLASSIC, vec![("x-overflow", text("drop-head"))]),
        (CLASSIC, vec![("x-overflow", text("reject-publish"))]),
        (CLASSIC, vec![("x-overflow", text("reject-publish-dlx"))]),
        (CLASSIC, vec![dlx(), ("x-dead-letter-routing-key", text("k"))]),
        (CLASSIC, vec![("x-single-active-consumer", FieldValue::Bool(false))]),
        (CLASSIC, vec![("x-queue-mode", text("lazy"))]),
        (CLASSIC, vec![("x-queue-version", integer(2))]),
        (CLASSIC, vec![("x-queue-leader-locator", text("client-local"))]),
        (CLASSIC, vec![("x-queue-leader-locator", text("balanced"))]),
        (QUORUM, vec![("x-delivery-limit", integer(-1))]),
        (QUORUM, vec![("x-delivery-limit", text("not even a number"))]),
        (QUORUM, vec![("x-delivery-limit", integer(3)), ("x-quorum-initial-group-size", integer(3))]),
        (
            QUORUM,
            vec![dlx(), ("x-dead-letter-strategy", text("at-least-once")), ("x-overflow", text("reject-publish"))],
        ),
        (QUORUM, vec![("x-max-in-memory-length", integer(0)), ("x-max-in-memory-bytes", integer(0))]),
        (QUORUM, vec![("x-overflow", text("reject-publish-dlx"))]),
    ];
    for (index, (queue_type, arguments)) in rows.into_iter().enumerate() {
        println!("{queue_type} {arguments:?}");
        let name = format!("s5_5_good_{index}");
        let mut arguments = FieldTable::from_iter(arguments);
        arguments.insert("x-queue-type", queue_type);
        channel.declare(queue::Declare { arguments, ..declare(&name) });
    }
}

#[test]
fn s5_5_integers_may_have_any_width() {
    let channel = open();
    let widths = [
        FieldValue::I8(100),
        FieldValue::U8(200),
        FieldValue::I16(1000),
        FieldValue::U16(40_000),
        FieldValue::I32(70_000),
        FieldValue::U32(u32::MAX),
        FieldValue::I64(70_000),
    ];
    for (index, value) in widths.into_iter().enumerate() {
        for argument in ["x-message-ttl", "x-max-length", "x-max-length-bytes"] {
            let name = format!("s5_5_width_{index}_{argument}");
            channel.declare(declare_args(&name, [(argument, value.clone())]));
        }
    }
}

#[test]
fn s5_5_arguments_that_nobody_knows_are_ignored() {
    let channel = open();
    let arguments = [
        ("x-ha-policy", text("all")),
        ("x-unheard-of", FieldValue::Array(vec![FieldValue::Void])),
        ("foo", FieldValue::I32(-1)),
        ("", FieldValue::Void),
    ];
    channel.declare(declare_args("s5_5_unknown", arguments));
    channel.publish("", "s5_5_unknown", "x");
    assert_eq!(channel.pop("s5_5_unknown").text(), "x");
}

#[test]
fn s5_5a_which_flags_go_with_which_type() {
    let connection = connect();
    let flags = |durable, exclusive, auto_delete, queue_type| queue::Declare {
        durable,
        exclusive,
        auto_delete,
        ..declare_args("s5_5a", [("x-queue-type", text(queue_type))])
    };
    let all = [false, true];
    for durable in all {
        for exclusive in all {
            for auto_delete in all {
                let channel = connection.channel();
                let may_be_transient = durable || exclusive || connection.version() < (4, 3);
                if may_be_transient {
                    channel.declare(flags(durable, exclusive, auto_delete, CLASSIC));
                    channel.delete(crate::client::delete("s5_5a"));
                }
                for queue_type in [QUORUM, "stream"] {
                    let property = match (auto_delete, exclusive, durable) {
                        (true, _, _) => "auto-delete",
                        (_, true, _) => "exclusive-owner",
                        (_, _, false) => "non-durable",
                        (false, false, true) => continue,
                    };
                    let text = format!("invalid property '{property}' for queue 's5_5a' in vhost '/'");
                    let declare = flags(durable, exclusive, auto_delete, queue_type);
                    connection.channel().refuses(declare, 406, &text);
                }
            }
        }
    }
}
