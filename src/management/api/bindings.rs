//! Bindings, and the keys that name them in paths (management reference 1.8).

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use leveret_protocol::{FieldTable, put_table};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::exchanges::name_in_path;
use crate::definitions::to_json_table;
use crate::management::caller::Cx;
use crate::management::error::{Answer, ApiError};
use crate::management::input::Input;
use crate::management::query::decode;
use crate::management::{json as amqp, list};
use crate::model::record::Name;
use crate::server::admin::{AdminError, BindingEnd};

/// What is quoted in a properties key: a space comes out as `+`.
const QUOTED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_').remove(b' ');

/// A binding, out of its vhost's lock.
struct Found {
    source: String,
    destination: String,
    to_queue: bool,
    routing_key: String,
    arguments: FieldTable,
}

impl Found {
    fn json(&self, vhost: &str) -> Value {
        json!({
            "source": self.source,
            "vhost": vhost,
            "destination": self.destination,
            "destination_type": if self.to_queue { "queue" } else { "exchange" },
            "routing_key": self.routing_key,
            "arguments": to_json_table(&self.arguments),
            "properties_key": properties_key(&self.routing_key, &self.arguments),
        })
    }
}

/// The name of a binding among those between two ends.
fn properties_key(routing_key: &str, arguments: &FieldTable) -> String {
    let quoted = utf8_percent_encode(routing_key, QUOTED).to_string().replace(' ', "+");
    match (arguments.is_empty(), quoted.is_empty()) {
        (true, true) => "~".to_owned(),
        (true, false) => quoted,
        (false, _) => format!("{quoted}~{}", hash(arguments)),
    }
}

/// Four bytes that stand for the arguments, whatever their order.
fn hash(arguments: &FieldTable) -> String {
    use base64::Engine as _;
    let mut sorted = arguments.clone();
    sorted.0.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut bytes = bytes::BytesMut::new();
    put_table(&mut bytes, &sorted);
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(crc32fast::hash(&bytes).to_be_bytes())
}

/// Is this the key, as it stands in a path after its segment was decoded? It may have been quoted once more before.
fn is_key(binding: &Found, key: &str) -> bool {
    let own = properties_key(&binding.routing_key, &binding.arguments);
    if own == key {
        return true;
    }
    let split = |key: &str| match key.rsplit_once('~') {
        Some((routing_key, hash)) => (routing_key.to_owned(), hash.to_owned()),
        None => (key.to_owned(), String::new()),
    };
    let ((own_key, own_hash), (given_key, given_hash)) = (split(&own), split(key));
    own_hash == given_hash && decode(&own_key) == decode(&given_key)
}

/// Bindings of a vhost; those of the default exchange first, as they are for every queue.
fn find(cx: &Cx, vhost: &str, wanted: impl Fn(&Found) -> bool) -> Vec<Found> {
    let found = cx.server().look(vhost, |broker| {
        let default = broker.queues().map(|queue| Found {
            source: String::new(),
            destination: queue.name.to_string(),
            to_queue: true,
            routing_key: queue.name.to_string(),
            arguments: FieldTable::new(),
        });
        let explicit = broker.topology().bindings().filter_map(|(_, binding)| {
            let source = broker.topology().get(binding.source)?.name.to_string();
            let (destination, to_queue) = broker.destination_name(binding.destination)?;
            let routing_key = amqp::text(&binding.binding_key);
            let arguments = binding.arguments().clone();
            Some(Found { source, destination: destination.to_string(), to_queue, routing_key, arguments })
        });
        let mut default: Vec<Found> = default.filter(&wanted).collect();
        default.sort_by(|one, other| one.destination.cmp(&other.destination));
        default.extend(explicit.filter(&wanted));
        default
    });
    found.unwrap_or_default()
}

fn answer(cx: &Cx, vhosts: &[Name], wanted: impl Fn(&Found) -> bool) -> Answer {
    let items = vhosts
        .iter()
        .flat_map(|vhost| find(cx, vhost, &wanted).iter().map(|found| found.json(vhost)).collect::<Vec<_>>());
    list::plain(&cx.query, &items.collect::<Vec<_>>())
}

pub async fn all(cx: Cx) -> Answer {
    answer(&cx, &cx.vhosts(), |_| true)
}

pub async fn of_vhost(cx: Cx, Path(vhost): Path<String>) -> Answer {
    cx.needs_vhost(&vhost)?;
    answer(&cx, &[vhost.into()], |_| true)
}

pub async fn of_queue(cx: Cx, Path((vhost, queue)): Path<(String, String)>) -> Answer {
    cx.needs_vhost(&vhost)?;
    if !cx.server().has_queue(&vhost, &queue) {
        return Err(ApiError::not_found());
    }
    answer(&cx, &[vhost.into()], |one| one.to_queue && one.destination == queue)
}

pub async fn of_source(cx: Cx, Path((vhost, exchange)): Path<(String, String)>) -> Answer {
    let exchange = needs_exchange(&cx, &vhost, &exchange)?;
    answer(&cx, &[vhost.into()], |one| one.source == exchange)
}

pub async fn of_destination(cx: Cx, Path((vhost, exchange)): Path<(String, String)>) -> Answer {
    let exchange = needs_exchange(&cx, &vhost, &exchange)?;
    answer(&cx, &[vhost.into()], |one| !one.to_queue && one.destination == exchange)
}

fn needs_exchange(cx: &Cx, vhost: &str, exchange: &str) -> Result<String, ApiError> {
    cx.needs_vhost(vhost)?;
    let exchange = name_in_path(exchange);
    if cx.server().has_exchange(vhost, exchange) { Ok(exchange.to_owned()) } else { Err(ApiError::not_found()) }
}

/// What a path names: vhost, source, destination.
type Ends = (String, String, String);

fn end(to_queue: bool, name: &str) -> BindingEnd<'_> {
    if to_queue { BindingEnd::Queue(name) } else { BindingEnd::Exchange(name_in_path(name)) }
}

fn between(cx: &Cx, (vhost, source, destination): &Ends, to_queue: bool) -> Result<Vec<Found>, ApiError> {
    cx.needs_vhost(vhost)?;
    let source = name_in_path(source);
    let there = match end(to_queue, destination) {
        BindingEnd::Queue(name) => cx.server().has_queue(vhost, name),
        BindingEnd::Exchange(name) => cx.server().has_exchange(vhost, name),
    };
    if !there || !cx.server().has_exchange(vhost, source) {
        return Err(ApiError::not_found());
    }
    let destination = if to_queue { destination } else { name_in_path(destination) };
    Ok(find(cx, vhost, |one| one.source == source && one.to_queue == to_queue && one.destination == destination))
}

fn list_between(cx: &Cx, ends: &Ends, to_queue: bool) -> Answer {
    let found = between(cx, ends, to_queue)?;
    list::plain(&cx.query, &found.iter().map(|one| one.json(&ends.0)).collect::<Vec<_>>())
}

async fn bind(cx: &Cx, (vhost, source, destination): &Ends, to_queue: bool, input: &Input) -> Answer {
    cx.needs_vhost_to_change(vhost)?;
    let routing_key = input.text("routing_key")?.unwrap_or_default();
    if routing_key.len() > leveret_protocol::SHORT_STRING_MAX {
        return Err(ApiError::bad_request("routing_key is longer than 255 bytes"));
    }
    let arguments = amqp::table(input.get("arguments"))?;
    let key = properties_key(routing_key, &arguments);
    let to = end(to_queue, destination);
    cx.server().bind(vhost, name_in_path(source), to, routing_key, arguments, &cx.user).await?;
    // Relative to the path, with the key quoted once more.
    let location = format!("{}/{}", utf8_percent_encode(destination, QUOTED), utf8_percent_encode(&key, QUOTED));
    Ok((StatusCode::CREATED, [(header::LOCATION, location)]).into_response())
}

fn get_one(cx: &Cx, ends: &Ends, key: &str, to_queue: bool) -> Answer {
    let found = between(cx, ends, to_queue)?;
    let one = found.iter().find(|one| is_key(one, key)).ok_or_else(ApiError::not_found)?;
    list::one(&cx.query, &one.json(&ends.0))
}

async fn unbind(cx: &Cx, ends: &Ends, key: &str, to_queue: bool) -> Answer {
    let found = between(cx, ends, to_queue)?;
    let one = found.into_iter().find(|one| is_key(one, key)).ok_or_else(ApiError::not_found)?;
    let to = end(to_queue, &ends.2);
    let unbound = cx.server().unbind(&ends.0, &one.source, to, &one.routing_key, one.arguments, &cx.user).await;
    unbound.map_err(|error: AdminError| ApiError::from(error))?;
    list::done()
}

pub async fn to_queue(cx: Cx, Path(ends): Path<Ends>) -> Answer {
    list_between(&cx, &ends, true)
}

pub async fn to_exchange(cx: Cx, Path(ends): Path<Ends>) -> Answer {
    list_between(&cx, &ends, false)
}

pub async fn bind_queue(cx: Cx, Path(ends): Path<Ends>, input: Input) -> Answer {
    bind(&cx, &ends, true, &input).await
}

pub async fn bind_exchange(cx: Cx, Path(ends): Path<Ends>, input: Input) -> Answer {
    bind(&cx, &ends, false, &input).await
}

pub async fn get_to_queue(cx: Cx, Path((v, s, d, key)): Path<(String, String, String, String)>) -> Answer {
    get_one(&cx, &(v, s, d), &key, true)
}

pub async fn get_to_exchange(cx: Cx, Path((v, s, d, key)): Path<(String, String, String, String)>) -> Answer {
    get_one(&cx, &(v, s, d), &key, false)
}

pub async fn unbind_queue(cx: Cx, Path((v, s, d, key)): Path<(String, String, String, String)>) -> Answer {
    unbind(&cx, &(v, s, d), &key, true).await
}

pub async fn unbind_exchange(cx: Cx, Path((v, s, d, key)): Path<(String, String, String, String)>) -> Answer {
    unbind(&cx, &(v, s, d), &key, false).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s1_8_properties_keys() {
        let none = FieldTable::new();
        for (routing_key, key) in [("", "~"), ("order.#", "order.%23"), ("a b+c", "a+b%2Bc"), ("~*/", "%7E%2A%2F")] {
            assert_eq!(properties_key(routing_key, &none), key);
        }
        let one =
            FieldTable::from_iter([("a", "1"), ("b", "2")].map(|(k, v)| (k, leveret_protocol::FieldValue::from(v))));
        let other =
            FieldTable::from_iter([("b", "2"), ("a", "1")].map(|(k, v)| (k, leveret_protocol::FieldValue::from(v))));
        assert_eq!(properties_key("k", &one), properties_key("k", &other));
        assert!(properties_key("", &one).starts_with('~') && properties_key("", &one).len() == 7);
    }
}
