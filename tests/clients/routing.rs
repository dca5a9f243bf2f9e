//! Exchanges, remote procedure calls, and consumers that lose their queue.

use std::collections::HashMap;

use futures_lite::StreamExt as _;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::publisher_confirm::Confirmation;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, ExchangeKind};

use super::harness::{connect, consume, expect_nothing, next, open_channel, open_confirming, soon, table, text};
use crate::broker::shared;

async fn declare_exchange(channel: &Channel, name: &str, kind: ExchangeKind) {
    let options = ExchangeDeclareOptions { auto_delete: true, ..Default::default() };
    let declared = channel.exchange_declare(name, kind, options, FieldTable::default());
    soon("declare-ok", declared).await.expect("declared");
}

/// A queue of the channel's connection, with a name from the broker.
async fn own_queue(channel: &Channel) -> String {
    let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
    let queue = soon("declare-ok", channel.queue_declare("", options, FieldTable::default())).await;
    queue.expect("declared").name().to_string()
}

async fn bind(channel: &Channel, queue: &str, exchange: &str, key: &str, arguments: FieldTable) {
    let bound = channel.queue_bind(queue, exchange, key, QueueBindOptions::default(), arguments);
    soon("bind-ok", bound).await.expect("bound");
}

async fn publish(channel: &Channel, exchange: &str, key: &str, body: &str, properties: BasicProperties) {
    let options = BasicPublishOptions::default();
    let confirm = channel.basic_publish(exchange, key, options, body.as_bytes(), properties).await;
    let confirmation = soon("a confirm", confirm.expect("the channel is open")).await;
    assert_eq!(confirmation.expect("the channel stays open"), Confirmation::Ack(None));
}

/// What is in a queue of this connection, in order.
async fn bodies(channel: &Channel, queue: &str) -> Vec<String> {
    let mut found = Vec::new();
    let no_ack = lapin::options::BasicGetOptions { no_ack: true };
    while let Some(message) = soon("get-ok", channel.basic_get(queue, no_ack)).await.expect("the queue is there") {
        found.push(String::from_utf8_lossy(&message.data).into_owned());
    }
    found
}

/// §7: a copy for every queue, whatever the keys.
#[tokio::test]
async fn fanout_gives_every_queue_a_copy() {
    let connection = connect(shared()).await;
    let channel = open_confirming(&connection).await;
    declare_exchange(&channel, "routing.fanout", ExchangeKind::Fanout).await;
    let mut queues = Vec::new();
    for key in ["", "some", "other"] {
        let queue = own_queue(&channel).await;
        bind(&channel, &queue, "routing.fanout", key, FieldTable::default()).await;
        queues.push(queue);
    }
    let unbound = own_queue(&channel).await;
    for (key, body) in [("some", "0"), ("none", "1")] {
        publish(&channel, "routing.fanout", key, body, BasicProperties::default()).await;
    }
    for queue in &queues {
        assert_eq!(bodies(&channel, queue).await, ["0", "1"]);
    }
    assert!(bodies(&channel, &unbound).await.is_empty());
}

/// §7: words and wildcards, through a second exchange too; a queue gets one copy, however many bindings match.
#[tokio::test]
async fn topics_match_words() {
    let connection = connect(shared()).await;
    let channel = open_confirming(&connection).await;
    declare_exchange(&channel, "routing.outer", ExchangeKind::Topic).await;
    declare_exchange(&channel, "routing.inner", ExchangeKind::Topic).await;
    let (star, hash, both, inner) =
        (own_queue(&channel).await, own_queue(&channel).await, own_queue(&channel).await, own_queue(&channel).await);
    for (queue, exchange, key) in [
        (&star, "routing.outer", "stock.*.usd"),
        (&hash, "routing.outer", "stock.#"),
        (&both, "routing.outer", "#"),
        (&both, "routing.outer", "*.*.usd"),
        (&inner, "routing.inner", "#.eur"),
    ] {
        bind(&channel, queue, exchange, key, FieldTable::default()).await;
    }
    let (options, none) = (ExchangeBindOptions::default(), FieldTable::default());
    channel.exchange_bind("routing.inner", "routing.outer", "stock.#", options, none).await.expect("bind-ok");
    for key in ["stock.nyse.usd", "stock", "stock.xetra.dax.eur", "bond.nyse.usd", "bond.eur"] {
        publish(&channel, "routing.outer", key, key, BasicProperties::default()).await;
    }
    assert_eq!(bodies(&channel, &star).await, ["stock.nyse.usd"]);
    assert_eq!(bodies(&channel, &hash).await, ["stock.nyse.usd", "stock", "stock.xetra.dax.eur"]);
    assert_eq!(
        bodies(&channel, &both).await,
        ["stock.nyse.usd", "stock", "stock.xetra.dax.eur", "bond.nyse.usd", "bond.eur"]
    );
    assert_eq!(bodies(&channel, &inner).await, ["stock.xetra.dax.eur"]);
}

/// §7: all or any of the headers in the binding.
#[tokio::test]
async fn headers_match_by_value() {
    let connection = connect(shared()).await;
    let channel = open_confirming(&connection).await;
    declare_exchange(&channel, "routing.headers", ExchangeKind::Headers).await;
    let (all, any) = (own_queue(&channel).await, own_queue(&channel).await);
    for (queue, mode) in [(&all, "all"), (&any, "any")] {
        let arguments = table([("x-match", text(mode)), ("format", text("pdf")), ("pages", AMQPValue::LongInt(3))]);
        bind(&channel, queue, "routing.headers", "", arguments).await;
    }
    for (body, headers) in [
        ("both", table([("format", text("pdf")), ("pages", AMQPValue::LongLongInt(3))])),
        ("one", table([("format", text("pdf")), ("pages", AMQPValue::LongInt(4))])),
        ("none", table([("format", text("zip"))])),
    ] {
        publish(&channel, "routing.headers", "key", body, BasicProperties::default().with_headers(headers)).await;
    }
    assert_eq!(bodies(&channel, &all).await, ["both"]);
    assert_eq!(bodies(&channel, &any).await, ["both", "one"]);
}

/// §13.1: replies go straight to the channel that asked, from another connection.
#[tokio::test]
async fn remote_procedure_calls_over_direct_reply_to() {
    const REPLY_TO: &str = "amq.rabbitmq.reply-to";
    const CALLS: u64 = 100;
    let (asking, answering) = (connect(shared()).await, connect(shared()).await);
    let server = open_channel(&answering).await;
    let requests = {
        let options = QueueDeclareOptions { auto_delete: true, ..Default::default() };
        server.queue_declare("routing.rpc", options, FieldTable::default()).await.expect("declared");
        consume(&server, "routing.rpc").await
    };
    let serving = tokio::spawn(async move {
        let mut requests = requests.take(CALLS as usize);
        while let Some(request) = requests.next().await {
            let request = request.expect("the channel is open");
            let number: u64 = String::from_utf8_lossy(&request.data).parse().expect("a number");
            let reply_to = request.properties.reply_to().clone().expect("somebody asks");
            assert_ne!(reply_to.as_str(), REPLY_TO, "the broker names the requester");
            let properties = BasicProperties::default()
                .with_correlation_id(request.properties.correlation_id().clone().expect("the requester's"));
            let body = (number * number).to_string();
            let options = BasicPublishOptions::default();
            server.basic_publish("", reply_to.as_str(), options, body.as_bytes(), properties).await.expect("sent");
            server.basic_ack(request.delivery_tag, Default::default()).await.expect("sent");
        }
        (server, answering)
    });
    let channel = open_channel(&asking).await;
    let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
    let mut replies = channel.basic_consume(REPLY_TO, "", options, FieldTable::default()).await.expect("consume-ok");
    let mut expected = HashMap::new();
    for number in 0..CALLS {
        let id = format!("call {number}");
        let properties =
            BasicProperties::default().with_reply_to(REPLY_TO.into()).with_correlation_id(id.as_str().into());
        let (options, body) = (BasicPublishOptions::default(), number.to_string());
        channel.basic_publish("", "routing.rpc", options, body.as_bytes(), properties).await.expect("sent");
        expected.insert(id, (number * number).to_string());
    }
    while !expected.is_empty() {
        let reply = next(&mut replies).await;
        let id = reply.properties.correlation_id().as_ref().expect("ours").to_string();
        assert_eq!(expected.remove(&id).map(String::into_bytes), Some(reply.data), "{id}");
    }
    soon("the server's end", serving).await.expect("it did not panic");
}

/// §13.2: consumers hear of it when their queue is deleted, on the deleting channel too.
#[tokio::test]
async fn consumers_are_told_that_their_queue_is_gone() {
    let (one, other) = (connect(shared()).await, connect(shared()).await);
    let (channel, deleting) = (open_confirming(&one).await, open_channel(&other).await);
    let options = QueueDeclareOptions::default();
    channel.queue_declare("routing.gone", options, FieldTable::default()).await.expect("declared");
    let (mut first, mut second) = (consume(&channel, "routing.gone").await, consume(&deleting, "routing.gone").await);
    let deleted = deleting.queue_delete("routing.gone", QueueDeleteOptions::default());
    assert_eq!(soon("delete-ok", deleted).await.expect("deleted"), 0);
    assert!(soon("the end of the first", first.next()).await.is_none());
    assert!(soon("the end of the second", second.next()).await.is_none());
    // Both channels go on.
    for channel in [&channel, &deleting] {
        let queue = own_queue(channel).await;
        let mut consumer = consume(channel, &queue).await;
        expect_nothing(channel, &mut consumer).await;
    }
}
