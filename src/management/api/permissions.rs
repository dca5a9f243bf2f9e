//! Permissions and topic permissions (management reference 1.9).

use axum::extract::Path;
use serde_json::{Value, json};

use crate::auth::{Pattern, Permissions, TopicPermissions};
use crate::management::caller::Cx;
use crate::management::error::{Answer, ApiError};
use crate::management::input::Input;
use crate::management::list;
use crate::model::record::Name;
use crate::server::admin::AdminError;

fn item(user: &str, vhost: &str, permissions: &Permissions) -> Value {
    json!({
        "user": user,
        "vhost": vhost,
        "configure": permissions.configure.source(),
        "write": permissions.write.source(),
        "read": permissions.read.source(),
    })
}

fn topic_items((user, vhost, topics): &(Name, Name, std::sync::Arc<TopicPermissions>)) -> Vec<Value> {
    let one = topics.list().map(|(exchange, rule)| {
        json!({
            "user": &**user,
            "vhost": &**vhost,
            "exchange": &**exchange,
            "write": rule.write.source(),
            "read": rule.read.source(),
        })
    });
    one.collect()
}

fn answer(cx: &Cx, wanted: impl Fn(&str, &str) -> bool) -> Answer {
    cx.needs_administrator()?;
    let all = cx.server().permissions();
    let all = all.iter().filter(|(user, vhost, _)| wanted(user, vhost));
    list::plain(&cx.query, &all.map(|(user, vhost, permissions)| item(user, vhost, permissions)).collect::<Vec<_>>())
}

fn topic_answer(cx: &Cx, wanted: impl Fn(&str, &str) -> bool) -> Answer {
    cx.needs_administrator()?;
    let all = cx.server().topic_permissions();
    let all = all.iter().filter(|(user, vhost, _)| wanted(user, vhost));
    list::plain(&cx.query, &all.flat_map(topic_items).collect::<Vec<_>>())
}

pub async fn all(cx: Cx) -> Answer {
    answer(&cx, |_, _| true)
}

pub async fn of_user(cx: Cx, Path(user): Path<String>) -> Answer {
    cx.needs_administrator()?;
    cx.server().user(&user).ok_or_else(ApiError::not_found)?;
    answer(&cx, |of, _| of == user)
}

pub async fn of_vhost(cx: Cx, Path(vhost): Path<String>) -> Answer {
    cx.needs_administrator()?;
    cx.needs_vhost(&vhost)?;
    answer(&cx, |_, of| of == vhost)
}

pub async fn get(cx: Cx, Path((vhost, user)): Path<(String, String)>) -> Answer {
    cx.needs_administrator()?;
    let permissions = cx.server().permissions_of(&user, &vhost).ok_or_else(ApiError::not_found)?;
    list::one(&cx.query, &item(&user, &vhost, &permissions))
}

pub async fn put(cx: Cx, Path((vhost, user)): Path<(String, String)>, input: Input) -> Answer {
    cx.needs_administrator()?;
    input.needs(&["configure", "write", "read"])?;
    let permissions = parse(&input)?;
    list::put(cx.server().set_permissions(&user, &vhost, permissions).await.map_err(unknown)?)
}

/// The three patterns.
///
/// # Errors
/// 400: one is missing, or no pattern.
pub fn parse(input: &Input) -> Result<Permissions, ApiError> {
    let pattern = |key| {
        let text = input.text(key)?.unwrap_or_default();
        Pattern::new(text).map_err(|error| {
            ApiError::bad_request(Value::from(vec![
                "invalid_regexp".into(),
                Value::from(text),
                Value::from(error.to_string()),
            ]))
        })
    };
    Ok(Permissions { configure: pattern("configure")?, write: pattern("write")?, read: pattern("read")? })
}

fn unknown(error: AdminError) -> ApiError {
    match error {
        AdminError::NoUser(_) | AdminError::NoVhost(_) => ApiError::bad_request("vhost_or_user_not_found"),
        other => other.into(),
    }
}

pub async fn delete(cx: Cx, Path((vhost, user)): Path<(String, String)>) -> Answer {
    cx.needs_administrator()?;
    cx.server().clear_permissions(&user, &vhost).await?;
    list::done()
}

pub async fn topic_all(cx: Cx) -> Answer {
    topic_answer(&cx, |_, _| true)
}

pub async fn topic_of_user(cx: Cx, Path(user): Path<String>) -> Answer {
    cx.needs_administrator()?;
    cx.server().user(&user).ok_or_else(ApiError::not_found)?;
    topic_answer(&cx, |of, _| of == user)
}

pub async fn topic_of_vhost(cx: Cx, Path(vhost): Path<String>) -> Answer {
    cx.needs_administrator()?;
    cx.needs_vhost(&vhost)?;
    topic_answer(&cx, |_, of| of == vhost)
}

pub async fn topic_get(cx: Cx, Path((vhost, user)): Path<(String, String)>) -> Answer {
    cx.needs_administrator()?;
    if cx.server().vhost(&vhost).is_none() || cx.server().user(&user).is_none() {
        return Err(ApiError::not_found());
    }
    topic_answer(&cx, |of, in_vhost| of == user && in_vhost == vhost)
}

pub async fn topic_put(cx: Cx, Path((vhost, user)): Path<(String, String)>, input: Input) -> Answer {
    cx.needs_administrator()?;
    input.needs(&["exchange", "write", "read"])?;
    let text = |key| Ok::<_, ApiError>(input.text(key)?.unwrap_or_default());
    let (exchange, write, read) = (text("exchange")?, text("write")?, text("read")?);
    let set = cx.server().set_topic_permission(&user, &vhost, exchange, write, read).await;
    list::put(set.map_err(unknown)?)
}

pub async fn topic_delete(cx: Cx, Path((vhost, user)): Path<(String, String)>) -> Answer {
    cx.needs_administrator()?;
    cx.server().clear_topic_permission(&user, &vhost, None).await?;
    list::done()
}

pub async fn topic_delete_one(cx: Cx, Path((vhost, user, exchange)): Path<(String, String, String)>) -> Answer {
    cx.needs_administrator()?;
    cx.server().clear_topic_permission(&user, &vhost, Some(&exchange)).await?;
    list::done()
}
