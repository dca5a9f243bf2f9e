//! Values of AMQP in requests and answers, beyond what `definitions` does.

use base64::Engine as _;
use leveret_protocol::{FieldTable, FieldValue};
use serde_json::Value;

use super::error::ApiError;
use crate::definitions::from_json;

/// An object, or the empty array that some clients send for one, as a table.
///
/// # Errors
/// 400: something else, or a null within it.
pub fn table(value: Option<&Value>) -> Result<FieldTable, ApiError> {
    match value {
        None => Ok(FieldTable::new()),
        Some(Value::Array(array)) if array.is_empty() => Ok(FieldTable::new()),
        Some(object @ Value::Object(_)) => match from_json(object) {
            Ok(FieldValue::Table(table)) => Ok(table),
            Err(reason) if !reason.ends_with("found null") => Err(ApiError::bad_request(reason)),
            _ => Err(ApiError::bad_request("null_not_allowed")),
        },
        Some(other) => Err(ApiError::bad_request(Value::from(vec!["not_an_object".into(), other.clone()]))),
    }
}

/// Bytes as they can be shown: text that is not UTF-8 as base64.
pub fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => base64::engine::general_purpose::STANDARD.encode(bytes),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn s1_1_nulls_and_other_than_objects_are_refused_and_an_empty_array_is_not() {
        assert!(table(Some(&json!([]))).unwrap().is_empty() && table(None).unwrap().is_empty());
        assert_eq!(table(Some(&json!({"n": 1}))).unwrap().get("n"), Some(&FieldValue::I64(1)));
        for wrong in [json!({"x": null}), json!([1]), json!("x"), json!({"o": {"x": [null]}})] {
            assert!(table(Some(&wrong)).is_err(), "{wrong}");
        }
        assert_eq!(text(&[0xff, 0xfe]), "//4=");
    }
}
