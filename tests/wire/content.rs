//! How a content is put together from frames, and its properties (§1.3, §1.4, §1.6).

use bytes::Bytes;
use leveret_protocol::{FieldTable, FieldValue, MethodId, Properties, basic};

use crate::client::{
    Connection, connect, declare, header_frame, headers, method_frame, open, publish, raw_frame, table, text,
};

/// A connection whose channel 1 has begun a publish.
fn publishing() -> Connection {
    let connection = connect();
    connection.channel().send(publish("", "s1_3_nowhere"));
    connection
}

#[test]
fn s1_3_a_header_or_body_where_a_method_is_due_is_505() {
    for frame in [header_frame(1, 60, 0, 0, &[0, 0]), raw_frame(3, 1, b"x")] {
        let connection = connect();
        connection.channel();
        connection.send_bytes(&frame);
        connection.expect_close(505, "expected method frame, got non method frame instead", MethodId::NONE);
    }
}

#[test]
fn s1_3_anything_but_a_header_where_one_is_due_is_505() {
    let text = "expected content header for class 60, got non content header frame instead";
    let method = method_frame(1, basic::Get { queue: "q", no_ack: true });
    for frame in [method, raw_frame(3, 1, b"x"), header_frame(1, 60, 1, 0, &[0, 0])] {
        let connection = publishing();
        connection.send_bytes(&frame);
        connection.expect_close(505, text, basic::Publish::ID);
    }
}

#[test]
fn s1_3_a_header_of_another_class_is_505() {
    let connection = publishing();
    connection.send_bytes(&header_frame(1, 50, 0, 0, &[0, 0]));
    let text = "expected content header for class 60, got one for class 50 instead";
    connection.expect_close(505, text, basic::Publish::ID);
}

#[test]
fn s1_3_anything_but_a_body_where_one_is_due_is_505() {
    let method = method_frame(1, basic::Get { queue: "q", no_ack: true });
    for frame in [method, header_frame(1, 60, 0, 0, &[0, 0])] {
        let connection = publishing();
        connection.send_bytes(&header_frame(1, 60, 0, 5, &[0, 0]));
        connection.send_bytes(&frame);
        let text = "expected content body, got non content body frame instead";
        connection.expect_close(505, text, basic::Publish::ID);
    }
}

#[test]
fn s1_3_more_body_than_announced_is_501() {
    if connect().version() < (4, 1) {
        return; // RabbitMQ 4.0 does not answer.
    }
    let connection = publishing();
    connection.send_bytes(&header_frame(1, 60, 0, 5, &[0, 0]));
    connection.send_bytes(&raw_frame(3, 1, b"1234"));
    connection.send_bytes(&raw_frame(3, 1, b"56"));
    connection.expect_close(501, "content body frame exceeds remaining content size", basic::Publish::ID);
}

#[test]
fn s1_3_an_absurd_body_size_is_501_as_soon_as_it_is_announced() {
    if connect().version() < (4, 1) {
        return; // RabbitMQ 4.0 does not answer.
    }
    for size in [536_870_913, 1 << 40, u64::MAX] {
        let connection = publishing();
        connection.send_bytes(&header_frame(1, 60, 0, size, &[0, 0]));
        let text = format!("content body size {size} exceeds maximum allowed size 536870912");
        connection.expect_close(501, &text, basic::Publish::ID);
    }
}

#[test]
fn s1_3_a_fault_on_one_channel_ends_the_whole_connection() {
    let connection = connect();
    let (one, two) = (connection.channel(), connection.channel());
    two.declare(declare("s1_3_two"));
    connection.send_bytes(&raw_frame(3, one.number, b"x"));
    connection.expect_close(505, "expected method frame, got non method frame instead", MethodId::NONE);
}

/// Publishes and takes the message: its properties.
fn there_and_back(queue: &str, properties: &Properties) -> Properties {
    let channel = open();
    channel.declare(declare(queue));
    channel.publish_properties("", queue, properties, "x");
    let taken = channel.pop(queue);
    assert_eq!(taken.text(), "x");
    taken.properties
}

#[test]
fn s1_4_all_14_properties_come_back() {
    let sent = Properties {
        content_type: Some("text/plain".into()),
        content_encoding: Some("utf-8".into()),
        headers: Some(table([("k", text("v"))])),
        delivery_mode: Some(2),
        priority: Some(7),
        correlation_id: Some("correlation".into()),
        reply_to: Some("somewhere".into()),
        expiration: Some("60000".into()),
        message_id: Some("message".into()),
        timestamp: Some(1_700_000_000),
        type_: Some("kind".into()),
        user_id: Some("guest".into()),
        app_id: Some("app".into()),
        cluster_id: Some("cluster".into()),
    };
    assert_eq!(there_and_back("s1_4_all", &sent), sent);
}

#[test]
fn s1_4_each_property_alone_comes_back_alone() {
    let long: Bytes = vec![b'x'; 255].into();
    let one = |set: &dyn Fn(&mut Properties)| {
        let mut properties = Properties::default();
        set(&mut properties);
        properties
    };
    let alone = [
        one(&|p| p.content_type = Some(long.clone())),
        one(&|p| p.content_encoding = Some(Bytes::new())),
        one(&|p| p.headers = Some(table([("k", FieldValue::Void)]))),
        one(&|p| p.delivery_mode = Some(1)),
        one(&|p| p.priority = Some(255)),
        one(&|p| p.correlation_id = Some(long.clone())),
        one(&|p| p.reply_to = Some(Bytes::new())),
        one(&|p| p.expiration = Some("100000".into())),
        one(&|p| p.message_id = Some(Bytes::new())),
        one(&|p| p.timestamp = Some(u64::MAX)),
        one(&|p| p.type_ = Some(long.clone())),
        one(&|p| p.user_id = Some("guest".into())),
        one(&|p| p.app_id = Some(long.clone())),
        one(&|p| p.cluster_id = Some(Bytes::new())),
    ];
    for sent in alone {
        assert_eq!(there_and_back("s1_4_alone", &sent), sent);
    }
}

#[test]
fn s1_4_absent_stays_absent_and_empty_stays_empty() {
    let none = Properties::default();
    assert_eq!(there_and_back("s1_4_absent", &none), none);
    let empty = Properties { headers: Some(FieldTable::new()), ..Properties::default() };
    assert_eq!(there_and_back("s1_4_absent", &empty), empty);
}

#[test]
fn s1_4_a_string_property_need_not_be_utf8() {
    let sent = Properties { message_id: Some(Bytes::from_static(&[0xFF, 0xC0, 0])), ..Properties::default() };
    assert_eq!(there_and_back("s1_4_bytes", &sent), sent);
}

#[test]
fn s1_4_other_delivery_modes_pass_as_transient() {
    for mode in [0, 3, 8, 255] {
        let sent = Properties { delivery_mode: Some(mode), ..Properties::default() };
        assert_eq!(there_and_back("s1_4_modes", &sent), sent);
    }
}

/// RabbitMQ's channel crashes: 541. Here the client learns what is wrong.
#[test]
fn s1_4_bad_properties_end_the_connection() {
    let rows: [(&str, u16, &[u8]); 7] = [
        ("no flags", 502, &[]),
        ("bytes left over", 502, &[0, 0, 1]),
        ("value missing", 502, &[0x80, 0]),
        ("value cut short", 502, &[0x80, 0, 5, b'a']),
        ("timestamp cut short", 502, &[0, 0x40, 1, 2, 3]),
        ("headers cut short", 502, &[0x20, 0, 0, 0, 0, 9, 1, b'a']),
        ("unknown type in headers", 502, &[0x20, 0, 0, 0, 0, 3, 1, b'a', b'?']),
    ];
    for (what, code, properties) in rows {
        println!("{what}");
        let connection = publishing();
        let is_leveret = connection.is_leveret();
        connection.send_bytes(&header_frame(1, 60, 0, 0, properties));
        if is_leveret {
            let (came, text, id) = connection.unanswered_close();
            assert_eq!((came, id), (code, (60, 40)), "{what}");
            assert!(text.starts_with("SYNTAX_ERROR - "), "{text}");
        } else {
            connection.expect_close(541, "", MethodId::NONE);
        }
    }
}

#[test]
fn s1_4_the_continuation_bit_and_the_unused_bit_are_no_properties() {
    let channel = open();
    if !channel.connection.is_leveret() {
        return; // RabbitMQ reads no further flags, and takes them for values.
    }
    channel.declare(declare("s1_4_flags"));
    // priority 5; a second flags word follows the first.
    for properties in [&[0x08, 0x01, 0x00, 0x00, 5][..], &[0x08, 0x02, 5]] {
        channel.send(publish("", "s1_4_flags"));
        channel.connection.send_bytes(&header_frame(1, 60, 0, 0, properties));
        let expected = Properties { priority: Some(5), ..Properties::default() };
        assert_eq!(channel.pop("s1_4_flags").properties, expected);
    }
}

#[test]
fn s1_6_every_type_of_value_comes_back_with_its_tag() {
    let values: Vec<(&str, FieldValue)> = vec![
        ("array", FieldValue::Array(vec![text("a"), FieldValue::I32(-1), FieldValue::Array(vec![FieldValue::Void])])),
        ("array, empty", FieldValue::Array(Vec::new())),
        ("bool no", FieldValue::Bool(false)),
        ("bool yes", FieldValue::Bool(true)),
        ("byte", FieldValue::I8(-128)),
        ("bytes", FieldValue::ByteArray(Bytes::from_static(&[0, 255, 7]))),
        ("decimal", FieldValue::Decimal { scale: 2, value: 12_345 }),
        ("double", FieldValue::F64(-1.5e300)),
        ("float", FieldValue::F32(0.25)),
        ("int", FieldValue::I32(i32::MIN)),
        ("long", FieldValue::I64(i64::MIN)),
        ("short", FieldValue::I16(-32_768)),
        ("string", text("text")),
        ("string, empty", text("")),
        ("string, not UTF-8", FieldValue::LongString(Bytes::from_static(&[0xFF, 0]))),
        ("table", table([("inner", table([("k", FieldValue::U8(255))]).into())]).into()),
        ("table, empty", FieldTable::new().into()),
        ("timestamp", FieldValue::Timestamp(1_700_000_000)),
        ("ubyte", FieldValue::U8(255)),
        ("uint", FieldValue::U32(u32::MAX)),
        ("ushort", FieldValue::U16(u16::MAX)),
        ("void", FieldValue::Void),
    ];
    // In the order of their names, since RabbitMQ sorts them.
    let sent = Properties { headers: Some(FieldTable::from_iter(values)), ..Properties::default() };
    let came = there_and_back("s1_6_types", &sent);
    assert_eq!(came, sent);
}

#[test]
fn s1_6_a_value_of_type_capital_l_comes_back_as_lower_l() {
    let channel = open();
    channel.declare(declare("s1_6_l"));
    channel.send(publish("", "s1_6_l"));
    let properties = [0x20, 0, 0, 0, 0, 11, 1, b'k', b'L', 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFE];
    channel.connection.send_bytes(&header_frame(1, 60, 0, 0, &properties));
    assert_eq!(channel.pop("s1_6_l").properties, headers([("k", FieldValue::I64(-2))]));
}

#[test]
fn s1_6_any_octet_but_0_is_true() {
    let channel = open();
    channel.declare(declare("s1_6_bool"));
    channel.send(publish("", "s1_6_bool"));
    channel.connection.send_bytes(&header_frame(1, 60, 0, 0, &[0x20, 0, 0, 0, 0, 4, 1, b'k', b't', 9]));
    assert_eq!(channel.pop("s1_6_bool").properties, headers([("k", FieldValue::Bool(true))]));
}

#[test]
fn s1_6_deep_nesting_ends_the_connection_not_the_broker() {
    let connection = publishing();
    if !connection.is_leveret() {
        return; // RabbitMQ has no limit.
    }
    let mut value = FieldValue::Void;
    for _ in 0..200 {
        value = FieldValue::Array(vec![value]);
    }
    let mut encoded = bytes::BytesMut::new();
    headers([("deep", value)]).encode(&mut encoded);
    connection.send_bytes(&header_frame(1, 60, 0, 0, &encoded));
    assert_eq!(connection.unanswered_close().0, 502);
    open();
}
