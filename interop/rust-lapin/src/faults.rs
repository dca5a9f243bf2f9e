//! What the broker refuses and what goes on afterwards; the ends of queues and consumers.

use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicRejectOptions, QueueDeclareOptions,
    QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Connection, ConnectionProperties};

use crate::harness::{
    Checked, Failure, Inbox, Names, URL, close, connect, declare_durable, equal, look, publish_confirmed, refused,
    refused_silently, text, vhost,
};

pub async fn errors(names: &Names) -> Checked {
    let (queue, missing) = (names.queue("durable"), names.queue("missing"));
    let vhost = vhost();
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    declare_durable(&channel, &queue).await?;
    publish_confirmed(&connection, &queue, &["still here"], BasicProperties::default()).await?;

    let no_queue = format!("NOT_FOUND - no queue '{missing}' in vhost '{vhost}'");
    let other = connection.create_channel().await?;
    refused(404, &no_queue, look(&other, &missing).await)?;
    let other = connection.create_channel().await?;
    let options = BasicConsumeOptions::default();
    let consumed = other.basic_consume(missing.as_str().into(), "".into(), options, FieldTable::default()).await;
    refused(404, &no_queue, consumed)?;
    let inequivalent = format!(
        "PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{queue}' in vhost '{vhost}': \
         received 'false' but current is 'true'"
    );
    let other = connection.create_channel().await?;
    let options = QueueDeclareOptions::default();
    refused(406, &inequivalent, other.queue_declare(queue.as_str().into(), options, FieldTable::default()).await)?;
    refused_silently(&connection, 406, "PRECONDITION_FAILED - unknown delivery tag 99", async |channel| {
        channel.basic_ack(99, BasicAckOptions::default()).await
    })
    .await?;
    let no_exchange = format!("NOT_FOUND - no exchange '{missing}' in vhost '{vhost}'");
    refused_silently(&connection, 404, &no_exchange, async |channel| {
        let exchange = missing.as_str().into();
        let none = BasicProperties::default();
        channel.basic_publish(exchange, "".into(), Default::default(), b"lost", none).await.map(|_| ())
    })
    .await?;

    let after = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await?;
    let after = after.ok_or_else(|| Failure("message after the channel errors: expected one, got none".into()))?;
    equal(
        "message after the channel errors",
        ("still here".into(), false),
        (text(&after.delivery.data), after.delivery.redelivered),
    )?;
    close(connection).await?;

    let mut url = URL.clone();
    url.authority.userinfo.password = "wrong".into();
    refused(
        403,
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile.",
        Connection::connect_uri(url, ConnectionProperties::default()).await,
    )?;
    let mut url = URL.clone();
    url.vhost = missing.clone();
    let no_vhost = format!("NOT_ALLOWED - vhost {missing} not found");
    refused(530, &no_vhost, Connection::connect_uri(url, ConnectionProperties::default()).await)
}

pub async fn queues(names: &Names) -> Checked {
    let (queue, auto_delete) = (names.queue("queue"), names.queue("auto-delete"));
    let vhost = vhost();
    let none = BasicProperties::default;
    let (connection, other) = (connect().await?, connect().await?);
    let channel = connection.create_channel().await?;
    declare_durable(&channel, &queue).await?;
    publish_confirmed(&connection, &queue, &["held", "purged", "purged"], none()).await?;
    let held = channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await?;
    let held = held.ok_or_else(|| Failure("get: expected a message, got an empty queue".into()))?;
    let purged = channel.queue_purge(queue.as_str().into(), QueuePurgeOptions::default()).await?;
    equal("purged: ready ones only", 2, purged)?;
    held.delivery.reject(BasicRejectOptions { requeue: true }).await?;
    // The next call is on another channel: wait until the message is back.
    look(&channel, &queue).await?;
    let not_empty = format!("PRECONDITION_FAILED - queue '{queue}' in vhost '{vhost}' not empty");
    let options = QueueDeleteOptions { if_empty: true, ..Default::default() };
    let refusing = connection.create_channel().await?;
    refused(406, &not_empty, refusing.queue_delete(queue.as_str().into(), options).await)?;

    let mut inbox = Inbox::acking(&channel, &queue).await?;
    let held = inbox.take().await?;
    equal("held message", ("held".into(), true), (text(&held.data), held.redelivered))?;
    let in_use = format!("PRECONDITION_FAILED - queue '{queue}' in vhost '{vhost}' in use");
    let options = QueueDeleteOptions { if_unused: true, ..Default::default() };
    let refusing = connection.create_channel().await?;
    refused(406, &in_use, refusing.queue_delete(queue.as_str().into(), options).await)?;
    publish_confirmed(&other, &queue, &["unacked too"], none()).await?;
    inbox.take().await?;
    let deleting = other.create_channel().await?;
    let deleted = deleting.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await?;
    equal("deleted: ready ones only", 0, deleted)?;
    inbox.ends().await?;
    let deleted = deleting.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
    equal("deleted once more", 0, deleted)?;

    let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
    channel.queue_declare(auto_delete.as_str().into(), options, FieldTable::default()).await?;
    let inbox = Inbox::acking(&channel, &auto_delete).await?;
    channel.basic_cancel(inbox.tag(), BasicCancelOptions::default()).await?;
    let gone = format!("NOT_FOUND - no queue '{auto_delete}' in vhost '{vhost}'");
    refused(404, &gone, look(&channel, &auto_delete).await)?;
    close(other).await?;
    close(connection).await
}
