//! Values of headers and arguments, in the form in which routing compares them.
//!
//! RabbitMQ compares what it decoded: integers of all widths by their value, floats too, long strings and byte
//! arrays by their bytes; everything else only with its own type, and what is nested with all types equal. We
//! differ in timestamps: RabbitMQ 4 turns those of messages into milliseconds first, so that they never match.

use bytes::BytesMut;
use leveret_protocol::{FieldValue, RawValue, put_value};

use super::consistent_hash;

/// A value as on the wire.
#[derive(Debug)]
pub(super) struct EncodedValue {
    tag: u8,
    bytes: Box<[u8]>,
}

impl EncodedValue {
    pub(super) fn new(value: &FieldValue) -> Self {
        let mut out = BytesMut::new();
        put_value(&mut out, value);
        // A tag, then for these types a length, which a `RawValue` leaves out.
        let start = if matches!(value.tag(), b'S' | b'x' | b'F' | b'A') { 5 } else { 1 };
        Self { tag: value.tag(), bytes: out[start..].into() }
    }

    pub(super) fn comparable(&self) -> Comparable<'_> {
        Comparable::of(RawValue { tag: self.tag, bytes: &self.bytes })
    }
}

/// A value in the form in which headers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(super) enum Comparable<'a> {
    Bool(bool),
    Integer(i64),
    /// The bits: Erlang tells 0.0 and -0.0 apart, and has no NaN.
    Float(u64),
    /// A long string or a byte array.
    Text(&'a [u8]),
    /// Of another type, or of a length that does not fit its type. The codec has seen to it that equal
    /// nested values have equal bytes.
    Other(u8, &'a [u8]),
}

impl<'a> Comparable<'a> {
    #[inline]
    pub(super) fn of(value: RawValue<'a>) -> Self {
        match (value.tag, value.bytes) {
            (b't', [byte]) => Self::Bool(*byte != 0),
            (b'b', [byte]) => Self::Integer(i64::from(*byte as i8)),
            (b'B', [byte]) => Self::Integer(i64::from(*byte)),
            (b's', &[a, b]) => Self::Integer(i64::from(i16::from_be_bytes([a, b]))),
            (b'u', &[a, b]) => Self::Integer(i64::from(u16::from_be_bytes([a, b]))),
            (b'I', &[a, b, c, d]) => Self::Integer(i64::from(i32::from_be_bytes([a, b, c, d]))),
            (b'i', &[a, b, c, d]) => Self::Integer(i64::from(u32::from_be_bytes([a, b, c, d]))),
            (b'l' | b'L', bytes) if bytes.len() == 8 => {
                Self::Integer(bytes.iter().fold(0, |value, byte| value << 8 | i64::from(*byte)))
            }
            (b'f', &[a, b, c, d]) => Self::Float(f64::from(f32::from_be_bytes([a, b, c, d])).to_bits()),
            (b'd', bytes) if bytes.len() == 8 => {
                Self::Float(bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
            }
            (b'S' | b'x', bytes) => Self::Text(bytes),
            (tag, bytes) => Self::Other(tag, bytes),
        }
    }

    /// A hash that is the same in every run and version, for the hash exchanges.
    pub(super) fn stable_hash(self) -> u64 {
        let hash_number = |number: u64| consistent_hash::hash_bytes(&number.to_be_bytes());
        match self {
            Self::Bool(value) => hash_number(u64::from(value)),
            Self::Integer(value) => hash_number(value.cast_unsigned()),
            Self::Float(bits) => hash_number(bits),
            Self::Text(bytes) | Self::Other(_, bytes) => consistent_hash::hash_bytes(bytes),
        }
    }
}
