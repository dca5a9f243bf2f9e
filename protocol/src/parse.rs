//! The smallest parsers, in nom's form, and the error that all parsers share.
//!
//! nom has parsers for integers and lengths too, but they go byte by byte; these take an array or a
//! slice at once, which halves the time for a header table.

use nom::Err;
use nom::error::{ErrorKind, ParseError};

/// Result of a parser: what it left of the input, and the value.
pub(crate) type Parsed<'a, T> = nom::IResult<&'a [u8], T, Malformed>;

/// What a parser can find wrong. Small and `Copy`, because it is part of every return value on the
/// fast path; outside the crate it is a [`DecodeError`](crate::DecodeError), which explains each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Malformed {
    Truncated,
    Trailing,
    ShortStringUtf8,
    UnknownFieldType(u8),
    TableTooDeep,
    TableTooLarge,
    TableTooManyValues,
}

/// nom's own failures all mean one thing here: the parser wanted more input than there was.
impl<'a> ParseError<&'a [u8]> for Malformed {
    fn from_error_kind(_: &'a [u8], _: ErrorKind) -> Self {
        Self::Truncated
    }

    fn append(_: &'a [u8], _: ErrorKind, other: Self) -> Self {
        other
    }
}

/// So that `?` ends a parse. Our input is always complete: nothing ever asks for more.
impl From<Err<Malformed>> for Malformed {
    #[inline]
    fn from(error: Err<Malformed>) -> Self {
        match error {
            Err::Error(error) | Err::Failure(error) => error,
            Err::Incomplete(_) => Self::Truncated,
        }
    }
}

/// An array of bytes.
#[inline(always)]
pub(crate) fn octets<const N: usize>(input: &[u8]) -> Parsed<'_, [u8; N]> {
    match input.split_first_chunk() {
        Some((octets, rest)) => Ok((rest, *octets)),
        None => Err(Err::Error(Malformed::Truncated)),
    }
}

/// `len` bytes.
#[inline(always)]
pub(crate) fn take(len: usize, input: &[u8]) -> Parsed<'_, &[u8]> {
    match input.split_at_checked(len) {
        Some((taken, rest)) => Ok((rest, taken)),
        None => Err(Err::Error(Malformed::Truncated)),
    }
}

#[inline(always)]
pub(crate) fn be_u8(input: &[u8]) -> Parsed<'_, u8> {
    octets(input).map(|(rest, [octet])| (rest, octet))
}

#[inline(always)]
pub(crate) fn be_u16(input: &[u8]) -> Parsed<'_, u16> {
    octets(input).map(|(rest, octets)| (rest, u16::from_be_bytes(octets)))
}

#[inline(always)]
pub(crate) fn be_u32(input: &[u8]) -> Parsed<'_, u32> {
    octets(input).map(|(rest, octets)| (rest, u32::from_be_bytes(octets)))
}

#[inline(always)]
pub(crate) fn be_u64(input: &[u8]) -> Parsed<'_, u64> {
    octets(input).map(|(rest, octets)| (rest, u64::from_be_bytes(octets)))
}

/// A short string as bytes: a length octet and that many bytes (reference 1.5).
#[inline(always)]
pub(crate) fn short_string(input: &[u8]) -> Parsed<'_, &[u8]> {
    let (rest, len) = be_u8(input)?;
    take(len.into(), rest)
}

/// A long string: a length in 4 bytes and that many bytes.
#[inline(always)]
pub(crate) fn long_string(input: &[u8]) -> Parsed<'_, &[u8]> {
    let (rest, len) = be_u32(input)?;
    take(len as usize, rest)
}
