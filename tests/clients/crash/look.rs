//! What is in a broker after a restart: topology, and every message of every queue.

use std::net::SocketAddr;

use futures_lite::{StreamExt as _, future};
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ExchangeBindOptions, ExchangeDeclareOptions, QueueDeclareOptions,
};
use lapin::publisher_confirm::Confirmation;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, Consumer, ExchangeKind};

use super::churn::EXCHANGE as CHURN;
use super::ledger::{Chain, Id, Place, Seen, Sight};
use super::load::{Scene, body, id_of, properties};
use crate::clients::harness::{connect, next, open_channel, open_confirming, publish_confirmed, soon, table, text};

/// A queue that nobody looks into: publishes to it are there for their confirms. A message without a route is
/// confirmed at once, and proves nothing.
pub const PROOFS: &str = "proofs";

/// How long a message stays in `ttl`.
const TTL_MS: i32 = 120;

const EXCHANGES: [(&str, ExchangeKind); 5] = [
    ("fan", ExchangeKind::Fanout),
    ("topics", ExchangeKind::Topic),
    ("inner", ExchangeKind::Direct),
    ("letters", ExchangeKind::Direct),
    (CHURN, ExchangeKind::Direct),
];

fn arguments(place: Place) -> FieldTable {
    match (place.chain, place.stage) {
        (Chain::Work, 0) => {
            table([("x-dead-letter-exchange", text("letters")), ("x-dead-letter-routing-key", text("rejected"))])
        }
        (Chain::Ttl, 0) => table([
            ("x-dead-letter-exchange", text("letters")),
            ("x-dead-letter-routing-key", text("expired")),
            ("x-message-ttl", AMQPValue::LongInt(TTL_MS)),
        ]),
        (Chain::Quorum, 0) => table([("x-queue-type", text("quorum")), ("x-delivery-limit", AMQPValue::LongInt(-1))]),
        (Chain::Lanes, 0) => table([("x-max-priority", AMQPValue::LongInt(2))]),
        _ => FieldTable::default(),
    }
}

/// Declares everything; with `passive` it must be there already.
pub async fn declare(connection: &Connection, passive: bool) {
    let channel = open_channel(connection).await;
    for (name, kind) in EXCHANGES {
        let options = ExchangeDeclareOptions { durable: true, passive, ..Default::default() };
        channel.exchange_declare(name, kind, options, FieldTable::default()).await.expect("the exchange is there");
    }
    let options = ExchangeDeclareOptions { durable: true, passive, ..Default::default() };
    let kind = ExchangeKind::Custom("x-delayed-message".to_owned());
    let arguments = table([("x-delayed-type", text("fanout"))]);
    channel.exchange_declare("later", kind, options, arguments).await.expect("the exchange is there");
    for place in Place::all() {
        let options = QueueDeclareOptions { durable: true, passive, ..Default::default() };
        channel.queue_declare(place.queue(), options, self::arguments(place)).await.expect("the queue is there");
    }
    let options = QueueDeclareOptions { durable: true, passive, ..Default::default() };
    channel.queue_declare(PROOFS, options, FieldTable::default()).await.expect("the queue is there");
    if passive {
        return;
    }
    let options = ExchangeBindOptions::default();
    channel.exchange_bind("inner", "topics", "work.#", options, FieldTable::default()).await.expect("bound");
    for (queue, exchange, key) in [
        ("fan.a", "fan", ""),
        ("fan.b", "fan", ""),
        ("work", "inner", "work.to.do"),
        ("dead", "letters", "rejected"),
        ("expired", "letters", "expired"),
        ("delayed", "later", ""),
    ] {
        let options = Default::default();
        channel.queue_bind(queue, exchange, key, options, FieldTable::default()).await.expect("bound");
    }
    prove(connection).await;
}

/// Everything that was done before is on disk when this returns: commits are in order.
pub async fn prove(connection: &Connection) {
    let channel = open_confirming(connection).await;
    publish_confirmed(&channel, PROOFS, b"").await;
    soon("channel.close", channel.close(200, "proved")).await.expect("closed");
}

/// Publishes one message along each route. They are confirmed, and nobody gets them before the next look.
pub async fn probe(scene: &Scene, address: SocketAddr) {
    let connection = connect(address).await;
    let channel = open_confirming(&connection).await;
    let publisher = scene.new_publisher();
    for (counter, (exchange, key, chains)) in [
        ("", "plain", &[Chain::Plain][..]),
        ("fan", "", &[Chain::FanA, Chain::FanB]),
        ("topics", "work.to.do", &[Chain::Work]),
        ("", "ttl", &[Chain::Ttl]),
        ("", "lanes", &[Chain::Lanes]),
        ("", "quorum", &[Chain::Quorum]),
    ]
    .into_iter()
    .enumerate()
    {
        let id = Id::new(publisher, counter as u32);
        let copies: Vec<_> = chains.iter().map(|&chain| (chain, id)).collect();
        scene.ledger().publishing(&copies, true);
        let mandatory = BasicPublishOptions { mandatory: true, ..Default::default() };
        let properties = properties(id, true);
        let confirm = channel.basic_publish(exchange, key, mandatory, &body(id, false), properties).await;
        let confirmation = soon("confirm", confirm.expect("it is sent")).await.expect("it comes");
        match confirmation {
            Confirmation::Ack(None) => scene.ledger().confirmed(&copies),
            other => scene.ledger().violation(format!("the route of {chains:?} is broken: {other:?}")),
        }
    }
    connection.close(200, "done").await.expect("closed");
}

/// Everything in every queue. Gives it back, unless it is to be `removed` for good.
pub async fn look(scene: &Scene, address: SocketAddr, remove: bool) -> Sight {
    let connection = connect(address).await;
    let mut channels = Vec::new();
    let mut sight = Vec::new();
    // In that order: what is taken from the first queue of a chain cannot turn up in the second.
    for place in Place::all() {
        let channel = open_channel(&connection).await;
        let options = BasicConsumeOptions { no_ack: remove, ..Default::default() };
        let consumer = channel.basic_consume(place.queue(), "", options, FieldTable::default()).await;
        let mut consumer = consumer.expect("the queue is there");
        let mut found = Vec::new();
        if place.chain == Chain::Delayed {
            found = soon("delayed messages", until_due(scene, &connection, &mut consumer)).await;
        }
        found.extend(soon("all messages of a queue", drain(scene, place, &channel, &mut consumer)).await);
        sight.push((place, found));
        channels.push((channel, consumer));
    }
    if remove {
        prove(&connection).await;
    }
    // What is not removed is back in its queue when this returns.
    soon("close", connection.close(200, "seen")).await.expect("closed");
    sight
}

/// Waits until everything that is held back has come: what is published last comes last.
async fn until_due(scene: &Scene, connection: &Connection, consumer: &mut Consumer) -> Vec<Seen> {
    let last = Id::new(scene.new_publisher(), 0);
    let copies = [(Chain::Delayed, last)];
    scene.ledger().publishing(&copies, true);
    let channel = open_confirming(connection).await;
    let options = BasicPublishOptions::default();
    let confirm = channel.basic_publish("later", "", options, &body(last, false), properties(last, true)).await;
    let confirmation = confirm.expect("it is sent").await.expect("it is confirmed");
    assert_eq!(confirmation, Confirmation::Ack(None));
    channel.close(200, "done").await.expect("closed");
    scene.ledger().confirmed(&copies);
    let mut found = Vec::new();
    while found.last().is_none_or(|seen: &Seen| seen.id != last) {
        let delivery = next(consumer).await;
        let id = id_of(&delivery.data).expect("a body as it was published");
        found.push(Seen { id, redelivered: delivery.redelivered });
    }
    found
}

async fn drain(scene: &Scene, place: Place, channel: &Channel, consumer: &mut Consumer) -> Vec<Seen> {
    let mut found = Vec::new();
    loop {
        let passive = QueueDeclareOptions { passive: true, ..Default::default() };
        let queue = channel.queue_declare(place.queue(), passive, FieldTable::default()).await.expect("it is there");
        // What was handed out before the answer has come before it.
        while let Some(delivery) = future::poll_once(consumer.next()).await {
            let delivery = delivery.expect("the consumer lives").expect("the channel is open");
            match id_of(&delivery.data) {
                Some(id) => found.push(Seen { id, redelivered: delivery.redelivered }),
                None => scene.ledger().violation(format!("a damaged body in {}", place.queue())),
            }
        }
        if queue.message_count() == 0 {
            return found;
        }
    }
}
