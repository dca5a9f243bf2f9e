//! A client of the HTTP API for tests: one connection per request, nothing clever.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use base64::Engine as _;
use serde_json::Value;

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    /// The body; null if it is empty.
    ///
    /// # Panics
    /// It is no JSON.
    pub fn json(&self) -> Value {
        if self.body.is_empty() {
            return Value::Null;
        }
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Who asks, and where.
#[derive(Clone, Debug)]
pub struct Http {
    pub address: SocketAddr,
    /// `Authorization`, if any.
    pub credentials: Option<String>,
}

impl Http {
    /// As `guest`, where a ready line says that the API is.
    ///
    /// # Panics
    /// It does not say so.
    pub fn of(ready: &str) -> Self {
        let address = ready.split(' ').find_map(|word| word.strip_prefix("management="));
        let address = address.and_then(|address| address.parse().ok());
        Self::new(address.unwrap_or_else(|| panic!("no HTTP API in {ready:?}")))
    }

    /// As `guest`.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, credentials: None }.user("guest", "guest")
    }

    pub fn user(&self, name: &str, password: &str) -> Self {
        let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}"));
        Self { address: self.address, credentials: Some(format!("Basic {encoded}")) }
    }

    pub fn nobody(&self) -> Self {
        Self { address: self.address, credentials: None }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, b"")
    }

    pub fn put(&self, path: &str, body: Value) -> Answer {
        self.send("PUT", path, body.to_string().as_bytes())
    }

    pub fn post(&self, path: &str, body: Value) -> Answer {
        self.send("POST", path, body.to_string().as_bytes())
    }

    pub fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, b"")
    }

    /// Any request; the path goes as it is.
    ///
    /// # Panics
    /// There is no answer of HTTP.
    pub fn send(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        self.send_with(method, path, &[("content-type", "application/json")], body)
    }

    /// As [`Self::send`], with these headers.
    ///
    /// # Panics
    /// There is no answer of HTTP.
    pub fn send_with(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut socket = TcpStream::connect(self.address).expect("the HTTP API is served");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if let Some(credentials) = &self.credentials {
            head += &format!("authorization: {credentials}\r\n");
        }
        head += &format!("content-length: {}\r\n\r\n", body.len());
        socket.write_all(head.as_bytes()).expect("it reads");
        // It may answer, and stop reading, before it has all.
        let _ = socket.write_all(body);
        let mut bytes = Vec::new();
        let _ = socket.read_to_end(&mut bytes);
        parse(&bytes).unwrap_or_else(|| panic!("{method} {path}: no answer but {:?}", String::from_utf8_lossy(&bytes)))
    }
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let rest = &bytes[end + 4..];
    let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = if chunked { unchunk(rest)? } else { rest.to_vec() };
    Some(Answer { status, headers, body })
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|two| two == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..line]).ok()?, 16).ok()?;
        if length == 0 {
            return Some(body);
        }
        let start = line + 2;
        body.extend_from_slice(rest.get(start..start + length)?);
        rest = rest.get(start + length + 2..)?;
    }
}
