//! Metrics for Prometheus, with RabbitMQ's paths, names and labels (management reference 2). `pages.rs` says what is
//! shown, `text.rs` how it is written; figures come from the server, which reads them in slices.

mod pages;
mod text;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{ConnectInfo, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use regex::RegexBuilder;
use tokio::net::TcpListener;

use self::pages::{Figures, Wanted};
use crate::server::Server;

/// The longest regular expression on names of queues, in bytes.
const PATTERN_LEN_MAX: usize = 2000;
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The pages of one broker.
#[derive(Clone)]
pub struct Metrics {
    server: Arc<Server>,
    started: SystemTime,
}

impl Metrics {
    pub fn new(server: Arc<Server>) -> Self {
        Self { server, started: SystemTime::now() }
    }

    /// Serves HTTP until the task is dropped.
    pub async fn serve(self, listener: TcpListener) {
        let router = self.router().into_make_service_with_connect_info::<SocketAddr>();
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the metrics have stopped");
        }
    }

    /// The paths, below the one that the settings give.
    fn router(self) -> Router {
        let path = self.server.config().metrics.path.clone();
        Router::new()
            .route(&path, get(Self::metrics))
            .route(&format!("{path}/"), get(Self::metrics))
            .route(&format!("{path}/per-object"), get(Self::per_object))
            .route(&format!("{path}/detailed"), get(Self::detailed))
            .route(&format!("{path}/{{other}}"), get(async || (StatusCode::NOT_FOUND, "Unknown Registry")))
            .with_state(self)
    }

    async fn metrics(state: State<Self>, peer: ConnectInfo<SocketAddr>, headers: HeaderMap) -> Response {
        let each = state.server.config().metrics.per_object;
        state.0.answer(peer.0, &headers, if each { pages::per_object } else { pages::aggregated }).await
    }

    async fn per_object(state: State<Self>, peer: ConnectInfo<SocketAddr>, headers: HeaderMap) -> Response {
        state.0.answer(peer.0, &headers, pages::per_object).await
    }

    async fn detailed(
        state: State<Self>,
        peer: ConnectInfo<SocketAddr>,
        RawQuery(query): RawQuery,
        headers: HeaderMap,
    ) -> Response {
        match wanted(query.as_deref().unwrap_or_default()) {
            Ok(wanted) => state.0.answer(peer.0, &headers, move |figures| pages::detailed(figures, &wanted)).await,
            Err(reason) => (StatusCode::BAD_REQUEST, reason).into_response(),
        }
    }

    async fn answer(
        self,
        peer: SocketAddr,
        headers: &HeaderMap,
        page: impl FnOnce(&Figures) -> String + Send + 'static,
    ) -> Response {
        if self.server.config().metrics.authentication && !self.may_see(peer, headers) {
            let realm = [(header::WWW_AUTHENTICATE, "Basic realm=\"RabbitMQ Prometheus\"")];
            return (StatusCode::UNAUTHORIZED, realm).into_response();
        }
        // With many queues it takes a while: not on a thread that serves clients.
        match tokio::task::spawn_blocking(move || page(&self.figures())).await {
            Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }

    /// Whether these are the name and password of somebody who may look at the whole node.
    fn may_see(&self, peer: SocketAddr, headers: &HeaderMap) -> bool {
        let login = || {
            let given = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Basic ")?;
            let given = String::from_utf8(BASE64.decode(given).ok()?).ok()?;
            let (user, password) = given.split_once(':')?;
            self.server.log_in(user, password, peer).ok()
        };
        login().is_some_and(|user| user.has_tag("monitoring") || user.has_tag("administrator"))
    }

    fn figures(&self) -> Figures {
        let server = &self.server;
        let node = server.node_info.name.clone();
        Figures {
            vhosts: server.vhost_figures(),
            process: server.process_figures(),
            commits: server.commit_figures(),
            cluster: server.cluster_name(),
            node,
            rabbitmq_version: server.config().profile.server_version().to_owned(),
            uptime: self.started.elapsed().unwrap_or_default(),
            started_at_s: self.started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        }
    }
}

/// Reads the query of `/metrics/detailed`. Errors: what is wrong with it, for the answer.
fn wanted(query: &str) -> Result<Wanted, String> {
    let mut wanted = Wanted::default();
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let value = value.replace('+', " ");
        let value = percent_encoding::percent_decode_str(&value)
            .decode_utf8()
            .map_err(|_| format!("{name} is not UTF-8"))?
            .into_owned();
        match name {
            "family" => wanted.families.push(value),
            "vhost" => wanted.vhosts.push(value),
            "queue" if wanted.queues.is_some() => return Err("queue may be given once".to_owned()),
            "queue" if value.len() > PATTERN_LEN_MAX => {
                return Err(format!("queue: expected a regular expression of at most {PATTERN_LEN_MAX} bytes"));
            }
            "queue" => {
                let pattern = RegexBuilder::new(&value).size_limit(4 << 20).build();
                wanted.queues = Some(pattern.map_err(|_| "queue: expected a regular expression".to_owned())?);
            }
            _ => {}
        }
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s2_queries_of_detailed_metrics() {
        let found = wanted("family=queue_metrics&family=x&vhost=%2F&vhost=a+b&queue=%5Ejobs").unwrap();
        assert_eq!(found.families, ["queue_metrics", "x"]);
        assert_eq!(found.vhosts, ["/", "a b"]);
        assert!(found.queues.unwrap().is_match("jobs.1"));
        for bad in ["queue=%28", "queue=a&queue=b", "vhost=%FF"] {
            assert!(wanted(bad).is_err(), "{bad}");
        }
        assert!(wanted(&format!("queue={}", "a".repeat(2001))).is_err());
    }
}
