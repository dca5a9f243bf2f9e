//! Policies and operator policies (management reference 1.11).

use axum::extract::Path;
use serde_json::{Value, json};

use crate::definitions::policy_json;
use crate::management::caller::Cx;
use crate::management::error::{Answer, ApiError};
use crate::management::input::Input;
use crate::management::{json as amqp, list};
use crate::model::policy::{ApplyTo, Policy};
use crate::server::admin::PolicySpec;

fn in_vhost(vhost: &str, policy: &Policy) -> Value {
    let mut item = json!({"vhost": vhost});
    item.as_object_mut().expect("an object").extend(policy_json(policy).as_object().cloned().unwrap_or_default());
    item
}

fn of_vhosts(cx: &Cx, vhosts: impl Iterator<Item = crate::model::record::Name>, operator: bool) -> Vec<Value> {
    let all = vhosts.filter_map(|vhost| cx.server().policies(&vhost, operator).map(|policies| (vhost, policies)));
    all.flat_map(|(vhost, policies)| policies.iter().map(|policy| in_vhost(&vhost, policy)).collect::<Vec<_>>())
        .collect()
}

fn list_all(cx: &Cx, operator: bool) -> Answer {
    let vhosts = cx.vhosts().into_iter();
    list::plain(&cx.query, &of_vhosts(cx, vhosts, operator))
}

fn list_vhost(cx: &Cx, vhost: &str, operator: bool) -> Answer {
    cx.needs_vhost(vhost)?;
    list::plain(&cx.query, &of_vhosts(cx, std::iter::once(vhost.into()), operator))
}

fn find(cx: &Cx, vhost: &str, name: &str, operator: bool) -> Answer {
    cx.needs_policymaker()?;
    cx.needs_vhost(vhost)?;
    let policies = cx.server().policies(vhost, operator).unwrap_or_default();
    let found = policies.iter().find(|policy| &*policy.name == name).ok_or_else(ApiError::not_found)?;
    list::one(&cx.query, &in_vhost(vhost, found))
}

async fn set(cx: &Cx, vhost: &str, name: &str, input: &Input, operator: bool) -> Answer {
    if operator {
        cx.needs_administrator()?
    } else {
        cx.needs_policymaker()?
    }
    cx.needs_vhost_to_change(vhost)?;
    input.needs(&["pattern", "definition"])?;
    list::put(cx.server().set_policy(vhost, name, policy_spec(input, operator)?, operator).await?)
}

/// What the body of a PUT, or an imported definition, says of a policy.
///
/// # Errors
/// 400.
pub fn policy_spec(input: &Input, operator: bool) -> Result<PolicySpec, ApiError> {
    let default = if operator { ApplyTo::Queues } else { ApplyTo::All };
    let apply_to = input.text("apply-to")?.map(|text| {
        let unknown = || format!("Validation failed\n\napply-to {text} not recognised\n");
        ApplyTo::parse(text).ok_or_else(|| ApiError::bad_request(unknown()))
    });
    Ok(PolicySpec {
        pattern: input.text("pattern")?.unwrap_or_default().to_owned(),
        definition: amqp::table(input.get("definition"))?,
        priority: input.integer("priority")?.unwrap_or(0),
        apply_to: apply_to.transpose()?.unwrap_or(default),
    })
}

async fn remove(cx: &Cx, vhost: &str, name: &str, operator: bool) -> Answer {
    if operator {
        cx.needs_administrator()?
    } else {
        cx.needs_policymaker()?
    }
    cx.needs_vhost(vhost)?;
    cx.server().clear_policy(vhost, name, operator).await?;
    list::done()
}

pub async fn all(cx: Cx) -> Answer {
    list_all(&cx, false)
}

pub async fn of_vhost(cx: Cx, Path(vhost): Path<String>) -> Answer {
    list_vhost(&cx, &vhost, false)
}

pub async fn get(cx: Cx, Path((vhost, name)): Path<(String, String)>) -> Answer {
    find(&cx, &vhost, &name, false)
}

pub async fn put(cx: Cx, Path((vhost, name)): Path<(String, String)>, input: Input) -> Answer {
    set(&cx, &vhost, &name, &input, false).await
}

pub async fn delete(cx: Cx, Path((vhost, name)): Path<(String, String)>) -> Answer {
    remove(&cx, &vhost, &name, false).await
}

pub async fn operator_all(cx: Cx) -> Answer {
    list_all(&cx, true)
}

pub async fn operator_of_vhost(cx: Cx, Path(vhost): Path<String>) -> Answer {
    list_vhost(&cx, &vhost, true)
}

pub async fn operator_get(cx: Cx, Path((vhost, name)): Path<(String, String)>) -> Answer {
    find(&cx, &vhost, &name, true)
}

pub async fn operator_put(cx: Cx, Path((vhost, name)): Path<(String, String)>, input: Input) -> Answer {
    set(&cx, &vhost, &name, &input, true).await
}

pub async fn operator_delete(cx: Cx, Path((vhost, name)): Path<(String, String)>) -> Answer {
    remove(&cx, &vhost, &name, true).await
}
