//! Publisher confirms; contents and properties that must come back as they went.

use lapin::options::{
    BasicCancelOptions, BasicGetOptions, BasicPublishOptions, BasicRejectOptions, ConfirmSelectOptions,
    QueueDeclareOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, PublisherConfirm};

use crate::harness::{
    Checked, Failure, Inbox, Names, URL, ack, close, connect, declare_durable, equal, publish, publish_confirmed,
    ready_count, text,
};

async fn send(channel: &Channel, queue: &str, body: &str, mandatory: bool) -> Checked<PublisherConfirm> {
    let options = BasicPublishOptions { mandatory, ..Default::default() };
    let persistent = BasicProperties::default().with_delivery_mode(2);
    Ok(channel.basic_publish("".into(), queue.into(), options, body.as_bytes(), persistent).await?)
}

pub async fn confirms(names: &Names) -> Checked {
    let (queue, short) = (names.queue("confirmed"), names.queue("short"));
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    declare_durable(&channel, &queue).await?;
    let mut limit = FieldTable::default();
    limit.insert("x-max-length".into(), AMQPValue::LongInt(1));
    limit.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(short.as_str().into(), options, limit).await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;

    equal("single", Confirmation::Ack(None), send(&channel, &queue, "single", false).await?.await?)?;
    equal("messages after one confirm", 1, ready_count(&connection, &queue).await?)?;

    let mut outstanding = Vec::new();
    for n in 0..1000 {
        outstanding.push(send(&channel, &queue, &format!("batch {n}"), false).await?);
    }
    for confirm in outstanding {
        equal("confirm in the batch", Confirmation::Ack(None), confirm.await?)?;
    }
    let purged = channel.queue_purge(queue.as_str().into(), QueuePurgeOptions::default()).await?;
    equal("messages after the batch", 1 + 1000, purged)?;

    // lapin puts the returned message into the ack only if it came before.
    let nowhere = format!("{queue}.none");
    let Confirmation::Ack(Some(lost)) = send(&channel, &nowhere, "lost", true).await?.await? else {
        return Err(Failure("unroutable mandatory message: expected its return, then ack; got no return".into()));
    };
    equal(
        "returned message",
        (312, "NO_ROUTE", "", nowhere.as_str(), "lost".into(), &BasicProperties::default().with_delivery_mode(2)),
        (
            lost.reply_code,
            lost.reply_text.as_str(),
            lost.exchange.as_str(),
            lost.routing_key.as_str(),
            text(&lost.data),
            &lost.properties,
        ),
    )?;
    let unroutable = send(&channel, &nowhere, "lost", false).await?.await?;
    equal("unroutable, not mandatory", Confirmation::Ack(None), unroutable)?;

    equal("fits", Confirmation::Ack(None), send(&channel, &short, "fits", false).await?.await?)?;
    let too_many = send(&channel, &short, "one too many", false).await?.await?;
    equal("publish to a full queue", Confirmation::Nack(None), too_many)?;
    close(connection).await
}

/// One header of each kind, so that none changes its type on the way.
fn headers() -> FieldTable {
    let mut deep = FieldTable::default();
    deep.insert("deep".into(), AMQPValue::LongInt(3));
    let list = FieldArray::from(vec![
        AMQPValue::LongInt(1),
        AMQPValue::LongString("two".into()),
        AMQPValue::Boolean(false),
        AMQPValue::FieldTable(deep),
    ]);
    let mut nested = FieldTable::default();
    nested.insert("list".into(), AMQPValue::FieldArray(list));
    let mut headers = FieldTable::default();
    for (name, value) in [
        ("text", AMQPValue::LongString("snowman \u{2603}".into())),
        ("flag", AMQPValue::Boolean(true)),
        ("i8", AMQPValue::ShortShortInt(-7)),
        ("u8", AMQPValue::ShortShortUInt(200)),
        ("i16", AMQPValue::ShortInt(-700)),
        ("u16", AMQPValue::ShortUInt(60_000)),
        ("i32", AMQPValue::LongInt(-70_000)),
        ("u32", AMQPValue::LongUInt(4_000_000_000)),
        ("i64", AMQPValue::LongLongInt(-(1 << 40))),
        ("float", AMQPValue::Float(0.5)),
        ("double", AMQPValue::Double(1.1)),
        ("decimal", AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 314 })),
        ("bytes", AMQPValue::ByteArray([0, 255].as_slice().into())),
        ("time", AMQPValue::Timestamp(1_709_208_000)),
        ("nothing", AMQPValue::Void),
        ("table", AMQPValue::FieldTable(nested)),
    ] {
        headers.insert(name.into(), value);
    }
    headers
}

fn all_properties() -> BasicProperties {
    BasicProperties::default()
        .with_content_type("application/octet-stream".into())
        .with_content_encoding("identity".into())
        .with_headers(headers())
        .with_delivery_mode(2)
        .with_priority(3)
        .with_correlation_id("correlation".into())
        .with_reply_to("reply".into())
        .with_expiration("60000".into())
        .with_message_id("message".into())
        .with_timestamp(1_700_000_000)
        .with_type("type".into())
        .with_user_id(URL.authority.userinfo.username.as_str().into())
        .with_app_id("app".into())
        .with_cluster_id("cluster".into())
}

pub async fn messages(names: &Names) -> Checked {
    let queue = names.queue("messages");
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    declare_durable(&channel, &queue).await?;
    let mut inbox = Inbox::acking(&channel, &queue).await?;
    // A period that is no power of two, so that swapped or repeated frames show.
    let large: Vec<u8> = (0..1024 * 1024_u32).map(|i| (i % 251) as u8).collect();
    for (what, body, properties) in [
        ("1 MiB body", large.as_slice(), all_properties()),
        ("empty body", b"", all_properties()),
        ("no properties", b"bare", BasicProperties::default()),
        ("empty header table", b"", BasicProperties::default().with_headers(FieldTable::default())),
    ] {
        publish(&channel, "", &queue, body, properties.clone()).await?;
        let got = inbox.take().await?;
        equal(&format!("bytes of the {what}"), body.len(), got.data.len())?;
        equal(&format!("{what} unchanged"), true, body == got.data)?;
        equal(&format!("properties with {what}"), &properties, &got.properties)?;
        ack(&got).await?;
    }
    channel.basic_cancel(inbox.tag(), BasicCancelOptions::default()).await?;

    publish_confirmed(&connection, &queue, &["one", "two", "three"], BasicProperties::default()).await?;
    for expected in [("one", false, 2), ("one", true, 2), ("two", false, 1), ("three", false, 0)] {
        let got = channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await?;
        let got = got.ok_or_else(|| Failure(format!("get: expected {expected:?}, got an empty queue")))?;
        let message = &got.delivery;
        equal(
            "get: body, redelivered, left over",
            (expected.0.into(), expected.1, expected.2),
            (text(&message.data), message.redelivered, got.message_count),
        )?;
        equal(
            "get: exchange, routing key",
            ("", queue.as_str()),
            (message.exchange.as_str(), message.routing_key.as_str()),
        )?;
        if expected == ("one", false, 2) {
            message.reject(BasicRejectOptions { requeue: true }).await?;
        } else {
            ack(message).await?;
        }
    }
    let got = channel.basic_get(queue.into(), BasicGetOptions::default()).await?;
    equal("get from an empty queue", None, got)?;
    close(connection).await
}
