//! What the broker refuses: code and text, what is closed, and that the rest goes on.

use futures_lite::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicPublishOptions, BasicQosOptions,
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, Consumer, Error, ExchangeKind};

use super::harness::{connect, consume, open_channel, open_confirming, publish_confirmed, said, soon, table};
use crate::broker::shared;

/// A consumer of a queue of its own: it ends with what ends its channel.
async fn watch(channel: &Channel) -> Consumer {
    let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
    let queue = channel.queue_declare("", options, FieldTable::default()).await.expect("declared");
    consume(channel, queue.name().as_str()).await
}

async fn end_of(mut watch: Consumer) -> (u16, String) {
    match soon("the channel's end", watch.next()).await {
        Some(Err(error)) => said(&error),
        other => panic!("expected an error, got {other:?}"),
    }
}

/// What the step's channel is closed with. The error may be the step's own, or come later.
async fn refusal(connection: &Connection, step: impl AsyncFnOnce(&Channel) -> Result<(), Error>) -> (u16, String) {
    let channel = open_channel(connection).await;
    let watch = watch(&channel).await;
    match step(&channel).await {
        Err(error) => said(&error),
        Ok(()) => end_of(watch).await,
    }
}

fn expect(got: (u16, String), code: u16, text: &str) {
    assert_eq!(got, (code, text.to_owned()));
}

/// §5.2, §5.4, §5.6, §8.7, §4.2, §4.3: refused methods close their channel, with these words.
#[tokio::test]
async fn refused_methods_close_the_channel() {
    let connection = connect(shared()).await;
    let steady = open_confirming(&connection).await;
    let none = FieldTable::default;
    let (queue, held) = ("refusals.queue", "refusals.held");
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    steady.queue_declare(queue, options, none()).await.expect("declared");
    let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
    let owner = connect(shared()).await;
    open_channel(&owner).await.queue_declare(held, options, none()).await.expect("declared");

    let got = refusal(&connection, async |channel| {
        let passive = QueueDeclareOptions { passive: true, ..Default::default() };
        channel.queue_declare("refusals.missing", passive, none()).await.map(|_| ())
    });
    expect(got.await, 404, "NOT_FOUND - no queue 'refusals.missing' in vhost '/'");

    let got = refusal(&connection, async |channel| {
        channel.queue_declare(queue, QueueDeclareOptions::default(), none()).await.map(|_| ())
    });
    expect(
        got.await,
        406,
        "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'refusals.queue' in vhost '/': \
         received 'false' but current is 'true'",
    );

    let got = refusal(&connection, async |channel| {
        let arguments = table([("x-message-ttl", AMQPValue::LongInt(-1))]);
        channel.queue_declare("refusals.ttl", QueueDeclareOptions::default(), arguments).await.map(|_| ())
    });
    expect(
        got.await,
        406,
        "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue 'refusals.ttl' in vhost '/': {value_negative,-1}",
    );

    let got = refusal(&connection, async |channel| {
        channel.basic_consume(held, "", BasicConsumeOptions::default(), none()).await.map(|_| ())
    });
    expect(
        got.await,
        405,
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'refusals.held' in vhost '/'. \
         It could be originally declared on another connection or the exclusive property value does not match \
         that of the original declaration.",
    );

    let got = refusal(&connection, async |channel| {
        channel.queue_declare("amq.mine", QueueDeclareOptions::default(), none()).await.map(|_| ())
    });
    expect(got.await, 403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'");

    let got = refusal(&connection, async |channel| {
        let kind = ExchangeKind::Custom("x-unheard-of".to_owned());
        channel.exchange_declare("refusals.x", kind, ExchangeDeclareOptions::default(), none()).await
    });
    expect(got.await, 406, "PRECONDITION_FAILED - unknown exchange type 'x-unheard-of'");

    let got = refusal(&connection, async |channel| {
        channel.exchange_delete("amq.direct", ExchangeDeleteOptions::default()).await
    });
    expect(got.await, 403, "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed");

    let got = refusal(&connection, async |channel| {
        channel.queue_bind(queue, "refusals.nowhere", "", QueueBindOptions::default(), none()).await
    });
    expect(got.await, 404, "NOT_FOUND - no exchange 'refusals.nowhere' in vhost '/'");

    publish_confirmed(&steady, queue, b"still here").await;
    let got = refusal(&connection, async |channel| {
        let options = QueueDeleteOptions { if_empty: true, ..Default::default() };
        channel.queue_delete(queue, options).await.map(|_| ())
    });
    expect(got.await, 406, "PRECONDITION_FAILED - queue 'refusals.queue' in vhost '/' not empty");

    let _consumer = steady.basic_consume(queue, "", BasicConsumeOptions::default(), none()).await.expect("consume-ok");
    let got = refusal(&connection, async |channel| {
        let options = QueueDeleteOptions { if_unused: true, ..Default::default() };
        channel.queue_delete(queue, options).await.map(|_| ())
    });
    expect(got.await, 406, "PRECONDITION_FAILED - queue 'refusals.queue' in vhost '/' in use");

    let got = refusal(&connection, async |channel| {
        let options = BasicConsumeOptions { exclusive: true, ..Default::default() };
        channel.basic_consume(queue, "", options, none()).await.map(|_| ())
    });
    expect(got.await, 403, "ACCESS_REFUSED - queue 'refusals.queue' in vhost '/' in exclusive use");

    // Everything that had nothing to do with it works on.
    publish_confirmed(&steady, queue, b"steady").await;
    let deleted = steady.queue_delete(queue, QueueDeleteOptions::default()).await;
    assert!(deleted.is_ok(), "{deleted:?}");
}

/// §8.5, §8.1: nobody waits for an answer to these; the channel is closed all the same.
#[tokio::test]
async fn methods_without_an_answer_close_the_channel_too() {
    let connection = connect(shared()).await;
    let none = BasicProperties::default;
    let got = refusal(&connection, async |channel| channel.basic_ack(99, BasicAckOptions::default()).await);
    expect(got.await, 406, "PRECONDITION_FAILED - unknown delivery tag 99");

    let got = refusal(&connection, async |channel| channel.basic_nack(0, BasicNackOptions::default()).await);
    expect(got.await, 406, "PRECONDITION_FAILED - unknown delivery tag 0");

    let got = refusal(&connection, async |channel| {
        let options = BasicPublishOptions::default();
        channel.basic_publish("refusals.nowhere", "", options, b"lost", none()).await.map(|_| ())
    });
    expect(got.await, 404, "NOT_FOUND - no exchange 'refusals.nowhere' in vhost '/'");

    let got = refusal(&connection, async |channel| {
        let options = BasicPublishOptions::default();
        channel.basic_publish("", "q", options, b"", none().with_expiration("soon".into())).await.map(|_| ())
    });
    expect(got.await, 406, "PRECONDITION_FAILED - invalid expiration 'soon': no_integer");

    let got = refusal(&connection, async |channel| {
        let options = BasicPublishOptions::default();
        channel.basic_publish("", "q", options, b"", none().with_user_id("somebody".into())).await.map(|_| ())
    });
    expect(
        got.await,
        406,
        "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'",
    );

    let got = refusal(&connection, async |channel| {
        channel.tx_select().await?;
        channel.confirm_select(Default::default()).await
    });
    expect(got.await, 406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode");

    let got = refusal(&connection, async |channel| channel.tx_commit().await);
    expect(got.await, 406, "PRECONDITION_FAILED - channel is not transactional");
}

/// §3.9: some errors end the connection, with all its channels.
#[tokio::test]
async fn hard_errors_close_the_connection() {
    let connection = connect(shared()).await;
    let bystander = open_channel(&connection).await;
    let queue = QueueDeclareOptions { exclusive: true, ..Default::default() };
    let queue = bystander.queue_declare("", queue, FieldTable::default()).await.expect("declared");
    let queue = queue.name().as_str();
    let options = BasicConsumeOptions::default;
    bystander.basic_consume(queue, "same", options(), FieldTable::default()).await.expect("consume-ok");
    let again = bystander.basic_consume(queue, "same", options(), FieldTable::default());
    let error = soon("an answer", again).await.expect_err("the tag is taken");
    expect(said(&error), 530, "NOT_ALLOWED - attempt to reuse consumer tag 'same'");
    assert!(!connection.status().connected());

    let connection = connect(shared()).await;
    let (channel, bystander) = (open_channel(&connection).await, open_channel(&connection).await);
    let watch = watch(&bystander).await;
    let options = BasicPublishOptions { immediate: true, ..Default::default() };
    let properties = BasicProperties::default();
    channel.basic_publish("", "q", options, b"now", properties).await.expect("sent");
    expect(end_of(watch).await, 540, "NOT_IMPLEMENTED - immediate=true");
    let after = soon("an answer", bystander.basic_qos(1, BasicQosOptions::default())).await;
    assert!(after.is_err(), "the connection is gone");
}

/// §3.3, §3.5: who may not enter is told so.
#[tokio::test]
async fn strangers_do_not_get_in() {
    for (user, vhost, code, text) in [
        (
            "guest:wrong",
            "%2f",
            403,
            "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile.",
        ),
        ("guest:guest", "missing", 530, "NOT_ALLOWED - vhost missing not found"),
    ] {
        let properties = lapin::ConnectionProperties::default()
            .with_executor(tokio_executor_trait::Tokio::current())
            .with_reactor(tokio_reactor_trait::Tokio::current());
        let uri = format!("amqp://{user}@{}/{vhost}", shared());
        let connected = soon("an answer", lapin::Connection::connect(&uri, properties)).await;
        let error = connected.expect_err("it is refused");
        expect(said(&error), code, text);
    }
}
