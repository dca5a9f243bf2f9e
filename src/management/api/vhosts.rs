//! Vhosts and their limits (management reference 1.9).

use axum::extract::Path;
use serde_json::{Value, json};

use super::counts::counts_json;
use super::overview::Totals;
use super::parse_tags;
use crate::definitions::limits_json;
use crate::management::caller::Cx;
use crate::management::error::{Answer, ApiError};
use crate::management::input::Input;
use crate::management::list;
use crate::model::arguments::QueueType;
use crate::model::vhost::Vhost;
use crate::server::admin::{VhostLimit, VhostSpec};

/// A vhost as RabbitMQ shows it.
fn vhost_json(cx: &Cx, vhost: &Vhost) -> Value {
    let server = cx.server();
    let default_queue_type = vhost.default_queue_type.unwrap_or(server.config().default_queue_type).as_str();
    let mut totals = Totals::default();
    server.look(&vhost.name, |broker| totals.add(broker));
    let state = json!({server.node_info.name.clone(): "running"});
    let mut item = json!({
        "name": &*vhost.name,
        "description": vhost.description,
        "tags": vhost.tags,
        "default_queue_type": default_queue_type,
        "metadata": metadata_json(vhost, default_queue_type),
        "tracing": server.is_tracing(&vhost.name),
        "protected_from_deletion": vhost.protected,
        "cluster_state": state,
        "message_stats": counts_json(&totals.counts),
    });
    if let (Value::Object(item), Value::Object(rest)) = (&mut item, totals.queue_totals()) {
        item.extend(rest);
    }
    item
}

fn metadata_json(vhost: &Vhost, default_queue_type: &str) -> Value {
    json!({"description": vhost.description, "tags": vhost.tags, "default_queue_type": default_queue_type})
}

pub async fn all(cx: Cx) -> Answer {
    let all = cx.server().vhosts();
    let seen: Vec<Value> =
        all.iter().filter(|vhost| cx.sees(&vhost.name)).map(|vhost| vhost_json(&cx, vhost)).collect();
    list::paged(&cx.query, &seen)
}

pub async fn get(cx: Cx, Path(name): Path<String>) -> Answer {
    if !cx.sees(&name) {
        return Err(ApiError::not_authorised("User not authorised to access virtual host"));
    }
    let vhost = cx.server().vhost(&name).ok_or_else(ApiError::not_found)?;
    list::one(&cx.query, &vhost_json(&cx, &vhost))
}

pub async fn put(cx: Cx, Path(name): Path<String>, input: Input) -> Answer {
    cx.needs_administrator()?;
    list::put(cx.server().put_vhost(&name, vhost_spec(&input)?, Some(&cx.user)).await?)
}

/// What the body of a PUT, or an imported definition, says of a vhost.
///
/// # Errors
/// 400.
pub fn vhost_spec(input: &Input) -> Result<VhostSpec, ApiError> {
    let queue_type = match input.text("default_queue_type")? {
        None | Some("undefined" | "") => None,
        Some(text) => {
            let unknown = || ApiError::bad_request(format!("Unsupported default queue type: {text}"));
            Some(Some(QueueType::parse(text).ok_or_else(unknown)?))
        }
    };
    let tags = match input.get("tags") {
        Some(tags) => Some(parse_tags(tags).ok_or_else(|| ApiError::bad_request("tags must be a list of texts"))?),
        None => None,
    };
    Ok(VhostSpec {
        description: input.text("description")?.map(str::to_owned),
        tags,
        default_queue_type: queue_type,
        limits: None,
        tracing: input.boolean("tracing")?,
        protected: input.boolean("protected_from_deletion")?,
    })
}

pub async fn delete(cx: Cx, Path(name): Path<String>) -> Answer {
    cx.needs_administrator()?;
    cx.server().delete_vhost(&name).await?;
    list::done()
}

pub async fn start(cx: Cx, Path((name, _node)): Path<(String, String)>) -> Answer {
    cx.needs_administrator()?;
    cx.needs_vhost(&name)?;
    list::done()
}

pub async fn protect(cx: Cx, Path(name): Path<String>) -> Answer {
    set_protection(&cx, &name, true).await
}

pub async fn unprotect(cx: Cx, Path(name): Path<String>) -> Answer {
    set_protection(&cx, &name, false).await
}

async fn set_protection(cx: &Cx, name: &str, protected: bool) -> Answer {
    cx.needs_administrator()?;
    cx.needs_vhost(name)?;
    let spec = VhostSpec { protected: Some(protected), ..VhostSpec::default() };
    cx.server().put_vhost(name, spec, None).await?;
    list::done()
}

fn limits_items(vhosts: impl Iterator<Item = Vhost>) -> Vec<Value> {
    let with_limits = vhosts.map(|vhost| (limits_json(vhost.limits), vhost));
    let set = with_limits.filter(|(limits, _)| limits.as_object().is_some_and(|limits| !limits.is_empty()));
    set.map(|(limits, vhost)| json!({"vhost": &*vhost.name, "value": limits})).collect()
}

pub async fn limits(cx: Cx) -> Answer {
    let all = cx.server().vhosts().into_iter().filter(|vhost| cx.sees(&vhost.name));
    list::plain(&cx.query, &limits_items(all))
}

pub async fn limits_of(cx: Cx, Path(name): Path<String>) -> Answer {
    cx.needs_vhost(&name)?;
    list::plain(&cx.query, &limits_items(cx.server().vhost(&name).into_iter()))
}

pub async fn set_limit(cx: Cx, Path((name, limit)): Path<(String, String)>, input: Input) -> Answer {
    cx.needs_administrator()?;
    cx.needs_vhost(&name)?;
    let value = input.integer("value")?.ok_or_else(|| ApiError::bad_request("[{key_missing,value}]"))?;
    cx.server().set_vhost_limit(&name, vhost_limit(&limit)?, Some(value)).await?;
    list::done()
}

pub async fn clear_limit(cx: Cx, Path((name, limit)): Path<(String, String)>) -> Answer {
    cx.needs_administrator()?;
    cx.needs_vhost(&name)?;
    cx.server().set_vhost_limit(&name, vhost_limit(&limit)?, None).await?;
    list::done()
}

fn vhost_limit(name: &str) -> Result<VhostLimit, ApiError> {
    VhostLimit::parse(name)
        .ok_or_else(|| ApiError::bad_request(format!("Unrecognised terms [{{<<\"{name}\">>}}] in limits")))
}
