//! The management API over HTTP, as RabbitMQ's tools expect it (management reference 1).
//!
//! `mod.rs` serves, `routes.rs` has every path, `api/` the answers by resource. What changes something goes through
//! `server/admin`, what is shown comes from `server/views`: nothing here knows a lock or the store.

mod api;
mod caller;
mod error;
mod input;
mod json;
mod list;
mod local;
mod query;
mod routes;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

pub use self::local::{AdminSocket, socket_paths};
use crate::server::Server;

/// The API of one broker.
pub struct Management {
    server: Arc<Server>,
}

impl Management {
    pub fn new(server: Arc<Server>) -> Arc<Self> {
        Arc::new(Self { server })
    }

    /// Serves HTTP until the task is dropped.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) {
        let service = routes::router(self).into_make_service_with_connect_info::<SocketAddr>();
        if let Err(error) = axum::serve(listener, service).await {
            tracing::error!(%error, "the HTTP API has stopped");
        }
    }
}
