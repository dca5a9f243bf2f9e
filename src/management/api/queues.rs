//! Queues, and getting from them (management reference 1.8).

use axum::extract::Path;
use base64::Engine as _;
use leveret_protocol::Properties;
use serde_json::{Map, Value, json};

use crate::definitions::to_json_table;
use crate::management::caller::Cx;
use crate::management::error::{Answer, ApiError};
use crate::management::input::Input;
use crate::management::{json as amqp, list};
use crate::server::admin::{AckMode, Got, QueueSpec};

pub async fn put(cx: Cx, Path((vhost, name)): Path<(String, String)>, input: Input) -> Answer {
    cx.needs_vhost_to_change(&vhost)?;
    let spec = QueueSpec {
        durable: input.boolean("durable")?.unwrap_or(false),
        auto_delete: input.boolean("auto_delete")?.unwrap_or(false),
        arguments: amqp::table(input.get("arguments"))?,
    };
    if name.len() > leveret_protocol::SHORT_STRING_MAX {
        return Err(ApiError::bad_request("queue name longer than 255 bytes"));
    }
    list::put(cx.server().declare_queue(&vhost, &name, &spec, &cx.user).await?)
}

pub async fn delete(cx: Cx, Path((vhost, name)): Path<(String, String)>) -> Answer {
    cx.needs_vhost(&vhost)?;
    let (if_unused, if_empty) = (cx.query.is_true("if-unused"), cx.query.is_true("if-empty"));
    cx.server().delete_queue(&vhost, &name, if_unused, if_empty, &cx.user).await?;
    list::done()
}

pub async fn purge(cx: Cx, Path((vhost, name)): Path<(String, String)>) -> Answer {
    cx.needs_vhost(&vhost)?;
    cx.server().purge_queue(&vhost, &name, &cx.user).await?;
    list::done()
}

/// Actions were those of mirrored queues, which are no more.
pub async fn action(cx: Cx, Path((vhost, name)): Path<(String, String)>, input: Input) -> Answer {
    cx.needs_vhost(&vhost)?;
    if !cx.server().has_queue(&vhost, &name) {
        return Err(ApiError::not_found());
    }
    input.needs(&["action"])?;
    let action = input.text("action")?.unwrap_or_default();
    Err(ApiError::bad_request(Value::from(vec!["unknown_action", action])))
}

pub async fn get_messages(cx: Cx, Path((vhost, name)): Path<(String, String)>, input: Input) -> Answer {
    cx.needs_vhost(&vhost)?;
    if !cx.server().has_queue(&vhost, &name) {
        return Err(ApiError::missing("queue_not_found"));
    }
    // What clients of RabbitMQ before 3.7 send.
    let old = input.boolean("requeue").ok().flatten().filter(|_| input.get("ackmode").is_none());
    let keys: &[&str] = if old.is_some() { &["count", "encoding"] } else { &["count", "ackmode", "encoding"] };
    input.needs(keys)?;
    let mode = match (input.text("ackmode")?, old) {
        (Some("ack_requeue_true"), _) | (None, Some(true)) => AckMode::Requeue,
        (Some("ack_requeue_false"), _) | (None, Some(false)) => AckMode::Ack,
        (Some("reject_requeue_true"), _) => AckMode::RejectRequeue,
        (Some("reject_requeue_false"), _) => AckMode::Reject,
        _ => return Err(ApiError::bad_request("unsupported_ackmode")),
    };
    let always_base64 = match input.text("encoding")?.unwrap_or_default() {
        "auto" => false,
        "base64" => true,
        other => return Err(ApiError::bad_request(format!("unsupported_encoding: {other}"))),
    };
    let count = u64::try_from(input.integer("count")?.unwrap_or(1)).unwrap_or(0);
    let truncate = input.integer("truncate")?.and_then(|length| usize::try_from(length).ok());
    let got = cx.server().get(&vhost, &name, count, mode, &cx.user).await;
    let got = got.map_err(|error| ApiError::on_channel(error, "queue_not_found"))?;
    list::ok(&got.iter().map(|message| message_json(message, always_base64, truncate)).collect::<Vec<_>>())
}

fn message_json(message: &Got, always_base64: bool, truncate: Option<usize>) -> Value {
    let shown = &message.body[..truncate.unwrap_or(usize::MAX).min(message.body.len())];
    let (payload, encoding) = match std::str::from_utf8(shown) {
        Ok(text) if !always_base64 => (text.to_owned(), "string"),
        _ => (base64::engine::general_purpose::STANDARD.encode(shown), "base64"),
    };
    json!({
        "payload_bytes": message.body.len(),
        "redelivered": message.redelivered,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "message_count": message.message_count,
        "properties": properties_json(&message.properties),
        "payload": payload,
        "payload_encoding": encoding,
    })
}

/// Only what is set; an empty array if nothing is, as RabbitMQ has it.
fn properties_json(properties: &Properties) -> Value {
    let mut set = Map::new();
    let texts = [
        ("type", &properties.type_),
        ("app_id", &properties.app_id),
        ("user_id", &properties.user_id),
        ("cluster_id", &properties.cluster_id),
        ("message_id", &properties.message_id),
        ("expiration", &properties.expiration),
        ("reply_to", &properties.reply_to),
        ("correlation_id", &properties.correlation_id),
        ("content_encoding", &properties.content_encoding),
        ("content_type", &properties.content_type),
    ];
    for (name, value) in texts {
        if let Some(value) = value {
            set.insert(name.to_owned(), amqp::text(value).into());
        }
    }
    let numbers = [
        ("timestamp", properties.timestamp),
        ("priority", properties.priority.map(u64::from)),
        ("delivery_mode", properties.delivery_mode.map(u64::from)),
    ];
    for (name, value) in numbers {
        if let Some(value) = value {
            set.insert(name.to_owned(), value.into());
        }
    }
    if let Some(headers) = &properties.headers {
        set.insert("headers".to_owned(), to_json_table(headers));
    }
    if set.is_empty() { Value::Array(Vec::new()) } else { Value::Object(set) }
}
