//! Connections, channels and consumers (management reference 1.7), complete from the first moment.

use std::sync::atomic::Ordering;

use axum::extract::Path;
use axum::http::HeaderMap;
use serde_json::{Value, json};

use crate::definitions::to_json_table;
use crate::management::caller::Cx;
use crate::management::error::{Answer, ApiError};
use crate::management::{json as amqp, list};
use crate::model::broker::Broker;
use crate::model::channel::{Channel, Consumer};
use crate::model::connection::{Connection, ConnectionState, Socket};
use crate::model::record::Name;

/// Shown where there is nothing to tell.
fn no_rate() -> Value {
    json!({"rate": 0.0})
}

fn collector() -> Value {
    json!({"minor_gcs": 0, "fullsweep_after": 65535, "min_heap_size": 233, "min_bin_vheap_size": 46422,
           "max_heap_size": 0})
}

fn connection_json(node: &str, broker: &Broker, connection: &Connection, socket: &Socket) -> Value {
    let info = &connection.info;
    let traffic = &socket.traffic;
    let mut item = json!({
        "name": &*info.name,
        "node": node,
        "type": "network",
        "state": match connection.state {
            ConnectionState::Running => "running",
            _ => "closing",
        },
        "protocol": "AMQP 0-9-1",
        "vhost": &**broker.vhost(),
        "user": &*info.user.name,
        "user_who_performed_action": &*info.user.name,
        "auth_mechanism": &*socket.mechanism,
        "connected_at": socket.connected_at,
        "timeout": info.heartbeat_s,
        "frame_max": info.frame_max,
        "channel_max": info.channel_max,
        "channels": connection.open_channels().count(),
        "host": socket.local.ip().to_string(),
        "port": socket.local.port(),
        "peer_host": socket.peer.ip().to_string(),
        "peer_port": socket.peer.port(),
        "ssl": false,
        "ssl_protocol": null,
        "ssl_key_exchange": null,
        "ssl_cipher": null,
        "ssl_hash": null,
        "peer_cert_subject": null,
        "peer_cert_issuer": null,
        "peer_cert_validity": null,
        "client_properties": to_json_table(&info.client_properties),
        "recv_oct": traffic.received_bytes.load(Ordering::Relaxed),
        "recv_oct_details": no_rate(),
        "send_oct": traffic.sent_bytes.load(Ordering::Relaxed),
        "send_oct_details": no_rate(),
        "recv_cnt": traffic.reads.load(Ordering::Relaxed),
        "send_cnt": traffic.writes.load(Ordering::Relaxed),
        "send_pend": 0,
        "reductions": 0,
        "reductions_details": no_rate(),
        "garbage_collection": collector(),
    });
    if let Some(name) = info.client_properties.get("connection_name").and_then(|name| name.as_str()) {
        item["user_provided_name"] = name.into();
    }
    item
}

/// Connections that `wanted` picks, among those that the caller may see, by vhost and name.
fn connections(cx: &Cx, vhosts: &[Name], wanted: impl Fn(&Connection) -> bool) -> Vec<Value> {
    let node = &cx.server().node_info.name;
    let mut all = Vec::new();
    for vhost in vhosts {
        let found = cx.server().look(vhost, |broker| {
            let seen = broker.clients().filter(|(_, one)| may_see(cx, one) && wanted(one));
            seen.filter_map(|(_, one)| Some(connection_json(node, broker, one, one.info.socket.as_ref()?)))
                .collect::<Vec<_>>()
        });
        let mut found = found.unwrap_or_default();
        found.sort_by(|one, other| one["name"].as_str().cmp(&other["name"].as_str()));
        all.append(&mut found);
    }
    all
}

/// Others' connections are for those who monitor.
fn may_see(cx: &Cx, connection: &Connection) -> bool {
    cx.is_monitor() || connection.info.user.name == cx.user.name
}

pub async fn all_connections(cx: Cx) -> Answer {
    list::paged(&cx.query, &connections(&cx, &cx.vhosts(), |_| true))
}

pub async fn connections_of_vhost(cx: Cx, Path(vhost): Path<String>) -> Answer {
    cx.needs_vhost(&vhost)?;
    list::paged(&cx.query, &connections(&cx, &[vhost.into()], |_| true))
}

pub async fn connections_of_user(cx: Cx, Path(user): Path<String>) -> Answer {
    list::paged(&cx.query, &connections(&cx, &cx.vhosts(), |one| *one.info.user.name == *user))
}

pub async fn connection(cx: Cx, Path(name): Path<String>) -> Answer {
    let found = connections(&cx, &cx.vhosts(), |one| *one.info.name == *name);
    list::one(&cx.query, found.first().ok_or_else(ApiError::not_found)?)
}

pub async fn close_connection(cx: Cx, Path(name): Path<String>, headers: HeaderMap) -> Answer {
    let (vhost, key) = cx.server().find_connection(&name).ok_or_else(ApiError::not_found)?;
    let own =
        cx.server().look(&vhost, |broker| broker.connection(key).is_some_and(|one| one.info.user.name == cx.user.name));
    if !cx.is_administrator() && own != Some(true) {
        return Err(ApiError::not_authorised("User not authorised to access object"));
    }
    if cx.server().close_connection(&vhost, key, reason(&headers)) { list::done() } else { Err(ApiError::not_found()) }
}

pub async fn close_connections_of_user(cx: Cx, Path(user): Path<String>, headers: HeaderMap) -> Answer {
    if !cx.is_administrator() && *cx.user.name != *user {
        return Err(ApiError::not_authorised("User not authorised to access object"));
    }
    cx.server().close_connections_of_user(&user, reason(&headers));
    list::done()
}

fn reason(headers: &HeaderMap) -> &str {
    let given = headers.get("x-reason").and_then(|reason| reason.to_str().ok()).filter(|reason| !reason.is_empty());
    given.unwrap_or("Closed via management plugin")
}

/// AMQP 1.0 has sessions; there are none.
pub async fn sessions(cx: Cx, Path(name): Path<String>) -> Answer {
    cx.server().find_connection(&name).ok_or_else(ApiError::not_found)?;
    list::ok(&json!([]))
}

fn channel_name(connection: &Connection, channel: &Channel) -> String {
    format!("{} ({})", connection.info.name, channel.number)
}

fn channel_json(node: &str, broker: &Broker, connection: &Connection, channel: &Channel) -> Value {
    let info = &connection.info;
    let peer = info.socket.as_ref().map(|socket| socket.peer);
    let (tx_publishes, tx_acks) = channel.tx.as_ref().map_or((0, 0), |tx| {
        (tx.publishes.len(), tx.settlements.iter().map(|(_, deliveries)| deliveries.len()).sum::<usize>())
    });
    json!({
        "name": channel_name(connection, channel),
        "number": channel.number,
        "node": node,
        "vhost": &**broker.vhost(),
        "user": &*info.user.name,
        "user_who_performed_action": &*info.user.name,
        "state": "running",
        "connection_details": {
            "name": &*info.name,
            "peer_host": peer.map(|peer| peer.ip().to_string()),
            "peer_port": peer.map(|peer| peer.port()),
        },
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.global_prefetch,
        "consumer_count": channel.consumers.len(),
        "confirm": channel.confirms.is_some(),
        "transactional": channel.tx.is_some(),
        "messages_unacknowledged": channel.unacked.len(),
        "messages_unconfirmed": channel.confirms.as_ref().map_or(0, |confirms| confirms.outstanding()),
        "messages_uncommitted": tx_publishes,
        "acks_uncommitted": tx_acks,
        "pending_raft_commands": 0,
        "cached_segments": 0,
        "reductions": 0,
        "reductions_details": no_rate(),
        "garbage_collection": collector(),
    })
}

fn channels(cx: &Cx, vhosts: &[Name], wanted: impl Fn(&Connection) -> bool) -> Vec<Value> {
    let node = &cx.server().node_info.name;
    let mut all = Vec::new();
    for vhost in vhosts {
        let found = cx.server().look(vhost, |broker| {
            let seen = broker.clients().filter(|(_, one)| may_see(cx, one) && wanted(one));
            seen.flat_map(|(_, one)| {
                let channels = one.open_channels().filter_map(|key| broker.channel(key));
                channels.map(|channel| channel_json(node, broker, one, channel)).collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
        });
        let mut found = found.unwrap_or_default();
        found.sort_by(|one, other| one["name"].as_str().cmp(&other["name"].as_str()));
        all.append(&mut found);
    }
    all
}

pub async fn all_channels(cx: Cx) -> Answer {
    list::paged(&cx.query, &channels(&cx, &cx.vhosts(), |_| true))
}

pub async fn channels_of_vhost(cx: Cx, Path(vhost): Path<String>) -> Answer {
    cx.needs_vhost(&vhost)?;
    list::paged(&cx.query, &channels(&cx, &[vhost.into()], |_| true))
}

pub async fn channels_of_connection(cx: Cx, Path(name): Path<String>) -> Answer {
    cx.server().find_connection(&name).ok_or_else(ApiError::not_found)?;
    list::plain(&cx.query, &channels(&cx, &cx.vhosts(), |one| *one.info.name == *name))
}

pub async fn channel(cx: Cx, Path(name): Path<String>) -> Answer {
    let (connection, _) = name.rsplit_once(" (").ok_or_else(ApiError::not_found)?;
    let of_connection = channels(&cx, &cx.vhosts(), |one| *one.info.name == *connection);
    let mut found = of_connection.into_iter().find(|item| item["name"] == *name).ok_or_else(ApiError::not_found)?;
    let consumers = consumers(&cx, &cx.vhosts(), |item| item["channel_details"]["name"] == *name);
    found["consumer_details"] = consumers.into();
    found["publishes"] = json!([]);
    found["deliveries"] = json!([]);
    list::one(&cx.query, &found)
}

fn consumer_json(node: &str, broker: &Broker, consumer: &Consumer) -> Option<Value> {
    let connection = broker.connection(consumer.connection)?;
    let channel = broker.channel(consumer.channel)?;
    let queue = broker.queue_of(consumer.queue)?;
    let peer = connection.info.socket.as_ref().map(|socket| socket.peer);
    let single = queue.settings.single_active_consumer;
    let active = !single || broker.active_consumer(queue).is_some_and(|active| std::ptr::eq(active, consumer));
    Some(json!({
        "consumer_tag": amqp::text(&consumer.tag),
        "queue": {"name": &*queue.name, "vhost": &**broker.vhost()},
        "ack_required": !consumer.no_ack,
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "active": active,
        "activity_status": match (single, active) {
            (false, _) => "up",
            (true, true) => "single_active",
            (true, false) => "waiting",
        },
        "consumer_timeout": consumer.timeout_ms.unwrap_or(1_800_000),
        "arguments": to_json_table(&consumer.arguments),
        "channel_details": {
            "name": channel_name(connection, channel),
            "number": channel.number,
            "connection_name": &*connection.info.name,
            "node": node,
            "peer_host": peer.map(|peer| peer.ip().to_string()),
            "peer_port": peer.map(|peer| peer.port()),
            "user": &*connection.info.user.name,
        },
    }))
}

/// Consumers in these vhosts whose JSON `wanted` picks.
pub fn consumers(cx: &Cx, vhosts: &[Name], wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
    let node = &cx.server().node_info.name;
    let mut all = Vec::new();
    for vhost in vhosts {
        let found = cx.server().look(vhost, |broker| {
            broker.consumers().filter_map(|consumer| consumer_json(node, broker, consumer)).collect::<Vec<_>>()
        });
        let mut found: Vec<Value> = found.unwrap_or_default().into_iter().filter(&wanted).collect();
        found.sort_by(|one, other| one["consumer_tag"].as_str().cmp(&other["consumer_tag"].as_str()));
        all.append(&mut found);
    }
    all
}

pub async fn all_consumers(cx: Cx) -> Answer {
    list::plain(&cx.query, &consumers(&cx, &cx.vhosts(), |_| true))
}

pub async fn consumers_of_vhost(cx: Cx, Path(vhost): Path<String>) -> Answer {
    cx.needs_vhost(&vhost)?;
    list::plain(&cx.query, &consumers(&cx, &[vhost.into()], |_| true))
}
