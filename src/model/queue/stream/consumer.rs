//! What a consumer of a stream asks for, and what its deliveries carry (§12.2).

use bytes::{Bytes, BytesMut};
use leveret_protocol::{FieldTable, FieldValue, RawProperties};
use smallvec::SmallVec;

use crate::model::arguments::duration_ms;
use crate::model::exchange::erlang;
use crate::model::timer::Millis;

const OFFSET_HEADER: &str = "x-stream-offset";
const FILTER_HEADER: &str = "x-stream-filter-value";

/// Where a consumer wants to begin (`x-stream-offset`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offset {
    First,
    /// The newest chunk: what came together with the newest message.
    Last,
    Next,
    At(u64),
    /// The first message that arrived then or later.
    Time(Millis),
}

impl Offset {
    /// Reads the consumer argument.
    ///
    /// # Errors
    /// The Erlang term that the text of the 406 ends with.
    pub fn parse(value: Option<&FieldValue>, now: Millis) -> Result<Self, String> {
        let Some(value) = value else { return Ok(Self::Next) };
        let invalid = || format!("{{invalid_stream_offset_arg,{{{},{}}}}}", value.type_name(), erlang::term(value));
        match value {
            FieldValue::LongString(text) | FieldValue::ByteArray(text) => match text.as_ref() {
                b"first" => Ok(Self::First),
                b"last" => Ok(Self::Last),
                b"next" => Ok(Self::Next),
                _ => {
                    let ago = value.as_str().and_then(duration_ms).ok_or_else(invalid)?;
                    Ok(Self::Time(now.saturating_sub(ago)))
                }
            },
            FieldValue::Timestamp(seconds) => Ok(Self::Time(seconds.saturating_mul(1000))),
            // RabbitMQ reads a negative number as the beginning.
            _ => value.as_integer().map(|offset| Self::At(offset.max(0) as u64)).ok_or_else(invalid),
        }
    }
}

/// Which messages a consumer wants (`x-stream-filter`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    values: SmallVec<[Bytes; 1]>,
    /// Those without a filter value as well.
    unfiltered: bool,
}

impl Filter {
    /// Reads the consumer arguments; as in RabbitMQ, values that are no strings do not count.
    pub fn parse(arguments: &FieldTable) -> Option<Self> {
        let string = |value: &FieldValue| match value {
            FieldValue::LongString(text) => Some(text.clone()),
            _ => None,
        };
        let values: SmallVec<[Bytes; 1]> = match arguments.get("x-stream-filter")? {
            FieldValue::Array(items) => items.iter().filter_map(string).collect(),
            one => string(one).into_iter().collect(),
        };
        let unfiltered = matches!(arguments.get("x-stream-match-unfiltered"), Some(FieldValue::Bool(true)));
        (!values.is_empty()).then_some(Self { values, unfiltered })
    }

    /// Does the consumer want a message with these properties?
    pub(super) fn wants(&self, properties: RawProperties<'_>) -> bool {
        let value = properties.headers().and_then(|headers| headers.get(FILTER_HEADER)?.as_long_string());
        match value.unwrap_or_default() {
            // An empty value is none.
            b"" => self.unfiltered || self.values.iter().any(Bytes::is_empty),
            value => self.values.iter().any(|wanted| wanted == value),
        }
    }
}

/// The properties with the header `x-stream-offset`. A message without a delivery mode gets mode 1, as RabbitMQ's
/// streams do it.
pub fn with_offset(properties: RawProperties<'_>, offset: u64) -> SmallVec<[u8; 256]> {
    const HEADERS: u16 = 0x2000;
    const DELIVERY_MODE: u16 = 0x1000;
    const TRANSIENT: u8 = 1;
    const FURTHER_FLAGS: u8 = 1;
    let bytes = properties.as_bytes();
    let headers = properties.headers();
    let is_taken = headers.is_some_and(|headers| headers.get(OFFSET_HEADER).is_some());
    if is_taken || bytes.len() < 2 || bytes[1] & FURTHER_FLAGS != 0 {
        let mut owned = properties.to_properties().unwrap_or_default();
        let offset = FieldValue::I64(offset as i64);
        owned.headers.get_or_insert_with(FieldTable::new).insert(OFFSET_HEADER, offset);
        owned.delivery_mode.get_or_insert(TRANSIENT);
        let mut encoded = BytesMut::new();
        owned.encode(&mut encoded);
        return SmallVec::from_slice(&encoded);
    }
    // Almost always the field can just be put after the others.
    let short = |text: Option<&[u8]>| text.map_or(0, |text| 1 + text.len());
    let start = 2 + short(properties.content_type()) + short(properties.content_encoding());
    let fields = headers.map_or(&[][..], |headers| headers.0);
    let end = start + if headers.is_some() { 4 + fields.len() } else { 0 };
    let mut out = SmallVec::new();
    out.extend_from_slice(&(properties.flags() | HEADERS | DELIVERY_MODE).to_be_bytes());
    out.extend_from_slice(&bytes[2..start]);
    let field_len = 1 + OFFSET_HEADER.len() + 1 + 8;
    out.extend_from_slice(&((fields.len() + field_len) as u32).to_be_bytes());
    out.extend_from_slice(fields);
    out.push(OFFSET_HEADER.len() as u8);
    out.extend_from_slice(OFFSET_HEADER.as_bytes());
    out.push(b'l');
    out.extend_from_slice(&offset.to_be_bytes());
    if properties.flags() & DELIVERY_MODE == 0 {
        out.push(TRANSIENT);
    }
    out.extend_from_slice(&bytes[end..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = 1_700_000_000_000;

    fn text(value: &str) -> FieldValue {
        FieldValue::from(value)
    }

    /// §12.2: the forms of `x-stream-offset`.
    #[test]
    fn s12_2_an_offset_is_a_word_a_number_a_time_or_an_interval() {
        assert_eq!(Offset::parse(None, NOW), Ok(Offset::Next));
        let rows = [
            (text("first"), Offset::First),
            (text("last"), Offset::Last),
            (text("next"), Offset::Next),
            (FieldValue::ByteArray(Bytes::from_static(b"first")), Offset::First),
            (FieldValue::I8(7), Offset::At(7)),
            (FieldValue::I64(i64::MAX), Offset::At(i64::MAX as u64)),
            (FieldValue::I32(-1), Offset::At(0)),
            (FieldValue::Timestamp(1_600_000_000), Offset::Time(1_600_000_000_000)),
            (FieldValue::Timestamp(u64::MAX), Offset::Time(u64::MAX)),
            (text("1h"), Offset::Time(NOW - 3_600_000)),
            (text("100000000000000000000Y"), Offset::Time(0)),
        ];
        for (value, offset) in rows {
            assert_eq!(Offset::parse(Some(&value), NOW), Ok(offset), "{value:?}");
        }
    }

    /// §12.2: the Erlang term of the 406.
    #[test]
    fn s12_2_a_bad_offset_is_shown_as_rabbitmq_shows_it() {
        let rows = [
            (text("bad"), "{invalid_stream_offset_arg,{longstr,<<\"bad\">>}}"),
            (text(""), "{invalid_stream_offset_arg,{longstr,<<>>}}"),
            (text("5"), "{invalid_stream_offset_arg,{longstr,<<\"5\">>}}"),
            (text("0s"), "{invalid_stream_offset_arg,{longstr,<<\"0s\">>}}"),
            (text("1d"), "{invalid_stream_offset_arg,{longstr,<<\"1d\">>}}"),
            (FieldValue::Bool(true), "{invalid_stream_offset_arg,{bool,true}}"),
        ];
        for (value, reason) in rows {
            assert_eq!(Offset::parse(Some(&value), NOW), Err(reason.to_owned()));
        }
    }

    fn properties(headers: Option<FieldTable>) -> BytesMut {
        let mut encoded = BytesMut::new();
        let content_type = Some(Bytes::from_static(b"text/plain"));
        leveret_protocol::Properties { content_type, headers, priority: Some(9), ..Default::default() }
            .encode(&mut encoded);
        encoded
    }

    fn wants(filter: &Option<Filter>, value: Option<&str>) -> bool {
        let headers = value.map(|value| FieldTable::from_iter([(FILTER_HEADER, text(value))]));
        filter.as_ref().is_none_or(|filter| filter.wants(RawProperties::from_bytes(&properties(headers))))
    }

    /// §12.2: one string or several; an empty filter value is none.
    #[test]
    fn s12_2_a_filter_wants_its_values_and_on_request_what_has_none() {
        let parse = |filter: FieldValue, unfiltered: bool| {
            let unfiltered = FieldValue::Bool(unfiltered);
            Filter::parse(&FieldTable::from_iter([
                ("x-stream-filter", filter),
                ("x-stream-match-unfiltered", unfiltered),
            ]))
        };
        let (one, both) = (text("a"), FieldValue::Array(vec![text("a"), text("b"), FieldValue::I32(5)]));
        let values = [Some("a"), Some("b"), Some(""), None];
        let rows = [
            (parse(one.clone(), false), [true, false, false, false]),
            (parse(one, true), [true, false, true, true]),
            (parse(both, false), [true, true, false, false]),
            (parse(text(""), false), [false, false, true, true]),
            (parse(FieldValue::I32(5), false), [true; 4]),
            (parse(FieldValue::Array(Vec::new()), false), [true; 4]),
            (Filter::parse(&FieldTable::new()), [true; 4]),
        ];
        for (filter, wanted) in rows {
            assert_eq!(values.map(|value| wants(&filter, value)), wanted, "{filter:?}");
        }
    }

    /// §12.2: a client's own header of that name is replaced, everything else stays; there is always a delivery mode.
    #[test]
    fn s12_2_the_offset_is_a_header_beside_those_of_the_publisher() {
        let own = |value: &str| FieldTable::from_iter([("k", text("v")), (OFFSET_HEADER, text(value))]);
        let other = FieldTable::from_iter([("k", text("v"))]);
        for headers in [None, Some(FieldTable::new()), Some(other), Some(own("x"))] {
            let encoded = properties(headers.clone());
            let with = with_offset(RawProperties::from_bytes(&encoded), 1 << 40);
            let with = RawProperties::from_bytes(&with).to_properties().unwrap();
            let mut expected = RawProperties::from_bytes(&encoded).to_properties().unwrap();
            expected.headers.get_or_insert_default().insert(OFFSET_HEADER, FieldValue::I64(1 << 40));
            expected.delivery_mode.get_or_insert(1);
            assert_eq!(with, expected, "{headers:?}");
        }
        let with = with_offset(RawProperties::EMPTY, 3);
        let with = RawProperties::from_bytes(&with);
        assert_eq!(with.headers().unwrap().get(OFFSET_HEADER).unwrap().as_integer(), Some(3));
        assert_eq!(with.delivery_mode(), Some(1));
        let persistent = with_offset(RawProperties::from_bytes(&[0x10, 0, 2]), 3);
        assert_eq!(RawProperties::from_bytes(&persistent).delivery_mode(), Some(2));
    }
}
