//! Field tables as they lie in a buffer: the grammar (reference 1.6), look-up without allocation,
//! and the check that a received table is whole.
//!
//! Every walk is bounded by [`TABLE_DEPTH_MAX`], [`TABLE_SIZE_MAX`] and [`TABLE_VALUES_MAX`]; bytes
//! that were never checked give errors, not panics.

use bytes::Bytes;
use nom::combinator::map;
use nom::{Err, Parser};

use crate::error::DecodeError;
use crate::parse::{Malformed, Parsed, be_u8, be_u32, long_string, short_string, take};
use crate::types::{FieldTable, FieldValue, ShortName, TABLE_DEPTH_MAX, TABLE_SIZE_MAX, TABLE_VALUES_MAX};

/// An encoded table in someone's buffer: the fields, without the length in front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawTable<'a>(pub &'a [u8]);

impl<'a> RawTable<'a> {
    /// The fields in order. The first malformed field gives an error and ends the iteration.
    pub fn iter(self) -> RawFields<'a> {
        RawFields { rest: self.0 }
    }

    /// The value of the first field of this name. `None` also when a malformed field comes first.
    #[inline]
    pub fn get(self, name: &str) -> Option<RawValue<'a>> {
        let mut rest = self.0;
        while !rest.is_empty() {
            let (after, (key, value)) = field(rest).ok()?;
            if key == name.as_bytes() {
                return Some(value);
            }
            rest = after;
        }
        None
    }

    /// The owned form. Errors: see [`decode_table`](crate::decode_table).
    pub fn to_table(self) -> Result<FieldTable, DecodeError> {
        Ok(self.own()?)
    }

    pub(crate) fn own(self) -> Result<FieldTable, Malformed> {
        check_size(self.0)?;
        own_table(self, 1, &mut Budget::new())
    }

    /// Checks that the table is whole and within the limits. Errors: see
    /// [`decode_table`](crate::decode_table).
    pub(crate) fn check(self) -> Result<Canonical, Malformed> {
        check_size(self.0)?;
        let mut canonical = Canonical(true);
        check_fields(self, 1, &mut Budget::new(), &mut canonical)?;
        Ok(canonical)
    }

    /// Whether there are no fields.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> IntoIterator for RawTable<'a> {
    type Item = Result<(&'a [u8], RawValue<'a>), DecodeError>;
    type IntoIter = RawFields<'a>;

    fn into_iter(self) -> RawFields<'a> {
        self.iter()
    }
}

/// Iterator over the fields of a [`RawTable`].
#[derive(Debug, Clone)]
pub struct RawFields<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for RawFields<'a> {
    type Item = Result<(&'a [u8], RawValue<'a>), DecodeError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        next_item(&mut self.rest, field)
    }
}

/// A field value in someone's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawValue<'a> {
    /// The type octet as received (reference 1.6).
    pub tag: u8,
    /// The bytes of the value; of strings, tables and arrays without the length in front.
    pub bytes: &'a [u8],
}

impl<'a> RawValue<'a> {
    /// The owned form. Errors: see [`decode_table`](crate::decode_table).
    pub fn to_value(self) -> Result<FieldValue, DecodeError> {
        check_size(self.bytes)?;
        Ok(own_value(self, 1, &mut Budget::new())?)
    }

    /// The bytes of a long string; `None` for every other type.
    pub fn as_long_string(self) -> Option<&'a [u8]> {
        (self.tag == b'S').then_some(self.bytes)
    }

    /// The text of a long string in UTF-8.
    pub fn as_str(self) -> Option<&'a str> {
        self.as_long_string().and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// The fields of a table.
    pub fn as_table(self) -> Option<RawTable<'a>> {
        (self.tag == b'F').then_some(RawTable(self.bytes))
    }

    /// The values of an array.
    pub fn as_array(self) -> Option<RawArray<'a>> {
        (self.tag == b'A').then_some(RawArray { rest: self.bytes })
    }

    /// The number, if this is of one of the integer types (not bool, decimal or timestamp).
    pub fn as_integer(self) -> Option<i128> {
        matches!(self.tag, b'b' | b'B' | b's' | b'u' | b'I' | b'i' | b'l' | b'L')
            .then(|| self.to_value().ok()?.as_integer())?
    }
}

/// Iterator over the values of an encoded array.
#[derive(Debug, Clone)]
pub struct RawArray<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for RawArray<'a> {
    type Item = Result<RawValue<'a>, DecodeError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        next_item(&mut self.rest, value)
    }
}

/// A table with its length in front.
#[inline(always)]
pub(crate) fn table(input: &[u8]) -> Parsed<'_, RawTable<'_>> {
    map(long_string, RawTable).parse(input)
}

/// One name and value.
#[inline(always)]
fn field(input: &[u8]) -> Parsed<'_, (&[u8], RawValue<'_>)> {
    (short_string, value).parse(input)
}

/// One type octet and the bytes that belong to it.
#[inline(always)] // with the loops around it 4 ns per field instead of 10
fn value(input: &[u8]) -> Parsed<'_, RawValue<'_>> {
    let (rest, tag) = be_u8(input)?;
    let (rest, len) = match tag {
        b'V' => (rest, 0),
        b't' | b'b' | b'B' => (rest, 1),
        b's' | b'u' => (rest, 2),
        b'I' | b'i' | b'f' => (rest, 4),
        b'D' => (rest, 5),
        b'l' | b'L' | b'd' | b'T' => (rest, 8),
        b'S' | b'x' | b'F' | b'A' => be_u32(rest)?,
        unknown => return Err(Err::Failure(Malformed::UnknownFieldType(unknown))),
    };
    let (rest, bytes) = take(len as usize, rest)?;
    Ok((rest, RawValue { tag, bytes }))
}

/// The next thing in what is left, for the iterators. An error ends them.
#[inline]
fn next_item<'a, T>(
    rest: &mut &'a [u8],
    parser: impl FnOnce(&'a [u8]) -> Parsed<'a, T>,
) -> Option<Result<T, DecodeError>> {
    if rest.is_empty() {
        return None;
    }
    let parsed = parser(rest);
    *rest = parsed.as_ref().map_or(&[], |(after, _)| after);
    Some(parsed.map(|(_, item)| item).map_err(|error| Malformed::from(error).into()))
}

/// Whether a checked table already has the form in which the broker writes it: no `L`, booleans 0
/// or 1. (Reference 1.6: those leave the broker as `l`, and as 0 or 1.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Canonical(pub bool);

/// How many values a table may still hold.
struct Budget(usize);

impl Budget {
    fn new() -> Self {
        Self(TABLE_VALUES_MAX)
    }

    #[inline]
    fn spend(&mut self) -> Result<(), Malformed> {
        self.0 = self.0.checked_sub(1).ok_or(Malformed::TableTooManyValues)?;
        Ok(())
    }
}

#[inline]
fn check_size(bytes: &[u8]) -> Result<(), Malformed> {
    if bytes.len() > TABLE_SIZE_MAX { Err(Malformed::TableTooLarge) } else { Ok(()) }
}

/// The peer chooses the nesting: bound it, or a hostile table overflows our stack.
#[inline]
fn check_depth(depth: u8) -> Result<(), Malformed> {
    if depth > TABLE_DEPTH_MAX { Err(Malformed::TableTooDeep) } else { Ok(()) }
}

fn check_fields(
    table: RawTable<'_>,
    depth: u8,
    budget: &mut Budget,
    canonical: &mut Canonical,
) -> Result<(), Malformed> {
    check_depth(depth)?;
    let mut rest = table.0;
    while !rest.is_empty() {
        let (after, (_, value)) = field(rest)?;
        check_value(value, depth, budget, canonical)?;
        rest = after;
    }
    Ok(())
}

fn check_items(array: &[u8], depth: u8, budget: &mut Budget, canonical: &mut Canonical) -> Result<(), Malformed> {
    check_depth(depth)?;
    let mut rest = array;
    while !rest.is_empty() {
        let (after, value) = value(rest)?;
        check_value(value, depth, budget, canonical)?;
        rest = after;
    }
    Ok(())
}

/// `depth` is that of the table or array around the value.
#[inline(always)]
fn check_value(
    value: RawValue<'_>,
    depth: u8,
    budget: &mut Budget,
    canonical: &mut Canonical,
) -> Result<(), Malformed> {
    budget.spend()?;
    match value.tag {
        b'F' => check_fields(RawTable(value.bytes), depth + 1, budget, canonical)?,
        b'A' => check_items(value.bytes, depth + 1, budget, canonical)?,
        b'L' => canonical.0 = false,
        b't' => canonical.0 &= matches!(value.bytes, [0 | 1]),
        _ => {}
    }
    Ok(())
}

fn own_table(table: RawTable<'_>, depth: u8, budget: &mut Budget) -> Result<FieldTable, Malformed> {
    check_depth(depth)?;
    let mut fields = Vec::new();
    let mut rest = table.0;
    while !rest.is_empty() {
        let (after, (name, value)) = field(rest)?;
        budget.spend()?;
        // The name had a length octet, so it cannot be too long.
        let name = ShortName::new(name).ok_or(Malformed::Truncated)?;
        fields.push((name, own_value(value, depth, budget)?));
        rest = after;
    }
    Ok(FieldTable(fields))
}

fn own_items(array: &[u8], depth: u8, budget: &mut Budget) -> Result<Vec<FieldValue>, Malformed> {
    check_depth(depth)?;
    let mut items = Vec::new();
    let mut rest = array;
    while !rest.is_empty() {
        let (after, value) = value(rest)?;
        budget.spend()?;
        items.push(own_value(value, depth, budget)?);
        rest = after;
    }
    Ok(items)
}

/// `depth` is that of the table or array around the value.
fn own_value(value: RawValue<'_>, depth: u8, budget: &mut Budget) -> Result<FieldValue, Malformed> {
    let bytes = value.bytes;
    Ok(match value.tag {
        b'V' => FieldValue::Void,
        b't' => FieldValue::Bool(fixed(bytes)? != [0]),
        b'b' => FieldValue::I8(i8::from_be_bytes(fixed(bytes)?)),
        b'B' => FieldValue::U8(u8::from_be_bytes(fixed(bytes)?)),
        b's' => FieldValue::I16(i16::from_be_bytes(fixed(bytes)?)),
        b'u' => FieldValue::U16(u16::from_be_bytes(fixed(bytes)?)),
        b'I' => FieldValue::I32(i32::from_be_bytes(fixed(bytes)?)),
        b'i' => FieldValue::U32(u32::from_be_bytes(fixed(bytes)?)),
        b'l' | b'L' => FieldValue::I64(i64::from_be_bytes(fixed(bytes)?)),
        b'f' => FieldValue::F32(f32::from_be_bytes(fixed(bytes)?)),
        b'd' => FieldValue::F64(f64::from_be_bytes(fixed(bytes)?)),
        b'D' => {
            let [scale, value @ ..] = fixed::<5>(bytes)?;
            FieldValue::Decimal { scale, value: u32::from_be_bytes(value) }
        }
        b'T' => FieldValue::Timestamp(u64::from_be_bytes(fixed(bytes)?)),
        b'S' => FieldValue::LongString(Bytes::copy_from_slice(bytes)),
        b'x' => FieldValue::ByteArray(Bytes::copy_from_slice(bytes)),
        b'F' => FieldValue::Table(own_table(RawTable(bytes), depth + 1, budget)?),
        b'A' => FieldValue::Array(own_items(bytes, depth + 1, budget)?),
        unknown => return Err(Malformed::UnknownFieldType(unknown)),
    })
}

/// Exactly `N` bytes. Anyone can build a [`RawValue`], so the length is not a given.
fn fixed<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Malformed> {
    bytes.try_into().map_err(|_| Malformed::Truncated)
}
