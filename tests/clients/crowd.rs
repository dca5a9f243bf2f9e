//! Many connections and channels at once.

use std::collections::{HashMap, VecDeque};

use futures_lite::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicPublishOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::publisher_confirm::Confirmation;
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, ExchangeKind};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::harness::{connect, consume, open_channel, open_confirming, soon, until_counts};
use crate::broker::shared;

const PUBLISHERS: u32 = 8;
const PER_PUBLISHER: u32 = 2500;
const QUEUES: [&str; 2] = ["crowd.even", "crowd.odd"];
/// Consumers of each queue.
const CONSUMERS: u32 = 3;
/// Publishes that a publisher has in flight.
const WINDOW: usize = 100;

/// What a consumer got.
struct Receipt {
    consumer: (u32, &'static str),
    publisher: u32,
    number: u32,
}

/// 20,000 messages through two queues, from eight channels on four connections to six on three: each arrives
/// once, and in order as far as one publisher and one consumer see it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_thousand_messages_arrive_once() {
    let connection = connect(shared()).await;
    let channel = open_channel(&connection).await;
    let none = FieldTable::default;
    channel.exchange_declare("crowd", ExchangeKind::Direct, Default::default(), none()).await.expect("declared");
    for queue in QUEUES {
        channel.queue_declare(queue, QueueDeclareOptions::default(), none()).await.expect("declared");
        channel.queue_bind(queue, "crowd", queue, Default::default(), none()).await.expect("bound");
    }
    let (sender, mut receipts) = unbounded_channel();
    let mut consuming = Vec::new();
    for number in 0..CONSUMERS {
        let connection = connect(shared()).await;
        for queue in QUEUES {
            let channel = open_channel(&connection).await;
            tokio::spawn(consume_all(channel, (number, queue), sender.clone()));
        }
        consuming.push(connection);
    }
    let mut publishing = Vec::new();
    for pair in 0..PUBLISHERS / 2 {
        let connection = connect(shared()).await;
        for publisher in [2 * pair, 2 * pair + 1] {
            tokio::spawn(publish_all(open_confirming(&connection).await, publisher));
        }
        publishing.push(connection);
    }
    let mut last = HashMap::new();
    let mut seen = vec![false; (PUBLISHERS * PER_PUBLISHER) as usize];
    for _ in 0..PUBLISHERS * PER_PUBLISHER {
        let Receipt { consumer, publisher, number } = soon("a message", receipts.recv()).await.expect("no end yet");
        let before = std::mem::replace(&mut seen[(publisher * PER_PUBLISHER + number) as usize], true);
        assert!(!before, "message {number} of publisher {publisher} came twice");
        let before = last.insert((consumer, publisher), number);
        assert!(before < Some(number), "message {number} of publisher {publisher} came after {before:?}");
    }
    // What was not acked would be back.
    for connection in consuming {
        soon("close-ok", connection.close(200, "done")).await.expect("closed");
    }
    for queue in QUEUES {
        until_counts(&channel, queue, (0, 0)).await;
    }
    drop(publishing);
}

async fn publish_all(channel: Channel, publisher: u32) {
    let mut waiting = VecDeque::new();
    for number in 0..PER_PUBLISHER {
        let body = [publisher.to_be_bytes(), number.to_be_bytes()].concat();
        let (queue, options) = (QUEUES[(number % 2) as usize], BasicPublishOptions::default());
        let properties = BasicProperties::default();
        waiting.push_back(channel.basic_publish("crowd", queue, options, &body, properties).await.expect("sent"));
        if waiting.len() == WINDOW || number + 1 == PER_PUBLISHER {
            for confirm in waiting.drain(..) {
                assert_eq!(confirm.await.expect("the channel is open"), Confirmation::Ack(None));
            }
        }
    }
}

async fn consume_all(channel: Channel, consumer: (u32, &'static str), receipts: UnboundedSender<Receipt>) {
    channel.basic_qos(50, BasicQosOptions::default()).await.expect("qos-ok");
    let mut deliveries = consume(&channel, consumer.1).await;
    // Ends with the connection.
    while let Some(Ok(delivery)) = deliveries.next().await {
        channel.basic_ack(delivery.delivery_tag, BasicAckOptions::default()).await.expect("sent");
        let (publisher, number) = delivery.data.split_at(4);
        let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("4 bytes were published"));
        let receipt = Receipt { consumer, publisher: word(publisher), number: word(number) };
        if receipts.send(receipt).is_err() {
            return;
        }
    }
}
