//! A client's connection: handshake, single calls, and cheap reading and writing in bulk.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use leveret_protocol::{
    FieldTable, Frame, FrameKind, Method, PROTOCOL_HEADER, basic, channel, connection, put_method_frame, split_frame,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::error::PerfError;
use super::uri::Uri;

/// The input buffer of a new connection, in bytes. It grows with what comes.
const INPUT_BYTES_MIN: usize = 4 << 10;
/// Bytes read at most in one go, unless a frame is larger.
const INPUT_BYTES_MAX: usize = 256 << 10;

/// An open connection. Method frames go out through `out`.
#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    input: Input,
    pub out: BytesMut,
    /// Largest frame, in bytes; 0 for no limit.
    pub frame_max: u32,
    /// What the broker says it is.
    pub product: String,
}

/// What has been read and not been taken yet.
#[derive(Debug, Default)]
struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Link {
    /// Connects and enters the vhost. Heartbeats are turned off.
    ///
    /// # Errors
    /// Nobody listens, or the broker refuses.
    pub async fn open(uri: &Uri) -> Result<Self, PerfError> {
        let address = format!("{}:{}", uri.host, uri.port);
        let connected = TcpStream::connect((uri.host.as_str(), uri.port)).await;
        let stream = connected.map_err(|reason| PerfError::Connect { address: address.clone(), reason })?;
        stream.set_nodelay(true)?;
        let (input, out) = (Input::default(), BytesMut::new());
        let mut link = Self { stream, input, out, frame_max: 0, product: String::new() };
        match link.shake_hands(uri).await {
            Ok(()) => Ok(link),
            Err(PerfError::Lost(_)) => {
                let hint = "; is it AMQP 0-9-1, and does the vhost exist?";
                Err(PerfError::Handshake { address, hint })
            }
            Err(error) => Err(error),
        }
    }

    async fn shake_hands(&mut self, uri: &Uri) -> Result<(), PerfError> {
        self.out.extend_from_slice(&PROTOCOL_HEADER);
        let start = self.reply(0).await?;
        let Ok(Method::ConnectionStart(start)) = Method::decode(&start) else { return Err(unexpected(&start)) };
        let of_server = |name| start.server_properties.get(name).and_then(|value| value.as_str()).unwrap_or("?");
        self.product = match start.server_properties.get("leveret").and_then(|version| version.as_str()) {
            Some(version) => format!("Leveret {version}"),
            None => format!("{} {}", of_server("product"), of_server("version")),
        };
        let names = ["publisher_confirms", "basic.nack", "consumer_cancel_notify", "connection.blocked"];
        let mut capabilities = FieldTable::new();
        for name in names.into_iter().chain(["authentication_failure_close"]) {
            capabilities.insert(name, true);
        }
        let mut client_properties = FieldTable::new();
        client_properties.insert("product", "leveret perf");
        client_properties.insert("version", env!("CARGO_PKG_VERSION"));
        client_properties.insert("capabilities", capabilities);
        let response = format!("\0{}\0{}", uri.user, uri.password);
        let start_ok = connection::StartOk {
            client_properties,
            mechanism: "PLAIN",
            response: response.as_bytes(),
            locale: "en_US",
        };
        let tune = self.call(0, start_ok).await?;
        let Ok(Method::ConnectionTune(tune)) = Method::decode(&tune) else { return Err(unexpected(&tune)) };
        self.frame_max = tune.frame_max;
        let tune_ok = connection::TuneOk { channel_max: tune.channel_max, frame_max: tune.frame_max, heartbeat: 0 };
        put_method_frame(&mut self.out, 0, &tune_ok.into());
        self.call(0, connection::Open { virtual_host: &uri.vhost }).await?;
        Ok(())
    }

    /// Opens the channels 1 to `count`.
    ///
    /// # Errors
    /// The broker refuses, or the connection is lost.
    pub async fn open_channels(&mut self, count: u16) -> Result<(), PerfError> {
        for number in 1..=count {
            self.call(number, channel::Open {}).await?;
        }
        Ok(())
    }

    /// Sends a method and waits for the next one on its channel: the payload of the answer.
    ///
    /// # Errors
    /// The broker closes the channel or the connection instead, or it is lost.
    pub async fn call<'a>(&mut self, channel: u16, method: impl Into<Method<'a>>) -> Result<Vec<u8>, PerfError> {
        put_method_frame(&mut self.out, channel, &method.into());
        self.reply(channel).await
    }

    /// The payload of the next method on the channel. Contents must not be on their way.
    ///
    /// # Errors
    /// See [`Self::call`].
    pub async fn reply(&mut self, channel: u16) -> Result<Vec<u8>, PerfError> {
        loop {
            let mut found = None;
            self.input.take(|frame| {
                if frame.kind == FrameKind::Method {
                    check(frame.payload)?;
                    if frame.channel == channel {
                        found = Some(frame.payload.to_vec());
                    }
                }
                Ok(found.is_none())
            })?;
            if let Some(payload) = found {
                return Ok(payload);
            }
            self.read().await?;
        }
    }

    /// Writes all of `out`, then reads once.
    async fn read(&mut self) -> Result<(), PerfError> {
        poll_fn(|context| {
            ready!(self.poll_flush(context))?;
            self.poll_read(context)
        })
        .await
    }

    /// Says goodbye and waits for the answer.
    ///
    /// # Errors
    /// The connection is lost before.
    pub async fn close(&mut self) -> Result<(), PerfError> {
        let close = connection::Close { reply_code: 200, reply_text: "bye", class_id: 0, method_id: 0 };
        put_method_frame(&mut self.out, 0, &close.into());
        let mut answered = false;
        while !answered {
            self.read().await?;
            self.input.take(|frame| {
                let end = frame.kind == FrameKind::Method && frame.channel == 0;
                answered |= end && matches!(Method::decode(frame.payload), Ok(Method::ConnectionCloseOk(_)));
                Ok(!answered)
            })?;
        }
        Ok(())
    }

    /// Reads once; ready when something came.
    pub fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), PerfError>> {
        let mut buffer = ReadBuf::new(self.input.space());
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
        let read = buffer.filled().len();
        if read == 0 {
            return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
        }
        self.input.end += read;
        Poll::Ready(Ok(()))
    }

    /// Gives every whole frame that has been read to `each`, until that says false.
    ///
    /// # Errors
    /// Those of `each`; what is no frame.
    pub fn take_frames(&mut self, each: impl FnMut(Frame<'_>) -> Result<bool, PerfError>) -> Result<(), PerfError> {
        self.input.take(each)
    }

    /// Writes `out`; ready when nothing is left of it.
    pub fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<Result<(), PerfError>> {
        while !self.out.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, &self.out))?;
            self.out.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Writes what it can of `bytes`: how many.
    pub fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }
}

impl Input {
    /// Room for the next read. A buffer that was filled up doubles.
    fn space(&mut self) -> &mut [u8] {
        let full = self.end == self.bytes.len();
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        // A frame that does not fit needs more, whatever its size.
        let too_small = self.end == self.bytes.len() || (full && self.bytes.len() < INPUT_BYTES_MAX);
        if too_small {
            let len = (self.bytes.len() * 2).max(INPUT_BYTES_MIN);
            self.bytes.resize(len, 0);
        }
        &mut self.bytes[self.end..]
    }

    fn take(&mut self, mut each: impl FnMut(Frame<'_>) -> Result<bool, PerfError>) -> Result<(), PerfError> {
        loop {
            let split = split_frame(&self.bytes[self.start..self.end], 0);
            let Some((frame, len)) = split.map_err(|error| PerfError::Protocol(error.explanation()))? else {
                return Ok(());
            };
            self.start += len;
            if !each(frame)? {
                return Ok(());
            }
        }
    }
}

/// What no client wants to get: closes and cancels. Everything else is for the caller.
///
/// # Errors
/// What the broker says.
pub fn check(payload: &[u8]) -> Result<(), PerfError> {
    let closed = |what, code, text: &str| Err(PerfError::Closed { what, code, text: text.to_owned() });
    match Method::decode(payload) {
        Ok(Method::ConnectionClose(connection::Close { reply_code, reply_text, .. })) => {
            closed("connection", reply_code, reply_text)
        }
        Ok(Method::ChannelClose(channel::Close { reply_code, reply_text, .. })) => {
            closed("channel", reply_code, reply_text)
        }
        Ok(Method::BasicCancel(basic::Cancel { .. })) => Err(PerfError::Cancelled),
        Ok(_) => Ok(()),
        Err(error) => Err(PerfError::Protocol(error.explanation())),
    }
}

#[cold]
pub fn unexpected(payload: &[u8]) -> PerfError {
    PerfError::Protocol(match Method::decode(payload) {
        Ok(method) => method.id().name().unwrap_or_default().to_owned(),
        Err(error) => error.explanation(),
    })
}
