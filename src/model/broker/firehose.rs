//! The firehose (§17.3): a copy of every publish and every delivery to `amq.rabbitmq.trace`, when it is on.

use bytes::{Bytes, BytesMut};
use leveret_protocol::{FieldTable, FieldValue, Properties, RawProperties};

use super::Broker;
use super::publish::Outcome;
use crate::model::ids::{ChannelKey, QueueKey};
use crate::model::queue::message::{BodyRef, NewMessage, flag};
use crate::model::timer::Millis;

pub(super) const TRACE_EXCHANGE: &str = "amq.rabbitmq.trace";

/// A copy that waits for the end of the step in which it was made.
#[derive(Debug)]
pub(super) struct Traced {
    routing_key: Vec<u8>,
    headers: FieldTable,
    body: Bytes,
}

impl Broker {
    /// Turns the firehose on or off. It does not survive a restart (§16).
    pub fn set_tracing(&mut self, on: bool) {
        self.tracing = on;
        // The route cache passes by the firehose.
        self.topology.touch();
    }

    pub(super) fn trace_publish(
        &mut self,
        channel: ChannelKey,
        message: &NewMessage<'_>,
        keys: &[&[u8]],
        queues: &[QueueKey],
    ) {
        if message.exchange == TRACE_EXCHANGE.as_bytes() {
            return;
        }
        let names = queues.iter().filter_map(|key| self.queues.get(*key)).map(|queue| text(queue.name.as_bytes()));
        let names = FieldValue::Array(names.collect());
        let mut headers = self.trace_headers(channel, message.exchange, keys, message.properties);
        headers.insert("routed_queues", names);
        let routing_key = [b"publish.", message.exchange].concat();
        self.traced.push(Traced { routing_key, headers, body: Bytes::copy_from_slice(message.body.as_slice()) });
    }

    pub(super) fn trace_delivery(&mut self, channel: ChannelKey, key: QueueKey, seq: u64) {
        let Some(queue) = self.queues.get(key) else { return };
        let Some((record, shared)) = queue.messages().get(seq) else { return };
        if record.exchange == TRACE_EXCHANGE.as_bytes() {
            return;
        }
        let body = shared.cloned().unwrap_or_else(|| Bytes::copy_from_slice(record.inline_body));
        let mut headers = self.trace_headers(channel, record.exchange, &[record.routing_key], record.properties);
        headers.insert("redelivered", FieldValue::I32(i32::from(record.is(flag::REDELIVERED))));
        let routing_key = [b"deliver.", queue.name.as_bytes()].concat();
        self.traced.push(Traced { routing_key, headers, body });
    }

    fn trace_headers(&self, channel: ChannelKey, exchange: &[u8], keys: &[&[u8]], properties: &[u8]) -> FieldTable {
        let mut headers = FieldTable::new();
        headers.insert("exchange_name", text(exchange));
        headers.insert("routing_keys", FieldValue::Array(keys.iter().map(|key| text(key)).collect()));
        let properties = RawProperties::from_bytes(properties).to_properties().unwrap_or_default();
        headers.insert("properties", FieldValue::Table(as_table(properties)));
        headers.insert("node", text(b"leveret@localhost"));
        headers.insert("vhost", text(self.vhost.as_bytes()));
        if let Some(channel) = self.channels.get(channel) {
            let info = &self.connections[channel.connection].info;
            headers.insert("connection", text(info.name.as_bytes()));
            headers.insert("channel", FieldValue::I32(channel.number.into()));
            headers.insert("user", text(info.user.name.as_bytes()));
        }
        headers
    }

    /// Publishes the copies.
    pub(super) fn publish_traced(&mut self, now: Millis) {
        let Some(exchange) = self.topology.find(TRACE_EXCHANGE) else { return };
        for traced in std::mem::take(&mut self.traced) {
            let mut encoded = BytesMut::new();
            Properties { headers: Some(traced.headers), ..Properties::default() }.encode(&mut encoded);
            let key = traced.routing_key.get(..255).unwrap_or(&traced.routing_key);
            let mut queues = Vec::new();
            self.route_keys(exchange, &[key], RawProperties::from_bytes(&encoded), &mut queues);
            let message = NewMessage {
                exchange: TRACE_EXCHANGE.as_bytes(),
                routing_key: key,
                properties: &encoded,
                body: BodyRef::Shared(&traced.body),
                persistent: false,
                priority: 0,
                expires_at: None,
                bcc: &[],
                died: false,
            };
            for queue in queues {
                self.enqueue(queue, &message, None, now, &mut Outcome::default());
            }
        }
    }
}

fn text(value: &[u8]) -> FieldValue {
    FieldValue::LongString(Bytes::copy_from_slice(value))
}

/// The properties under their names with `_`.
fn as_table(properties: Properties) -> FieldTable {
    let mut table = FieldTable::new();
    let texts = [
        ("content_type", properties.content_type),
        ("content_encoding", properties.content_encoding),
        ("correlation_id", properties.correlation_id),
        ("reply_to", properties.reply_to),
        ("expiration", properties.expiration),
        ("message_id", properties.message_id),
        ("type", properties.type_),
        ("user_id", properties.user_id),
        ("app_id", properties.app_id),
        ("cluster_id", properties.cluster_id),
    ];
    for (name, value) in texts {
        if let Some(value) = value {
            table.insert(name, FieldValue::LongString(value));
        }
    }
    if let Some(headers) = properties.headers {
        table.insert("headers", FieldValue::Table(headers));
    }
    for (name, value) in [("delivery_mode", properties.delivery_mode), ("priority", properties.priority)] {
        if let Some(value) = value {
            table.insert(name, FieldValue::U8(value));
        }
    }
    if let Some(seconds) = properties.timestamp {
        table.insert("timestamp", FieldValue::Timestamp(seconds));
    }
    table
}

#[cfg(test)]
mod tests {
    use leveret_protocol::{basic, queue};

    use super::super::Settings;
    use super::super::testing::{Rig, Sent};
    use super::*;

    fn bind(rig: &mut Rig, routing_key: &str) {
        let arguments = FieldTable::new();
        let bind = queue::Bind { queue: "t", exchange: TRACE_EXCHANGE, routing_key, no_wait: true, arguments };
        assert!(rig.send(bind.into()).is_empty());
    }

    fn get(rig: &mut Rig, queue: &str) -> Option<(Properties, Vec<u8>)> {
        let sent = rig.send(basic::Get { queue, no_ack: true }.into());
        sent.into_iter().find_map(|sent| match sent {
            Sent::Content(properties, body) => Some((*properties, body)),
            Sent::Method(_) => None,
        })
    }

    /// §17.3: publish and delivery are copied with what they were; off, nothing is.
    #[test]
    fn s17_3_the_firehose_copies_publishes_and_deliveries() {
        let mut rig = Rig::new(Settings::default());
        rig.declare("q", FieldTable::new());
        rig.declare("t", FieldTable::new());
        bind(&mut rig, "#");
        rig.publish("", "q", "unseen");
        assert!(get(&mut rig, "t").is_none(), "it is off");
        rig.broker.set_tracing(true);
        rig.publish("", "q", "hello");
        let (properties, body) = get(&mut rig, "t").expect("a copy of the publish");
        assert_eq!(body, b"hello");
        let headers = properties.headers.unwrap();
        assert_eq!(headers.get("exchange_name"), Some(&text(b"")));
        assert_eq!(headers.get("routing_keys"), Some(&FieldValue::Array(vec![text(b"q")])));
        assert_eq!(headers.get("routed_queues"), Some(&FieldValue::Array(vec![text(b"q")])));
        assert_eq!(headers.get("user"), Some(&text(b"guest")));
        assert!(get(&mut rig, "t").is_none(), "what goes through the trace exchange is not traced");
        assert_eq!(get(&mut rig, "q").unwrap().1, b"unseen");
        let (properties, body) = get(&mut rig, "t").expect("a copy of the delivery");
        assert_eq!(body, b"unseen");
        assert_eq!(properties.headers.unwrap().get("redelivered"), Some(&FieldValue::I32(0)));
    }
}
