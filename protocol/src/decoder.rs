//! The decoder of one connection: bytes in, methods and whole publishes out.
//!
//! A publish whose frames all lie in the read buffer is borrowed from it, with no allocation; only
//! the others go through the assembler of their channel. Nothing here knows which channels are open
//! or who may send what: those judgements are the broker model's, also about a [`Fault`] on a channel
//! that it is closing.

use std::collections::BTreeMap;

use crate::assembler::{Assembler, ContentFault, Step};
use crate::content::{BODY_SIZE_MAX, Body, ContentHeader, OwnedPublish, Publish};
use crate::error::{DecodeError, FrameError, FrameFault};
use crate::frame::{CLASS_BASIC, Frame, FrameKind, RawFrame, TYPE_BODY, TYPE_HEADER, TYPE_METHOD, split_frame};
use crate::methods::{Method, MethodId, ack_arguments, basic, channel, publish_arguments};
use crate::raw_table::Canonical;
use crate::reply_code::{ReplyCode, reply_text};

/// What a connection may hold of unfinished contents unless told otherwise, in bytes.
pub const HELD_MAX_DEFAULT: u64 = 1024 * 1024 * 1024;

/// What a client sent.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<'a> {
    /// A method without content. (On channel 0, where no content can be, also `basic.publish` and its
    /// like.)
    Method {
        /// Channel of the frame.
        channel: u16,
        /// The method.
        method: Method<'a>,
    },
    /// A publish that lies whole in the read buffer.
    Publish {
        /// Never 0.
        channel: u16,
        /// The publish.
        publish: Publish<'a>,
    },
    /// A publish that arrived in pieces.
    OwnedPublish {
        /// Never 0.
        channel: u16,
        /// The publish.
        publish: Box<OwnedPublish>,
    },
    /// A sign of life.
    Heartbeat,
}

/// A decode fault with all that a `connection.close` needs. Every one is a connection error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.reply_text())]
pub struct Fault {
    /// Channel of the frame at fault.
    pub channel: u16,
    /// The method at fault, `NONE` if none was recognised; `basic.publish` for a fault in its content.
    pub method: MethodId,
    /// The reply code.
    pub code: ReplyCode,
    /// What follows the name of the code in the reply text.
    pub explanation: String,
    /// No further frame can be found in the stream. Otherwise the frame at fault was consumed and
    /// decoding may go on, say for the client's close-ok.
    pub fatal_framing: bool,
}

impl Fault {
    /// The reply text of the close.
    pub fn reply_text(&self) -> String {
        reply_text(self.code, &self.explanation)
    }

    #[cold]
    fn decode(channel: u16, method: MethodId, error: &DecodeError) -> Self {
        // RabbitMQ names no method for a string that it could not read.
        let method = if *error == DecodeError::ShortStringUtf8 { MethodId::NONE } else { method };
        Self {
            channel,
            method,
            code: error.reply_code(),
            explanation: error.explanation(),
            fatal_framing: matches!(error, DecodeError::Frame(error) if error.is_fatal()),
        }
    }

    #[cold]
    fn content(channel: u16, fault: ContentFault) -> Self {
        let ContentFault { method, code, explanation } = fault;
        Self { channel, method, code, explanation, fatal_framing: false }
    }
}

/// The decoder of one connection. It starts after the protocol header.
#[derive(Debug)]
pub struct Decoder {
    payload_max: u32,
    body_max: u64,
    held_max: u64,
    /// Sum of `Assembler::held` over the channels.
    held: u64,
    /// The channels in mid content. A sorted map, because a peer chooses the numbers.
    channels: BTreeMap<u16, Assembler>,
}

impl Decoder {
    /// `payload_max`: largest payload of a frame in bytes, 0 for no limit; RabbitMQ accepts up to
    /// `frame_max`, so callers pass that. `body_max`: largest body that is stored, in bytes; larger
    /// ones become [`Body::Oversized`].
    pub fn new(payload_max: u32, body_max: u64) -> Self {
        Self { payload_max, body_max, held_max: HELD_MAX_DEFAULT, held: 0, channels: BTreeMap::new() }
    }

    /// For when tune-ok has settled the frame size. Counts from the next frame on.
    pub fn set_payload_max(&mut self, payload_max: u32) {
        self.payload_max = payload_max;
    }

    /// Bytes that the unfinished contents of all channels may hold together, by default
    /// [`HELD_MAX_DEFAULT`]. Beyond, the connection ends (506).
    pub fn set_held_max(&mut self, held_max: u64) {
        self.held_max = held_max;
    }

    /// Bytes that the unfinished contents of all channels hold, roughly.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Decodes the next event at the start of `input`; `None` when more bytes are needed. Adds the
    /// bytes consumed to `consumed`, also with `None` and with an error: the next call wants the
    /// input after them.
    ///
    /// Errors: the faults of reference 1.2, 1.3 and 2.1 with their codes and texts. After one that is
    /// not [`fatal_framing`](Fault::fatal_framing) the frame was consumed and the rest of its content
    /// will be swallowed; after a fatal one every further call finds the same fault.
    #[inline]
    pub fn next<'a>(&mut self, input: &'a [u8], consumed: &mut usize) -> Result<Option<Event<'a>>, Fault> {
        match self.whole(input, consumed) {
            Some(event) => Ok(Some(event)),
            None => self.next_in_pieces(input, consumed),
        }
    }

    /// Decodes events into `events` until it holds `events_max` or more bytes are needed: as often [`next`](Self::next)
    /// would, but each event is written where it stays.
    #[inline]
    pub fn fill<'a>(
        &mut self,
        input: &'a [u8],
        consumed: &mut usize,
        events: &mut Vec<Event<'a>>,
        events_max: usize,
    ) -> Result<(), Fault> {
        while events.len() < events_max {
            if let Some(event) = self.whole(&input[*consumed..], consumed) {
                events.push(event);
                continue;
            }
            match self.next_in_pieces(&input[*consumed..], consumed)? {
                Some(event) => events.push(event),
                None => break,
            }
        }
        Ok(())
    }

    /// Gives up the half assembled content of a channel that the server closes. What the client still
    /// sends of that content is swallowed.
    ///
    /// Not needed for correctness: contents may as well be completed and then ignored, and the
    /// client's `channel.close-ok` gives an unfinished one up by itself. Not to be called once that
    /// close-ok has been seen: the content may be that of a new channel with the same number.
    pub fn reset_channel(&mut self, channel: u16) {
        if let Some(state) = self.channels.get_mut(&channel) {
            let taken = std::mem::replace(state, Assembler::Abandoned);
            self.held = self.held + state.held() - taken.held();
        }
    }

    /// A publish with its header and the one frame of its body (if any), or an ack: whole, without
    /// fault, on a channel that is not in mid content. Everything else is `None`, and the other path
    /// finds out what it is.
    #[inline(always)] // moving an event through one more return slot costs 5 ns
    fn whole<'a>(&self, input: &'a [u8], consumed: &mut usize) -> Option<Event<'a>> {
        let frame = RawFrame::split(input, self.payload_max)?;
        let RawFrame { frame_type: TYPE_METHOD, channel, payload, mut rest } = frame else {
            return None;
        };
        let idle = self.channels.is_empty() || !self.channels.contains_key(&channel);
        let event = match payload {
            [0, 60, 0, 40, arguments @ ..] if channel != 0 && idle => {
                let method = publish_arguments(arguments)?;
                let publish = self.whole_content(channel, &method, &mut rest)?;
                Event::Publish { channel, publish }
            }
            [0, 60, 0, 80, arguments @ ..] if idle => {
                let method = Method::BasicAck(ack_arguments(arguments)?);
                Event::Method { channel, method }
            }
            _ => return None,
        };
        *consumed += input.len() - rest.len();
        Some(event)
    }

    /// The content of a publish: its header and the one frame of its body, if it has one. Moves
    /// `rest` past them.
    #[inline(always)]
    fn whole_content<'a>(&self, channel: u16, method: &basic::Publish<'a>, rest: &mut &'a [u8]) -> Option<Publish<'a>> {
        let frame = RawFrame::split(rest, self.payload_max)?;
        if frame.frame_type != TYPE_HEADER || frame.channel != channel {
            return None;
        }
        *rest = frame.rest;
        let header = ContentHeader::split(frame.payload).ok()?;
        let Canonical(true) = header.check_properties().ok()? else { return None };
        let size = header.body_size;
        if header.class_id != CLASS_BASIC || header.weight != 0 || size > BODY_SIZE_MAX {
            return None;
        }
        let mut body: &[u8] = &[];
        if size > 0 {
            let frame = RawFrame::split(rest, self.payload_max)?;
            body = frame.payload;
            let fits = body.len() as u64 == size;
            if frame.frame_type != TYPE_BODY || frame.channel != channel || !fits {
                return None;
            }
            *rest = frame.rest;
        }
        Some(Publish {
            exchange: method.exchange,
            routing_key: method.routing_key,
            mandatory: method.mandatory,
            immediate: method.immediate,
            properties: header.properties,
            body: if size > self.body_max { Body::Oversized(size) } else { Body::Slice(body) },
        })
    }

    /// Frame by frame, until one completes an event.
    fn next_in_pieces<'a>(&mut self, mut input: &'a [u8], consumed: &mut usize) -> Result<Option<Event<'a>>, Fault> {
        loop {
            let split = split_frame(input, self.payload_max);
            let Some((frame, used)) = split.map_err(|error| frame_fault(&error))? else {
                return Ok(None);
            };
            *consumed += used;
            input = &input[used..];
            if let Some(event) = self.frame(frame)? {
                return Ok(Some(event));
            }
        }
    }

    /// The event that a frame completes, if it does.
    #[inline]
    fn frame<'a>(&mut self, frame: Frame<'a>) -> Result<Option<Event<'a>>, Fault> {
        match frame.kind {
            FrameKind::Heartbeat if frame.channel == 0 => Ok(Some(Event::Heartbeat)),
            FrameKind::Heartbeat => Err(misplaced(frame)),
            FrameKind::Header | FrameKind::Body if frame.channel == 0 => Err(misplaced(frame)),
            FrameKind::Method if self.channels.is_empty() => self.method(frame),
            _ => self.channel_frame(frame),
        }
    }

    /// A frame of a channel that may be in mid content.
    fn channel_frame<'a>(&mut self, frame: Frame<'a>) -> Result<Option<Event<'a>>, Fault> {
        let is_method = frame.kind == FrameKind::Method;
        let Some(state) = self.channels.get_mut(&frame.channel) else {
            if is_method {
                return self.method(frame);
            }
            self.store(frame.channel, Assembler::Abandoned)?;
            return Err(Fault::content(frame.channel, ContentFault::expected_method()));
        };
        // A client that learns in mid content that the server closed the channel may stop there.
        let gives_up = || MethodId::peek(frame.payload) == channel::CloseOk::ID;
        if is_method && (matches!(state, Assembler::Abandoned) || gives_up()) {
            self.forget(frame.channel);
            return self.method(frame);
        }
        // Should the frame be at fault, the content is abandoned already.
        let taken = std::mem::replace(state, Assembler::Abandoned);
        self.held = self.held + state.held() - taken.held();
        match taken.push(frame, self.body_max) {
            Ok(Step::Waiting(next)) => {
                self.store(frame.channel, next)?;
                Ok(None)
            }
            Ok(Step::Done(publish)) => {
                self.forget(frame.channel);
                Ok(Some(Event::OwnedPublish { channel: frame.channel, publish }))
            }
            Err(fault) => Err(Fault::content(frame.channel, fault)),
        }
    }

    /// A method on a channel that expects one.
    fn method<'a>(&mut self, frame: Frame<'a>) -> Result<Option<Event<'a>>, Fault> {
        let Frame { channel, payload, .. } = frame;
        let method =
            Method::decode(payload).map_err(|error| Fault::decode(channel, MethodId::peek(payload), &error))?;
        match &method {
            Method::BasicPublish(publish) if channel != 0 => {
                self.store(channel, Assembler::publish(publish))?;
                Ok(None)
            }
            other if channel != 0 && other.has_content() => {
                self.store(channel, Assembler::Refused(other.id()))?;
                Ok(None)
            }
            _ => Ok(Some(Event::Method { channel, method })),
        }
    }

    /// Sets the state of a channel, unless the connection then holds too much.
    fn store(&mut self, channel: u16, state: Assembler) -> Result<(), Fault> {
        self.held += state.held();
        if let Some(old) = self.channels.insert(channel, state) {
            self.held -= old.held();
        }
        if self.held <= self.held_max {
            return Ok(());
        }
        self.reset_channel(channel);
        Err(Fault {
            channel,
            method: basic::Publish::ID,
            code: ReplyCode::ResourceError,
            explanation: format!("unfinished contents of more than {} bytes", self.held_max),
            fatal_framing: false,
        })
    }

    fn forget(&mut self, channel: u16) {
        if let Some(old) = self.channels.remove(&channel) {
            self.held -= old.held();
        }
    }
}

#[cold]
fn frame_fault(error: &DecodeError) -> Fault {
    let channel = match error {
        DecodeError::Frame(error) => error.channel,
        _ => 0,
    };
    Fault::decode(channel, MethodId::NONE, error)
}

#[cold]
fn misplaced(frame: Frame<'_>) -> Fault {
    let Frame { kind, channel, payload } = frame;
    frame_fault(&FrameError::new(kind.octet(), channel, payload, FrameFault::Misplaced).into())
}
