//! A client of the simulation: what it has sent, what came back, and what it may expect.
//!
//! Everything that arrives is checked against the rules of the protocol as a client sees them; a breach
//! panics. The client hears of the end of a channel only when it reads of it, the checks ([`Books`]) at once.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf as _, Bytes, BytesMut};
use leveret::model::broker::Broker;
use leveret::model::ids::{ConnectionKey, QueueKey};
use leveret::model::timer::Millis;
use leveret_protocol::{ContentHeader, Decoder, FrameKind, Method, Properties, split_frame};

use super::sim_books::Books;
use super::sim_channel::{ClientChannel, ClientConsumer, Held, Request};
use super::sim_script::Wire;

pub struct Client {
    pub key: ConnectionKey,
    pub frame_max: u32,
    /// What the server would make of our bytes.
    decoder: Decoder,
    input: BytesMut,
    content: Option<Content>,
    pub channels: BTreeMap<u16, ClientChannel>,
    pub state: ClientState,
    /// All that came, for whoever asks.
    pub received: Vec<Wire>,
    /// Bodies of publishes that were confirmed, for the check of the store.
    pub confirmed: Vec<String>,
    /// Queues whose declare-ok was read, for the same.
    pub declared: Vec<QueueKey>,
    /// The broker has something for us.
    pub woken: bool,
    /// It has something for us that waits for the store.
    pub held: bool,
    /// A channel of ours or a queue has ended since all was read: the broker has encoded more than we read.
    pub unread_end: bool,
    consumer_count: u64,
    /// Channels whose close crossed the server's: it is answered too.
    crossed: BTreeSet<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientState {
    Running,
    /// The server has closed the connection or channel; we owe close-ok.
    Failed,
    /// We have asked for the close.
    Closing,
}

/// A content that is coming in.
struct Content {
    wire: Wire,
    properties: Option<Properties>,
    body: BytesMut,
    size: usize,
}

impl Client {
    pub fn new(key: ConnectionKey, frame_max: u32) -> Self {
        Self {
            key,
            frame_max,
            decoder: Decoder::new(frame_max, 16 << 20),
            input: BytesMut::new(),
            content: None,
            channels: BTreeMap::new(),
            state: ClientState::Running,
            received: Vec::new(),
            confirmed: Vec::new(),
            declared: Vec::new(),
            woken: true,
            held: false,
            unread_end: false,
            consumer_count: 0,
            crossed: BTreeSet::new(),
        }
    }

    /// Sends a method with its content, and notes what is to be expected. False if no client would send it now.
    pub fn send(&mut self, wire: &Wire, broker: &mut Broker, now: Millis, books: &mut Books) -> bool {
        let owed = match wire.channel {
            0 => self.state == ClientState::Failed,
            number => self.channels.get(&number).is_some_and(|channel| channel.state == ClientState::Failed),
        };
        let closing = self.crossed.contains(&wire.channel)
            || self.channels.get(&wire.channel).is_some_and(|channel| channel.state == ClientState::Closing);
        match wire.method() {
            // What no client would do, however wrong: answer what it has not read, or not wait for close-ok.
            Method::ChannelCloseOk(_) | Method::ConnectionCloseOk(_) if !owed => return false,
            Method::ChannelOpen(_) | Method::ChannelClose(_) if closing => return false,
            _ => {}
        }
        let was_open = broker.is_channel_open(self.key, wire.channel);
        let mut bytes = BytesMut::new();
        wire.encode(self.frame_max, &mut bytes);
        let mut consumed = 0;
        while let Some(event) = self.decoder.next(&bytes[consumed..], &mut consumed).expect("sound bytes") {
            broker.client(self.key, event, now);
        }
        assert_eq!(consumed, bytes.len());
        let is_open = broker.is_channel_open(self.key, wire.channel);
        if wire.channel == 0 {
            if let Method::ConnectionClose(_) = wire.method() {
                self.state = ClientState::Closing;
            }
            return true;
        }
        match wire.method() {
            Method::ChannelOpen(_) if is_open && !was_open => {
                self.channels.insert(wire.channel, ClientChannel::new());
            }
            Method::ChannelClose(_) if was_open => {
                self.channels.get_mut(&wire.channel).expect("it is open").state = ClientState::Closing;
            }
            Method::ChannelClose(_) if self.channels.contains_key(&wire.channel) => {
                self.crossed.insert(wire.channel);
            }
            Method::ChannelCloseOk(_) => drop(self.channels.remove(&wire.channel)),
            _ if was_open && is_open => self.note(wire, broker, books),
            _ => {}
        }
        true
    }

    /// Notes what a method that was accepted means for this client.
    fn note(&mut self, wire: &Wire, broker: &Broker, books: &mut Books) {
        let channel = self.channels.get_mut(&wire.channel).expect("it is open");
        let named = |name: &str, last: &str| -> Option<QueueKey> {
            broker.queue_key(if name.is_empty() { last } else { name })
        };
        let request = match wire.method() {
            Method::BasicPublish(_) => {
                if let Some(confirms) = &mut channel.confirms {
                    confirms.published += 1;
                    confirms.unanswered.insert(confirms.published, wire.body_name());
                }
                return;
            }
            Method::BasicAck(ack) => {
                let tags = channel.covered(ack.delivery_tag, ack.multiple);
                return channel.settle(tags, false, books);
            }
            Method::BasicNack(nack) => {
                let tags = channel.covered(nack.delivery_tag, nack.multiple);
                return channel.settle(tags, nack.requeue, books);
            }
            Method::BasicReject(reject) => {
                let tags = channel.covered(reject.delivery_tag, false);
                return channel.settle(tags, reject.requeue, books);
            }
            Method::BasicRecover(_) | Method::BasicRecoverAsync(_) => {
                for tag in channel.settleable() {
                    let held = channel.held.remove(&tag).expect("it is held");
                    books.returned(held.queue, &held.body);
                }
                match wire.method() {
                    Method::BasicRecover(_) => Request::Plain("basic.recover-ok"),
                    _ => return,
                }
            }
            Method::BasicConsume(consume) => {
                self.consumer_count += 1;
                let consumer = ClientConsumer {
                    id: self.consumer_count,
                    queue: named(consume.queue, &channel.last_queue).expect("consume was accepted"),
                    no_ack: consume.no_ack,
                    prefetch: channel.prefetch,
                };
                let tag = Some(consume.consumer_tag.to_owned()).filter(|tag| !tag.is_empty());
                if consume.no_wait {
                    channel.consumers.insert(tag.expect("no-wait with a tag"), consumer);
                    return;
                }
                Request::Consume(tag, consumer)
            }
            Method::BasicCancel(cancel) => Request::Cancel(cancel.consumer_tag.to_owned()),
            Method::BasicGet(get) => Request::Get {
                queue: named(get.queue, &channel.last_queue).expect("get was accepted"),
                no_ack: get.no_ack,
            },
            Method::BasicQos(qos) => {
                if !qos.global {
                    channel.prefetch = qos.prefetch_count;
                }
                Request::Qos(qos)
            }
            Method::ConfirmSelect(select) => {
                channel.confirms.get_or_insert_default();
                if select.no_wait {
                    return;
                }
                Request::Plain("confirm.select-ok")
            }
            Method::TxSelect(_) => {
                channel.tx = true;
                Request::Plain("tx.select-ok")
            }
            Method::TxCommit(_) => {
                for tag in channel.settled_in_tx() {
                    let held = channel.held.remove(&tag).expect("it is held");
                    if held.settled == Some(true) {
                        books.returned(held.queue, &held.body);
                    }
                }
                Request::Plain("tx.commit-ok")
            }
            Method::TxRollback(_) => {
                for held in channel.held.values_mut() {
                    held.settled = None;
                }
                Request::Plain("tx.rollback-ok")
            }
            Method::QueueDeclare(declare) => {
                channel.last_queue = declare.queue.to_owned();
                if declare.no_wait {
                    return;
                }
                Request::Declare(broker.queue_key(declare.queue))
            }
            other => match reply_to(&other) {
                Some(reply) => Request::Plain(reply),
                None => return,
            },
        };
        channel.waiting_for.push_back(request);
    }

    /// Bytes came in.
    pub fn read(&mut self, bytes: &[u8], broker: &Broker, books: &mut Books) {
        self.input.extend_from_slice(bytes);
        loop {
            let input = std::mem::take(&mut self.input);
            let Some((frame, used)) = split_frame(&input, 0).expect("frames are sound") else {
                self.input = input;
                return;
            };
            assert!(self.frame_max == 0 || frame.kind != FrameKind::Body || used <= self.frame_max as usize);
            let done = match frame.kind {
                FrameKind::Heartbeat => None,
                FrameKind::Method => {
                    assert!(self.content.is_none(), "a method within a content");
                    let payload = Bytes::copy_from_slice(frame.payload);
                    let wire = Wire { channel: frame.channel, payload, content: None };
                    if wire.method().has_content() {
                        self.content = Some(Content { wire, properties: None, body: BytesMut::new(), size: 0 });
                        None
                    } else {
                        Some(wire)
                    }
                }
                FrameKind::Header | FrameKind::Body => self.content_frame(frame.channel, frame.kind, frame.payload),
            };
            let mut input = input;
            input.advance(used);
            self.input = input;
            if let Some(wire) = done {
                self.receive(&wire, broker, books);
                self.received.push(wire);
            }
        }
    }

    fn content_frame(&mut self, channel: u16, kind: FrameKind, payload: &[u8]) -> Option<Wire> {
        let content = self.content.as_mut().expect("content follows its method");
        assert_eq!(channel, content.wire.channel, "a content is contiguous");
        if kind == FrameKind::Header {
            let header = ContentHeader::decode(payload).expect("headers are sound");
            content.properties = Some(header.properties.to_properties().expect("properties are sound"));
            content.size = header.body_size as usize;
        } else {
            content.body.extend_from_slice(payload);
        }
        if content.body.len() < content.size {
            return None;
        }
        let Content { wire, properties, body, .. } = self.content.take()?;
        Some(wire.with_content(properties.expect("a header came first"), body.freeze()))
    }

    fn receive(&mut self, wire: &Wire, broker: &Broker, books: &mut Books) {
        let method = wire.method();
        if wire.channel == 0 {
            if let Method::ConnectionClose(_) = method {
                self.state = ClientState::Failed;
            }
            return;
        }
        if matches!(method, Method::ChannelCloseOk(_)) && self.crossed.remove(&wire.channel) {
            return;
        }
        let Some(channel) = self.channels.get_mut(&wire.channel) else {
            panic!("{wire:?} on a channel that is not open")
        };
        assert_ne!(channel.state, ClientState::Failed, "{wire:?} after channel.close");
        match method {
            Method::ChannelClose(_) => {
                assert!(channel.ended, "channel.close for a channel that is open");
                channel.state = ClientState::Failed;
            }
            Method::ChannelCloseOk(_) => {
                assert_eq!(channel.state, ClientState::Closing, "close-ok that nobody asked for");
                self.channels.remove(&wire.channel);
            }
            Method::BasicDeliver(deliver) => {
                let Some(consumer) = channel.consumers.get(deliver.consumer_tag) else {
                    panic!("{wire:?} for a consumer that is not there")
                };
                let credit = channel.has_credit(consumer);
                assert!(credit || channel.ended, "{wire:?} is more than the prefetch allows");
                let (queue, no_ack, id) = (consumer.queue, consumer.no_ack, consumer.id);
                let body = wire.body_name();
                if let Some((level, last)) = books.delivered(queue, &body, deliver.redelivered, &channel.last_fresh) {
                    channel.last_fresh.insert((queue, level), last);
                }
                let held = Held { queue, body, consumer: id, settled: None };
                channel.take_in(deliver.delivery_tag, held, no_ack, books);
            }
            Method::BasicGetOk(get_ok) => match channel.waiting_for.pop_front() {
                Some(Request::Get { queue, no_ack }) => {
                    let body = wire.body_name();
                    if let Some((level, last)) = books.delivered(queue, &body, get_ok.redelivered, &channel.last_fresh)
                    {
                        channel.last_fresh.insert((queue, level), last);
                    }
                    let held = Held { queue, body, consumer: 0, settled: None };
                    channel.take_in(get_ok.delivery_tag, held, no_ack, books);
                }
                other => panic!("get-ok where {other:?} was due"),
            },
            Method::BasicGetEmpty(_) => match channel.waiting_for.pop_front() {
                Some(Request::Get { .. }) => {}
                other => panic!("get-empty where {other:?} was due"),
            },
            Method::BasicConsumeOk(ok) => match channel.waiting_for.pop_front() {
                Some(Request::Consume(tag, consumer)) => {
                    let tag = tag.unwrap_or_else(|| ok.consumer_tag.to_owned());
                    assert_eq!(tag, ok.consumer_tag);
                    channel.consumers.insert(tag, consumer);
                }
                other => panic!("consume-ok where {other:?} was due"),
            },
            Method::BasicCancelOk(ok) => match channel.waiting_for.pop_front() {
                Some(Request::Cancel(tag)) if tag == ok.consumer_tag => {
                    channel.consumers.remove(&tag);
                }
                other => panic!("cancel-ok where {other:?} was due"),
            },
            Method::BasicCancel(cancel) => {
                let consumer = channel.consumers.remove(cancel.consumer_tag).expect("a consumer that we have");
                assert!(!books.exists(consumer.queue, broker), "basic.cancel although the queue exists");
            }
            Method::BasicQosOk(_) => match channel.waiting_for.pop_front() {
                Some(Request::Qos(qos)) => channel.global_prefetch = if qos.global { qos.prefetch_count } else { 0 },
                other => panic!("qos-ok where {other:?} was due"),
            },
            Method::BasicAck(ack) => {
                let confirmed = channel.confirmed(ack.delivery_tag, ack.multiple);
                self.confirmed.extend(confirmed);
            }
            Method::BasicNack(nack) => drop(channel.confirmed(nack.delivery_tag, nack.multiple)),
            Method::BasicReturn(_) => {}
            other => match channel.waiting_for.pop_front() {
                Some(Request::Plain(name)) if name == other.name() => {}
                Some(Request::Declare(queue)) if other.name() == "queue.declare-ok" => self.declared.extend(queue),
                due => panic!("{} where {due:?} was due", other.name()),
            },
        }
    }
}

/// The reply to a method that is answered with nothing but its -ok.
fn reply_to(method: &Method<'_>) -> Option<&'static str> {
    Some(match method {
        Method::ExchangeDeclare(declare) if !declare.no_wait => "exchange.declare-ok",
        Method::ExchangeDelete(delete) if !delete.no_wait => "exchange.delete-ok",
        Method::ExchangeBind(bind) if !bind.no_wait => "exchange.bind-ok",
        Method::ExchangeUnbind(unbind) if !unbind.no_wait => "exchange.unbind-ok",
        Method::QueueBind(bind) if !bind.no_wait => "queue.bind-ok",
        Method::QueueUnbind(_) => "queue.unbind-ok",
        Method::QueuePurge(purge) if !purge.no_wait => "queue.purge-ok",
        Method::QueueDelete(delete) if !delete.no_wait => "queue.delete-ok",
        Method::ChannelFlow(_) => "channel.flow-ok",
        _ => return None,
    })
}
