//! A raw, blocking AMQP client: it sends what a test wants, right or wrong, and says exactly what came back.
//!
//! [`Socket`] has frames and steps of the handshake; [`Connection`] and [`Channel`] sort what comes by channel
//! and have a call for every everyday thing. All waiting has a limit; what comes late or differs panics with
//! what came. Methods come from builders such as [`declare`], to be changed field by field.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leveret_protocol::{
    ContentHeader, FieldTable, FieldValue, FrameKind, Method, MethodId, Properties, basic, channel, confirm,
    connection, exchange, put_content, put_method_frame, queue, tx,
};

#[path = "client_methods.rs"]
mod methods;
#[path = "client_socket.rs"]
mod socket;

pub use methods::*;
pub use socket::*;

/// How long anything that must come may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a broker that is not ours gets to send what it must not send.
const QUIET: Duration = Duration::from_millis(150);

/// A method, with the content that belongs to it.
#[derive(Debug, Clone)]
pub struct Incoming {
    pub channel: u16,
    pub payload: Vec<u8>,
    pub properties: Properties,
    pub body: Vec<u8>,
}

impl Incoming {
    pub fn method(&self) -> Method<'_> {
        Method::decode(&self.payload).expect("the server sends proper methods")
    }
}

/// A message that came with basic.deliver, get-ok or return.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// Empty unless it came with basic.deliver.
    pub consumer_tag: String,
    /// 0 of a returned message.
    pub tag: u64,
    pub redelivered: bool,
    pub exchange: String,
    pub routing_key: String,
    pub properties: Properties,
    pub body: Vec<u8>,
    /// Messages left; 0 unless it came with get-ok.
    pub left: u32,
}

impl Delivery {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is text")
    }

    pub fn header(&self, name: &str) -> Option<&FieldValue> {
        self.properties.headers.as_ref()?.get(name)
    }
}

/// What declare-ok says.
#[derive(Debug, Clone, PartialEq)]
pub struct Declared {
    pub queue: String,
    pub ready: u32,
    pub consumers: u32,
}

/// An answer to a publisher who wants confirms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Confirm {
    Ack { tag: u64, multiple: bool },
    Nack { tag: u64, multiple: bool },
}

/// Connects to the broker that the tests share.
#[track_caller]
pub fn connect() -> Connection {
    Connection::open(crate::broker::shared(), &Login::default())
}

/// Connects and opens a channel: all that most tests need.
#[track_caller]
pub fn open() -> Channel {
    connect().channel()
}

/// A connection that has entered its vhost. Clones are the same connection.
#[derive(Clone)]
pub struct Connection {
    inner: Rc<RefCell<Inner>>,
}

struct Inner {
    socket: Socket,
    server_properties: FieldTable,
    frame_max: usize,
    last_channel: u16,
    /// What came for channels that nobody asked about yet.
    inbox: VecDeque<Incoming>,
    /// Contents of which something is still to come.
    unfinished: BTreeMap<u16, (Incoming, Option<u64>)>,
}

impl Connection {
    #[track_caller]
    pub fn open(address: SocketAddr, login: &Login<'_>) -> Self {
        let (mut socket, server_properties) = Socket::greet(address);
        let tune_ok = tune_ok(login, &socket.log_in(login));
        socket.send(0, tune_ok.clone());
        socket.send(0, connection::Open { virtual_host: login.vhost });
        let answer = socket.method();
        assert_eq!(Method::decode(&answer.payload).unwrap().id(), connection::OpenOk::ID);
        let inner = Inner {
            socket,
            server_properties,
            frame_max: tune_ok.frame_max as usize,
            last_channel: 0,
            inbox: VecDeque::new(),
            unfinished: BTreeMap::new(),
        };
        Self { inner: Rc::new(RefCell::new(inner)) }
    }

    /// Whether the broker is ours, not a RabbitMQ.
    pub fn is_leveret(&self) -> bool {
        self.inner.borrow().server_properties.get("leveret").is_some()
    }

    /// Major and minor version of the RabbitMQ that the broker is or is like.
    pub fn version(&self) -> (u32, u32) {
        let inner = self.inner.borrow();
        let version = inner.server_properties.get("version").and_then(FieldValue::as_str).expect("version is text");
        let mut numbers = version.split('.').map(|part| part.parse().expect("version is dotted numbers"));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    /// Opens the channel of the next number.
    #[track_caller]
    pub fn channel(&self) -> Channel {
        let number = self.inner.borrow().last_channel + 1;
        self.inner.borrow_mut().last_channel = number;
        let channel = self.channel_number(number);
        channel.open();
        channel
    }

    /// A channel of this number; not opened.
    pub fn channel_number(&self, number: u16) -> Channel {
        Channel { connection: self.clone(), number }
    }

    pub fn send<'a>(&self, channel: u16, method: impl Into<Method<'a>>) {
        self.inner.borrow_mut().socket.send(channel, method);
    }

    pub fn send_bytes(&self, bytes: &[u8]) {
        self.inner.borrow_mut().socket.send_bytes(bytes);
    }

    /// The next method for the channel, in time; `None` if none comes, or the server has closed the socket.
    #[track_caller]
    fn next_within(&self, channel: u16, limit: Duration) -> Option<Incoming> {
        let mut inner = self.inner.borrow_mut();
        let deadline = Instant::now() + limit;
        loop {
            if let Some(at) = inner.inbox.iter().position(|incoming| incoming.channel == channel) {
                return inner.inbox.remove(at);
            }
            match inner.socket.read(deadline) {
                Input::Frame(frame) => inner.take(frame),
                Input::End | Input::Nothing => return None,
            }
            if let Some(last) = inner.inbox.back()
                && last.channel == 0
                && channel != 0
            {
                panic!("on channel 0 came {:?}", last.method());
            }
        }
    }

    /// The next method for the channel.
    #[track_caller]
    pub fn next(&self, channel: u16) -> Incoming {
        match self.next_within(channel, PATIENCE) {
            Some(incoming) => incoming,
            None => panic!("a method should come on channel {channel}; others: {:?}", self.inner.borrow().inbox),
        }
    }

    /// The server sends connection.close with this; it gets its close-ok and closes the socket.
    #[track_caller]
    pub fn expect_close(&self, code: u16, explanation: &str, id: MethodId) {
        let close = self.next(0);
        assert_eq!(closing(&close.payload), expected_closing("connection.close", code, explanation, id));
        self.send(0, connection::CloseOk {});
        self.expect_eof_within(PATIENCE);
    }

    /// The server sends connection.close: its code, text, and class and method at fault. It is not answered.
    #[track_caller]
    pub fn unanswered_close(&self) -> (u16, String, (u16, u16)) {
        let Closing { code, text, id, .. } = closing(&self.next(0).payload);
        (code, text, id)
    }

    /// The server closes the socket, after no more than what was already on its way.
    #[track_caller]
    pub fn expect_eof_within(&self, limit: Duration) {
        let mut inner = self.inner.borrow_mut();
        let deadline = Instant::now() + limit;
        loop {
            match inner.socket.read(deadline) {
                Input::End => return,
                Input::Frame(frame) => inner.take(frame),
                Input::Nothing => panic!("the server should have closed the socket"),
            }
        }
    }

    /// The kind of the next frame, heartbeats included; `None` if none comes within this time.
    #[track_caller]
    pub fn next_frame_kind(&self, limit: Duration) -> Option<FrameKind> {
        match self.inner.borrow_mut().socket.read(Instant::now() + limit) {
            Input::Frame(frame) => Some(frame.kind),
            Input::Nothing => None,
            Input::End => panic!("the server has closed the socket"),
        }
    }

    /// Nothing comes on any channel.
    #[track_caller]
    pub fn expect_nothing_for(&self, time: Duration) {
        let mut inner = self.inner.borrow_mut();
        assert!(inner.inbox.is_empty(), "nothing should have come: {:?}", inner.inbox);
        inner.socket.expect_nothing_for(time);
    }

    /// Closes the connection as a client should; returns when the server has answered.
    #[track_caller]
    pub fn close(&self) {
        self.send(0, connection::Close { reply_code: 200, reply_text: "bye", class_id: 0, method_id: 0 });
        let answer = self.next(0);
        assert_eq!(answer.method().id(), connection::CloseOk::ID, "{:?}", answer.method());
    }

    /// What came for channels that nobody asked about: there should be nothing.
    #[track_caller]
    pub fn expect_empty_inbox(&self) {
        let inner = self.inner.borrow();
        assert!(inner.inbox.is_empty(), "nothing else should have come: {:?}", inner.inbox);
    }
}

impl Inner {
    /// Takes a frame to where it belongs: a whole method with its content goes into the inbox.
    fn take(&mut self, frame: Frame) {
        assert!(frame.payload.len() + 8 <= self.frame_max, "a frame of {} bytes", frame.payload.len() + 8);
        let (mut incoming, remaining) = match frame.kind {
            FrameKind::Heartbeat => return,
            FrameKind::Method => {
                assert!(!self.unfinished.contains_key(&frame.channel), "a method in the middle of a content");
                let id = Method::decode(&frame.payload).expect("the server sends proper methods").id();
                let incoming = Incoming {
                    channel: frame.channel,
                    payload: frame.payload,
                    properties: Properties::default(),
                    body: Vec::new(),
                };
                if !id.has_content() {
                    return self.inbox.push_back(incoming);
                }
                (incoming, None)
            }
            FrameKind::Header => {
                let (mut incoming, size) = self.unfinished.remove(&frame.channel).expect("a method came first");
                assert_eq!(size, None, "one header per content");
                let header = ContentHeader::decode(&frame.payload).expect("the server sends proper headers");
                assert_eq!((header.class_id, header.weight), (60, 0));
                incoming.properties = header.properties.to_properties().expect("proper properties");
                (incoming, Some(header.body_size))
            }
            FrameKind::Body => {
                let (mut incoming, remaining) = self.unfinished.remove(&frame.channel).expect("a header came first");
                let len = frame.payload.len() as u64;
                let remaining = remaining.expect("a header came first").checked_sub(len);
                incoming.body.extend(frame.payload);
                (incoming, Some(remaining.expect("no more body than announced")))
            }
        };
        if remaining == Some(0) {
            incoming.body.shrink_to_fit();
            self.inbox.push_back(incoming);
        } else {
            self.unfinished.insert(frame.channel, (incoming, remaining));
        }
    }
}

/// A channel number of a connection. Clones are the same channel.
#[derive(Clone)]
pub struct Channel {
    pub connection: Connection,
    pub number: u16,
}

/// Waits for the next method on the channel, which has to match the pattern: the value.
macro_rules! expect {
    ($channel:expr, $pattern:pat => $value:expr) => {{
        let incoming = $channel.next();
        match incoming.method() {
            $pattern => $value,
            other => panic!("something else came on channel {}: {other:?}", $channel.number),
        }
    }};
}

impl Channel {
    pub fn send<'a>(&self, method: impl Into<Method<'a>>) {
        self.connection.send(self.number, method);
    }

    /// The next method on this channel.
    #[track_caller]
    pub fn next(&self) -> Incoming {
        self.connection.next(self.number)
    }

    /// The next method on this channel is this one.
    #[track_caller]
    pub fn expect(&self, id: MethodId) -> Incoming {
        let incoming = self.next();
        assert_eq!(incoming.method().id(), id, "{} should come: {:?}", id.name().unwrap_or("?"), incoming.method());
        incoming
    }

    /// Sends a method, and the next that comes is this answer.
    #[track_caller]
    pub fn call<'a>(&self, method: impl Into<Method<'a>>, answer: MethodId) -> Incoming {
        self.send(method);
        self.expect(answer)
    }

    #[track_caller]
    pub fn open(&self) {
        self.call(channel::Open {}, channel::OpenOk::ID);
    }

    #[track_caller]
    pub fn close(&self) {
        let close = channel::Close { reply_code: 200, reply_text: "bye", class_id: 0, method_id: 0 };
        self.call(close, channel::CloseOk::ID);
    }

    /// The server sends channel.close with this; it is not answered.
    #[track_caller]
    pub fn expect_unanswered_close(&self, code: u16, explanation: &str, id: MethodId) {
        let close = self.next();
        assert_eq!(closing(&close.payload), expected_closing("channel.close", code, explanation, id));
    }

    /// The server sends channel.close with this, and gets its close-ok.
    #[track_caller]
    pub fn expect_close(&self, code: u16, explanation: &str, id: MethodId) {
        self.expect_unanswered_close(code, explanation, id);
        self.send(channel::CloseOk {});
    }

    /// Sends a method that the server answers by closing the channel.
    #[track_caller]
    pub fn refuses<'a>(&self, method: impl Into<Method<'a>>, code: u16, explanation: &str) {
        let method = method.into();
        let id = method.id();
        self.send(method);
        self.expect_close(code, explanation, id);
    }

    /// Sends a method that the server answers by closing the connection.
    #[track_caller]
    pub fn refuses_hard<'a>(&self, method: impl Into<Method<'a>>, code: u16, explanation: &str) {
        let method = method.into();
        let id = method.id();
        self.send(method);
        self.connection.expect_close(code, explanation, id);
    }

    /// All that was sent before has been handled; what came of it on this channel was nothing.
    #[track_caller]
    pub fn expect_quiet(&self) {
        if !self.connection.is_leveret()
            && let Some(incoming) = self.connection.next_within(self.number, QUIET)
        {
            panic!("nothing should come: {:?}", incoming.method());
        }
        self.call(channel::Flow { active: true }, channel::FlowOk::ID);
    }

    #[track_caller]
    pub fn declare(&self, declare: queue::Declare<'_>) -> Declared {
        self.send(declare);
        expect!(self, Method::QueueDeclareOk(ok) => Declared {
            queue: ok.queue.to_owned(),
            ready: ok.message_count,
            consumers: ok.consumer_count,
        })
    }

    /// Name, ready messages and consumers of a queue that exists.
    #[track_caller]
    pub fn look(&self, queue: &str) -> Declared {
        self.declare(queue::Declare { passive: true, ..declare(queue) })
    }

    /// Ready messages of a queue once it has at least so many: RabbitMQ counts a little late.
    #[track_caller]
    pub fn ready(&self, queue: &str, at_least: u32) -> u32 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ready = self.look(queue).ready;
            if ready >= at_least || self.connection.is_leveret() || Instant::now() > deadline {
                return ready;
            }
        }
    }

    /// Whether there is a queue of this name.
    #[track_caller]
    pub fn exists(&self, queue: &str) -> bool {
        self.probe(queue::Declare { passive: true, ..declare(queue) }) != Some(404)
    }

    /// Whether the queue is exclusive to another connection.
    #[track_caller]
    pub fn is_locked(&self, queue: &str) -> bool {
        self.probe(queue::Declare { passive: true, ..declare(queue) }) == Some(405)
    }

    /// Whether there is an exchange of this name.
    #[track_caller]
    pub fn exchange_exists(&self, name: &str) -> bool {
        self.probe(exchange::Declare { passive: true, ..exchange(name, "direct") }) != Some(404)
    }

    /// Sends a method on a channel of its own: the code of the error, if there is one.
    #[track_caller]
    pub fn probe<'a>(&self, method: impl Into<Method<'a>>) -> Option<u16> {
        let probe = self.connection.channel();
        probe.send(method);
        let answer = probe.next();
        if let Method::ChannelClose(close) = answer.method() {
            probe.send(channel::CloseOk {});
            return Some(close.reply_code);
        }
        probe.close();
        None
    }

    /// Deletes a queue: its ready messages.
    #[track_caller]
    pub fn delete(&self, delete: queue::Delete<'_>) -> u32 {
        self.send(delete);
        expect!(self, Method::QueueDeleteOk(ok) => ok.message_count)
    }

    /// Purges a queue: the messages that were ready.
    #[track_caller]
    pub fn purge(&self, queue: &str) -> u32 {
        self.send(purge(queue));
        expect!(self, Method::QueuePurgeOk(ok) => ok.message_count)
    }

    #[track_caller]
    pub fn bind(&self, bind: queue::Bind<'_>) {
        self.call(bind, queue::BindOk::ID);
    }

    #[track_caller]
    pub fn unbind(&self, unbind: queue::Unbind<'_>) {
        self.call(unbind, queue::UnbindOk::ID);
    }

    #[track_caller]
    pub fn declare_exchange(&self, declare: exchange::Declare<'_>) {
        self.call(declare, exchange::DeclareOk::ID);
    }

    #[track_caller]
    pub fn delete_exchange(&self, delete: exchange::Delete<'_>) {
        self.call(delete, exchange::DeleteOk::ID);
    }

    #[track_caller]
    pub fn bind_exchange(&self, bind: exchange::Bind<'_>) {
        self.call(bind, exchange::BindOk::ID);
    }

    #[track_caller]
    pub fn unbind_exchange(&self, unbind: exchange::Unbind<'_>) {
        self.call(unbind, exchange::UnbindOk::ID);
    }

    /// Publishes a message without properties.
    pub fn publish(&self, exchange: &str, routing_key: &str, body: &str) {
        self.publish_with(publish(exchange, routing_key), &Properties::default(), body.as_bytes());
    }

    pub fn publish_properties(&self, exchange: &str, routing_key: &str, properties: &Properties, body: &str) {
        self.publish_with(publish(exchange, routing_key), properties, body.as_bytes());
    }

    pub fn publish_with(&self, method: basic::Publish<'_>, properties: &Properties, body: &[u8]) {
        let mut encoded = bytes::BytesMut::new();
        properties.encode(&mut encoded);
        let mut out = bytes::BytesMut::new();
        put_method_frame(&mut out, self.number, &method.into());
        let frame_max = self.connection.inner.borrow().frame_max as u32;
        put_content(&mut out, self.number, frame_max, &encoded, body);
        self.connection.send_bytes(&out);
    }

    /// Publishes something that the server answers by closing the channel.
    #[track_caller]
    pub fn refuses_publish(&self, method: basic::Publish<'_>, properties: &Properties, code: u16, explanation: &str) {
        self.publish_with(method, properties, b"refused");
        self.expect_close(code, explanation, basic::Publish::ID);
    }

    #[track_caller]
    pub fn confirm_select(&self) {
        self.call(confirm::Select { no_wait: false }, confirm::SelectOk::ID);
    }

    /// The next confirm.
    #[track_caller]
    pub fn confirm(&self) -> Confirm {
        let incoming = self.next();
        match incoming.method() {
            Method::BasicAck(ack) => Confirm::Ack { tag: ack.delivery_tag, multiple: ack.multiple },
            // Its requeue bit means nothing; RabbitMQ sets it.
            Method::BasicNack(nack) => Confirm::Nack { tag: nack.delivery_tag, multiple: nack.multiple },
            other => panic!("a confirm should come: {other:?}"),
        }
    }

    /// Waits until all publishes up to this number are confirmed, each once and none refused.
    #[track_caller]
    pub fn wait_for_confirms(&self, up_to: u64) {
        let mut open: std::collections::BTreeSet<u64> = (1..=up_to).collect();
        while !open.is_empty() {
            match self.confirm() {
                Confirm::Ack { tag, multiple: false } => assert!(open.remove(&tag), "{tag} is confirmed twice"),
                Confirm::Ack { tag, multiple: true } => {
                    assert!(open.contains(&tag), "{tag} is confirmed twice");
                    open = open.split_off(&(tag + 1));
                }
                refused => panic!("{refused:?}"),
            }
        }
    }

    #[track_caller]
    pub fn tx_select(&self) {
        self.call(tx::Select {}, tx::SelectOk::ID);
    }

    #[track_caller]
    pub fn tx_commit(&self) {
        self.call(tx::Commit {}, tx::CommitOk::ID);
    }

    #[track_caller]
    pub fn tx_rollback(&self) {
        self.call(tx::Rollback {}, tx::RollbackOk::ID);
    }

    #[track_caller]
    pub fn qos(&self, prefetch_count: u16, global: bool) {
        self.call(basic::Qos { prefetch_size: 0, prefetch_count, global }, basic::QosOk::ID);
    }

    /// Starts a consumer: its tag.
    #[track_caller]
    pub fn consume(&self, consume: basic::Consume<'_>) -> String {
        self.send(consume);
        expect!(self, Method::BasicConsumeOk(ok) => ok.consumer_tag.to_owned())
    }

    /// Cancels a consumer. Deliveries that were on their way are dropped.
    #[track_caller]
    pub fn cancel(&self, consumer_tag: &str) {
        self.send(basic::Cancel { consumer_tag, no_wait: false });
        loop {
            let incoming = self.next();
            match incoming.method() {
                Method::BasicDeliver(deliver) if deliver.consumer_tag == consumer_tag => {}
                Method::BasicCancelOk(ok) => return assert_eq!(ok.consumer_tag, consumer_tag),
                other => panic!("cancel-ok should come: {other:?}"),
            }
        }
    }

    /// The next method, which has to be basic.deliver.
    #[track_caller]
    pub fn delivery(&self) -> Delivery {
        let incoming = self.next();
        match incoming.method() {
            Method::BasicDeliver(deliver) => Delivery {
                consumer_tag: deliver.consumer_tag.to_owned(),
                tag: deliver.delivery_tag,
                redelivered: deliver.redelivered,
                exchange: deliver.exchange.to_owned(),
                routing_key: deliver.routing_key.to_owned(),
                left: 0,
                properties: incoming.properties.clone(),
                body: incoming.body.clone(),
            },
            other => panic!("a delivery should come: {other:?}"),
        }
    }

    /// The bodies of the next deliveries.
    #[track_caller]
    pub fn bodies(&self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.delivery().text().to_owned()).collect()
    }

    /// The next method, which has to be basic.return with 312.
    #[track_caller]
    pub fn returned(&self) -> Delivery {
        let incoming = self.next();
        match incoming.method() {
            Method::BasicReturn(returned) => {
                assert_eq!((returned.reply_code, returned.reply_text), (312, "NO_ROUTE"));
                Delivery {
                    consumer_tag: String::new(),
                    tag: 0,
                    redelivered: false,
                    exchange: returned.exchange.to_owned(),
                    routing_key: returned.routing_key.to_owned(),
                    left: 0,
                    properties: incoming.properties.clone(),
                    body: incoming.body.clone(),
                }
            }
            other => panic!("a returned message should come: {other:?}"),
        }
    }

    /// basic.get: the message, if there is one.
    #[track_caller]
    pub fn get(&self, get: basic::Get<'_>) -> Option<Delivery> {
        self.send(get);
        let incoming = self.next();
        match incoming.method() {
            Method::BasicGetEmpty(_) => None,
            Method::BasicGetOk(ok) => Some(Delivery {
                consumer_tag: String::new(),
                tag: ok.delivery_tag,
                redelivered: ok.redelivered,
                exchange: ok.exchange.to_owned(),
                routing_key: ok.routing_key.to_owned(),
                left: ok.message_count,
                properties: incoming.properties.clone(),
                body: incoming.body.clone(),
            }),
            other => panic!("get-ok or get-empty should come: {other:?}"),
        }
    }

    /// Takes a message that is there, unacked. Waits a little where the queue may not have it yet.
    #[track_caller]
    pub fn take(&self, queue: &str) -> Delivery {
        self.wait_for(basic::Get { queue, no_ack: false })
    }

    /// Takes a message that is there, for good.
    #[track_caller]
    pub fn pop(&self, queue: &str) -> Delivery {
        self.wait_for(basic::Get { queue, no_ack: true })
    }

    #[track_caller]
    fn wait_for(&self, get: basic::Get<'_>) -> Delivery {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.get(get.clone()) {
                Some(delivery) => return delivery,
                None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                None => panic!("a message should be in {}", get.queue),
            }
        }
    }

    /// Takes everything that is ready, for good: the bodies in order.
    #[track_caller]
    pub fn drain(&self, queue: &str) -> Vec<String> {
        let next = || self.get(basic::Get { queue, no_ack: true });
        std::iter::from_fn(next).map(|delivery| delivery.text().to_owned()).collect()
    }

    pub fn ack(&self, delivery_tag: u64) {
        self.send(basic::Ack { delivery_tag, multiple: false });
    }

    pub fn ack_multiple(&self, delivery_tag: u64) {
        self.send(basic::Ack { delivery_tag, multiple: true });
    }

    pub fn nack(&self, delivery_tag: u64, multiple: bool, requeue: bool) {
        self.send(basic::Nack { delivery_tag, multiple, requeue });
    }

    pub fn reject(&self, delivery_tag: u64, requeue: bool) {
        self.send(basic::Reject { delivery_tag, requeue });
    }
}
