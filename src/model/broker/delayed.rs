//! Messages that `x-delayed-message` exchanges hold back until they are due (§7).
//!
//! They lie in segments, as a queue's messages do, each with the time when it is due in place of an expiry; a
//! heap of (due, sequence) orders them: by due time, then by arrival. A durable exchange has an id in the store
//! like a queue; what goes on to queues is settled in the same commit, so a crash neither loses nor doubles it.
//! One timer per exchange is armed, for the first that is due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bytes::{Bytes, BytesMut};
use leveret_protocol::RawProperties;

use super::Broker;
use super::publish::{Outcome, cc_keys};
use crate::model::exchange::{Keep, Keepers, with_negated_delay};
use crate::model::ids::{ExchangeKey, Holder};
use crate::model::queue::message::{BodyRef, NewMessage, Record, flag};
use crate::model::queue::page::PageOp;
use crate::model::queue::paging::{Durable, Eviction};
use crate::model::queue::segment::{SegmentPool, Segments};
use crate::model::timer::{Millis, Timer};

/// Due messages let through in one call of `advance`; more wait for the next, so that nobody is kept from the
/// vhost for long.
pub(super) const RELEASE_AT_ONCE_MAX: usize = 1000;

/// Bytes read ahead of what is due.
const READ_AHEAD: usize = 1 << 20;

/// What one exchange holds back.
#[derive(Debug, Default)]
pub(super) struct Delayed {
    /// Set when the exchange is durable and the broker keeps anything on disk.
    pub store_id: Option<u64>,
    pub messages: Segments,
    /// Sequences below this one were handed to the store (those that are persistent).
    pub stored_below: u64,
    /// What of that is on disk.
    pub on_disk: Durable,
    order: BinaryHeap<Reverse<(Millis, u64)>>,
    /// When timers are armed, the next one last. Only an earlier due time arms a further one.
    armed: Vec<Millis>,
}

impl Delayed {
    pub fn new(store_id: Option<u64>) -> Self {
        Self { store_id, ..Self::default() }
    }

    fn next_due(&self) -> Option<Millis> {
        self.order.peek().map(|Reverse((due, _))| *due)
    }

    fn pop(&mut self) -> Option<u64> {
        let Reverse((_, seq)) = self.order.pop()?;
        if self.order.capacity() > 1024 && self.order.len() < self.order.capacity() / 4 {
            self.order.shrink_to(self.order.capacity() / 2);
        }
        Some(seq)
    }

    /// Sends away what is not due first. Returns the bytes that are free now.
    pub fn evict(&mut self, need: usize, eviction: &Eviction, pool: &mut SegmentPool, ops: &mut Vec<PageOp>) -> usize {
        let next = self.order.peek().map(|Reverse((_, seq))| *seq);
        let keeps = |base: u64, end: u64, _| next.is_some_and(|next| next >= base && next < end);
        self.messages.evict(need, eviction, keeps, pool, ops)
    }

    /// Puts a recovered message back. Returns false if its record is unreadable.
    pub fn restore(&mut self, seq: u64, record: &[u8], body: Option<Bytes>, pool: &mut SegmentPool) -> bool {
        let due = Record::parse(record).and_then(|record| record.expires_at);
        let Some(due) = due else { return false };
        if !self.messages.restore(seq, record, body, pool) {
            return false;
        }
        self.order.push(Reverse((due, seq)));
        self.stored_below = seq + 1;
        true
    }
}

/// Whether one of them holds the message back: then it is on its way, even if no queue has it yet.
pub(super) fn is_delayed(keepers: &Keepers) -> bool {
    keepers.iter().any(|(_, keep)| matches!(keep, Keep::Delay(_)))
}

impl Broker {
    /// Messages that the exchange holds back; `None` if it is not one that does.
    pub fn messages_delayed(&self, exchange: ExchangeKey) -> Option<u64> {
        self.delayed.get(exchange).map(|delayed| delayed.order.len() as u64)
    }

    /// Bytes of memory that the messages held back by this exchange take.
    pub fn delayed_memory(&self, exchange: ExchangeKey) -> usize {
        let entry = size_of::<Reverse<(Millis, u64)>>();
        self.delayed.get(exchange).map_or(0, |delayed| delayed.messages.memory() + delayed.order.capacity() * entry)
    }

    /// Gives a message to the exchanges of its walk that want it. `extra_keys` are all that it was routed by
    /// beside its routing key.
    pub(super) fn keep(
        &mut self,
        keepers: &Keepers,
        message: &NewMessage<'_>,
        extra_keys: &[Vec<u8>],
        now: Millis,
        outcome: &mut Outcome,
    ) {
        // Whether a key came as CC or BCC is seen again when it goes on.
        let message = NewMessage { bcc: extra_keys, expires_at: None, priority: 0, ..*message };
        for &(exchange, keep) in keepers {
            match keep {
                Keep::Delay(ms) => self.delay(exchange, message, now.saturating_add(ms), outcome),
                Keep::Remember => self.remember(exchange, &message),
            }
        }
    }

    fn delay(&mut self, exchange: ExchangeKey, message: NewMessage<'_>, due: Millis, outcome: &mut Outcome) {
        let Some(delayed) = self.delayed.get_mut(exchange) else { return };
        let mut properties = BytesMut::new();
        with_negated_delay(RawProperties::from_bytes(message.properties), &mut properties);
        let message = NewMessage { properties: &properties, expires_at: Some(due), ..message };
        let seq = delayed.messages.push(&message, &mut self.pool);
        delayed.order.push(Reverse((due, seq)));
        if message.persistent && delayed.store_id.is_some() {
            self.pending.publish_delayed(exchange, seq, message.body.as_slice().len());
            outcome.stored = true;
        }
        self.arm_delayed(exchange);
    }

    /// Arms the timer of the exchange for what it lets go first, unless one is armed that fires before.
    pub(super) fn arm_delayed(&mut self, exchange: ExchangeKey) {
        let Some(delayed) = self.delayed.get_mut(exchange) else { return };
        if let Some(due) = delayed.next_due()
            && delayed.armed.last().is_none_or(|armed| due < *armed)
        {
            delayed.armed.push(due);
            self.timers.arm(due, Timer::DelayedExchange(exchange));
        }
    }

    /// A timer of the exchange has fired: what is due goes on, as far as `budget` allows. False if more is due.
    pub(super) fn release_delayed(&mut self, exchange: ExchangeKey, now: Millis, budget: &mut usize) -> bool {
        let mut record = Vec::new();
        loop {
            let Some(delayed) = self.delayed.get_mut(exchange) else { return true };
            while delayed.armed.last().is_some_and(|armed| *armed <= now) {
                delayed.armed.pop();
            }
            if delayed.next_due().is_none_or(|due| due > now) {
                self.arm_delayed(exchange);
                return true;
            }
            if *budget == 0 {
                return false;
            }
            if let Some(Reverse((_, seq))) = delayed.order.peek().copied()
                && delayed.messages.is_away(seq)
            {
                // Goes on when it is here. What came after it is mostly due after it.
                let (store_id, ops) = (delayed.store_id, &mut self.paging.ops);
                delayed.messages.want_ahead(seq, READ_AHEAD, Holder::Exchange(exchange), store_id, ops);
                return true;
            }
            *budget -= 1;
            let Some(seq) = delayed.pop() else { return true };
            let Some((bytes, body)) = delayed.messages.raw(seq) else { continue };
            record.clear();
            record.extend_from_slice(bytes);
            let body = body.cloned();
            self.settle_delayed(exchange, seq);
            self.route_kept(exchange, &record, body.as_ref(), now);
        }
    }

    /// Messages of the exchange are back from the disk.
    pub(super) fn delayed_page_is_back(&mut self, exchange: ExchangeKey, now: Millis) {
        let Some(delayed) = self.delayed.get_mut(exchange) else { return };
        if delayed.next_due().is_some_and(|due| due <= now) {
            delayed.armed.push(now);
            self.timers.arm(now, Timer::DelayedExchange(exchange));
        }
    }

    fn settle_delayed(&mut self, exchange: ExchangeKey, seq: u64) {
        let Some(delayed) = self.delayed.get_mut(exchange) else { return };
        let on_disk = seq < delayed.stored_below
            && delayed.messages.get(seq).is_some_and(|(record, _)| record.is(flag::PERSISTENT));
        if !delayed.messages.settle(seq, &mut self.pool) {
            return;
        }
        delayed.messages.squeeze(seq, &mut self.pool);
        if on_disk && let Some(store_id) = delayed.store_id {
            self.pending.settle(store_id, seq);
        }
    }

    /// Routes a message that an exchange has kept, from `start` on, as if it came now. What reaches no queue is
    /// dropped, and so is what a queue refuses.
    pub(super) fn route_kept(&mut self, start: ExchangeKey, record: &[u8], body: Option<&Bytes>, now: Millis) {
        let kept = KeptMessage::parse(record, body);
        let mut keys = vec![kept.record.routing_key];
        keys.extend(kept.extra_keys.iter().map(Vec::as_slice));
        let mut queues = Vec::new();
        self.route_keys(start, &keys, kept.record.raw_properties(), &mut queues);
        let keepers = self.topology.take_keepers();
        if queues.is_empty() && keepers.is_empty() {
            self.stats.unroutable += 1;
        }
        let message = kept.message();
        let mut outcome = self.enqueue_all(&queues, message, kept.expiration_ms(), now);
        self.keep(&keepers, &message, &kept.extra_keys, now, &mut outcome);
    }
}

/// A message that an exchange has kept, ready to go on.
pub(super) struct KeptMessage<'a> {
    record: Record<'a>,
    body: BodyRef<'a>,
    /// The keys that it was routed by beside its routing key.
    extra_keys: Vec<Vec<u8>>,
    /// Those of them that its CC header does not name.
    bcc: Vec<Vec<u8>>,
}

impl<'a> KeptMessage<'a> {
    pub fn parse(record: &'a [u8], body: Option<&'a Bytes>) -> Self {
        let record = Record::parse(record).expect("records that an exchange keeps are whole");
        let extra_keys = record.bcc_keys();
        let mut bcc = extra_keys.clone();
        if !bcc.is_empty() {
            let headers = record.raw_properties().headers().and_then(|headers| headers.to_table().ok());
            let cc = cc_keys(headers.as_ref());
            bcc.retain(|key| !cc.contains(key));
        }
        let body = body.map_or(BodyRef::Slice(record.inline_body), BodyRef::Shared);
        Self { record, body, extra_keys, bcc }
    }

    pub fn message(&self) -> NewMessage<'_> {
        NewMessage {
            exchange: self.record.exchange,
            routing_key: self.record.routing_key,
            properties: self.record.properties,
            body: self.body,
            persistent: self.record.is(flag::PERSISTENT),
            priority: 0,
            expires_at: None,
            bcc: &self.bcc,
            died: self.record.is(flag::DIED),
        }
    }

    /// The time to live that it asks for; it begins when the message enters a queue.
    pub fn expiration_ms(&self) -> Option<u64> {
        let expiration = self.record.raw_properties().expiration()?;
        // Checked and written as a plain number at publish.
        std::str::from_utf8(expiration).ok()?.parse().ok()
    }
}

#[cfg(test)]
mod crashes;
#[cfg(test)]
mod tests;
