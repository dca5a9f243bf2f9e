//! How refusals look over HTTP (management reference 1.1).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::server::admin::AdminError;

/// What a handler gives back.
pub type Answer = Result<Response, ApiError>;

/// An answer that says no.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    /// `None`: no body.
    body: Option<Value>,
    challenge: bool,
}

impl ApiError {
    pub fn new(status: StatusCode, error: &str, reason: impl Into<Value>) -> Self {
        let body = json!({"error": error, "reason": reason.into()});
        Self { status, body: Some(body), challenge: false }
    }

    /// 503 with a body of its own.
    pub fn unhealthy(body: Value) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, body: Some(body), challenge: false }
    }

    pub fn bad_request(reason: impl Into<Value>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    /// What is asked for is not there.
    pub fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "Object Not Found", "Not Found")
    }

    /// What the request needs is not there.
    pub fn missing(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", what)
    }

    /// Logged in, but may not.
    pub fn not_authorised(reason: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "not_authorised", reason)
    }

    /// Wrong name or password.
    pub fn login_failed() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "not_authorized", "Not_Authorized")
    }

    /// No name and password: the client is asked for them.
    pub fn login_needed() -> Self {
        Self { status: StatusCode::UNAUTHORIZED, body: None, challenge: true }
    }

    /// A refusal of publish or get, which are done on a channel: its code stands in the reason.
    pub fn on_channel(error: AdminError, missing: &str) -> Self {
        match error {
            AdminError::Refused(refusal) => match refusal.code {
                404 => Self::missing(missing),
                403 | 530 => Self::not_authorised("Access refused."),
                code => Self::bad_request(format!("{code} {}", refusal.text)),
            },
            AdminError::Nacked => Self::bad_request("rejected Unable to publish message.  Check queue limits."),
            other => other.into(),
        }
    }
}

impl From<AdminError> for ApiError {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Missing(_) => Self::not_found(),
            AdminError::NoVhost(_) => Self::missing("vhost_not_found"),
            AdminError::NoUser(_) => Self::missing("user_not_found"),
            AdminError::Invalid(reason) => Self::bad_request(reason),
            AdminError::Protected(reason) => Self::new(StatusCode::PRECONDITION_FAILED, "precondition_failed", reason),
            AdminError::Refused(refusal) => match refusal.code {
                403 | 530 => Self::not_authorised("Access refused."),
                404 => Self::missing(refusal.explanation()),
                _ => Self::bad_request(refusal.explanation()),
            },
            AdminError::Nacked => Self::bad_request(error.to_string()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = match self.body {
            Some(body) => (self.status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response(),
            None => self.status.into_response(),
        };
        if self.challenge {
            let realm = HeaderValue::from_static("Basic realm=\"RabbitMQ Management\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, realm);
        }
        response
    }
}
