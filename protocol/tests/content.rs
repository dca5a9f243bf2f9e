//! Reference 1.3 and 1.4: contents in pieces, every wrong sequence, and content headers.

use bytes::{Bytes, BytesMut};
use leveret_protocol::*;

const PUBLISH: MethodId = basic::Publish::ID;

fn frame(frame_type: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![frame_type];
    bytes.extend(channel.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes.push(0xCE);
    bytes
}

fn method(channel: u16, method: impl Into<Method<'static>>) -> Vec<u8> {
    let mut out = BytesMut::new();
    put_method_frame(&mut out, channel, &method.into());
    out.to_vec()
}

fn publish(channel: u16) -> Vec<u8> {
    method(channel, basic::Publish { exchange: "x", routing_key: "k", mandatory: true, immediate: false })
}

/// A header payload: class, weight, size, then flags and values.
fn header_payload(class: u16, weight: u16, size: u64, properties: &[u8]) -> Vec<u8> {
    [&class.to_be_bytes()[..], &weight.to_be_bytes(), &size.to_be_bytes(), properties].concat()
}

fn header(channel: u16, size: u64) -> Vec<u8> {
    frame(2, channel, &header_payload(60, 0, size, &[0, 0]))
}

fn body(channel: u16, payload: &[u8]) -> Vec<u8> {
    frame(3, channel, payload)
}

fn decoder() -> Decoder {
    Decoder::new(4096, 1000)
}

/// Feeds frames one at a time, so that nothing is ever whole in the buffer.
fn feed<'a>(decoder: &mut Decoder, frames: impl IntoIterator<Item = &'a Vec<u8>>) -> Result<Vec<Event<'a>>, Fault> {
    let mut events = Vec::new();
    for frame in frames {
        let mut consumed = 0;
        events.extend(decoder.next(frame, &mut consumed)?);
        assert_eq!(consumed, frame.len());
    }
    Ok(events)
}

#[track_caller]
fn owned(events: Vec<Event<'_>>) -> OwnedPublish {
    match <[_; 1]>::try_from(events) {
        Ok([Event::OwnedPublish { publish, .. }]) => *publish,
        other => panic!("{other:?}"),
    }
}

/// The frames give this fault at the last of them, in pieces and all at once.
#[track_caller]
fn faulty(frames: &[Vec<u8>], code: ReplyCode, method: MethodId, explanation: &str) {
    let in_pieces = feed(&mut decoder(), frames).unwrap_err();
    let (all, mut decoder, mut consumed) = (frames.concat(), decoder(), 0);
    let at_once = loop {
        match decoder.next(&all[consumed..], &mut consumed) {
            Ok(event) => assert!(event.is_some()),
            Err(fault) => break fault,
        }
    };
    assert_eq!(consumed, all.len());
    assert_eq!(in_pieces, at_once);
    assert_eq!((at_once.code, at_once.method, at_once.explanation.as_str()), (code, method, explanation));
    assert!(!at_once.fatal_framing);
    assert_eq!(at_once.channel, 1);
}

#[test]
fn s1_3_header_or_body_without_method() {
    let text = "expected method frame, got non method frame instead";
    faulty(&[header(1, 5)], ReplyCode::UnexpectedFrame, MethodId::NONE, text);
    faulty(&[body(1, b"x")], ReplyCode::UnexpectedFrame, MethodId::NONE, text);
    // after a complete content, too
    let extra = [publish(1), header(1, 1), body(1, b"x"), body(1, b"")];
    faulty(&extra, ReplyCode::UnexpectedFrame, MethodId::NONE, text);
    faulty(&[publish(1), header(1, 0), body(1, b"")], ReplyCode::UnexpectedFrame, MethodId::NONE, text);
}

#[test]
fn s1_3_method_body_or_weight_instead_of_header() {
    let text = "expected content header for class 60, got non content header frame instead";
    for wrong in [
        publish(1),
        method(1, basic::Ack { delivery_tag: 1, multiple: false }),
        method(1, channel::Open {}),
        body(1, b"x"),
        frame(2, 1, &header_payload(60, 1, 5, &[0, 0])),
        frame(2, 1, &header_payload(50, 1, 5, &[0, 0])),
    ] {
        faulty(&[publish(1), wrong], ReplyCode::UnexpectedFrame, PUBLISH, text);
    }
}

#[test]
fn s1_3_header_of_another_class() {
    let text = "expected content header for class 60, got one for class 50 instead";
    let wrong = frame(2, 1, &header_payload(50, 0, 5, &[0, 0]));
    faulty(&[publish(1), wrong], ReplyCode::UnexpectedFrame, PUBLISH, text);
}

#[test]
fn s1_3_method_or_header_instead_of_body() {
    let text = "expected content body, got non content body frame instead";
    for wrong in [publish(1), method(1, basic::Ack { delivery_tag: 1, multiple: false }), header(1, 5)] {
        let early = [publish(1), header(1, 5), wrong.clone()];
        faulty(&early, ReplyCode::UnexpectedFrame, PUBLISH, text);
        let late = [publish(1), header(1, 5), body(1, b"abc"), wrong];
        faulty(&late, ReplyCode::UnexpectedFrame, PUBLISH, text);
    }
}

#[test]
fn s1_3_body_longer_than_announced() {
    let text = "content body frame exceeds remaining content size";
    faulty(&[publish(1), header(1, 3), body(1, b"abcd")], ReplyCode::FrameError, PUBLISH, text);
    faulty(&[publish(1), header(1, 3), body(1, b"ab"), body(1, b"cd")], ReplyCode::FrameError, PUBLISH, text);
    faulty(&[publish(1), header(1, 1001), body(1, &[0; 1002])], ReplyCode::FrameError, PUBLISH, text);
}

#[test]
fn s1_3_announced_size_over_the_limit() {
    let n = BODY_SIZE_MAX + 1;
    let text = format!("content body size {n} exceeds maximum allowed size 536870912");
    faulty(&[publish(1), header(1, n)], ReplyCode::FrameError, PUBLISH, &text);
    assert!(feed(&mut decoder(), &[publish(1), header(1, BODY_SIZE_MAX)]).unwrap().is_empty());
}

#[test]
fn s1_3_a_body_in_pieces_empty_frames_included() {
    let frames = [publish(1), header(1, 5), body(1, b""), body(1, b"he"), body(1, b""), body(1, b"llo")];
    let mut decoder = decoder();
    let publish = owned(feed(&mut decoder, &frames).unwrap());
    let expected = OwnedPublish {
        exchange: "x".into(),
        routing_key: "k".into(),
        mandatory: true,
        immediate: false,
        properties: Bytes::from_static(&[0, 0]),
        body: Bytes::from_static(b"hello"),
        oversized: None,
    };
    assert_eq!(publish, expected);
    assert_eq!(decoder.held(), 0);
    let view = publish.as_publish();
    assert_eq!((view.exchange, view.routing_key, view.mandatory, view.immediate), ("x", "k", true, false));
    assert_eq!(view.body.as_bytes(), b"hello");
    assert_eq!(view.body, Body::Owned(publish.body.clone()));
}

#[test]
fn s1_3_an_empty_body_has_no_frame() {
    let frames = [publish(1), header(1, 0)];
    assert_eq!(owned(feed(&mut decoder(), &frames).unwrap()).body, Bytes::new());
    let (all, mut consumed) = (frames.concat(), 0);
    let event = decoder().next(&all, &mut consumed).unwrap().unwrap();
    assert!(matches!(event, Event::Publish { channel: 1, publish: Publish { body: Body::Slice(b""), .. } }));
    assert_eq!(consumed, all.len());
}

#[test]
fn s1_3_frames_of_other_channels_may_come_between() {
    let frames = [
        publish(1),
        publish(2),
        header(2, 1),
        method(3, basic::Ack { delivery_tag: 1, multiple: false }),
        header(1, 2),
        frame(8, 0, b""),
        body(1, b"a"),
        body(2, b"c"),
        method(0, connection::CloseOk {}),
        body(1, b"b"),
    ];
    let check = |events: Vec<Event<'_>>| {
        let shown: Vec<_> = events
            .iter()
            .map(|event| match event {
                Event::Method { channel, method } => format!("{channel} {}", method.name()),
                Event::Publish { channel, publish } => format!("{channel} {:?}", publish.body.as_bytes()),
                Event::OwnedPublish { channel, publish } => format!("{channel} {:?}", &publish.body[..]),
                Event::Heartbeat => "heartbeat".to_owned(),
            })
            .collect();
        assert_eq!(shown, ["3 basic.ack", "heartbeat", "2 [99]", "0 connection.close-ok", "1 [97, 98]"]);
    };
    check(feed(&mut decoder(), &frames).unwrap());
    let (all, mut decoder, mut consumed, mut events) = (frames.concat(), decoder(), 0, Vec::new());
    while let Some(event) = decoder.next(&all[consumed..], &mut consumed).unwrap() {
        events.push(event);
    }
    check(events);
    let (mut decoder, mut consumed, mut events) = (self::decoder(), 0, Vec::new());
    decoder.fill(&all, &mut consumed, &mut events, 2).unwrap();
    assert_eq!(events.len(), 2, "no more than asked for");
    decoder.fill(&all, &mut consumed, &mut events, 100).unwrap();
    assert_eq!(consumed, all.len());
    check(events);
}

/// What was decoded before a fault counts, as it would one by one.
#[test]
fn s1_3_a_fault_comes_after_what_was_sound() {
    let all = [publish(1), header(1, 5), body(1, b"hello"), header(1, 5), publish(2)].concat();
    let (mut decoder, mut consumed, mut events) = (decoder(), 0, Vec::new());
    let fault = decoder.fill(&all, &mut consumed, &mut events, 100).unwrap_err();
    assert_eq!((events.len(), fault.channel, fault.fatal_framing), (1, 1, false));
    assert_eq!(consumed, all.len() - publish(2).len());
}

#[test]
fn s1_3_publishes_of_a_whole_buffer_live_together() {
    let one = [publish(1), header(1, 5), body(1, b"hello")].concat();
    let input = one.repeat(100);
    let (mut decoder, mut consumed, mut events) = (decoder(), 0, Vec::new());
    while let Some(event) = decoder.next(&input[consumed..], &mut consumed).unwrap() {
        events.push(event);
    }
    drop(decoder);
    assert_eq!(events.len(), 100);
    assert!(events.iter().all(|event| matches!(event, Event::Publish { channel: 1, .. })));
}

#[test]
fn s8_1_bodies_over_the_stored_size_are_counted_and_dropped() {
    let (exact, over) = (vec![1; 1000], vec![1; 1001]);
    for (content, oversized) in [(&exact, None), (&over, Some(1001))] {
        let size = content.len() as u64;
        let (first, second) = content.split_at(300);
        let frames = [publish(1), header(1, size), body(1, first), body(1, second)];
        let mut decoder = decoder();
        assert!(feed(&mut decoder, &frames[..3]).unwrap().is_empty());
        assert_eq!(decoder.held() < 300, oversized.is_some());
        let pieces = owned(feed(&mut decoder, &frames[3..]).unwrap());
        assert_eq!(pieces.oversized, oversized);
        assert_eq!(pieces.body.len(), if oversized.is_some() { 0 } else { 1000 });

        let (whole, mut consumed) = ([publish(1), header(1, size), body(1, content)].concat(), 0);
        let event = decoder.next(&whole, &mut consumed).unwrap().unwrap();
        let Event::Publish { publish, .. } = event else { panic!("{event:?}") };
        match oversized {
            Some(size) => assert_eq!(publish.body, Body::Oversized(size)),
            None => assert_eq!(publish.body, Body::Slice(content)),
        }
    }
}

#[test]
fn s1_3_memory_follows_what_came_not_what_was_announced() {
    let mut decoder = Decoder::new(1 << 20, BODY_SIZE_MAX);
    feed(&mut decoder, &[publish(1), header(1, BODY_SIZE_MAX)]).unwrap();
    assert!(decoder.held() < 1000);
    feed(&mut decoder, &[body(1, b"x")]).unwrap();
    assert!(decoder.held() < 70_000);
    let piece = body(1, &[0; 100_000]);
    for round in 1..=50 {
        feed(&mut decoder, [&piece]).unwrap();
        assert!(decoder.held() < 2 * round * 100_000 + 70_000);
    }
    decoder.reset_channel(1);
    assert!(decoder.held() < 1000);
}

#[test]
fn s1_3_a_finished_body_wastes_no_memory() {
    let size = 1_000_000;
    let mut decoder = Decoder::new(4096, BODY_SIZE_MAX);
    feed(&mut decoder, &[publish(1), header(1, size)]).unwrap();
    let pieces: Vec<_> = vec![7; size as usize].chunks(4088).map(|piece| body(1, piece)).collect();
    let (last, pieces) = pieces.split_last().unwrap();
    feed(&mut decoder, pieces).unwrap();
    assert!(decoder.held() < size + 1000, "{}", decoder.held());
    let publish = owned(feed(&mut decoder, [last]).unwrap());
    assert_eq!(publish.body.try_into_mut().unwrap().capacity(), size as usize);
}

#[test]
fn s1_3_unfinished_contents_are_bounded_together() {
    let mut decoder = Decoder::new(4096, BODY_SIZE_MAX);
    decoder.set_held_max(150_000);
    for channel in 1..=2 {
        feed(&mut decoder, &[publish(channel), header(channel, 1_000_000), body(channel, &[0; 4000])]).unwrap();
    }
    let (third, before) = ([publish(3), header(3, 1_000_000)], decoder.held());
    feed(&mut decoder, &third).unwrap();
    let fault = feed(&mut decoder, &[body(3, &[0; 4000]), body(3, &[0; 4000])]).unwrap_err();
    assert_eq!(fault.reply_text(), "RESOURCE_ERROR - unfinished contents of more than 150000 bytes");
    assert_eq!((fault.channel, fault.method, fault.fatal_framing), (3, PUBLISH, false));
    assert!(decoder.held() <= before + 300);
}

#[test]
fn s3_11_after_a_fault_the_rest_of_the_content_is_swallowed() {
    let mut decoder = decoder();
    let too_long = [publish(1), header(1, 3), body(1, b"abcd")];
    feed(&mut decoder, &too_long).unwrap_err();
    let ack = method(1, basic::Ack { delivery_tag: 1, multiple: false });
    let rest = [body(1, b"more"), header(1, 1), body(1, b"x"), ack.clone()];
    assert_eq!(feed(&mut decoder, &rest).unwrap().len(), 1);
    assert_eq!(decoder.held(), 0);
    // stray frames are one fault, not one each
    feed(&mut decoder, &[body(1, b"stray")]).unwrap_err();
    assert_eq!(feed(&mut decoder, &[body(1, b"stray"), ack]).unwrap().len(), 1);
}

#[test]
fn s3_11_a_reset_channel_swallows_the_content_in_flight() {
    let mut decoder = decoder();
    let start = [publish(1), header(1, 4), body(1, b"ab")];
    feed(&mut decoder, &start).unwrap();
    decoder.reset_channel(1);
    decoder.reset_channel(2);
    let close_ok = method(1, channel::CloseOk {});
    let rest = [body(1, b"cd"), close_ok];
    let events = feed(&mut decoder, &rest).unwrap();
    assert!(matches!(events[..], [Event::Method { channel: 1, method: Method::ChannelCloseOk(_) }]));
    assert_eq!(decoder.held(), 0);
    let again = [publish(1), header(1, 1), body(1, b"x")];
    assert_eq!(owned(feed(&mut decoder, &again).unwrap()).body, b"x"[..]);
}

#[test]
fn s3_11_close_ok_gives_an_unfinished_content_up() {
    for sent in 1..=3 {
        let mut decoder = decoder();
        let frames = [publish(1), header(1, 4), body(1, b"ab")];
        feed(&mut decoder, &frames[..sent]).unwrap();
        let close_ok = method(1, channel::CloseOk {});
        assert_eq!(feed(&mut decoder, [&close_ok]).unwrap().len(), 1);
        assert_eq!(decoder.held(), 0);
    }
}

#[test]
fn s2_1_contents_only_the_server_may_send_are_refused_at_their_header() {
    let deliver =
        basic::Deliver { consumer_tag: "t", delivery_tag: 1, redelivered: false, exchange: "", routing_key: "" };
    let id = basic::Deliver::ID;
    assert!(feed(&mut decoder(), &[method(1, deliver.clone())]).unwrap().is_empty());
    let text = "unimplemented method";
    faulty(&[method(1, deliver.clone()), header(1, 5)], ReplyCode::CommandInvalid, id, text);
    let text = "expected content header for class 60, got non content header frame instead";
    faulty(&[method(1, deliver.clone()), body(1, b"x")], ReplyCode::UnexpectedFrame, id, text);
    // On channel 0 there is no content; the model answers.
    let on_zero = method(0, deliver);
    assert!(matches!(feed(&mut decoder(), [&on_zero]).unwrap()[..], [Event::Method { channel: 0, .. }]));
    let on_zero = publish(0);
    assert!(matches!(feed(&mut decoder(), [&on_zero]).unwrap()[..], [Event::Method { channel: 0, .. }]));
}

#[test]
fn s1_4_each_property_has_its_flag_and_type() {
    let text = |letter: u8| Some(Bytes::from(vec![letter]));
    let table: FieldTable = [("h", FieldValue::Void)].into_iter().collect();
    let none = Properties::default;
    let all = [
        (0x8000, Properties { content_type: text(b'a'), ..none() }, &b"\x01a"[..]),
        (0x4000, Properties { content_encoding: text(b'b'), ..none() }, b"\x01b"),
        (0x2000, Properties { headers: Some(table), ..none() }, b"\0\0\0\x03\x01hV"),
        (0x1000, Properties { delivery_mode: Some(2), ..none() }, b"\x02"),
        (0x0800, Properties { priority: Some(9), ..none() }, b"\x09"),
        (0x0400, Properties { correlation_id: text(b'c'), ..none() }, b"\x01c"),
        (0x0200, Properties { reply_to: text(b'd'), ..none() }, b"\x01d"),
        (0x0100, Properties { expiration: text(b'e'), ..none() }, b"\x01e"),
        (0x0080, Properties { message_id: text(b'f'), ..none() }, b"\x01f"),
        (0x0040, Properties { timestamp: Some(258), ..none() }, b"\0\0\0\0\0\0\x01\x02"),
        (0x0020, Properties { type_: text(b'g'), ..none() }, b"\x01g"),
        (0x0010, Properties { user_id: text(b'h'), ..none() }, b"\x01h"),
        (0x0008, Properties { app_id: text(b'i'), ..none() }, b"\x01i"),
        (0x0004, Properties { cluster_id: text(b'j'), ..none() }, b"\x01j"),
    ];
    for (flag, properties, value) in all {
        let mut out = BytesMut::new();
        properties.encode(&mut out);
        assert_eq!(out[..], [&u16::to_be_bytes(flag)[..], value].concat());
        let raw = RawProperties::from_bytes(&out);
        assert_eq!((raw.flags(), raw.is_empty(), raw.as_bytes()), (flag, false, &out[..]));
        assert_eq!(raw.to_properties().unwrap(), properties);
    }
}

#[test]
fn s1_4_absent_differs_from_empty() {
    let properties =
        Properties { content_type: Some(Bytes::new()), headers: Some(FieldTable::new()), ..Properties::default() };
    let mut out = BytesMut::new();
    properties.encode(&mut out);
    assert_eq!(out[..], [0xA0, 0, 0, 0, 0, 0, 0]);
    let raw = RawProperties::from_bytes(&out);
    assert_eq!(raw.content_type(), Some(&b""[..]));
    assert_eq!(raw.headers(), Some(RawTable(b"")));
    assert_eq!((raw.content_encoding(), raw.delivery_mode(), raw.timestamp()), (None, None, None));
    assert_eq!(raw.to_properties().unwrap(), properties);
    assert!(RawProperties::EMPTY.is_empty());
}

#[test]
fn s1_4_short_strings_of_properties_need_not_be_utf8() {
    let payload = header_payload(60, 0, 0, &[0x80, 0, 2, 0xFF, 0xFE]);
    let header = ContentHeader::decode(&payload).unwrap();
    assert_eq!(header.properties.content_type(), Some(&[0xFF, 0xFE][..]));
}

#[test]
fn s1_4_malformed_headers_are_502() {
    let deep = (0..100)
        .fold(Vec::new(), |inner: Vec<u8>, _| [&b"\x01kF"[..], &(inner.len() as u32).to_be_bytes(), &inner].concat());
    let deep = [&[0x20, 0][..], &(deep.len() as u32).to_be_bytes(), &deep].concat();
    for (properties, error) in [
        (&[][..], DecodeError::Truncated),
        (&[0], DecodeError::Truncated),
        (&[0, 0, 0], DecodeError::Trailing),
        (&[0x10, 0, 1, 1], DecodeError::Trailing),
        (&[0x10, 0], DecodeError::Truncated),
        (&[0x80, 0, 2, b'a'], DecodeError::Truncated),
        (&[0, 0x40, 0, 0, 0, 0, 0, 0, 0], DecodeError::Truncated),
        (b"\x20\0\0\0\0\x05\x01kV", DecodeError::Truncated), // table longer than the frame
        (b"\x20\0\0\0\0\x03\x02kV", DecodeError::Truncated), // name longer than the table
        (b"\x20\0\0\0\0\x02\x01k", DecodeError::Truncated),  // no value
        (b"\x20\0\0\0\0\x03\x01kU", DecodeError::UnknownFieldType(b'U')),
        (&deep, DecodeError::TableTooDeep),
        (&[0, 1], DecodeError::Truncated),            // continuation without a word
        (&[0, 1, 0x80, 0, 0], DecodeError::Trailing), // nobody has properties there
    ] {
        let payload = header_payload(60, 0, 5, properties);
        assert_eq!(ContentHeader::decode(&payload), Err(error.clone()), "{properties:?}");
        assert_eq!(error.reply_code(), ReplyCode::SyntaxError);
        faulty(&[publish(1), frame(2, 1, &payload)], ReplyCode::SyntaxError, PUBLISH, &error.explanation());
    }
    faulty(
        &[publish(1), frame(2, 1, &[0, 60, 0])],
        ReplyCode::SyntaxError,
        PUBLISH,
        &DecodeError::Truncated.to_string(),
    );
}

/// What a message with these properties leaves as, arriving whole and in pieces.
#[track_caller]
fn leaves_as(properties: &[u8], expected: &[u8]) {
    let header = frame(2, 1, &header_payload(60, 0, 1, properties));
    let frames = [publish(1), header, body(1, b"x")];
    assert_eq!(owned(feed(&mut decoder(), &frames).unwrap()).properties, expected);
    let (all, mut consumed) = (frames.concat(), 0);
    let event = decoder().next(&all, &mut consumed).unwrap().unwrap();
    let found = match &event {
        Event::Publish { publish, .. } => publish.properties.as_bytes(),
        Event::OwnedPublish { publish, .. } => &publish.properties,
        other => panic!("{other:?}"),
    };
    assert_eq!(found, expected);
    assert_eq!(consumed, all.len());
}

#[test]
fn s1_4_unused_and_continuation_bits_do_not_leave_the_broker() {
    leaves_as(&[0x10, 0, 2], &[0x10, 0, 2]);
    leaves_as(&[0x10, 0x02, 2], &[0x10, 0, 2]);
    leaves_as(&[0x10, 0x01, 0, 0, 2], &[0x10, 0, 2]);
    leaves_as(&[0x10, 0x03, 0, 1, 0, 1, 0, 0, 2], &[0x10, 0, 2]);
    let raw = RawProperties::from_bytes(&[0x10, 0x01, 0, 0, 2]);
    assert_eq!((raw.flags(), raw.delivery_mode()), (0x1000, Some(2)));
}

#[test]
fn s1_6_headers_leave_with_the_same_types_except_l() {
    let same = b"\x20\0\0\0\0\x12\x01al\0\0\0\0\0\0\0\x01\x01bt\x01\x01cV";
    leaves_as(same, same);
    // an `L` becomes `l`, any true becomes 1
    leaves_as(b"\x20\0\0\0\0\x12\x01aL\0\0\0\0\0\0\0\x01\x01bt\x01\x01cV", same);
    leaves_as(b"\x20\0\0\0\0\x12\x01al\0\0\0\0\0\0\0\x01\x01bt\x07\x01cV", same);
    // also inside an array and a table
    let inside = |bool| [&b"\x20\0\0\0\0\x10\x01aA\0\0\0\x09F\0\0\0\x04\x01nt"[..], &[bool]].concat();
    leaves_as(&inside(255), &inside(1));
}
