//! Exchanges, and publishing to them (management reference 1.8).

use axum::extract::Path;
use base64::Engine as _;
use bytes::Bytes;
use leveret_protocol::Properties;
use serde_json::{Value, json};

use crate::definitions;
use crate::management::caller::Cx;
use crate::management::error::{Answer, ApiError};
use crate::management::input::Input;
use crate::management::{json as amqp, list};
use crate::model::broker::Broker;
use crate::model::exchange::Exchange;
use crate::model::policy::Target;
use crate::model::record::Name;
use crate::server::admin::ExchangeSpec;

/// The name of an exchange in a path: the default one has a name there.
pub fn name_in_path(name: &str) -> &str {
    if name == "amq.default" { "" } else { name }
}

fn exchange_json(broker: &Broker, exchange: &Exchange) -> Value {
    let mut item = definitions::exchange_json(exchange);
    item["vhost"] = (&**broker.vhost()).into();
    let (policy, ..) = broker.applied_policies(&exchange.name, Target::Exchange);
    item["policy"] = policy.map(|policy| &*policy.name).into();
    item["user_who_performed_action"] = "rmq-internal".into();
    item
}

fn exchanges(cx: &Cx, vhosts: &[Name]) -> Vec<Value> {
    let mut all = Vec::new();
    for vhost in vhosts {
        let found = cx.server().look(vhost, |broker| {
            broker.topology().iter().map(|(_, exchange)| exchange_json(broker, exchange)).collect::<Vec<_>>()
        });
        let mut found = found.unwrap_or_default();
        found.sort_by(|one, other| one["name"].as_str().cmp(&other["name"].as_str()));
        all.append(&mut found);
    }
    all
}

pub async fn all(cx: Cx) -> Answer {
    list::paged(&cx.query, &exchanges(&cx, &cx.vhosts()))
}

pub async fn of_vhost(cx: Cx, Path(vhost): Path<String>) -> Answer {
    cx.needs_vhost(&vhost)?;
    list::paged(&cx.query, &exchanges(&cx, &[vhost.into()]))
}

pub async fn get(cx: Cx, Path((vhost, name)): Path<(String, String)>) -> Answer {
    cx.needs_vhost(&vhost)?;
    let found = cx.server().look(&vhost, |broker| {
        let key = broker.topology().find(name_in_path(&name))?;
        Some(exchange_json(broker, broker.topology().get(key)?))
    });
    let mut found = found.flatten().ok_or_else(ApiError::not_found)?;
    found["incoming"] = json!([]);
    found["outgoing"] = json!([]);
    list::one(&cx.query, &found)
}

pub async fn put(cx: Cx, Path((vhost, name)): Path<(String, String)>, input: Input) -> Answer {
    cx.needs_vhost_to_change(&vhost)?;
    let spec = ExchangeSpec {
        kind: input.text("type")?.unwrap_or("direct").to_owned(),
        durable: input.boolean("durable")?.unwrap_or(false),
        auto_delete: input.boolean("auto_delete")?.unwrap_or(false),
        internal: input.boolean("internal")?.unwrap_or(false),
        arguments: amqp::table(input.get("arguments"))?,
    };
    list::put(cx.server().declare_exchange(&vhost, name_in_path(&name), &spec, &cx.user).await?)
}

pub async fn delete(cx: Cx, Path((vhost, name)): Path<(String, String)>) -> Answer {
    cx.needs_vhost(&vhost)?;
    let if_unused = cx.query.is_true("if-unused");
    cx.server().delete_exchange(&vhost, name_in_path(&name), if_unused, &cx.user).await?;
    list::done()
}

pub async fn publish(cx: Cx, Path((vhost, name)): Path<(String, String)>, input: Input) -> Answer {
    let exchange = name_in_path(&name);
    cx.needs_vhost(&vhost)?;
    if !cx.server().has_exchange(&vhost, exchange) {
        return Err(ApiError::missing("exchange_not_found"));
    }
    input.needs(&["routing_key", "properties", "payload", "payload_encoding"])?;
    let routing_key = input.text("routing_key")?.unwrap_or_default();
    if routing_key.len() > leveret_protocol::SHORT_STRING_MAX {
        return Err(ApiError::bad_request("routing_key is longer than 255 bytes"));
    }
    let properties = properties(input.get("properties"))?;
    let Some(Value::String(payload)) = input.get("payload") else {
        return Err(ApiError::bad_request("payload_not_string"));
    };
    let body: Bytes = match input.text("payload_encoding")?.unwrap_or_default() {
        "string" => payload.clone().into(),
        "base64" => {
            let decoded = base64::engine::general_purpose::STANDARD.decode(payload);
            decoded.map_err(|_| ApiError::bad_request("payload is not valid base64"))?.into()
        }
        other => return Err(ApiError::bad_request(format!("unsupported_encoding: {other}"))),
    };
    let alarms = cx.server().alarms();
    if alarms.block_publishers() {
        let reason = format!("publishers are blocked: {}", alarms.reason());
        return Err(ApiError::unhealthy(json!({"error": "blocked", "reason": reason})));
    }
    let routed = cx.server().publish(&vhost, exchange, routing_key, &properties, &body, &cx.user).await;
    let routed = routed.map_err(|error| ApiError::on_channel(error, "exchange_not_found"))?;
    list::ok(&json!({"routed": routed}))
}

/// A message's properties as JSON has them.
///
/// # Errors
/// 400: one of a wrong type.
fn properties(value: Option<&Value>) -> Result<Properties, ApiError> {
    let object = match value {
        None => return Ok(Properties::default()),
        Some(Value::Array(array)) if array.is_empty() => return Ok(Properties::default()),
        Some(Value::Object(object)) => Input(object.clone()),
        Some(_) => return Err(ApiError::bad_request("properties must be an object")),
    };
    let text = |key| match object.get(key) {
        None => Ok(None),
        Some(Value::String(text)) if text.len() <= leveret_protocol::SHORT_STRING_MAX => {
            Ok(Some(Bytes::copy_from_slice(text.as_bytes())))
        }
        Some(Value::String(_)) => Err(ApiError::bad_request(format!("{key} is longer than 255 bytes"))),
        Some(other) => Err(ApiError::bad_request(Value::from(vec!["not_a_string".into(), other.clone()]))),
    };
    let octet = |key| match object.integer(key)? {
        None => Ok(None),
        Some(number) => u8::try_from(number).map(Some).map_err(|_| out_of_range(key, number)),
    };
    let timestamp = match object.integer("timestamp")? {
        None => None,
        Some(number) => Some(u64::try_from(number).map_err(|_| out_of_range("timestamp", number))?),
    };
    Ok(Properties {
        content_type: text("content_type")?,
        content_encoding: text("content_encoding")?,
        headers: object.get("headers").map(|headers| amqp::table(Some(headers))).transpose()?,
        delivery_mode: octet("delivery_mode")?,
        priority: octet("priority")?,
        correlation_id: text("correlation_id")?,
        reply_to: text("reply_to")?,
        expiration: text("expiration")?,
        message_id: text("message_id")?,
        timestamp,
        type_: text("type")?,
        user_id: text("user_id")?,
        app_id: text("app_id")?,
        cluster_id: text("cluster_id")?,
    })
}

fn out_of_range(key: &str, number: i64) -> ApiError {
    ApiError::bad_request(format!("{key} cannot be {number}"))
}
