//! How Erlang prints values, for the error texts that contain them (reference 0).

use std::fmt::Write;

use leveret_protocol::FieldValue;

/// A value as RabbitMQ holds it after decoding.
pub(in crate::model) fn term(value: &FieldValue) -> String {
    match value {
        FieldValue::Bool(value) => value.to_string(),
        FieldValue::I8(value) => value.to_string(),
        FieldValue::U8(value) => value.to_string(),
        FieldValue::I16(value) => value.to_string(),
        FieldValue::U16(value) => value.to_string(),
        FieldValue::I32(value) => value.to_string(),
        FieldValue::U32(value) => value.to_string(),
        FieldValue::I64(value) => value.to_string(),
        FieldValue::F32(value) => float(f64::from(*value)),
        FieldValue::F64(value) => float(*value),
        FieldValue::Decimal { scale, value } => format!("{{{scale},{value}}}"),
        FieldValue::LongString(bytes) | FieldValue::ByteArray(bytes) => binary(bytes),
        FieldValue::Timestamp(seconds) => seconds.to_string(),
        FieldValue::Table(table) => list(
            table.iter().map(|(name, value)| format!("{{{},{},{}}}", binary(name), value.type_name(), term(value))),
        ),
        FieldValue::Array(values) => {
            list(values.iter().map(|value| format!("{{{},{}}}", value.type_name(), term(value))))
        }
        FieldValue::Void => "undefined".to_owned(),
    }
}

/// A binary: as text if it can be read as such, else as numbers.
pub(super) fn binary(bytes: &[u8]) -> String {
    let readable = |character: char| !character.is_control() || "\n\r\t\x08\x0B\x0C\x1B".contains(character);
    let quoted = |text: &str, suffix: &str| {
        let mut out = String::from("<<\"");
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0B' => out.push_str("\\v"),
                '\x0C' => out.push_str("\\f"),
                '\x1B' => out.push_str("\\e"),
                other => out.push(other),
            }
        }
        let _ = write!(out, "\"{suffix}>>"); // writing to a string cannot fail
        out
    };
    if bytes.is_empty() {
        return "<<>>".to_owned();
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if text.chars().all(readable) => quoted(text, if text.is_ascii() { "" } else { "/utf8" }),
        _ => {
            let latin: String = bytes.iter().map(|byte| char::from(*byte)).collect();
            if latin.chars().all(readable) {
                return quoted(&latin, "");
            }
            let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
            format!("<<{}>>", numbers.join(","))
        }
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

/// The shortest digits that read back the same, always with a point.
fn float(value: f64) -> String {
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use leveret_protocol::FieldTable;

    use super::*;

    /// As RabbitMQ 4.0.5 printed them in its answers to bad `x-match` arguments.
    #[test]
    fn terms_as_rabbitmq_prints_them() {
        let table: FieldTable = [("a", FieldValue::I32(1))].into_iter().collect();
        let array = vec![FieldValue::I32(1), FieldValue::from("q")];
        let cases = [
            (FieldValue::I32(5), "5"),
            (FieldValue::Bool(true), "true"),
            (FieldValue::F64(1.5), "1.5"),
            (FieldValue::F64(1.0), "1.0"),
            (FieldValue::F32(1e20), "1.0000000200408773e20"),
            (FieldValue::F64(1e20), "1.0e20"),
            (FieldValue::Decimal { scale: 1, value: 10 }, "{1,10}"),
            (FieldValue::ByteArray(Bytes::from_static(b"all")), "<<\"all\">>"),
            (FieldValue::Timestamp(5), "5"),
            (FieldValue::Table(table), "[{<<\"a\">>,signedint,1}]"),
            (FieldValue::Array(array), "[{signedint,1},{longstr,<<\"q\">>}]"),
            (FieldValue::Table(FieldTable::new()), "[]"),
            (FieldValue::Void, "undefined"),
        ];
        for (value, text) in cases {
            assert_eq!(term(&value), text);
        }
    }

    #[test]
    fn binaries_as_rabbitmq_prints_them() {
        assert_eq!(binary(b""), "<<>>");
        assert_eq!(binary(b"foo"), "<<\"foo\">>");
        assert_eq!(binary("f\u{e9}".as_bytes()), "<<\"f\u{e9}\"/utf8>>");
        assert_eq!(binary(b"\xff"), "<<\"\u{ff}\">>");
        assert_eq!(binary(b"a\x01"), "<<97,1>>");
        assert_eq!(binary(b"a\"\n\\"), "<<\"a\\\"\\n\\\\\">>");
    }
}
