//! What the patterns stand on: connections, checks with messages, time limits, clean-up.

use std::cell::RefCell;
use std::fmt::{self, Debug, Display};
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::time::Duration;

use futures_lite::StreamExt;
use futures_lite::future::poll_once;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::uri::AMQPUri;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer, ErrorKind, Queue};

const PATTERN_LIMIT: Duration = Duration::from_secs(40);
const WAIT_LIMIT: Duration = Duration::from_secs(10);

pub static URL: LazyLock<AMQPUri> = LazyLock::new(|| {
    let url = std::env::var("AMQP_URL");
    let url = url.as_deref().unwrap_or("amqp://guest:guest@127.0.0.1:5672/");
    let mut parsed: AMQPUri = url.parse().expect("AMQP_URL is an AMQP URL");
    if parsed.vhost.is_empty() {
        parsed.vhost = "/".into();
    }
    parsed
});

static RUN: LazyLock<String> = LazyLock::new(|| {
    // The standard library's only source of randomness.
    format!("interop.lapin.{:016x}", RandomState::new().hash_one(()))
});

/// What was expected and what came.
#[derive(Debug)]
pub struct Failure(pub String);

pub type Checked<T = ()> = Result<T, Failure>;

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Failure {
    const NOT_APPLICABLE: &str = "n/a ";

    /// The library or the broker cannot be asked this.
    pub fn not_applicable(why: &str) -> Self {
        Self(format!("{}{why}", Self::NOT_APPLICABLE))
    }

    /// Why it could not be asked, if that is all.
    pub fn reason(&self) -> Option<&str> {
        self.0.strip_prefix(Self::NOT_APPLICABLE)
    }
}

impl From<lapin::Error> for Failure {
    fn from(error: lapin::Error) -> Self {
        Self(format!("expected no error, got {error}"))
    }
}

pub fn equal<A: Debug + PartialEq<B>, B: Debug>(what: &str, expected: A, got: B) -> Checked {
    if expected == got {
        return Ok(());
    }
    Err(Failure(format!("{what}: expected {expected:?}, got {got:?}")))
}

/// Bodies as text, for readable failures.
pub fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).into_owned()
}

pub async fn in_time(step: impl Future<Output = Checked>) -> Checked {
    let out_of_time = |_| Failure(format!("expected an end within {PATTERN_LIMIT:?}, got none"));
    tokio::time::timeout(PATTERN_LIMIT, step).await.map_err(out_of_time)?
}

pub async fn arrives<T>(what: &str, coming: impl Future<Output = T>) -> Checked<T> {
    let nothing = |_| Failure(format!("expected {what} within {WAIT_LIMIT:?}, got nothing"));
    tokio::time::timeout(WAIT_LIMIT, coming).await.map_err(nothing)
}

pub async fn connect() -> Checked<Connection> {
    Ok(Connection::connect_uri(URL.clone(), ConnectionProperties::default()).await?)
}

pub async fn close(connection: Connection) -> Checked {
    match connection.close(200, "OK".into()).await {
        // A channel that was dropped a moment ago still closes by itself, and lapin will not close it twice: a race
        // within the library. The connection closes as it is dropped.
        Err(error) if error.to_string().contains("invalid channel state: Closing") => Ok(()),
        result => Ok(result?),
    }
}

pub fn vhost() -> &'static str {
    &URL.vhost
}

pub async fn declare_durable(channel: &Channel, queue: &str) -> Checked<Queue> {
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    Ok(channel.queue_declare(queue.into(), options, FieldTable::default()).await?)
}

/// Gives the name that the server chose.
pub async fn declare_exclusive(channel: &Channel) -> Checked<String> {
    let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
    let declared = channel.queue_declare("".into(), options, FieldTable::default()).await?;
    Ok(declared.name().to_string())
}

pub async fn look(channel: &Channel, queue: &str) -> Result<Queue, lapin::Error> {
    let options = QueueDeclareOptions { passive: true, ..Default::default() };
    channel.queue_declare(queue.into(), options, FieldTable::default()).await
}

pub async fn bind(channel: &Channel, queue: &str, exchange: &str, key: &str) -> Checked {
    let options = QueueBindOptions::default();
    channel.queue_bind(queue.into(), exchange.into(), key.into(), options, FieldTable::default()).await?;
    Ok(())
}

/// Names that no other run uses, and what has to be deleted at the end.
pub struct Names {
    prefix: String,
    queues: RefCell<Vec<String>>,
    exchanges: RefCell<Vec<String>>,
}

impl Names {
    pub fn new(pattern: &str) -> Self {
        Self { prefix: format!("{}.{pattern}", *RUN), queues: RefCell::default(), exchanges: RefCell::default() }
    }

    fn name(&self, list: &RefCell<Vec<String>>, role: &str) -> String {
        let name = format!("{}.{role}", self.prefix);
        list.borrow_mut().push(name.clone());
        name
    }

    pub fn queue(&self, role: &str) -> String {
        self.name(&self.queues, role)
    }

    pub fn exchange(&self, role: &str) -> String {
        self.name(&self.exchanges, role)
    }

    pub async fn delete_all(&self) -> Checked {
        let connection = connect().await?;
        let channel = connection.create_channel().await?;
        for queue in self.queues.take() {
            channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
        }
        for exchange in self.exchanges.take() {
            channel.exchange_delete(exchange.into(), ExchangeDeleteOptions::default()).await?;
        }
        close(connection).await
    }
}

/// The deliveries of one consumer, in order of arrival.
pub struct Inbox {
    pub channel: Channel,
    consumer: Consumer,
}

impl Inbox {
    pub async fn acking(channel: &Channel, queue: &str) -> Checked<Self> {
        Self::consume(channel, queue, BasicConsumeOptions::default()).await
    }

    pub async fn auto_ack(channel: &Channel, queue: &str) -> Checked<Self> {
        Self::consume(channel, queue, BasicConsumeOptions { no_ack: true, ..Default::default() }).await
    }

    async fn consume(channel: &Channel, queue: &str, options: BasicConsumeOptions) -> Checked<Self> {
        let consumer = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await?;
        Ok(Self { channel: channel.clone(), consumer })
    }

    pub fn tag(&self) -> lapin::types::ShortString {
        self.consumer.tag()
    }

    pub async fn take(&mut self) -> Checked<Delivery> {
        match arrives("a delivery", self.consumer.next()).await? {
            Some(delivery) => Ok(delivery?),
            None => Err(Failure("expected a delivery, got the consumer's end".into())),
        }
    }

    pub async fn is_empty(&mut self) -> bool {
        poll_once(self.consumer.next()).await.is_none()
    }

    pub async fn next(&mut self) -> Option<Result<Delivery, lapin::Error>> {
        self.consumer.next().await
    }

    /// The error that ended the channel.
    pub async fn error(&mut self) -> Checked<lapin::Error> {
        match arrives("the channel's error", self.consumer.next()).await? {
            Some(Err(error)) => Ok(error),
            other => Err(Failure(format!("expected the channel's error, got {other:?}"))),
        }
    }

    /// lapin ends the stream when the server cancels the consumer.
    pub async fn ends(&mut self) -> Checked {
        match arrives("the consumer's end", self.consumer.next()).await? {
            None => Ok(()),
            Some(other) => Err(Failure(format!("expected the consumer's end, got {other:?}"))),
        }
    }
}

pub async fn ack(delivery: &Delivery) -> Checked {
    equal("ack was sent", true, delivery.ack(BasicAckOptions::default()).await?)
}

pub async fn prefetch(channel: &Channel, count: u16) -> Checked {
    Ok(channel.basic_qos(count, BasicQosOptions::default()).await?)
}

pub async fn publish(
    channel: &Channel,
    exchange: &str,
    routing_key: &str,
    body: &[u8],
    properties: BasicProperties,
) -> Checked {
    let options = BasicPublishOptions::default();
    channel.basic_publish(exchange.into(), routing_key.into(), options, body, properties).await?;
    Ok(())
}

/// Sends to a queue and returns once the broker has it, so that counts are exact afterwards.
pub async fn publish_confirmed(
    connection: &Connection,
    queue: &str,
    bodies: &[&str],
    properties: BasicProperties,
) -> Checked {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    for body in bodies {
        let confirm =
            channel.basic_publish("".into(), queue.into(), options, body.as_bytes(), properties.clone()).await?.await?;
        equal("confirm", Confirmation::Ack(None), confirm)?;
    }
    Ok(channel.close(200, "OK".into()).await?)
}

pub async fn ready_count(connection: &Connection, queue: &str) -> Checked<u32> {
    let channel = connection.create_channel().await?;
    let declared = look(&channel, queue).await?;
    channel.close(200, "OK".into()).await?;
    Ok(declared.message_count())
}

/// The step must end with the broker's error of this code and text.
pub fn refused<T>(code: u16, reason: &str, outcome: Result<T, lapin::Error>) -> Checked {
    match outcome {
        Ok(_) => Err(Failure(format!("expected {code} {reason}, got no error"))),
        Err(error) => match error.kind() {
            ErrorKind::ProtocolError(amqp) => {
                equal("refusal", (code, reason), (amqp.get_id(), amqp.get_message().as_str()))
            }
            _ => Err(Failure(format!("expected {code} {reason}, got {error}"))),
        },
    }
}

/// For methods without a reply: their error ends the channel's consumer.
pub async fn refused_silently(
    connection: &Connection,
    code: u16,
    reason: &str,
    step: impl AsyncFnOnce(&Channel) -> Result<(), lapin::Error>,
) -> Checked {
    let channel = connection.create_channel().await?;
    let queue = declare_exclusive(&channel).await?;
    let mut inbox = Inbox::auto_ack(&channel, &queue).await?;
    step(&channel).await?;
    match arrives("a channel error", inbox.consumer.next()).await? {
        Some(outcome) => refused(code, reason, outcome),
        None => Err(Failure(format!("expected {code} {reason}, got the consumer's end"))),
    }
}
