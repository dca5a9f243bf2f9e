//! The content of one channel while it arrives in pieces: method, header, body (reference 1.3).
//!
//! Only for publishes that are not whole in the read buffer; the decoder borrows those. Memory grows
//! with the bytes that really came, never with what a header announces.

use bytes::{Bytes, BytesMut};

use crate::content::{BODY_SIZE_MAX, ContentHeader, OwnedPublish};
use crate::error::DecodeError;
use crate::frame::{CLASS_BASIC, Frame, FrameKind};
use crate::methods::{MethodId, basic};
use crate::parse::Malformed;
use crate::properties::RawProperties;
use crate::raw_table::Canonical;
use crate::reply_code::ReplyCode;

/// Bytes reserved at most for a body of which nothing has come yet.
const BODY_RESERVE: usize = 64 * 1024;
/// Bytes that count for a channel in mid content besides what it stores.
const OVERHEAD: u64 = 256;

/// What a channel in mid content waits for.
#[derive(Debug)]
pub(crate) enum Assembler {
    /// The header of a publish; boxed, since it is large and short-lived.
    Header(Box<OwnedPublish>),
    /// The rest of a body.
    Body {
        /// All but the body.
        publish: Box<OwnedPublish>,
        /// What has come of the body; empty for an oversized one.
        body: Vec<u8>,
        /// Bytes still to come.
        remaining: u64,
    },
    /// The header of a content that the peer may not send: refused only then, like RabbitMQ.
    Refused(MethodId),
    /// Nothing: the content was given up, and what is left of it is swallowed. A method ends this.
    Abandoned,
}

/// What became of a frame in mid content.
pub(crate) enum Step {
    /// More frames are needed.
    Waiting(Assembler),
    /// The content is complete.
    Done(Box<OwnedPublish>),
}

/// A fault in the sequence or the contents of frames; the decoder knows the channel.
pub(crate) struct ContentFault {
    pub(crate) method: MethodId,
    pub(crate) code: ReplyCode,
    pub(crate) explanation: String,
}

impl ContentFault {
    #[cold]
    fn new(method: MethodId, code: ReplyCode, explanation: impl Into<String>) -> Self {
        Self { method, code, explanation: explanation.into() }
    }

    #[cold]
    fn decode(method: MethodId, error: &DecodeError) -> Self {
        Self::new(method, error.reply_code(), error.explanation())
    }

    /// A header or body frame on a channel without content.
    pub(crate) fn expected_method() -> Self {
        let text = "expected method frame, got non method frame instead";
        Self::new(MethodId::NONE, ReplyCode::UnexpectedFrame, text)
    }
}

impl Assembler {
    /// A publish of which only the method has come.
    pub(crate) fn publish(method: &basic::Publish<'_>) -> Self {
        Self::Header(Box::new(OwnedPublish {
            exchange: method.exchange.to_owned(),
            routing_key: method.routing_key.to_owned(),
            mandatory: method.mandatory,
            immediate: method.immediate,
            ..OwnedPublish::default()
        }))
    }

    /// Bytes of memory that the channel holds, roughly.
    pub(crate) fn held(&self) -> u64 {
        let stored = match self {
            Self::Header(publish) => publish.exchange.len() + publish.routing_key.len(),
            Self::Body { publish, body, .. } => {
                publish.exchange.len() + publish.routing_key.len() + publish.properties.len() + body.capacity()
            }
            Self::Refused(_) | Self::Abandoned => 0,
        };
        OVERHEAD + stored as u64
    }

    /// Takes the next frame of the channel. Bodies over `body_max` bytes are counted, not stored.
    /// After an error the content is lost.
    pub(crate) fn push(self, frame: Frame<'_>, body_max: u64) -> Result<Step, ContentFault> {
        match self {
            Self::Header(publish) => {
                let (header, canonical) = expect_header(frame, basic::Publish::ID)?;
                start_body(publish, &header, canonical, body_max)
            }
            Self::Body { publish, body, remaining } => push_body(publish, body, remaining, frame),
            Self::Refused(method) => {
                expect_header(frame, method)?;
                let error = DecodeError::UnknownMethod(method);
                Err(ContentFault::decode(method, &error))
            }
            Self::Abandoned => Ok(Step::Waiting(self)),
        }
    }
}

/// The header that must follow `method`.
fn expect_header(frame: Frame<'_>, method: MethodId) -> Result<(ContentHeader<'_>, Canonical), ContentFault> {
    let unexpected = |instead: &str| {
        let text = format!("expected content header for class {CLASS_BASIC}, got {instead} instead");
        ContentFault::new(method, ReplyCode::UnexpectedFrame, text)
    };
    if frame.kind != FrameKind::Header {
        return Err(unexpected("non content header frame"));
    }
    let malformed = |error: Malformed| ContentFault::decode(method, &error.into());
    let header = ContentHeader::split(frame.payload).map_err(malformed)?;
    if header.weight != 0 {
        return Err(unexpected("non content header frame"));
    }
    if header.class_id != CLASS_BASIC {
        return Err(unexpected(&format!("one for class {}", header.class_id)));
    }
    if header.body_size > BODY_SIZE_MAX {
        let size = header.body_size;
        let text = format!("content body size {size} exceeds maximum allowed size {BODY_SIZE_MAX}");
        return Err(ContentFault::new(method, ReplyCode::FrameError, text));
    }
    let canonical = header.check_properties().map_err(malformed)?;
    Ok((header, canonical))
}

fn start_body(
    mut publish: Box<OwnedPublish>,
    header: &ContentHeader<'_>,
    canonical: Canonical,
    body_max: u64,
) -> Result<Step, ContentFault> {
    publish.properties = match canonical {
        Canonical(true) => Bytes::copy_from_slice(header.properties.as_bytes()),
        Canonical(false) => {
            rewritten(header.properties).map_err(|error| ContentFault::decode(basic::Publish::ID, &error))?
        }
    };
    if header.body_size == 0 {
        return Ok(Step::Done(publish));
    }
    if header.body_size > body_max {
        publish.oversized = Some(header.body_size);
    }
    Ok(Step::Waiting(Assembler::Body { publish, body: Vec::new(), remaining: header.body_size }))
}

/// The properties as the broker writes them.
fn rewritten(properties: RawProperties<'_>) -> Result<Bytes, DecodeError> {
    let mut out = BytesMut::new();
    properties.to_properties()?.encode(&mut out);
    Ok(out.freeze())
}

fn push_body(
    mut publish: Box<OwnedPublish>,
    mut body: Vec<u8>,
    remaining: u64,
    frame: Frame<'_>,
) -> Result<Step, ContentFault> {
    let fault = |code, text: &str| Err(ContentFault::new(basic::Publish::ID, code, text));
    if frame.kind != FrameKind::Body {
        let text = "expected content body, got non content body frame instead";
        return fault(ReplyCode::UnexpectedFrame, text);
    }
    let Some(after) = remaining.checked_sub(frame.payload.len() as u64) else {
        return fault(ReplyCode::FrameError, "content body frame exceeds remaining content size");
    };
    if publish.oversized.is_none() {
        reserve(&mut body, frame.payload.len(), remaining);
        body.extend_from_slice(frame.payload);
    }
    if after > 0 {
        return Ok(Step::Waiting(Assembler::Body { publish, body, remaining: after }));
    }
    publish.body = body.into();
    Ok(Step::Done(publish))
}

/// Makes room for `more` bytes: twice what has come, but no more than the `remaining` bytes of the
/// body need, so that a finished body wastes nothing.
fn reserve(body: &mut Vec<u8>, more: usize, remaining: u64) {
    if body.capacity() - body.len() < more {
        // No more than BODY_SIZE_MAX, so it fits.
        let remaining = remaining as usize;
        let wanted = body.len().max(BODY_RESERVE).min(remaining);
        body.reserve_exact(wanted.max(more));
    }
}
