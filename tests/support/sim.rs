//! A broker, its clients, its store and its clock, all in one thread: the same lines give the same run.
//!
//! [`Sim::step`] takes one line of a script (see `sim_script`) and checks what must hold after it. The shell
//! is played as strictly as it may be: a connection is polled only when the broker woke it or said that
//! there is more, the store is asked only when the broker said so, timers only when one is due.

use std::collections::BTreeMap;

use leveret::auth::{Pattern, Permissions, User, UserLimits};
use leveret::model::broker::{Broker, Effects, PagingSettings, Settings};
use leveret::model::connection::{Capabilities, ConnectionInfo, ConnectionState};
use leveret::model::ids::QueueKey;
use leveret::model::output::Output;
use leveret::model::queue::Queue;
use leveret::model::quota::Quota;
use leveret::model::record::Name;
use leveret::model::timer::Millis;
use leveret_protocol::{FieldTable, Method};

use super::sim_books::{self, Books};
use super::sim_client::{Client, ClientState};
use super::sim_pager::SimPager;
use super::sim_script::{Step, StoreStep, Wire, parse};
use super::sim_store::{Durable, START, SimStore, first_broker};

pub struct Sim {
    pub broker: Broker,
    pub now: Millis,
    pub store: SimStore,
    pub pager: SimPager,
    /// By the number that scripts use; `None`: not connected.
    clients: Vec<Option<Client>>,
    /// What clients received that have closed their connection.
    last_words: BTreeMap<usize, Vec<Wire>>,
    books: Books,
    settings: Settings,
    seed: [u8; 32],
    starts: u8,
    queue_count: usize,
    /// What the last commands were, without those that no client would send.
    pub last_sent: Vec<Wire>,
}

/// A channel of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct At {
    pub connection: usize,
    pub channel: u16,
}

impl Sim {
    pub fn new(seed: u64) -> Self {
        Self::with_settings(seed, Settings::default())
    }

    pub fn with_settings(seed: u64, settings: Settings) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let (store, broker) = first_broker(settings.clone(), bytes);
        Self {
            broker,
            now: START,
            store,
            pager: SimPager::default(),
            clients: Vec::new(),
            last_words: BTreeMap::new(),
            books: Books::default(),
            settings,
            seed: bytes,
            starts: 0,
            queue_count: 0,
            last_sent: Vec::new(),
        }
    }

    // --- For scenarios written by hand ---

    /// Channel 1 of a new connection.
    pub fn channel(&mut self) -> At {
        let at = At { connection: self.clients.len(), channel: 1 };
        self.step(&format!("c{} open", at.connection));
        self.run(at, "channel.open");
        at
    }

    /// Another channel of the same connection.
    pub fn second_channel(&mut self, of: At) -> At {
        let at = At { channel: of.channel + 1, ..of };
        self.run(at, "channel.open");
        at
    }

    /// Commands one after the other; after each the store is done and all is read.
    pub fn run(&mut self, at: At, commands: &str) {
        for command in commands.split(';') {
            self.step(&format!("c{}.{} {}", at.connection, at.channel, command.trim()));
            self.settle();
        }
    }

    /// Lines of a script as it is printed, `store` and `poll` included.
    pub fn play(&mut self, script: &str) {
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            self.step(line);
        }
        self.settle();
    }

    /// Lets the store finish and everybody read.
    pub fn settle(&mut self) {
        // What is read without acknowledgement is settled, and gives the store work again.
        while !self.store.is_idle() || !self.pager.is_idle() || self.clients.iter().flatten().any(|client| client.woken)
        {
            self.step("store");
            self.step("poll");
        }
        let held = self.clients.iter().position(|client| client.as_ref().is_some_and(|client| client.held));
        assert_eq!(held, None, "waits for a store that is idle");
    }

    /// The bodies that came with deliver and get-ok since this was asked last.
    pub fn delivered(&mut self, at: At) -> Vec<String> {
        let deliveries = self.take(at, |method| matches!(method, Method::BasicDeliver(_) | Method::BasicGetOk(_)));
        deliveries.iter().map(Wire::body_name).collect()
    }

    /// Everything but deliveries that came on the channel since this was asked last, as text: the name of the
    /// method, and of closes the reply text.
    pub fn replies(&mut self, at: At) -> Vec<String> {
        let replies = self.take(at, |method| !matches!(method, Method::BasicDeliver(_) | Method::BasicGetOk(_)));
        let text = |wire: &Wire| match wire.method() {
            Method::ChannelClose(close) => format!("{} {}", close.reply_code, close.reply_text),
            Method::ConnectionClose(close) => format!("{} {}", close.reply_code, close.reply_text),
            Method::BasicAck(ack) => format!("basic.ack {}", ack.delivery_tag),
            Method::BasicNack(nack) => format!("basic.nack {}", nack.delivery_tag),
            Method::QueueDeclareOk(ok) => format!("queue.declare-ok {} {}", ok.message_count, ok.consumer_count),
            other => other.name().to_owned(),
        };
        replies.iter().map(text).collect()
    }

    /// What came on the channel since this was asked last and is of that kind.
    pub fn take(&mut self, at: At, wanted: impl Fn(&Method<'_>) -> bool) -> Vec<Wire> {
        let Some(Some(client)) = self.clients.get_mut(at.connection) else { return Vec::new() };
        let matches = |wire: &mut Wire| wire.channel == at.channel && wanted(&wire.method());
        client.received.extract_if(.., matches).collect()
    }

    /// Everything holds that must hold when all is read and stored.
    pub fn check(&mut self) {
        self.settle();
        self.check_if_quiet();
        let channels = self.clients.iter().flatten().flat_map(|client| client.channels.values());
        let unconfirmed = channels.filter(|channel| !channel.ended && channel.unconfirmed() > 0).count();
        assert_eq!(unconfirmed, 0, "channels wait for confirms");
    }

    /// Nothing is kept of pages that nobody needs.
    pub fn check_pages(&self) {
        let away: usize = self.broker.queues().map(|queue| queue.messages().away() as usize).sum();
        let kept = self.pager.kept();
        assert!(kept <= away, "{kept} pages are kept, of {away} that are away");
    }

    // --- Steps ---

    pub fn client(&self, connection: usize) -> Option<&Client> {
        self.clients.get(connection)?.as_ref()
    }

    /// What a client has received since this was asked last.
    pub fn take_received(&mut self, connection: usize) -> Vec<Wire> {
        let mut received = self.last_words.remove(&connection).unwrap_or_default();
        if let Some(Some(client)) = self.clients.get_mut(connection) {
            received.append(&mut client.received);
        }
        received
    }

    /// Does one line of a script; panics if anything is wrong then.
    pub fn step(&mut self, line: &str) {
        match parse(line) {
            Step::Open { connection, frame_max } => self.open(connection, frame_max),
            Step::Lost { connection } => self.lost(connection),
            Step::Send { connection, commands } => self.send(connection, &commands),
            Step::Poll { connection, limit } => self.poll(connection, limit),
            Step::PollAll => self.poll_all(),
            Step::Time(ms) => self.pass(ms),
            Step::Clock(ms) => self.now += ms,
            Step::Store(step) => self.store_step(step),
            Step::Page => self.page_step(),
            Step::Crash => self.start_again(),
            Step::Stop => self.stop(),
        }
        sim_books::check_queues(&self.broker);
        self.check_if_quiet();
    }

    /// What must hold when everybody has read everything.
    fn check_if_quiet(&self) {
        let clients: Vec<&Client> = self.clients.iter().flatten().collect();
        if clients.iter().all(|client| !client.woken && !client.held) {
            let is_idle = self.store.is_idle() && self.pager.is_idle();
            sim_books::check_quiet(&self.broker, &clients, is_idle, self.now);
            self.books.check_quiet();
        }
    }

    fn open(&mut self, connection: usize, frame_max: u32) {
        if self.clients.len() <= connection {
            self.clients.resize_with(connection + 1, || None);
        }
        if self.clients[connection].is_some() {
            return;
        }
        let key = self.broker.connection_opened(connection_info(connection, frame_max), self.now);
        self.clients[connection] = Some(Client::new(key, frame_max));
        self.finish();
    }

    fn lost(&mut self, connection: usize) {
        let Some(client) = self.clients.get_mut(connection).and_then(Option::take) else { return };
        self.end_client(client);
        self.finish();
    }

    fn end_client(&mut self, mut client: Client) {
        self.broker.connection_lost(client.key, self.now);
        // What was sent before the end of a channel or a queue, and not read.
        self.books.deliveries_were_lost |= client.unread_end;
        let ended: Vec<_> = client.channels.values_mut().flat_map(|channel| channel.end(&mut self.books)).collect();
        self.books.observe(&self.broker, &ended, &self.pager);
    }

    fn send(&mut self, connection: usize, commands: &[Wire]) {
        self.last_sent.clear();
        for command in commands {
            // A client is not read from while it is held.
            while self
                .clients
                .get(connection)
                .and_then(Option::as_ref)
                .is_some_and(|client| self.broker.is_deferred(client.key))
            {
                self.finish();
                assert!(!self.pager.is_idle(), "c{connection} is held, and nothing comes from the disk");
                self.page_step();
            }
            let Some(client) = self.clients.get_mut(connection).and_then(Option::as_mut) else { return };
            if client.send(command, &mut self.broker, self.now, &mut self.books) {
                self.last_sent.push(command.clone());
            }
            self.after_input();
        }
        self.finish();
    }

    /// Notes what the last input to the broker has changed.
    fn after_input(&mut self) {
        let mut ended = Vec::new();
        let queues = self.broker.queues().count();
        let queue_ended = queues < std::mem::replace(&mut self.queue_count, queues);
        for client in self.clients.iter_mut().flatten() {
            client.unread_end |= queue_ended && (client.woken || client.held);
            for (number, channel) in &mut client.channels {
                if !channel.ended && !self.broker.is_channel_open(client.key, *number) {
                    ended.extend(channel.end(&mut self.books));
                    client.unread_end = true;
                }
            }
        }
        self.books.observe(&self.broker, &ended, &self.pager);
    }

    /// Ends a turn.
    fn finish(&mut self) {
        let mut effects = Effects::default();
        self.broker.finish(self.now, &mut effects);
        self.store.raised |= effects.store;
        for key in effects.wake {
            if let Some(client) = self.clients.iter_mut().flatten().find(|client| client.key == key) {
                client.woken = true;
            }
        }
        self.pager.take(&mut self.broker);
        self.books.observe(&self.broker, &[], &self.pager);
    }

    /// The shell does one thing for a message that is away.
    fn page_step(&mut self) {
        if self.pager.step(&mut self.broker, self.store.inner(), self.now) {
            self.after_input();
            self.finish();
        }
    }

    fn poll(&mut self, connection: usize, limit: usize) {
        let Some(client) = self.clients.get_mut(connection).and_then(Option::as_mut).filter(|client| client.woken)
        else {
            return;
        };
        let mut output = Output::default();
        let poll = self.broker.poll_transmit(client.key, &mut output, limit, self.now);
        client.woken = poll.more;
        client.held = !poll.more && poll.pending_bytes > 0;
        client.unread_end &= client.woken || client.held;
        self.books.observe(&self.broker, &[], &self.pager);
        let mut bytes: Vec<u8> = output.chunks.iter().flat_map(|chunk| chunk.iter().copied()).collect();
        bytes.extend_from_slice(&output.tail);
        client.read(&bytes, &self.broker, &mut self.books);
        let confirmed = std::mem::take(&mut client.confirmed);
        let declared = std::mem::take(&mut client.declared);
        for body in confirmed {
            self.check_confirmed(&body);
        }
        for queue in declared {
            self.check_declared(queue);
        }
        if poll.state == ConnectionState::Closed && !poll.more {
            let received = self.clients[connection].as_mut().map(|client| std::mem::take(&mut client.received));
            self.last_words.insert(connection, received.unwrap_or_default());
            self.lost(connection);
        }
        self.finish();
    }

    /// A confirmed persistent message is in the store, wherever it still is.
    fn check_confirmed(&self, body: &str) {
        for queue in self.broker.queues().filter(|queue| queue.store_id.is_some()) {
            for seq in sim_books::live(queue) {
                let Some((record, shared)) = queue.messages().get(seq) else {
                    assert!(queue.messages().is_away(seq), "it is live");
                    continue;
                };
                let dead = record.raw_properties().headers().is_some_and(|headers| headers.get("x-death").is_some());
                let persistent = record.raw_properties().delivery_mode() == Some(2);
                let name = super::sim_script::body_name(shared.map_or(record.inline_body, |body| body));
                if name == body && persistent && !dead {
                    assert!(self.store.durable.has(&queue.name, seq), "{body} was confirmed, and is not in the store");
                }
            }
        }
    }

    /// A durable queue whose declare-ok was read is in the store, unless it is gone again.
    fn check_declared(&self, key: QueueKey) {
        let is_it = |queue: &&Queue| self.broker.queue_key(&queue.name) == Some(key);
        if let Some(queue) = self.broker.queues().find(is_it)
            && let Some(id) = queue.store_id
        {
            assert!(self.store.durable.has_queue(id), "{} was declared, and is not in the store", queue.name);
        }
    }

    fn poll_all(&mut self) {
        for round in 0.. {
            let woken = |client: &Option<Client>| client.as_ref().is_some_and(|client| client.woken);
            let Some(connection) = self.clients.iter().position(woken) else { return };
            assert!(round < 10_000, "c{connection} has more to read, again and again");
            self.poll(connection, 1 << 20);
        }
    }

    /// Time passes, and timers are on time.
    fn pass(&mut self, ms: Millis) {
        let target = self.now + ms;
        for round in 0.. {
            let Some(due) = self.broker.next_deadline().filter(|due| *due <= target) else { break };
            assert!(round < 10_000, "a timer is due again and again at {due}");
            self.now = self.now.max(due);
            self.broker.advance(self.now);
            self.after_input();
            self.finish();
        }
        self.now = target;
        sim_books::check_expiry(&self.broker, self.now);
    }

    fn store_step(&mut self, step: StoreStep) {
        match step {
            StoreStep::Take => self.store.take(&mut self.broker),
            StoreStep::Write => self.store.write(),
            StoreStep::Fail => {
                self.store.fail_next();
                self.pager.fail_next();
            }
            StoreStep::Done => {
                self.store.done(&mut self.broker);
                self.finish();
            }
            StoreStep::All => {
                for round in 0.. {
                    assert!(round < 1000, "the store is never done");
                    if self.store.is_idle() && self.pager.is_idle() {
                        break;
                    }
                    while !self.pager.is_idle() {
                        self.page_step();
                    }
                    for step in [StoreStep::Take, StoreStep::Write, StoreStep::Done] {
                        self.store_step(step);
                    }
                }
            }
        }
    }

    fn start_again(&mut self) {
        self.clients.fill_with(|| None);
        self.starts += 1;
        self.seed[31] = self.starts;
        let (broker, clean) = self.store.start(self.settings.clone(), self.seed, self.now);
        self.pager = SimPager::default();
        self.store.check_recovered(&broker);
        let store = &self.store;
        self.books.recovered(
            &broker,
            |queue, seq| clean && !sim_books::is_redelivered(queue, seq) && !store.was_redelivered(queue, seq),
            |queue, seq| store.seen(queue, seq),
        );
        self.broker = broker;
        self.broker.recovered(self.now);
        self.books.observe(&self.broker, &[], &self.pager);
        self.finish();
    }

    /// As the server stops: clients are told, nothing is waited for, the store is closed cleanly.
    fn stop(&mut self) {
        // What has expired on disk would go later, when it is here.
        while !self.pager.is_idle() {
            self.page_step();
        }
        let before = Durable::of(&self.broker, &self.store.durable);
        self.broker.begin_stop("shutdown", self.now);
        self.after_input();
        self.finish();
        let told = Durable::of(&self.broker, &self.store.durable);
        self.broker.prepare_stop(self.now);
        self.clients.fill_with(|| None);
        self.finish();
        self.store_step(StoreStep::All);
        assert!(self.store.durable.has_queues_of(&before), "a clean stop removes no durable queue");
        assert!(self.store.durable == told, "a clean stop removes no message");
        self.store.close();
        self.start_again();
    }
}

/// So little that most messages are on disk.
pub fn little_memory() -> Settings {
    Settings { paging: Some(PagingSettings { budget: 1500, segment_bytes: 150 }), ..Settings::default() }
}

/// `guest`, who may do anything.
fn connection_info(number: usize, frame_max: u32) -> ConnectionInfo {
    let all = || Pattern::new(".*").expect("a pattern");
    let user = User { name: Name::from("guest"), password: None, tags: Vec::new(), limits: UserLimits::default() };
    ConnectionInfo {
        name: Name::from(format!("c{number}")),
        socket: None,
        user: user.into(),
        permissions: Permissions { configure: all(), write: all(), read: all() }.into(),
        topic_permissions: None,
        client_properties: FieldTable::new(),
        capabilities: Capabilities {
            authentication_failure_close: true,
            consumer_cancel_notify: true,
            connection_blocked: true,
        },
        frame_max,
        channel_max: 2047,
        channel_quota: Quota::new(None),
        heartbeat_s: 0,
    }
}

/// Whether a client in this state may go on.
pub fn is_running(client: &Client) -> bool {
    client.state == ClientState::Running
}
