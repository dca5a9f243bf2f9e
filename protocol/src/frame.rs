//! Frames: where one ends in a stream of bytes, and how they are written (reference 1.1, 1.2).
//!
//! [`split_frame`] is the only place in the crate that answers "more bytes are needed"; every other
//! parser gets a whole payload. What a payload means is not known here.

use bytes::{BufMut, BytesMut};

use crate::error::{DecodeError, FrameError, FrameFault};
use crate::methods::Method;
use crate::types::{cut_short, put_short_string};

/// The eight bytes a client sends first: `AMQP` 0 0 9 1.
pub const PROTOCOL_HEADER: [u8; 8] = *b"AMQP\x00\x00\x09\x01";
/// Bytes of a frame besides its payload: type, channel, size, end marker.
pub const FRAME_OVERHEAD: usize = 8;
/// Smallest `frame_max` that may be negotiated, in bytes.
pub const FRAME_MIN_SIZE: u32 = 4096;

/// Bytes before the payload.
pub(crate) const FRAME_HEAD: usize = 7;
pub(crate) const FRAME_END: u8 = 0xCE;
pub(crate) const TYPE_METHOD: u8 = 1;
pub(crate) const TYPE_HEADER: u8 = 2;
pub(crate) const TYPE_BODY: u8 = 3;
pub(crate) const TYPE_HEARTBEAT: u8 = 8;

/// Bytes of a content header payload before the properties: class, weight, body size.
pub(crate) const CONTENT_HEAD: usize = 12;
pub(crate) const CLASS_BASIC: u16 = 60;

/// The four frame types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// Type 1: a method and its arguments.
    Method,
    /// Type 2: the header of a content.
    Header,
    /// Type 3: a piece of a content's body.
    Body,
    /// Type 8: nothing but a sign of life.
    Heartbeat,
}

impl FrameKind {
    /// The type octet on the wire.
    pub fn octet(self) -> u8 {
        match self {
            Self::Method => TYPE_METHOD,
            Self::Header => TYPE_HEADER,
            Self::Body => TYPE_BODY,
            Self::Heartbeat => TYPE_HEARTBEAT,
        }
    }
}

/// A whole frame in the read buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Which of the four types.
    pub kind: FrameKind,
    /// 0 for the connection itself, else the client's channel number.
    pub channel: u16,
    /// The bytes between the head and the end marker.
    pub payload: &'a [u8],
}

/// Finds the frame at the start of `input`: the frame and how many bytes it takes, or `None` when
/// it is not complete yet. The only place that asks for more bytes.
///
/// `payload_max` is the largest payload accepted, in bytes; 0 means no limit. RabbitMQ accepts
/// payloads up to `frame_max` (8 bytes more than the standard), so callers pass that.
///
/// Errors, all [`DecodeError::Frame`] (reference 1.2, code 501): a payload over the limit (as soon
/// as the 7 bytes of head are there), a wrong end marker, an unknown type, a heartbeat with a
/// payload. The stream cannot be trusted after any of them.
#[inline]
pub fn split_frame(input: &[u8], payload_max: u32) -> Result<Option<(Frame<'_>, usize)>, DecodeError> {
    let Some(raw) = RawFrame::split(input, payload_max) else {
        return why_not(input, payload_max);
    };
    let RawFrame { frame_type, channel, payload, .. } = raw;
    let kind = match frame_type {
        TYPE_METHOD => FrameKind::Method,
        TYPE_HEADER => FrameKind::Header,
        TYPE_BODY => FrameKind::Body,
        TYPE_HEARTBEAT if payload.is_empty() => FrameKind::Heartbeat,
        _ => return Err(FrameError::new(frame_type, channel, payload, FrameFault::Unknown).into()),
    };
    Ok(Some((Frame { kind, channel, payload }, payload.len() + FRAME_OVERHEAD)))
}

/// A frame of any type whose size and end marker are right.
pub(crate) struct RawFrame<'a> {
    pub(crate) frame_type: u8,
    pub(crate) channel: u16,
    pub(crate) payload: &'a [u8],
    /// What follows the frame.
    pub(crate) rest: &'a [u8],
}

impl<'a> RawFrame<'a> {
    /// `None` when the frame is not complete or not right: [`split_frame`] knows which. Saying so
    /// here would double the cost of the decoder's fast path.
    #[inline(always)]
    pub(crate) fn split(input: &'a [u8], payload_max: u32) -> Option<Self> {
        let (&[frame_type, c0, c1, s0, s1, s2, s3], rest) = input.split_first_chunk()?;
        let size = u32::from_be_bytes([s0, s1, s2, s3]);
        let too_large = size > payload_max && payload_max != 0;
        let (payload, [FRAME_END, rest @ ..]) = rest.split_at_checked(size as usize)? else {
            return None;
        };
        let channel = u16::from_be_bytes([c0, c1]);
        (!too_large).then_some(Self { frame_type, channel, payload, rest })
    }
}

/// Why there is no frame at the start of `input`: it is incomplete (`None`), or broken.
#[cold]
fn why_not(input: &[u8], payload_max: u32) -> Result<Option<(Frame<'_>, usize)>, DecodeError> {
    let Some((&[frame_type, c0, c1, s0, s1, s2, s3], rest)) = input.split_first_chunk() else {
        return Ok(None);
    };
    let channel = u16::from_be_bytes([c0, c1]);
    let size = u32::from_be_bytes([s0, s1, s2, s3]);
    if size > payload_max && payload_max != 0 {
        let fault = FrameFault::TooLarge { payload_size: size, payload_max };
        return Err(FrameError::new(frame_type, channel, &[], fault).into());
    }
    match rest.split_at_checked(size as usize) {
        Some((payload, [end, ..])) => {
            Err(FrameError::new(frame_type, channel, payload, FrameFault::EndMarker(*end)).into())
        }
        _ => Ok(None),
    }
}

/// Appends a heartbeat frame.
pub fn put_heartbeat(out: &mut BytesMut) {
    out.put_slice(&[TYPE_HEARTBEAT, 0, 0, 0, 0, 0, 0, FRAME_END]);
}

/// Appends a method as a frame. Method frames are never split, whatever their size.
pub fn put_method_frame(out: &mut BytesMut, channel: u16, method: &Method<'_>) {
    let start = out.len();
    put_frame_head(out, TYPE_METHOD, channel, 0);
    method.encode(out);
    let size = (out.len() - start - FRAME_HEAD) as u32;
    out[start + 3..start + FRAME_HEAD].copy_from_slice(&size.to_be_bytes());
    put_frame_end(out);
}

/// Appends the header frame and the body frames of one content; no body frame for an empty body.
///
/// `properties` are the encoded property flags and values, as [`RawProperties::as_bytes`] gives
/// them. `frame_max` is the negotiated size of a whole frame in bytes, 0 for no limit; bodies are
/// split to fit it, header frames never are.
///
/// [`RawProperties::as_bytes`]: crate::RawProperties::as_bytes
#[inline]
pub fn put_content(out: &mut BytesMut, channel: u16, frame_max: u32, properties: &[u8], body: &[u8]) {
    out.reserve(2 * FRAME_OVERHEAD + CONTENT_HEAD + properties.len() + body.len());
    put_content_header(out, channel, properties, body.len() as u64);
    let piece_max = match frame_max {
        0 => u32::MAX as usize,
        // A nonsensical limit must not loop for ever: at least one byte each.
        limit => (limit as usize).saturating_sub(FRAME_OVERHEAD).max(1),
    };
    if !body.is_empty() && body.len() <= piece_max {
        put_body_frame(out, channel, body);
    } else {
        body.chunks(piece_max).for_each(|piece| put_body_frame(out, channel, piece));
    }
}

/// Appends the header frame of a content of class basic: `properties` as in [`put_content`],
/// `body_size` in bytes.
#[inline]
pub fn put_content_header(out: &mut BytesMut, channel: u16, properties: &[u8], body_size: u64) {
    let size = (CONTENT_HEAD + properties.len()) as u32;
    let mut head = [0; FRAME_HEAD + CONTENT_HEAD];
    head[..FRAME_HEAD].copy_from_slice(&frame_head(TYPE_HEADER, channel, size));
    head[7..9].copy_from_slice(&CLASS_BASIC.to_be_bytes());
    head[11..].copy_from_slice(&body_size.to_be_bytes());
    out.reserve(head.len() + properties.len() + 1);
    out.extend_from_slice(&head);
    out.extend_from_slice(properties);
    put_frame_end(out);
}

/// Appends the head of a body frame whose `len` bytes of payload the caller writes itself, followed
/// by [`put_frame_end`]. For large shared bodies, which are then not copied.
pub fn put_body_frame_head(out: &mut BytesMut, channel: u16, len: u32) {
    put_frame_head(out, TYPE_BODY, channel, len);
}

/// Appends the end marker of a frame.
#[inline]
pub fn put_frame_end(out: &mut BytesMut) {
    out.extend_from_slice(&[FRAME_END]);
}

#[inline]
fn put_body_frame(out: &mut BytesMut, channel: u16, piece: &[u8]) {
    put_frame_head(out, TYPE_BODY, channel, piece.len() as u32);
    out.extend_from_slice(piece);
    put_frame_end(out);
}

#[inline]
fn put_frame_head(out: &mut BytesMut, frame_type: u8, channel: u16, size: u32) {
    out.extend_from_slice(&frame_head(frame_type, channel, size));
}

#[inline]
fn frame_head(frame_type: u8, channel: u16, size: u32) -> [u8; FRAME_HEAD] {
    let [c0, c1] = channel.to_be_bytes();
    let [s0, s1, s2, s3] = size.to_be_bytes();
    [frame_type, c0, c1, s0, s1, s2, s3]
}

/// Appends a `basic.deliver` method frame: the same bytes as [`put_method_frame`] writes, without
/// building a [`Method`]. The hottest encoder: one reserve, then copies.
///
/// The three strings are short strings: at most 255 bytes (longer ones are cut, see
/// [`put_short_string`]).
#[inline]
pub fn put_deliver(
    out: &mut BytesMut,
    channel: u16,
    consumer_tag: &[u8],
    delivery_tag: u64,
    redelivered: bool,
    exchange: &[u8],
    routing_key: &[u8],
) {
    // class, method, three length octets, delivery tag, redelivered
    const FIXED: usize = 4 + 3 + 8 + 1;
    let [consumer_tag, exchange, routing_key] = [consumer_tag, exchange, routing_key].map(cut_short);
    let size = FIXED + consumer_tag.len() + exchange.len() + routing_key.len();
    out.reserve(FRAME_OVERHEAD + size);

    // The fewer pieces the better: each costs a check of the capacity.
    let mut head = [0; FRAME_HEAD + 5];
    head[..FRAME_HEAD].copy_from_slice(&frame_head(TYPE_METHOD, channel, size as u32));
    head[FRAME_HEAD..].copy_from_slice(&[0, 60, 0, 60, consumer_tag.len() as u8]);
    out.extend_from_slice(&head);
    out.extend_from_slice(consumer_tag);
    let mut middle = [0; 10];
    middle[..8].copy_from_slice(&delivery_tag.to_be_bytes());
    middle[8..].copy_from_slice(&[redelivered.into(), exchange.len() as u8]);
    out.extend_from_slice(&middle);
    out.extend_from_slice(exchange);
    put_short_string(out, routing_key);
    put_frame_end(out);
}

/// Appends a `basic.ack` frame, the publisher confirm.
#[inline]
pub fn put_ack(out: &mut BytesMut, channel: u16, delivery_tag: u64, multiple: bool) {
    put_settlement(out, channel, 80, delivery_tag, multiple);
}

/// Appends a `basic.nack` frame, the negative publisher confirm; its `requeue` bit is 0.
#[inline]
pub fn put_nack(out: &mut BytesMut, channel: u16, delivery_tag: u64, multiple: bool) {
    put_settlement(out, channel, 120, delivery_tag, multiple);
}

#[inline]
fn put_settlement(out: &mut BytesMut, channel: u16, method: u8, delivery_tag: u64, multiple: bool) {
    let mut frame = [0; FRAME_OVERHEAD + 13];
    frame[..FRAME_HEAD].copy_from_slice(&frame_head(TYPE_METHOD, channel, 13));
    frame[7..11].copy_from_slice(&[0, 60, 0, method]);
    frame[11..19].copy_from_slice(&delivery_tag.to_be_bytes());
    frame[19] = multiple.into();
    frame[20] = FRAME_END;
    out.extend_from_slice(&frame);
}
