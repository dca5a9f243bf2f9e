//! What the simulation knows of each queue's messages, from looking at them as they enter, and the
//! invariants of queues that it checks after every command.
//!
//! Messages are known by the name in their body; the same name may enter a queue more than once.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use leveret::model::broker::Broker;
use leveret::model::ids::QueueKey;
use leveret::model::queue::Queue;
use leveret::model::queue::message::flag;
use leveret::model::timer::Millis;

use super::sim_client::Client;
use super::sim_pager::{Seen, SimPager};
use super::sim_script::body_name;

#[derive(Default)]
pub struct Books {
    queues: BTreeMap<QueueKey, QueueBook>,
    /// The broker may have sent what no client has read.
    pub deliveries_were_lost: bool,
}

#[derive(Default)]
struct QueueBook {
    name: String,
    /// Sequence, body and level, in the order of entry.
    entered: Vec<(u64, String, u8)>,
    next_seq: u64,
    entered_before: u64,
    /// Messages that entered and left between two looks; of a queue that is gone nobody knows how many.
    unseen: u64,
    gone: bool,
    ready: BTreeSet<u64>,
    /// Sequences that were handed out and became ready again.
    came_back: BTreeSet<u64>,
    tallies: HashMap<String, Tally>,
}

/// What happened to the messages of one name in one queue.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Times that it may be delivered with redelivered=false: entries, less those that a crash left in doubt.
    fresh_max: u32,
    fresh: u32,
    again: u32,
    returned: u32,
}

impl Books {
    /// Looks at what the last command has changed. To be called before the turn ends, for dispatch hides
    /// what came back: from channels that have ended all that they had of these queues, even if it went out again at
    /// once.
    pub fn observe(&mut self, broker: &Broker, ended: &[QueueKey], pager: &SimPager) {
        for queue in broker.queues() {
            let key = broker.queue_key(&queue.name).expect("a queue has its name");
            let book = self.queues.entry(key).or_default();
            if book.name.is_empty() {
                book.name = queue.name.to_string();
            }
            if ended.contains(&key) {
                book.came_back.extend(live(queue));
            }
            book.observe(queue, true, |seq| pager.seen(key.into(), seq).cloned());
        }
        for (key, book) in &mut self.queues {
            book.gone = broker.queue_key(&book.name) != Some(*key);
        }
    }

    /// After a restart: `fresh` says whether a message may still be delivered as the first time, `seen` what one is
    /// that is away.
    pub fn recovered(
        &mut self,
        broker: &Broker,
        fresh: impl Fn(&Queue, u64) -> bool,
        seen: impl Fn(&Queue, u64) -> Option<Seen>,
    ) {
        self.queues.clear();
        for queue in broker.queues() {
            let key = broker.queue_key(&queue.name).expect("a queue has its name");
            let mut book = QueueBook { name: queue.name.to_string(), ..QueueBook::default() };
            book.observe(queue, false, |seq| seen(queue, seq));
            for (seq, name, _) in &book.entered {
                let tally = book.tallies.entry(name.clone()).or_default();
                if fresh(queue, *seq) {
                    tally.fresh_max += 1;
                } else {
                    tally.returned += 1;
                }
            }
            self.queues.insert(key, book);
        }
    }

    pub fn exists(&self, queue: QueueKey, broker: &Broker) -> bool {
        self.queues.get(&queue).is_some_and(|book| broker.queue_key(&book.name) == Some(queue))
    }

    pub fn returned(&mut self, queue: QueueKey, body: &str) {
        if let Some(book) = self.queues.get_mut(&queue) {
            book.tallies.entry(body.to_owned()).or_default().returned += 1;
        }
    }

    /// A message of the queue has reached a channel. For a fresh one whose place is known: its level and
    /// sequence, which must be behind the last one there.
    pub fn delivered(
        &mut self,
        queue: QueueKey,
        body: &str,
        redelivered: bool,
        last_fresh: &HashMap<(QueueKey, u8), u64>,
    ) -> Option<(u8, u64)> {
        let book = self.queues.get_mut(&queue).expect("a queue that there was");
        let tally = book.tallies.entry(body.to_owned()).or_default();
        if redelivered {
            tally.again += 1;
            return None;
        }
        tally.fresh += 1;
        if tally.fresh > tally.fresh_max && (book.gone || book.unseen > 0) {
            // It entered and went out within one call of the broker.
            tally.fresh_max += 1;
            book.unseen = book.unseen.saturating_sub(1);
            return None;
        }
        assert!(
            tally.fresh <= tally.fresh_max,
            "{body} of {} comes again and says redelivered=false: {tally:?}",
            book.name
        );
        let candidates: Vec<_> = book.entered.iter().filter(|(_, name, _)| name == body).collect();
        if candidates.iter().any(|(seq, _, _)| book.came_back.contains(seq)) {
            return None;
        }
        let after =
            |(seq, _, level): &&&(u64, String, u8)| last_fresh.get(&(queue, *level)).is_none_or(|last| seq > last);
        let (seq, _, level) = candidates.iter().find(after).unwrap_or_else(|| {
            panic!("{body} of {} overtook or came late: {candidates:?} after {last_fresh:?}", book.name)
        });
        Some((*level, *seq))
    }

    /// When every client has read everything: nothing is redelivered that was not returned.
    pub fn check_quiet(&self) {
        for book in self.queues.values() {
            for (name, tally) in &book.tallies {
                let explained = tally.again <= tally.returned || self.deliveries_were_lost;
                assert!(explained, "{name} of {} was redelivered, not returned: {tally:?}", book.name);
            }
        }
    }
}

impl QueueBook {
    fn observe(&mut self, queue: &Queue, count: bool, away: impl Fn(u64) -> Option<Seen>) {
        let messages = queue.messages();
        let seen = self.entered.len() as u64;
        let mut at = self.next_seq;
        while let Some(seq) = messages.next_live(at) {
            at = seq + 1;
            let (name, level) = match messages.get(seq) {
                Some((record, body)) => (body_name(body.map_or(record.inline_body, |body| body)), record.priority),
                None => away(seq).unwrap_or_else(|| panic!("{} of {} is live, and nobody has it", seq, queue.name)),
            };
            if count {
                self.tallies.entry(name.clone()).or_default().fresh_max += 1;
            }
            self.entered.push((seq, name, level));
        }
        self.unseen += (queue.stats.entered - self.entered_before).saturating_sub(self.entered.len() as u64 - seen);
        self.entered_before = queue.stats.entered;
        let ready: BTreeSet<u64> = queue.ready_sequences().into_iter().collect();
        self.came_back.extend(ready.difference(&self.ready).filter(|seq| **seq < self.next_seq));
        self.next_seq = messages.next_seq();
        self.ready = ready;
    }
}

/// Unsettled messages.
pub fn live(queue: &Queue) -> Vec<u64> {
    let messages = queue.messages();
    std::iter::successors(messages.next_live(0), |seq| messages.next_live(seq + 1)).collect()
}

/// What must hold of every queue at any moment.
pub fn check_queues(broker: &Broker) {
    for queue in broker.queues() {
        let (stats, live) = (queue.stats, live(queue));
        let gone =
            stats.acked + stats.expired + stats.overflowed + stats.rejected + stats.purged + stats.over_delivery_limit;
        assert_eq!(stats.entered, live.len() as u64 + gone, "{}: entered == held + gone {stats:?}", queue.name);
        let ready = queue.ready_sequences();
        assert_eq!(queue.ready_count(), ready.len() as u64, "{}: ready messages", queue.name);
        assert!(
            queue.ready_count() + queue.unacked_count <= live.len() as u64,
            "{}: {} ready and {} unacked of {}",
            queue.name,
            queue.ready_count(),
            queue.unacked_count,
            live.len()
        );
        let away = |seq: &&u64| queue.messages().is_away(**seq);
        let all_here = !ready.iter().any(|seq| away(&seq));
        let here: Vec<u64> = ready.iter().filter(|seq| !away(seq)).copied().collect();
        let records = here.iter().map(|seq| {
            let found = queue.messages().get(*seq);
            found.unwrap_or_else(|| panic!("{}: {seq} is ready and settled", queue.name)).0
        });
        let bytes: u64 = records.clone().map(|record| u64::from(record.body_len)).sum();
        if all_here {
            assert_eq!(queue.ready_bytes(), bytes, "{}: ready bytes", queue.name);
        }
        let places: Vec<_> =
            records.zip(&here).map(|(record, seq)| (std::cmp::Reverse(record.priority), *seq)).collect();
        assert!(
            places.is_sorted() && places.windows(2).all(|two| two[0] != two[1]),
            "{}: order {places:?}",
            queue.name
        );
    }
}

/// What must hold of every queue when timers are on time.
pub fn check_expiry(broker: &Broker, now: Millis) {
    for queue in broker.queues() {
        if let Some((head, at)) = head_expiry(queue) {
            assert!(at > now, "{}: the head {head} has expired {} ms ago", queue.name, now - at);
        }
    }
}

fn head_expiry(queue: &Queue) -> Option<(u64, Millis)> {
    let head = *queue.ready_sequences().first()?;
    let (record, _) = queue.messages().get(head)?;
    record.expires_at.map(|at| (head, at))
}

/// What must hold when every client has read everything: what the broker holds handed out is what the
/// clients hold, and nobody waits for a message that is ready.
pub fn check_quiet(broker: &Broker, clients: &[&Client], store_is_idle: bool, now: Millis) {
    for queue in broker.queues() {
        let key = broker.queue_key(&queue.name).expect("a queue has its name");
        let channels = || clients.iter().flat_map(|client| client.channels.values()).filter(|channel| !channel.ended);
        let held = channels().flat_map(|channel| channel.held.values()).filter(|held| held.queue == key).count();
        let live = live(queue).len() as u64;
        assert_eq!(queue.unacked_count, held as u64, "{}: unacked by the broker and by the clients", queue.name);
        assert_eq!(live, queue.ready_count() + queue.unacked_count, "{}: in nobody's hands", queue.name);
        let consumers =
            channels().flat_map(|channel| channel.consumers.values().map(move |consumer| (channel, consumer)));
        let consumers: Vec<_> = consumers.filter(|(_, consumer)| consumer.queue == key).collect();
        assert_eq!(
            queue.consumers.len(),
            consumers.len(),
            "{}: consumers of the broker and of the clients",
            queue.name
        );
        let expired = head_expiry(queue).is_some_and(|(_, at)| at <= now);
        let head_away = queue.ready_sequences().first().is_some_and(|seq| queue.messages().is_away(*seq));
        if head_away && !store_is_idle {
            continue;
        }
        if queue.ready_count() == 0 || expired {
            continue;
        }
        let free = consumers.iter().filter(|(channel, consumer)| channel.has_credit(consumer)).count();
        let waits = if queue.settings.single_active_consumer { free > 0 && free == consumers.len() } else { free > 0 };
        assert!(!waits, "{}: {} ready, and {free} consumers wait", queue.name, queue.ready_count());
    }
    for channel in clients.iter().flat_map(|client| client.channels.values()).filter(|channel| !channel.ended) {
        let gone = channel
            .consumers
            .values()
            .find(|consumer| !broker.queues().any(|queue| broker.queue_key(&queue.name) == Some(consumer.queue)));
        assert!(gone.is_none(), "a consumer of a queue that is gone has not been told");
        assert!(channel.is_quiet(store_is_idle), "a request was not answered");
    }
}

/// Would this message say redelivered after a clean stop?
pub fn is_redelivered(queue: &Queue, seq: u64) -> bool {
    queue.messages().get(seq).is_some_and(|(record, _)| record.is(flag::REDELIVERED))
}
