//! The broker of one vhost: takes what clients send, with a time, and is polled for what they are to receive.
//!
//! One writer: whoever holds the `&mut Broker` is alone, so transactions, multiple acks, prefetch and
//! dead-letter cycles are plain calls. Nothing here reads a clock, blocks, or touches a socket or a disk.
//!
//! A turn: any number of [`Broker::client`] (and the other inputs), then one [`Broker::finish`], which
//! dispatches and says whom to wake; then each woken connection calls [`Broker::poll_transmit`].
//! Queues touched in a turn are only marked; they are dispatched once, in `finish` or before the next
//! command that could see the difference.

mod access;
mod admin;
mod consume;
mod dead_letter;
mod definitions;
mod delayed;
mod dispatch;
mod exchanges;
mod firehose;
mod history;
mod hold;
mod import;
mod lifecycle;
mod limits;
mod lint;
mod paging;
mod pending;
mod policies;
#[cfg(test)]
mod profile_tests;
mod publish;
mod queues;
mod scrape;
mod settle;
mod stream;
#[cfg(test)]
mod testing;
mod timers;
mod views;

use std::collections::{HashMap, VecDeque};

use leveret_protocol::{Event, Fault, Method, MethodId, ReplyCode, channel, reply_text};
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};
use slotmap::{SecondaryMap, SlotMap};

use self::dead_letter::Death;
use self::delayed::Delayed;
use self::history::History;
use self::paging::Paging;
use self::pending::Pending;
use super::arguments::QueueType;
use super::channel::{Channel, Consumer, Delivery};
use super::connection::{ChannelSlot, Connection, ConnectionState};
use super::error::{AmqpError, Resource};
use super::exchange::Topology;
use super::ids::{ChannelKey, ConnectionKey, ConsumerKey, ExchangeKey, QueueKey};
use super::policy::PolicySet;
use super::profile::Profile;
use super::queue::Queue;
use super::queue::segment::SegmentPool;
use super::quota::NodeQuotas;
use super::record::Name;
use super::timer::{Millis, Timer, Timers};

pub use self::definitions::RecoveryError;
pub use self::dispatch::Poll;
pub use self::import::{Contents, ImportError, NewBinding, NewExchange, NewQueue};
pub use self::lint::Finding;
pub use self::paging::{Deferred, PagingSettings};
pub use self::scrape::{ByKind, DeadLettering, Kind, QueueFigures, Totals};

/// What is set from outside, for a whole broker.
#[derive(Clone, Debug)]
pub struct Settings {
    pub profile: Profile,
    /// A newer version: what it would treat differently is logged and counted.
    pub lint_against: Option<Profile>,
    /// How long a delivery may stay unacked (§9.5); `None`: for ever.
    pub consumer_timeout_ms: Option<u64>,
    /// Largest body in bytes (§8.1).
    pub max_message_size: u64,
    /// Consumers on one channel at most.
    pub consumers_per_channel_max: Option<u32>,
    /// False: nothing is kept, durable or not.
    pub persistent: bool,
    /// The type of queues whose declare does not say (§5.2 step 1).
    pub default_queue_type: QueueType,
    /// Queues in this vhost at most; `None`: any number.
    pub queues_max: Option<u64>,
    /// A quorum queue may be redeclared as a classic one (§5.3).
    pub relaxed_quorum_redeclare: bool,
    /// When messages go to the disk because of the memory that they take; `None`: never.
    pub paging: Option<PagingSettings>,
    /// What is counted, and limited, together with the other vhosts.
    pub node: NodeQuotas,
}

impl Settings {
    /// How long a delivery of this queue may stay unacked (§9.5); `None`: for ever.
    #[inline]
    fn ack_timeout_ms(&self, queue: &Queue) -> Option<u64> {
        if queue.queue_type != QueueType::Quorum && !self.profile.ack_timeout_closes_channel() {
            return None;
        }
        queue.settings.consumer_timeout_ms.or(self.consumer_timeout_ms)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            profile: Profile::default(),
            lint_against: None,
            consumer_timeout_ms: Some(1_800_000),
            max_message_size: 16 << 20,
            consumers_per_channel_max: None,
            persistent: true,
            default_queue_type: QueueType::Classic,
            queues_max: None,
            relaxed_quorum_redeclare: false,
            paging: None,
            node: NodeQuotas::default(),
        }
    }
}

/// What the shell has to do after a turn.
#[derive(Debug, Default)]
pub struct Effects {
    /// Connections that have something to send or have changed their state.
    pub wake: Vec<ConnectionKey>,
    /// There is something to commit: see [`Broker::take_batch`].
    pub store: bool,
    /// When [`Broker::advance`] is to be called at the latest.
    pub deadline: Option<Millis>,
}

/// Totals of a vhost, exact at any moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrokerStats {
    pub published: u64,
    pub unroutable: u64,
    /// Queues that publishes were put into, one for each.
    pub routed: u64,
    /// Of those that were unroutable, the ones that went back to their publisher.
    pub returned: u64,
    /// Published on channels with confirms, and confirmed there; without those of channels that are open.
    pub confirmable: u64,
    pub confirmed: u64,
    pub connections_opened: u64,
    pub connections_closed: u64,
    pub channels_opened: u64,
    pub channels_closed: u64,
    /// By clients: with success or without, of queues that were there or not.
    pub queues_declared: u64,
    pub queues_created: u64,
    pub queues_deleted: u64,
}

/// One vhost.
pub struct Broker {
    vhost: Name,
    settings: Settings,
    topology: Topology,
    policies: PolicySet,
    operator_policies: PolicySet,
    queues: SlotMap<QueueKey, Queue>,
    queues_by_name: HashMap<Name, QueueKey>,
    connections: SlotMap<ConnectionKey, Connection>,
    channels: SlotMap<ChannelKey, Channel>,
    consumers: SlotMap<ConsumerKey, Consumer>,
    reply_consumers: HashMap<Name, ChannelKey>,
    /// Of each exchange that delays messages.
    delayed: SecondaryMap<ExchangeKey, Delayed>,
    histories: SecondaryMap<ExchangeKey, History>,
    /// The counts of queues that are deleted.
    gone: ByKind,
    pool: SegmentPool,
    paging: Paging,
    pending: Pending,
    /// The last commit that is on disk.
    stored: u64,
    /// Who waits for which commit, in the order of commits.
    awaiting: VecDeque<(u64, ChannelKey)>,
    /// Connections with output that waits for a commit, in the order of commits.
    held: VecDeque<(u64, ConnectionKey)>,
    /// Streams whose consumers wait for a commit, in the order of commits.
    streams_awaiting: VecDeque<(u64, QueueKey)>,
    timers: Timers,
    random: ChaCha12Rng,
    /// Queues to dispatch.
    dirty: Vec<QueueKey>,
    wake: Vec<ConnectionKey>,
    deaths: VecDeque<Death>,
    /// Dead letters of at-least-once queues that no queue took.
    undelivered_deaths: Vec<Death>,
    /// Scratch of acks, kept for its allocation.
    taken: Vec<Delivery>,
    /// Last queue id given out, within this vhost's range.
    queue_ids: u64,
    stats: BrokerStats,
    lint: lint::Lint,
    shares: limits::Shares,
    stopping: bool,
    /// The firehose is on.
    tracing: bool,
    traced: Vec<firehose::Traced>,
}

impl Broker {
    /// A vhost with the predeclared exchanges (§4.1) and nothing else. `store_range` is the first of the
    /// queue ids that belong to this vhost alone. `seed` feeds generated names and random exchanges.
    pub fn new(vhost: Name, settings: Settings, store_range: u64, seed: [u8; 32]) -> Self {
        let shares = limits::Shares::new(&settings.node);
        let pool = settings.paging.map_or_else(SegmentPool::default, |paging| SegmentPool::new(paging.segment_bytes));
        let paging = Paging::new(settings.paging, &settings.node);
        let mut broker = Self {
            vhost,
            settings,
            topology: Topology::new(),
            policies: PolicySet::default(),
            operator_policies: PolicySet::default(),
            queues: SlotMap::with_key(),
            queues_by_name: HashMap::new(),
            connections: SlotMap::with_key(),
            channels: SlotMap::with_key(),
            consumers: SlotMap::with_key(),
            reply_consumers: HashMap::new(),
            delayed: SecondaryMap::new(),
            histories: SecondaryMap::new(),
            pool,
            paging,
            gone: ByKind::default(),
            pending: Pending::default(),
            stored: 0,
            awaiting: VecDeque::new(),
            held: VecDeque::new(),
            streams_awaiting: VecDeque::new(),
            timers: Timers::default(),
            random: ChaCha12Rng::from_seed(seed),
            dirty: Vec::new(),
            wake: Vec::new(),
            deaths: VecDeque::new(),
            undelivered_deaths: Vec::new(),
            taken: Vec::new(),
            queue_ids: store_range,
            stats: BrokerStats::default(),
            lint: lint::Lint::default(),
            shares,
            stopping: false,
            tracing: false,
            traced: Vec::new(),
        };
        broker.declare_predeclared();
        broker
    }

    pub fn vhost(&self) -> &Name {
        &self.vhost
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The type of queues whose declare does not say, from now on.
    pub fn set_default_queue_type(&mut self, queue_type: QueueType) {
        self.settings.default_queue_type = queue_type;
    }

    /// Queues in this vhost at most; those there are stay.
    pub fn set_queues_max(&mut self, max: Option<u64>) {
        self.settings.queues_max = max;
    }

    pub fn stats(&self) -> BrokerStats {
        self.stats
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The queue of this name.
    pub fn queue(&self, name: &str) -> Option<&Queue> {
        self.queues_by_name.get(name).map(|key| &self.queues[*key])
    }

    /// The key of the queue of this name: another one for each queue that ever had the name.
    pub fn queue_key(&self, name: &str) -> Option<QueueKey> {
        self.queues_by_name.get(name).copied()
    }

    /// Is this channel open, as the broker sees it? The client may not have read of its end yet.
    pub fn is_channel_open(&self, connection: ConnectionKey, number: u16) -> bool {
        let slot = self.connections.get(connection).and_then(|connection| connection.channels.get(&number));
        matches!(slot, Some(ChannelSlot::Open(_)))
    }

    /// Every queue, in no particular order.
    pub fn queues(&self) -> impl Iterator<Item = &Queue> {
        self.queues.values()
    }

    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// Takes what a client sent. Errors are answered to the client by closing its channel or connection.
    #[inline]
    pub fn client(&mut self, connection: ConnectionKey, event: Event<'_>, now: Millis) {
        let Some(state) = self.connections.get_mut(connection) else { return };
        state.received = true;
        if state.state != ConnectionState::Running {
            return self.closing_client(connection, &event);
        }
        if !state.deferred.is_empty() {
            return self.defer(connection, Deferred::of(event));
        }
        let (number, id, result) = match event {
            Event::Publish { channel, publish } => {
                let result = match self.open_channel(connection, channel) {
                    Some(key) => self.basic_publish(key, publish, now),
                    None => self.on_channel_not_open(connection, channel),
                };
                (channel, leveret_protocol::basic::Publish::ID, result)
            }
            Event::OwnedPublish { channel, publish } => {
                let result = match self.open_channel(connection, channel) {
                    Some(key) => self.basic_publish(key, publish.as_publish(), now),
                    None => self.on_channel_not_open(connection, channel),
                };
                (channel, leveret_protocol::basic::Publish::ID, result)
            }
            Event::Method { channel: 0, method } => (0, method.id(), self.connection_method(connection, &method, now)),
            Event::Method { channel, method } => {
                (channel, method.id(), self.channel_method(connection, channel, method, now))
            }
            Event::Heartbeat => return,
        };
        if let Err(error) = result {
            self.fail(connection, number, id, &error, now);
        }
        if !self.deaths.is_empty() {
            self.process_deaths(now);
        }
    }

    /// The decoder found a fault in what the client sent: the connection ends.
    /// On a channel that is being closed, faults of content are swallowed like the content itself (§3.11).
    pub fn decode_fault(&mut self, connection: ConnectionKey, fault: &Fault, now: Millis) {
        let Some(state) = self.connections.get(connection) else { return };
        if state.state != ConnectionState::Running {
            if fault.fatal_framing {
                self.close_now(connection);
            }
            return;
        }
        if !state.deferred.is_empty() {
            return self.defer(connection, Some(Deferred::Fault(fault.clone())));
        }
        let closing = matches!(state.channels.get(&fault.channel), Some(ChannelSlot::Closing));
        if closing && !fault.fatal_framing {
            return;
        }
        let error = AmqpError::Decode { code: fault.code, explanation: fault.explanation.clone() };
        self.fail(connection, 0, fault.method, &error, now);
        if fault.fatal_framing {
            // Its answer could not be read any more (§1.2).
            self.timers.arm(now + 3000, Timer::CloseConnection(connection));
        }
    }

    /// Bytes came in that are no whole frame yet: the client is alive (§3.7).
    pub fn note_received(&mut self, connection: ConnectionKey) {
        if let Some(connection) = self.connections.get_mut(connection) {
            connection.received = true;
        }
    }

    /// Ends a turn: dispatches what is marked and says what the shell has to do.
    pub fn finish(&mut self, now: Millis, effects: &mut Effects) {
        if !self.traced.is_empty() {
            self.publish_traced(now);
        }
        self.dispatch_dirty(now);
        if !self.paging.deferred.is_empty() {
            self.resume_deferred(now);
            self.dispatch_dirty(now);
        }
        if self.paging.is_to_look(self.pool.resident()) {
            self.look_for_room(now);
        }
        self.update_shares();
        effects.wake.append(&mut self.wake);
        effects.store = !self.pending.is_empty() || !self.paging.ops.is_empty();
        effects.deadline = self.timers.next_deadline();
    }

    /// The channel, if it is open.
    #[inline]
    fn open_channel(&mut self, connection: ConnectionKey, number: u16) -> Option<ChannelKey> {
        let connection = &mut self.connections[connection];
        if let Some((recent, key)) = connection.recent
            && recent == number
        {
            return Some(key);
        }
        match connection.channels.get(&number) {
            Some(&ChannelSlot::Open(key)) => {
                connection.recent = Some((number, key));
                Some(key)
            }
            _ => None,
        }
    }

    /// What a method on a channel that is not open means (§2.1, §3.11).
    fn on_channel_not_open(&self, connection: ConnectionKey, number: u16) -> Result<(), AmqpError> {
        match self.connections[connection].channels.get(&number) {
            Some(ChannelSlot::Closing) => Ok(()),
            _ => Err(AmqpError::ChannelNotOpen),
        }
    }

    fn channel_method(
        &mut self,
        connection: ConnectionKey,
        number: u16,
        method: Method<'_>,
        now: Millis,
    ) -> Result<(), AmqpError> {
        let Some(channel) = self.open_channel(connection, number) else {
            return match method {
                Method::ChannelOpen(_) => self.channel_open(connection, number, now),
                Method::ChannelClose(_) | Method::ChannelCloseOk(_) => self.unopened_close(connection, number, &method),
                _ => self.on_channel_not_open(connection, number),
            };
        };
        if self.channels[channel].tx.as_ref().is_some_and(|tx| tx.committing.is_some())
            && !matches!(method, Method::ChannelClose(_))
        {
            return Err(AmqpError::DuringCommit);
        }
        match method {
            // Hot: they only mark queues.
            Method::BasicAck(ack) => return self.basic_ack(channel, &ack, now),
            Method::BasicNack(nack) => return self.basic_nack(channel, &nack, now),
            Method::BasicReject(reject) => return self.basic_reject(channel, &reject, now),
            _ => {}
        }
        // Everything below may look at counts: what was published before must have gone where it goes.
        self.dispatch_dirty(now);
        match method {
            Method::ChannelOpen(_) => Err(AmqpError::ChannelAlreadyOpen),
            Method::ChannelClose(_) => {
                self.channel_close(channel, now);
                Ok(())
            }
            Method::ChannelFlow(flow) => self.channel_flow(channel, flow.active),
            Method::AccessRequest(_) => {
                self.reply(channel, &leveret_protocol::access::RequestOk { ticket: 1 }.into());
                Ok(())
            }
            Method::ExchangeDeclare(declare) => self.exchange_declare(channel, declare),
            Method::ExchangeDelete(delete) => self.exchange_delete(channel, &delete),
            Method::ExchangeBind(bind) => self.exchange_bind(channel, bind, now),
            Method::ExchangeUnbind(unbind) => self.exchange_unbind(channel, unbind),
            Method::QueueDeclare(declare) => self.queue_declare(channel, declare, now),
            Method::QueueBind(bind) => self.queue_bind(channel, bind, now),
            Method::QueueUnbind(unbind) => self.queue_unbind(channel, unbind),
            Method::QueuePurge(purge) => self.queue_purge(channel, &purge),
            Method::QueueDelete(delete) => self.queue_delete(channel, &delete, now),
            Method::BasicQos(qos) => self.basic_qos(channel, &qos),
            Method::BasicConsume(consume) => self.basic_consume(channel, consume, now),
            Method::BasicCancel(cancel) => self.basic_cancel(channel, &cancel, now),
            // The answer to our own basic.cancel.
            Method::BasicCancelOk(_) => Ok(()),
            Method::BasicGet(get) if self.defer_get(connection, number, channel, &get, now) => Ok(()),
            Method::BasicGet(get) => self.basic_get(channel, &get, now),
            Method::BasicRecover(recover) => self.basic_recover(channel, recover.requeue, true, now),
            Method::BasicRecoverAsync(recover) => self.basic_recover(channel, recover.requeue, false, now),
            Method::ConfirmSelect(select) => self.confirm_select(channel, select.no_wait),
            Method::TxSelect(_) => self.tx_select(channel),
            Method::TxCommit(_) => self.tx_commit(channel, now),
            Method::TxRollback(_) => self.tx_rollback(channel),
            _ => Err(AmqpError::UnimplementedMethod),
        }
    }

    /// Answers an error: only here a channel or a connection is closed because of one.
    fn fail(&mut self, connection: ConnectionKey, number: u16, id: MethodId, error: &AmqpError, now: Millis) {
        let code = error.reply_code();
        let text = reply_text(code, &error.explanation());
        tracing::debug!(vhost = %self.vhost, connection = %self.connection_name(connection), channel = number, %text, "refused");
        let open = match self.connections[connection].channels.get(&number) {
            Some(&ChannelSlot::Open(key)) if number != 0 && !code.is_hard() => Some(key),
            _ => None,
        };
        match open {
            Some(channel) => self.close_channel_by_server(channel, code, &text, id, now),
            None => self.close_connection_by_server(connection, code, &text, id, now),
        }
    }

    fn close_channel_by_server(&mut self, channel: ChannelKey, code: ReplyCode, text: &str, id: MethodId, now: Millis) {
        let (connection, number) = (self.channels[channel].connection, self.channels[channel].number);
        self.flush_confirms(channel);
        self.encode_gets(channel);
        self.end_channel(channel, now);
        let state = &mut self.connections[connection];
        state.channels.insert(number, ChannelSlot::Closing);
        let close =
            channel::Close { reply_code: code.code(), reply_text: text, class_id: id.class, method_id: id.method };
        state.send(number, &close.into());
        self.wake(connection);
    }

    /// Sends a method on the channel, after the confirms that are due.
    fn reply(&mut self, channel: ChannelKey, method: &Method<'_>) {
        self.flush_confirms(channel);
        let Some(channel) = self.channels.get(channel) else { return };
        let (connection, number) = (channel.connection, channel.number);
        self.connections[connection].send(number, method);
        self.wake(connection);
    }

    /// The connection has something to send.
    #[inline]
    fn wake(&mut self, connection: ConnectionKey) {
        let state = &mut self.connections[connection];
        if !state.woken {
            state.woken = true;
            self.wake.push(connection);
        }
    }

    fn connection_name(&self, connection: ConnectionKey) -> Name {
        self.connections.get(connection).map_or_else(|| Name::from(""), |connection| connection.info.name.clone())
    }

    fn queue_resource(&self, name: &str) -> Resource {
        Resource::queue(&self.vhost, name)
    }

    fn exchange_resource(&self, name: &str) -> Resource {
        Resource::exchange(&self.vhost, name)
    }

    /// 22 characters that nobody can guess, as RabbitMQ makes them (§17.2).
    fn random_name(&mut self, prefix: &str) -> Name {
        use base64::Engine as _;
        let mut bytes = [0; 16];
        self.random.fill_bytes(&mut bytes);
        let text = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
        Name::from(format!("{prefix}{text}"))
    }
}

/// CR and LF are taken out of names (§4.2, §5.1).
fn clean_name(name: &str) -> std::borrow::Cow<'_, str> {
    if name.contains(['\r', '\n']) { name.replace(['\r', '\n'], "").into() } else { name.into() }
}
