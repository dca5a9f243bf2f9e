//! Arbitrary values, tables, properties and streams of frames for the property tests.

use bytes::{Bytes, BytesMut};
use leveret_protocol::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// A field value of any type. Floats are never NaN, which would not equal itself.
pub fn field_value() -> impl Strategy<Value = FieldValue> {
    let bytes = || vec(any::<u8>(), 0..20).prop_map(Bytes::from);
    let leaf = prop_oneof![
        any::<bool>().prop_map(FieldValue::Bool),
        any::<i8>().prop_map(FieldValue::I8),
        any::<u8>().prop_map(FieldValue::U8),
        any::<i16>().prop_map(FieldValue::I16),
        any::<u16>().prop_map(FieldValue::U16),
        any::<i32>().prop_map(FieldValue::I32),
        any::<u32>().prop_map(FieldValue::U32),
        any::<i64>().prop_map(FieldValue::I64),
        any::<f32>().prop_map(FieldValue::F32),
        any::<f64>().prop_map(FieldValue::F64),
        (any::<u8>(), any::<u32>()).prop_map(|(scale, value)| FieldValue::Decimal { scale, value }),
        bytes().prop_map(FieldValue::LongString),
        bytes().prop_map(FieldValue::ByteArray),
        any::<u64>().prop_map(FieldValue::Timestamp),
        Just(FieldValue::Void),
    ];
    leaf.prop_recursive(4, 30, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(FieldValue::Array),
            vec((name(), inner), 0..5).prop_map(|fields| FieldValue::Table(FieldTable(fields))),
        ]
    })
}

/// Any bytes up to the limit; few letters, so that there are duplicates.
fn name() -> impl Strategy<Value = ShortName> {
    prop_oneof![vec(b'a'..b'd', 0..2), vec(any::<u8>(), 0..=255)].prop_map(|bytes| ShortName::new(&bytes).unwrap())
}

pub fn field_table() -> impl Strategy<Value = FieldTable> {
    vec((name(), field_value()), 0..6).prop_map(FieldTable)
}

/// Any subset of the properties.
pub fn properties() -> impl Strategy<Value = Properties> {
    let text = || option::of(vec(any::<u8>(), 0..40).prop_map(Bytes::from));
    let first = (text(), text(), option::of(field_table()), option::of(any::<u8>()), option::of(any::<u8>()));
    let second = (text(), text(), text(), text(), option::of(any::<u64>()), text(), text(), text(), text());
    (first, second).prop_map(|(first, second)| {
        let (content_type, content_encoding, headers, delivery_mode, priority) = first;
        let (correlation_id, reply_to, expiration, message_id, timestamp, type_, user_id, app_id, cluster_id) = second;
        Properties {
            content_type,
            content_encoding,
            headers,
            delivery_mode,
            priority,
            correlation_id,
            reply_to,
            expiration,
            message_id,
            timestamp,
            type_,
            user_id,
            app_id,
            cluster_id,
        }
    })
}

/// Something a client sends. `Sent` compares with [`Seen`].
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    Publish { channel: u16, publish: OwnedPublish },
    Ack { channel: u16, delivery_tag: u64 },
    Heartbeat,
    Other { channel: u16, method: String },
}

impl Seen {
    /// The event without the difference between borrowed and owned.
    pub fn of(event: Event<'_>) -> Self {
        match event {
            Event::Publish { channel, publish } => {
                let (body, oversized) = match publish.body {
                    Body::Slice(bytes) => (Bytes::copy_from_slice(bytes), None),
                    Body::Owned(bytes) => (bytes, None),
                    Body::Oversized(size) => (Bytes::new(), Some(size)),
                };
                let publish = OwnedPublish {
                    exchange: publish.exchange.to_owned(),
                    routing_key: publish.routing_key.to_owned(),
                    mandatory: publish.mandatory,
                    immediate: publish.immediate,
                    properties: Bytes::copy_from_slice(publish.properties.as_bytes()),
                    body,
                    oversized,
                };
                Self::Publish { channel, publish }
            }
            Event::OwnedPublish { channel, publish } => Self::Publish { channel, publish: *publish },
            Event::Method { channel, method: Method::BasicAck(ack) } => {
                Self::Ack { channel, delivery_tag: ack.delivery_tag }
            }
            Event::Method { channel, method } => Self::Other { channel, method: format!("{method:?}") },
            Event::Heartbeat => Self::Heartbeat,
        }
    }

    /// The frames, one buffer each, with bodies split to `frame_max`.
    pub fn frames(&self, frame_max: u32) -> Vec<Vec<u8>> {
        let mut out = BytesMut::new();
        match self {
            Self::Publish { channel, publish } => {
                let method = basic::Publish {
                    exchange: &publish.exchange,
                    routing_key: &publish.routing_key,
                    mandatory: publish.mandatory,
                    immediate: publish.immediate,
                };
                put_method_frame(&mut out, *channel, &method.into());
                let size = publish.oversized.unwrap_or(0) as usize;
                let body = if size > 0 { Bytes::from(vec![b'o'; size]) } else { publish.body.clone() };
                put_content(&mut out, *channel, frame_max, &publish.properties, &body);
            }
            Self::Ack { channel, delivery_tag } => put_ack(&mut out, *channel, *delivery_tag, false),
            Self::Heartbeat => put_heartbeat(&mut out),
            Self::Other { channel, .. } => {
                put_method_frame(
                    &mut out,
                    *channel,
                    &basic::Qos { prefetch_size: 0, prefetch_count: 9, global: true }.into(),
                );
            }
        }
        let (mut rest, mut frames) = (&out[..], Vec::new());
        while let Some((_, used)) = split_frame(rest, 0).unwrap() {
            frames.push(rest[..used].to_vec());
            rest = &rest[used..];
        }
        frames
    }
}

/// Largest body that the decoders of the tests store.
pub const BODY_MAX: u64 = 64;

/// One of a few channels, so that contents meet.
pub fn seen() -> impl Strategy<Value = Seen> {
    let channel = || 1u16..4;
    let publish = ("[a-z]{0,9}", any::<String>(), any::<[bool; 2]>(), properties(), 0..100u64, any::<u8>());
    let publish = publish.prop_map(|(exchange, routing_key, [mandatory, immediate], properties, size, byte)| {
        let mut encoded = BytesMut::new();
        properties.encode(&mut encoded);
        let oversized = (size > BODY_MAX).then_some(size);
        OwnedPublish {
            exchange,
            routing_key: routing_key.chars().take(60).collect(),
            mandatory,
            immediate,
            properties: encoded.freeze(),
            body: if oversized.is_some() { Bytes::new() } else { vec![byte; size as usize].into() },
            oversized,
        }
    });
    let other = "BasicQos(Qos { prefetch_size: 0, prefetch_count: 9, global: true })";
    prop_oneof![
        4 => (channel(), publish).prop_map(|(channel, publish)| Seen::Publish { channel, publish }),
        2 => (channel(), any::<u64>()).prop_map(|(channel, delivery_tag)| Seen::Ack { channel, delivery_tag }),
        1 => Just(Seen::Heartbeat),
        1 => channel().prop_map(move |channel| Seen::Other { channel, method: other.to_owned() }),
    ]
}

/// What a decoder makes of `input` when it comes in pieces of these sizes (in turn): what it saw, and
/// at most three faults. Stops at a fatal one.
pub fn decode_in_pieces(input: &[u8], payload_max: u32, sizes: &[usize]) -> (Vec<Seen>, Vec<Fault>) {
    let mut decoder = Decoder::new(payload_max, BODY_MAX);
    let (mut seen, mut faults) = (Vec::new(), Vec::new());
    let (mut start, mut end) = (0, 0);
    let mut sizes = sizes.iter().cycle();
    loop {
        match decoder.next(&input[start..end], &mut start) {
            Ok(Some(event)) => seen.push(Seen::of(event)),
            Ok(None) if end == input.len() => break,
            Ok(None) => end = input.len().min(end + sizes.next().unwrap()),
            Err(fault) => {
                let last = fault.fatal_framing || faults.len() == 2;
                faults.push(fault);
                if last {
                    break;
                }
            }
        }
    }
    (seen, faults)
}
