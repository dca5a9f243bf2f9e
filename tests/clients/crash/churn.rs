//! A client that declares, binds, fills, empties and deletes a queue of its own, over and over.
//!
//! All goes through one channel, and the broker commits in order: so what a crash leaves must be the state
//! after some prefix of the operations, one that is not before the last confirm.

use std::net::SocketAddr;
use std::sync::Arc;

use lapin::options::{BasicAckOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::publisher_confirm::Confirmation;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, Error, ErrorKind};
use parking_lot::Mutex;

use super::load::Scene;
use super::look::prove;
use crate::clients::harness::{Rng, open_channel, persistent, said, soon, table, try_connect};

/// The exchange that the queues are bound to now and then.
pub const EXCHANGE: &str = "churn";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Plain,
    Lanes,
    Limited,
}

impl Variant {
    const ALL: [Self; 3] = [Self::Plain, Self::Lanes, Self::Limited];

    fn arguments(self) -> FieldTable {
        match self {
            Self::Plain => FieldTable::default(),
            Self::Lanes => table([("x-max-priority", AMQPValue::LongInt(4))]),
            Self::Limited => table([("x-max-length", AMQPValue::LongInt(1000))]),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Declare(Variant),
    Bind,
    Unbind,
    Publish(u32),
    /// Gets the first message and acks it.
    Take,
    Purge,
    Delete,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    variant: Variant,
    bound: bool,
    messages: Vec<u32>,
}

/// `None`: there is no such queue.
fn apply(state: &mut Option<State>, op: Op) {
    match (state, op) {
        (state @ None, Op::Declare(variant)) => *state = Some(State { variant, bound: false, messages: Vec::new() }),
        (state @ Some(_), Op::Delete) => *state = None,
        (Some(state), Op::Bind) => state.bound = true,
        (Some(state), Op::Unbind) => state.bound = false,
        (Some(state), Op::Publish(number)) => state.messages.push(number),
        (Some(state), Op::Purge) => state.messages.clear(),
        (Some(state), Op::Take) => {
            if !state.messages.is_empty() {
                state.messages.remove(0);
            }
        }
        (Some(_), Op::Declare(_)) | (None, _) => {}
    }
}

/// One queue over all crashes of a data folder.
pub struct Churn {
    name: String,
    history: Mutex<History>,
}

#[derive(Default)]
struct History {
    /// What was found after the last crash.
    start: Option<State>,
    ops: Vec<Op>,
    /// So many of them are on disk.
    proved: usize,
    published: u32,
}

impl Churn {
    pub fn new(number: usize) -> Arc<Self> {
        Arc::new(Self { name: format!("churn.{number}"), history: Mutex::default() })
    }

    /// Changes the queue until the connection breaks.
    pub async fn run(self: Arc<Self>, scene: Arc<Scene>, address: SocketAddr, mut rng: Rng) {
        if let Err(error) = self.change(address, &mut rng).await {
            scene.lost("churn", &error);
        }
    }

    async fn change(&self, address: SocketAddr, rng: &mut Rng) -> Result<(), Error> {
        let connection = try_connect(address).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(Default::default()).await?;
        let mut state = self.history.lock().start.clone();
        loop {
            let Some(op) = self.next_op(&state, rng) else { continue };
            self.history.lock().ops.push(op);
            let confirmed = self.perform(&channel, op, rng).await?;
            apply(&mut state, op);
            if confirmed {
                let mut history = self.history.lock();
                history.proved = history.ops.len();
            }
        }
    }

    fn next_op(&self, state: &Option<State>, rng: &mut Rng) -> Option<Op> {
        let Some(state) = state else {
            return Some(Op::Declare(Variant::ALL[rng.below(3) as usize]));
        };
        let op = match rng.below(100) {
            0..60 => {
                let mut history = self.history.lock();
                history.published += 1;
                Op::Publish(history.published)
            }
            60..80 => Op::Take,
            80..85 => Op::Bind,
            85..88 => Op::Unbind,
            88..92 => Op::Declare(state.variant),
            92..96 => Op::Purge,
            _ => Op::Delete,
        };
        // Nothing to see in them.
        let idle = matches!(op, Op::Take | Op::Purge) && state.messages.is_empty();
        (!idle).then_some(op)
    }

    /// True if it was confirmed.
    async fn perform(&self, channel: &Channel, op: Op, rng: &mut Rng) -> Result<bool, Error> {
        let name = self.name.as_str();
        match op {
            Op::Declare(variant) => {
                let options = QueueDeclareOptions { durable: true, ..Default::default() };
                channel.queue_declare(name, options, variant.arguments()).await?;
            }
            Op::Bind => channel.queue_bind(name, EXCHANGE, name, Default::default(), FieldTable::default()).await?,
            Op::Unbind => channel.queue_unbind(name, EXCHANGE, name, FieldTable::default()).await?,
            Op::Purge => {
                channel.queue_purge(name, Default::default()).await?;
            }
            Op::Delete => {
                channel.queue_delete(name, Default::default()).await?;
            }
            Op::Take => {
                if let Some(message) = channel.basic_get(name, Default::default()).await? {
                    channel.basic_ack(message.delivery.delivery_tag, BasicAckOptions::default()).await?;
                }
            }
            Op::Publish(number) => {
                let (options, body) = (BasicPublishOptions::default(), number.to_be_bytes());
                let confirm = channel.basic_publish("", name, options, &body, persistent()).await?;
                // Those that nobody waits for prove nothing.
                if rng.chance(30) {
                    return Ok(confirm.await? == Confirmation::Ack(None));
                }
            }
        }
        Ok(false)
    }

    /// Looks at what a restart brought back, empties the queue, and goes on from there.
    pub async fn check(&self, scene: &Scene, connection: &Connection) {
        let found = soon("look at a churned queue", self.look(connection)).await.expect("the broker answers");
        let mut history = self.history.lock();
        let mut state = history.start.clone();
        let mut possible = history.proved == 0 && state == found;
        for (index, op) in history.ops.iter().enumerate() {
            apply(&mut state, *op);
            possible |= index + 1 >= history.proved && state == found;
        }
        if !possible {
            let History { start, ops, proved, .. } = &*history;
            let tail = &ops[proved.saturating_sub(10)..];
            scene.ledger().violation(format!(
                "{}: found {found:?}, after {} operations from {start:?}, {proved} proved, at last {tail:?}",
                self.name,
                ops.len()
            ));
        }
        history.start = found.map(|found| State { messages: Vec::new(), ..found });
        history.ops.clear();
        history.proved = 0;
    }

    async fn look(&self, connection: &Connection) -> Result<Option<State>, Error> {
        let name = self.name.as_str();
        let channel = connection.create_channel().await?;
        let passive = QueueDeclareOptions { passive: true, ..Default::default() };
        match channel.queue_declare(name, passive, FieldTable::default()).await {
            Ok(_) => {}
            Err(error) if said(&error).0 == 404 => return Ok(None),
            Err(error) => return Err(error),
        }
        let mut variant = None;
        for candidate in Variant::ALL {
            let channel = open_channel(connection).await;
            let options = QueueDeclareOptions { durable: true, ..Default::default() };
            match channel.queue_declare(name, options, candidate.arguments()).await {
                Ok(_) => variant = Some(candidate),
                Err(error) if matches!(error.kind(), ErrorKind::ProtocolError(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let no_ack = lapin::options::BasicGetOptions { no_ack: true };
        let mut messages = Vec::new();
        while let Some(message) = channel.basic_get(name, no_ack).await? {
            messages.push(u32::from_be_bytes(message.data.as_slice().try_into().expect("4 bytes were published")));
        }
        channel.confirm_select(Default::default()).await?;
        let mandatory = BasicPublishOptions { mandatory: true, ..Default::default() };
        let probe = channel.basic_publish(EXCHANGE, name, mandatory, b"probe", persistent()).await?.await?;
        let bound = probe == Confirmation::Ack(None);
        if bound {
            channel.basic_get(name, no_ack).await?;
        }
        // The queue is empty from now on.
        prove(connection).await;
        Ok(Some(State { variant: variant.expect("one of them it is"), bound, messages }))
    }
}
