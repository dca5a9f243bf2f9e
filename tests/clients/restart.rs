//! What is there after a broker was stopped and started again, or killed, and what is not.

use std::path::Path;
use std::time::{Duration, Instant};

use futures_lite::StreamExt as _;
use lapin::options::{
    BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, BasicRejectOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions,
};
use lapin::publisher_confirm::Confirmation;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ExchangeKind};

use super::harness::{
    connect, consume, counts, next, open_channel, open_confirming, persistent, publish_confirmed, said, soon, table,
    text,
};
use crate::broker::{Broker, is_ours};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

fn start(folder: &Path, more: &[&str]) -> Broker {
    let folder = folder.to_str().expect("our own name");
    Broker::start(["--data-dir", folder].iter().chain(more))
}

/// SIGTERM, and a clean end.
fn stop(broker: Broker) {
    let exit = broker.stop("TERM");
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);
}

async fn declare(channel: &Channel, queue: &str, options: QueueDeclareOptions, arguments: FieldTable) {
    soon("declare-ok", channel.queue_declare(queue, options, arguments)).await.expect("declared");
}

fn durable() -> QueueDeclareOptions {
    QueueDeclareOptions { durable: true, ..Default::default() }
}

/// Publishes with confirm; true if it was routed.
async fn publish(channel: &Channel, exchange: &str, key: &str, body: &str, properties: BasicProperties) -> bool {
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let confirm = channel.basic_publish(exchange, key, options, body.as_bytes(), properties).await;
    match soon("a confirm", confirm.expect("the channel is open")).await.expect("the channel stays open") {
        Confirmation::Ack(None) => true,
        Confirmation::Ack(Some(_)) => false,
        other => panic!("expected an ack, got {other:?}"),
    }
}

async fn is_there(connection: &Connection, queue: &str) -> bool {
    let channel = open_channel(connection).await;
    let options = QueueDeclareOptions { passive: true, ..Default::default() };
    match soon("an answer", channel.queue_declare(queue, options, FieldTable::default())).await {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(said(&error).0, 404, "{error}");
            false
        }
    }
}

/// Everything in the queue, with the redelivered flag. It stays unacked.
async fn contents(channel: &Channel, queue: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    while let Some(message) = soon("get-ok", channel.basic_get(queue, BasicGetOptions::default())).await.expect("open")
    {
        found.push((String::from_utf8_lossy(&message.data).into_owned(), message.redelivered));
    }
    found
}

/// §16: what survives a clean stop, and the flags of what does.
#[tokio::test]
async fn a_clean_stop_keeps_what_is_durable() {
    if !is_ours() {
        return;
    }
    let folder = folder();
    let broker = start(folder.path(), &[]);
    let connection = connect(broker.address).await;
    let channel = open_confirming(&connection).await;
    let none = FieldTable::default;
    let exchange = |durable| ExchangeDeclareOptions { durable, ..Default::default() };
    channel.exchange_declare("kept", ExchangeKind::Topic, exchange(true), none()).await.expect("declared");
    channel.exchange_declare("lost", ExchangeKind::Fanout, exchange(false), none()).await.expect("declared");
    declare(&channel, "plain", durable(), none()).await;
    declare(&channel, "lanes", durable(), table([("x-max-priority", AMQPValue::LongInt(5))])).await;
    declare(&channel, "auto", QueueDeclareOptions { auto_delete: true, ..durable() }, none()).await;
    declare(&channel, "transient", QueueDeclareOptions::default(), none()).await;
    declare(&channel, "exclusive", QueueDeclareOptions { exclusive: true, ..durable() }, none()).await;
    let bind = QueueBindOptions::default;
    channel.queue_bind("plain", "kept", "a.*", bind(), none()).await.expect("bound");
    channel.queue_bind("plain", "lost", "", bind(), none()).await.expect("bound");
    channel.queue_bind("transient", "kept", "b.*", bind(), none()).await.expect("bound");

    for body in ["0", "1", "2", "3", "4"] {
        publish_confirmed(&channel, "plain", body.as_bytes()).await;
        publish(&channel, "", "plain", "transient", BasicProperties::default()).await;
    }
    for (body, priority) in [("low", 1), ("high", 5), ("middle", 3), ("high too", 5)] {
        publish(&channel, "", "lanes", body, persistent().with_priority(priority)).await;
    }
    let headers =
        table([("name", text("value")), ("number", AMQPValue::LongLongInt(-7)), ("yes", AMQPValue::Boolean(true))]);
    let properties = persistent()
        .with_headers(headers)
        .with_content_type("text/plain".into())
        .with_message_id("id".into())
        .with_timestamp(1_700_000_000)
        .with_expiration("3600000".into());
    publish(&channel, "kept", "a.b", "with properties", properties.clone()).await;
    // Three are delivered: one is acked, one returned, one held.
    let holding = open_channel(&connection).await;
    let got = async |channel: &Channel| {
        let message = channel.basic_get("plain", BasicGetOptions::default()).await.expect("open").expect("a message");
        message.delivery
    };
    got(&holding).await.ack(Default::default()).await.expect("sent");
    got(&holding).await.ack(Default::default()).await.expect("sent");
    let returned = got(&holding).await;
    assert_eq!(returned.data, b"1");
    returned.reject(BasicRejectOptions { requeue: true }).await.expect("sent");
    let held = got(&holding).await;
    assert_eq!((held.data.as_slice(), held.redelivered), (&b"1"[..], true));
    let held = got(&holding).await;
    assert_eq!(held.data, b"transient");
    let held = got(&holding).await;
    assert_eq!((held.data.as_slice(), held.redelivered), (&b"2"[..], false));
    stop(broker);

    let broker = start(folder.path(), &[]);
    let connection = connect(broker.address).await;
    for (queue, kept) in [("plain", true), ("lanes", true), ("auto", true), ("transient", false), ("exclusive", false)]
    {
        assert_eq!(is_there(&connection, queue).await, kept, "{queue}");
    }
    let channel = open_channel(&connection).await;
    let found = contents(&channel, "plain").await;
    let expected = [("1", true), ("2", true), ("3", false), ("4", false), ("with properties", false)];
    assert_eq!(found, expected.map(|(body, redelivered)| (body.to_owned(), redelivered)));
    let lanes = contents(&channel, "lanes").await;
    assert_eq!(lanes, ["high", "high too", "middle", "low"].map(|body| (body.to_owned(), false)));
    channel.close(200, "all is returned").await.expect("close-ok");

    let channel = open_confirming(&connection).await;
    let mut consumer = consume(&channel, "plain").await;
    let last = loop {
        let delivery = next(&mut consumer).await;
        if delivery.data == b"with properties" {
            break delivery;
        }
    };
    assert_eq!((last.exchange.as_str(), last.routing_key.as_str()), ("kept", "a.b"));
    assert_eq!(last.properties, properties);
    assert!(publish(&channel, "kept", "a.c", "bound still", persistent()).await);
    assert_eq!(next(&mut consumer).await.data, b"bound still");
    assert!(!publish(&channel, "kept", "b.c", "the transient queue's binding", persistent()).await);
    let passive = ExchangeDeclareOptions { passive: true, ..Default::default() };
    let lost = channel.exchange_declare("lost", ExchangeKind::Fanout, passive, none()).await;
    assert_eq!(said(&lost.expect_err("it was transient")).0, 404);
    stop(broker);
}

/// §11.2, §11.3, §16: time goes on while the broker is down, and a dead letter keeps its history.
#[tokio::test]
async fn messages_expire_while_the_broker_is_down() {
    if !is_ours() {
        return;
    }
    let folder = folder();
    let broker = start(folder.path(), &[]);
    let connection = connect(broker.address).await;
    let channel = open_confirming(&connection).await;
    declare(&channel, "dead", durable(), FieldTable::default()).await;
    let letters = [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text("dead"))];
    declare(&channel, "mortal", durable(), table(letters)).await;
    publish(&channel, "", "mortal", "rejected", persistent()).await;
    let message = channel.basic_get("mortal", BasicGetOptions::default()).await.expect("open").expect("a message");
    message.delivery.reject(BasicRejectOptions { requeue: false }).await.expect("sent");
    let limit = Duration::from_millis(400);
    let since = Instant::now();
    publish(&channel, "", "mortal", "soon", persistent().with_expiration(limit.as_millis().to_string().into())).await;
    publish(&channel, "", "mortal", "later", persistent().with_expiration("3600000".into())).await;
    stop(broker);
    // Not a guess at how long something takes: the time that the message has.
    tokio::time::sleep(limit.saturating_sub(since.elapsed())).await;

    let broker = start(folder.path(), &[]);
    let connection = connect(broker.address).await;
    let channel = open_channel(&connection).await;
    assert_eq!(contents(&channel, "mortal").await, [("later".to_owned(), false)]);
    let mut consumer = consume(&channel, "dead").await;
    for (body, reason) in [("rejected", "rejected"), ("soon", "expired")] {
        let delivery = next(&mut consumer).await;
        assert_eq!(delivery.data, body.as_bytes());
        let headers = delivery.properties.headers().clone().expect("dead letters have headers");
        assert_eq!(headers.inner().get("x-first-death-reason"), Some(&text(reason)));
        assert_eq!(headers.inner().get("x-first-death-queue"), Some(&text("mortal")));
    }
    stop(broker);
}

/// §3.10: clients are told that the broker shuts down.
#[tokio::test]
async fn clients_are_told_of_a_stop() {
    if !is_ours() {
        return;
    }
    let broker = Broker::in_memory();
    let connection = connect(broker.address).await;
    let channel = open_channel(&connection).await;
    declare(&channel, "q", QueueDeclareOptions::default(), FieldTable::default()).await;
    let mut consumer = consume(&channel, "q").await;
    broker.signal("TERM");
    let end = soon("the end", consumer.next()).await.expect("not without a word");
    let text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'";
    assert_eq!(said(&end.expect_err("it is an end")), (320, text.to_owned()));
    let exit = broker.wait();
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);
}

/// `--ephemeral`: works like any other, and leaves nothing behind.
#[tokio::test]
async fn an_ephemeral_broker_keeps_nothing() {
    if !is_ours() {
        return;
    }
    let broker = Broker::in_memory();
    let connection = connect(broker.address).await;
    let channel = open_confirming(&connection).await;
    declare(&channel, "kept", durable(), FieldTable::default()).await;
    for number in 0..100_u8 {
        publish_confirmed(&channel, "kept", &[number]).await;
    }
    assert_eq!(counts(&channel, "kept").await, (100, 0));
    stop(broker);
    // Where the data folder is by default: it was not even made.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("leveret-data");
    assert!(!folder.exists(), "{} was made", folder.display());
    let broker = Broker::in_memory();
    assert!(!is_there(&connect(broker.address).await, "kept").await);
    stop(broker);
}

/// `--fsync interval` and `never`: confirmed messages survive the end of the process, if not of the machine.
#[tokio::test]
async fn without_a_sync_per_commit_a_kill_loses_nothing() {
    if !is_ours() {
        return;
    }
    for policy in ["always", "interval:50", "never"] {
        let folder = folder();
        let broker = start(folder.path(), &["--fsync", policy]);
        let connection = connect(broker.address).await;
        let channel = open_confirming(&connection).await;
        declare(&channel, "kept", durable(), FieldTable::default()).await;
        let since = Instant::now();
        for number in 0..300_u32 {
            publish_confirmed(&channel, "kept", &number.to_be_bytes()).await;
        }
        println!("--fsync {policy}: {:?} for each of 300 publishes, one at a time", since.elapsed() / 300);
        broker.stop("KILL");

        let broker = start(folder.path(), &["--fsync", policy]);
        let connection = connect(broker.address).await;
        let channel = open_channel(&connection).await;
        assert_eq!(counts(&channel, "kept").await, (300, 0), "--fsync {policy}");
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let consumer = channel.basic_consume("kept", "", options, FieldTable::default()).await.expect("consume-ok");
        let mut consumer = consumer;
        for number in 0..300_u32 {
            let delivery = next(&mut consumer).await;
            assert_eq!((delivery.data.as_slice(), delivery.redelivered), (&number.to_be_bytes()[..], true), "{policy}");
        }
        stop(broker);
    }
}

/// §16: declare-ok and bind-ok promise what they say, though the broker is killed the moment they are read.
#[tokio::test]
async fn declare_ok_and_bind_ok_survive_a_kill() {
    if !is_ours() {
        return;
    }
    let folder = folder();
    for round in 0..6 {
        let broker = start(folder.path(), &[]);
        let connection = connect(broker.address).await;
        let (queue, before) = (format!("q{round}"), round - 1);
        if round > 0 {
            let channel = open_confirming(&connection).await;
            let routed = publish(&channel, "amq.direct", &format!("k{before}"), "m", persistent()).await;
            // In turn the binding and the queue were the last that was asked for.
            assert_eq!(routed, before % 2 == 0, "q{before} and its binding");
            assert!(is_there(&connection, &format!("q{before}")).await, "q{before}");
        }
        let channel = open_channel(&connection).await;
        declare(&channel, &queue, durable(), FieldTable::default()).await;
        if round % 2 == 0 {
            let (key, options) = (format!("k{round}"), QueueBindOptions::default());
            let bound = channel.queue_bind(&queue, "amq.direct", &key, options, FieldTable::default());
            soon("bind-ok", bound).await.expect("bound");
        }
        broker.stop("KILL");
    }
}

/// Ten thousand durable queues with a binding each: all back after a kill, each where it was bound.
#[tokio::test]
async fn ten_thousand_durable_queues_come_back() {
    const QUEUES: usize = 10_000;
    if !is_ours() {
        return;
    }
    let folder = folder();
    let broker = start(folder.path(), &[]);
    let connection = connect(broker.address).await;
    let channel = open_confirming(&connection).await;
    let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
    channel.exchange_declare("all", ExchangeKind::Fanout, options, FieldTable::default()).await.expect("declared");
    let since = Instant::now();
    for number in 0..QUEUES {
        let queue = format!("many.{number}");
        let options = QueueDeclareOptions { nowait: true, ..durable() };
        channel.queue_declare(&queue, options, FieldTable::default()).await.expect("sent");
        let options = QueueBindOptions { nowait: true };
        channel.queue_bind(&queue, "all", "", options, FieldTable::default()).await.expect("sent");
    }
    // Confirmed: all before it is on disk.
    publish_confirmed(&channel, "many.0", b"proof").await;
    let declared = since.elapsed();
    broker.stop("KILL");

    let since = Instant::now();
    let broker = start(folder.path(), &[]);
    let started = since.elapsed();
    let connection = connect(broker.address).await;
    let channel = open_confirming(&connection).await;
    let since = Instant::now();
    assert!(publish(&channel, "all", "", "for everybody", persistent()).await);
    let published = since.elapsed();
    let mut consumers = Vec::new();
    for number in 0..QUEUES {
        let queue = format!("many.{number}");
        let options = BasicConsumeOptions { nowait: true, ..Default::default() };
        let consumer = channel.basic_consume(&queue, &queue, options, FieldTable::default()).await;
        consumers.push((queue, consumer.expect("the channel is open")));
    }
    assert_eq!(next(&mut consumers[0].1).await.data, b"proof");
    for (queue, consumer) in &mut consumers {
        let delivery = next(consumer).await;
        assert_eq!((delivery.data.as_slice(), delivery.redelivered), (&b"for everybody"[..], false), "{queue}");
    }
    println!(
        "{QUEUES} durable queues and bindings: declared in {declared:.2?}, back in {started:.2?} ({}), \
         one message to all confirmed in {published:.2?}",
        broker.ready
    );
    stop(broker);
    let since = Instant::now();
    let broker = start(folder.path(), &[]);
    println!("after a clean stop: back in {:.2?} ({})", since.elapsed(), broker.ready);
    stop(broker);
}
