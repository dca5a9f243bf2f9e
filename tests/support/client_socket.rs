//! A TCP connection as a sequence of frames, good and bad, and the steps of the handshake.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use leveret_protocol::{
    FieldTable, FieldValue, FrameKind, Method, MethodId, PROTOCOL_HEADER, connection, put_method_frame, split_frame,
};

use super::PATIENCE;
use super::methods::{table, text};

/// A frame as it came.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    pub kind: FrameKind,
    pub channel: u16,
    pub payload: Vec<u8>,
}

/// What a read brought.
#[derive(Debug, PartialEq)]
pub enum Input {
    Frame(Frame),
    /// The server has closed the socket.
    End,
    /// Nothing until the deadline.
    Nothing,
}

/// What a client says about itself during the handshake.
pub struct Login<'a> {
    pub properties: FieldTable,
    pub mechanism: &'a str,
    pub response: &'a [u8],
    /// channel_max, frame_max and heartbeat of tune-ok; 0 for what the server proposes, except for the heartbeat.
    pub tune: (u16, u32, u16),
    pub vhost: &'a str,
}

impl Default for Login<'_> {
    /// guest, as a client that can do everything, without heartbeats.
    fn default() -> Self {
        let capabilities = [
            "authentication_failure_close",
            "basic.nack",
            "connection.blocked",
            "consumer_cancel_notify",
            "exchange_exchange_bindings",
            "publisher_confirms",
        ];
        let capabilities = FieldTable::from_iter(capabilities.map(|name| (name, FieldValue::Bool(true))));
        Self {
            properties: table([("product", text("wire tests")), ("capabilities", capabilities.into())]),
            mechanism: "PLAIN",
            response: b"\0guest\0guest",
            tune: (0, 0, 0),
            vhost: "/",
        }
    }
}

/// A TCP connection with frames on it.
pub struct Socket {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Socket {
    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the broker listens");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        Self { stream, input: Vec::new() }
    }

    /// Sends the protocol header and takes connection.start: the server's properties.
    #[track_caller]
    pub fn greet(address: SocketAddr) -> (Self, FieldTable) {
        let mut socket = Self::open(address);
        socket.send_bytes(&PROTOCOL_HEADER);
        let start = socket.method();
        let Method::ConnectionStart(start) = Method::decode(&start.payload).unwrap() else {
            panic!("not connection.start: {start:?}")
        };
        (socket, start.server_properties)
    }

    pub fn send_start_ok(&mut self, login: &Login<'_>) {
        let start_ok = connection::StartOk {
            client_properties: login.properties.clone(),
            mechanism: login.mechanism,
            response: login.response,
            locale: "en_US",
        };
        self.send(0, start_ok);
    }

    /// Logs in: what the server proposes.
    #[track_caller]
    pub fn log_in(&mut self, login: &Login<'_>) -> connection::Tune {
        self.send_start_ok(login);
        let tune = self.method();
        match Method::decode(&tune.payload).unwrap() {
            Method::ConnectionTune(tune) => tune,
            other => panic!("not connection.tune: {other:?}"),
        }
    }

    /// Up to the moment when connection.open is due.
    #[track_caller]
    pub fn tuned(address: SocketAddr, login: &Login<'_>) -> Self {
        let (mut socket, _) = Self::greet(address);
        let tune = socket.log_in(login);
        socket.send(0, tune_ok(login, &tune));
        socket
    }

    /// Bytes as they are. Whether the server still wants them is its business.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub fn send<'a>(&mut self, channel: u16, method: impl Into<Method<'a>>) {
        self.send_bytes(&method_frame(channel, method));
    }

    /// The next frame, heartbeats included.
    pub fn read(&mut self, deadline: Instant) -> Input {
        loop {
            if let Some((frame, used)) = split_frame(&self.input, 0).expect("the server sends proper frames") {
                let frame = Frame { kind: frame.kind, channel: frame.channel, payload: frame.payload.to_vec() };
                self.input.drain(..used);
                return Input::Frame(frame);
            }
            match self.read_bytes(deadline) {
                Some(0) => return Input::End,
                Some(_) => {}
                None => return Input::Nothing,
            }
        }
    }

    /// The next frame but heartbeats.
    #[track_caller]
    pub fn frame(&mut self) -> Frame {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.read(deadline) {
                Input::Frame(frame) if frame.kind != FrameKind::Heartbeat => return frame,
                Input::Frame(_) => {}
                other => panic!("a frame should come: {other:?}"),
            }
        }
    }

    /// The next frame, which has to be a method.
    #[track_caller]
    pub fn method(&mut self) -> Frame {
        let frame = self.frame();
        assert_eq!(frame.kind, FrameKind::Method, "{frame:?}");
        frame
    }

    /// Everything that comes until the server closes the socket, as it is.
    #[track_caller]
    pub fn bytes_until_end(&mut self) -> Vec<u8> {
        let deadline = Instant::now() + PATIENCE;
        while self.read_bytes(deadline).expect("the server should close the socket") > 0 {}
        std::mem::take(&mut self.input)
    }

    /// Number of bytes that came; 0 when the server has closed the socket, `None` at the deadline.
    fn read_bytes(&mut self, deadline: Instant) -> Option<usize> {
        let mut buffer = [0; 64 << 10];
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        self.stream.set_read_timeout(Some(left)).expect("a timeout can be set");
        match self.stream.read(&mut buffer) {
            Ok(read) => {
                self.input.extend_from_slice(&buffer[..read]);
                Some(read)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
            Err(error) if error.kind() == ErrorKind::Interrupted => self.read_bytes(deadline),
            // RabbitMQ ends its connections that way.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Some(0),
            Err(error) => panic!("the socket fails: {error}"),
        }
    }

    /// The server closes the socket, having sent nothing more.
    #[track_caller]
    pub fn expect_eof_within(&mut self, limit: Duration) {
        let came = self.read(Instant::now() + limit);
        assert_eq!(came, Input::End, "the server should just close the socket");
    }

    #[track_caller]
    pub fn expect_nothing_for(&mut self, time: Duration) {
        let came = self.read(Instant::now() + time);
        assert_eq!(came, Input::Nothing, "nothing should come");
    }

    /// The server sends connection.close with this; it gets its close-ok and closes the socket.
    #[track_caller]
    pub fn expect_connection_close(&mut self, code: u16, explanation: &str, id: MethodId) {
        let frame = self.method();
        assert_eq!(closing(&frame.payload), expected_closing("connection.close", code, explanation, id));
        self.send(0, connection::CloseOk {});
        self.expect_eof_within(PATIENCE);
    }
}

/// tune-ok of this login.
pub fn tune_ok(login: &Login<'_>, proposed: &connection::Tune) -> connection::TuneOk {
    let (channel_max, frame_max, heartbeat) = login.tune;
    connection::TuneOk {
        channel_max: if channel_max == 0 { proposed.channel_max } else { channel_max },
        frame_max: if frame_max == 0 { proposed.frame_max } else { frame_max },
        heartbeat,
    }
}

/// The bytes of a method frame.
pub fn method_frame<'a>(channel: u16, method: impl Into<Method<'a>>) -> Vec<u8> {
    let mut out = bytes::BytesMut::new();
    put_method_frame(&mut out, channel, &method.into());
    out.to_vec()
}

/// The bytes of any frame, also of an impossible one.
pub fn raw_frame(frame_type: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![frame_type];
    frame.extend(channel.to_be_bytes());
    frame.extend((payload.len() as u32).to_be_bytes());
    frame.extend(payload);
    frame.push(0xCE);
    frame
}

/// The bytes of a content header frame.
pub fn header_frame(channel: u16, class: u16, weight: u16, body_size: u64, properties: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    payload.extend(class.to_be_bytes());
    payload.extend(weight.to_be_bytes());
    payload.extend(body_size.to_be_bytes());
    payload.extend(properties);
    raw_frame(2, channel, &payload)
}

/// A close of a connection or channel, ready to be compared.
#[derive(Debug, PartialEq)]
pub(super) struct Closing {
    method: &'static str,
    pub(super) code: u16,
    pub(super) text: String,
    /// Class and method at fault.
    pub(super) id: (u16, u16),
}

#[track_caller]
pub(super) fn closing(payload: &[u8]) -> Closing {
    let method = Method::decode(payload).expect("the server sends proper methods");
    let (code, text, class, id) = match &method {
        Method::ConnectionClose(close) => (close.reply_code, close.reply_text, close.class_id, close.method_id),
        Method::ChannelClose(close) => (close.reply_code, close.reply_text, close.class_id, close.method_id),
        other => panic!("a close should come: {other:?}"),
    };
    // RabbitMQ breaks long terms into lines.
    let text = text.lines().map(str::trim_start).collect();
    Closing { method: method.name(), code, text, id: (class, id) }
}

pub(super) fn expected_closing(method: &'static str, code: u16, explanation: &str, id: MethodId) -> Closing {
    let name = match code {
        320 => "CONNECTION_FORCED",
        403 => "ACCESS_REFUSED",
        404 => "NOT_FOUND",
        405 => "RESOURCE_LOCKED",
        406 => "PRECONDITION_FAILED",
        501 => "FRAME_ERROR",
        502 => "SYNTAX_ERROR",
        503 => "COMMAND_INVALID",
        504 => "CHANNEL_ERROR",
        505 => "UNEXPECTED_FRAME",
        530 => "NOT_ALLOWED",
        540 => "NOT_IMPLEMENTED",
        541 => "INTERNAL_ERROR",
        other => panic!("{other} ends nothing"),
    };
    let text = if explanation.is_empty() { name.to_owned() } else { format!("{name} - {explanation}") };
    Closing { method, code, text, id: (id.class, id.method) }
}
