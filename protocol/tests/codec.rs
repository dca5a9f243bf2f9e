//! Property tests: what is written is read again, any chunking gives the same events, and no bytes
//! cause a panic.

mod support;

use bytes::BytesMut;
use leveret_protocol::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use support::*;

proptest! {
    #[test]
    fn s1_6_tables_round_trip(table in field_table()) {
        let mut out = BytesMut::new();
        put_table(&mut out, &table);
        prop_assert_eq!(decode_table(&out), Ok((table.clone(), out.len())));
        prop_assert_eq!(decode_table_body(&out[4..]), Ok(table.clone()));
        for (name, _) in &table {
            if let Some(name) = name.as_str() {
                let raw = RawTable(&out[4..]).get(name).unwrap().to_value();
                prop_assert_eq!(raw.as_ref(), Ok(table.get(name).unwrap()));
            }
        }
    }

    #[test]
    fn s1_4_properties_round_trip(properties in properties(), body_size in any::<u64>()) {
        let (mut encoded, mut out) = (BytesMut::new(), BytesMut::new());
        properties.encode(&mut encoded);
        put_content_header(&mut out, 1, &encoded, body_size);
        let (frame, _) = split_frame(&out, 0).unwrap().unwrap();
        let header = ContentHeader::decode(frame.payload).unwrap();
        prop_assert_eq!((header.class_id, header.weight, header.body_size), (60, 0, body_size));
        let raw = header.properties;
        prop_assert_eq!(raw.as_bytes(), &encoded[..]);
        prop_assert_eq!(raw.to_properties().unwrap(), properties.clone());
        prop_assert_eq!(raw.content_type(), properties.content_type.as_deref());
        prop_assert_eq!(raw.content_encoding(), properties.content_encoding.as_deref());
        prop_assert_eq!(raw.headers().map(|table| table.to_table().unwrap()), properties.headers);
        prop_assert_eq!(raw.delivery_mode(), properties.delivery_mode);
        prop_assert_eq!(raw.priority(), properties.priority);
        prop_assert_eq!(raw.correlation_id(), properties.correlation_id.as_deref());
        prop_assert_eq!(raw.reply_to(), properties.reply_to.as_deref());
        prop_assert_eq!(raw.expiration(), properties.expiration.as_deref());
        prop_assert_eq!(raw.message_id(), properties.message_id.as_deref());
        prop_assert_eq!(raw.timestamp(), properties.timestamp);
        prop_assert_eq!(raw.type_(), properties.type_.as_deref());
        prop_assert_eq!(raw.user_id(), properties.user_id.as_deref());
        prop_assert_eq!(raw.app_id(), properties.app_id.as_deref());
        prop_assert_eq!(raw.cluster_id(), properties.cluster_id.as_deref());
    }

    #[test]
    fn s1_3_any_chunking_gives_what_was_sent(
        sent in vec(seen(), 0..12),
        frame_max in prop_oneof![Just(0u32), 9u32..80],
        sizes in vec(1usize..200, 1..10),
    ) {
        let stream: Vec<u8> = sent.iter().flat_map(|sent| sent.frames(frame_max)).flatten().collect();
        prop_assert_eq!(decode_in_pieces(&stream, 0, &[stream.len() + 1]), (sent.clone(), vec![]));
        prop_assert_eq!(decode_in_pieces(&stream, 0, &sizes), (sent.clone(), vec![]));
        prop_assert_eq!(decode_in_pieces(&stream, 0, &[1]), (sent, vec![]));
    }

    /// Frames of the channels interleaved at random: per channel, what was sent in its order.
    #[test]
    fn s1_2_interleaved_channels_do_not_disturb_each_other(
        sent in vec(seen(), 0..12),
        frame_max in 9u32..80,
        turns in vec(any::<Index>(), 1..50),
        sizes in vec(1usize..200, 1..10),
    ) {
        let channel_of = |seen: &Seen| match seen {
            Seen::Publish { channel, .. } | Seen::Ack { channel, .. } | Seen::Other { channel, .. } => *channel,
            Seen::Heartbeat => 0,
        };
        let of_channel = |all: &[Seen]| -> Vec<Vec<Seen>> {
            (0..4).map(|channel| all.iter().filter(|seen| channel_of(seen) == channel).cloned().collect()).collect()
        };
        let mut waiting: Vec<Vec<Vec<u8>>> = of_channel(&sent)
            .iter()
            .map(|sent| sent.iter().flat_map(|sent| sent.frames(frame_max)).rev().collect())
            .collect();
        let (mut stream, mut turns) = (Vec::new(), turns.iter().cycle());
        while waiting.iter().any(|frames| !frames.is_empty()) {
            waiting.retain(|frames| !frames.is_empty());
            let turn = turns.next().unwrap().index(waiting.len());
            stream.extend(waiting[turn].pop().unwrap());
        }
        let (seen, faults) = decode_in_pieces(&stream, 0, &sizes);
        prop_assert_eq!(faults, vec![]);
        prop_assert_eq!(of_channel(&seen), of_channel(&sent));
    }

    /// A stream with some octets changed, and frames left out: whatever it means, it means the same
    /// in any pieces.
    #[test]
    fn s1_2_damaged_streams_mean_the_same_in_any_pieces(
        sent in vec(seen(), 1..8),
        frame_max in 9u32..80,
        damage in vec((any::<Index>(), any::<u8>()), 0..4),
        left_out in vec(any::<Index>(), 0..3),
        payload_max in prop_oneof![Just(0u32), 20u32..400],
        sizes in vec(1usize..100, 1..10),
    ) {
        let mut frames: Vec<_> = sent.iter().flat_map(|sent| sent.frames(frame_max)).collect();
        for index in left_out {
            if frames.len() > 1 {
                frames.remove(index.index(frames.len()));
            }
        }
        let mut stream = frames.concat();
        for (index, octet) in damage {
            let at = index.index(stream.len());
            stream[at] = octet;
        }
        let whole = decode_in_pieces(&stream, payload_max, &[stream.len() + 1]);
        prop_assert_eq!(&decode_in_pieces(&stream, payload_max, &sizes), &whole);
        prop_assert_eq!(&decode_in_pieces(&stream, payload_max, &[1]), &whole);
        // What the broker sends on must be good for the next reader.
        for seen in &whole.0 {
            if let Seen::Publish { publish, .. } = seen {
                prop_assert!(RawProperties::from_bytes(&publish.properties).to_properties().is_ok());
            }
        }
    }

    #[test]
    fn s1_any_bytes_never_panic(bytes in vec(any::<u8>(), 0..200), class in 0u8..100, method in 0u8..130) {
        let _ = split_frame(&bytes, 100);
        let _ = decode_table(&bytes);
        let _ = decode_table_body(&bytes);
        let _ = Method::decode(&bytes);
        let _ = ContentHeader::decode(&bytes);
        decode_in_pieces(&bytes, 0, &[7]);
        // past the first checks
        let _ = Method::decode(&[&[0, class, 0, method], &bytes[..]].concat());
        let _ = ContentHeader::decode(&[&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], &bytes[..]].concat());
        let mut frame = vec![method % 4, 0, 1, 0, 0, 0, bytes.len() as u8];
        frame.extend(&bytes);
        frame.push(0xCE);
        decode_in_pieces(&frame, 0, &[frame.len()]);
    }

    /// Both readers of tables agree: the check of a content header, and the owned form.
    #[test]
    fn s1_6_checked_and_owned_tables_agree(
        table in field_table(),
        damage in vec((any::<Index>(), any::<u8>()), 0..3),
        limit in any::<Index>(),
    ) {
        let mut out = BytesMut::new();
        put_table(&mut out, &table);
        let mut body = out[4..].to_vec();
        for (index, octet) in damage {
            if !body.is_empty() {
                let at = index.index(body.len());
                body[at] = octet;
            }
        }
        body.truncate(limit.index(2 * body.len() + 1));
        let header = [&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x20, 0][..], &(body.len() as u32).to_be_bytes(), &body];
        let checked = ContentHeader::decode(&header.concat()).map(|_| ());
        prop_assert_eq!(checked, decode_table_body(&body).map(|_| ()));
        // A walk over unchecked bytes ends, whatever they are.
        prop_assert!(RawTable(&body).iter().count() <= body.len());
        for field in RawTable(&body).iter().flatten() {
            let _ = (field.1.to_value(), field.1.as_integer(), field.1.as_str());
        }
    }

    #[test]
    fn s1_4_accessors_of_unchecked_properties_never_panic(bytes in vec(any::<u8>(), 0..60)) {
        let raw = RawProperties::from_bytes(&bytes);
        let _ = (raw.content_type(), raw.content_encoding(), raw.headers(), raw.delivery_mode(), raw.priority());
        let _ = (raw.correlation_id(), raw.reply_to(), raw.expiration(), raw.message_id(), raw.timestamp());
        let _ = (raw.type_(), raw.user_id(), raw.app_id(), raw.cluster_id(), raw.flags());
        let _ = raw.to_properties();
    }
}
