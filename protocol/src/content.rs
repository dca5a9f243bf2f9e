//! Content headers and messages as the decoder hands them on (reference 1.3, 1.4).

use bytes::Bytes;
use nom::Parser;
use nom::combinator::rest;

use crate::error::DecodeError;
use crate::parse::{Malformed, be_u16, be_u64};
use crate::properties::RawProperties;
use crate::raw_table::Canonical;

/// Largest body that a header may announce, in bytes: 512 MiB. Beyond it the connection ends (501);
/// the configured message size is a lower limit with a milder answer.
pub const BODY_SIZE_MAX: u64 = 536_870_912;

/// The payload of a header frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentHeader<'a> {
    /// 60, if all is well.
    pub class_id: u16,
    /// 0, if all is well.
    pub weight: u16,
    /// Bytes of body that follow.
    pub body_size: u64,
    /// As received.
    pub properties: RawProperties<'a>,
}

impl<'a> ContentHeader<'a> {
    /// Reads a header and checks its properties: every value whose flag is set is there, the headers
    /// table is whole and within the limits, nothing is left over. Does not judge class, weight and
    /// size.
    ///
    /// Errors, all 502: [`Truncated`](DecodeError::Truncated),
    /// [`Trailing`](DecodeError::Trailing), and those of [`decode_table`](crate::decode_table).
    #[inline]
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let header = Self::split(payload)?;
        header.properties.check()?;
        Ok(header)
    }

    /// The fields, without a look at the properties.
    #[inline]
    pub(crate) fn split(payload: &'a [u8]) -> Result<Self, Malformed> {
        let (_, (class_id, weight, body_size, properties)) = (be_u16, be_u16, be_u64, rest).parse(payload)?;
        let properties = RawProperties::from_bytes(properties);
        Ok(Self { class_id, weight, body_size, properties })
    }

    /// The check of [`decode`](Self::decode), for after [`split`](Self::split).
    #[inline]
    pub(crate) fn check_properties(&self) -> Result<Canonical, Malformed> {
        self.properties.check()
    }
}

/// The body of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body<'a> {
    /// Arrived whole in one frame, or is empty: still in the read buffer.
    Slice(&'a [u8]),
    /// Collected from several frames or reads.
    Owned(Bytes),
    /// Announced more bytes (this many) than are stored per message. They were counted and dropped.
    Oversized(u64),
}

impl Body<'_> {
    /// The bytes; none of an oversized body.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Slice(bytes) => bytes,
            Self::Owned(bytes) => bytes,
            Self::Oversized(_) => &[],
        }
    }
}

/// A `basic.publish` with its content. Borrows the read buffer, not the decoder, so the publishes of
/// a whole batch can live at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish<'a> {
    /// Empty: the default exchange.
    pub exchange: &'a str,
    /// The routing key.
    pub routing_key: &'a str,
    /// Return the message when no queue takes it.
    pub mandatory: bool,
    /// Not supported by RabbitMQ (540).
    pub immediate: bool,
    /// Checked, and in the form in which the broker may send them on.
    pub properties: RawProperties<'a>,
    /// The body.
    pub body: Body<'a>,
}

/// A `basic.publish` whose frames arrived over several reads, or were not plain enough to be borrowed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnedPublish {
    /// Empty: the default exchange.
    pub exchange: String,
    /// The routing key.
    pub routing_key: String,
    /// Return the message when no queue takes it.
    pub mandatory: bool,
    /// Not supported by RabbitMQ (540).
    pub immediate: bool,
    /// For [`RawProperties::from_bytes`]: checked, and in the form in which the broker may send them on.
    pub properties: Bytes,
    /// Empty when oversized.
    pub body: Bytes,
    /// The announced size in bytes, when it was more than is stored per message. The body was counted
    /// and dropped.
    pub oversized: Option<u64>,
}

impl OwnedPublish {
    /// The same as a [`Publish`], so that both kinds can take one path. The body is shared, not copied.
    pub fn as_publish(&self) -> Publish<'_> {
        Publish {
            exchange: &self.exchange,
            routing_key: &self.routing_key,
            mandatory: self.mandatory,
            immediate: self.immediate,
            properties: RawProperties::from_bytes(&self.properties),
            body: match self.oversized {
                Some(size) => Body::Oversized(size),
                None => Body::Owned(self.body.clone()),
            },
        }
    }
}
