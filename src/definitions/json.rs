//! Values of AMQP as JSON, and back (management reference 1.1): integers are signed 64-bit, texts long strings.

use leveret_protocol::{FieldTable, FieldValue};
use serde_json::{Map, Number, Value};

/// The AMQP value that a JSON value means.
///
/// # Errors
/// `null`, a number too large, or a name of more than 255 bytes: what was expected instead.
pub fn from_json(value: &Value) -> Result<FieldValue, String> {
    Ok(match value {
        Value::Null => return Err("expected a value, found null".to_owned()),
        Value::Bool(value) => FieldValue::Bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => FieldValue::I64(integer),
            (None, Some(float)) if number.is_f64() => FieldValue::F64(float),
            _ => return Err(format!("expected a number of at most {}, found {number}", i64::MAX)),
        },
        Value::String(text) => FieldValue::from(text.as_str()),
        Value::Array(values) => FieldValue::Array(values.iter().map(from_json).collect::<Result<_, _>>()?),
        Value::Object(fields) => FieldValue::Table(table_from_json(fields)?),
    })
}

pub(super) fn table_from_json(fields: &Map<String, Value>) -> Result<FieldTable, String> {
    let mut table = FieldTable::new();
    for (name, value) in fields {
        if name.len() > usize::from(u8::MAX) {
            return Err(format!("expected names of at most 255 bytes, found one of {}", name.len()));
        }
        table.insert(name, from_json(value)?);
    }
    Ok(table)
}

/// A value as RabbitMQ's tools show it. What JSON cannot say comes out as the nearest that it can.
pub fn to_json(value: &FieldValue) -> Value {
    let float = |value: f64| Number::from_f64(value).map_or(Value::Null, Value::Number);
    let text = |bytes: &[u8]| Value::String(String::from_utf8_lossy(bytes).into_owned());
    match value {
        FieldValue::Bool(value) => Value::Bool(*value),
        FieldValue::F32(value) => float(f64::from(*value)),
        FieldValue::F64(value) => float(*value),
        FieldValue::Decimal { scale, value } => float(f64::from(*value) / 10_f64.powi(i32::from(*scale))),
        FieldValue::LongString(bytes) | FieldValue::ByteArray(bytes) => text(bytes),
        FieldValue::Timestamp(seconds) => Value::from(*seconds),
        FieldValue::Table(table) => to_json_table(table),
        FieldValue::Array(values) => Value::Array(values.iter().map(to_json).collect()),
        FieldValue::Void => Value::Null,
        _ => match value.as_integer().and_then(|integer| i64::try_from(integer).ok()) {
            Some(integer) => Value::from(integer),
            None => Value::Null,
        },
    }
}

/// A table as an object; `{}` for an empty one.
pub fn to_json_table(table: &FieldTable) -> Value {
    let fields = table.iter().map(|(name, value)| (name.as_str().unwrap_or_default().to_owned(), to_json(value)));
    Value::Object(fields.collect())
}
