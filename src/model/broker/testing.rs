//! A client without a socket, for the unit tests of the broker's parts.

use std::sync::Arc;

use bytes::BytesMut;
use leveret_protocol::{
    ContentHeader, Decoder, Event, FieldTable, FrameKind, Method, Properties, put_content, put_method_frame,
    split_frame,
};

use super::{Broker, Effects, Settings};
use crate::auth::{Pattern, Permissions, User, UserLimits};
use crate::model::connection::{Capabilities, ConnectionInfo};
use crate::model::ids::ConnectionKey;
use crate::model::output::Output;
use crate::model::quota::Quota;
use crate::model::record::Name;
use crate::model::timer::Millis;

/// A broker with one connection, whose channel 1 is open.
pub(super) struct Rig {
    pub broker: Broker,
    pub connection: ConnectionKey,
    pub now: Millis,
}

/// What the broker sent: a method by its debug text, or a content.
#[derive(Debug)]
pub(super) enum Sent {
    Method(String),
    Content(Box<Properties>, Vec<u8>),
}

impl Rig {
    pub fn new(settings: Settings) -> Self {
        Self::with_broker(Broker::new(Name::from("/"), settings, 0, [7; 32]), 1_000_000)
    }

    pub fn with_broker(broker: Broker, now: Millis) -> Self {
        Self::connect(broker, now, 0)
    }

    pub fn with_heartbeat(settings: Settings, heartbeat_s: u16) -> Self {
        Self::connect(Broker::new(Name::from("/"), settings, 0, [7; 32]), 1_000_000, heartbeat_s)
    }

    fn connect(broker: Broker, now: Millis, heartbeat_s: u16) -> Self {
        let mut rig = Self { broker, connection: ConnectionKey::default(), now };
        let all = || Pattern::new(".*").unwrap();
        let info = ConnectionInfo {
            name: Name::from("1.1.1.1:1 -> 2.2.2.2:2"),
            socket: None,
            user: Arc::new(User {
                name: Name::from("guest"),
                password: None,
                tags: Vec::new(),
                limits: UserLimits::default(),
            }),
            permissions: Arc::new(Permissions { configure: all(), write: all(), read: all() }),
            topic_permissions: None,
            client_properties: FieldTable::new(),
            capabilities: Capabilities { consumer_cancel_notify: true, ..Capabilities::default() },
            frame_max: 131_072,
            channel_max: 0,
            channel_quota: Quota::new(None),
            heartbeat_s,
        };
        rig.connection = rig.broker.connection_opened(info, rig.now);
        rig.send(leveret_protocol::channel::Open {}.into());
        rig
    }

    /// Sends a method on channel 1 and gives back what the broker answers.
    pub fn send(&mut self, method: Method<'_>) -> Vec<Sent> {
        self.send_ahead(method);
        self.take()
    }

    /// Sends a method without looking at what comes back.
    pub fn send_ahead(&mut self, method: Method<'_>) {
        let channel = 1;
        self.broker.client(self.connection, Event::Method { channel, method }, self.now);
    }

    pub fn publish(&mut self, exchange: &str, routing_key: &str, body: &str) -> Vec<Sent> {
        let (mandatory, immediate) = (false, false);
        let publish = leveret_protocol::basic::Publish { exchange, routing_key, mandatory, immediate };
        self.publish_with(publish, &Properties::default(), body)
    }

    /// To a queue, with delivery mode 2.
    pub fn publish_persistent(&mut self, queue: &str, body: &str) -> Vec<Sent> {
        let (exchange, routing_key, mandatory, immediate) = ("", queue, false, false);
        let publish = leveret_protocol::basic::Publish { exchange, routing_key, mandatory, immediate };
        self.publish_with(publish, &Properties { delivery_mode: Some(2), ..Properties::default() }, body)
    }

    pub fn publish_with(
        &mut self,
        publish: leveret_protocol::basic::Publish<'_>,
        properties: &Properties,
        body: &str,
    ) -> Vec<Sent> {
        let (mut bytes, mut encoded) = (BytesMut::new(), BytesMut::new());
        properties.encode(&mut encoded);
        put_method_frame(&mut bytes, 1, &publish.into());
        put_content(&mut bytes, 1, 0, &encoded, body.as_bytes());
        let (mut decoder, mut consumed) = (Decoder::new(0, 1 << 20), 0);
        let event = decoder.next(&bytes, &mut consumed).unwrap().unwrap();
        self.broker.client(self.connection, event, self.now);
        self.take()
    }

    /// The bodies of the ready messages, in the order in which they will go out.
    pub fn bodies(&self, queue: &str) -> Vec<String> {
        let queue = self.broker.queue(queue).expect("a test names a queue that is there");
        let body = |seq| {
            let (record, shared) = queue.messages().get(seq).expect("a ready message is not settled");
            String::from_utf8_lossy(shared.map_or(record.inline_body, |body| body)).into_owned()
        };
        queue.ready_sequences().into_iter().map(body).collect()
    }

    pub fn declare(&mut self, queue: &str, arguments: FieldTable) {
        let declare = leveret_protocol::queue::Declare {
            queue,
            passive: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            no_wait: true,
            arguments,
        };
        assert!(self.send(declare.into()).is_empty(), "declare of {queue} was answered");
    }

    /// Lets time pass.
    pub fn wait(&mut self, ms: Millis) -> Vec<Sent> {
        self.now += ms;
        self.broker.advance(self.now);
        self.take()
    }

    /// Everything the broker has for the client.
    pub fn take(&mut self) -> Vec<Sent> {
        let mut output = Output::default();
        loop {
            self.broker.dispatch_now(self.now);
            let more = self.broker.poll_transmit(self.connection, &mut output, 1 << 20, self.now).more;
            self.broker.finish(self.now, &mut Effects::default());
            if !more {
                break;
            }
        }
        let bytes: Vec<u8> = output.chunks.iter().flatten().chain(output.tail.iter()).copied().collect();
        let (mut rest, mut sent) = (bytes.as_slice(), Vec::new());
        while let Some((frame, used)) = split_frame(rest, 0).unwrap() {
            rest = &rest[used..];
            match frame.kind {
                FrameKind::Method => sent.push(Sent::Method(format!("{:?}", Method::decode(frame.payload).unwrap()))),
                FrameKind::Header => {
                    let header = ContentHeader::decode(frame.payload).unwrap();
                    sent.push(Sent::Content(Box::new(header.properties.to_properties().unwrap()), Vec::new()));
                }
                FrameKind::Body => match sent.last_mut() {
                    Some(Sent::Content(_, body)) => body.extend_from_slice(frame.payload),
                    other => panic!("a body after {other:?}"),
                },
                FrameKind::Heartbeat => {}
            }
        }
        sent
    }
}
