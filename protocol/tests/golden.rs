//! Bytes that others wrote: the examples of reference appendix A, and every method as the client
//! library pika encodes it.

use bytes::BytesMut;
use leveret_protocol::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|digit| !digit.is_ascii_whitespace()).collect();
    let text = |pair| std::str::from_utf8(pair).unwrap();
    digits.chunks(2).map(|pair| u8::from_str_radix(text(pair), 16).unwrap()).collect()
}

/// `hex` is one frame with `method`, and `method` is written as `hex`.
#[track_caller]
fn same(hex: &str, channel: u16, method: impl Into<Method<'static>>) {
    let (bytes, method) = (bytes(hex), method.into());
    let (frame, used) = split_frame(&bytes, 0).unwrap().unwrap();
    assert_eq!((frame.kind, frame.channel, used), (FrameKind::Method, channel, bytes.len()));
    assert_eq!(Method::decode(frame.payload).unwrap(), method);
    let mut out = BytesMut::new();
    put_method_frame(&mut out, channel, &method);
    assert_eq!(out[..], bytes);
}

/// The octet of bits in a method that ends with it.
fn last(method: impl Into<Method<'static>>) -> u8 {
    let mut out = BytesMut::new();
    method.into().encode(&mut out);
    *out.last().unwrap()
}

/// The octet of bits in a method that ends with it and an empty table.
fn before_table(method: impl Into<Method<'static>>) -> u8 {
    let mut out = BytesMut::new();
    method.into().encode(&mut out);
    let [.., bits, 0, 0, 0, 0] = out[..] else { panic!("no empty table: {out:?}") };
    bits
}

#[test]
fn appendix_a_frames_of_connection_and_channel() {
    assert_eq!(PROTOCOL_HEADER.to_vec(), bytes("41 4D 51 50 00 00 09 01"));
    let mut out = BytesMut::new();
    put_heartbeat(&mut out);
    assert_eq!(out[..], bytes("08 00 00 00 00 00 00 CE"));
    same(
        "01 00 00 00 00 00 0C  00 0A 00 1E  07 FF  00 02 00 00  00 3C  CE",
        0,
        connection::Tune { channel_max: 2047, frame_max: 131_072, heartbeat: 60 },
    );
    same("01 00 00 00 00 00 08  00 0A 00 28  01 2F  00  00  CE", 0, connection::Open { virtual_host: "/" });
    same("01 00 00 00 00 00 05  00 0A 00 29  00  CE", 0, connection::OpenOk {});
    same("01 00 01 00 00 00 05  00 14 00 0A  00  CE", 1, channel::Open {});
    same("01 00 01 00 00 00 08  00 14 00 0B  00 00 00 00  CE", 1, channel::OpenOk {});
    same("01 00 01 00 00 00 04  00 14 00 29  CE", 1, channel::CloseOk {});
}

#[test]
fn appendix_a_publish() {
    let publish = basic::Publish { exchange: "", routing_key: "q", mandatory: false, immediate: false };
    let method = "01 00 01 00 00 00 0A  00 3C 00 28  00 00  00  01 71  00  CE";
    let header = "02 00 01 00 00 00 0F  00 3C 00 00  00 00 00 00 00 00 00 05  10 00  02  CE";
    let body = "03 00 01 00 00 00 05  68 65 6C 6C 6F  CE";
    same(method, 1, publish.clone());

    let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
    let (mut encoded, mut out) = (BytesMut::new(), BytesMut::new());
    properties.encode(&mut encoded);
    put_method_frame(&mut out, 1, &publish.into());
    put_content(&mut out, 1, 131_072, &encoded, b"hello");
    let input = bytes(&[method, header, body].concat());
    assert_eq!(out[..], input);

    let (mut decoder, mut consumed) = (Decoder::new(131_072, 1 << 24), 0);
    let event = decoder.next(&input, &mut consumed).unwrap().unwrap();
    let Event::Publish { channel: 1, publish } = event else { panic!("{event:?}") };
    assert_eq!((publish.exchange, publish.routing_key), ("", "q"));
    assert_eq!((publish.mandatory, publish.immediate), (false, false));
    assert_eq!(publish.properties.to_properties().unwrap(), properties);
    assert_eq!(publish.body, Body::Slice(b"hello"));
    assert_eq!(consumed, input.len());
}

#[test]
fn appendix_a_table() {
    let bytes = bytes("00 00 00 07  01 61  49 00 00 00 01");
    let table: FieldTable = [("a", FieldValue::I32(1))].into_iter().collect();
    assert_eq!(decode_table(&bytes), Ok((table.clone(), bytes.len())));
    let mut out = BytesMut::new();
    put_table(&mut out, &table);
    assert_eq!(out[..], bytes);
}

#[test]
fn appendix_a_bits_of_declare_consume_and_delete() {
    let declare = |bit: usize| queue::Declare {
        queue: "",
        passive: bit == 0,
        durable: bit == 1,
        exclusive: bit == 2,
        auto_delete: bit == 3,
        no_wait: bit == 4,
        arguments: FieldTable::new(),
    };
    assert_eq!([0, 1, 2, 3, 4].map(|bit| before_table(declare(bit))), [0x01, 0x02, 0x04, 0x08, 0x10]);
    let declare = |bit: usize| exchange::Declare {
        exchange: "",
        type_: "",
        passive: bit == 0,
        durable: bit == 1,
        auto_delete: bit == 2,
        internal: bit == 3,
        no_wait: bit == 4,
        arguments: FieldTable::new(),
    };
    assert_eq!([0, 1, 2, 3, 4].map(|bit| before_table(declare(bit))), [0x01, 0x02, 0x04, 0x08, 0x10]);
    let consume = |bit: usize| basic::Consume {
        queue: "",
        consumer_tag: "",
        no_local: bit == 0,
        no_ack: bit == 1,
        exclusive: bit == 2,
        no_wait: bit == 3,
        arguments: FieldTable::new(),
    };
    assert_eq!([0, 1, 2, 3].map(|bit| before_table(consume(bit))), [0x01, 0x02, 0x04, 0x08]);
    let delete = |bit: usize| queue::Delete { queue: "", if_unused: bit == 0, if_empty: bit == 1, no_wait: bit == 2 };
    assert_eq!([0, 1, 2].map(|bit| last(delete(bit))), [0x01, 0x02, 0x04]);
}

#[test]
fn appendix_a_bits_of_publish_and_nack() {
    let publish =
        |bit: usize| basic::Publish { exchange: "", routing_key: "", mandatory: bit == 0, immediate: bit == 1 };
    assert_eq!([0, 1].map(|bit| last(publish(bit))), [0x01, 0x02]);
    let nack = |bit: usize| basic::Nack { delivery_tag: 1, multiple: bit == 0, requeue: bit == 1 };
    assert_eq!([0, 1].map(|bit| last(nack(bit))), [0x01, 0x02]);
}

#[test]
fn s2_every_method_is_as_a_client_library_has_it() {
    let lines: Vec<_> = include_str!("golden/methods.txt").lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines.len(), MethodId::ALL.len());
    for line in lines {
        let [name, hex, value] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let payload = bytes(hex);
        let method = Method::decode(&payload).unwrap();
        assert_eq!(format!("{method:?}"), value);
        assert_eq!((method.name(), method.id().name()), (name, Some(name)));
        let mut out = BytesMut::new();
        method.encode(&mut out);
        assert_eq!(out[..], payload, "{name}");
    }
}

#[test]
fn s2_content_follows_four_methods() {
    let with: Vec<_> = MethodId::ALL.iter().filter(|id| id.has_content()).map(|id| id.name().unwrap()).collect();
    assert_eq!(with, ["basic.publish", "basic.return", "basic.deliver", "basic.get-ok"]);
    assert_eq!(MethodId::NONE.name(), None);
}
