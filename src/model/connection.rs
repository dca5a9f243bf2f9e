//! An open connection as the broker sees it: who it is, its channels, and what waits to be sent to it.
//!
//! Output is pulled: this holds replies already encoded and *positions* of messages, never copies of them.
//! A connection that does not read holds at most [`BACKLOG_BYTES_MAX`] worth of positions for consumers
//! without a prefetch limit, and otherwise its credit.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::BytesMut;
use leveret_protocol::{FieldTable, Method, put_method_frame};

use super::broker::Deferred;
use super::ids::{ChannelKey, ConsumerKey, QueueKey};
use super::quota::Quota;
use super::record::Name;
use super::timer::Millis;
use crate::auth::{Permissions, TopicPermissions, User};

/// Deliveries are assigned to a connection only while less than this waits to be encoded for it.
pub const BACKLOG_BYTES_MAX: usize = 256 << 10;
/// What a waiting delivery counts on top of its body.
pub const BACKLOG_PER_DELIVERY: usize = 64;

/// Who a connection is; fixed when it opens, but for what its user may do.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// `{peer ip}:{port} -> {local ip}:{port}`.
    pub name: Name,
    /// `None`: it is the broker's own, and not shown to anybody.
    pub socket: Option<Socket>,
    pub user: Arc<User>,
    pub permissions: Arc<Permissions>,
    /// `None`: every routing key will do.
    pub topic_permissions: Option<Arc<TopicPermissions>>,
    pub client_properties: FieldTable,
    pub capabilities: Capabilities,
    /// Bytes of a whole frame; 0: unlimited.
    pub frame_max: u32,
    /// Channels open at once; 0: unlimited.
    pub channel_max: u16,
    /// Channels of the same user, over all connections and vhosts.
    pub channel_quota: Arc<Quota>,
    /// Seconds; 0: none.
    pub heartbeat_s: u16,
}

/// Where a client sits, and what came and went; for management.
#[derive(Clone, Debug)]
pub struct Socket {
    pub peer: SocketAddr,
    pub local: SocketAddr,
    /// Milliseconds since the Unix epoch.
    pub connected_at: Millis,
    /// SASL mechanism of the login.
    pub mechanism: Name,
    pub traffic: Arc<Traffic>,
}

/// What a connection's task counts.
#[derive(Debug, Default)]
pub struct Traffic {
    pub received_bytes: AtomicU64,
    pub sent_bytes: AtomicU64,
    /// Reads and writes of the socket.
    pub reads: AtomicU64,
    pub writes: AtomicU64,
}

impl Traffic {
    /// One read or write of so many bytes. Only the connection's own task counts, so no atomic addition is needed.
    pub fn count(bytes: &AtomicU64, calls: &AtomicU64, more: usize) {
        use std::sync::atomic::Ordering::Relaxed;
        bytes.store(bytes.load(Relaxed) + more as u64, Relaxed);
        calls.store(calls.load(Relaxed) + 1, Relaxed);
    }
}

/// What the client said it can do (§3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    pub authentication_failure_close: bool,
    pub consumer_cancel_notify: bool,
    pub connection_blocked: bool,
}

impl Capabilities {
    /// Reads the `capabilities` table of client-properties; anything missing or of a wrong type is false.
    pub fn of(client_properties: &FieldTable) -> Self {
        use leveret_protocol::FieldValue::{Bool, Table};
        let Some(Table(table)) = client_properties.get("capabilities") else { return Self::default() };
        let has = |name| matches!(table.get(name), Some(Bool(true)));
        Self {
            authentication_failure_close: has("authentication_failure_close"),
            consumer_cancel_notify: has("consumer_cancel_notify"),
            connection_blocked: has("connection.blocked"),
        }
    }
}

/// How far a connection has come in closing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    Running,
    /// connection.close was sent; only close-ok and close are listened to.
    Closing,
    /// close-ok was sent: nothing more will be, and the client is to close the socket.
    Answered,
    /// Nothing more will be sent; the socket may be closed once the output is written.
    Closed,
}

impl ConnectionState {
    /// Nothing more will be sent.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Answered | Self::Closed)
    }
}

/// A channel number in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelSlot {
    Open(ChannelKey),
    /// We sent channel.close; everything but close and close-ok is ignored.
    Closing,
}

/// One thing to send, in order.
#[derive(Clone, Copy, Debug)]
pub enum Out {
    /// The next bytes of `encoded`.
    Encoded(usize),
    Delivery(OutDelivery),
    /// What follows waits until this commit is on disk.
    Hold(u64),
    /// The delivery of this tag is in the encoded bytes that follow.
    Sent {
        channel: ChannelKey,
        tag: u64,
    },
}

/// A message assigned to this connection, to be encoded when it is polled.
#[derive(Clone, Copy, Debug)]
pub struct OutDelivery {
    pub channel: ChannelKey,
    pub number: u16,
    pub no_ack: bool,
    pub kind: OutKind,
    pub queue: QueueKey,
    pub seq: u64,
    pub tag: u64,
    /// As it was when the message was assigned: a nack may come before it is encoded.
    pub redelivered: bool,
    pub body_len: u32,
}

#[derive(Clone, Copy, Debug)]
pub enum OutKind {
    Deliver(ConsumerKey),
    /// get-ok, with the number of messages left.
    Get(u32),
}

#[derive(Debug)]
pub struct Connection {
    pub info: ConnectionInfo,
    pub state: ConnectionState,
    pub channels: BTreeMap<u16, ChannelSlot>,
    /// The channel used last, to spare the look-up.
    pub recent: Option<(u16, ChannelKey)>,
    pub outbox: VecDeque<Out>,
    pub encoded: BytesMut,
    /// Bytes of deliveries in `outbox` (bodies and overhead).
    pub backlog_bytes: usize,
    /// Consumers that wait for the backlog to shrink.
    pub parked: Vec<ConsumerKey>,
    /// Channels that have confirms to send.
    pub confirming: Vec<ChannelKey>,
    pub exclusive_queues: Vec<QueueKey>,
    /// The last commit that something in `outbox` waits for.
    pub held_until: u64,
    /// A heartbeat is to go out, ahead of what is held.
    pub heartbeat_due: bool,
    /// Given up: what still waits to be sent is of no use to anybody.
    pub abandoned: bool,
    /// What it sent and that waits for a message to come from the disk.
    pub deferred: VecDeque<Deferred>,
    /// Is in the list of connections to wake.
    pub woken: bool,
    /// Anything came in or went out since the last heartbeat check.
    pub received: bool,
    pub sent: bool,
    /// The server looked at least once whether a heartbeat is due.
    pub looked: bool,
    pub idle_checks: u8,
    /// Not read from, because resources run short (§3.8).
    pub blocked: bool,
}

impl Connection {
    pub fn new(info: ConnectionInfo) -> Self {
        Self {
            info,
            state: ConnectionState::Running,
            channels: BTreeMap::new(),
            recent: None,
            outbox: VecDeque::new(),
            encoded: BytesMut::new(),
            backlog_bytes: 0,
            parked: Vec::new(),
            confirming: Vec::new(),
            exclusive_queues: Vec::new(),
            held_until: 0,
            heartbeat_due: false,
            abandoned: false,
            deferred: VecDeque::new(),
            woken: false,
            received: true,
            sent: false,
            looked: false,
            idle_checks: 0,
            blocked: false,
        }
    }

    pub fn open_channels(&self) -> impl Iterator<Item = ChannelKey> {
        self.channels.values().filter_map(|slot| match slot {
            ChannelSlot::Open(channel) => Some(*channel),
            ChannelSlot::Closing => None,
        })
    }

    /// Queues a method for sending.
    pub fn send(&mut self, channel: u16, method: &Method<'_>) {
        self.encode(|encoded| put_method_frame(encoded, channel, method));
    }

    /// Queues whatever `write` appends.
    pub fn encode(&mut self, write: impl FnOnce(&mut BytesMut)) {
        let before = self.encoded.len();
        write(&mut self.encoded);
        let added = self.encoded.len() - before;
        match self.outbox.back_mut() {
            Some(Out::Encoded(bytes)) => *bytes += added,
            _ => self.outbox.push_back(Out::Encoded(added)),
        }
    }

    /// Bytes that wait for this connection to read: what the shell looks at before it reads more from it.
    pub fn pending_bytes(&self) -> usize {
        self.encoded.len() + self.backlog_bytes
    }

    /// Does what is to be sent next wait for a commit after `stored`?
    pub fn is_held(&self, stored: u64) -> bool {
        matches!(self.outbox.front(), Some(Out::Hold(commit)) if *commit > stored)
    }

    pub fn has_output(&self) -> bool {
        !self.outbox.is_empty() || !self.confirming.is_empty()
    }
}
