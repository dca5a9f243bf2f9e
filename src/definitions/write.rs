//! From what a broker has to JSON, field by field as RabbitMQ exports it.

use leveret_protocol::FieldTable;
use serde_json::{Value, json};

use super::json::to_json_table;
use crate::auth::User;
use crate::model::arguments::QueueType;
use crate::model::policy::Policy;
use crate::model::vhost::{Vhost, VhostLimits};

/// What an export says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Description<'a> {
    /// The version of RabbitMQ that we behave like.
    pub rabbitmq_version: &'a str,
    pub cluster_name: &'a str,
}

impl Description<'_> {
    /// The head of an export of the whole broker.
    pub fn of_broker(&self) -> Value {
        let mut head = self.versions();
        head["rabbitmq_definition_format"] = "cluster".into();
        head["original_cluster_name"] = self.cluster_name.into();
        head["explanation"] = format!("Definitions of cluster '{}'", self.cluster_name).into();
        head
    }

    /// The head of an export of one vhost.
    pub fn of_vhost(&self, vhost: &Vhost) -> Value {
        let mut head = self.versions();
        head["rabbitmq_definition_format"] = "single_virtual_host".into();
        head["original_vhost_name"] = vhost.name.as_ref().into();
        head["explanation"] = format!("Definitions of virtual host '{}'", vhost.name).into();
        head["metadata"] = metadata(vhost);
        head["description"] = vhost.description.as_str().into();
        head["default_queue_type"] = vhost.default_queue_type.unwrap_or(QueueType::Classic).as_str().into();
        head["limits"] = limits_list(vhost.limits);
        head
    }

    fn versions(&self) -> Value {
        json!({
            "rabbit_version": self.rabbitmq_version,
            "rabbitmq_version": self.rabbitmq_version,
            "product_name": "RabbitMQ",
            "product_version": self.rabbitmq_version,
        })
    }
}

pub fn user_json(user: &User) -> Value {
    let mut limits = json!({});
    for (name, limit) in [("max-connections", user.limits.max_connections), ("max-channels", user.limits.max_channels)]
    {
        if let Some(limit) = limit {
            limits[name] = limit.into();
        }
    }
    let hash = user.password.as_ref();
    json!({
        "name": &*user.name,
        "password_hash": hash.map(crate::auth::PasswordHash::to_base64).unwrap_or_default(),
        "hashing_algorithm": hash.map_or(crate::auth::HashAlgorithm::Sha256, |hash| hash.algorithm()).name(),
        "tags": user.tags,
        "limits": limits,
    })
}

/// A vhost; its limits are among the parameters.
pub fn vhost_json(vhost: &Vhost) -> Value {
    let metadata = metadata(vhost);
    let mut out = json!({ "name": &*vhost.name, "metadata": &metadata });
    for (field, value) in metadata.as_object().into_iter().flatten() {
        out[field] = value.clone();
    }
    out
}

fn metadata(vhost: &Vhost) -> Value {
    json!({
        "description": vhost.description,
        "tags": vhost.tags,
        "default_queue_type": vhost.default_queue_type.unwrap_or(QueueType::Classic).as_str(),
    })
}

/// RabbitMQ writes an empty list for none.
fn limits_list(limits: VhostLimits) -> Value {
    let limits = limits_json(limits);
    if limits.as_object().is_some_and(serde_json::Map::is_empty) { json!([]) } else { limits }
}

/// The limits of a vhost, those that are set.
pub fn limits_json(limits: VhostLimits) -> Value {
    let mut out = json!({});
    for (name, limit) in [("max-connections", limits.max_connections), ("max-queues", limits.max_queues)] {
        if let Some(limit) = limit {
            out[name] = limit.into();
        }
    }
    out
}

/// A policy without its vhost.
pub fn policy_json(policy: &Policy) -> Value {
    json!({
        "name": &*policy.name,
        "pattern": policy.pattern.as_str(),
        "apply-to": policy.apply_to.as_str(),
        "definition": to_json_table(&policy.definition),
        "priority": policy.priority,
    })
}

/// An exchange without its vhost.
pub fn exchange_json(exchange: &crate::model::exchange::Exchange) -> Value {
    json!({
        "name": &*exchange.name,
        "type": exchange.kind.name(),
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": to_json_table(&exchange.arguments),
    })
}

/// A queue without its vhost. Like RabbitMQ, its type is always among the arguments.
pub fn queue_json(queue: &crate::model::queue::Queue) -> Value {
    let mut arguments = queue.arguments.clone();
    if arguments.get("x-queue-type").is_none() {
        arguments.insert("x-queue-type", queue.queue_type.as_str());
    }
    json!({
        "name": &*queue.name,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "arguments": to_json_table(&arguments),
    })
}

/// A binding without its vhost.
pub fn binding_json(
    source: &str,
    destination: &str,
    to_queue: bool,
    routing_key: &[u8],
    arguments: &FieldTable,
) -> Value {
    json!({
        "source": source,
        "destination": destination,
        "destination_type": if to_queue { "queue" } else { "exchange" },
        "routing_key": String::from_utf8_lossy(routing_key),
        "arguments": to_json_table(arguments),
    })
}
