//! Queues, and getting from them (management reference 1.8).

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::Path;
use base64::Engine as _;
use leveret_protocol::Properties;
use serde_json::{Map, Value, json};

use super::clients;
use super::counts::{Counts, counts_json};
use crate::definitions::{self, to_json_table};
use crate::management::caller::Cx;
use crate::management::error::{Answer, ApiError};
use crate::management::input::Input;
use crate::management::list::{Columns, Page, Sort};
use crate::management::{json as amqp, list};
use crate::model::arguments::QueueType;
use crate::model::broker::Broker;
use crate::model::policy::Target;
use crate::model::queue::Queue;
use crate::model::record::Name;
use crate::server::Server;
use crate::server::admin::{AckMode, Got, QueueSpec};

/// Queues looked at while a vhost's lock is held once: the others in it wait for less than a millisecond.
const SLICE: usize = 128;

/// A queue as RabbitMQ shows it, live.
fn queue_json(node: &str, broker: &Broker, queue: &Queue) -> Value {
    let mut item = definitions::queue_json(queue);
    let (policy, operator, effective) = broker.applied_policies(&queue.name, Target::Queue(queue.queue_type));
    let (ready, unacked) = (queue.ready_count(), queue.unacked_count);
    let rate = json!({"rate": 0.0});
    let active = broker.active_consumer(queue).map(|consumer| amqp::text(&consumer.tag));
    let rest = json!({
        "vhost": &**broker.vhost(),
        "type": queue.queue_type.as_str(),
        "exclusive": queue.exclusive_owner.is_some(),
        "node": node,
        "state": "running",
        "internal": false,
        "internal_owner": false,
        "policy": policy.map(|policy| &*policy.name),
        "operator_policy": operator.map(|policy| &*policy.name),
        "effective_policy_definition": to_json_table(effective.definition()),
        "messages": ready + unacked,
        "messages_details": rate,
        "messages_ready": ready,
        "messages_ready_details": rate,
        "messages_unacknowledged": unacked,
        "messages_unacknowledged_details": rate,
        "message_bytes": queue.ready_bytes(),
        "message_bytes_ready": queue.ready_bytes(),
        "message_bytes_unacknowledged": 0,
        "consumers": queue.consumers.len(),
        "consumer_capacity": i32::from(!queue.consumers.is_empty()),
        "consumer_utilisation": i32::from(!queue.consumers.is_empty()),
        "exclusive_consumer_tag": null,
        "single_active_consumer_tag": active,
        "memory": queue.memory(),
        "reductions": 0,
        "reductions_details": rate,
        "storage_version": 2,
        "message_stats": counts_json(&Counts::of(&queue.stats)),
    });
    if let (Value::Object(item), Value::Object(rest)) = (&mut item, rest) {
        item.extend(rest);
    }
    match queue.queue_type {
        QueueType::Classic => {}
        QueueType::Quorum | QueueType::Stream => {
            item["leader"] = node.into();
            item["members"] = json!([node]);
            item["online"] = json!([node]);
        }
    }
    if let Some(owner) = queue.exclusive_owner.and_then(|owner| broker.connection(owner)) {
        let peer = owner.info.socket.as_ref().map(|socket| socket.peer);
        item["owner_pid_details"] = json!({
            "name": &*owner.info.name,
            "peer_host": peer.map(|peer| peer.ip().to_string()),
            "peer_port": peer.map(|peer| peer.port()),
        });
    }
    item
}

/// The names of all queues of these vhosts, in order.
fn names(cx: &Cx, vhosts: &[Name]) -> Vec<(Name, Name)> {
    let mut all = Vec::new();
    for vhost in vhosts {
        let found =
            cx.server().look(vhost, |broker| broker.queues().map(|queue| queue.name.clone()).collect::<Vec<_>>());
        let mut found = found.unwrap_or_default();
        found.sort();
        all.extend(found.into_iter().map(|name| (vhost.clone(), name)));
    }
    all
}

/// These queues, those of them that are still there. In one vhost as far as `names` begins with it.
fn look(server: &Server, names: &[(Name, Name)]) -> Vec<Value> {
    let node = &server.node_info.name;
    let mut all = Vec::with_capacity(names.len());
    for slice in names.chunk_by(|one, other| one.0 == other.0).flat_map(|one_vhost| one_vhost.chunks(SLICE)) {
        server.look(&slice[0].0, |broker| {
            let queues = slice.iter().filter_map(|(_, name)| broker.queue(name));
            all.extend(queues.map(|queue| queue_json(node, broker, queue)));
        });
    }
    all
}

/// A page, or everything; the latter is written as it is sent, so that it takes no memory to speak of.
fn answer(cx: &Cx, vhosts: &[Name]) -> Answer {
    let mut names = names(cx, vhosts);
    let sort = Sort::of(&cx.query);
    let columns = Columns::of(&cx.query);
    let page = Page::of(&cx.query)?;
    let total = names.len();
    if let Some(page) = &page {
        names.retain(|(_, name)| page.matches(name));
    }
    if let Some(sort) = &sort {
        let mut keyed: Vec<(Value, (Name, Name))> = Vec::with_capacity(names.len());
        for slice in names.chunks(SLICE) {
            let looked = look(cx.server(), slice);
            // A queue that went meanwhile leaves the rest in their order.
            let mut of = looked.iter().peekable();
            for name in slice {
                if let Some(item) = of.next_if(|item| item["name"] == *name.1) {
                    keyed.push((sort.key(item), name.clone()));
                }
            }
        }
        keyed.sort_by(|(one, _), (other, _)| sort.compare(one, other));
        names = keyed.into_iter().map(|(_, name)| name).collect();
    }
    if let Some(page) = page {
        let range = page.range(names.len())?;
        let items = list::pick_all(columns.as_ref(), look(cx.server(), &names[range]));
        return list::ok(&page.wrap(total, names.len(), items.len(), items));
    }
    let management = cx.management.clone();
    let mut at = 0;
    Ok(list::json_response(Body::new(Pieces(move || {
        if at > names.len() {
            return None;
        }
        let end = (at + SLICE).min(names.len());
        let mut piece = Vec::new();
        let mut first = at == 0;
        for item in list::pick_all(columns.as_ref(), look(&management.server, &names[at..end])) {
            piece.push(if std::mem::take(&mut first) { b'[' } else { b',' });
            let _ = serde_json::to_writer(&mut piece, &item);
        }
        if at == 0 && first {
            piece.push(b'[');
        }
        at = end;
        if end == names.len() {
            piece.push(b']');
            at = names.len() + 1;
        }
        Some(piece)
    }))))
}

/// A body that is made piece by piece.
struct Pieces<F>(F);

impl<F: FnMut() -> Option<Vec<u8>> + Unpin> http_body::Body for Pieces<F> {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        Poll::Ready((self.0)().map(|piece| Ok(http_body::Frame::data(piece.into()))))
    }
}

pub async fn all(cx: Cx) -> Answer {
    answer(&cx, &cx.vhosts())
}

pub async fn of_vhost(cx: Cx, Path(vhost): Path<String>) -> Answer {
    cx.needs_vhost(&vhost)?;
    answer(&cx, &[vhost.into()])
}

pub async fn get(cx: Cx, Path((vhost, name)): Path<(String, String)>) -> Answer {
    cx.needs_vhost(&vhost)?;
    let names = [(Name::from(vhost.as_str()), Name::from(name.as_str()))];
    let mut found = look(cx.server(), &names).pop().ok_or_else(ApiError::not_found)?;
    let of_queue = |item: &Value| item["queue"]["name"] == *name;
    found["consumer_details"] = clients::consumers(&cx, &[vhost.as_str().into()], of_queue).into();
    found["incoming"] = json!([]);
    found["deliveries"] = json!([]);
    list::one(&cx.query, &found)
}

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
