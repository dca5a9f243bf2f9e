//! What can be wrong with received bytes, and the reply code and text each fault deserves.
//!
//! Texts follow reference 1.2 and 2.1; `Display` of every error is the explanation without the
//! name of the code in front (`reply_text` adds that).

use crate::methods::MethodId;
use crate::parse::Malformed;
use crate::reply_code::ReplyCode;

/// Bytes of a payload that go into the text of a frame error (reference 1.2).
const OCTETS_SHOWN: usize = 16;
/// Bytes of a method payload that go into `cannot decode`: more cannot fit a reply text anyway.
const ARGUMENTS_SHOWN: usize = 128;

/// A fault in received bytes. `Display` is the explanation for the reply text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The frame itself is malformed or misplaced: 501 or 505.
    #[error("{0}")]
    Frame(Box<FrameError>),
    /// The arguments of a known method do not parse or do not fill the payload: 501. Holds the
    /// beginning of the arguments.
    #[error("cannot decode {}", Octets(.0))]
    Arguments(Box<[u8]>),
    /// A short string of a method is not UTF-8: 501.
    #[error("Malformed UTF-8 in shortstr")]
    ShortStringUtf8,
    /// No such class or method: 503.
    #[error("unimplemented method")]
    UnknownMethod(MethodId),
    /// A value claims more bytes than there are: 502.
    #[error("value runs past the end of its data")]
    Truncated,
    /// Bytes are left after the last value: 502.
    #[error("unexpected bytes after the last value")]
    Trailing,
    /// No such field type: 502. RabbitMQ drops the socket; the reference (1.6) advises this.
    #[error("unknown field type {0}")]
    UnknownFieldType(u8),
    /// A table or array is nested deeper than [`TABLE_DEPTH_MAX`](crate::TABLE_DEPTH_MAX): 502.
    #[error("field table is nested too deeply")]
    TableTooDeep,
    /// A table is longer than [`TABLE_SIZE_MAX`](crate::TABLE_SIZE_MAX): 502.
    #[error("field table is too large")]
    TableTooLarge,
    /// A table holds more than [`TABLE_VALUES_MAX`](crate::TABLE_VALUES_MAX) values: 502.
    #[error("field table has too many values")]
    TableTooManyValues,
}

impl DecodeError {
    /// The reply code. Every one is hard: the connection ends.
    pub fn reply_code(&self) -> ReplyCode {
        match self {
            Self::Frame(error) => error.reply_code(),
            Self::Arguments(_) | Self::ShortStringUtf8 => ReplyCode::FrameError,
            Self::UnknownMethod(_) => ReplyCode::CommandInvalid,
            Self::Truncated
            | Self::Trailing
            | Self::UnknownFieldType(_)
            | Self::TableTooDeep
            | Self::TableTooLarge
            | Self::TableTooManyValues => ReplyCode::SyntaxError,
        }
    }

    /// The explanation that follows the name of the code in a reply text.
    pub fn explanation(&self) -> String {
        self.to_string()
    }

    /// A fault in the arguments of a known method: where only the structure is wrong, the payload is
    /// all there is to say.
    #[cold]
    pub(crate) fn in_arguments(fault: Malformed, payload: &[u8]) -> Self {
        match fault {
            Malformed::Truncated | Malformed::Trailing => {
                let arguments = payload.get(4..).unwrap_or(payload);
                Self::Arguments(arguments[..arguments.len().min(ARGUMENTS_SHOWN)].into())
            }
            other => other.into(),
        }
    }
}

impl From<Malformed> for DecodeError {
    fn from(fault: Malformed) -> Self {
        match fault {
            Malformed::Truncated => Self::Truncated,
            Malformed::Trailing => Self::Trailing,
            Malformed::ShortStringUtf8 => Self::ShortStringUtf8,
            Malformed::UnknownFieldType(tag) => Self::UnknownFieldType(tag),
            Malformed::TableTooDeep => Self::TableTooDeep,
            Malformed::TableTooLarge => Self::TableTooLarge,
            Malformed::TableTooManyValues => Self::TableTooManyValues,
        }
    }
}

impl From<FrameError> for DecodeError {
    fn from(error: FrameError) -> Self {
        Self::Frame(Box::new(error))
    }
}

/// What is wrong with a frame (reference 1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameFault {
    /// The payload is longer than allowed. Found before the payload arrives, so no octets are shown.
    TooLarge {
        /// Bytes of payload that the frame announces.
        payload_size: u32,
        /// Bytes of payload that were allowed.
        payload_max: u32,
    },
    /// The octet after the payload is not 0xCE but this.
    EndMarker(u8),
    /// The type octet is none of 1, 2, 3, 8, or a heartbeat has a payload.
    Unknown,
    /// A heartbeat on a channel other than 0, or a header or body frame on channel 0.
    Misplaced,
}

/// A malformed or misplaced frame, with the beginning of its payload for the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameError {
    /// The type octet as received.
    pub frame_type: u8,
    /// The channel as received.
    pub channel: u16,
    /// What is wrong.
    pub fault: FrameFault,
    payload_len: usize,
    octets: [u8; OCTETS_SHOWN],
}

impl FrameError {
    /// Keeps the first 16 bytes of `payload`.
    #[cold]
    pub fn new(frame_type: u8, channel: u16, payload: &[u8], fault: FrameFault) -> Self {
        let mut octets = [0; OCTETS_SHOWN];
        let shown = payload.len().min(OCTETS_SHOWN);
        octets[..shown].copy_from_slice(&payload[..shown]);
        Self { frame_type, channel, fault, payload_len: payload.len(), octets }
    }

    /// 505 for a frame in the wrong place, 501 for a broken one.
    pub fn reply_code(&self) -> ReplyCode {
        match self.fault {
            FrameFault::Misplaced => ReplyCode::UnexpectedFrame,
            FrameFault::TooLarge { .. } | FrameFault::EndMarker(_) | FrameFault::Unknown => ReplyCode::FrameError,
        }
    }

    /// Whether the stream cannot be trusted any more: no frame after this one can be found.
    pub fn is_fatal(&self) -> bool {
        self.fault != FrameFault::Misplaced
    }

    /// The explanation that follows the name of the code in a reply text.
    pub fn explanation(&self) -> String {
        self.to_string()
    }
}

impl std::error::Error for FrameError {}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let extent = if self.payload_len <= OCTETS_SHOWN { "all" } else { "first 16" };
        let octets = Octets(&self.octets[..self.payload_len.min(OCTETS_SHOWN)]);
        write!(f, "type {}, {extent} octets = {octets}", self.frame_type)?;
        match self.fault {
            // RabbitMQ names its limit without the 8 bytes of overhead that it tolerates.
            FrameFault::TooLarge { payload_size, payload_max } => {
                write!(f, ": {{frame_too_large,{payload_size},{}}}", payload_max.saturating_sub(8))
            }
            FrameFault::EndMarker(octet) => write!(f, ": {{invalid_frame_end_marker,{octet}}}"),
            FrameFault::Unknown => write!(f, ": unknown_frame"),
            FrameFault::Misplaced => Ok(()),
        }
    }
}

/// Bytes as an Erlang binary: `<<"text">>` if all are printable Latin-1, else `<<1,2,3>>`.
struct Octets<'a>(&'a [u8]);

impl std::fmt::Display for Octets<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let printable = |octet: &u8| matches!(octet, 8..=13 | 27 | 32..=126 | 160..=255);
        if !self.0.is_empty() && self.0.iter().all(printable) {
            f.write_str("<<\"")?;
            for &octet in self.0 {
                match octet {
                    b'"' => f.write_str("\\\"")?,
                    b'\\' => f.write_str("\\\\")?,
                    8 => f.write_str("\\b")?,
                    9 => f.write_str("\\t")?,
                    10 => f.write_str("\\n")?,
                    11 => f.write_str("\\v")?,
                    12 => f.write_str("\\f")?,
                    13 => f.write_str("\\r")?,
                    27 => f.write_str("\\e")?,
                    other => write!(f, "{}", char::from(other))?,
                }
            }
            return f.write_str("\">>");
        }
        f.write_str("<<")?;
        for (index, octet) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{octet}")?;
        }
        f.write_str(">>")
    }
}
