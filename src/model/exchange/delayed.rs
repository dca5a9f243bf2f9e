//! `x-delayed-message`: holds back what asks for it with the header `x-delay`, and routes everything else as
//! the exchange type does that its argument `x-delayed-type` names.
//!
//! This file knows who is held back and for how long; the broker keeps the messages (`broker/delayed.rs`), and
//! lets them through once more when they are due. Their header is negative then: nobody holds them again.

use bytes::BytesMut;
use leveret_protocol::{FieldTable, FieldValue, RawProperties};

use super::header_value::Comparable;
use super::{Binding, ExchangeKind, Keep, Matched, Matching, RouteInput};

const HEADER: &str = "x-delay";
const ARGUMENT: &str = "x-delayed-type";
/// The longest delay, in milliseconds: 49 days.
const DELAY_MS_MAX: i64 = 4_294_967_295;

#[derive(Debug)]
pub(super) struct Delayed {
    underlying: Box<dyn Matching>,
}

impl Delayed {
    pub(super) fn new(arguments: &FieldTable) -> Self {
        // Without a type, as only a damaged record could be, it is a direct exchange.
        let underlying = underlying(arguments).unwrap_or(ExchangeKind::Direct);
        Self { underlying: underlying.matching(arguments) }
    }
}

impl Matching for Delayed {
    fn bind(&mut self, ordinal: u64, binding: &Binding) {
        self.underlying.bind(ordinal, binding);
    }

    fn unbind(&mut self, ordinal: u64, binding: &Binding) {
        self.underlying.unbind(ordinal, binding);
    }

    fn route(&mut self, message: &RouteInput<'_>, matched: &mut Matched<'_>) {
        match delay_ms(message.properties) {
            Some(ms) => matched.keep(Keep::Delay(ms)),
            None => self.underlying.route(message, matched),
        }
    }

    fn by_keys_only(&self) -> bool {
        false
    }
}

/// The type that routes, if the declare arguments name one that there is.
pub(super) fn underlying(arguments: &FieldTable) -> Option<ExchangeKind> {
    let kind = arguments.get(ARGUMENT).and_then(FieldValue::as_str).and_then(ExchangeKind::parse)?;
    (kind != ExchangeKind::Delayed).then_some(kind)
}

pub(super) fn validate_declare(arguments: &FieldTable) -> Result<(), String> {
    let Some(FieldValue::LongString(name)) = arguments.get(ARGUMENT) else {
        return Err(format!("Invalid argument, '{ARGUMENT}' must be an existing exchange type"));
    };
    let name = String::from_utf8_lossy(name);
    match ExchangeKind::parse(&name) {
        Some(kind @ ExchangeKind::Delayed) => {
            Err(format!("Invalid argument, '{}' can't be used for '{ARGUMENT}'", kind.name()))
        }
        Some(kind) => kind.validate_declare(arguments),
        None => Err(format!("unknown exchange type '{name}'")),
    }
}

/// How long the message is to be held back; `None` for what is routed at once (reference 7).
fn delay_ms(properties: RawProperties<'_>) -> Option<u64> {
    let value = properties.headers()?.get(HEADER)?;
    let ms = match (value.as_str(), Comparable::of(value)) {
        (Some(text), _) => text.parse().ok()?,
        (None, Comparable::Integer(ms)) => ms,
        // Cut off towards zero; what is no number or too large ends outside the range.
        (None, Comparable::Float(bits)) => f64::from_bits(bits) as i64,
        _ => return None,
    };
    (1..=DELAY_MS_MAX).contains(&ms).then(|| ms.unsigned_abs())
}

/// Appends the properties of a message that is held back, with its delay negated.
///
/// A signed integer keeps its type, everything else becomes a `l`.
pub fn with_negated_delay(properties: RawProperties<'_>, out: &mut BytesMut) {
    let start = out.len();
    out.extend_from_slice(properties.as_bytes());
    let Some(value) = properties.headers().and_then(|headers| headers.get(HEADER)) else { return };
    if let (b'b' | b's' | b'I' | b'l' | b'L', Comparable::Integer(ms)) = (value.tag, Comparable::of(value)) {
        // In its place: decoding and encoding all headers would cost ten times as much.
        let at = start + (value.bytes.as_ptr().addr() - properties.as_bytes().as_ptr().addr());
        let negated = ms.wrapping_neg().to_be_bytes();
        let width = value.bytes.len();
        out[at..at + width].copy_from_slice(&negated[8 - width..]);
        return;
    }
    let Some(ms) = delay_ms(properties) else { return };
    let Ok(mut owned) = properties.to_properties() else { return };
    if let Some(headers) = &mut owned.headers {
        headers.insert(HEADER, FieldValue::I64(-ms.cast_signed()));
        out.truncate(start);
        owned.encode(out);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use leveret_protocol::Properties;

    use super::super::tests::{Net, exchange, table};
    use super::super::{Exchange, Topology};
    use super::*;

    fn encoded(headers: FieldTable) -> BytesMut {
        let mut out = BytesMut::new();
        let content_type = Some(Bytes::from_static(b"text/plain"));
        let message_id = Some(Bytes::from_static(b"m"));
        Properties { content_type, headers: Some(headers), message_id, ..Properties::default() }.encode(&mut out);
        out
    }

    fn delay(value: FieldValue) -> Option<u64> {
        delay_ms(RawProperties::from_bytes(&encoded(table([("other", 1.into()), (HEADER, value)]))))
    }

    #[test]
    fn s7_delay_is_any_integer_a_numeric_string_or_a_float() {
        let integers = [
            FieldValue::I8(100),
            FieldValue::U8(100),
            FieldValue::I16(100),
            FieldValue::U16(100),
            FieldValue::I32(100),
            FieldValue::U32(100),
            FieldValue::I64(100),
        ];
        for value in integers {
            assert_eq!(delay(value.clone()), Some(100), "{value:?}");
        }
        assert_eq!(delay("100".into()), Some(100));
        assert_eq!(delay(FieldValue::F64(100.9)), Some(100));
        assert_eq!(delay(FieldValue::F32(1.5)), Some(1));
    }

    #[test]
    fn s7_delay_has_a_range_and_everything_else_is_no_delay() {
        assert_eq!(delay(FieldValue::I64(1)), Some(1));
        assert_eq!(delay(FieldValue::U32(u32::MAX)), Some(4_294_967_295));
        let none = [
            FieldValue::I64(0),
            FieldValue::I64(-5),
            FieldValue::I64(4_294_967_296),
            FieldValue::F64(0.9),
            FieldValue::F64(f64::NAN),
            FieldValue::F64(1e300),
            "".into(),
            "10 ".into(),
            "10.5".into(),
            "soon".into(),
            FieldValue::Bool(true),
            FieldValue::ByteArray(Bytes::from_static(b"10")),
            FieldValue::Timestamp(10),
            FieldValue::Decimal { scale: 0, value: 10 },
            FieldValue::Void,
        ];
        for value in none {
            assert_eq!(delay(value.clone()), None, "{value:?}");
        }
        assert_eq!(delay_ms(RawProperties::EMPTY), None);
    }

    #[test]
    fn s7_the_delay_is_negated_and_nothing_else_changes() {
        for (value, negated) in [
            (FieldValue::I8(5), FieldValue::I8(-5)),
            (FieldValue::I16(300), FieldValue::I16(-300)),
            (FieldValue::I32(5000), FieldValue::I32(-5000)),
            (FieldValue::I64(4_294_967_295), FieldValue::I64(-4_294_967_295)),
            (FieldValue::U8(200), FieldValue::I64(-200)),
            (FieldValue::U32(u32::MAX), FieldValue::I64(-4_294_967_295)),
            ("5000".into(), FieldValue::I64(-5000)),
            (FieldValue::F64(1.9), FieldValue::I64(-1)),
        ] {
            let fields = |value| table([("a", "b".into()), (HEADER, value), ("z", 7.into())]);
            let mut out = BytesMut::from("kept");
            with_negated_delay(RawProperties::from_bytes(&encoded(fields(value))), &mut out);
            assert_eq!(&out[..4], b"kept");
            assert_eq!(out[4..], encoded(fields(negated)));
            assert_eq!(delay_ms(RawProperties::from_bytes(&out[4..])), None, "it is not held again");
        }
    }

    #[test]
    fn s7_delayed_type_is_a_type_that_there_is() {
        let refusal = |arguments| Topology::validate_declare(ExchangeKind::Delayed, &arguments).unwrap_err();
        let missing = "Invalid argument, 'x-delayed-type' must be an existing exchange type";
        assert_eq!(refusal(FieldTable::new()), missing);
        assert_eq!(refusal(table([(ARGUMENT, FieldValue::I32(1))])), missing);
        assert_eq!(
            refusal(table([(ARGUMENT, "x-delayed-message".into())])),
            "Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'"
        );
        assert_eq!(refusal(table([(ARGUMENT, "paper".into())])), "unknown exchange type 'paper'");
    }

    #[test]
    fn s7_rules_of_the_underlying_type_hold() {
        let arguments = table([
            (ARGUMENT, "x-consistent-hash".into()),
            ("hash-header", "h".into()),
            ("hash-property", "message_id".into()),
        ]);
        let refusal = Topology::validate_declare(ExchangeKind::Delayed, &arguments).unwrap_err();
        assert_eq!(refusal, "hash-header and hash-property are mutually exclusive");
        let mut net = Net::default();
        let arguments = table([(ARGUMENT, "x-consistent-hash".into())]);
        net.declare(Exchange { arguments, ..exchange("x", ExchangeKind::Delayed) });
        let binding = net.binding("x", "q", "heavy", FieldTable::new());
        let refusal = net.topology.validate_binding(&binding, Some("classic")).unwrap_err();
        assert_eq!(refusal, "The binding key must be an integer: <<\"heavy\">>");
    }

    #[test]
    fn s7_what_is_not_delayed_is_routed_by_the_underlying_type() {
        let mut net = Net::default();
        let arguments = table([(ARGUMENT, "topic".into())]);
        net.declare(Exchange { arguments, ..exchange("x", ExchangeKind::Delayed) });
        net.bind("x", "q", "a.*");
        assert_eq!(net.route("a.b"), ["q"]);
        assert!(net.route("b.b").is_empty());
        net.unbind("x", "q", "a.*");
        assert!(net.route("a.b").is_empty());
    }

    #[test]
    fn s7_a_delayed_message_stops_at_the_exchange_and_has_no_alternate() {
        let mut net = Net::default();
        let arguments = table([(ARGUMENT, "fanout".into()), ("alternate-exchange", "other".into())]);
        let held = net.declare(Exchange { arguments, ..exchange("x", ExchangeKind::Delayed) });
        net.exchange("other", ExchangeKind::Fanout);
        net.exchange("before", ExchangeKind::Fanout);
        net.bind("before", "x", "");
        net.bind("before", "at once", "");
        net.bind("x", "later", "");
        net.bind("other", "never", "");
        let delayed = Properties { headers: Some(table([(HEADER, 250.into())])), ..Properties::default() };
        assert_eq!(net.route_from("before", &["k"], &delayed), ["at once"]);
        assert_eq!(net.topology.take_keepers()[..], [(held, Keep::Delay(250))]);
        assert!(net.topology.take_keepers().is_empty());
        let spent = Properties { headers: Some(table([(HEADER, (-250).into())])), ..Properties::default() };
        assert_eq!(net.route_from("before", &["k"], &spent), ["at once", "later"]);
        assert!(net.topology.take_keepers().is_empty());
    }
}
