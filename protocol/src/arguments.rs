//! Reading and writing the arguments of a method, field by field: the functions that the table in
//! `methods.rs` names (reference 1.5).
//!
//! Consecutive bits share an octet, first field in the lowest bit; any other field between them, or
//! a ninth bit, starts a new octet.

use bytes::{BufMut, BytesMut};

use crate::parse::{Malformed, Parsed, be_u8, be_u16, be_u32, be_u64, long_string, short_string};
use crate::raw_table;
use crate::types::{FieldTable, put_long_string, put_short_string, put_table};

/// The arguments of one method.
pub(crate) trait Arguments<'a>: Sized {
    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed>;
    fn write(&self, writer: &mut Writer<'_>);
}

/// Cursor over the arguments of a received method.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    /// The octet of bits being read and how many of it were.
    bits: u8,
    bits_read: u32,
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(arguments: &'a [u8]) -> Self {
        Self { rest: arguments, bits: 0, bits_read: 0 }
    }

    /// Error unless everything was read: a payload must be consumed exactly.
    #[inline]
    pub(crate) fn finish(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed::Trailing) }
    }

    #[inline]
    fn take<T>(&mut self, mut parser: impl FnMut(&'a [u8]) -> Parsed<'a, T>) -> Result<T, Malformed> {
        self.bits_read = 0;
        let (rest, value) = parser(self.rest)?;
        self.rest = rest;
        Ok(value)
    }

    #[inline]
    pub(crate) fn octet(&mut self) -> Result<u8, Malformed> {
        self.take(be_u8)
    }

    #[inline]
    pub(crate) fn short(&mut self) -> Result<u16, Malformed> {
        self.take(be_u16)
    }

    #[inline]
    pub(crate) fn long(&mut self) -> Result<u32, Malformed> {
        self.take(be_u32)
    }

    #[inline]
    pub(crate) fn longlong(&mut self) -> Result<u64, Malformed> {
        self.take(be_u64)
    }

    #[inline]
    pub(crate) fn bit(&mut self) -> Result<bool, Malformed> {
        if self.bits_read == 0 || self.bits_read == u8::BITS {
            self.bits = self.octet()?;
        }
        let bit = self.bits >> self.bits_read & 1 == 1;
        self.bits_read += 1;
        Ok(bit)
    }

    #[inline]
    pub(crate) fn shortstr(&mut self) -> Result<&'a str, Malformed> {
        let bytes = self.take(short_string)?;
        std::str::from_utf8(bytes).map_err(|_| Malformed::ShortStringUtf8)
    }

    #[inline]
    pub(crate) fn longstr(&mut self) -> Result<&'a [u8], Malformed> {
        self.take(long_string)
    }

    pub(crate) fn table(&mut self) -> Result<FieldTable, Malformed> {
        self.take(raw_table::table)?.own()
    }
}

/// Appends the arguments of a method. Values come by reference, because that is how the table
/// destructures a method.
pub(crate) struct Writer<'o> {
    out: &'o mut BytesMut,
    bits: u8,
    bits_written: u32,
}

impl<'o> Writer<'o> {
    pub(crate) fn new(out: &'o mut BytesMut) -> Self {
        Self { out, bits: 0, bits_written: 0 }
    }

    /// Appends the last octet of bits.
    pub(crate) fn finish(mut self) {
        self.flush_bits();
    }

    fn flush_bits(&mut self) -> &mut BytesMut {
        if self.bits_written > 0 {
            self.out.put_u8(self.bits);
        }
        (self.bits, self.bits_written) = (0, 0);
        self.out
    }

    pub(crate) fn octet(&mut self, value: &u8) {
        self.flush_bits().put_u8(*value);
    }

    pub(crate) fn short(&mut self, value: &u16) {
        self.flush_bits().put_u16(*value);
    }

    pub(crate) fn long(&mut self, value: &u32) {
        self.flush_bits().put_u32(*value);
    }

    pub(crate) fn longlong(&mut self, value: &u64) {
        self.flush_bits().put_u64(*value);
    }

    pub(crate) fn bit(&mut self, value: &bool) {
        if self.bits_written == u8::BITS {
            self.flush_bits();
        }
        self.bits |= u8::from(*value) << self.bits_written;
        self.bits_written += 1;
    }

    pub(crate) fn shortstr(&mut self, value: &str) {
        put_short_string(self.flush_bits(), value.as_bytes());
    }

    pub(crate) fn longstr(&mut self, value: &[u8]) {
        put_long_string(self.flush_bits(), value);
    }

    pub(crate) fn table(&mut self, value: &FieldTable) {
        put_table(self.flush_bits(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s1_5_bits_pack_from_the_lowest_and_other_fields_break_the_octet() {
        let mut out = BytesMut::new();
        let mut writer = Writer::new(&mut out);
        for bit in [true, false, true] {
            writer.bit(&bit);
        }
        writer.short(&0x0102);
        for index in 0..9 {
            writer.bit(&(index == 0 || index == 8));
        }
        writer.finish();
        assert_eq!(out[..], [0b101, 1, 2, 1, 1]);

        let mut reader = Reader::new(&out);
        let mut bits = |count| (0..count).map(|_| reader.bit().unwrap()).collect::<Vec<_>>();
        assert_eq!(bits(3), [true, false, true]);
        assert_eq!(reader.short(), Ok(0x0102));
        for index in 0..9 {
            assert_eq!(reader.bit(), Ok(index == 0 || index == 8));
        }
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn s1_5_unused_bits_are_ignored() {
        let mut reader = Reader::new(&[0xFE]);
        assert_eq!(reader.bit(), Ok(false));
        assert_eq!(reader.finish(), Ok(()));
    }
}
