//! The JSON object in a request's body, read as loosely as RabbitMQ reads it (management reference 1.1).

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use serde_json::{Map, Value};

use super::error::ApiError;

/// Longest body in bytes.
pub const BODY_MAX: usize = 20_000_000;

/// The body of a request: an object, empty if there is none.
#[derive(Debug, Default)]
pub struct Input(pub Map<String, Value>);

impl<S: Send + Sync> FromRequest<S> for Input {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let body = Bytes::from_request(request, state).await;
        let body = body.map_err(|_| ApiError::bad_request("Exceeded HTTP request body size limit"))?;
        Self::parse(&body)
    }
}

impl Input {
    /// # Errors
    /// 400: not JSON, or no object.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        if body.trim_ascii().is_empty() || body.trim_ascii() == b"undefined" {
            return Ok(Self::default());
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(object)) => Ok(Self(object)),
            Ok(Value::Null) => Ok(Self::default()),
            Ok(Value::String(_)) => Err(ApiError::bad_request(
                "invalid payload: the request body JSON-decoded to a string. Is the input doubly-JSON-encoded?",
            )),
            _ => Err(ApiError::bad_request("not_json")),
        }
    }

    /// Every one of these must be there.
    ///
    /// # Errors
    /// 400 with the list of those that are not.
    pub fn needs(&self, keys: &[&str]) -> Result<(), ApiError> {
        let missing = keys.iter().filter(|key| !self.0.contains_key(**key));
        let missing: Vec<String> = missing.map(|key| format!("{{key_missing,{key}}}")).collect();
        if missing.is_empty() {
            return Ok(());
        }
        // Erlang breaks lists that are wider than a line.
        let one_line = missing.join(",");
        let text = if one_line.len() > 70 { missing.join(",\n ") } else { one_line };
        Err(ApiError::bad_request(format!("[{text}]")))
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// A text; `None` if it is not there.
    ///
    /// # Errors
    /// 400: something else.
    pub fn text(&self, key: &str) -> Result<Option<&str>, ApiError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(ApiError::bad_request(Value::from(vec!["not_a_string".into(), other.clone()]))),
        }
    }

    /// A boolean, perhaps as text; `None` if it is not there.
    ///
    /// # Errors
    /// 400: something else.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, ApiError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(Value::String(text)) if text == "true" => Ok(Some(true)),
            Some(Value::String(text)) if text == "false" => Ok(Some(false)),
            Some(other) => Err(ApiError::bad_request(Value::from(vec!["not_boolean".into(), other.clone()]))),
        }
    }

    /// A whole number, perhaps as text; `None` if it is not there.
    ///
    /// # Errors
    /// 400: something else.
    pub fn integer(&self, key: &str) -> Result<Option<i64>, ApiError> {
        let wrong = |other: &Value| ApiError::bad_request(Value::from(vec!["not_integer".into(), other.clone()]));
        match self.get(key) {
            None => Ok(None),
            Some(value @ Value::Number(number)) => number.as_i64().map(Some).ok_or_else(|| wrong(value)),
            Some(value @ Value::String(text)) => text.parse().map(Some).map_err(|_| wrong(value)),
            Some(other) => Err(wrong(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(text: &str) -> Input {
        Input::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn s1_1_an_empty_body_is_an_empty_object() {
        for empty in ["", "  ", "null", "undefined", "{}"] {
            assert!(input(empty).0.is_empty(), "{empty:?}");
        }
        for wrong in ["[]", "{x", "1", "\"{}\""] {
            assert!(Input::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn s1_1_booleans_and_numbers_may_be_texts() {
        let input = input(r#"{"a":"true","b":false,"c":"troo","d":"12","e":1.5,"f":null}"#);
        assert_eq!(input.boolean("a").unwrap(), Some(true));
        assert_eq!(input.boolean("b").unwrap(), Some(false));
        assert!(input.boolean("c").is_err() && input.boolean("d").is_err());
        assert_eq!(input.integer("d").unwrap(), Some(12));
        assert!(input.integer("e").is_err());
        assert_eq!((input.integer("f").unwrap(), input.boolean("g").unwrap()), (None, None));
        assert!(input.needs(&["a", "b"]).is_ok() && input.needs(&["a", "z"]).is_err());
    }
}
