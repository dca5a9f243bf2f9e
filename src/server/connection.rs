//! The task of one client: bytes from the socket to the broker, and from the broker to the socket.
//!
//! Reading uses a buffer that all connections of a thread share; what is left of an unfinished frame is
//! kept by the connection. Thus an idle connection holds no buffer. A client that lets output gather is
//! not read from, so it can hold only its own bounded backlog.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use leveret_protocol::{Decoder, Event, FRAME_OVERHEAD, Fault};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Instant, timeout, timeout_at};

use super::Server;
use super::admission::{Entry, Seats};
use super::alarms::Alarms;
use super::shard::{Shard, Wakeup};
use crate::auth::Permissions;
use crate::model::connection::{ConnectionInfo, ConnectionState, Socket, Traffic};
use crate::model::handshake::{Handshake, Step};
use crate::model::ids::ConnectionKey;
use crate::model::output::Output;
use crate::model::quota::Permit;
use crate::model::record::Name;

/// Bytes read at most in one go.
const READ_BYTES: usize = 256 << 10;
/// Bytes polled from the broker at most before they are written.
const WRITE_BYTES: usize = 256 << 10;
/// A client is not read from while more than this waits to be sent to it.
const PENDING_BYTES_MAX: usize = 1 << 20;
/// Commands applied in one turn at most: others want the vhost too.
const EVENTS_PER_TURN_MAX: usize = 512;
/// A task that has read so many bytes lets others go first: some half a millisecond of small messages.
const BYTES_IN_A_ROW_MAX: usize = 128 << 10;
/// A read costs as much as so many bytes, however few it brings.
const READ_COST_BYTES: usize = 16 << 10;
/// Types of frames that are parts of contents: header and body.
const CONTENT_FRAMES: [u8; 2] = [2, 3];
/// How long a guesser waits (§3.6), and how long we wait for the answer to a refusal.
const SILENT_CLOSE: Duration = Duration::from_secs(3);
/// How long a client that was answered with close-ok may take to close the socket.
const END_MAX: Duration = Duration::from_secs(30);

thread_local! {
    static SHARED_INPUT: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into_boxed_slice());
}

/// Serves one client until it is gone.
pub async fn serve<S>(server: Arc<Server>, mut stream: S, peer: SocketAddr, local: SocketAddr)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let name = Name::from(format!("{peer} -> {local}"));
    let arrival = server.admission.arrive();
    let deadline = Instant::now() + server.config.handshake_timeout;
    let mut input = BytesMut::new();
    let entered = match timeout_at(deadline, shake_hands(&server, &mut stream, &mut input, (peer, local), &name)).await
    {
        Ok(Ok(Some(entered))) => entered,
        Ok(Ok(None)) => return,
        Ok(Err(error)) => {
            tracing::debug!(connection = %name, %error, "connection lost during handshake");
            return;
        }
        Err(_) => {
            tracing::warn!(connection = %name, "handshake not completed in time, connection closed");
            return;
        }
    };
    let Entered { shard, connection, decoder, wakeup, traffic, seats, heartbeat } = entered;
    let mut client = Client {
        stream: &mut stream,
        shard: &shard,
        connection,
        decoder,
        wakeup: &wakeup,
        traffic: &traffic,
        carry: input,
        output: Output::default(),
        state: ConnectionState::Running,
        more: true,
        pending_bytes: 0,
        hold_back: false,
        broken: false,
        alarms: server.alarms(),
        blocked: false,
        counted: Some((arrival, seats)),
    };
    client.first_turn();
    let result = poll_fn(|context| client.poll(context)).await;
    let state = client.state;
    shard.turn(None, |broker, now| broker.connection_lost(connection, now));
    shard.remove_wakeup(connection);
    match (result, state) {
        (Ok(()), state) if state.is_over() => {
            tracing::info!(connection = %name, "closing AMQP connection ({name}, vhost: '{}')", shard.name);
        }
        (Ok(()), _) => tracing::warn!(
            connection = %name,
            "closing AMQP connection ({name}, vhost: '{}'): client unexpectedly closed TCP connection",
            shard.name
        ),
        (Err(error), _) => tracing::warn!(
            connection = %name,
            %error,
            "closing AMQP connection ({name}, vhost: '{}'): connection lost",
            shard.name
        ),
    }
    if state == ConnectionState::Answered {
        wait_for_end(&mut stream, heartbeat).await;
    }
    linger(&mut stream).await;
}

/// After close-ok the client closes the socket (§3.10): some take an end that they see first for a lost connection.
async fn wait_for_end<S: AsyncRead + Unpin>(stream: &mut S, heartbeat: Duration) {
    let limit = if heartbeat.is_zero() { END_MAX } else { heartbeat.min(END_MAX) };
    let _ = timeout(limit, read_to_end(stream)).await;
}

/// Throws away what comes.
async fn read_to_end<S: AsyncRead + Unpin>(stream: &mut S) {
    let mut scrap = [0; 1024];
    while matches!(stream.read(&mut scrap).await, Ok(1..)) {}
}

/// Reads on for a moment after the last byte is written: closing a socket with unread input would send a
/// reset, and that could overtake the error the client is to read.
async fn linger<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
    let _ = stream.shutdown().await;
    let _ = timeout(Duration::from_secs(1), read_to_end(stream)).await;
}

/// A connection that may talk to a vhost.
struct Entered {
    shard: Arc<Shard>,
    connection: ConnectionKey,
    decoder: Decoder,
    wakeup: Arc<Wakeup>,
    traffic: Arc<Traffic>,
    seats: Seats,
    /// Zero is none.
    heartbeat: Duration,
}

/// From the first byte to the vhost. `None`: it was refused, and told so if it may know.
async fn shake_hands<S>(
    server: &Server,
    stream: &mut S,
    input: &mut BytesMut,
    (peer, local): (SocketAddr, SocketAddr),
    name: &Name,
) -> io::Result<Option<Entered>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut handshake = Handshake::new(server.handshake_limits());
    let mut out = BytesMut::new();
    let mut user = None;
    loop {
        let mut consumed = 0;
        let mut step = handshake.advance(input, &mut consumed, &mut out);
        input.advance(consumed);
        let login = match &step {
            Step::Login { user, password } => Some(server.log_in(user, password, peer)),
            Step::LoginAnonymously => Some(server.log_in_anonymously(peer)),
            _ => None,
        };
        if let Some(result) = login {
            tracing::info!(connection = %name, "accepting AMQP connection {name}");
            match result {
                Ok(known) => {
                    user = Some(known);
                    handshake.login_accepted(&mut out);
                    step = Step::More;
                    // tune-ok and open may be here already.
                    if !input.is_empty() {
                        continue;
                    }
                }
                Err(failure) => {
                    tracing::warn!(connection = %name, %failure, "login refused");
                    step = handshake.login_refused(&mut out);
                }
            }
        }
        if let Step::Open { vhost } = &step {
            let user = user.take().expect("login comes before open");
            match server.enter(vhost, &user) {
                Ok(entry) => {
                    let Entry { shard, channel_quota, seats } = entry;
                    stream.write_all(&out).await?;
                    let (decoder, agreed) = handshake.into_running();
                    let traffic = Arc::new(Traffic::default());
                    let info = ConnectionInfo {
                        name: name.clone(),
                        socket: Some(Socket {
                            peer,
                            local,
                            connected_at: shard.clock.now(),
                            mechanism: agreed.mechanism.into(),
                            traffic: traffic.clone(),
                        }),
                        user,
                        permissions: Arc::new(Permissions::none()), // `open` looks them up
                        topic_permissions: None,
                        client_properties: agreed.client_properties,
                        capabilities: agreed.capabilities,
                        frame_max: agreed.frame_max,
                        channel_max: agreed.channel_max,
                        channel_quota,
                        heartbeat_s: agreed.heartbeat_s,
                    };
                    server.lint_frame_max(&info);
                    tracing::info!(
                        connection = %name,
                        user = %info.user.name,
                        vhost = %shard.name,
                        "connection {name}: user '{}' authenticated and granted access to vhost '{}'",
                        info.user.name,
                        shard.name
                    );
                    let heartbeat = Duration::from_secs(info.heartbeat_s.into());
                    let wakeup = Arc::new(Wakeup::default());
                    let connection = server.open(&shard, info, &wakeup);
                    return Ok(Some(Entered { shard, connection, decoder, wakeup, traffic, seats, heartbeat }));
                }
                Err(explanation) => step = handshake.open_refused(&explanation, &mut out),
            }
        }
        if !out.is_empty() && !matches!(step, Step::Drop { .. }) {
            stream.write_all(&out).await?;
            out.clear();
        }
        match step {
            Step::More => {
                input.reserve(4096);
                if stream.read_buf(input).await? == 0 {
                    // A port check, or a client that gave up.
                    tracing::debug!(connection = %name, "closed by the client during the handshake");
                    return Ok(None);
                }
            }
            Step::WrongProtocol => {
                tracing::warn!(connection = %name, "not AMQP 0-9-1: answered with the protocol header");
                linger(stream).await;
                return Ok(None);
            }
            Step::Drop { reason } => {
                tracing::warn!(connection = %name, %reason, "handshake failed, connection closed without an answer");
                let _ = timeout(SILENT_CLOSE, std::future::pending::<()>()).await;
                return Ok(None);
            }
            Step::Refused { reason } => {
                tracing::warn!(connection = %name, %reason, "handshake refused");
                let _ = timeout(SILENT_CLOSE, wait_for_close_ok(stream, &mut handshake, input)).await;
                return Ok(None);
            }
            Step::Login { .. } | Step::LoginAnonymously | Step::Open { .. } => unreachable!("answered above"),
        }
    }
}

async fn wait_for_close_ok<S: AsyncRead + Unpin>(stream: &mut S, handshake: &mut Handshake, input: &mut BytesMut) {
    let mut out = BytesMut::new();
    loop {
        let mut consumed = 0;
        let step = handshake.advance(input, &mut consumed, &mut out);
        input.advance(consumed);
        if !matches!(step, Step::More) {
            return;
        }
        input.reserve(4096);
        if !matches!(stream.read_buf(input).await, Ok(1..)) {
            return;
        }
    }
}

/// A client in a vhost.
struct Client<'a, S> {
    stream: &'a mut S,
    shard: &'a Shard,
    connection: ConnectionKey,
    decoder: Decoder,
    wakeup: &'a Wakeup,
    traffic: &'a Traffic,
    /// Input that is no whole frame yet.
    carry: BytesMut,
    output: Output,
    state: ConnectionState,
    /// The broker has more to send than the last poll took.
    more: bool,
    /// Bytes that the broker had for this client after the last poll.
    pending_bytes: usize,
    /// The store is far behind: nothing is read until the next commit.
    hold_back: bool,
    /// The stream cannot be decoded any further; input is thrown away.
    broken: bool,
    alarms: &'a Alarms,
    /// It has begun to publish while resources run short: nothing is read until they do not (§3.8).
    blocked: bool,
    /// It is counted among the connections until it closes.
    counted: Option<(Permit, Seats)>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<'_, S> {
    /// What came together with connection.open.
    fn first_turn(&mut self) {
        let early = std::mem::take(&mut self.carry);
        if !early.is_empty() {
            self.take_input(&early);
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wakeup.register(context);
        if self.blocked && !self.alarms.block_publishers() {
            self.unblock();
        }
        let mut left = BYTES_IN_A_ROW_MAX;
        loop {
            let woken = self.wakeup.take();
            if (woken || self.more) && self.output.len() < WRITE_BYTES {
                self.poll_broker();
            }
            self.poll_write(context)?;
            if self.state.is_over() && self.output.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let mut read = None;
            if !self.is_held_back() {
                match self.poll_read(context) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Ok(())),
                    Poll::Ready(Ok(bytes)) => read = Some(bytes),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {}
                }
            }
            let Some(bytes) = read else {
                if self.more && self.output.len() < WRITE_BYTES {
                    continue;
                }
                // Woken by the socket, by the broker, or by the store.
                return Poll::Pending;
            };
            left = left.saturating_sub(bytes.max(READ_COST_BYTES));
            if left == 0 {
                // The consumers of what was published want their turn. Write first what this turn brought.
                self.poll_write(context)?;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    fn poll_broker(&mut self) {
        let (connection, output) = (self.connection, &mut self.output);
        let (poll, woken) =
            self.shard.turn(Some(connection), |broker, now| broker.poll_transmit(connection, output, WRITE_BYTES, now));
        self.note(poll, woken);
    }

    fn note(&mut self, poll: crate::model::broker::Poll, woken: bool) {
        self.more = poll.more || woken;
        self.state = poll.state;
        if poll.state != ConnectionState::Running {
            // Before the client can read of its end, and come again.
            self.counted = None;
        }
        self.pending_bytes = poll.pending_bytes;
        self.hold_back = poll.hold_back;
        if poll.hold_back {
            self.shard.note_held_back();
        }
    }

    /// So much waits, for this client or for the disk, that it is not read from. A closing one is: its input
    /// is thrown away.
    fn is_held_back(&self) -> bool {
        self.state == ConnectionState::Running
            && (self.blocked || self.hold_back || self.pending_bytes + self.output.len() > PENDING_BYTES_MAX)
    }

    /// Writes what it can.
    fn poll_write(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let mut wrote = false;
        while !self.output.is_empty() {
            let mut slices = [io::IoSlice::new(&[]); 16];
            let count = self.output.slices(&mut slices);
            match Pin::new(&mut *self.stream).poll_write_vectored(context, &slices[..count]) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(written)) => {
                    self.output.advance(written);
                    Traffic::count(&self.traffic.sent_bytes, &self.traffic.writes, written);
                    wrote = true;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(()),
            }
        }
        if wrote {
            match Pin::new(&mut *self.stream).poll_flush(context) {
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            if self.output.tail.capacity() > WRITE_BYTES / 8 && !self.more {
                self.output = Output::default();
            }
        }
        Ok(())
    }

    /// Reads once and gives what it read to the broker. `0`: the client is gone.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        SHARED_INPUT.with_borrow_mut(|shared| {
            let mut buffer = ReadBuf::new(shared);
            ready!(Pin::new(&mut *self.stream).poll_read(context, &mut buffer))?;
            let read = buffer.filled().len();
            Traffic::count(&self.traffic.received_bytes, &self.traffic.reads, read);
            if self.carry.is_empty() {
                self.take_input(buffer.filled());
            } else {
                self.carry.extend_from_slice(buffer.filled());
                let input = std::mem::take(&mut self.carry);
                self.take_input(&input);
            }
            Poll::Ready(Ok(read))
        })
    }

    /// Decodes outside the lock, applies everything in few turns, and keeps what is no whole frame.
    fn take_input(&mut self, input: &[u8]) {
        let mut consumed = 0;
        loop {
            if self.broken {
                return;
            }
            if self.alarms.block_publishers() && self.state == ConnectionState::Running {
                if self.take_frame(input, &mut consumed) {
                    continue;
                }
                break;
            }
            let mut events = Vec::with_capacity(32);
            let fault = self.decoder.fill(input, &mut consumed, &mut events, EVENTS_PER_TURN_MAX).err();
            let full = events.len() >= EVENTS_PER_TURN_MAX;
            self.apply(events, fault.as_ref());
            if let Some(fault) = &fault {
                self.broken = fault.fatal_framing;
            } else if !full {
                break;
            }
        }
        self.carry.extend_from_slice(&input[consumed..]);
    }

    /// Resources run short: takes one frame, and nothing more from the first header or body of a content on, where
    /// RabbitMQ stops too. Returns whether there may be more to take.
    #[cold]
    fn take_frame(&mut self, input: &[u8], consumed: &mut usize) -> bool {
        let rest = &input[*consumed..];
        let Some(kind) = rest.first().copied().filter(|_| !self.blocked) else { return false };
        let frame = &rest[..frame_len(rest).min(rest.len())];
        let before = *consumed;
        let mut events = Vec::new();
        let fault = match self.decoder.next(frame, consumed) {
            Ok(event) => {
                events.extend(event);
                None
            }
            Err(fault) => Some(fault),
        };
        let took = *consumed > before;
        self.broken = fault.as_ref().is_some_and(|fault| fault.fatal_framing);
        self.apply(events, fault.as_ref());
        if took && CONTENT_FRAMES.contains(&kind) && self.state == ConnectionState::Running {
            self.block();
        }
        took || self.broken
    }

    fn block(&mut self) {
        self.blocked = true;
        let (connection, reason) = (self.connection, self.alarms.reason());
        self.shard.turn(None, |broker, _| broker.block(connection, reason));
        if !self.alarms.block_publishers() {
            // It cleared in between, and nobody would wake us.
            self.wakeup.wake();
        }
    }

    fn unblock(&mut self) {
        self.blocked = false;
        let connection = self.connection;
        self.shard.turn(None, |broker, _| broker.unblock(connection));
        let kept = std::mem::take(&mut self.carry);
        if !kept.is_empty() {
            self.take_input(&kept);
        }
    }

    fn apply(&mut self, events: Vec<Event<'_>>, fault: Option<&Fault>) {
        let (connection, output) = (self.connection, &mut self.output);
        let (poll, woken) = self.shard.turn(Some(connection), |broker, now| {
            if events.is_empty() && fault.is_none() {
                broker.note_received(connection);
            }
            for event in events {
                broker.client(connection, event, now);
            }
            if let Some(fault) = fault {
                broker.decode_fault(connection, fault, now);
            }
            broker.dispatch_now(now);
            broker.poll_transmit(connection, output, WRITE_BYTES, now)
        });
        self.note(poll, woken);
    }
}

/// Bytes of the frame that begins here, as far as its head is there to say.
fn frame_len(input: &[u8]) -> usize {
    match input.get(3..7) {
        Some(&[a, b, c, d]) => u32::from_be_bytes([a, b, c, d]) as usize + FRAME_OVERHEAD,
        _ => input.len(),
    }
}
