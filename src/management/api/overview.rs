//! The broker as a whole (management reference 1.6).

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};

use crate::management::Management;
use crate::management::caller::Cx;
use crate::management::error::Answer;
use crate::management::list;

pub async fn version(State(management): State<Arc<Management>>) -> Answer {
    list::ok(&management.server.config().profile.server_version())
}

pub async fn overview(cx: Cx) -> Answer {
    let server = cx.server();
    let version = server.config().profile.server_version();
    let node = &server.node_info.name;
    let mut overview = json!({
        "management_version": version,
        "rates_mode": "basic",
        "product_version": env!("CARGO_PKG_VERSION"),
        "product_name": "Leveret",
        "rabbitmq_version": version,
        "cluster_name": server.cluster_name(),
        "disable_stats": false,
        "default_queue_type": server.config().default_queue_type.as_str(),
    });
    if cx.is_monitor() {
        let listeners = server.node_info.listeners.iter().map(|(protocol, at)| {
            json!({"node": node, "protocol": protocol, "ip_address": at.ip().to_string(), "port": at.port(),
                "socket_opts": {}, "tls": false})
        });
        overview["node"] = node.as_str().into();
        overview["listeners"] = listeners.collect::<Vec<Value>>().into();
    }
    list::one(&cx.query, &overview)
}
