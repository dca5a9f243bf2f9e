//! Work queue, publish/subscribe, routing, topics, RPC.

use lapin::options::{BasicConsumeOptions, BasicNackOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Connection, ExchangeKind};

use crate::harness::{
    Checked, Inbox, Names, ack, bind, close, connect, declare_durable, declare_exclusive, equal, look, prefetch,
    publish, publish_confirmed, ready_count, refused, refused_silently, text, vhost,
};

pub async fn work_queue(names: &Names) -> Checked {
    let queue = names.queue("tasks");
    let (leaving, staying) = (connect().await?, connect().await?);
    let channel = leaving.create_channel().await?;
    let declared = declare_durable(&channel, &queue).await?;
    equal("declared name", queue.as_str(), declared.name().as_str())?;
    equal("messages, consumers", (0, 0), (declared.message_count(), declared.consumer_count()))?;
    let persistent = BasicProperties::default().with_content_type("text/plain".into()).with_delivery_mode(2);
    let tasks: Vec<_> = (0..10).map(|n| format!("task {n}")).collect();
    let tasks: Vec<_> = tasks.iter().map(String::as_str).collect();
    publish_confirmed(&leaving, &queue, &tasks, persistent.clone()).await?;

    prefetch(&channel, 1).await?;
    let mut left = Inbox::acking(&channel, &queue).await?;
    let first = left.take().await?;
    equal(
        "first task",
        ("task 0".into(), 1, false, "", queue.as_str()),
        (text(&first.data), first.delivery_tag, first.redelivered, first.exchange.as_str(), first.routing_key.as_str()),
    )?;
    equal("first task's properties", &persistent, &first.properties)?;

    // The first consumer holds its one message all the while, so the order at the second is exact.
    let channel = staying.create_channel().await?;
    prefetch(&channel, 1).await?;
    let mut stayed = Inbox::acking(&channel, &queue).await?;
    for (n, expected) in tasks.iter().enumerate().skip(1) {
        let mut task = stayed.take().await?;
        equal("task", (expected.to_string(), false), (text(&task.data), task.redelivered))?;
        equal("nothing behind prefetch 1", true, stayed.is_empty().await)?;
        if n == 1 {
            let ready = ready_count(&staying, &queue).await?;
            equal("ready behind two prefetches of 1", 8, ready)?;
        }
        if n == 5 {
            task.nack(BasicNackOptions { requeue: true, ..Default::default() }).await?;
            task = stayed.take().await?;
            equal("after nack", (expected.to_string(), true), (text(&task.data), task.redelivered))?;
        }
        ack(&task).await?;
    }

    equal("ready tasks", 0, ready_count(&leaving, &queue).await?)?;
    equal("no second task at prefetch 1", true, left.is_empty().await)?;
    close(leaving).await?;
    let task = stayed.take().await?;
    equal("after its consumer left", ("task 0".into(), true), (text(&task.data), task.redelivered))?;
    ack(&task).await?;
    close(staying).await?;

    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    let declared = declare_durable(&channel, &queue).await?;
    equal("left over: messages, consumers", (0, 0), (declared.message_count(), declared.consumer_count()))?;
    close(connection).await
}

async fn subscribe(connection: &Connection, exchange: &str) -> Checked<(String, Inbox)> {
    let channel = connection.create_channel().await?;
    let queue = declare_exclusive(&channel).await?;
    equal("prefix of a server's name", Some("amq.gen-"), queue.get(..8))?;
    bind(&channel, &queue, exchange, "").await?;
    let inbox = Inbox::auto_ack(&channel, &queue).await?;
    Ok((queue, inbox))
}

pub async fn publish_subscribe(names: &Names) -> Checked {
    let exchange = names.exchange("logs");
    let (publisher, first, second) = (connect().await?, connect().await?, connect().await?);
    let channel = publisher.create_channel().await?;
    channel
        .exchange_declare(
            exchange.as_str().into(),
            ExchangeKind::Fanout,
            ExchangeDeclareOptions::default(),
            FieldTable::default(),
        )
        .await?;
    let (first_queue, mut first_inbox) = subscribe(&first, &exchange).await?;
    let (second_queue, mut second_inbox) = subscribe(&second, &exchange).await?;
    equal("two different names", true, first_queue != second_queue)?;

    let none = BasicProperties::default;
    for n in 0..5 {
        publish(&channel, &exchange, "any key", format!("log {n}").as_bytes(), none()).await?;
    }
    for inbox in [&mut first_inbox, &mut second_inbox] {
        for n in 0..5 {
            let log = inbox.take().await?;
            equal(
                "log",
                (format!("log {n}"), exchange.as_str(), "any key", false),
                (text(&log.data), log.exchange.as_str(), log.routing_key.as_str(), log.redelivered),
            )?;
        }
    }

    second_inbox
        .channel
        .queue_unbind(second_queue.as_str().into(), exchange.as_str().into(), "".into(), FieldTable::default())
        .await?;
    publish(&channel, &exchange, "", b"for the bound one", none()).await?;
    publish(&channel, "", &second_queue, b"end", none()).await?;
    equal("bound subscriber", "for the bound one", text(&first_inbox.take().await?.data))?;
    equal("unbound subscriber", "end", text(&second_inbox.take().await?.data))?;

    let locked = format!(
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{first_queue}' in vhost '{}'. \
         It could be originally declared on another connection or the exclusive property value does not match \
         that of the original declaration.",
        vhost()
    );
    let first_seen = async || look(&publisher.create_channel().await?, &first_queue).await;
    refused(405, &locked, first_seen().await)?;
    close(first).await?;
    let gone = format!("NOT_FOUND - no queue '{first_queue}' in vhost '{}'", vhost());
    refused(404, &gone, first_seen().await)?;
    close(second).await?;
    close(publisher).await
}

/// One queue: its role, its binding keys, and the routing keys it must get.
type Route<'a> = (&'a str, &'a [&'a str], &'a [&'a str]);

/// Publishes one message per key; each queue must get the expected ones, in order, and no other.
async fn check_routes(names: &Names, kind: ExchangeKind, keys: &[&str], routes: &[Route<'_>]) -> Checked {
    let exchange = names.exchange("exchange");
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
    channel.exchange_declare(exchange.as_str().into(), kind, options, FieldTable::default()).await?;
    let mut inboxes = Vec::new();
    for (role, binding_keys, expected) in routes {
        let queue = declare_exclusive(&channel).await?;
        for key in *binding_keys {
            bind(&channel, &queue, &exchange, key).await?;
        }
        let inbox = Inbox::auto_ack(&channel, &queue).await?;
        inboxes.push((*role, queue, inbox, *expected));
    }
    for key in keys {
        publish(&channel, &exchange, key, key.as_bytes(), BasicProperties::default()).await?;
    }
    for (role, queue, inbox, expected) in &mut inboxes {
        // Sent last, so what comes before it is all that there is.
        publish(&channel, "", queue, b"end", BasicProperties::default()).await?;
        let mut got = Vec::new();
        loop {
            let delivery = inbox.take().await?;
            if delivery.data == b"end" {
                break;
            }
            equal("routing key", text(&delivery.data), delivery.routing_key.as_str())?;
            got.push(delivery.routing_key.to_string());
        }
        equal(&format!("routing keys at queue '{role}'"), *expected, got.as_slice())?;
    }
    close(connection).await
}

pub async fn routing(names: &Names) -> Checked {
    let keys = ["info", "debug", "error", "warning", "error"];
    let routes: [Route<'_>; 2] = [
        ("all", &["info", "warning", "error"], &["info", "error", "warning", "error"]),
        // "error" twice: the same binding again is no second binding.
        ("errors", &["error", "error"], &["error", "error"]),
    ];
    check_routes(names, ExchangeKind::Direct, &keys, &routes).await
}

pub async fn topics(names: &Names) -> Checked {
    let keys = [
        "quick.orange.rabbit",
        "lazy.orange.elephant",
        "quick.orange.fox",
        "lazy.brown.fox",
        "lazy.pink.rabbit",
        "quick.brown.fox",
        "orange",
        "quick.orange.new.rabbit",
        "lazy.orange.new.rabbit",
        "lazy",
        "quick.rabbit",
        "",
    ];
    let lazy = [
        "quick.orange.rabbit",
        "lazy.orange.elephant",
        "lazy.brown.fox",
        "lazy.pink.rabbit",
        "lazy.orange.new.rabbit",
        "lazy",
    ];
    let routes: [Route<'_>; 5] = [
        ("orange", &["*.orange.*"], &["quick.orange.rabbit", "lazy.orange.elephant", "quick.orange.fox"]),
        ("lazy", &["*.*.rabbit", "lazy.#"], &lazy),
        ("one", &["*"], &["orange", "lazy"]),
        ("ends", &["quick.#.rabbit"], &["quick.orange.rabbit", "quick.orange.new.rabbit", "quick.rabbit"]),
        ("all", &["#"], &keys),
    ];
    check_routes(names, ExchangeKind::Topic, &keys, &routes).await
}

/// Answers the next request with its number squared; gives the address it answered to.
async fn serve_one(requests: &mut Inbox) -> Checked<String> {
    let request = requests.take().await?;
    let number: u32 = text(&request.data).parse().unwrap_or_default();
    let reply_to = request.properties.reply_to().clone().unwrap_or_default();
    let correlation_id = request.properties.correlation_id().clone().unwrap_or_default();
    let properties = BasicProperties::default().with_correlation_id(correlation_id);
    let square = (number * number).to_string();
    publish(&requests.channel, "", reply_to.as_str(), square.as_bytes(), properties).await?;
    ack(&request).await?;
    Ok(reply_to.to_string())
}

pub async fn rpc(names: &Names) -> Checked {
    const DIRECT: &str = "amq.rabbitmq.reply-to";
    let queue = names.queue("requests");
    let (server, client) = (connect().await?, connect().await?);
    let serving = server.create_channel().await?;
    declare_durable(&serving, &queue).await?;
    prefetch(&serving, 1).await?;
    let mut requests = Inbox::acking(&serving, &queue).await?;
    let calling = client.create_channel().await?;
    let call = async |n: u32, reply_to: &str| {
        let properties =
            BasicProperties::default().with_reply_to(reply_to.into()).with_correlation_id(format!("call {n}").into());
        publish(&calling, "", &queue, n.to_string().as_bytes(), properties).await
    };
    let id = |n: u32| Some(format!("call {n}").into());

    let callback = declare_exclusive(&calling).await?;
    let mut replies = Inbox::auto_ack(&calling, &callback).await?;
    for n in 0..5 {
        call(n, &callback).await?;
    }
    for _ in 0..5 {
        equal("reply_to", callback.as_str(), serve_one(&mut requests).await?)?;
    }
    for n in 0..5 {
        let reply = replies.take().await?;
        equal("reply", ((n * n).to_string(), &id(n)), (text(&reply.data), reply.properties.correlation_id()))?;
    }

    let mut direct = Inbox::auto_ack(&calling, DIRECT).await?;
    for n in 5..8 {
        call(n, DIRECT).await?;
    }
    for _ in 5..8 {
        let reply_to = serve_one(&mut requests).await?;
        equal("rewritten reply_to", Some("amq.rabbitmq.reply-to."), reply_to.get(..22))?;
    }
    for n in 5..8 {
        let reply = direct.take().await?;
        equal(
            "direct reply",
            ((n * n).to_string(), &id(n), "", false),
            (text(&reply.data), reply.properties.correlation_id(), reply.exchange.as_str(), reply.redelivered),
        )?;
    }

    let other = client.create_channel().await?;
    let options = BasicConsumeOptions::default();
    refused(
        406,
        "PRECONDITION_FAILED - reply consumer cannot acknowledge",
        other.basic_consume(DIRECT.into(), "".into(), options, FieldTable::default()).await,
    )?;
    let none = "PRECONDITION_FAILED - fast reply consumer does not exist";
    refused_silently(&client, 406, none, async |channel| {
        let properties = BasicProperties::default().with_reply_to(DIRECT.into());
        channel.basic_publish("".into(), queue.as_str().into(), Default::default(), b"1", properties).await.map(|_| ())
    })
    .await?;
    close(server).await?;
    close(client).await
}
