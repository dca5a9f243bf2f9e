//! The last messages of `x-recent-history` exchanges, and their way to what is bound later (§7).
//!
//! In memory only: a history is empty after a restart, as with RabbitMQ's plugin on Mnesia.

use std::collections::VecDeque;

use bytes::Bytes;

use super::Broker;
use super::delayed::KeptMessage;
use crate::model::exchange::Binding;
use crate::model::ids::{Destination, ExchangeKey};
use crate::model::queue::message::{BodyRef, NewMessage};
use crate::model::timer::Millis;

/// Records with their large bodies, oldest first.
pub(super) type History = VecDeque<(Vec<u8>, Option<Bytes>)>;

impl Broker {
    /// Messages that the exchange keeps for those that are bound later.
    pub fn history_len(&self, exchange: ExchangeKey) -> usize {
        self.histories.get(exchange).map_or(0, VecDeque::len)
    }

    pub(super) fn remember(&mut self, exchange: ExchangeKey, message: &NewMessage<'_>) {
        let Some(length) = self.topology.get(exchange).and_then(|exchange| exchange.history_length()) else { return };
        let Some(history) = self.histories.entry(exchange).map(|entry| entry.or_default()) else { return };
        // The oldest one's memory serves the newest.
        let full = history.len() >= length;
        let mut record = if full { history.pop_front().map(|(record, _)| record) } else { None }.unwrap_or_default();
        record.clear();
        let external = message.encode(0, &mut record);
        let body = external.then(|| match message.body {
            BodyRef::Slice(bytes) => Bytes::copy_from_slice(bytes),
            BodyRef::Shared(bytes) => bytes.clone(),
        });
        history.push_back((record, body));
    }

    /// A new binding: if its source keeps a history, the destination gets it, oldest first.
    pub(super) fn replay_history(&mut self, binding: &Binding, now: Millis) {
        let Some(length) = self.topology.get(binding.source).and_then(|source| source.history_length()) else { return };
        let Some(history) = self.histories.get_mut(binding.source).map(std::mem::take) else { return };
        for (record, body) in &history {
            match binding.destination {
                Destination::Queue(queue) => {
                    let kept = KeptMessage::parse(record, body.as_ref());
                    self.enqueue_all(&[queue], kept.message(), kept.expiration_ms(), now);
                }
                Destination::Exchange(exchange) => self.route_kept(exchange, record, body.as_ref(), now),
            }
        }
        // A cycle of exchanges may have led back here.
        if let Some(newer) = self.histories.get_mut(binding.source) {
            let mut all = history;
            all.append(newer);
            all.drain(..all.len().saturating_sub(length));
            *newer = all;
        }
    }
}
