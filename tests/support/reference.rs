//! A second broker, slow and obvious, to compare the real one with: plain lists and linear searches, nothing
//! shared with `src/model`. Classic queues and the four AMQP exchange types; section numbers are the reference's.
//!
//! What the rules leave open it does as the real broker was seen to do (see [`Observed`]): which of the
//! consumers with credit gets a message, and in which order the queues of a channel are served. It
//! judges whether that was allowed. Where the rules leave open what cannot be seen, `unclear` says so, and the
//! comparison ends there.

mod dead_letter;
mod declare;
mod dispatch;
mod messages;
mod queue;
mod routing;
mod settle;

use bytes::Bytes;
use leveret_protocol::{
    FieldTable, Method, MethodId, Properties, ReplyCode, basic, channel, confirm, connection, reply_text, tx,
};

use self::dead_letter::Death;
use self::queue::{Consumer, Message, Queue};
use super::sim_script::Wire;

#[derive(Default)]
pub struct Reference {
    pub now: u64,
    exchanges: Vec<Exchange>,
    bindings: Vec<Binding>,
    queues: Vec<Queue>,
    connections: Vec<Option<Connection>>,
    /// What the clients get.
    pub sent: Vec<Sent>,
    /// What the clients of the real broker got in this step.
    pub observed: Vec<Observed>,
    deaths: Vec<Death>,
    /// Consumers that had credit when their message went elsewhere: (queue, consumer, what happened).
    passed_over: Vec<(u64, u64, String)>,
    /// Queues where a message expired in this step, and whether it had been delivered before.
    expired: Vec<(u64, bool)>,
    unfair: Option<String>,
    ids: u64,
    /// Commands of this turn.
    commands: usize,
    /// A message is not delivered yet, because others of its channel come first.
    waits_for_others: bool,
    /// The channel that this turn belongs to, if it ends in the turn; 0 if the connection does.
    pub ending: Option<(usize, u16)>,
    /// Queues do not go with their consumers.
    stopping: bool,
    /// Why the rest cannot be compared.
    pub unclear: Option<&'static str>,
}

/// Something sent to a client.
pub struct Sent {
    pub connection: usize,
    pub wire: Wire,
    /// The delivery that it is.
    pub held: Option<u64>,
}

/// A delivery of the real broker.
pub struct Observed {
    pub connection: usize,
    pub channel: u16,
    pub consumer_tag: String,
    pub exchange: String,
    pub routing_key: String,
    /// The properties are canonical.
    pub content: (Properties, Bytes),
    pub used: bool,
}

struct Exchange {
    name: String,
    kind: String,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: FieldTable,
}

#[derive(Clone, PartialEq)]
struct Binding {
    source: String,
    to_queue: bool,
    destination: String,
    key: String,
    /// Sorted by name.
    arguments: FieldTable,
}

#[derive(Default)]
struct Connection {
    /// We have sent connection.close.
    closing: bool,
    channels: Vec<Channel>,
}

#[derive(Default)]
struct Channel {
    number: u16,
    /// We have sent channel.close.
    closing: bool,
    delivery_tag: u64,
    prefetch: u16,
    global_prefetch: u16,
    unacked: Vec<Unacked>,
    /// Publishes since confirm.select.
    confirms: Option<u64>,
    /// Publishes of the transaction, each with the queues it was routed to.
    tx: Option<Vec<(Vec<u64>, Publish)>>,
    /// It commits: what was settled in it takes no slot of the channel any more.
    commits: bool,
    /// Its settlements, with the ids of the deliveries.
    settlements: Vec<(Settlement, Vec<u64>)>,
    last_queue: String,
}

/// A delivery that waits for its ack.
struct Unacked {
    id: u64,
    tag: u64,
    queue: u64,
    /// 0 for basic.get.
    consumer: u64,
    message: Message,
    /// The client has it, and can mean it.
    read: bool,
    /// In the transaction.
    settled: bool,
}

impl Unacked {
    fn is_open(&self) -> bool {
        self.read && !self.settled
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Settlement {
    Ack,
    Requeue,
    Discard,
}

#[derive(Clone)]
struct Publish {
    exchange: String,
    routing_key: String,
    mandatory: bool,
    properties: Properties,
    body: Bytes,
    ttl: Option<u64>,
    bcc: Vec<String>,
}

/// An error for the client.
struct Fault {
    code: ReplyCode,
    text: String,
}

type Outcome = Result<(), Fault>;

fn fault(code: ReplyCode, text: impl Into<String>) -> Outcome {
    Err(Fault { code, text: text.into() })
}

fn of_queue(name: &str) -> String {
    format!("queue '{name}' in vhost '/'")
}

fn of_exchange(name: &str) -> String {
    format!("exchange '{name}' in vhost '/'")
}

impl Reference {
    pub fn new(now: u64) -> Self {
        let mut reference = Self { now, ..Self::default() };
        let predeclared = [
            ("", "direct"),
            ("amq.direct", "direct"),
            ("amq.fanout", "fanout"),
            ("amq.topic", "topic"),
            ("amq.headers", "headers"),
            ("amq.match", "headers"),
            ("amq.rabbitmq.trace", "topic"),
        ];
        for (name, kind) in predeclared {
            reference.exchanges.push(Exchange {
                name: name.to_owned(),
                kind: kind.to_owned(),
                durable: true,
                auto_delete: false,
                internal: name == "amq.rabbitmq.trace",
                arguments: FieldTable::new(),
            });
        }
        reference
    }

    fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    pub fn open(&mut self, connection: usize) {
        if self.connections.len() <= connection {
            self.connections.resize_with(connection + 1, || None);
        }
        if self.connections[connection].is_none() {
            self.connections[connection] = Some(Connection::default());
            self.send(connection, 0, connection::OpenOk {}.into());
        }
    }

    pub fn lost(&mut self, connection: usize) {
        if self.connections.get(connection).is_some_and(Option::is_some) {
            self.end_channels(connection);
            self.connections[connection] = None;
            self.process_deaths();
        }
    }

    /// What a client sent: one method with its content.
    pub fn client(&mut self, connection: usize, wire: &Wire) {
        let method = wire.method();
        self.commands += 1;
        let Some(Some(state)) = self.connections.get_mut(connection) else { return };
        if state.closing {
            match method {
                Method::ConnectionCloseOk(_) if wire.channel == 0 => self.connections[connection] = None,
                Method::ConnectionClose(_) if wire.channel == 0 => {
                    self.send(connection, 0, connection::CloseOk {}.into());
                }
                _ => {}
            }
            return;
        }
        let result = match state.channels.iter().find(|channel| channel.number == wire.channel) {
            _ if wire.channel == 0 => self.on_channel_0(connection, &method),
            Some(channel) if channel.closing => self.on_closing_channel(connection, wire.channel, &method),
            Some(_) => self.on_channel(connection, wire, &method),
            None => match method {
                Method::ChannelOpen(_) => {
                    state.channels.push(Channel { number: wire.channel, ..Channel::default() });
                    self.send(connection, wire.channel, channel::OpenOk {}.into());
                    Ok(())
                }
                _ => fault(ReplyCode::ChannelError, "expected 'channel.open'"),
            },
        };
        if let Err(fault) = result {
            self.close_because(connection, wire.channel, method.id(), &fault);
        }
        self.process_deaths();
    }

    fn close_because(&mut self, connection: usize, number: u16, id: MethodId, fault: &Fault) {
        let text = reply_text(fault.code, &fault.text);
        let (reply_code, reply_text) = (fault.code.code(), text.as_str());
        let (class_id, method_id) = (id.class, id.method);
        if number == 0 || fault.code.is_hard() {
            self.end_channels(connection);
            self.connection(connection).closing = true;
            let close = connection::Close { reply_code, reply_text, class_id, method_id };
            self.send(connection, 0, close.into());
        } else {
            self.end_channel(connection, number);
            let closing = Channel { number, closing: true, ..Channel::default() };
            self.connection(connection).channels.push(closing);
            let close = channel::Close { reply_code, reply_text, class_id, method_id };
            self.send(connection, number, close.into());
        }
    }

    fn on_channel_0(&mut self, connection: usize, method: &Method<'_>) -> Outcome {
        if !matches!(method, Method::ConnectionClose(_)) {
            return fault(ReplyCode::ChannelError, "unexpected method in connection state running");
        }
        self.end_channels(connection);
        self.send(connection, 0, connection::CloseOk {}.into());
        self.connections[connection] = None;
        Ok(())
    }

    /// §3.11: the client owes channel.close-ok.
    fn on_closing_channel(&mut self, connection: usize, number: u16, method: &Method<'_>) -> Outcome {
        match method {
            Method::ChannelOpen(_) => return fault(ReplyCode::ChannelError, "second 'channel.open' seen"),
            Method::ChannelCloseOk(_) => {
                self.connection(connection).channels.retain(|channel| channel.number != number);
            }
            Method::ChannelClose(_) => self.send(connection, number, channel::CloseOk {}.into()),
            _ => {}
        }
        Ok(())
    }

    fn on_channel(&mut self, connection: usize, wire: &Wire, method: &Method<'_>) -> Outcome {
        let at = (connection, wire.channel);
        // Publishes and settlements of one turn are looked at together; everything else sees their result.
        match method {
            Method::BasicPublish(publish) => return self.publish(at, publish, wire),
            Method::BasicAck(ack) => return self.settle(at, ack.delivery_tag, ack.multiple, Settlement::Ack),
            Method::BasicNack(nack) => {
                let settlement = if nack.requeue { Settlement::Requeue } else { Settlement::Discard };
                return self.settle(at, nack.delivery_tag, nack.multiple, settlement);
            }
            Method::BasicReject(reject) => {
                let settlement = if reject.requeue { Settlement::Requeue } else { Settlement::Discard };
                return self.settle(at, reject.delivery_tag, false, settlement);
            }
            _ => self.dispatch_all(),
        }
        match method {
            Method::ChannelOpen(_) => return fault(ReplyCode::ChannelError, "second 'channel.open' seen"),
            Method::ChannelClose(_) => {
                self.end_channel(connection, wire.channel);
                self.reply(at, channel::CloseOk {}.into());
            }
            Method::ChannelFlow(flow) if flow.active => self.reply(at, channel::FlowOk { active: true }.into()),
            Method::ChannelFlow(_) => return fault(ReplyCode::NotImplemented, "active=false"),
            Method::ExchangeDeclare(declare) => return self.exchange_declare(at, declare),
            Method::ExchangeDelete(delete) => return self.exchange_delete(at, delete),
            Method::ExchangeBind(bind) => {
                let (source, destination) = (bind.source, bind.destination);
                return self.bind(at, source, false, destination, bind.routing_key, &bind.arguments);
            }
            Method::ExchangeUnbind(unbind) => {
                let (source, destination) = (unbind.source, unbind.destination);
                return self.unbind(at, source, false, destination, unbind.routing_key, &unbind.arguments);
            }
            Method::QueueDeclare(declare) => return self.queue_declare(at, declare),
            Method::QueueBind(bind) => {
                return self.bind(at, bind.exchange, true, bind.queue, bind.routing_key, &bind.arguments);
            }
            Method::QueueUnbind(unbind) => {
                return self.unbind(at, unbind.exchange, true, unbind.queue, unbind.routing_key, &unbind.arguments);
            }
            Method::QueuePurge(purge) => return self.queue_purge(at, purge),
            Method::QueueDelete(delete) => return self.queue_delete(at, delete),
            Method::BasicQos(qos) => return self.qos(at, qos),
            Method::BasicConsume(consume) => return self.consume(at, consume),
            Method::BasicCancel(cancel) => {
                self.cancel(at, cancel.consumer_tag);
                self.reply(at, basic::CancelOk { consumer_tag: cancel.consumer_tag }.into());
            }
            Method::BasicGet(get) => return self.get(at, get),
            Method::BasicRecover(recover) => {
                self.recover(at, recover.requeue)?;
                self.reply(at, basic::RecoverOk {}.into());
            }
            Method::BasicRecoverAsync(recover) => return self.recover(at, recover.requeue),
            Method::ConfirmSelect(_) if self.channel(at).tx.is_some() => {
                return fault(ReplyCode::PreconditionFailed, "cannot switch from tx to confirm mode");
            }
            Method::ConfirmSelect(_) => {
                self.channel(at).confirms.get_or_insert(0);
                self.reply(at, confirm::SelectOk {}.into());
            }
            Method::TxSelect(_) if self.channel(at).confirms.is_some() => {
                return fault(ReplyCode::PreconditionFailed, "cannot switch from confirm to tx mode");
            }
            Method::TxSelect(_) => {
                self.channel(at).tx.get_or_insert_default();
                self.reply(at, tx::SelectOk {}.into());
            }
            Method::TxCommit(_) => return self.commit(at),
            Method::TxRollback(_) => return self.rollback(at),
            other => panic!("the reference does not know {}", other.name()),
        }
        Ok(())
    }

    fn connection(&mut self, connection: usize) -> &mut Connection {
        self.connections[connection].as_mut().expect("the connection is open")
    }

    fn channel(&mut self, (connection, number): (usize, u16)) -> &mut Channel {
        let channels = &mut self.connection(connection).channels;
        channels.iter_mut().find(|channel| channel.number == number).expect("the channel is open")
    }

    fn queue(&mut self, id: u64) -> Option<&mut Queue> {
        self.queues.iter_mut().find(|queue| queue.id == id)
    }

    /// Every consumer of every queue.
    fn consumers(&self) -> impl Iterator<Item = &Consumer> {
        self.queues.iter().flat_map(|queue| &queue.consumers)
    }

    fn send(&mut self, connection: usize, channel: u16, method: Method<'_>) {
        self.sent.push(Sent { connection, wire: Wire::new(channel, &method), held: None });
    }

    fn reply(&mut self, (connection, channel): (usize, u16), method: Method<'_>) {
        self.send(connection, channel, method);
    }

    fn end_channels(&mut self, connection: usize) {
        let mut numbers: Vec<u16> = self.connection(connection).channels.iter().map(|channel| channel.number).collect();
        numbers.sort_unstable();
        for number in numbers {
            self.end_channel(connection, number);
        }
        let exclusive: Vec<u64> =
            self.queues.iter().filter(|queue| queue.owner == Some(connection)).map(|queue| queue.id).collect();
        for queue in exclusive {
            self.delete_queue(queue);
        }
    }

    /// §3.11: consumers go, then what the channel held unacked goes back.
    fn end_channel(&mut self, connection: usize, number: u16) {
        let at = (connection, number);
        let channel = std::mem::take(self.channel(at));
        self.connection(connection).channels.retain(|channel| channel.number != 0);
        let own: Vec<(u64, u64)> = self
            .consumers()
            .filter(|consumer| (consumer.connection, consumer.channel) == at)
            .map(|consumer| (consumer.queue, consumer.id))
            .collect();
        for (queue, consumer) in &own {
            self.remove_consumer(*queue, *consumer);
        }
        self.requeue(channel.unacked);
        for (queue, _) in own {
            self.consumer_left(queue);
        }
    }

    /// The delivery has another tag than was thought: which one it gets is not laid down when several come at once.
    pub fn adopt(&mut self, (connection, number): (usize, u16), held: u64, tag: u64) {
        let Some(Some(state)) = self.connections.get_mut(connection) else { return };
        let Some(channel) = state.channels.iter_mut().find(|channel| channel.number == number) else { return };
        channel.unacked.iter_mut().filter(|unacked| unacked.id == held).for_each(|unacked| unacked.tag = tag);
        channel.unacked.sort_by_key(|unacked| unacked.tag);
    }

    /// The clients have read everything.
    pub fn note_read(&mut self) {
        for channel in self.connections.iter_mut().flatten().flat_map(|connection| &mut connection.channels) {
            channel.unacked.iter_mut().for_each(|unacked| unacked.read = true);
        }
    }

    /// The tags that a channel may settle, for each open channel.
    pub fn open_tags(&self, connection: usize) -> Vec<(u16, Vec<u64>)> {
        let Some(Some(state)) = self.connections.get(connection) else { return Vec::new() };
        let open = state.channels.iter().filter(|channel| !channel.closing);
        let tags = |channel: &Channel| {
            channel.unacked.iter().filter(|unacked| unacked.is_open()).map(|unacked| unacked.tag).collect()
        };
        open.map(|channel| (channel.number, tags(channel))).collect()
    }

    /// §16: the broker starts again. All that was committed is there.
    pub fn restart(&mut self, clean: bool) {
        self.stopping = true;
        for connection in 0..self.connections.len() {
            if self.connections[connection].is_none() {
                continue;
            }
            if clean {
                self.end_channels(connection);
            }
            for channel in self.connections[connection].take().expect("just seen").channels {
                channel.unacked.into_iter().for_each(|unacked| self.put_back(unacked));
            }
        }
        self.stopping = false;
        self.sent.clear();
        if clean {
            self.look_at_all_heads();
        }
        if !self.deaths.is_empty() {
            self.unclear = Some("the order in which connections end when the broker stops");
        }
        self.queues.retain(|queue| queue.durable && queue.owner.is_none());
        self.exchanges.retain(|exchange| exchange.durable);
        let (queues, exchanges) = (&self.queues, &self.exchanges);
        self.bindings.retain(|binding| {
            let is_exchange = |name: &str| exchanges.iter().any(|exchange| exchange.name == name);
            let is_queue = |name: &str| queues.iter().any(|queue| queue.name == name);
            let to = &binding.destination;
            is_exchange(&binding.source) && if binding.to_queue { is_queue(to) } else { is_exchange(to) }
        });
        for queue in &mut self.queues {
            queue.consumers.clear();
            queue.active = None;
            queue.last_used = self.now;
            queue.ready.retain(|message| message.properties.delivery_mode == Some(2));
            if !clean {
                queue.ready.iter_mut().for_each(|message| message.redelivered = true);
            }
        }
        self.look_at_all_heads();
        self.process_deaths();
    }
}
