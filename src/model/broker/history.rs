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

#[cfg(test)]
mod tests {
    use leveret_protocol::{FieldTable, FieldValue, Properties, basic, exchange, queue, tx};

    use super::super::Settings;
    use super::super::testing::Rig;
    use crate::model::queue::message::SHARED_BODY_MIN;

    fn rig(length: Option<i32>) -> Rig {
        let mut rig = Rig::new(Settings::default());
        let arguments = length.map(|length| ("x-recent-history-length", FieldValue::I32(length)));
        declare(&mut rig, "h", "x-recent-history", FieldTable::from_iter(arguments));
        for queue in ["q", "late"] {
            rig.declare(queue, FieldTable::new());
        }
        rig
    }

    fn declare(rig: &mut Rig, exchange: &str, type_: &str, arguments: FieldTable) {
        let (passive, durable, auto_delete, internal, no_wait) = (false, true, false, false, true);
        rig.send(
            exchange::Declare { exchange, type_, passive, durable, auto_delete, internal, no_wait, arguments }.into(),
        );
    }

    fn bind(rig: &mut Rig, queue: &str, exchange: &str, routing_key: &str) {
        let (no_wait, arguments) = (true, FieldTable::new());
        rig.send(queue::Bind { queue, exchange, routing_key, no_wait, arguments }.into());
    }

    fn bind_exchange(rig: &mut Rig, destination: &str, source: &str) {
        let (routing_key, no_wait, arguments) = ("", true, FieldTable::new());
        rig.send(exchange::Bind { destination, source, routing_key, no_wait, arguments }.into());
    }

    fn publish(rig: &mut Rig, routing_key: &str, headers: FieldTable, body: &str) {
        let publish = basic::Publish { exchange: "h", routing_key, mandatory: false, immediate: false };
        rig.publish_with(publish, &Properties { headers: Some(headers), ..Properties::default() }, body);
    }

    #[test]
    fn s7_a_new_binding_gets_the_last_messages_oldest_first() {
        let mut rig = rig(Some(3));
        bind(&mut rig, "q", "h", "");
        for body in ["1", "2", "3", "4", "5"] {
            rig.publish("h", "ignored", body);
        }
        assert_eq!(rig.bodies("q"), ["1", "2", "3", "4", "5"]);
        bind(&mut rig, "late", "h", "k");
        assert_eq!(rig.bodies("late"), ["3", "4", "5"]);
        rig.publish("h", "", "6");
        assert_eq!(rig.bodies("late"), ["3", "4", "5", "6"]);
    }

    #[test]
    fn s7_20_messages_are_kept_unless_declared() {
        let mut rig = rig(None);
        for number in 0..30 {
            rig.publish("h", "", &number.to_string());
        }
        bind(&mut rig, "q", "h", "");
        assert_eq!(rig.bodies("q"), (10..30).map(|number| number.to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn s7_only_a_binding_that_was_not_there_gets_the_history() {
        let mut rig = rig(None);
        bind(&mut rig, "q", "h", "");
        rig.publish("h", "", "m");
        bind(&mut rig, "q", "h", "");
        assert_eq!(rig.bodies("q"), ["m"]);
        bind(&mut rig, "q", "h", "another");
        assert_eq!(rig.bodies("q"), ["m", "m"]);
    }

    #[test]
    fn s7_a_message_that_says_no_store_is_routed_and_not_kept() {
        let mut rig = rig(None);
        bind(&mut rig, "q", "h", "");
        rig.publish("h", "", "kept");
        publish(&mut rig, "", FieldTable::from_iter([("x-recent-history-no-store", FieldValue::Bool(true))]), "not");
        bind(&mut rig, "late", "h", "");
        assert_eq!((rig.bodies("q").len(), rig.bodies("late")), (2, vec!["kept".to_owned()]));
    }

    #[test]
    fn s7_a_new_exchange_gets_the_history_routed_through_it() {
        let mut rig = rig(None);
        declare(&mut rig, "d", "direct", FieldTable::new());
        bind(&mut rig, "q", "d", "a");
        bind(&mut rig, "late", "d", "cc");
        let cc = FieldTable::from_iter([("CC", FieldValue::Array(vec!["cc".into()]))]);
        publish(&mut rig, "a", FieldTable::new(), "1");
        publish(&mut rig, "b", cc, "2");
        publish(&mut rig, "c", FieldTable::new(), "3");
        bind_exchange(&mut rig, "d", "h");
        assert_eq!((rig.bodies("q"), rig.bodies("late")), (vec!["1".to_owned()], vec!["2".to_owned()]));
    }

    #[test]
    fn a_cycle_of_exchanges_keeps_the_history_within_its_length() {
        let mut rig = rig(Some(2));
        declare(&mut rig, "f", "fanout", FieldTable::new());
        bind_exchange(&mut rig, "h", "f");
        for body in ["1", "2", "3"] {
            rig.publish("h", "", body);
        }
        bind_exchange(&mut rig, "f", "h");
        let key = rig.broker.topology().find("h").unwrap();
        assert_eq!(rig.broker.history_len(key), 2);
        bind(&mut rig, "q", "h", "");
        assert_eq!(rig.bodies("q"), ["2", "3"]);
    }

    #[test]
    fn s7_a_message_that_comes_by_way_of_another_exchange_is_kept_too() {
        let mut rig = rig(None);
        bind_exchange(&mut rig, "h", "amq.fanout");
        bind(&mut rig, "q", "amq.fanout", "");
        for _ in 0..3 {
            rig.publish("amq.fanout", "", "m");
        }
        bind(&mut rig, "late", "h", "");
        assert_eq!(rig.bodies("late").len(), 3, "though their route could be remembered");
    }

    #[test]
    fn s7_the_history_goes_with_its_exchange() {
        let mut rig = rig(None);
        rig.publish("h", "", "m");
        let key = rig.broker.topology().find("h").unwrap();
        assert_eq!(rig.broker.history_len(key), 1);
        rig.send(exchange::Delete { exchange: "h", if_unused: false, no_wait: true }.into());
        assert_eq!(rig.broker.history_len(key), 0);
        declare(&mut rig, "h", "x-recent-history", FieldTable::new());
        bind(&mut rig, "q", "h", "");
        assert_eq!(rig.bodies("q").len(), 0);
    }

    #[test]
    fn large_bodies_are_kept_as_well() {
        let mut rig = rig(Some(1));
        let (small, large) = ("s".to_owned(), "x".repeat(SHARED_BODY_MIN));
        for body in [&large, &small, &large] {
            rig.publish("h", "", body);
        }
        bind(&mut rig, "q", "h", "");
        assert_eq!(rig.bodies("q"), [large]);
    }

    #[test]
    fn s10_a_transaction_is_kept_when_it_commits() {
        let mut rig = rig(None);
        rig.send(tx::Select {}.into());
        rig.publish("h", "", "rolled back");
        rig.send(tx::Rollback {}.into());
        rig.publish("h", "", "m");
        let key = rig.broker.topology().find("h").unwrap();
        assert_eq!(rig.broker.history_len(key), 0);
        rig.send(tx::Commit {}.into());
        bind(&mut rig, "q", "h", "");
        assert_eq!(rig.bodies("q"), ["m"]);
    }
}
