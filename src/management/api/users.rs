//! Users and their limits (management reference 1.10).

use std::sync::Arc;

use axum::extract::Path;
use serde_json::{Value, json};

use super::parse_tags;
use crate::auth::{HashAlgorithm, PasswordHash, User};
use crate::definitions::user_json;
use crate::management::caller::Cx;
use crate::management::error::{Answer, ApiError};
use crate::management::input::Input;
use crate::management::list;
use crate::server::admin::{PasswordSpec, UserLimit, UserSpec};

pub async fn whoami(cx: Cx) -> Answer {
    list::ok(&json!({"name": &*cx.user.name, "tags": cx.user.tags, "is_internal_user": true}))
}

pub async fn all(cx: Cx) -> Answer {
    cx.needs_administrator()?;
    let users: Vec<Value> = cx.server().users().iter().map(|user| user_json(user)).collect();
    list::paged(&cx.query, &users)
}

pub async fn without_permissions(cx: Cx) -> Answer {
    cx.needs_administrator()?;
    let permissions = cx.server().permissions();
    let users = cx.server().users();
    let lonely = users.iter().filter(|user| permissions.iter().all(|(name, ..)| *name != user.name));
    list::paged(&cx.query, &lonely.map(|user| user_json(user)).collect::<Vec<_>>())
}

fn find(cx: &Cx, name: &str) -> Result<Arc<User>, ApiError> {
    cx.server().user(name).ok_or_else(ApiError::not_found)
}

pub async fn get(cx: Cx, Path(name): Path<String>) -> Answer {
    cx.needs_administrator()?;
    list::one(&cx.query, &user_json(&*find(&cx, &name)?))
}

pub async fn put(cx: Cx, Path(name): Path<String>, input: Input) -> Answer {
    cx.needs_administrator()?;
    if cx.server().user(&name).is_some_and(|user| user.has_tag("protected")) {
        return Err(ApiError::bad_request("user is protected"));
    }
    list::put(cx.server().put_user(&name, user_spec(&input)?).await?)
}

/// What the body of a PUT, or an imported definition, says of a user.
///
/// # Errors
/// 400.
pub fn user_spec(input: &Input) -> Result<UserSpec, ApiError> {
    let tags = match (input.get("tags"), input.text("administrator").ok().flatten(), input.get("administrator")) {
        (Some(tags), ..) => parse_tags(tags).ok_or_else(|| ApiError::bad_request("tags_not_present"))?,
        (None, Some("true"), _) | (None, _, Some(Value::Bool(true))) => vec!["administrator".to_owned()],
        (None, _, Some(_)) => Vec::new(),
        _ => return Err(ApiError::bad_request("tags_not_present")),
    };
    let password = match (input.text("password")?, input.text("password_hash")?) {
        (Some(_), Some(_)) => return Err(ApiError::bad_request("both_password_and_password_hash_are_present")),
        (Some(password), None) => PasswordSpec::Plain(password.to_owned()),
        (None, None | Some("")) => PasswordSpec::Nothing,
        (None, Some(hash)) => {
            let algorithm = match input.text("hashing_algorithm")? {
                None => HashAlgorithm::default(),
                Some(name) => HashAlgorithm::parse(name)
                    .ok_or_else(|| ApiError::bad_request(format!("hashing algorithm {name} is not supported")))?,
            };
            let hash = PasswordHash::from_base64(algorithm, hash);
            PasswordSpec::Hash(hash.ok_or_else(|| ApiError::bad_request("password_hash is not valid base64"))?)
        }
    };
    Ok(UserSpec { password: Some(password), tags: Some(tags), limits: None })
}

pub async fn delete(cx: Cx, Path(name): Path<String>) -> Answer {
    cx.needs_administrator()?;
    cx.server().delete_user(&name).await?;
    list::done()
}

pub async fn bulk_delete(cx: Cx, input: Input) -> Answer {
    cx.needs_administrator()?;
    input.needs(&["users"])?;
    let names = input.get("users").and_then(Value::as_array).cloned().unwrap_or_default();
    for name in names.iter().filter_map(Value::as_str) {
        match cx.server().delete_user(name).await {
            Ok(()) | Err(crate::server::admin::AdminError::Missing(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    list::done()
}

pub async fn limits(cx: Cx) -> Answer {
    cx.needs_administrator()?;
    let users = cx.server().users();
    list::plain(&cx.query, &users.iter().filter_map(|user| limits_item(user)).collect::<Vec<_>>())
}

pub async fn limits_of(cx: Cx, Path(name): Path<String>) -> Answer {
    cx.needs_administrator()?;
    let user = find(&cx, &name)?;
    list::plain(&cx.query, &limits_item(&user).into_iter().collect::<Vec<_>>())
}

fn limits_item(user: &User) -> Option<Value> {
    let limits = user_json(user)["limits"].take();
    let any = limits.as_object().is_some_and(|limits| !limits.is_empty());
    any.then(|| json!({"user": &*user.name, "value": limits}))
}

pub async fn set_limit(cx: Cx, Path((name, limit)): Path<(String, String)>, input: Input) -> Answer {
    cx.needs_administrator()?;
    let value = input.integer("value")?.ok_or_else(|| ApiError::bad_request("[{key_missing,value}]"))?;
    let limit = user_limit(&limit)?;
    find(&cx, &name)?;
    cx.server().set_user_limit(&name, limit, Some(value)).await?;
    list::done()
}

pub async fn clear_limit(cx: Cx, Path((name, limit)): Path<(String, String)>) -> Answer {
    cx.needs_administrator()?;
    let limit = user_limit(&limit)?;
    find(&cx, &name)?;
    cx.server().set_user_limit(&name, limit, None).await?;
    list::done()
}

fn user_limit(name: &str) -> Result<UserLimit, ApiError> {
    UserLimit::parse(name)
        .ok_or_else(|| ApiError::bad_request(format!("Unrecognised terms [{{<<\"{name}\">>}}] in user-limits")))
}
