//! Every path of the API (management reference 1.5).

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{delete, get, post, put};
use tower::ServiceExt as _;

use super::Management;
use super::api::{
    bindings, clients, exchanges, extras, health, nodes, operator, overview, parameters, permissions, policies, queues,
    users, vhosts,
};
use super::caller::authenticate;
use super::error::ApiError;
use super::input::BODY_MAX;

/// The whole API, and something sensible at `/`.
pub fn router(management: Arc<Management>) -> Router {
    let api = Router::new()
        .merge(broker())
        .merge(access())
        .merge(rules())
        .merge(contents())
        .merge(connections())
        .merge(small())
        .merge(checks())
        .fallback(not_found)
        .layer(from_fn_with_state(management.clone(), authenticate))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(management);
    // The path is put into its plain form first, so this is a service round the router, not a layer within it.
    Router::new().fallback(move |request: Request| async move {
        match api.oneshot(normal(request)).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    })
}

fn broker() -> Router<Arc<Management>> {
    Router::new()
        .route("/", get(home))
        .route("/api", get(home))
        .route("/api/overview", get(overview::overview))
        .route("/api/nodes", get(nodes::all))
        .route("/api/nodes/{node}", get(nodes::get))
        .route("/api/nodes/{node}/memory", get(nodes::memory))
        .route("/api/nodes/{node}/memory/relative", get(nodes::memory_relative))
        .route("/api/version", get(overview::version))
        .route("/api/whoami", get(users::whoami))
}

fn access() -> Router<Arc<Management>> {
    Router::new()
        .route("/api/vhosts", get(vhosts::all))
        .route("/api/vhosts/{vhost}", get(vhosts::get).put(vhosts::put).delete(vhosts::delete))
        .route("/api/vhosts/{vhost}/permissions", get(permissions::of_vhost))
        .route("/api/vhosts/{vhost}/topic-permissions", get(permissions::topic_of_vhost))
        .route("/api/vhosts/{vhost}/deletion/protection", post(vhosts::protect).delete(vhosts::unprotect))
        .route("/api/vhosts/{vhost}/start/{node}", post(vhosts::start))
        .route("/api/vhost-limits", get(vhosts::limits))
        .route("/api/vhost-limits/{vhost}", get(vhosts::limits_of))
        .route("/api/vhost-limits/{vhost}/{limit}", put(vhosts::set_limit).delete(vhosts::clear_limit))
        .route("/api/users", get(users::all))
        .route("/api/users/without-permissions", get(users::without_permissions))
        .route("/api/users/bulk-delete", post(users::bulk_delete))
        .route("/api/users/{user}", get(users::get).put(users::put).delete(users::delete))
        .route("/api/users/{user}/permissions", get(permissions::of_user))
        .route("/api/users/{user}/topic-permissions", get(permissions::topic_of_user))
        .route("/api/user-limits", get(users::limits))
        .route("/api/user-limits/{user}", get(users::limits_of))
        .route("/api/user-limits/{user}/{limit}", put(users::set_limit).delete(users::clear_limit))
        .route("/api/permissions", get(permissions::all))
        .route(
            "/api/permissions/{vhost}/{user}",
            get(permissions::get).put(permissions::put).delete(permissions::delete),
        )
        .route("/api/topic-permissions", get(permissions::topic_all))
        .route(
            "/api/topic-permissions/{vhost}/{user}",
            get(permissions::topic_get).put(permissions::topic_put).delete(permissions::topic_delete),
        )
        .route("/api/topic-permissions/{vhost}/{user}/{exchange}", delete(permissions::topic_delete_one))
}

fn rules() -> Router<Arc<Management>> {
    Router::new()
        .route("/api/policies", get(policies::all))
        .route("/api/policies/{vhost}", get(policies::of_vhost))
        .route("/api/policies/{vhost}/{name}", get(policies::get).put(policies::put).delete(policies::delete))
        .route("/api/operator-policies", get(policies::operator_all))
        .route("/api/operator-policies/{vhost}", get(policies::operator_of_vhost))
        .route(
            "/api/operator-policies/{vhost}/{name}",
            get(policies::operator_get).put(policies::operator_put).delete(policies::operator_delete),
        )
        .route("/api/parameters", get(parameters::all))
        .route("/api/parameters/{component}", get(parameters::of_component))
        .route("/api/parameters/{component}/{vhost}", get(parameters::of_vhost))
        .route(
            "/api/parameters/{component}/{vhost}/{name}",
            get(parameters::get).put(parameters::put).delete(parameters::delete),
        )
        .route("/api/global-parameters", get(parameters::global_all))
        .route(
            "/api/global-parameters/{name}",
            get(parameters::global_get).put(parameters::global_put).delete(parameters::global_delete),
        )
        .route("/api/cluster-name", get(parameters::cluster_name).put(parameters::set_cluster_name))
}

fn contents() -> Router<Arc<Management>> {
    Router::new()
        .route("/api/exchanges", get(exchanges::all))
        .route("/api/exchanges/{vhost}", get(exchanges::of_vhost))
        .route("/api/exchanges/{vhost}/{name}", get(exchanges::get).put(exchanges::put).delete(exchanges::delete))
        .route("/api/exchanges/{vhost}/{name}/bindings/source", get(bindings::of_source))
        .route("/api/exchanges/{vhost}/{name}/bindings/destination", get(bindings::of_destination))
        .route("/api/exchanges/{vhost}/{name}/publish", post(exchanges::publish))
        .route("/api/queues", get(queues::all))
        .route("/api/queues/detailed", get(queues::all))
        .route("/api/queues/{vhost}", get(queues::of_vhost))
        .route("/api/queues/{vhost}/{name}", get(queues::get).put(queues::put).delete(queues::delete))
        .route("/api/queues/{vhost}/{name}/bindings", get(bindings::of_queue))
        .route("/api/queues/{vhost}/{name}/contents", delete(queues::purge))
        .route("/api/queues/{vhost}/{name}/get", post(queues::get_messages))
        .route("/api/queues/{vhost}/{name}/actions", post(queues::action))
}

fn connections() -> Router<Arc<Management>> {
    const BINDINGS: &str = "/api/bindings/{vhost}/e/{source}";
    Router::new()
        .route("/api/bindings", get(bindings::all))
        .route("/api/bindings/{vhost}", get(bindings::of_vhost))
        .route(&format!("{BINDINGS}/q/{{destination}}"), get(bindings::to_queue).post(bindings::bind_queue))
        .route(&format!("{BINDINGS}/e/{{destination}}"), get(bindings::to_exchange).post(bindings::bind_exchange))
        .route(
            &format!("{BINDINGS}/q/{{destination}}/{{key}}"),
            get(bindings::get_to_queue).delete(bindings::unbind_queue),
        )
        .route(
            &format!("{BINDINGS}/e/{{destination}}/{{key}}"),
            get(bindings::get_to_exchange).delete(bindings::unbind_exchange),
        )
        .route("/api/connections", get(clients::all_connections))
        .route("/api/connections/{name}", get(clients::connection).delete(clients::close_connection))
        .route("/api/connections/{name}/channels", get(clients::channels_of_connection))
        .route("/api/connections/{name}/sessions", get(clients::sessions))
        .route(
            "/api/connections/username/{user}",
            get(clients::connections_of_user).delete(clients::close_connections_of_user),
        )
        .route("/api/vhosts/{vhost}/connections", get(clients::connections_of_vhost))
        .route("/api/vhosts/{vhost}/channels", get(clients::channels_of_vhost))
        .route("/api/channels", get(clients::all_channels))
        .route("/api/channels/{name}", get(clients::channel))
        .route("/api/consumers", get(clients::all_consumers))
        .route("/api/consumers/{vhost}", get(clients::consumers_of_vhost))
}

fn small() -> Router<Arc<Management>> {
    Router::new()
        .route("/api/leveret/authenticate", post(operator::authenticate))
        .route("/api/leveret/close-connection", post(operator::close_connection))
        .route("/api/leveret/stop", post(operator::stop))
        .route("/api/auth", get(extras::auth))
        .route("/api/auth/hash_password/{password}", get(extras::hash_password))
        .route("/api/extensions", get(extras::extensions))
        .route("/api/feature-flags", get(extras::feature_flags))
        .route("/api/feature-flags/{name}/enable", put(extras::enable_feature_flag))
        .route("/api/deprecated-features", get(extras::none))
        .route("/api/deprecated-features/used", get(extras::none))
        .route("/api/federation-links", get(extras::none))
        .route("/api/federation-links/{vhost}", get(extras::none))
        .route("/api/shovels", get(extras::none))
        .route("/api/shovels/{vhost}", get(extras::none))
        .route("/api/rebalance/queues", post(extras::nothing_to_do))
        .route("/api/reset", delete(extras::nothing_to_do))
        .route("/api/reset/{node}", delete(extras::nothing_to_do))
}

fn checks() -> Router<Arc<Management>> {
    const QUORUM: &str = "/api/health/checks/quorum-queues-without-elected-leaders";
    Router::new()
        .route("/api/aliveness-test/{vhost}", get(health::aliveness))
        .route("/api/healthchecks/node", get(health::always))
        .route("/api/healthchecks/node/{node}", get(health::always))
        .route("/api/health/checks/alarms", get(health::alarms))
        .route("/api/health/checks/local-alarms", get(health::local_alarms))
        .route("/api/health/checks/virtual-hosts", get(health::always))
        .route("/api/health/checks/port-listener/{port}", get(health::port_listener))
        .route("/api/health/checks/protocol-listener/{names}", get(health::protocol_listener))
        .route("/api/health/checks/certificate-expiration/{within}/{unit}", get(health::certificate_expiration))
        .route("/api/health/checks/node-is-quorum-critical", get(health::quorum_critical))
        .route("/api/health/checks/node-is-mirror-sync-critical", get(health::quorum_critical))
        .route("/api/health/checks/metadata-store/initialized", get(health::always))
        .route("/api/health/checks/metadata-store/initialized/with-data", get(health::always))
        .route("/api/health/checks/is-in-service", get(health::in_service))
        .route("/api/health/checks/node-is-in-service", get(health::in_service))
        .route("/api/health/checks/reached-target-cluster-size", get(health::in_service))
        .route("/api/health/checks/below-node-connection-limit", get(health::below_connection_limit))
        .route("/api/health/checks/ready-to-serve-clients", get(health::below_connection_limit))
        .route(&format!("{QUORUM}/all-vhosts"), get(health::always))
        .route(&format!("{QUORUM}/all-vhosts/pattern/{{pattern}}"), get(health::always))
        .route(&format!("{QUORUM}/vhost/{{vhost}}"), get(health::always))
        .route(&format!("{QUORUM}/vhost/{{vhost}}/pattern/{{pattern}}"), get(health::always))
}

async fn home() -> Response {
    const TEXT: &str = "Leveret: a message broker for RabbitMQ's clients and tools. The HTTP API is at /api/overview \
                        and the other paths of RabbitMQ's management plugin.\n";
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], TEXT).into_response()
}

async fn not_found() -> ApiError {
    ApiError::not_found()
}

/// Without slashes at the end; an empty vhost, as some clients write the default one, as `/`.
fn normal(mut request: Request) -> Request {
    let path = request.uri().path();
    let trimmed = if path == "/api/queues//" { "/api/queues/%2F" } else { path.trim_end_matches('/') };
    if trimmed != path && !trimmed.is_empty() {
        let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        if let Ok(uri) = format!("{trimmed}{query}").parse::<Uri>() {
            *request.uri_mut() = uri;
        }
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s1_1_slashes_at_the_end_do_not_count() {
        let normal = |uri: &str| {
            let request = Request::builder().uri(uri).body(axum::body::Body::empty()).unwrap();
            normal(request).uri().to_string()
        };
        assert_eq!(normal("/api/users/?a=1"), "/api/users?a=1");
        assert_eq!(normal("/api/queues/%2f/"), "/api/queues/%2f");
        assert_eq!(normal("/api/queues//"), "/api/queues/%2F");
        assert_eq!(normal("/"), "/");
    }
}
