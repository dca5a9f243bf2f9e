//! A client of our own without a socket: what operators do to queues, exchanges and messages goes through it,
//! so that it obeys the same rules, permissions and texts as AMQP, and is answered when it is on disk.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bytes::{Buf as _, Bytes, BytesMut};
use leveret_protocol::{
    Body, ContentHeader, Event, FrameKind, Method, Publish, RawProperties, basic, channel, confirm, split_frame,
};

use super::Server;
use super::shard::{Shard, Wakeup};
use crate::auth::{Permissions, User};
use crate::model::connection::{Capabilities, ConnectionInfo, ConnectionState};
use crate::model::ids::ConnectionKey;
use crate::model::output::Output;
use crate::model::quota::Quota;
use crate::model::record::Name;

/// The one channel.
const CHANNEL: u16 = 1;

/// What the broker said no with: the channel or connection is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code} {text}")]
pub struct Refusal {
    pub code: u16,
    /// With the name of the code, such as `NOT_FOUND - no queue 'q' in vhost '/'`.
    pub text: String,
}

impl Refusal {
    /// The text without the name of the code.
    pub fn explanation(&self) -> &str {
        self.text.split_once(" - ").map_or(&self.text, |(_, explanation)| explanation)
    }
}

/// A method that the broker sent, and the content that came with it.
#[derive(Clone, Debug)]
pub struct Answer {
    payload: Bytes,
    /// The properties as they are encoded.
    pub properties: Bytes,
    pub body: Bytes,
}

impl Answer {
    pub fn method(&self) -> Method<'_> {
        Method::decode(&self.payload).expect("the broker sends methods that can be read")
    }
}

/// An open connection with one open channel.
pub struct Loopback {
    shard: Arc<Shard>,
    connection: ConnectionKey,
    wakeup: Arc<Wakeup>,
    received: BytesMut,
    state: ConnectionState,
}

impl Loopback {
    /// Enters the vhost as this user, who need not log in; `None` if there is no such vhost.
    ///
    /// # Errors
    /// The channel is refused.
    pub async fn open(server: &Server, vhost: &str, user: &Arc<User>) -> Option<Result<Self, Refusal>> {
        let shard = server.directory.get(vhost)?;
        let info = ConnectionInfo {
            name: Name::from("<operator>"),
            socket: None,
            user: user.clone(),
            permissions: Arc::new(Permissions::none()), // `open` looks them up
            topic_permissions: None,
            client_properties: leveret_protocol::FieldTable::new(),
            capabilities: Capabilities { authentication_failure_close: true, ..Capabilities::default() },
            frame_max: 0,
            channel_max: 0,
            channel_quota: Quota::new(None),
            heartbeat_s: 0,
        };
        let wakeup = Arc::new(Wakeup::default());
        let connection = server.open(&shard, info, &wakeup);
        let state = ConnectionState::Running;
        let mut client = Self { shard, connection, wakeup, received: BytesMut::new(), state };
        Some(match client.receive().await {
            Ok(_open_ok) => client.call(channel::Open {}.into()).await.map(|_| client),
            Err(refusal) => Err(refusal),
        })
    }

    /// Sends a method that has an answer, and waits for it.
    ///
    /// # Errors
    /// The channel or connection is closed instead.
    pub async fn call(&mut self, method: Method<'_>) -> Result<Answer, Refusal> {
        self.send(method);
        self.receive().await
    }

    /// Sends a method that has no answer.
    pub fn send(&mut self, method: Method<'_>) {
        self.event(Event::Method { channel: CHANNEL, method });
    }

    fn event(&mut self, event: Event<'_>) {
        let connection = self.connection;
        let (_, woken) = self.shard.turn(Some(connection), |broker, now| broker.client(connection, event, now));
        if woken {
            self.wakeup.wake();
        }
    }

    /// Publishes as mandatory and waits for the confirm. Returns whether it was routed.
    ///
    /// # Errors
    /// The channel or connection is closed, or ([`NACKED`]) a queue refused the message.
    pub async fn publish(
        &mut self,
        exchange: &str,
        routing_key: &str,
        properties: &[u8],
        body: &[u8],
    ) -> Result<bool, Refusal> {
        self.call(confirm::Select { no_wait: false }.into()).await?;
        let properties = RawProperties::from_bytes(properties);
        let (mandatory, immediate, body) = (true, false, Body::Slice(body));
        let publish = Publish { exchange, routing_key, mandatory, immediate, properties, body };
        self.event(Event::Publish { channel: CHANNEL, publish });
        let mut routed = true;
        loop {
            let answer = self.receive().await?;
            match answer.method() {
                Method::BasicReturn(_) => routed = false,
                Method::BasicNack(_) => return Err(Refusal { code: NACKED, text: "rejected".to_owned() }),
                _ => return Ok(routed),
            }
        }
    }

    /// Gets one message; `None` if the queue has none.
    ///
    /// # Errors
    /// The channel or connection is closed.
    pub async fn get(&mut self, queue: &str, no_ack: bool) -> Result<Option<Answer>, Refusal> {
        let answer = self.call(basic::Get { queue, no_ack }.into()).await?;
        Ok(matches!(answer.method(), Method::BasicGetOk(_)).then_some(answer))
    }

    /// The next method, with its content.
    async fn receive(&mut self) -> Result<Answer, Refusal> {
        poll_fn(|context| {
            self.wakeup.register(context);
            loop {
                if let Some(answer) = self.take_answer() {
                    return Poll::Ready(answer);
                }
                if self.state.is_over() {
                    let text = "CONNECTION_FORCED - the vhost is gone".to_owned();
                    return Poll::Ready(Err(Refusal { code: 320, text }));
                }
                if !self.poll_broker() && !self.wakeup.take() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Fetches what the broker has for us; whether there was anything.
    fn poll_broker(&mut self) -> bool {
        const LIMIT: usize = 256 << 10;
        let (connection, mut output) = (self.connection, Output::default());
        let (poll, _) =
            self.shard.turn(Some(connection), |broker, now| broker.poll_transmit(connection, &mut output, LIMIT, now));
        self.state = poll.state;
        let any = !output.is_empty() || poll.more;
        output.append_to(&mut self.received);
        any
    }

    /// A method, and its content if it has one, once all of it is here.
    fn take_answer(&mut self) -> Option<Result<Answer, Refusal>> {
        let mut taken = 0;
        let mut next = || {
            let (frame, length) = split_frame(&self.received[taken..], 0).expect("our own frames").filter(|_| true)?;
            taken += length;
            Some((frame.kind, Bytes::copy_from_slice(frame.payload)))
        };
        let (_, payload) = next()?;
        let mut answer = Answer { payload, properties: Bytes::new(), body: Bytes::new() };
        if answer.method().has_content() {
            let (_, header) = next()?;
            let header = ContentHeader::decode(&header).expect("our own content header");
            answer.properties = Bytes::copy_from_slice(header.properties.as_bytes());
            let mut body = BytesMut::new();
            while (body.len() as u64) < header.body_size {
                let (kind, part) = next()?;
                debug_assert_eq!(kind, FrameKind::Body);
                body.extend_from_slice(&part);
            }
            answer.body = body.freeze();
        }
        self.received.advance(taken);
        let refusal = |code, text: &str| Some(Err(Refusal { code, text: text.to_owned() }));
        match answer.method() {
            Method::ChannelClose(close) => refusal(close.reply_code, close.reply_text),
            Method::ConnectionClose(close) => refusal(close.reply_code, close.reply_text),
            _ => Some(Ok(answer)),
        }
    }
}

/// [`Refusal::code`] of a message that a queue rejected: no code of AMQP.
pub const NACKED: u16 = 0;

impl Drop for Loopback {
    fn drop(&mut self) {
        let connection = self.connection;
        self.shard.turn(None, |broker, now| broker.connection_lost(connection, now));
        self.shard.remove_wakeup(connection);
    }
}
