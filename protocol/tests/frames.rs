//! Reference 1.1 and 1.2: frames, whole, broken and misplaced; the fast encoders.

use bytes::BytesMut;
use leveret_protocol::*;

fn frame(frame_type: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![frame_type];
    bytes.extend(channel.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes.push(0xCE);
    bytes
}

/// The fault of one call, and the bytes consumed.
fn fault(input: &[u8], payload_max: u32) -> (Fault, usize) {
    let mut consumed = 0;
    let result = Decoder::new(payload_max, 1 << 24).next(input, &mut consumed);
    (result.unwrap_err(), consumed)
}

/// A fatal framing error: nothing consumed, class and method 0/0.
#[track_caller]
fn fatal(input: &[u8], payload_max: u32, explanation: &str) {
    let (fault, consumed) = fault(input, payload_max);
    assert_eq!(fault.explanation, explanation);
    assert_eq!((fault.code, fault.method), (ReplyCode::FrameError, MethodId::NONE));
    assert!(fault.fatal_framing);
    assert_eq!(consumed, 0);
    let error = split_frame(input, payload_max).unwrap_err();
    assert_eq!((error.reply_code(), error.explanation()), (fault.code, fault.explanation));
}

#[test]
fn s1_2_a_frame_needs_every_byte() {
    let whole = frame(1, 513, b"payload");
    for end in 0..whole.len() {
        assert_eq!(split_frame(&whole[..end], 100), Ok(None), "{end}");
    }
    let expected = Frame { kind: FrameKind::Method, channel: 513, payload: b"payload" };
    assert_eq!(split_frame(&whole, 100), Ok(Some((expected, whole.len()))));
    assert_eq!(split_frame(&[&whole[..], b"more"].concat(), 100), Ok(Some((expected, whole.len()))));
}

#[test]
fn s1_2_types() {
    for (octet, kind) in
        [(1, FrameKind::Method), (2, FrameKind::Header), (3, FrameKind::Body), (8, FrameKind::Heartbeat)]
    {
        let bytes = frame(octet, 0, b"");
        assert_eq!(split_frame(&bytes, 0), Ok(Some((Frame { kind, channel: 0, payload: b"" }, 8))));
        assert_eq!(kind.octet(), octet);
    }
}

#[test]
fn s1_2_payload_up_to_frame_max_is_tolerated() {
    assert!(split_frame(&frame(3, 1, &[0; 4096]), 4096).unwrap().is_some());
    assert!(split_frame(&frame(3, 1, &[0; 5000]), 0).unwrap().is_some());
}

#[test]
fn s1_2_too_large_is_501_as_soon_as_the_head_is_there() {
    let whole = frame(3, 1, &[7; 4097]);
    let text = "type 3, all octets = <<>>: {frame_too_large,4097,4088}";
    for end in [7, 8, 100, whole.len()] {
        fatal(&whole[..end], 4096, text);
    }
    assert_eq!(split_frame(&whole[..6], 4096), Ok(None));
}

#[test]
fn s1_2_wrong_end_marker_is_501() {
    let mut short = frame(1, 1, &[1, 2, 3]);
    *short.last_mut().unwrap() = 206 - 1;
    fatal(&short, 4096, "type 1, all octets = <<1,2,3>>: {invalid_frame_end_marker,205}");
    let mut long = frame(2, 1, &[3; 17]);
    *long.last_mut().unwrap() = 0;
    let text = "type 2, first 16 octets = <<3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3>>: {invalid_frame_end_marker,0}";
    fatal(&long, 4096, text);
    let mut sixteen = frame(2, 1, &[b'a'; 16]);
    *sixteen.last_mut().unwrap() = 1;
    assert!(fault(&sixteen, 4096).0.explanation.starts_with("type 2, all octets"));
}

#[test]
fn s1_2_unknown_type_is_501() {
    for octet in (0..=255).filter(|octet| ![1, 2, 3, 8].contains(octet)) {
        fatal(&frame(octet, 0, &[5, 255]), 4096, &format!("type {octet}, all octets = <<5,255>>: unknown_frame"));
    }
}

#[test]
fn s1_2_heartbeat_with_payload_is_501() {
    fatal(&frame(8, 0, &[0]), 4096, "type 8, all octets = <<0>>: unknown_frame");
}

#[test]
fn s1_2_misplaced_frames_are_505_and_consumed() {
    for (bytes, text) in [
        (frame(8, 1, b""), "type 8, all octets = <<>>".to_owned()),
        (frame(2, 0, &[0, 60]), "type 2, all octets = <<0,60>>".to_owned()),
        (frame(3, 0, &[1; 20]), format!("type 3, first 16 octets = <<{}1>>", "1,".repeat(15))),
    ] {
        let (fault, consumed) = fault(&bytes, 4096);
        assert_eq!((fault.code, fault.method), (ReplyCode::UnexpectedFrame, MethodId::NONE));
        assert_eq!(fault.explanation, text);
        assert!(!fault.fatal_framing);
        assert_eq!(consumed, bytes.len());
    }
}

#[test]
fn s1_2_undecodable_arguments_are_501() {
    // basic.ack with a byte too many, and with one too few
    for payload in [&[0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0, 9, 0, 77][..], &[0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0, 9]] {
        let bytes = frame(1, 7, payload);
        let (fault, consumed) = fault(&bytes, 4096);
        let octets: Vec<_> = payload[4..].iter().map(u8::to_string).collect();
        assert_eq!(fault.explanation, format!("cannot decode <<{}>>", octets.join(",")));
        assert_eq!((fault.channel, fault.method), (7, basic::Ack::ID));
        assert_eq!(fault.code, ReplyCode::FrameError);
        assert!(!fault.fatal_framing);
        assert_eq!(consumed, bytes.len());
    }
    // not even a class and method
    let (fault, _) = fault(&frame(1, 1, &[0, 60]), 4096);
    assert_eq!((fault.explanation.as_str(), fault.method), ("cannot decode <<0,60>>", MethodId::NONE));
}

#[test]
fn s1_2_undecodable_arguments_are_shown_in_part() {
    let payload = [&[0, 10, 0, 60, 255][..], &[1; 60_000]].concat();
    let error = Method::decode(&payload).unwrap_err();
    assert!(error.explanation().len() < 600);
    let text = reply_text(error.reply_code(), &error.explanation());
    assert!(text.starts_with("FRAME_ERROR - cannot decode <<255,1,1,"));
    assert_eq!(text.len(), 255);
}

#[test]
fn s1_2_malformed_utf8_in_a_method_is_501() {
    let get = [&[0, 60, 0, 70, 0, 0, 2][..], &[0xC3, 0x28], &[0]].concat();
    let publish_exchange = [0, 60, 0, 40, 0, 0, 1, 0xFF, 0, 0];
    let publish_key = [0, 60, 0, 40, 0, 0, 0, 1, 0xFF, 0];
    // Each half of a character is wrong, even though the octets around the length make one of them whole.
    let halves = [0, 60, 0, 40, 0, 0, 1, 0xC3, 1, 0xA9, 0];
    for payload in [&get[..], &publish_exchange, &publish_key, &halves] {
        let (fault, _) = fault(&frame(1, 1, payload), 4096);
        assert_eq!(fault.explanation, "Malformed UTF-8 in shortstr");
        assert_eq!(fault.code, ReplyCode::FrameError);
        assert_eq!(fault.method, MethodId::NONE, "as RabbitMQ does it");
    }
}

#[test]
fn s1_5_publish_strings_of_every_length() {
    // The fast path checks both strings at once unless the key is longer than 127 bytes.
    for (exchange_len, key_len) in [(0, 0), (1, 127), (255, 127), (3, 128), (0, 255), (255, 255)] {
        for letter in ["x", "\u{e9}", "\u{1F407}"] {
            let (exchange, routing_key) =
                (letter.repeat(exchange_len / letter.len()), letter.repeat(key_len / letter.len()));
            let publish =
                basic::Publish { exchange: &exchange, routing_key: &routing_key, mandatory: true, immediate: false };
            let mut out = BytesMut::new();
            Method::from(publish.clone()).encode(&mut out);
            assert_eq!(Method::decode(&out).unwrap(), publish.into());
            for end in 0..out.len() {
                assert!(Method::decode(&out[..end]).is_err());
            }
            out.extend_from_slice(&[0]);
            assert!(matches!(Method::decode(&out).unwrap_err(), DecodeError::Arguments(_)));
        }
    }
}

#[test]
fn s1_5_a_long_routing_key_with_a_utf8_length_octet_is_checked_apart() {
    // exchange C3, length octet A9 (169): together an "é", but no string holds it.
    let mut payload = vec![0, 60, 0, 40, 0, 0, 1, 0xC3, 0xA9];
    payload.extend([b'k'; 0xA9]);
    payload.push(0);
    assert_eq!(Method::decode(&payload), Err(DecodeError::ShortStringUtf8));
}

#[test]
fn s2_1_unknown_methods_are_503() {
    for (class, method) in [(60, 41), (61, 40), (0, 0), (0xFFFF, 0xFFFF)] {
        let id = MethodId { class, method };
        let payload = [class.to_be_bytes(), method.to_be_bytes()].concat();
        let (fault, _) = fault(&frame(1, 1, &payload), 4096);
        assert_eq!(fault.reply_text(), "COMMAND_INVALID - unimplemented method");
        assert_eq!((fault.method, fault.channel), (id, 1));
        assert_eq!(Method::decode(&payload), Err(DecodeError::UnknownMethod(id)));
    }
}

#[test]
fn s1_2_bodies_are_split_to_frame_max() {
    let split = |frame_max: u32, len: usize| {
        let mut out = BytesMut::new();
        put_content(&mut out, 9, frame_max, &[0, 0], &vec![1; len]);
        let (mut rest, mut sizes) = (&out[..], Vec::new());
        while let Some((frame, used)) = split_frame(rest, 0).unwrap() {
            assert_eq!(frame.channel, 9);
            match sizes.len() {
                0 => assert_eq!(ContentHeader::decode(frame.payload).unwrap().body_size, len as u64),
                _ => assert_eq!(frame.kind, FrameKind::Body),
            }
            assert!(frame_max < 9 || used <= frame_max as usize);
            sizes.push(frame.payload.len());
            rest = &rest[used..];
        }
        assert!(rest.is_empty());
        sizes.split_off(1)
    };
    assert_eq!(split(4096, 0), []);
    assert_eq!(split(4096, 1), [1]);
    assert_eq!(split(4096, 4088), [4088]);
    assert_eq!(split(4096, 4089), [4088, 1]);
    assert_eq!(split(4096, 3 * 4088), [4088; 3]);
    assert_eq!(split(0, 1_000_000), [1_000_000]);
    assert_eq!(split(0, 0), []);
    assert_eq!(split(8, 3), [1; 3], "a limit without room for a payload does not loop");
}

#[test]
fn s1_2_a_body_frame_can_be_written_around_a_shared_body() {
    let (mut whole, mut pieces) = (BytesMut::new(), BytesMut::new());
    put_content(&mut whole, 3, 0, &[0, 0], b"body");
    put_content_header(&mut pieces, 3, &[0, 0], 4);
    put_body_frame_head(&mut pieces, 3, 4);
    pieces.extend_from_slice(b"body");
    put_frame_end(&mut pieces);
    assert_eq!(whole, pieces);
}

#[test]
fn s2_fast_encoders_write_the_same_bytes() {
    let longest = "k".repeat(255);
    for (consumer_tag, exchange, routing_key) in [("", "", ""), ("ctag", "amq.topic", "a.b"), ("t", "", &longest)] {
        let (delivery_tag, redelivered) = (0x0102_0304_0506_0708, routing_key.len() > 3);
        let (mut fast, mut plain) = (BytesMut::new(), BytesMut::new());
        let [tag, name, key] = [consumer_tag, exchange, routing_key].map(str::as_bytes);
        put_deliver(&mut fast, 513, tag, delivery_tag, redelivered, name, key);
        let deliver = basic::Deliver { consumer_tag, delivery_tag, redelivered, exchange, routing_key };
        put_method_frame(&mut plain, 513, &deliver.into());
        assert_eq!(fast, plain);
    }
    for multiple in [false, true] {
        let (mut fast, mut plain) = (BytesMut::new(), BytesMut::new());
        put_ack(&mut fast, 2, u64::MAX, multiple);
        put_nack(&mut fast, 2, 258, multiple);
        put_method_frame(&mut plain, 2, &basic::Ack { delivery_tag: u64::MAX, multiple }.into());
        put_method_frame(&mut plain, 2, &basic::Nack { delivery_tag: 258, multiple, requeue: false }.into());
        assert_eq!(fast, plain);
    }
}
