//! The clients that a broker dies under: publishers with confirms or transactions, and consumers that ack,
//! return, reject and walk away. They tell the ledger what they are about to do, and what was proved.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use futures_lite::{StreamExt as _, future};
use lapin::options::{BasicAckOptions, BasicNackOptions, BasicRejectOptions};
use lapin::publisher_confirm::{Confirmation, PublisherConfirm};
use lapin::types::AMQPValue;
use lapin::{BasicProperties, Channel, Connection, Consumer, Error};
use parking_lot::{Mutex, MutexGuard};

use super::ledger::{Chain, Fate, Id, Ledger, Place, Seen};
use crate::clients::harness::{Rng, said, table, try_connect};

/// What one prefetch lets a consumer hold.
const PREFETCH: u16 = 30;
/// How long a message is held back.
const DELAY_MS: i32 = 80;
/// Deliveries between two proofs.
const SETTLED_PER_PROOF: usize = 25;

/// A shell that waits to kill a process: it takes microseconds to do it, where starting `kill` takes
/// milliseconds. It kills when this is dropped.
pub struct Killer {
    shell: Child,
}

impl Killer {
    pub fn of(pid: u32) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", "read -r _; kill -9 $1", "sh"]).arg(pid.to_string()).stdin(Stdio::piped());
        Self { shell: shell.spawn().expect("sh starts") }
    }
}

impl Drop for Killer {
    fn drop(&mut self) {
        // The shell reads its end.
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// What all clients of one life of a data folder share.
#[derive(Default)]
pub struct Scene {
    ledger: Mutex<Ledger>,
    publishers: AtomicU32,
    /// The broker is being killed: errors are no surprise any more.
    dying: AtomicBool,
    /// Kills the broker when so many publishes are confirmed.
    killer: Mutex<Option<(u64, Killer)>>,
}

impl Scene {
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    /// A number that no other publisher has.
    pub fn new_publisher(&self) -> u32 {
        self.publishers.fetch_add(1, Ordering::Relaxed)
    }

    /// From now on the broker lives until a sentinel sees that so many publishes are confirmed, or until
    /// [`Self::kill`].
    pub fn arm(&self, confirmed: u64, killer: Killer) {
        self.dying.store(false, Ordering::SeqCst);
        *self.killer.lock() = Some((confirmed, killer));
    }

    pub fn is_dying(&self) -> bool {
        self.dying.load(Ordering::SeqCst)
    }

    /// Kills the broker, if nothing else has.
    pub fn kill(&self) {
        self.dying.store(true, Ordering::SeqCst);
        self.killer.lock().take();
    }

    /// Kills the broker if enough is confirmed.
    fn kill_if_enough(&self) {
        let confirmed = self.ledger().confirmed;
        if self.killer.lock().as_ref().is_some_and(|(last, _)| confirmed >= *last) {
            self.kill();
        }
    }

    /// A client's connection is gone. Only a kill may be the reason.
    pub fn lost(&self, client: &str, error: &Error) {
        if !self.is_dying() {
            let (code, text) = said(error);
            self.ledger().violation(format!("{client}: {code} {text}"));
        }
    }
}

/// What a message with this id has in its body: any change shows. `heavy` makes large ones frequent.
pub fn body(id: Id, heavy: bool) -> Vec<u8> {
    let mut rng = Rng::new(id.0);
    let length = match rng.below(100) {
        0..5 if heavy => 100_000 + rng.below(200_000),
        0..3 => 5_000 + rng.below(50_000),
        3..15 => rng.below(5_000),
        _ => rng.below(150),
    };
    let mut body = Vec::with_capacity(8 + length as usize + 8);
    body.extend_from_slice(&id.0.to_be_bytes());
    while body.len() < 8 + length as usize {
        body.extend_from_slice(&rng.next().to_be_bytes());
    }
    body
}

/// The id in a body that is as it was published.
pub fn id_of(body: &[u8]) -> Option<Id> {
    let (id, _) = body.split_first_chunk()?;
    let id = Id(u64::from_be_bytes(*id));
    [false, true].into_iter().any(|heavy| self::body(id, heavy) == body).then_some(id)
}

/// How a publisher goes about it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Waits for each confirm, and kills the broker right after the last: if others are busy, that is when
    /// something confirmed too early is not on disk yet.
    Sentinel,
    Usual,
    /// Large messages.
    Heavy,
}

/// One publisher on a connection of its own, until that breaks.
pub async fn publisher(scene: Arc<Scene>, address: SocketAddr, mut rng: Rng, pace: Pace) {
    let number = scene.new_publisher();
    let mut waiting = VecDeque::new();
    let result = publish(&scene, address, number, &mut rng, pace, &mut waiting).await;
    // What was confirmed before the end counts, read or not.
    for (copies, confirm) in waiting {
        if let Ok(confirmation) = confirm.await {
            note(&scene, &copies, &confirmation);
        }
    }
    if let Err(error) = result {
        scene.lost("publisher", &error);
    }
}

type Waiting = VecDeque<(Vec<(Chain, Id)>, PublisherConfirm)>;

async fn publish(
    scene: &Scene,
    address: SocketAddr,
    number: u32,
    rng: &mut Rng,
    pace: Pace,
    waiting: &mut Waiting,
) -> Result<(), Error> {
    let connection = try_connect(address).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(Default::default()).await?;
    let window = if pace == Pace::Sentinel { 1 } else { [1, 8, 100, 1000][rng.below(4) as usize] };
    for counter in 0.. {
        let id = Id::new(number, counter);
        let (exchange, routing_key, chains) = target(rng);
        let copies: Vec<_> = chains.iter().map(|&chain| (chain, id)).collect();
        let persistent = rng.chance(92);
        let properties = properties(id, persistent);
        scene.ledger().publishing(&copies, persistent);
        let options = Default::default();
        let confirm =
            channel.basic_publish(exchange, routing_key, options, &body(id, pace == Pace::Heavy), properties).await?;
        waiting.push_back((copies, confirm));
        if waiting.len() >= window {
            let (copies, confirm) = waiting.pop_front().expect("it is not empty");
            note(scene, &copies, &confirm.await?);
            if pace == Pace::Sentinel {
                scene.kill_if_enough();
            }
        }
    }
    Ok(())
}

fn target(rng: &mut Rng) -> (&'static str, &'static str, &'static [Chain]) {
    match rng.below(100) {
        0..25 => ("", "plain", &[Chain::Plain]),
        25..45 => ("fan", "any", &[Chain::FanA, Chain::FanB]),
        45..70 => ("topics", "work.to.do", &[Chain::Work]),
        70..78 => ("", "ttl", &[Chain::Ttl]),
        78..86 => ("later", "", &[Chain::Delayed]),
        86..93 => ("", "quorum", &[Chain::Quorum]),
        _ => ("", "lanes", &[Chain::Lanes]),
    }
}

/// What a message is published with. Only one exchange looks at the delay.
pub fn properties(id: Id, persistent: bool) -> BasicProperties {
    BasicProperties::default()
        .with_delivery_mode(if persistent { 2 } else { 1 })
        .with_priority(id.priority())
        .with_headers(table([("x-delay", AMQPValue::LongInt(DELAY_MS))]))
}

fn note(scene: &Scene, copies: &[(Chain, Id)], confirmation: &Confirmation) {
    match confirmation {
        Confirmation::Ack(None) => scene.ledger().confirmed(copies),
        other => scene.ledger().violation(format!("{copies:?}: expected a plain ack, got {other:?}")),
    }
}

/// A publisher that commits several messages at a time.
pub async fn committer(scene: Arc<Scene>, address: SocketAddr, mut rng: Rng) {
    if let Err(error) = commit(&scene, address, &mut rng).await {
        scene.lost("committer", &error);
    }
}

async fn commit(scene: &Scene, address: SocketAddr, rng: &mut Rng) -> Result<(), Error> {
    let number = scene.new_publisher();
    let connection = try_connect(address).await?;
    let channel = connection.create_channel().await?;
    channel.tx_select().await?;
    let mut counter = 0;
    loop {
        let mut copies = Vec::new();
        for _ in 0..1 + rng.below(6) {
            copies.push((Chain::Tx, Id::new(number, counter)));
            counter += 1;
        }
        scene.ledger().publishing(&copies, true);
        for (_, id) in &copies {
            let options = Default::default();
            channel.basic_publish("", "tx", options, &body(*id, false), properties(*id, true)).await?;
        }
        if rng.chance(20) {
            channel.tx_rollback().await?;
            scene.ledger().refused(&copies);
        } else {
            channel.tx_commit().await?;
            scene.ledger().confirmed(&copies);
        }
    }
}

/// One consumer of a queue on a connection of its own, until that breaks.
pub async fn consumer(scene: Arc<Scene>, address: SocketAddr, place: Place, mut rng: Rng) {
    let result = async {
        let connection = try_connect(address).await?;
        loop {
            consume_for_a_while(&scene, &connection, place, &mut rng).await?;
        }
    };
    let Err::<(), _>(error) = result.await else { return };
    scene.lost("consumer", &error);
}

/// A channel until it is closed, with what it holds.
async fn consume_for_a_while(scene: &Scene, connection: &Connection, place: Place, rng: &mut Rng) -> Result<(), Error> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(Default::default()).await?;
    channel.basic_qos(PREFETCH, Default::default()).await?;
    let consumer = channel.basic_consume(place.queue(), "", Default::default(), Default::default()).await?;
    let mut inbox = Inbox { scene, place, channel, consumer, held: BTreeMap::new(), unproved: Vec::new() };
    let publisher = scene.new_publisher();
    for mark in 0..1 + rng.below(6) as u32 {
        while inbox.unproved.len() < SETTLED_PER_PROOF {
            let delivery = match future::poll_once(inbox.consumer.next()).await {
                Some(delivery) => delivery,
                // Idle: what is unproved may as well be proved.
                None if !inbox.unproved.is_empty() => break,
                None => inbox.consumer.next().await,
            };
            match delivery {
                Some(delivery) => {
                    let delivery = delivery?;
                    inbox.receive(delivery.delivery_tag, delivery.redelivered, &delivery.data);
                    inbox.settle_some(delivery.delivery_tag, rng).await?;
                }
                // The connection is gone; the next call says why.
                None => break,
            }
        }
        inbox.prove(Id::new(publisher, mark)).await?;
    }
    inbox.channel.close(200, "enough").await
}

struct Inbox<'a> {
    scene: &'a Scene,
    place: Place,
    channel: Channel,
    consumer: Consumer,
    /// Deliveries not settled yet, by their tags.
    held: BTreeMap<u64, Id>,
    /// Settled for good, but not known to be on disk.
    unproved: Vec<(Id, Fate)>,
}

impl Inbox<'_> {
    fn receive(&mut self, tag: u64, redelivered: bool, body: &[u8]) {
        match id_of(body) {
            Some(id) => {
                self.scene.ledger().delivered(self.place, Seen { id, redelivered });
                self.held.insert(tag, id);
            }
            None => self.scene.ledger().violation(format!("a damaged body in {}", self.place.queue())),
        }
    }

    async fn settle_some(&mut self, tag: u64, rng: &mut Rng) -> Result<(), Error> {
        let full = self.held.len() >= usize::from(PREFETCH);
        match rng.below(100) {
            0..45 if !full => Ok(()),
            0..70 => {
                self.settling(tag, true, Fate::Acked);
                self.channel.basic_ack(tag, BasicAckOptions { multiple: true }).await
            }
            70..80 => {
                self.settling(tag, false, Fate::Acked);
                self.channel.basic_ack(tag, BasicAckOptions { multiple: false }).await
            }
            80..86 => {
                let multiple = rng.chance(30);
                self.take(tag, multiple);
                self.channel.basic_nack(tag, BasicNackOptions { multiple, requeue: true }).await
            }
            86..90 => {
                self.take(tag, false);
                self.channel.basic_reject(tag, BasicRejectOptions { requeue: true }).await
            }
            90..95 => {
                self.settling(tag, true, Fate::Rejected);
                self.channel.basic_nack(tag, BasicNackOptions { multiple: true, requeue: false }).await
            }
            _ => {
                self.settling(tag, false, Fate::Rejected);
                self.channel.basic_reject(tag, BasicRejectOptions { requeue: false }).await
            }
        }
    }

    /// The messages that a settlement of this tag is about.
    fn take(&mut self, tag: u64, multiple: bool) -> Vec<Id> {
        if !multiple {
            return self.held.remove(&tag).into_iter().collect();
        }
        let later = self.held.split_off(&(tag + 1));
        std::mem::replace(&mut self.held, later).into_values().collect()
    }

    fn settling(&mut self, tag: u64, multiple: bool, fate: Fate) {
        for id in self.take(tag, multiple) {
            self.scene.ledger().settling(self.place, id, fate);
            self.unproved.push((id, fate));
        }
    }

    /// A publish that is confirmed proves what was sent before it on this channel: commits are in order.
    async fn prove(&mut self, mark: Id) -> Result<(), Error> {
        publish_mark(self.scene, &self.channel, mark).await?;
        for (id, fate) in self.unproved.drain(..) {
            self.scene.ledger().settled(self.place, id, fate);
        }
        Ok(())
    }
}

/// Publishes a message that is there to see its confirm.
pub async fn publish_mark(scene: &Scene, channel: &Channel, id: Id) -> Result<(), Error> {
    let copies = [(Chain::Marks, id)];
    scene.ledger().publishing(&copies, true);
    let confirm =
        channel.basic_publish("", "marks", Default::default(), &body(id, false), properties(id, true)).await?;
    let confirmation = confirm.await?;
    note(scene, &copies, &confirmation);
    Ok(())
}
