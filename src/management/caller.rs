//! Who asks, and what they may see and do (management reference 1.2).

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::Management;
use super::error::ApiError;
use super::query::Query;
use crate::auth::User;
use crate::server::Server;

/// Tags of which one is needed to log in at all.
const TAGS: [&str; 4] = ["management", "policymaker", "monitoring", "administrator"];

/// Paths that need no login.
const OPEN: [&str; 8] = [
    "/api/version",
    "/api/auth",
    "/api/login",
    "/api/health/checks/is-in-service",
    "/api/health/checks/below-node-connection-limit",
    "/api/health/checks/ready-to-serve-clients",
    "/api/health/checks/reached-target-cluster-size",
    "/api/health/checks/node-is-in-service",
];

/// Lets only those in who may: everybody for OPTIONS and some paths, else users with a management tag.
pub async fn authenticate(State(management): State<Arc<Management>>, mut request: Request, next: Next) -> Response {
    if request.method() == Method::OPTIONS {
        // What the path takes is in the Allow header of the 405.
        let mut response = next.run(request).await;
        if response.status() == StatusCode::METHOD_NOT_ALLOWED {
            *response.status_mut() = StatusCode::OK;
        }
        return response;
    }
    if !OPEN.contains(&request.uri().path()) && request.extensions().get::<Operator>().is_none() {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0);
        let credentials = request.headers().get(header::AUTHORIZATION).and_then(|value| basic(value.as_bytes()));
        let Some((user, password)) = credentials else { return ApiError::login_needed().into_response() };
        match check(&management.server, &user, &password, peer).await {
            Ok(user) => request.extensions_mut().insert(LoggedIn(user)),
            Err(error) => return error.into_response(),
        };
    }
    next.run(request).await
}

/// Marks requests that came through the local admin socket.
#[derive(Clone)]
pub struct Operator;

#[derive(Clone)]
struct LoggedIn(Arc<User>);

/// Logs a user in for management.
///
/// # Errors
/// 401: wrong name or password, no management tag.
pub async fn check(
    server: &Server,
    user: &str,
    password: &str,
    peer: Option<SocketAddr>,
) -> Result<Arc<User>, ApiError> {
    let peer = peer.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
    let user = server.log_in(user, password, peer).map_err(|failure| {
        tracing::warn!(%peer, %failure, "HTTP login refused");
        match failure {
            crate::auth::AuthFailure::LoopbackOnly { .. } => {
                ApiError::not_authorised("User can only log in via localhost")
            }
            _ => ApiError::login_failed(),
        }
    })?;
    if TAGS.iter().any(|tag| user.has_tag(tag)) {
        Ok(user)
    } else {
        Err(ApiError::not_authorised("Not management user"))
    }
}

/// The name and password of a Basic authorization.
fn basic(header: &[u8]) -> Option<(String, String)> {
    let (scheme, encoded) = header.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let decoded = String::from_utf8(BASE64.decode(encoded.trim_ascii()).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// A request's caller and query.
pub struct Cx {
    pub management: Arc<Management>,
    pub user: Arc<User>,
    pub query: Query,
}

impl FromRequestParts<Arc<Management>> for Cx {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, management: &Arc<Management>) -> Result<Self, ApiError> {
        let user = match parts.extensions.get::<LoggedIn>() {
            Some(LoggedIn(user)) => user.clone(),
            None if parts.extensions.get::<Operator>().is_some() => management.server.operator.clone(),
            None => return Err(ApiError::login_needed()),
        };
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        Ok(Self { management: management.clone(), user, query })
    }
}

impl Cx {
    pub fn server(&self) -> &Server {
        &self.management.server
    }

    pub fn is_administrator(&self) -> bool {
        self.user.has_tag("administrator")
    }

    pub fn is_monitor(&self) -> bool {
        self.is_administrator() || self.user.has_tag("monitoring")
    }

    pub fn is_policymaker(&self) -> bool {
        self.is_administrator() || self.user.has_tag("policymaker")
    }

    /// # Errors
    /// 401 for everybody else.
    pub fn needs_administrator(&self) -> Result<(), ApiError> {
        if self.is_administrator() { Ok(()) } else { Err(ApiError::not_authorised("Not administrator user")) }
    }

    /// # Errors
    /// 401 for everybody else.
    pub fn needs_monitor(&self) -> Result<(), ApiError> {
        if self.is_monitor() { Ok(()) } else { Err(ApiError::not_authorised("Not monitor user")) }
    }

    /// # Errors
    /// 401 for everybody else.
    pub fn needs_policymaker(&self) -> Result<(), ApiError> {
        if self.is_policymaker() { Ok(()) } else { Err(ApiError::not_authorised("Not policymaker user")) }
    }

    /// May the caller see what is in this vhost?
    pub fn sees(&self, vhost: &str) -> bool {
        self.is_monitor() || self.server().permissions_of(&self.user.name, vhost).is_some()
    }

    /// The vhost of the path, for reading and changing what is in it.
    ///
    /// # Errors
    /// 404: it does not exist; 401: not one of the caller's.
    pub fn needs_vhost(&self, vhost: &str) -> Result<(), ApiError> {
        if !self.sees(vhost) {
            return Err(ApiError::not_authorised("User not authorised to access virtual host"));
        }
        if self.server().vhost(vhost).is_none() { Err(ApiError::not_found()) } else { Ok(()) }
    }

    /// As [`Self::needs_vhost`], for what is to be made in it.
    ///
    /// # Errors
    /// As there, with another text for 404.
    pub fn needs_vhost_to_change(&self, vhost: &str) -> Result<(), ApiError> {
        if self.server().vhost(vhost).is_none() && self.is_monitor() {
            return Err(ApiError::missing("vhost_not_found"));
        }
        self.needs_vhost(vhost)
    }

    /// Names of the vhosts that the caller sees, in order.
    pub fn vhosts(&self) -> Vec<crate::model::record::Name> {
        let all = self.server().vhosts().into_iter().map(|vhost| vhost.name);
        all.filter(|vhost| self.sees(vhost)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_authorization_is_read_whatever_its_case() {
        let expected = Some(("guest".to_owned(), "a:b".to_owned()));
        assert_eq!(basic(b"Basic Z3Vlc3Q6YTpi"), expected);
        assert_eq!(basic(b"bAsIc  Z3Vlc3Q6YTpi "), expected);
        for wrong in [&b"Basic"[..], b"Basic !", b"Bearer Z3Vlc3Q6YTpi", b"Basic Z3Vlc3Q=", b""] {
            assert_eq!(basic(wrong), None);
        }
    }
}
