//! AMQP 0-9-1 as RabbitMQ speaks it, between bytes and values: frames, methods, field tables,
//! properties and contents. No sockets, no clock, no state of the broker.
//!
//! A server feeds what it reads to a [`Decoder`] and gets [`Event`]s; it writes with
//! [`put_method_frame`], [`put_deliver`], [`put_content`] and their like, all of which append to a
//! `BytesMut`. No bytes of a peer cause a panic: malformed input is a [`Fault`] or a
//! [`DecodeError`] with reply code and text.
//!
//! "Reference" in these docs is the project's description of RabbitMQ's behaviour, with its section.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod arguments;
mod assembler;
mod content;
mod decoder;
mod error;
mod frame;
mod methods;
mod parse;
mod properties;
mod raw_table;
mod reply_code;
mod types;

pub use content::{BODY_SIZE_MAX, Body, ContentHeader, OwnedPublish, Publish};
pub use decoder::{Decoder, Event, Fault, HELD_MAX_DEFAULT};
pub use error::{DecodeError, FrameError, FrameFault};
pub use frame::{
    FRAME_MIN_SIZE, FRAME_OVERHEAD, Frame, FrameKind, PROTOCOL_HEADER, put_ack, put_body_frame_head, put_content,
    put_content_header, put_deliver, put_frame_end, put_heartbeat, put_method_frame, put_nack, split_frame,
};
pub use methods::{Method, MethodId, access, basic, channel, confirm, connection, exchange, queue, tx};
pub use properties::{Properties, RawProperties};
pub use raw_table::{RawArray, RawFields, RawTable, RawValue};
pub use reply_code::{ReplyCode, reply_text};
pub use types::{
    FieldTable, FieldValue, SHORT_STRING_MAX, ShortName, TABLE_DEPTH_MAX, TABLE_SIZE_MAX, TABLE_VALUES_MAX,
    decode_table, decode_table_body, put_long_string, put_short_string, put_table, put_value,
};
