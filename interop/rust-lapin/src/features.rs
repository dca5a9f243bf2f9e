//! The features of `../FEATURES.md` that the patterns do not have.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_lite::StreamExt;
use lapin::options::*;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Event, ExchangeKind};

use crate::harness::{
    Checked, Failure, Inbox, Names, URL, ack, arrives, close, connect, declare_durable, declare_exclusive, equal, look,
    prefetch, publish, publish_confirmed, ready_count, refused, refused_silently, text,
};

const SHUTDOWN: &str = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'";

fn persistent() -> BasicProperties {
    BasicProperties::default().with_delivery_mode(2)
}

/// Has the driver do something to the broker or to this process, and waits until it is done.
async fn control(command: &'static str) -> Checked {
    let answer = tokio::task::spawn_blocking(move || {
        println!("do {command}");
        std::io::stdout().flush().expect("the driver reads");
        std::io::stdin().lock().lines().next().and_then(Result::ok).unwrap_or_default()
    });
    match answer.await.expect("no panic").as_str() {
        "done" => Ok(()),
        other => Err(Failure::not_applicable(other.trim_start_matches("n/a "))),
    }
}

async fn connect_with(change: impl FnOnce(&mut lapin::uri::AMQPUri)) -> Result<Connection, lapin::Error> {
    let mut uri = URL.clone();
    change(&mut uri);
    Connection::connect_uri(uri, ConnectionProperties::default()).await
}

async fn beating() -> Checked<Connection> {
    Ok(connect_with(|uri| uri.query.heartbeat = Some(1)).await?)
}

async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> Checked<bool>) -> Checked {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition().await? {
        if Instant::now() > deadline {
            return Err(Failure(format!("expected {what} within 10 s, got nothing")));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// The error that a connection ends with.
async fn end(mut events: impl futures_lite::Stream<Item = Event> + Unpin) -> Checked<lapin::Error> {
    loop {
        match arrives("the end of the connection", events.next()).await? {
            Some(Event::Error(error)) => return Ok(error),
            Some(_) => {}
            None => return Err(Failure("expected the connection's error, got the end of its events".into())),
        }
    }
}

pub async fn connecting(_: &Names) -> Checked {
    let connection = connect().await?;
    connection.create_channel().await?.close(200, "OK".into()).await?;
    close(connection).await?;
    let login = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile.";
    refused(403, login, connect_with(|uri| uri.authority.userinfo.password = "wrong".into()).await)?;
    refused(530, "NOT_ALLOWED - vhost nowhere not found", connect_with(|uri| uri.vhost = "nowhere".into()).await)
}

pub async fn declare(names: &Names) -> Checked {
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    let none = FieldTable::default;
    for (role, kind) in [
        ("direct", ExchangeKind::Direct),
        ("fanout", ExchangeKind::Fanout),
        ("topic", ExchangeKind::Topic),
        ("headers", ExchangeKind::Headers),
    ] {
        let exchange = names.exchange(role);
        let options = ExchangeDeclareOptions {
            durable: role != "topic",
            auto_delete: role == "fanout",
            internal: role == "headers",
            ..Default::default()
        };
        for passive in [false, false, true] {
            let options = ExchangeDeclareOptions { passive, ..options };
            channel.exchange_declare(exchange.as_str().into(), kind.clone(), options, none()).await?;
        }
    }
    let (source, target) = (names.exchange("direct"), names.exchange("fanout"));
    let queue = names.queue("durable");
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(100));
    arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(60_000));
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    for _ in 0..2 {
        let declared = channel.queue_declare(queue.as_str().into(), durable, arguments.clone()).await?;
        equal("declare-ok", (0, 0), (declared.message_count(), declared.consumer_count()))?;
    }
    let mut note = FieldTable::default();
    note.insert("note".into(), AMQPValue::LongString("any".into()));
    let ends = || (target.as_str().into(), source.as_str().into());
    let (to, from) = ends();
    channel.exchange_bind(to, from, "k".into(), ExchangeBindOptions::default(), note.clone()).await?;
    channel
        .queue_bind(queue.as_str().into(), target.as_str().into(), "".into(), QueueBindOptions::default(), none())
        .await?;
    publish(&channel, &source, "k", b"through two exchanges", BasicProperties::default()).await?;
    publish(&channel, &source, "other", b"nowhere", BasicProperties::default()).await?;
    eventually("a message", async || Ok(look(&channel, &queue).await?.message_count() == 1)).await?;
    let (to, from) = ends();
    channel.exchange_unbind(to, from, "k".into(), ExchangeUnbindOptions::default(), note).await?;
    publish(&channel, &source, "k", b"unbound", BasicProperties::default()).await?;
    publish(&channel, &target, "", b"second", BasicProperties::default()).await?;
    eventually("two messages", async || Ok(look(&channel, &queue).await?.message_count() == 2)).await?;
    equal("purged", 2, channel.queue_purge(queue.as_str().into(), QueuePurgeOptions::default()).await?)?;
    for _ in 0..2 {
        equal("deleted", 0, channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await?)?;
    }
    close(connection).await
}

pub async fn consume(names: &Names) -> Checked {
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    let queue = names.queue("consume");
    declare_durable(&channel, &queue).await?;
    for n in 0..5 {
        publish(&channel, "", &queue, n.to_string().as_bytes(), BasicProperties::default()).await?;
    }
    prefetch(&channel, 2).await?;
    let mut inbox = Inbox::acking(&channel, &queue).await?;
    let first = inbox.take().await?;
    let second = inbox.take().await?;
    equal("first two", ("0".to_owned(), "1".to_owned()), (text(&first.data), text(&second.data)))?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    equal("no third", true, inbox.is_empty().await)?;
    ack(&first).await?;
    equal("after an ack", "2".to_owned(), text(&inbox.take().await?.data))?;
    second.nack(BasicNackOptions { requeue: true, ..Default::default() }).await?;
    let again = inbox.take().await?;
    equal("after nack with requeue", ("1".to_owned(), true), (text(&again.data), again.redelivered))?;
    again.reject(BasicRejectOptions { requeue: true }).await?;
    let again = inbox.take().await?;
    equal("after reject with requeue", ("1".to_owned(), true), (text(&again.data), again.redelivered))?;
    again.reject(BasicRejectOptions { requeue: false }).await?;
    let fourth = inbox.take().await?;
    equal("after reject", "3".to_owned(), text(&fourth.data))?;
    fourth.nack(BasicNackOptions::default()).await?;
    inbox.take().await?.ack(BasicAckOptions { multiple: true }).await?;
    channel.basic_cancel(inbox.tag(), BasicCancelOptions::default()).await?;
    publish(&channel, "", &queue, b"after cancel", BasicProperties::default()).await?;
    eventually("the message after cancel", async || Ok(look(&channel, &queue).await?.message_count() == 1)).await?;
    close(connection).await
}

pub async fn get(names: &Names) -> Checked {
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    let queue = names.queue("get");
    declare_durable(&channel, &queue).await?;
    let get = async || channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await;
    equal("empty", true, get().await?.is_none())?;
    publish_confirmed(&connection, &queue, &["a", "b"], BasicProperties::default()).await?;
    for (redelivered, left) in [(false, 1), (true, 1)] {
        let message = get().await?.ok_or(Failure("expected a message, got none".into()))?;
        equal("get", ("a".to_owned(), redelivered), (text(&message.data), message.redelivered))?;
        equal("left", left, message.message_count)?;
        message.nack(BasicNackOptions { requeue: true, ..Default::default() }).await?;
    }
    close(connection).await
}

pub async fn tx(names: &Names) -> Checked {
    let (connection, other) = (connect().await?, connect().await?);
    let channel = connection.create_channel().await?;
    let queue = names.queue("tx");
    declare_durable(&channel, &queue).await?;
    channel.tx_select().await?;
    publish(&channel, "", &queue, b"1", persistent()).await?;
    publish(&channel, "", &queue, b"2", persistent()).await?;
    equal("before commit", 0, ready_count(&other, &queue).await?)?;
    channel.tx_commit().await?;
    equal("after commit", 2, ready_count(&other, &queue).await?)?;
    publish(&channel, "", &queue, b"3", persistent()).await?;
    let message = channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await?;
    let tag = message.ok_or(Failure("expected a message, got none".into()))?.delivery_tag;
    channel.basic_ack(tag, BasicAckOptions::default()).await?;
    channel.tx_rollback().await?;
    channel.basic_ack(tag, BasicAckOptions::default()).await?;
    channel.tx_commit().await?;
    equal("after rollback, ack and commit", 1, ready_count(&other, &queue).await?)?;
    close(other).await?;
    close(connection).await
}

pub async fn large(names: &Names) -> Checked {
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    let queue = names.queue("large");
    declare_durable(&channel, &queue).await?;
    let mut inbox = Inbox::acking(&channel, &queue).await?;
    for size in [0, 1, 131_064, 131_065, 1 << 20, 16 << 20] {
        let body: Vec<u8> = (0..size).map(|n: usize| (n % 251) as u8).collect();
        publish(&channel, "", &queue, &body, persistent()).await?;
        let message = inbox.take().await?;
        equal("contents", true, body == message.data)?;
        ack(&message).await?;
    }
    close(connection).await
}

pub async fn cancel_notify(names: &Names) -> Checked {
    let (connection, other) = (connect().await?, connect().await?);
    let channel = connection.create_channel().await?;
    let queue = names.queue("deleted");
    declare_durable(&channel, &queue).await?;
    let mut inbox = Inbox::acking(&channel, &queue).await?;
    let deleting = other.create_channel().await?;
    deleting.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await?;
    inbox.ends().await?;
    declare_durable(&channel, &queue).await?;
    close(other).await?;
    close(connection).await
}

pub async fn channel_errors(names: &Names) -> Checked {
    let (connection, holder) = (connect().await?, connect().await?);
    let channel = holder.create_channel().await?;
    let (queue, nowhere) = (names.queue("errors"), names.queue("nowhere"));
    declare_durable(&channel, &queue).await?;
    let exclusive = declare_exclusive(&channel).await?;
    let open = async || connection.create_channel().await;
    let none = FieldTable::default;
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    refused(404, &format!("NOT_FOUND - no queue '{nowhere}' in vhost '/'"), look(&open().await?, &nowhere).await)?;
    let no_exchange = format!("NOT_FOUND - no exchange '{nowhere}' in vhost '/'");
    refused_silently(&connection, 404, &no_exchange, async |c: &Channel| {
        c.basic_publish(nowhere.as_str().into(), "".into(), BasicPublishOptions::default(), b"x", persistent()).await?;
        Ok(())
    })
    .await?;
    refused(
        406,
        &format!(
            "PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue '{queue}' in vhost '/': \
             received 'true' but current is 'false'"
        ),
        open()
            .await?
            .queue_declare(queue.as_str().into(), QueueDeclareOptions { auto_delete: true, ..durable }, none())
            .await,
    )?;
    let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
    refused(
        406,
        "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': \
         received 'fanout' but current is 'direct'",
        open().await?.exchange_declare("amq.direct".into(), ExchangeKind::Fanout, options, none()).await,
    )?;
    let unknown = "PRECONDITION_FAILED - unknown delivery tag 99";
    refused_silently(&connection, 406, unknown, async |c: &Channel| c.basic_ack(99, BasicAckOptions::default()).await)
        .await?;
    refused(
        405,
        &format!(
            "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{exclusive}' in vhost '/'. It could be \
             originally declared on another connection or the exclusive property value does not match that of the \
             original declaration."
        ),
        look(&open().await?, &exclusive).await,
    )?;
    refused(
        403,
        "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'",
        open().await?.exchange_declare("amq.mine".into(), ExchangeKind::Direct, options, none()).await,
    )?;
    publish_confirmed(&holder, &queue, &["x"], persistent()).await?;
    let delete = async |options| open().await?.queue_delete(queue.as_str().into(), options).await;
    refused(
        406,
        &format!("PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty"),
        delete(QueueDeleteOptions { if_empty: true, ..Default::default() }).await,
    )?;
    let exclusive = BasicConsumeOptions { exclusive: true, ..Default::default() };
    let _only = channel.basic_consume(queue.as_str().into(), "only".into(), exclusive, none()).await?;
    refused(
        406,
        &format!("PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use"),
        delete(QueueDeleteOptions { if_unused: true, ..Default::default() }).await,
    )?;
    refused(
        403,
        &format!("ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"),
        open()
            .await?
            .basic_consume(queue.as_str().into(), "".into(), BasicConsumeOptions::default(), none())
            .await
            .map(|_| ()),
    )?;
    close(holder).await?;
    close(connection).await
}

pub async fn connection_errors(names: &Names) -> Checked {
    let connection = connect().await?;
    let events = connection.events_listener();
    let channel = connection.create_channel().await?;
    let queue = names.queue("immediate");
    declare_durable(&channel, &queue).await?;
    let immediate = BasicPublishOptions { immediate: true, ..Default::default() };
    channel.basic_publish("".into(), queue.as_str().into(), immediate, b"now", persistent()).await?;
    refused(540, "NOT_IMPLEMENTED - immediate=true", Err::<(), _>(end(Box::pin(events)).await?))
}

pub async fn idle(_: &Names) -> Checked {
    let connection = beating().await?;
    tokio::time::sleep(Duration::from_millis(3500)).await;
    // Dropped, it would be in the middle of its close when the connection closes.
    let channel = connection.create_channel().await?;
    declare_exclusive(&channel).await?;
    close(connection).await
}

pub async fn frozen(_: &Names) -> Checked {
    let connection = beating().await?;
    let queue = declare_exclusive(&connection.create_channel().await?).await?;
    control("freeze 5").await?;
    let other = connect().await?;
    let gone = format!("NOT_FOUND - no queue '{queue}' in vhost '/'");
    refused(404, &gone, look(&other.create_channel().await?, &queue).await)?;
    close(other).await
}

pub async fn stalled(_: &Names) -> Checked {
    let connection = beating().await?;
    let events = connection.events_listener();
    control("stall").await?;
    let noticed = end(Box::pin(events)).await;
    control("resume").await?;
    noticed.map(|_| ())
}

pub async fn blocked(names: &Names) -> Checked {
    let connection = connect().await?;
    let mut events = Box::pin(connection.events_listener());
    let channel = connection.create_channel().await?;
    let queue = names.queue("blocked");
    declare_durable(&channel, &queue).await?;
    control("block").await?;
    let sent = publish(&channel, "", &queue, b"while blocked", persistent()).await;
    let said = arrives("blocked", events.find(|event| matches!(event, Event::ConnectionBlocked(_)))).await;
    control("unblock").await?;
    sent?;
    said?;
    arrives("unblocked", events.find(|event| matches!(event, Event::ConnectionUnblocked))).await?;
    eventually("the message", async || Ok(look(&channel, &queue).await?.message_count() == 1)).await
}

pub async fn lost_broker(names: &Names, command: &'static str) -> Checked {
    let connection = connect().await?;
    let events = connection.events_listener();
    let channel = connection.create_channel().await?;
    let queue = names.queue("lost");
    declare_durable(&channel, &queue).await?;
    publish_confirmed(&connection, &queue, &["before"], persistent()).await?;
    equal("before", "before".to_owned(), text(&Inbox::acking(&channel, &queue).await?.take().await?.data))?;
    control(command).await?;
    let error = end(Box::pin(events)).await?;
    if command == "restart" {
        refused(320, SHUTDOWN, Err::<(), _>(error))?;
    }
    let connection = connect().await?;
    let mut inbox = Inbox::acking(&connection.create_channel().await?, &queue).await?;
    let message = inbox.take().await?;
    equal("after it came back", ("before".to_owned(), true), (text(&message.data), message.redelivered))?;
    ack(&message).await?;
    publish_confirmed(&connection, &queue, &["after"], persistent()).await?;
    ack(&inbox.take().await?).await?;
    close(connection).await
}

pub async fn consumer_timeout(names: &Names) -> Checked {
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    let queue = names.queue("timeout");
    let mut arguments = FieldTable::default();
    arguments.insert("x-consumer-timeout".into(), AMQPValue::LongInt(1000));
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(queue.as_str().into(), options, arguments).await?;
    let mut inbox = Inbox::acking(&channel, &queue).await?;
    publish(&channel, "", &queue, b"slow", persistent()).await?;
    inbox.take().await?;
    let error = inbox.error().await?;
    let timeout = format!(
        "PRECONDITION_FAILED - delivery acknowledgement on channel {} timed out. Timeout value used: 1000 ms. This \
         timeout value can be configured, see consumers doc guide to learn more",
        channel.id()
    );
    refused(406, &timeout, Err::<(), _>(error))?;
    let again = Inbox::acking(&connection.create_channel().await?, &queue).await?.take().await?;
    equal("on a new channel", ("slow".to_owned(), true), (text(&again.data), again.redelivered))?;
    ack(&again).await?;
    close(connection).await
}

#[derive(Default)]
struct Tally {
    sent: HashSet<String>,
    seen: HashSet<String>,
    fresh: HashMap<String, u32>,
}

pub async fn concurrency(names: &Names) -> Checked {
    let full = std::env::var("INTEROP_FULL").is_ok_and(|value| !value.is_empty());
    let connection = connect().await?;
    let queue = names.queue("many");
    declare_durable(&connection.create_channel().await?, &queue).await?;
    let tally = Arc::new(Mutex::new(Tally::default()));
    let until = Instant::now() + Duration::from_secs(if full { 60 } else { 4 });
    let mut publishers = Vec::new();
    for number in 0..50 {
        let consuming = connection.create_channel().await?;
        prefetch(&consuming, 20).await?;
        let mut inbox = Inbox::acking(&consuming, &queue).await?;
        let counted = tally.clone();
        tokio::spawn(async move {
            while let Some(Ok(delivery)) = inbox.next().await {
                {
                    let mut counted = counted.lock().expect("no panic");
                    counted.seen.insert(text(&delivery.data));
                    if !delivery.redelivered {
                        *counted.fresh.entry(text(&delivery.data)).or_default() += 1;
                    }
                }
                let _ = delivery.ack(BasicAckOptions::default()).await;
            }
        });
        let publishing = connection.create_channel().await?;
        publishing.confirm_select(ConfirmSelectOptions::default()).await?;
        let (queue, counted) = (queue.clone(), tally.clone());
        publishers.push(tokio::spawn(async move {
            for n in 0.. {
                if Instant::now() > until {
                    break;
                }
                let body = format!("{number} {n}");
                let options = BasicPublishOptions::default();
                let confirm = publishing
                    .basic_publish("".into(), queue.as_str().into(), options, body.as_bytes(), BasicProperties::default())
                    .await?
                    .await?;
                equal("confirm", Confirmation::Ack(None), confirm)?;
                counted.lock().expect("no panic").sent.insert(body);
            }
            Checked::Ok(())
        }));
    }
    for publisher in publishers {
        publisher.await.expect("no panic")?;
    }
    eventually("everything sent", async || {
        let tally = tally.lock().expect("no panic");
        Ok(tally.sent.is_subset(&tally.seen))
    })
    .await?;
    let twice = tally.lock().expect("no panic").fresh.values().filter(|&&count| count > 1).count();
    equal("doubled", 0, twice)?;
    close(connection).await
}
