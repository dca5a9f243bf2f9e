//! Strings and the owned field values and tables (reference 1.5, 1.6), with their encoders.
//!
//! Decoding goes through the borrowed forms of `raw_table.rs`, which hold the only grammar of field
//! tables. A table keeps its order, its duplicates and the type of each value, so that what a
//! client sent comes out again unchanged (except that an `L` leaves as `l`).

use std::borrow::Borrow;
use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::DecodeError;
use crate::parse::Malformed;
use crate::raw_table::{self, RawTable};

/// Longest short string in bytes: names, keys, reply texts.
pub const SHORT_STRING_MAX: usize = 255;
/// Deepest nesting of tables and arrays that is read: the outermost table is level 1. RabbitMQ has
/// no limit; `x-death` needs 3. The peer chooses the nesting, our stack pays for it.
pub const TABLE_DEPTH_MAX: u8 = 64;
/// Longest encoded table that is read, in bytes. Usually `frame_max` is the tighter limit.
pub const TABLE_SIZE_MAX: usize = 16 * 1024 * 1024;
/// Most values in one table that are read, nested ones included. A value may take one byte on the
/// wire and some fifty in memory.
pub const TABLE_VALUES_MAX: usize = 65_536;

/// A field value with its type (reference 1.6).
#[derive(Debug, Clone, PartialEq)]
pub enum FieldValue {
    /// `t`
    Bool(bool),
    /// `b`
    I8(i8),
    /// `B`
    U8(u8),
    /// `s`
    I16(i16),
    /// `u`
    U16(u16),
    /// `I`
    I32(i32),
    /// `i`
    U32(u32),
    /// `l`; an `L` is read as this too.
    I64(i64),
    /// `f`
    F32(f32),
    /// `d`
    F64(f64),
    /// `D`: `value` divided by ten to the power of `scale`.
    Decimal {
        /// Number of decimal digits.
        scale: u8,
        /// The digits, unsigned as RabbitMQ reads them.
        value: u32,
    },
    /// `S`: text as a rule, but any bytes.
    LongString(Bytes),
    /// `x`
    ByteArray(Bytes),
    /// `T`: seconds since 1970.
    Timestamp(u64),
    /// `F`
    Table(FieldTable),
    /// `A`
    Array(Vec<FieldValue>),
    /// `V`
    Void,
}

impl FieldValue {
    /// RabbitMQ's name of the type, as error texts give it: `longstr`, `signedint` and so on.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Bool(_) => "bool",
            Self::I8(_) => "byte",
            Self::U8(_) => "unsignedbyte",
            Self::I16(_) => "short",
            Self::U16(_) => "unsignedshort",
            Self::I32(_) => "signedint",
            Self::U32(_) => "unsignedint",
            Self::I64(_) => "long",
            Self::F32(_) => "float",
            Self::F64(_) => "double",
            Self::Decimal { .. } => "decimal",
            Self::LongString(_) => "longstr",
            Self::ByteArray(_) => "binary",
            Self::Timestamp(_) => "timestamp",
            Self::Table(_) => "table",
            Self::Array(_) => "array",
            Self::Void => "void",
        }
    }

    /// The type octet on the wire.
    pub fn tag(&self) -> u8 {
        match self {
            Self::Bool(_) => b't',
            Self::I8(_) => b'b',
            Self::U8(_) => b'B',
            Self::I16(_) => b's',
            Self::U16(_) => b'u',
            Self::I32(_) => b'I',
            Self::U32(_) => b'i',
            Self::I64(_) => b'l',
            Self::F32(_) => b'f',
            Self::F64(_) => b'd',
            Self::Decimal { .. } => b'D',
            Self::LongString(_) => b'S',
            Self::ByteArray(_) => b'x',
            Self::Timestamp(_) => b'T',
            Self::Table(_) => b'F',
            Self::Array(_) => b'A',
            Self::Void => b'V',
        }
    }

    /// The number, if this is of one of the integer types (not bool, decimal or timestamp).
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            Self::I8(value) => Some(value.into()),
            Self::U8(value) => Some(value.into()),
            Self::I16(value) => Some(value.into()),
            Self::U16(value) => Some(value.into()),
            Self::I32(value) => Some(value.into()),
            Self::U32(value) => Some(value.into()),
            Self::I64(value) => Some(value.into()),
            _ => None,
        }
    }

    /// The text, if this is a long string in UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::LongString(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The truth value, if this is a bool.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The table, if this is one.
    pub fn as_table(&self) -> Option<&FieldTable> {
        match self {
            Self::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The values, if this is an array.
    pub fn as_array(&self) -> Option<&[FieldValue]> {
        match self {
            Self::Array(values) => Some(values),
            _ => None,
        }
    }
}

impl From<bool> for FieldValue {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i32> for FieldValue {
    fn from(value: i32) -> Self {
        Self::I32(value)
    }
}

impl From<i64> for FieldValue {
    fn from(value: i64) -> Self {
        Self::I64(value)
    }
}

impl From<&str> for FieldValue {
    fn from(text: &str) -> Self {
        Self::LongString(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for FieldValue {
    fn from(text: String) -> Self {
        Self::LongString(text.into())
    }
}

impl From<FieldTable> for FieldValue {
    fn from(table: FieldTable) -> Self {
        Self::Table(table)
    }
}

impl From<Vec<FieldValue>> for FieldValue {
    fn from(values: Vec<FieldValue>) -> Self {
        Self::Array(values)
    }
}

/// The name of a field: up to 255 bytes, kept exactly as received, UTF-8 or not.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShortName(Box<[u8]>);

impl ShortName {
    /// `None` when there are more than 255 bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= SHORT_STRING_MAX).then(|| Self(bytes.into()))
    }

    /// The name as text, if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl std::ops::Deref for ShortName {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for ShortName {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

/// For names in our own code. Longer ones are cut like any short string: see [`put_short_string`].
impl From<&str> for ShortName {
    fn from(name: &str) -> Self {
        Self(cut_short(name.as_bytes()).into())
    }
}

impl PartialEq<str> for ShortName {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other.as_bytes()
    }
}

impl fmt::Debug for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(&self.0), f)
    }
}

impl fmt::Display for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&String::from_utf8_lossy(&self.0), f)
    }
}

/// A field table (spec 4.2.5.5, reference 1.5) in the order received, duplicates included.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FieldTable(pub Vec<(ShortName, FieldValue)>);

impl FieldTable {
    /// A table without fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// The value of the first field of this name.
    pub fn get(&self, name: &str) -> Option<&FieldValue> {
        self.0.iter().find(|(key, _)| *key == *name).map(|(_, value)| value)
    }

    /// Sets the first field of this name, in its place, or appends it; the old value, if any.
    /// A name over 255 bytes is cut, see [`put_short_string`].
    pub fn insert(&mut self, name: &str, value: impl Into<FieldValue>) -> Option<FieldValue> {
        match self.0.iter_mut().find(|(key, _)| *key == *name) {
            Some((_, old)) => Some(std::mem::replace(old, value.into())),
            None => {
                self.0.push((name.into(), value.into()));
                None
            }
        }
    }

    /// Takes out every field of this name; the value of the first.
    pub fn remove(&mut self, name: &str) -> Option<FieldValue> {
        let at = self.0.iter().position(|(key, _)| *key == *name)?;
        let (_, value) = self.0.remove(at);
        self.0.retain(|(key, _)| *key != *name);
        Some(value)
    }

    /// The fields in order.
    pub fn iter(&self) -> std::slice::Iter<'_, (ShortName, FieldValue)> {
        self.0.iter()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of fields, duplicates counted, nested ones not.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl<'t> IntoIterator for &'t FieldTable {
    type Item = &'t (ShortName, FieldValue);
    type IntoIter = std::slice::Iter<'t, (ShortName, FieldValue)>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for FieldTable {
    type Item = (ShortName, FieldValue);
    type IntoIter = std::vec::IntoIter<(ShortName, FieldValue)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'n> FromIterator<(&'n str, FieldValue)> for FieldTable {
    fn from_iter<I: IntoIterator<Item = (&'n str, FieldValue)>>(fields: I) -> Self {
        Self(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }
}

impl FromIterator<(ShortName, FieldValue)> for FieldTable {
    fn from_iter<I: IntoIterator<Item = (ShortName, FieldValue)>>(fields: I) -> Self {
        Self(fields.into_iter().collect())
    }
}

/// Reads a table with its length in front: the table and the bytes it took.
///
/// Errors, all 502: [`Truncated`](DecodeError::Truncated),
/// [`UnknownFieldType`](DecodeError::UnknownFieldType), and the three limits
/// [`TableTooDeep`](DecodeError::TableTooDeep), [`TableTooLarge`](DecodeError::TableTooLarge),
/// [`TableTooManyValues`](DecodeError::TableTooManyValues).
pub fn decode_table(input: &[u8]) -> Result<(FieldTable, usize), DecodeError> {
    let (rest, table) = raw_table::table(input).map_err(Malformed::from)?;
    Ok((table.to_table()?, input.len() - rest.len()))
}

/// Reads a table that fills `input`, without a length in front: the response of the `AMQPLAIN`
/// mechanism (reference 3.3). Errors as [`decode_table`].
pub fn decode_table_body(input: &[u8]) -> Result<FieldTable, DecodeError> {
    RawTable(input).to_table()
}

/// Appends a short string: a length octet and the bytes.
///
/// At most 255 bytes go out. Whoever builds a longer one made a mistake (debug builds assert), but a
/// cut name does less harm than a panic or a broken stream.
#[inline]
pub fn put_short_string(out: &mut BytesMut, text: &[u8]) {
    let text = cut_short(text);
    out.extend_from_slice(&[text.len() as u8]);
    out.extend_from_slice(text);
}

/// The part of a text that fits a short string.
#[inline]
pub(crate) fn cut_short(text: &[u8]) -> &[u8] {
    debug_assert!(text.len() <= SHORT_STRING_MAX, "short string of {} bytes", text.len());
    &text[..text.len().min(SHORT_STRING_MAX)]
}

/// Appends a long string: its length in 4 bytes, and the bytes.
pub fn put_long_string(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32(bytes.len() as u32);
    out.put_slice(bytes);
}

/// Appends a table: its length in bytes, then its fields.
pub fn put_table(out: &mut BytesMut, table: &FieldTable) {
    put_sized(out, |out| {
        for (name, value) in table {
            put_short_string(out, name);
            put_value(out, value);
        }
    });
}

/// Appends a field value: its type octet, then its bytes.
pub fn put_value(out: &mut BytesMut, value: &FieldValue) {
    out.put_u8(value.tag());
    match value {
        FieldValue::Bool(value) => out.put_u8((*value).into()),
        FieldValue::I8(value) => out.put_i8(*value),
        FieldValue::U8(value) => out.put_u8(*value),
        FieldValue::I16(value) => out.put_i16(*value),
        FieldValue::U16(value) => out.put_u16(*value),
        FieldValue::I32(value) => out.put_i32(*value),
        FieldValue::U32(value) => out.put_u32(*value),
        FieldValue::I64(value) => out.put_i64(*value),
        FieldValue::F32(value) => out.put_f32(*value),
        FieldValue::F64(value) => out.put_f64(*value),
        FieldValue::Decimal { scale, value } => {
            out.put_u8(*scale);
            out.put_u32(*value);
        }
        FieldValue::LongString(bytes) | FieldValue::ByteArray(bytes) => put_long_string(out, bytes),
        FieldValue::Timestamp(seconds) => out.put_u64(*seconds),
        FieldValue::Table(table) => put_table(out, table),
        FieldValue::Array(values) => {
            put_sized(out, |out| values.iter().for_each(|value| put_value(out, value)));
        }
        FieldValue::Void => {}
    }
}

/// Appends what `write` appends, with its length in bytes in front.
fn put_sized(out: &mut BytesMut, write: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_u32(0);
    write(out);
    let size = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&size.to_be_bytes());
}
