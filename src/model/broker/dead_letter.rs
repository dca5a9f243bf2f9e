//! Messages that leave a queue without an ack, and where they go (§11.3).
//!
//! A death is noted with a copy of the message and published at the end of the command, so that no queue
//! is changed while another is being worked on.

use bytes::{Bytes, BytesMut};
use leveret_protocol::{FieldTable, FieldValue, RawProperties};

use super::Broker;
use super::delayed::is_delayed;
use super::publish::{Outcome, cc_keys, owned_properties};
use crate::model::ids::QueueKey;
use crate::model::queue::message::{BodyRef, NewMessage, flag};
use crate::model::record::Name;
use crate::model::timer::{Millis, Timer};

/// Why a message died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Rejected,
    Expired,
    Maxlen,
    DeliveryLimit,
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Maxlen => "maxlen",
            Self::DeliveryLimit => "delivery_limit",
        }
    }
}

/// A dead message on its way to its dead-letter exchange.
#[derive(Debug)]
pub(super) struct Death {
    reason: Reason,
    queue: Name,
    dead_letter_exchange: Name,
    dead_letter_routing_key: Option<Name>,
    exchange: Bytes,
    routing_key: Bytes,
    properties: Bytes,
    body: Bytes,
    bcc: Vec<Vec<u8>>,
    /// Its `x-death` header is this broker's own.
    died_before: bool,
    redelivered: bool,
    /// Where it still is, if it may leave its queue only for another one (at-least-once).
    held: Option<(QueueKey, u64)>,
}

/// How often a dead letter that no queue takes is tried again.
const RETRY_MS: Millis = 3000;

impl Broker {
    /// The message leaves its queue: noted for dead-lettering if the queue says so, and settled.
    pub(super) fn die(&mut self, key: QueueKey, seq: u64, reason: Reason) {
        let Some(queue) = self.queues.get(key) else { return };
        let mut held = None;
        if let Some(exchange) = &queue.settings.dead_letter_exchange
            && let Some((record, shared)) = queue.messages().get(seq)
        {
            held = queue.settings.dead_letters_at_least_once().then_some((key, seq));
            self.deaths.push_back(Death {
                reason,
                queue: queue.name.clone(),
                dead_letter_exchange: exchange.clone(),
                dead_letter_routing_key: queue.settings.dead_letter_routing_key.clone(),
                exchange: Bytes::copy_from_slice(record.exchange),
                routing_key: Bytes::copy_from_slice(record.routing_key),
                properties: Bytes::copy_from_slice(record.properties),
                body: shared.cloned().unwrap_or_else(|| Bytes::copy_from_slice(record.inline_body)),
                bcc: record.bcc_keys(),
                died_before: record.is(flag::DIED),
                redelivered: record.is(flag::FAILED),
                held,
            });
        }
        if held.is_none() {
            self.settle(key, seq);
        }
    }

    /// The message was refused before it entered.
    pub(super) fn die_on_entry(&mut self, key: QueueKey, message: &NewMessage<'_>, reason: Reason) {
        let queue = &self.queues[key];
        let Some(exchange) = &queue.settings.dead_letter_exchange else { return };
        self.deaths.push_back(Death {
            reason,
            queue: queue.name.clone(),
            dead_letter_exchange: exchange.clone(),
            dead_letter_routing_key: queue.settings.dead_letter_routing_key.clone(),
            exchange: Bytes::copy_from_slice(message.exchange),
            routing_key: Bytes::copy_from_slice(message.routing_key),
            properties: Bytes::copy_from_slice(message.properties),
            body: match message.body {
                BodyRef::Slice(bytes) => Bytes::copy_from_slice(bytes),
                BodyRef::Shared(bytes) => bytes.clone(),
            },
            bcc: message.bcc.to_vec(),
            died_before: message.died,
            redelivered: false,
            held: None,
        });
    }

    /// Publishes what has died. Deaths that these publishes cause are handled too; the cycle rule ends it.
    pub(super) fn process_deaths(&mut self, now: Millis) {
        while let Some(death) = self.deaths.pop_front() {
            let routed = self.publish_death(&death, now);
            let Some((queue, seq)) = death.held else { continue };
            if routed {
                self.settle(queue, seq);
            } else if self.queues.contains_key(queue) {
                if self.undelivered_deaths.is_empty() {
                    self.timers.arm(now + RETRY_MS, Timer::RetryDeaths);
                }
                self.undelivered_deaths.push(death);
            }
        }
    }

    /// Tries again what no queue took.
    pub(super) fn retry_deaths(&mut self, now: Millis) {
        let deaths = std::mem::take(&mut self.undelivered_deaths);
        self.deaths.extend(deaths);
        self.process_deaths(now);
    }

    /// True if a queue took it.
    fn publish_death(&mut self, death: &Death, now: Millis) -> bool {
        // A missing exchange drops the message silently (§11.3).
        let Some(exchange) = self.topology.find(&death.dead_letter_exchange) else { return false };
        let mut properties = owned_properties(RawProperties::from_bytes(&death.properties));
        let mut keys: Vec<Vec<u8>> = Vec::new();
        match &death.dead_letter_routing_key {
            Some(key) => keys.push(key.as_bytes().to_vec()),
            None => {
                keys.push(death.routing_key.to_vec());
                keys.extend(cc_keys(properties.headers.as_ref()));
                keys.extend(death.bcc.iter().cloned());
            }
        }
        let expiration = properties.expiration.take();
        let headers = properties.headers.get_or_insert_with(FieldTable::new);
        let counts = death.died_before || self.settings.profile.trusts_published_deaths();
        record_death(headers, death, counts, expiration, now / 1000);
        let history = history_of(headers);
        let mut encoded = BytesMut::new();
        properties.encode(&mut encoded);
        let raw = RawProperties::from_bytes(&encoded);
        let key_slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut queues = Vec::new();
        self.route_keys(exchange, &key_slices, raw, &mut queues);
        let keepers = self.topology.take_keepers();
        let message = NewMessage {
            exchange: death.dead_letter_exchange.as_bytes(),
            routing_key: keys[0].get(..255).unwrap_or(&keys[0]),
            properties: &encoded,
            body: BodyRef::Shared(&death.body),
            persistent: raw.delivery_mode() == Some(2),
            priority: 0,
            expires_at: None,
            // With a new routing key the old BCC keys are spent.
            bcc: if death.dead_letter_routing_key.is_some() { &[] } else { &death.bcc },
            died: true,
        };
        let redelivered = death.redelivered && self.settings.profile.dead_letters_keep_redelivered();
        let mut routed = false;
        for key in queues {
            let Some(queue) = self.queues.get(key) else { continue };
            if death.reason != Reason::Rejected && is_cycle(&history, &queue.name) {
                tracing::debug!(vhost = %self.vhost, queue = %queue.name, "dead-letter cycle: message dropped");
                continue;
            }
            let mut outcome = Outcome::default();
            self.enqueue(key, &message, None, now, &mut outcome);
            routed |= !outcome.refused;
            if redelivered
                && !outcome.refused
                && let Some(queue) = self.queues.get_mut(key)
            {
                queue.mark_newest_redelivered();
            }
        }
        if !keepers.is_empty() {
            self.keep(&keepers, &message, &keys[1..], now, &mut Outcome::default());
            routed |= is_delayed(&keepers);
        }
        routed
    }
}

fn text(value: &str) -> FieldValue {
    FieldValue::LongString(Bytes::copy_from_slice(value.as_bytes()))
}

fn bytes_value(value: &[u8]) -> FieldValue {
    FieldValue::LongString(Bytes::copy_from_slice(value))
}

fn field_is(table: &FieldTable, name: &str, expected: &[u8]) -> bool {
    matches!(table.get(name), Some(FieldValue::LongString(value)) if value.as_ref() == expected)
}

/// Writes the death into the headers (§11.3): newest first, one entry per queue and reason.
fn record_death(headers: &mut FieldTable, death: &Death, counts: bool, expiration: Option<Bytes>, now_s: u64) {
    let reason = death.reason.as_str();
    let mut entries = match headers.remove("x-death") {
        // Only what this broker wrote counts: a publisher's own is data, and is replaced (§0.1).
        Some(FieldValue::Array(entries)) if counts => entries,
        _ => Vec::new(),
    };
    let known = entries.iter().position(|entry| match entry {
        FieldValue::Table(entry) => {
            field_is(entry, "queue", death.queue.as_bytes()) && field_is(entry, "reason", reason.as_bytes())
        }
        _ => false,
    });
    let entry = match known.map(|index| entries.remove(index)) {
        Some(FieldValue::Table(mut entry)) => {
            let count = entry.get("count").and_then(FieldValue::as_integer).unwrap_or(0);
            entry.insert("count", FieldValue::I64(count as i64 + 1));
            entry
        }
        _ => {
            let mut routing_keys = vec![bytes_value(&death.routing_key)];
            routing_keys.extend(cc_keys(Some(headers)).iter().map(|key| bytes_value(key)));
            let mut entry = FieldTable::new();
            if let Some(expiration) = &expiration {
                entry.insert("original-expiration", FieldValue::LongString(expiration.clone()));
            }
            entry.insert("count", FieldValue::I64(1));
            entry.insert("reason", text(reason));
            entry.insert("queue", text(&death.queue));
            entry.insert("time", FieldValue::Timestamp(now_s));
            entry.insert("exchange", bytes_value(&death.exchange));
            entry.insert("routing-keys", FieldValue::Array(routing_keys));
            entry
        }
    };
    entries.insert(0, FieldValue::Table(entry));
    headers.insert("x-death", FieldValue::Array(entries));
    if !counts || headers.get("x-first-death-reason").is_none() {
        headers.insert("x-first-death-reason", text(reason));
        headers.insert("x-first-death-queue", text(&death.queue));
        headers.insert("x-first-death-exchange", bytes_value(&death.exchange));
    }
    headers.insert("x-last-death-reason", text(reason));
    headers.insert("x-last-death-queue", text(&death.queue));
    headers.insert("x-last-death-exchange", bytes_value(&death.exchange));
}

/// The deaths so far, newest first: queue, and whether it was a rejection.
fn history_of(headers: &FieldTable) -> Vec<(Bytes, bool)> {
    let Some(FieldValue::Array(entries)) = headers.get("x-death") else { return Vec::new() };
    entries
        .iter()
        .filter_map(|entry| match entry {
            FieldValue::Table(entry) => match entry.get("queue") {
                Some(FieldValue::LongString(queue)) => Some((queue.clone(), field_is(entry, "reason", b"rejected"))),
                _ => None,
            },
            _ => None,
        })
        .collect()
}

/// §11.3, cycle rule: the queue was left before, and nobody rejected the message since.
fn is_cycle(history: &[(Bytes, bool)], queue: &str) -> bool {
    let Some(last) = history.iter().position(|(name, _)| name.as_ref() == queue.as_bytes()) else { return false };
    !history[..=last].iter().any(|(_, rejected)| *rejected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(entries: &[(&str, bool)]) -> Vec<(Bytes, bool)> {
        entries.iter().map(|(queue, rejected)| (Bytes::copy_from_slice(queue.as_bytes()), *rejected)).collect()
    }

    /// §11.3: pure expiry loops are cut, loops with a reject between are not.
    #[test]
    fn s11_3_a_cycle_needs_a_reject_to_go_on() {
        assert!(!is_cycle(&history(&[("a", false)]), "b"));
        assert!(is_cycle(&history(&[("a", false)]), "a"));
        assert!(is_cycle(&history(&[("b", false), ("a", false)]), "a"));
        assert!(!is_cycle(&history(&[("b", true), ("a", false)]), "a"));
        assert!(is_cycle(&history(&[("b", false), ("a", false), ("c", true)]), "a"));
    }
}
