//! The broker as a whole (management reference 1.6).

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};

use super::counts::{Counts, counts_json, with_rates};
use super::nodes::exchange_types;
use crate::management::Management;
use crate::management::caller::Cx;
use crate::management::error::Answer;
use crate::management::list;
use crate::model::broker::Broker;

/// What the vhosts hold together.
#[derive(Default)]
pub struct Totals {
    pub counts: Counts,
    pub ready: u64,
    pub unacked: u64,
    pub queues: usize,
    pub exchanges: usize,
    pub connections: usize,
    pub channels: usize,
    pub consumers: usize,
    connections_opened: u64,
    connections_closed: u64,
    channels_opened: u64,
}

impl Totals {
    pub fn add(&mut self, broker: &Broker) {
        for queue in broker.queues() {
            self.counts += Counts::of(&queue.stats);
            self.ready += queue.ready_count();
            self.unacked += queue.unacked_count;
            self.queues += 1;
        }
        self.exchanges += broker.topology().len();
        self.consumers += broker.consumers().count();
        for (_, connection) in broker.clients() {
            self.connections += 1;
            self.channels += connection.open_channels().count();
        }
        let stats = broker.stats();
        self.connections_opened += stats.connections_opened;
        self.connections_closed += stats.connections_closed;
        self.channels_opened += stats.channels_opened;
    }

    pub fn queue_totals(&self) -> Value {
        with_rates([
            ("messages", self.ready + self.unacked),
            ("messages_ready", self.ready),
            ("messages_unacknowledged", self.unacked),
        ])
    }
}

pub async fn version(State(management): State<Arc<Management>>) -> Answer {
    list::ok(&management.server.config().profile.server_version())
}

pub async fn overview(cx: Cx) -> Answer {
    let server = cx.server();
    let version = server.config().profile.server_version();
    let node = &server.node_info.name;
    let mut totals = Totals::default();
    for vhost in cx.vhosts() {
        server.look(&vhost, |broker| totals.add(broker));
    }
    let channels_closed = totals.channels_opened.saturating_sub(totals.channels as u64);
    let mut overview = json!({
        "management_version": version,
        "rates_mode": "basic",
        "sample_retention_policies": {
            "global": [600, 3600, 28800, 86400], "basic": [600, 3600], "detailed": [600],
        },
        "exchange_types": exchange_types(),
        "product_version": env!("CARGO_PKG_VERSION"),
        "product_name": "Leveret",
        "rabbitmq_version": version,
        "cluster_name": server.cluster_name(),
        "cluster_tags": {},
        "node_tags": {},
        "erlang_version": "0",
        "erlang_full_version": "none",
        "crypto_lib_version": "none",
        "disable_stats": false,
        "default_queue_type": server.config().default_queue_type.as_str(),
        "is_op_policy_updating_enabled": true,
        "enable_queue_totals": false,
        "message_stats": counts_json(&totals.counts),
        "queue_totals": totals.queue_totals(),
        "object_totals": {
            "channels": totals.channels,
            "connections": totals.connections,
            "consumers": totals.consumers,
            "exchanges": totals.exchanges,
            "queues": totals.queues,
        },
        "statistics_db_event_queue": 0,
    });
    if cx.is_monitor() {
        overview["churn_rates"] = with_rates([
            ("connection_created", totals.connections_opened),
            ("connection_closed", totals.connections_closed),
            ("channel_created", totals.channels_opened),
            ("channel_closed", channels_closed),
        ]);
        overview["node"] = node.as_str().into();
        overview["listeners"] = listeners(&cx);
        overview["contexts"] = contexts(&cx);
    }
    list::one(&cx.query, &overview)
}

fn listeners(cx: &Cx) -> Value {
    let info = &cx.server().node_info;
    let listener = |(protocol, at): &(&str, std::net::SocketAddr)| {
        json!({"node": info.name, "protocol": protocol, "ip_address": at.ip().to_string(), "port": at.port(),
               "socket_opts": {}, "tls": protocol.ends_with("ssl")})
    };
    info.listeners.iter().map(listener).collect()
}

/// Where HTTP is served; the port is a text here.
fn contexts(cx: &Cx) -> Value {
    let info = &cx.server().node_info;
    let http = info.listeners.iter().filter(|(protocol, _)| *protocol == "http");
    let context = |(_, at): &(&str, std::net::SocketAddr)| {
        json!({"ssl_opts": [], "node": info.name, "description": "RabbitMQ Management", "path": "/",
               "cowboy_opts": "[]", "ip": at.ip().to_string(), "port": at.port().to_string()})
    };
    http.map(context).collect()
}
