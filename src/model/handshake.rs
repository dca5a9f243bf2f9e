//! From the first byte of a client to connection.open: bytes in, bytes out, and questions to the shell.
//!
//! Knows no socket and no user directory: it asks with [`Step::Login`] and [`Step::Open`], and the shell
//! answers. Whatever a stranger sends before it has logged in is answered with silence (§3.6).

use bytes::BytesMut;
use leveret_protocol::{
    BODY_SIZE_MAX, Decoder, Event, Fault, FieldTable, FieldValue, FrameError, FrameFault, FrameKind, Method, MethodId,
    PROTOCOL_HEADER, ReplyCode, connection, put_method_frame, reply_text,
};

use super::NODE_NAME;
use super::connection::Capabilities;
use super::profile::Profile;
use crate::auth::sasl;

/// What the server proposes and insists on (§3.4).
#[derive(Clone, Debug)]
pub struct HandshakeLimits {
    pub profile: Profile,
    /// Bytes of a whole frame; 0: unlimited.
    pub frame_max: u32,
    /// Bytes of a frame before tune-ok.
    pub initial_frame_max: u32,
    /// Channels of one connection; 0: unlimited.
    pub channel_max: u16,
    /// Seconds; 0: none.
    pub heartbeat_s: u16,
    /// Largest body that is kept while it arrives.
    pub max_message_size: u64,
    /// A client may log in without a name (§3.3).
    pub anonymous: bool,
}

/// What the shell has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read more bytes (after writing the output).
    More,
    /// Check the password, then call [`Handshake::login_accepted`] or [`Handshake::login_refused`].
    Login { user: String, password: String },
    /// As [`Step::Login`], for whoever a client without a name is.
    LoginAnonymously,
    /// Find the vhost; answer with [`Handshake::open_refused`], or go on with [`Handshake::into_running`].
    Open { vhost: String },
    /// Write the output, then wait for connection.close-ok for some seconds.
    Refused { reason: String },
    /// Write the output and close: it was not AMQP 0-9-1.
    WrongProtocol,
    /// Write nothing, wait 3 s against guessing, close.
    Drop { reason: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Header,
    Starting,
    LoggingIn,
    Tuning,
    Opening,
    Entering,
    Refused,
}

/// What client and server agreed on.
#[derive(Clone, Debug)]
pub struct Agreed {
    pub client_properties: FieldTable,
    pub capabilities: Capabilities,
    pub frame_max: u32,
    pub channel_max: u16,
    pub heartbeat_s: u16,
    /// SASL mechanism of the login.
    pub mechanism: String,
}

/// The handshake of one connection.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    limits: HandshakeLimits,
    decoder: Decoder,
    agreed: Agreed,
}

impl Handshake {
    pub fn new(limits: HandshakeLimits) -> Self {
        Self {
            state: State::Header,
            decoder: Decoder::new(limits.initial_frame_max, limits.max_message_size),
            agreed: Agreed {
                client_properties: FieldTable::default(),
                capabilities: Capabilities::default(),
                frame_max: limits.frame_max,
                channel_max: limits.channel_max,
                heartbeat_s: limits.heartbeat_s,
                mechanism: String::new(),
            },
            limits,
        }
    }

    /// Looks at the input that is not consumed yet. Appends replies to `out`.
    pub fn advance(&mut self, input: &[u8], consumed: &mut usize, out: &mut BytesMut) -> Step {
        loop {
            if self.state == State::Header {
                let rest = &input[*consumed..];
                let Some(header) = rest.first_chunk::<8>() else { return Step::More };
                *consumed += 8;
                if !is_supported(header) {
                    out.extend_from_slice(&PROTOCOL_HEADER);
                    return Step::WrongProtocol;
                }
                put_method_frame(out, 0, &start(self.limits.profile, self.limits.anonymous));
                self.state = State::Starting;
                continue;
            }
            let event = match self.decoder.next(&input[*consumed..], consumed) {
                Ok(None) => return Step::More,
                Ok(Some(Event::Heartbeat)) => continue,
                Ok(Some(event)) => event,
                Err(fault) => return self.fault(&fault, out),
            };
            if let Some(step) = self.event(event, out) {
                return step;
            }
        }
    }

    fn fault(&mut self, fault: &Fault, out: &mut BytesMut) -> Step {
        if self.state == State::Refused {
            return Step::Drop { reason: "garbage after connection.close".to_owned() };
        }
        if self.state != State::Opening {
            return drop_step(format!("{}, before login", fault.explanation));
        }
        self.refuse(fault.code, &fault.explanation, fault.method, out)
    }

    fn event(&mut self, event: Event<'_>, out: &mut BytesMut) -> Option<Step> {
        let (channel, method) = match event {
            Event::Method { channel, method } => (channel, method),
            Event::Publish { channel, .. } | Event::OwnedPublish { channel, .. } => {
                (channel, Method::BasicRecoverOk(leveret_protocol::basic::RecoverOk {}))
            }
            Event::Heartbeat => return None,
        };
        match (self.state, method) {
            (State::Starting, Method::ConnectionStartOk(start_ok)) if channel == 0 => Some(self.start_ok(&start_ok)),
            (State::Tuning, Method::ConnectionTuneOk(tune_ok)) if channel == 0 => self.tune_ok(&tune_ok, out),
            (State::Opening, Method::ConnectionOpen(open)) if channel == 0 => {
                self.state = State::Entering;
                Some(Step::Open { vhost: open.virtual_host.to_owned() })
            }
            (State::Opening, method) if channel != 0 => {
                let mut payload = BytesMut::new();
                method.encode(&mut payload);
                let error = FrameError::new(FrameKind::Method.octet(), channel, &payload, FrameFault::Misplaced);
                Some(self.refuse(error.reply_code(), &error.explanation(), MethodId::NONE, out))
            }
            (State::Opening, method) => {
                let text = "unexpected method in connection state opening";
                Some(self.refuse(ReplyCode::ChannelError, text, method.id(), out))
            }
            (State::Refused, Method::ConnectionCloseOk(_)) => Some(Step::Drop { reason: "closed".to_owned() }),
            (State::Refused, _) => None,
            (_, method) => Some(drop_step(format!("{} where another method was due", method.name()))),
        }
    }

    fn start_ok(&mut self, start_ok: &connection::StartOk<'_>) -> Step {
        self.agreed.capabilities = Capabilities::of(&start_ok.client_properties);
        self.agreed.client_properties = start_ok.client_properties.clone();
        let credentials = match start_ok.mechanism {
            "PLAIN" => sasl::plain(start_ok.response),
            "AMQPLAIN" => sasl::amqplain(start_ok.response),
            "ANONYMOUS" if self.limits.anonymous => {
                // The response is a trace at best, and means nothing.
                self.agreed.mechanism = start_ok.mechanism.to_owned();
                self.state = State::LoggingIn;
                return Step::LoginAnonymously;
            }
            other => return drop_step(format!("unknown authentication mechanism '{other}'")),
        };
        self.agreed.mechanism = start_ok.mechanism.to_owned();
        match credentials {
            Ok((user, password)) => {
                self.state = State::LoggingIn;
                Step::Login { user, password }
            }
            Err(error) => drop_step(error.to_string()),
        }
    }

    /// The password is right: proposes limits.
    pub fn login_accepted(&mut self, out: &mut BytesMut) {
        let tune = connection::Tune {
            channel_max: self.limits.channel_max,
            frame_max: self.limits.frame_max,
            heartbeat: self.limits.heartbeat_s,
        };
        put_method_frame(out, 0, &tune.into());
        self.state = State::Tuning;
    }

    /// The password is wrong (§3.3): said so only to clients that understand it.
    pub fn login_refused(&mut self, out: &mut BytesMut) -> Step {
        if !self.agreed.capabilities.authentication_failure_close {
            return drop_step("login refused".to_owned());
        }
        let text = format!(
            "Login was refused using authentication mechanism {}. For details see the broker logfile.",
            self.agreed.mechanism
        );
        self.refuse(ReplyCode::AccessRefused, &text, MethodId::NONE, out)
    }

    /// §3.4: what the client may not choose.
    fn tune_ok(&mut self, tune_ok: &connection::TuneOk, out: &mut BytesMut) -> Option<Step> {
        let frame_limit = self.limits.frame_max;
        let channel_limit = self.limits.channel_max;
        let frame_min = self.limits.profile.frame_max_min();
        let problem = if tune_ok.frame_max != 0 && tune_ok.frame_max < frame_min {
            Some(format!(
                "negotiated frame_max = {} is lower than the minimum allowed value ({frame_min})",
                tune_ok.frame_max
            ))
        } else if frame_limit != 0 && (tune_ok.frame_max == 0 || tune_ok.frame_max > frame_limit) {
            Some(format!(
                "negotiated frame_max = {} is higher than the maximum allowed value ({frame_limit})",
                tune_ok.frame_max
            ))
        } else if channel_limit != 0 && (tune_ok.channel_max == 0 || tune_ok.channel_max > channel_limit) {
            let suffix = if tune_ok.channel_max == 0 { " (no limit)" } else { "" };
            Some(format!(
                "negotiated channel_max = {}{suffix} is higher than the maximum allowed value ({channel_limit})",
                tune_ok.channel_max
            ))
        } else {
            None
        };
        if let Some(text) = problem {
            return Some(self.refuse(ReplyCode::NotAllowed, &text, connection::Tune::ID, out));
        }
        self.agreed.frame_max = tune_ok.frame_max;
        self.agreed.channel_max = tune_ok.channel_max;
        self.agreed.heartbeat_s = tune_ok.heartbeat;
        // Without a limit a frame may still not claim more than the largest message.
        self.decoder.set_payload_max(if tune_ok.frame_max == 0 { BODY_SIZE_MAX as u32 } else { tune_ok.frame_max });
        self.state = State::Opening;
        None
    }

    /// The vhost may not be entered (§3.5).
    pub fn open_refused(&mut self, explanation: &str, out: &mut BytesMut) -> Step {
        self.refuse(ReplyCode::NotAllowed, explanation, connection::Open::ID, out)
    }

    fn refuse(&mut self, code: ReplyCode, explanation: &str, id: MethodId, out: &mut BytesMut) -> Step {
        let text = reply_text(code, explanation);
        let close =
            connection::Close { reply_code: code.code(), reply_text: &text, class_id: id.class, method_id: id.method };
        put_method_frame(out, 0, &close.into());
        self.state = State::Refused;
        Step::Refused { reason: text }
    }

    /// The vhost is entered: the decoder goes on where it is.
    pub fn into_running(self) -> (Decoder, Agreed) {
        (self.decoder, self.agreed)
    }
}

fn drop_step(reason: String) -> Step {
    Step::Drop { reason }
}

/// §1.1: 0-9-1, and 0-9 as old clients write it.
fn is_supported(header: &[u8; 8]) -> bool {
    *header == PROTOCOL_HEADER || header == b"AMQP\x01\x01\x00\x09"
}

/// §3.2: connection.start.
fn start(profile: Profile, anonymous: bool) -> Method<'static> {
    let capabilities = [
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ];
    let capabilities = FieldTable::from_iter(capabilities.map(|name| (name, FieldValue::Bool(true))));
    let text = |value: &str| FieldValue::LongString(value.to_owned().into());
    let server_properties = FieldTable::from_iter([
        ("capabilities", FieldValue::Table(capabilities)),
        ("cluster_name", text(NODE_NAME)),
        ("copyright", text("The Leveret developers")),
        ("information", text("Leveret speaks RabbitMQ's AMQP 0-9-1")),
        ("leveret", text(env!("CARGO_PKG_VERSION"))),
        ("platform", text("Rust")),
        // Clients decide by these two what the broker can do (§3.2).
        ("product", text("RabbitMQ")),
        ("version", text(profile.server_version())),
    ]);
    connection::Start {
        version_major: 0,
        version_minor: 9,
        server_properties,
        mechanisms: if anonymous { b"PLAIN AMQPLAIN ANONYMOUS" } else { b"PLAIN AMQPLAIN" },
        locales: b"en_US",
    }
    .into()
}
