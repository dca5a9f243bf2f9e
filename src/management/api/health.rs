//! Health checks (management reference 1.12). They say the truth: 503 when something is wrong.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Path, State};
use serde_json::json;

use crate::management::Management;
use crate::management::caller::Cx;
use crate::management::error::{Answer, ApiError};
use crate::management::list;

fn fine() -> Answer {
    list::ok(&json!({"status": "ok"}))
}

/// What has no way to fail on one node.
pub async fn always(_cx: Cx) -> Answer {
    fine()
}

pub async fn quorum_critical(_cx: Cx) -> Answer {
    list::ok(&json!({"status": "ok", "reason": "single node cluster"}))
}

/// The broker answers only while it serves.
pub async fn in_service() -> Answer {
    fine()
}

pub async fn below_connection_limit(State(management): State<Arc<Management>>) -> Answer {
    if management.server.is_full() {
        let reason = "node connection limit is reached";
        return Err(ApiError::unhealthy(json!({"status": "failed", "reason": reason})));
    }
    fine()
}

pub async fn alarms(cx: Cx) -> Answer {
    alarms_in_effect(&cx, "There are alarms in effect in the cluster")
}

pub async fn local_alarms(cx: Cx) -> Answer {
    alarms_in_effect(&cx, "There are alarms in effect on the node")
}

fn alarms_in_effect(cx: &Cx, reason: &str) -> Answer {
    let server = cx.server();
    let node = &server.node_info.name;
    let alarms = server.alarms().active();
    if alarms.is_empty() {
        return fine();
    }
    let alarms: Vec<_> = alarms.iter().map(|alarm| json!({"node": node, "resource": alarm.name()})).collect();
    Err(ApiError::unhealthy(json!({"status": "failed", "reason": reason, "alarms": alarms})))
}

pub async fn port_listener(cx: Cx, Path(port): Path<String>) -> Answer {
    let port: u16 = port.parse().map_err(|_| ApiError::bad_request("port is not a number"))?;
    let ports: BTreeSet<u16> = cx.server().node_info.listeners.iter().map(|(_, at)| at.port()).collect();
    if ports.contains(&port) {
        return list::ok(&json!({"status": "ok", "port": port}));
    }
    let failed = json!({"status": "failed", "reason": "No active listener", "missing": port, "ports": ports});
    Err(ApiError::unhealthy(failed))
}

pub async fn protocol_listener(cx: Cx, Path(names): Path<String>) -> Answer {
    let active: BTreeSet<&str> = cx.server().node_info.listeners.iter().map(|(protocol, _)| *protocol).collect();
    let wanted: Vec<&str> = names.split(',').map(str::trim).collect();
    let missing: Vec<&str> = wanted.iter().copied().filter(|name| !active.contains(protocol(name))).collect();
    if missing.is_empty() {
        return list::ok(&json!({"status": "ok", "protocols": active}));
    }
    let failed = json!({"status": "failed", "reason": "No active listener", "missing": missing, "protocols": active});
    Err(ApiError::unhealthy(failed))
}

/// The name under which a listener is known, by any of its names.
pub fn protocol(name: &str) -> &str {
    match name.to_ascii_lowercase().as_str() {
        "amqp" | "amqp091" | "amqp10" | "amqp0.9.1" | "amqp1.0" => "amqp",
        "amqps" | "amqp/ssl" | "amqp/tls" => "amqp/ssl",
        "http" | "management" => "http",
        "https" => "https",
        "prometheus" | "http/prometheus" => "http/prometheus",
        _ => name,
    }
}

/// The body is compared byte for byte by some clients.
pub async fn aliveness(cx: Cx, Path(vhost): Path<String>) -> Answer {
    cx.needs_vhost(&vhost)?;
    fine()
}

pub async fn certificate_expiration(_cx: Cx, Path((within, unit)): Path<(String, String)>) -> Answer {
    if within.parse::<u32>().is_err() {
        return Err(ApiError::bad_request("Invalid expiration period"));
    }
    if !matches!(unit.as_str(), "days" | "weeks" | "months" | "years") {
        return Err(ApiError::bad_request(format!("Time unit not supported: {unit}")));
    }
    fine()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s1_12_protocols_have_several_names() {
        let names = ["amqp091", "AMQP", "amqps", "management", "stomp"].map(protocol);
        assert_eq!(names, ["amqp", "amqp", "amqp/ssl", "http", "stomp"]);
    }
}
