//! HTTP over the admin socket.

use std::path::PathBuf;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::net::UnixStream;

use super::{Failure, exit};

/// What stands as it is in a segment of a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A segment of a path.
pub fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// Asks the broker; one connection per request.
pub struct Client {
    sockets: Vec<PathBuf>,
}

/// What it answered.
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

impl Client {
    /// The broker is at the first of these that somebody listens on.
    pub fn new(sockets: Vec<PathBuf>) -> Self {
        Self { sockets }
    }

    async fn connect(&self) -> Result<UnixStream, Failure> {
        let mut reasons = Vec::new();
        for socket in &self.sockets {
            match UnixStream::connect(socket).await {
                Ok(stream) => return Ok(stream),
                Err(error) => reasons.push(format!("  * {}: {error}", socket.display())),
            }
        }
        let text = format!(
            "unable to perform an operation on node 'rabbit@localhost'. Please see diagnostics information and \
             suggestions below.\n\nNo leveret answers at its admin socket:\n{}\n\nIs it running, with the same \
             settings (--data-dir, LEVERET_DATA_DIR) and as the same user? Another socket: --admin-socket FILE.",
            reasons.join("\n")
        );
        Err(Failure::new(exit::UNAVAILABLE, text))
    }

    /// Any request.
    ///
    /// # Errors
    /// Nobody answers.
    pub async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Answer, Failure> {
        let broken = |error: &dyn std::fmt::Display| Failure::new(exit::UNAVAILABLE, error.to_string());
        let stream = self.connect().await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
        let connection = tokio::spawn(connection);
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder().method(method).uri(format!("/api/{path}")).header("host", "localhost");
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| broken(&error))?;
        let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.map_err(|error| broken(&error))?.to_bytes();
        connection.abort();
        let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap_or_default() };
        Ok(Answer { status, body })
    }

    /// A request that must succeed.
    ///
    /// # Errors
    /// It does not: the reason, and the code for its kind.
    pub async fn must(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let answer = self.ask(method, path, body).await?;
        if answer.status < 300 {
            return Ok(answer.body);
        }
        let reason = match &answer.body["reason"] {
            Value::String(reason) => reason.clone(),
            other => other.to_string(),
        };
        let code = match answer.status {
            400 => exit::DATA,
            404 => exit::USAGE,
            _ => exit::UNAVAILABLE,
        };
        Err(Failure::new(code, reason))
    }

    /// # Errors
    /// As [`Self::must`].
    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.must(Method::GET, path, None).await
    }

    /// # Errors
    /// As [`Self::must`].
    pub async fn put(&self, path: &str, body: &Value) -> Result<(), Failure> {
        self.must(Method::PUT, path, Some(body)).await.map(|_| ())
    }

    /// # Errors
    /// As [`Self::must`].
    pub async fn delete(&self, path: &str) -> Result<(), Failure> {
        self.must(Method::DELETE, path, None).await.map(|_| ())
    }
}
