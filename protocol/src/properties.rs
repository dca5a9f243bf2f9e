//! The properties of a message (reference 1.4): the encoded form as received, read in place, and
//! the owned form.
//!
//! A property whose flag is clear is absent, which differs from empty. Short strings are bytes here:
//! unlike method arguments they are not checked for UTF-8.

use bytes::{BufMut, Bytes, BytesMut};
use nom::Parser;
use nom::combinator::map;

use crate::error::DecodeError;
use crate::parse::{Malformed, Parsed, be_u16, short_string, take};
use crate::raw_table::{self, Canonical, RawTable};
use crate::types::{FieldTable, put_short_string, put_table};

/// The bits of the flags word.
mod flag {
    pub const CONTENT_TYPE: u16 = 0x8000;
    pub const CONTENT_ENCODING: u16 = 0x4000;
    pub const HEADERS: u16 = 0x2000;
    pub const DELIVERY_MODE: u16 = 0x1000;
    pub const PRIORITY: u16 = 0x0800;
    pub const CORRELATION_ID: u16 = 0x0400;
    pub const REPLY_TO: u16 = 0x0200;
    pub const EXPIRATION: u16 = 0x0100;
    pub const MESSAGE_ID: u16 = 0x0080;
    pub const TIMESTAMP: u16 = 0x0040;
    pub const TYPE: u16 = 0x0020;
    pub const USER_ID: u16 = 0x0010;
    pub const APP_ID: u16 = 0x0008;
    pub const CLUSTER_ID: u16 = 0x0004;
    /// Another flags word follows.
    pub const CONTINUATION: u16 = 0x0001;
    /// All that mean a property.
    pub const KNOWN: u16 = 0xFFFC;
}

/// Encoded properties in someone's buffer: flags, then values in flag order.
///
/// The accessors walk over the values that come before; on bytes that were never checked they say
/// `None` where they cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawProperties<'a>(&'a [u8]);

impl<'a> RawProperties<'a> {
    /// No properties at all.
    pub const EMPTY: RawProperties<'static> = RawProperties(&[0, 0]);

    /// Trusts that `bytes` were checked before: they come from [`as_bytes`](Self::as_bytes), from
    /// [`Properties::encode`] or from [`ContentHeader::decode`](crate::ContentHeader::decode). Others
    /// cause no panic, only useless answers.
    #[inline]
    pub fn from_bytes(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Flags and values, ready for [`put_content`](crate::put_content).
    #[inline]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Which properties are present: the bits of reference 1.4. The unused bit 1 and the
    /// continuation bit 0 are left out.
    #[inline]
    pub fn flags(self) -> u16 {
        match self.0 {
            [high, low, ..] => u16::from_be_bytes([*high, *low]) & flag::KNOWN,
            _ => 0,
        }
    }

    /// Whether anything but the flags is there.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.flags() == 0
    }

    /// `content-type`, a MIME type.
    pub fn content_type(self) -> Option<&'a [u8]> {
        self.find(flag::CONTENT_TYPE)
    }

    /// `content-encoding`.
    pub fn content_encoding(self) -> Option<&'a [u8]> {
        self.find(flag::CONTENT_ENCODING)
    }

    /// `headers`; may be present and empty.
    pub fn headers(self) -> Option<RawTable<'a>> {
        self.find(flag::HEADERS).map(RawTable)
    }

    /// `delivery-mode`: 2 is persistent, everything else transient.
    #[inline]
    pub fn delivery_mode(self) -> Option<u8> {
        self.find(flag::DELIVERY_MODE)?.first().copied()
    }

    /// `priority`, 0 to 255.
    #[inline]
    pub fn priority(self) -> Option<u8> {
        self.find(flag::PRIORITY)?.first().copied()
    }

    /// `correlation-id`.
    pub fn correlation_id(self) -> Option<&'a [u8]> {
        self.find(flag::CORRELATION_ID)
    }

    /// `reply-to`, the name of a queue.
    #[inline]
    pub fn reply_to(self) -> Option<&'a [u8]> {
        self.find(flag::REPLY_TO)
    }

    /// `expiration`: milliseconds as decimal text.
    #[inline]
    pub fn expiration(self) -> Option<&'a [u8]> {
        self.find(flag::EXPIRATION)
    }

    /// `message-id`.
    pub fn message_id(self) -> Option<&'a [u8]> {
        self.find(flag::MESSAGE_ID)
    }

    /// `timestamp`: seconds since 1970.
    pub fn timestamp(self) -> Option<u64> {
        self.find(flag::TIMESTAMP)?.try_into().ok().map(u64::from_be_bytes)
    }

    /// `type`, the application's name for the kind of message.
    pub fn type_(self) -> Option<&'a [u8]> {
        self.find(flag::TYPE)
    }

    /// `user-id`.
    #[inline]
    pub fn user_id(self) -> Option<&'a [u8]> {
        self.find(flag::USER_ID)
    }

    /// `app-id`.
    pub fn app_id(self) -> Option<&'a [u8]> {
        self.find(flag::APP_ID)
    }

    /// `cluster-id`, deprecated but passed on.
    pub fn cluster_id(self) -> Option<&'a [u8]> {
        self.find(flag::CLUSTER_ID)
    }

    /// The owned form. Errors, all 502: [`Truncated`](DecodeError::Truncated),
    /// [`Trailing`](DecodeError::Trailing), and those of [`decode_table`](crate::decode_table).
    pub fn to_properties(self) -> Result<Properties, DecodeError> {
        let mut properties = Properties::default();
        self.walk(|bit, value| properties.set(bit, value))?;
        Ok(properties)
    }

    /// Checks every value and that nothing is left over, in one pass. Says whether the bytes are
    /// already as the broker writes them: no stray flags, no further flags words, headers canonical.
    #[inline]
    pub(crate) fn check(self) -> Result<Canonical, Malformed> {
        let mut canonical = match self.0 {
            [0, 0] => return Ok(Canonical(true)),
            [_, low, ..] => low & !(flag::KNOWN as u8) == 0,
            _ => return Err(Malformed::Truncated),
        };
        self.walk(|bit, value| {
            if bit == flag::HEADERS {
                canonical &= RawTable(value).check()?.0;
            }
            Ok(())
        })?;
        Ok(Canonical(canonical))
    }

    /// Gives each property in order to `each`, as its flag and its bytes without length.
    #[inline]
    fn walk(self, mut each: impl FnMut(u16, &'a [u8]) -> Result<(), Malformed>) -> Result<(), Malformed> {
        let (mut rest, mut flags) = flags_words(self.0)?;
        while flags != 0 {
            let bit = highest(flags);
            let (after, value) = property(bit, rest)?;
            each(bit, value)?;
            rest = after;
            flags &= !bit;
        }
        if rest.is_empty() { Ok(()) } else { Err(Malformed::Trailing) }
    }

    #[inline]
    fn find(self, wanted: u16) -> Option<&'a [u8]> {
        if self.flags() & wanted == 0 {
            return None;
        }
        let (mut rest, flags) = flags_words(self.0).ok()?;
        let mut before = flags & !(wanted | (wanted - 1));
        while before != 0 {
            let bit = highest(before);
            (rest, _) = property(bit, rest).ok()?;
            before &= !bit;
        }
        property(wanted, rest).ok().map(|(_, value)| value)
    }
}

#[inline]
fn highest(flags: u16) -> u16 {
    0x8000 >> flags.leading_zeros()
}

/// The flags of the known properties, and past any further flags words: the standard allows them,
/// RabbitMQ ignores the bit, nobody has properties there.
#[inline]
fn flags_words(input: &[u8]) -> Parsed<'_, u16> {
    let (mut rest, flags) = be_u16(input)?;
    let mut word = flags;
    while word & flag::CONTINUATION != 0 {
        (rest, word) = be_u16(rest)?;
    }
    Ok((rest, flags & flag::KNOWN))
}

/// The bytes of one property, without the length in front.
#[inline]
fn property(bit: u16, input: &[u8]) -> Parsed<'_, &[u8]> {
    match bit {
        flag::HEADERS => map(raw_table::table, |table| table.0).parse(input),
        flag::DELIVERY_MODE | flag::PRIORITY => take(1, input),
        flag::TIMESTAMP => take(8, input),
        _ => short_string(input),
    }
}

/// The 14 properties, owned. Short strings are at most 255 bytes, not necessarily UTF-8.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Properties {
    /// A MIME type.
    pub content_type: Option<Bytes>,
    /// Such as `gzip`.
    pub content_encoding: Option<Bytes>,
    /// May be present and empty.
    pub headers: Option<FieldTable>,
    /// 2 is persistent, everything else transient.
    pub delivery_mode: Option<u8>,
    /// 0 to 255.
    pub priority: Option<u8>,
    /// The request that this is a reply to.
    pub correlation_id: Option<Bytes>,
    /// Name of the queue for replies.
    pub reply_to: Option<Bytes>,
    /// Milliseconds as decimal text.
    pub expiration: Option<Bytes>,
    /// The application's identifier.
    pub message_id: Option<Bytes>,
    /// Seconds since 1970.
    pub timestamp: Option<u64>,
    /// The application's name for the kind of message.
    pub type_: Option<Bytes>,
    /// Must be the user who publishes.
    pub user_id: Option<Bytes>,
    /// The application's name for itself.
    pub app_id: Option<Bytes>,
    /// Deprecated but passed on.
    pub cluster_id: Option<Bytes>,
}

impl Properties {
    /// Appends flags and values. Short strings over 255 bytes are cut, see [`put_short_string`].
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u16(self.flags());
        put_text(out, &self.content_type);
        put_text(out, &self.content_encoding);
        if let Some(headers) = &self.headers {
            put_table(out, headers);
        }
        if let Some(delivery_mode) = self.delivery_mode {
            out.put_u8(delivery_mode);
        }
        if let Some(priority) = self.priority {
            out.put_u8(priority);
        }
        put_text(out, &self.correlation_id);
        put_text(out, &self.reply_to);
        put_text(out, &self.expiration);
        put_text(out, &self.message_id);
        if let Some(timestamp) = self.timestamp {
            out.put_u64(timestamp);
        }
        put_text(out, &self.type_);
        put_text(out, &self.user_id);
        put_text(out, &self.app_id);
        put_text(out, &self.cluster_id);
    }

    fn flags(&self) -> u16 {
        let present = [
            (flag::CONTENT_TYPE, self.content_type.is_some()),
            (flag::CONTENT_ENCODING, self.content_encoding.is_some()),
            (flag::HEADERS, self.headers.is_some()),
            (flag::DELIVERY_MODE, self.delivery_mode.is_some()),
            (flag::PRIORITY, self.priority.is_some()),
            (flag::CORRELATION_ID, self.correlation_id.is_some()),
            (flag::REPLY_TO, self.reply_to.is_some()),
            (flag::EXPIRATION, self.expiration.is_some()),
            (flag::MESSAGE_ID, self.message_id.is_some()),
            (flag::TIMESTAMP, self.timestamp.is_some()),
            (flag::TYPE, self.type_.is_some()),
            (flag::USER_ID, self.user_id.is_some()),
            (flag::APP_ID, self.app_id.is_some()),
            (flag::CLUSTER_ID, self.cluster_id.is_some()),
        ];
        present.iter().filter(|(_, present)| *present).fold(0, |flags, (bit, _)| flags | bit)
    }

    /// Sets the property of this flag from its encoded bytes.
    fn set(&mut self, bit: u16, value: &[u8]) -> Result<(), Malformed> {
        let text = || Some(Bytes::copy_from_slice(value));
        match bit {
            flag::CONTENT_TYPE => self.content_type = text(),
            flag::CONTENT_ENCODING => self.content_encoding = text(),
            flag::HEADERS => self.headers = Some(RawTable(value).own()?),
            flag::DELIVERY_MODE => self.delivery_mode = value.first().copied(),
            flag::PRIORITY => self.priority = value.first().copied(),
            flag::CORRELATION_ID => self.correlation_id = text(),
            flag::REPLY_TO => self.reply_to = text(),
            flag::EXPIRATION => self.expiration = text(),
            flag::MESSAGE_ID => self.message_id = text(),
            flag::TIMESTAMP => self.timestamp = value.try_into().ok().map(u64::from_be_bytes),
            flag::TYPE => self.type_ = text(),
            flag::USER_ID => self.user_id = text(),
            flag::APP_ID => self.app_id = text(),
            _ => self.cluster_id = text(),
        }
        Ok(())
    }
}

fn put_text(out: &mut BytesMut, text: &Option<Bytes>) {
    if let Some(text) = text {
        put_short_string(out, text);
    }
}
