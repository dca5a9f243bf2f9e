//! Publishes made ready beforehand: a block of whole frames, of which only the times of sending change.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use leveret_protocol::{Properties, basic, put_content, put_method_frame};

/// Bytes of a body that hold the time of sending: big-endian nanoseconds since 1970.
pub const STAMP_BYTES: usize = 8;
/// A block should have this many bytes: a write costs little more than the copying then.
const BLOCK_BYTES: usize = 64 << 10;

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub exchange: String,
    pub routing_key: String,
}

/// How the messages of a block look.
#[derive(Clone, Debug)]
pub struct Shape {
    pub size: usize,
    pub mandatory: bool,
    /// Encoded, see [`encoded`].
    pub properties: Bytes,
    /// Channels 1 to this number take turns.
    pub channels: u16,
    /// Largest frame, in bytes.
    pub frame_max: u32,
}

/// Properties as they go over the wire.
pub fn encoded(properties: &Properties) -> Bytes {
    let mut bytes = BytesMut::new();
    properties.encode(&mut bytes);
    bytes.freeze()
}

/// Messages one after the other, for every route and channel equally many.
#[derive(Debug)]
pub struct Block {
    bytes: BytesMut,
    messages: Vec<Message>,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    /// Where its frames end.
    end: usize,
    /// Where its body starts.
    body: usize,
}

impl Block {
    /// Of a good size for a write, or one message for each route and channel.
    pub fn new(routes: &[Route], shape: &Shape) -> Self {
        let body = vec![b'.'; shape.size];
        let mut block = Self { bytes: BytesMut::new(), messages: Vec::new() };
        let turns = routes.len() * usize::from(shape.channels);
        while block.bytes.len() < BLOCK_BYTES {
            // Channels change fastest; the offset makes every channel meet every route.
            for turn in 0..turns {
                let channel = turn % usize::from(shape.channels);
                let route = &routes[(turn / usize::from(shape.channels) + channel) % routes.len()];
                block.push(channel as u16 + 1, route, shape, &body);
            }
        }
        block
    }

    fn push(&mut self, channel: u16, route: &Route, shape: &Shape, body: &[u8]) {
        let method = basic::Publish {
            exchange: &route.exchange,
            routing_key: &route.routing_key,
            mandatory: shape.mandatory,
            immediate: false,
        };
        put_method_frame(&mut self.bytes, channel, &method.into());
        let header = self.bytes.len();
        put_content(&mut self.bytes, channel, shape.frame_max, &shape.properties, body);
        // Header frame: 8 bytes round class, weight, size (12) and the properties; then 7 of the body's head.
        let body = header + 8 + 12 + shape.properties.len() + 7;
        self.messages.push(Message { end: self.bytes.len(), body });
    }

    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Writes times into the bodies of these messages, by their place in the range.
    pub fn stamp(&mut self, messages: Range<usize>, mut time_ns: impl FnMut(usize) -> u64) {
        for (at, message) in self.messages[messages].iter().enumerate() {
            self.bytes[message.body..message.body + STAMP_BYTES].copy_from_slice(&time_ns(at).to_be_bytes());
        }
    }

    /// Where these messages lie.
    pub fn range(&self, messages: Range<usize>) -> Range<usize> {
        let start = messages.start.checked_sub(1).map_or(0, |before| self.messages[before].end);
        let end = messages.end.checked_sub(1).map_or(0, |last| self.messages[last].end);
        start..end
    }

    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }
}

#[cfg(test)]
mod tests {
    use leveret_protocol::{Decoder, Event};

    use super::*;

    #[test]
    fn every_channel_meets_every_route() {
        let route = |key: &str| Route { exchange: String::new(), routing_key: key.to_owned() };
        let properties = encoded(&Properties { delivery_mode: Some(2), ..Properties::default() });
        let shape = Shape { size: 16, mandatory: false, properties, channels: 2, frame_max: 131_072 };
        let mut block = Block::new(&[route("a"), route("b")], &shape);
        block.stamp(0..4, |at| at as u64 + 100);
        let bytes = block.bytes(block.range(0..4));
        let (mut decoder, mut consumed, mut seen) = (Decoder::new(0, 1000), 0, Vec::new());
        while let Some(event) = decoder.next(&bytes[consumed..], &mut consumed).unwrap() {
            let Event::Publish { channel, publish } = event else { panic!("{event:?}") };
            let body = publish.body.as_bytes();
            let time = u64::from_be_bytes(body[..8].try_into().unwrap());
            assert_eq!(&body[8..], b"........");
            assert_eq!(publish.properties.delivery_mode(), Some(2));
            seen.push((channel, publish.routing_key.to_owned(), time));
        }
        let own = |channel, key: &str, time| (channel, key.to_owned(), time);
        assert_eq!(seen, [own(1, "a", 100), own(2, "b", 101), own(1, "b", 102), own(2, "a", 103)]);
        assert_eq!(block.range(0..1).end, block.range(1..2).start);
    }

    #[test]
    fn large_bodies_are_split() {
        let routes = [Route { exchange: "x".to_owned(), routing_key: String::new() }];
        let properties = encoded(&Properties::default());
        let shape = Shape { size: 100_000, mandatory: true, properties, channels: 1, frame_max: 4096 };
        let block = Block::new(&routes, &shape);
        let bytes = block.bytes(block.range(0..1));
        let mut consumed = 0;
        let event = Decoder::new(4096, 1 << 20).next(bytes, &mut consumed).unwrap().unwrap();
        let Event::OwnedPublish { publish, .. } = event else { panic!("{event:?}") };
        assert_eq!((publish.body.len(), publish.mandatory, consumed), (100_000, true, bytes.len()));
    }
}
