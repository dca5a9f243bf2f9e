//! The store of a simulation: commits come late, fail, or are lost in a crash; what a crash leaves is known.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use leveret::model::broker::{Broker, Settings};
use leveret::model::exchange::Binding;
use leveret::model::ids::{Destination, Holder};
use leveret::model::queue::Queue;
use leveret::model::queue::message::{Record, flag};
use leveret::model::record::{Batch, Name, Op, Recovered};
use leveret::model::timer::Millis;
use leveret::storage::Store as _;
use leveret::storage::memory::FaultyMemoryStore;

use super::sim_pager::Seen;
use super::sim_script::body_name;

/// Queue ids of the simulated vhost start here.
const STORE_RANGE: u64 = 1 << 40;

#[derive(Default)]
pub struct SimStore {
    store: FaultyMemoryStore,
    /// The broker has said that there is something to commit.
    pub raised: bool,
    taken: Option<Taken>,
    /// A commit that is on disk, and of which the broker has not heard.
    written: Option<u64>,
    /// What a crash would leave.
    pub durable: Durable,
    contract: Contract,
    /// Messages that the last start found and that had been delivered.
    delivered: BTreeSet<(u64, u64)>,
}

struct Taken {
    commit: u64,
    batch: Batch,
    after: Durable,
}

/// All that must survive: definitions by their names, and each persistent message of a durable queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Durable {
    exchanges: BTreeMap<String, String>,
    bindings: BTreeSet<String>,
    queues: BTreeMap<String, DurableQueue>,
}

#[derive(Clone, Debug, PartialEq)]
struct DurableQueue {
    id: u64,
    definition: String,
    messages: BTreeMap<u64, (Bytes, Option<Bytes>)>,
}

impl Durable {
    /// What the broker would have to find again if it was committed now.
    /// Of a message that is away, `before` says what it is.
    pub fn of(broker: &Broker, before: &Self) -> Self {
        let topology = broker.topology();
        let exchanges = topology.iter().filter(|(_, exchange)| exchange.durable);
        let exchanges = exchanges.map(|(_, exchange)| (exchange.name.to_string(), format!("{exchange:?}"))).collect();
        let mut queues = BTreeMap::new();
        for queue in broker.queues() {
            let Some(id) = queue.store_id else { continue };
            let definition = format!("{:?} {} {:?}", queue.queue_type, queue.auto_delete, queue.arguments);
            let mut messages = BTreeMap::new();
            for seq in super::sim_books::live(queue) {
                let Some((bytes, body)) = queue.messages().raw(seq) else {
                    let known = before.queues.get(&*queue.name).filter(|known| known.id == id);
                    let known = known.and_then(|known| known.messages.get(&seq));
                    messages.extend(known.map(|message| (seq, message.clone())));
                    continue;
                };
                if bytes[0] & flag::PERSISTENT != 0 {
                    messages.insert(seq, (comparable(bytes), body.cloned()));
                }
            }
            queues.insert(queue.name.to_string(), DurableQueue { id, definition, messages });
        }
        let bindings = topology.bindings().filter_map(|(_, binding)| describe(broker, binding)).collect();
        Self { exchanges, bindings, queues }
    }

    pub fn has_queues_of(&self, other: &Self) -> bool {
        self.queues.keys().eq(other.queues.keys())
    }

    pub fn has_queue(&self, id: u64) -> bool {
        self.queues.values().any(|queue| queue.id == id)
    }

    /// Whether a queue keeps this message.
    pub fn has(&self, queue: &str, seq: u64) -> bool {
        self.queues.get(queue).is_some_and(|queue| queue.messages.contains_key(&seq))
    }
}

/// A record without what only memory knows: the state flags, and the number of a large body.
fn comparable(record: &[u8]) -> Bytes {
    let mut record = record.to_vec();
    record[0] &= flag::STORED;
    if record[0] & flag::EXTERNAL != 0 {
        let at = 12 + if record[0] & flag::EXPIRES != 0 { 8 } else { 0 };
        record[at..at + 4].fill(0);
    }
    record.into()
}

/// The binding, if both of its ends are durable.
fn describe(broker: &Broker, binding: &Binding) -> Option<String> {
    let source = broker.topology().get(binding.source).filter(|source| source.durable)?;
    let destination = match binding.destination {
        Destination::Exchange(key) => broker.topology().get(key).filter(|exchange| exchange.durable)?.name.to_string(),
        Destination::Queue(key) => {
            let durable = |queue: &&leveret::model::queue::Queue| broker.queue_key(&queue.name) == Some(key);
            broker.queues().find(durable).filter(|queue| queue.durable)?.name.to_string()
        }
    };
    let key = String::from_utf8_lossy(&binding.binding_key).into_owned();
    Some(format!("{} -> {:?} {destination} {key:?} {:?}", source.name, kind(binding), binding.arguments()))
}

fn kind(binding: &Binding) -> &'static str {
    if matches!(binding.destination, Destination::Queue(_)) { "queue" } else { "exchange" }
}

/// What a store may expect of the batches (see `model::record`), over restarts.
#[derive(Default)]
struct Contract {
    last_seq: BTreeMap<u64, u64>,
    dropped: BTreeSet<u64>,
}

impl Contract {
    fn check(&mut self, batch: &Batch) {
        for op in &batch.ops {
            match op {
                Op::Publish { queue, seq, .. } => {
                    assert!(!self.dropped.contains(queue), "queue id {queue:x} is used again");
                    let last = self.last_seq.insert(*queue, *seq);
                    assert!(last.is_none_or(|last| last < *seq), "queue {queue:x}: sequence {seq} after {last:?}");
                }
                Op::Settle { first, last, .. } => assert!(first <= last),
                Op::Drop { queue } => {
                    self.dropped.insert(*queue);
                    self.last_seq.remove(queue);
                }
                Op::Put { .. } | Op::Remove { .. } | Op::Delivered { .. } => {}
            }
        }
    }
}

impl SimStore {
    pub fn is_idle(&self) -> bool {
        !self.raised && self.taken.is_none() && self.written.is_none()
    }

    pub fn take(&mut self, broker: &mut Broker) {
        if !self.raised || self.taken.is_some() || self.written.is_some() {
            return;
        }
        self.raised = false;
        let mut batch = Batch::default();
        let after = Durable::of(broker, &self.durable);
        if let Some(commit) = broker.take_batch(&mut batch) {
            self.taken = Some(Taken { commit, batch, after });
        }
    }

    pub fn fail_next(&mut self) {
        self.store.fail_commit(0);
    }

    /// Writes what was taken. A write that fails is to be tried again.
    pub fn write(&mut self) {
        let Some(taken) = self.taken.take() else { return };
        if self.store.commit(std::slice::from_ref(&taken.batch)).is_err() {
            self.taken = Some(taken);
            return;
        }
        self.contract.check(&taken.batch);
        self.written = Some(taken.commit);
        self.durable = taken.after;
        self.check_kept();
    }

    pub fn done(&mut self, broker: &mut Broker) {
        if let Some(commit) = self.written.take() {
            broker.stored(commit);
        }
    }

    /// The store holds what the broker held when the batch was taken, message by message.
    fn check_kept(&self) {
        let mut kept: BTreeMap<u64, BTreeMap<u64, (Bytes, Option<Bytes>)>> = BTreeMap::new();
        let recovered = self.store.restarted().recover(&mut |item| {
            if let Recovered::Message { queue, seq, record, body, .. } = item {
                kept.entry(queue).or_default().insert(seq, (comparable(&record), body));
            }
        });
        recovered.expect("the store in memory can be read");
        for (name, queue) in &self.durable.queues {
            let kept = kept.remove(&queue.id).unwrap_or_default();
            let missing = queue.messages.keys().find(|seq| !kept.contains_key(seq));
            assert!(missing.is_none(), "{name}: {missing:?} is not in the store");
            let stale = kept.keys().find(|seq| !queue.messages.contains_key(seq));
            assert!(stale.is_none(), "{name}: {stale:?} is settled and still in the store");
            assert!(kept == queue.messages, "{name}: the store has other bytes");
        }
        assert!(kept.values().all(BTreeMap::is_empty), "messages of queues that are gone: {:?}", kept.keys());
    }

    /// The last commit of a clean stop, and the end of the store.
    pub fn close(&mut self) {
        self.store.close().expect("the store in memory can be closed");
    }

    /// A new process: everything from the store, nothing else. What was taken and not written is lost.
    pub fn start(&mut self, settings: Settings, seed: [u8; 32], now: Millis) -> (Broker, bool) {
        self.store = self.store.restarted();
        // An id may come again once nothing of its queue is left and the store has started anew.
        self.contract.dropped.clear();
        (self.raised, self.taken, self.written) = (false, None, None);
        let paging = settings.paging.is_some();
        let mut broker = Broker::new(Name::from("/"), settings, STORE_RANGE, seed);
        let mut blocks = Vec::new();
        let mut definition = |item| {
            if let Recovered::Definition { key, value } = item {
                broker.recover_definition(&key, &value, now).expect("definitions are sound");
            }
        };
        let recovery = self.store.recover_blocks(&mut definition, &mut |block| blocks.push(block));
        let recovery = recovery.expect("the store in memory can be read");
        broker.definitions_recovered(recovery.clean, recovery.next_sequence, now);
        let holders: BTreeMap<u64, Holder> = broker.stored_holders().collect();
        self.delivered.clear();
        for (number, block) in blocks.iter().enumerate() {
            let (queue, holder) = (block.queue, holders[&block.queue]);
            // With little memory only some are read at the start.
            let here = !paging || broker.needs_messages(holder) || number.is_multiple_of(3);
            let read = self.store.read_range(queue, block.first, block.last, &mut |item| {
                let Recovered::Message { seq, record, body, delivered, .. } = item else { return };
                if delivered > 0 {
                    self.delivered.insert((queue, seq));
                }
                if here {
                    assert!(broker.recover_message(holder, seq, &record, body, delivered), "message {seq} is sound");
                }
            });
            read.expect("the store in memory can be read");
            if !here {
                assert!(broker.recover_block(holder, block.clone()), "block {block:?} is sound");
            }
            broker.keep_within_budget(now);
        }
        broker.skip_sequences(recovery.next_sequence);
        (broker, recovery.clean)
    }

    /// Had this message been delivered when the process was started?
    pub fn was_redelivered(&self, queue: &Queue, seq: u64) -> bool {
        seq < queue.redelivered_below || queue.store_id.is_some_and(|id| self.delivered.contains(&(id, seq)))
    }

    /// What a stored message is, by the name in its body and its level.
    pub fn seen(&self, queue: &Queue, seq: u64) -> Option<Seen> {
        let (bytes, body) = self.durable.queues.get(&*queue.name)?.messages.get(&seq)?;
        let record = Record::parse(bytes)?;
        Some((body_name(body.as_deref().unwrap_or(record.inline_body)), record.priority))
    }

    pub fn inner(&mut self) -> &mut FaultyMemoryStore {
        &mut self.store
    }

    /// The new process has what the store was promised to keep.
    pub fn check_recovered(&self, broker: &Broker) {
        let found = Durable::of(broker, &self.durable);
        assert_eq!(found.exchanges, self.durable.exchanges, "durable exchanges");
        assert_eq!(found.bindings, self.durable.bindings, "durable bindings");
        assert!(found.queues.keys().eq(self.durable.queues.keys()), "durable queues: {:?}", found.queues.keys());
        for (name, queue) in &found.queues {
            let expected = &self.durable.queues[name];
            assert_eq!(queue.definition, expected.definition, "{name}");
            assert!(queue.messages.keys().eq(expected.messages.keys()), "{name}: other messages");
            assert!(queue == expected, "{name}: other bytes");
        }
    }
}

pub fn first_broker(settings: Settings, seed: [u8; 32]) -> (SimStore, Broker) {
    let mut store = SimStore::default();
    let (broker, clean) = store.start(settings, seed, START);
    assert!(clean, "an empty store counts as closed");
    store.durable = Durable::of(&broker, &Durable::default());
    (store, broker)
}

/// Time when a simulation starts.
pub const START: Millis = 1_000_000;
