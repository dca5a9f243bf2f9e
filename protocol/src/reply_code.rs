//! The reply codes of AMQP 0-9-1 and the text that goes with them (reference 0 and 3.9).
//!
//! Which code answers which fault is not decided here: that is `DecodeError` for bytes and the
//! broker model for everything else.

use crate::types::SHORT_STRING_MAX;

/// A reply code of `connection.close`, `channel.close` or `basic.return` (reference 3.9).
#[repr(u16)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReplyCode {
    /// A clean close.
    Success = 200,
    /// Channel level; RabbitMQ never sends it.
    ContentTooLarge = 311,
    /// `basic.return` of an unroutable mandatory message.
    NoRoute = 312,
    /// `basic.return` of an immediate message; RabbitMQ never sends it.
    NoConsumers = 313,
    /// The broker or an operator ends the connection.
    ConnectionForced = 320,
    /// Connection level; RabbitMQ never sends it.
    InvalidPath = 402,
    /// No permission; on channel 0 a refused login.
    AccessRefused = 403,
    /// No such queue, exchange or similar.
    NotFound = 404,
    /// The queue belongs to somebody else.
    ResourceLocked = 405,
    /// The request contradicts what is there.
    PreconditionFailed = 406,
    /// Malformed frame or method arguments.
    FrameError = 501,
    /// A field has an illegal value.
    SyntaxError = 502,
    /// A method that the server does not serve at this place.
    CommandInvalid = 503,
    /// A method for a channel that is not open, or already is.
    ChannelError = 504,
    /// A frame out of order.
    UnexpectedFrame = 505,
    /// The server lacks the means.
    ResourceError = 506,
    /// The client broke a limit or a rule.
    NotAllowed = 530,
    /// Not implemented by the server.
    NotImplemented = 540,
    /// A fault of the server.
    InternalError = 541,
}

impl ReplyCode {
    /// Every code, in ascending order.
    pub const ALL: [Self; 19] = [
        Self::Success,
        Self::ContentTooLarge,
        Self::NoRoute,
        Self::NoConsumers,
        Self::ConnectionForced,
        Self::InvalidPath,
        Self::AccessRefused,
        Self::NotFound,
        Self::ResourceLocked,
        Self::PreconditionFailed,
        Self::FrameError,
        Self::SyntaxError,
        Self::CommandInvalid,
        Self::ChannelError,
        Self::UnexpectedFrame,
        Self::ResourceError,
        Self::NotAllowed,
        Self::NotImplemented,
        Self::InternalError,
    ];

    /// The number on the wire.
    pub fn code(self) -> u16 {
        self as u16
    }

    /// The name that opens a reply text, such as `NOT_FOUND`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "REPLY_SUCCESS",
            Self::ContentTooLarge => "CONTENT_TOO_LARGE",
            Self::NoRoute => "NO_ROUTE",
            Self::NoConsumers => "NO_CONSUMERS",
            Self::ConnectionForced => "CONNECTION_FORCED",
            Self::InvalidPath => "INVALID_PATH",
            Self::AccessRefused => "ACCESS_REFUSED",
            Self::NotFound => "NOT_FOUND",
            Self::ResourceLocked => "RESOURCE_LOCKED",
            Self::PreconditionFailed => "PRECONDITION_FAILED",
            Self::FrameError => "FRAME_ERROR",
            Self::SyntaxError => "SYNTAX_ERROR",
            Self::CommandInvalid => "COMMAND_INVALID",
            Self::ChannelError => "CHANNEL_ERROR",
            Self::UnexpectedFrame => "UNEXPECTED_FRAME",
            Self::ResourceError => "RESOURCE_ERROR",
            Self::NotAllowed => "NOT_ALLOWED",
            Self::NotImplemented => "NOT_IMPLEMENTED",
            Self::InternalError => "INTERNAL_ERROR",
        }
    }

    /// Whether the error closes the connection rather than the channel. (On channel 0 every error
    /// closes the connection, whatever this says.)
    pub fn is_hard(self) -> bool {
        match self {
            Self::Success
            | Self::ContentTooLarge
            | Self::NoRoute
            | Self::NoConsumers
            | Self::AccessRefused
            | Self::NotFound
            | Self::ResourceLocked
            | Self::PreconditionFailed => false,
            Self::ConnectionForced
            | Self::InvalidPath
            | Self::FrameError
            | Self::SyntaxError
            | Self::CommandInvalid
            | Self::ChannelError
            | Self::UnexpectedFrame
            | Self::ResourceError
            | Self::NotAllowed
            | Self::NotImplemented
            | Self::InternalError => true,
        }
    }

    /// The code with this number, if there is one.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.code() == code)
    }
}

/// The reply text of a close: `{NAME} - {explanation}`, or the bare name when there is no
/// explanation (reference 3.9: a crash says just `INTERNAL_ERROR`).
///
/// Never longer than the 255 bytes of a short string: a longer text is cut, between characters, so
/// that it ends in `...` and still fits (reference 0).
pub fn reply_text(code: ReplyCode, explanation: &str) -> String {
    const ELLIPSIS: &str = "...";
    if explanation.is_empty() {
        return code.name().to_owned();
    }
    let mut text = format!("{} - {explanation}", code.name());
    if text.len() > SHORT_STRING_MAX {
        text.truncate(floor_char_boundary(&text, SHORT_STRING_MAX - ELLIPSIS.len()));
        text.push_str(ELLIPSIS);
    }
    text
}

/// The largest index up to `at` that does not split a character.
fn floor_char_boundary(text: &str, at: usize) -> usize {
    // Index 0 always is a boundary, so the search cannot come back empty.
    (0..=at).rev().find(|&index| text.is_char_boundary(index)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s3_9_codes_round_trip_and_have_levels() {
        for code in ReplyCode::ALL {
            assert_eq!(ReplyCode::from_code(code.code()), Some(code));
        }
        assert_eq!(ReplyCode::from_code(999), None);
        let soft: Vec<u16> = ReplyCode::ALL.into_iter().filter(|code| !code.is_hard()).map(ReplyCode::code).collect();
        assert_eq!(soft, [200, 311, 312, 313, 403, 404, 405, 406]);
    }

    #[test]
    fn s0_reply_text_has_the_name_in_front() {
        assert_eq!(
            reply_text(ReplyCode::NotFound, "no queue 'q' in vhost '/'"),
            "NOT_FOUND - no queue 'q' in vhost '/'"
        );
        assert_eq!(reply_text(ReplyCode::InternalError, ""), "INTERNAL_ERROR");
    }

    #[test]
    fn s0_reply_text_is_cut_to_a_short_string() {
        let fits = "x".repeat(255 - "NOT_FOUND - ".len());
        assert_eq!(reply_text(ReplyCode::NotFound, &fits).len(), 255);
        assert!(!reply_text(ReplyCode::NotFound, &fits).ends_with("..."));
        let cut = reply_text(ReplyCode::NotFound, &(fits + "x"));
        assert_eq!(cut.len(), 255);
        assert!(cut.ends_with("x..."));
    }

    #[test]
    fn s0_reply_text_is_cut_between_characters() {
        for lead in 0..4 {
            let text = reply_text(ReplyCode::NotFound, &("x".repeat(lead) + &"\u{1F407}".repeat(80)));
            assert!(text.len() <= 255 && text.len() > 255 - 4, "{}", text.len());
            assert!(text.ends_with("\u{1F407}..."));
        }
    }
}
