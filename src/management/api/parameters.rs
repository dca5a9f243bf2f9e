//! Parameters, global ones too (management reference 1.11).

use axum::extract::Path;
use serde_json::{Value, json};

use crate::definitions::limits_json;
use crate::management::caller::Cx;
use crate::management::error::{Answer, ApiError};
use crate::management::input::Input;
use crate::management::list;
use crate::server::admin::{GLOBAL, Parameter};

/// Components that take parameters: the plugins' that tools set, though nothing here acts on them.
const COMPONENTS: [&str; 4] = ["shovel", "federation-upstream", "federation-upstream-set", "vhost-limits"];

fn item(parameter: &Parameter) -> Value {
    json!({
        "value": parameter.value,
        "vhost": &*parameter.vhost,
        "component": &*parameter.component,
        "name": &*parameter.name,
    })
}

fn list_where(cx: &Cx, wanted: impl Fn(&Parameter) -> bool) -> Answer {
    cx.needs_policymaker()?;
    let mut all: Vec<Parameter> =
        cx.server().parameters().into_iter().filter(|parameter| &*parameter.vhost != GLOBAL).collect();
    // Limits of vhosts are parameters too, in RabbitMQ.
    for vhost in cx.server().vhosts() {
        let value = limits_json(vhost.limits);
        if value.as_object().is_some_and(|limits| !limits.is_empty()) {
            all.push(Parameter { vhost: vhost.name, component: "vhost-limits".into(), name: "limits".into(), value });
        }
    }
    all.retain(|parameter| cx.sees(&parameter.vhost) && wanted(parameter));
    all.sort_by(|one, other| {
        (&one.component, &one.vhost, &one.name).cmp(&(&other.component, &other.vhost, &other.name))
    });
    list::plain(&cx.query, &all.iter().map(item).collect::<Vec<_>>())
}

pub async fn all(cx: Cx) -> Answer {
    list_where(&cx, |_| true)
}

pub async fn of_component(cx: Cx, Path(component): Path<String>) -> Answer {
    list_where(&cx, |parameter| *parameter.component == *component)
}

pub async fn of_vhost(cx: Cx, Path((component, vhost)): Path<(String, String)>) -> Answer {
    cx.needs_policymaker()?;
    cx.needs_vhost(&vhost)?;
    list_where(&cx, |parameter| *parameter.component == *component && *parameter.vhost == *vhost)
}

pub async fn get(cx: Cx, Path((component, vhost, name)): Path<(String, String, String)>) -> Answer {
    cx.needs_policymaker()?;
    cx.needs_vhost(&vhost)?;
    let value = cx.server().parameter(&vhost, &component, &name).ok_or_else(ApiError::not_found)?;
    list::one(
        &cx.query,
        &item(&Parameter {
            vhost: vhost.as_str().into(),
            component: component.as_str().into(),
            name: name.as_str().into(),
            value,
        }),
    )
}

pub async fn put(cx: Cx, Path((component, vhost, name)): Path<(String, String, String)>, input: Input) -> Answer {
    cx.needs_policymaker()?;
    cx.needs_vhost_to_change(&vhost)?;
    input.needs(&["value"])?;
    if !COMPONENTS.contains(&component.as_str()) {
        return Err(ApiError::bad_request(format!("Validation failed\n\ncomponent {component} not found\n")));
    }
    let value = input.get("value").cloned().unwrap_or_default();
    let (component, name) = (component.as_str().into(), name.as_str().into());
    list::put(cx.server().set_parameter(Parameter { vhost: vhost.into(), component, name, value }).await?)
}

pub async fn delete(cx: Cx, Path((component, vhost, name)): Path<(String, String, String)>) -> Answer {
    cx.needs_policymaker()?;
    cx.needs_vhost(&vhost)?;
    cx.server().clear_parameter(&vhost, &component, &name).await?;
    list::done()
}

fn global_item(name: &str, value: &Value) -> Value {
    json!({"name": name, "value": value})
}

pub async fn global_all(cx: Cx) -> Answer {
    cx.needs_policymaker()?;
    let all = cx.server().parameters();
    let global = all.iter().filter(|parameter| &*parameter.vhost == GLOBAL);
    list::plain(&cx.query, &global.map(|global| global_item(&global.name, &global.value)).collect::<Vec<_>>())
}

pub async fn global_get(cx: Cx, Path(name): Path<String>) -> Answer {
    cx.needs_policymaker()?;
    let value = cx.server().parameter(GLOBAL, GLOBAL, &name).ok_or_else(ApiError::not_found)?;
    list::one(&cx.query, &global_item(&name, &value))
}

pub async fn global_put(cx: Cx, Path(name): Path<String>, input: Input) -> Answer {
    cx.needs_policymaker()?;
    input.needs(&["value"])?;
    let value = input.get("value").cloned().unwrap_or_default();
    let (vhost, component, name) = (GLOBAL.into(), GLOBAL.into(), name.into());
    list::put(cx.server().set_parameter(Parameter { vhost, component, name, value }).await?)
}

pub async fn global_delete(cx: Cx, Path(name): Path<String>) -> Answer {
    cx.needs_policymaker()?;
    cx.server().clear_parameter(GLOBAL, GLOBAL, &name).await?;
    list::done()
}

pub async fn cluster_name(cx: Cx) -> Answer {
    list::ok(&json!({"name": cx.server().cluster_name()}))
}

pub async fn set_cluster_name(cx: Cx, input: Input) -> Answer {
    cx.needs_administrator()?;
    input.needs(&["name"])?;
    let value = input.text("name")?.unwrap_or_default().into();
    let (vhost, component, name) = (GLOBAL.into(), GLOBAL.into(), "cluster_name".into());
    cx.server().set_parameter(Parameter { vhost, component, name, value }).await?;
    list::done()
}
