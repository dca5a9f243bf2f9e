//! Publishing and getting by operators: for tests and for looking, not for load.

use bytes::Bytes;
use leveret_protocol::{Method, Properties, RawProperties, basic};

use super::{Actor, AdminError, publish_error};
use crate::server::Server;

/// What becomes of the messages that were got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckMode {
    /// They are gone.
    Ack,
    /// They go back to their places (nack).
    Requeue,
    /// They are dropped or dead-lettered.
    Reject,
    /// They go back to their places (reject).
    RejectRequeue,
}

/// A message that was got.
#[derive(Clone, Debug)]
pub struct Got {
    pub exchange: String,
    pub routing_key: String,
    pub redelivered: bool,
    /// Ready messages left in the queue after this one.
    pub message_count: u32,
    pub properties: Box<Properties>,
    pub body: Bytes,
}

impl Server {
    /// Publishes one message, mandatory and confirmed. Returns whether it was routed.
    ///
    /// # Errors
    /// No such vhost; what AMQP refuses; a full queue rejected it.
    pub async fn publish(
        &self,
        vhost: &str,
        exchange: &str,
        routing_key: &str,
        properties: &Properties,
        body: &[u8],
        actor: &Actor,
    ) -> Result<bool, AdminError> {
        let mut client = self.client(vhost, actor).await?;
        let mut encoded = bytes::BytesMut::new();
        properties.encode(&mut encoded);
        client.publish(exchange, routing_key, &encoded, body).await.map_err(publish_error)
    }

    /// Gets up to `count` messages, all of them before any is settled.
    ///
    /// # Errors
    /// No such vhost; what AMQP refuses.
    pub async fn get(
        &self,
        vhost: &str,
        queue: &str,
        count: u64,
        mode: AckMode,
        actor: &Actor,
    ) -> Result<Vec<Got>, AdminError> {
        let mut client = self.client(vhost, actor).await?;
        let mut all = Vec::new();
        let mut last = 0;
        while (all.len() as u64) < count {
            let Some(answer) = client.get(queue, false).await? else { break };
            let Method::BasicGetOk(ok) = answer.method() else { break };
            last = ok.delivery_tag;
            let properties = RawProperties::from_bytes(&answer.properties).to_properties().unwrap_or_default();
            all.push(Got {
                exchange: ok.exchange.to_owned(),
                routing_key: ok.routing_key.to_owned(),
                redelivered: ok.redelivered,
                message_count: ok.message_count,
                properties: Box::new(properties),
                body: answer.body.clone(),
            });
        }
        for delivery_tag in 1..=last {
            match mode {
                AckMode::Ack => client.send(basic::Ack { delivery_tag, multiple: false }.into()),
                AckMode::Requeue => {
                    client.send(basic::Nack { delivery_tag, multiple: false, requeue: true }.into());
                }
                AckMode::Reject => client.send(basic::Reject { delivery_tag, requeue: false }.into()),
                AckMode::RejectRequeue => client.send(basic::Reject { delivery_tag, requeue: true }.into()),
            }
        }
        // What has an answer comes after them: then they are settled, and a refusal is seen.
        client.call(basic::Qos { prefetch_size: 0, prefetch_count: 0, global: false }.into()).await?;
        Ok(all)
    }
}
