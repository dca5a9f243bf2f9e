//! What the tests of this binary stand on: connections, limits in time, and a seeded source of choices.

use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher as _;
use std::net::SocketAddr;
use std::time::Duration;

use futures_lite::{StreamExt as _, future};
use lapin::message::Delivery;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::publisher_confirm::Confirmation;
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer, Error, ErrorKind};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// How long anything may take before the test fails: a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// # Panics
/// It does not come in time.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: nothing within {} s", PATIENCE.as_secs()),
    }
}

pub async fn connect(address: SocketAddr) -> Connection {
    soon("connect", try_connect(address)).await.expect("the broker takes the connection")
}

pub async fn try_connect(address: SocketAddr) -> lapin::Result<Connection> {
    let properties = ConnectionProperties::default()
        .with_executor(tokio_executor_trait::Tokio::current())
        .with_reactor(tokio_reactor_trait::Tokio::current());
    Connection::connect(&format!("amqp://guest:guest@{address}/%2f"), properties).await
}

pub async fn open_channel(connection: &Connection) -> Channel {
    soon("channel.open", connection.create_channel()).await.expect("the connection is open")
}

/// A channel with publisher confirms.
pub async fn open_confirming(connection: &Connection) -> Channel {
    let channel = open_channel(connection).await;
    soon("confirm.select", channel.confirm_select(Default::default())).await.expect("the channel is open");
    channel
}

pub fn persistent() -> BasicProperties {
    BasicProperties::default().with_delivery_mode(2)
}

/// Publishes to the queue and waits for the ack.
pub async fn publish_confirmed(channel: &Channel, queue: &str, body: &[u8]) {
    let options = BasicPublishOptions::default();
    let confirm = channel.basic_publish("", queue, options, body, persistent()).await.expect("the channel is open");
    let confirm = soon("confirm", confirm).await.expect("the channel stays open");
    assert_eq!(confirm, Confirmation::Ack(None), "publish to {queue}");
}

/// Publishes to the queue without waiting for anything.
pub async fn publish(channel: &Channel, queue: &str, body: &[u8]) {
    let options = BasicPublishOptions::default();
    channel.basic_publish("", queue, options, body, persistent()).await.expect("the channel is open");
}

/// Ready messages and consumers of a queue.
pub async fn counts(channel: &Channel, queue: &str) -> (u32, u32) {
    let options = QueueDeclareOptions { passive: true, ..Default::default() };
    let queue = soon("queue.declare-ok", channel.queue_declare(queue, options, FieldTable::default())).await;
    let queue = queue.expect("the queue is there");
    (queue.message_count(), queue.consumer_count())
}

/// Waits until the queue has so many ready messages and consumers.
pub async fn until_counts(channel: &Channel, queue: &str, wanted: (u32, u32)) {
    let reached = async {
        while counts(channel, queue).await != wanted {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    soon(&format!("{queue} with {wanted:?} messages and consumers"), reached).await;
}

/// Consumes with acknowledgements.
pub async fn consume(channel: &Channel, queue: &str) -> Consumer {
    let options = BasicConsumeOptions::default();
    let consumer = channel.basic_consume(queue, "", options, FieldTable::default());
    soon("consume-ok", consumer).await.expect("the queue is there")
}

pub async fn next(consumer: &mut Consumer) -> Delivery {
    soon("a delivery", consumer.next()).await.expect("the consumer lives").expect("the channel is open")
}

/// The bodies of the next deliveries, and whether they are redelivered.
pub async fn next_texts(consumer: &mut Consumer, count: usize) -> Vec<(String, bool)> {
    let mut texts = Vec::new();
    for _ in 0..count {
        let delivery = next(consumer).await;
        texts.push((String::from_utf8_lossy(&delivery.data).into_owned(), delivery.redelivered));
    }
    texts
}

/// Checks that nothing is on its way to the consumer, by a round trip on its own channel.
pub async fn expect_nothing(channel: &Channel, consumer: &mut Consumer) {
    let queue = consumer.queue();
    counts(channel, queue.as_str()).await;
    let delivery = future::poll_once(consumer.next()).await;
    assert!(delivery.is_none(), "unexpected {delivery:?}");
}

/// A way to a broker that can be cut like a cable.
pub struct Relay {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Relay {
    pub async fn to(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let task = tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.expect("a client");
            let mut broker = TcpStream::connect(broker).await.expect("the broker listens");
            let _ = tokio::io::copy_bidirectional(&mut client, &mut broker).await;
        });
        Self { address, task }
    }

    /// Both ends lose their connection, without a word.
    pub fn cut(self) {
        self.task.abort();
    }
}

pub fn table<const N: usize>(fields: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in fields {
        table.insert(name.into(), value);
    }
    table
}

pub fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

/// Code and text of what the broker said; the error itself if it was none of the broker's.
pub fn said(error: &Error) -> (u16, String) {
    match error.kind() {
        ErrorKind::ProtocolError(error) => (error.get_id(), error.get_message().to_string()),
        _ => (0, error.to_string()),
    }
}

/// The seed in that variable, or a fresh one.
pub fn seed(variable: &str) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text}: no number")),
        // The standard library's only source of randomness.
        Err(_) => RandomState::new().hash_one(()),
    }
}

/// SplitMix64: the same seed, the same choices.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of its own for a task, so that tasks do not depend on each other's timing.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }
}
