//! What happens to messages between a publisher and a consumer: prefetch, redelivery, confirms, transactions,
//! bodies of every size.

use futures_lite::StreamExt as _;
use lapin::message::BasicReturnMessage;
use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicNackOptions, BasicPublishOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel};

use super::harness::{
    Relay, Rng, connect, consume, counts, expect_nothing, next, next_texts, open_channel, open_confirming, persistent,
    publish, publish_confirmed, said, soon, until_counts,
};
use crate::broker::shared;

/// Largest body by default (§8.1).
const SIZE_MAX: usize = 16 << 20;

async fn declare(channel: &Channel, queue: &str) {
    // Not exclusive: several connections of a test use it.
    let options = QueueDeclareOptions { auto_delete: true, ..Default::default() };
    soon("declare-ok", channel.queue_declare(queue, options, FieldTable::default())).await.expect("declared");
}

async fn ack(channel: &Channel, tag: u64) {
    channel.basic_ack(tag, BasicAckOptions::default()).await.expect("the channel is open");
}

fn fresh(texts: &[&str]) -> Vec<(String, bool)> {
    texts.iter().map(|text| ((*text).to_owned(), false)).collect()
}

fn again(texts: &[&str]) -> Vec<(String, bool)> {
    texts.iter().map(|text| ((*text).to_owned(), true)).collect()
}

/// §9.1, §9.2, §3.10: each consumer holds what its prefetch allows; what a lost one held goes to the other.
#[tokio::test]
async fn a_work_queue_survives_the_loss_of_a_worker() {
    let queue = "messages.work";
    let relay = Relay::to(shared()).await;
    let (lost, steady) = (connect(relay.address).await, connect(shared()).await);
    let (lost_channel, channel) = (open_channel(&lost).await, open_confirming(&steady).await);
    declare(&channel, queue).await;
    for channel in [&lost_channel, &channel] {
        channel.basic_qos(2, BasicQosOptions::default()).await.expect("qos-ok");
    }
    let (mut first, mut second) = (consume(&lost_channel, queue).await, consume(&channel, queue).await);
    for text in ["0", "1", "2", "3", "4", "5"] {
        publish_confirmed(&channel, queue, text.as_bytes()).await;
    }
    assert_eq!(next_texts(&mut first, 1).await, fresh(&["0"]));
    assert_eq!(next_texts(&mut first, 1).await, fresh(&["2"]));
    assert_eq!(next_texts(&mut second, 2).await, fresh(&["1", "3"]));
    expect_nothing(&lost_channel, &mut first).await;
    expect_nothing(&channel, &mut second).await;
    ack(&lost_channel, 1).await;
    assert_eq!(next_texts(&mut first, 1).await, fresh(&["4"]));
    relay.cut();
    // 2 and 4 are back, before 5.
    until_counts(&channel, queue, (3, 1)).await;
    ack(&channel, 1).await;
    assert_eq!(next_texts(&mut second, 1).await, again(&["2"]));
    channel.basic_ack(3, BasicAckOptions { multiple: true }).await.expect("the channel is open");
    assert_eq!(next_texts(&mut second, 1).await, again(&["4"]));
    assert_eq!(next_texts(&mut second, 1).await, fresh(&["5"]));
    expect_nothing(&channel, &mut second).await;
    assert_eq!(counts(&channel, queue).await, (0, 1));
}

/// §11.1, §8.1: every publish is acked, those without a route after their return.
#[tokio::test]
async fn a_thousand_confirms_and_the_returns_among_them() {
    let queue = "messages.confirms";
    let connection = connect(shared()).await;
    let channel = open_confirming(&connection).await;
    declare(&channel, queue).await;
    let mut confirms = Vec::new();
    for number in 0..1000_u32 {
        let routing_key = if number % 10 == 7 { "messages.nowhere" } else { queue };
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let body = number.to_string();
        let properties = BasicProperties::default().with_correlation_id(body.as_str().into());
        let confirm = channel.basic_publish("", routing_key, options, body.as_bytes(), properties).await;
        confirms.push(confirm.expect("the channel is open"));
    }
    let mut returned = Vec::new();
    for (number, confirm) in confirms.into_iter().enumerate() {
        let confirmation = soon("a confirm", confirm).await.expect("the channel stays open");
        assert!(confirmation.is_ack(), "publish {number}: {confirmation:?}");
        // lapin gives a return to any of the acks that come next, not only to its own.
        let Some(message) = confirmation.take_message() else { continue };
        let BasicReturnMessage { delivery, reply_code, reply_text } = message;
        assert_eq!((reply_code, reply_text.as_str()), (312, "NO_ROUTE"));
        assert_eq!((delivery.exchange.as_str(), delivery.routing_key.as_str()), ("", "messages.nowhere"));
        let id = delivery.properties.correlation_id().as_ref().map(|id| id.to_string().into_bytes());
        assert_eq!(id.as_ref(), Some(&delivery.data));
        returned.push(String::from_utf8_lossy(&delivery.data).parse::<u32>().expect("a number"));
    }
    returned.sort_unstable();
    assert_eq!(returned, (0..1000).filter(|number| number % 10 == 7).collect::<Vec<u32>>());
    let mut consumer = consume(&channel, queue).await;
    for number in (0..1000_u32).filter(|number| number % 10 != 7) {
        assert_eq!(next(&mut consumer).await.data, number.to_string().into_bytes());
    }
    expect_nothing(&channel, &mut consumer).await;
}

/// §8.5: what is returned comes back to its old place, before what is behind it.
#[tokio::test]
async fn returned_messages_keep_their_order() {
    let queue = "messages.returned";
    let connection = connect(shared()).await;
    let channel = open_confirming(&connection).await;
    declare(&channel, queue).await;
    for text in ["0", "1", "2", "3", "4", "5", "6"] {
        publish_confirmed(&channel, queue, text.as_bytes()).await;
    }
    channel.basic_qos(4, BasicQosOptions::default()).await.expect("qos-ok");
    let mut consumer = consume(&channel, queue).await;
    assert_eq!(next_texts(&mut consumer, 4).await, fresh(&["0", "1", "2", "3"]));
    let requeue = |multiple| BasicNackOptions { multiple, requeue: true };
    channel.basic_nack(4, requeue(false)).await.expect("the channel is open");
    assert_eq!(next_texts(&mut consumer, 1).await, again(&["3"]));
    channel.basic_nack(2, requeue(false)).await.expect("the channel is open");
    assert_eq!(next_texts(&mut consumer, 1).await, again(&["1"]));
    // 0, 2, 3 and 1 are held, under the tags 1, 3, 5 and 6.
    channel.basic_nack(0, requeue(true)).await.expect("the channel is open");
    assert_eq!(next_texts(&mut consumer, 4).await, again(&["0", "1", "2", "3"]));
    channel.basic_ack(0, BasicAckOptions { multiple: true }).await.expect("the channel is open");
    assert_eq!(next_texts(&mut consumer, 3).await, fresh(&["4", "5", "6"]));
}

/// §10: nothing of a transaction is seen before its commit, nothing ever after a rollback.
#[tokio::test]
async fn a_transaction_is_seen_at_its_commit() {
    let queue = "messages.tx";
    let connection = connect(shared()).await;
    let (channel, other) = (open_channel(&connection).await, open_channel(&connection).await);
    declare(&other, queue).await;
    channel.tx_select().await.expect("select-ok");
    for text in ["0", "1", "2"] {
        publish(&channel, queue, text.as_bytes()).await;
    }
    // After a round trip on its channel the broker has them.
    assert_eq!(counts(&channel, queue).await, (0, 0));
    channel.tx_commit().await.expect("commit-ok");
    assert_eq!(counts(&other, queue).await, (3, 0));
    publish(&channel, queue, b"never").await;
    channel.tx_rollback().await.expect("rollback-ok");
    assert_eq!(counts(&other, queue).await, (3, 0));

    let first = channel.basic_get(queue, BasicGetOptions::default()).await.expect("get-ok").expect("a message");
    ack(&channel, first.delivery_tag).await;
    channel.tx_rollback().await.expect("rollback-ok");
    // Not acked, and not requeued: it can be acked once more.
    assert_eq!(counts(&other, queue).await, (2, 0));
    ack(&channel, first.delivery_tag).await;
    channel.tx_commit().await.expect("commit-ok");
    channel.close(200, "done").await.expect("close-ok");
    assert_eq!(counts(&other, queue).await, (2, 0));

    let channel = open_channel(&connection).await;
    channel.tx_select().await.expect("select-ok");
    let second = channel.basic_get(queue, BasicGetOptions::default()).await.expect("get-ok").expect("a message");
    ack(&channel, second.delivery_tag).await;
    channel.close(200, "without a commit").await.expect("close-ok");
    let second = other.basic_get(queue, BasicGetOptions::default()).await.expect("get-ok").expect("a message");
    assert_eq!((second.data.as_slice(), second.redelivered, second.message_count), (&b"1"[..], true, 1));
}

/// §8.4.
#[tokio::test]
async fn messages_are_got_one_by_one() {
    let queue = "messages.get";
    let connection = connect(shared()).await;
    let channel = open_confirming(&connection).await;
    declare(&channel, queue).await;
    assert_eq!(channel.basic_get(queue, BasicGetOptions::default()).await.expect("get-empty"), None);
    for text in ["0", "1", "2"] {
        publish_confirmed(&channel, queue, text.as_bytes()).await;
    }
    let mut got = Vec::new();
    for no_ack in [false, true, false] {
        let message = channel.basic_get(queue, BasicGetOptions { no_ack }).await.expect("get-ok").expect("a message");
        got.push((message.data.clone(), message.delivery_tag, message.message_count, message.redelivered));
    }
    let expected = [(b"0".to_vec(), 1, 2, false), (b"1".to_vec(), 2, 1, false), (b"2".to_vec(), 3, 0, false)];
    assert_eq!(got, expected);
    ack(&channel, 1).await;
    channel.close(200, "3 is unacked").await.expect("close-ok");
    let channel = open_channel(&connection).await;
    let message = channel.basic_get(queue, BasicGetOptions::default()).await.expect("get-ok").expect("a message");
    assert_eq!((message.data.as_slice(), message.delivery_tag, message.redelivered), (&b"2"[..], 1, true));
}

/// §1.2, §8.1: bodies around every size at which something changes, up to the largest.
#[tokio::test]
async fn bodies_of_every_size_come_back_unchanged() {
    let queue = "messages.sizes";
    let connection = connect(shared()).await;
    let channel = open_confirming(&connection).await;
    declare(&channel, queue).await;
    let mut consumer = consume(&channel, queue).await;
    let frame_max = 131_072_usize;
    let payload = frame_max - 8;
    let mut sizes = vec![0, 1, 255, 256, 65_535, 65_536, 1 << 20, SIZE_MAX - 1, SIZE_MAX];
    sizes.extend([4096, payload, 2 * payload, frame_max].into_iter().flat_map(|size| [size - 1, size, size + 1]));
    for size in sizes {
        let mut rng = Rng::new(size as u64);
        let body: Vec<u8> = (0..size.div_ceil(8)).flat_map(|_| rng.next().to_be_bytes()).take(size).collect();
        publish_confirmed(&channel, queue, &body).await;
        let delivery = next(&mut consumer).await;
        assert!(delivery.data == body, "{size} bytes came back as {} or changed", delivery.data.len());
        ack(&channel, delivery.delivery_tag).await;
    }
}

/// §8.1 step 1: one byte more than the largest ends the channel, and nothing else.
#[tokio::test]
async fn a_body_too_large_is_refused() {
    let queue = "messages.too-large";
    let connection = connect(shared()).await;
    let channel = open_confirming(&connection).await;
    declare(&channel, queue).await;
    let options = BasicPublishOptions::default();
    let confirm = channel.basic_publish("", queue, options, &vec![0; SIZE_MAX + 1], persistent()).await;
    let error = match confirm {
        Ok(confirm) => soon("an answer", confirm).await.expect_err("it is too large"),
        Err(error) => error,
    };
    let text = "PRECONDITION_FAILED - message size 16777217 is larger than configured max size 16777216";
    assert_eq!(said(&error), (406, text.to_owned()));
    let channel = open_confirming(&connection).await;
    publish_confirmed(&channel, queue, b"small").await;
    assert_eq!(counts(&channel, queue).await, (1, 0));
}

/// §8.7: a consumer without acknowledgements gets everything at once, whatever the prefetch.
#[tokio::test]
async fn without_acks_prefetch_does_not_count() {
    let queue = "messages.no-ack";
    let connection = connect(shared()).await;
    let channel = open_confirming(&connection).await;
    declare(&channel, queue).await;
    for number in 0..50_u8 {
        publish_confirmed(&channel, queue, &[number]).await;
    }
    channel.basic_qos(1, BasicQosOptions::default()).await.expect("qos-ok");
    let options = lapin::options::BasicConsumeOptions { no_ack: true, ..Default::default() };
    let consumer = channel.basic_consume(queue, "", options, FieldTable::default()).await.expect("consume-ok");
    let taken: Vec<_> = soon("fifty deliveries", consumer.take(50).collect::<Vec<_>>()).await;
    for (number, delivery) in taken.into_iter().enumerate() {
        assert_eq!(delivery.expect("the channel is open").data, [number as u8]);
    }
}
