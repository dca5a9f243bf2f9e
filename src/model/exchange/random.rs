//! `x-random` and `x-local-random`: one binding, each as likely as the others; keys are ignored.
//!
//! A queue bound twice is twice as likely. There is one node, so that every queue is local.

use super::{Binding, Destinations, Matched, Matching, RouteInput, take_out};
use crate::model::ids::Destination;

#[derive(Debug, Default)]
pub(super) struct Random {
    destinations: Destinations,
}

impl Matching for Random {
    fn bind(&mut self, _ordinal: u64, binding: &Binding) {
        self.destinations.push(binding.destination);
    }

    fn unbind(&mut self, _ordinal: u64, binding: &Binding) {
        take_out(&mut self.destinations, binding.destination);
    }

    fn route(&mut self, _message: &RouteInput<'_>, matched: &mut Matched<'_>) {
        if !self.destinations.is_empty() {
            let chosen = matched.random_below(self.destinations.len());
            matched.add(self.destinations[chosen]);
        }
    }

    fn by_keys_only(&self) -> bool {
        false
    }
}

/// `x-local-random` takes classic queues under the empty key, and nothing else.
pub(super) fn validate_local_binding(binding: &Binding, queue_type: Option<&str>) -> Result<(), String> {
    if !binding.binding_key.is_empty() {
        let key = String::from_utf8_lossy(&binding.binding_key);
        return Err(format!("Non empty binding '{key}' key not permitted"));
    }
    match (binding.destination, queue_type) {
        (Destination::Queue(_), Some("classic")) => Ok(()),
        (Destination::Queue(_), Some(other)) => {
            Err(format!("Queue type rabbit_{other}_queue not valid for this exchange type"))
        }
        _ => Err("Destination not found".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::ExchangeKind;
    use super::super::tests::{Net, exchange};
    use leveret_protocol::FieldTable;

    /// How often each queue is chosen in so many messages.
    fn counts(net: &mut Net, messages: u64) -> BTreeMap<String, u32> {
        let mut counts = BTreeMap::new();
        for random in 0..messages {
            net.random = random.wrapping_mul(0x1234_5678_9ABC_DEF1);
            let queues = net.route("k");
            assert!(queues.len() <= 1);
            for queue in queues {
                *counts.entry(queue).or_default() += 1;
            }
        }
        counts
    }

    #[test]
    fn s7_random_is_one_uniform_binding() {
        for kind in [ExchangeKind::Random, ExchangeKind::LocalRandom] {
            let mut net = Net::new(kind);
            assert!(counts(&mut net, 10).is_empty());
            for queue in ["q1", "q2", "q3", "q4"] {
                net.bind("x", queue, "");
            }
            let counts = counts(&mut net, 4000);
            assert_eq!(counts.len(), 4);
            assert!(counts.values().all(|count| (900..1100).contains(count)), "{counts:?}");
        }
    }

    #[test]
    fn random_exchanges_of_one_walk_choose_independently() {
        let mut net = Net::new(ExchangeKind::Random);
        for (middle, queues) in [("y1", ["q11", "q12"]), ("y2", ["q21", "q22"])] {
            net.topology.declare(exchange(middle, ExchangeKind::Random));
            net.bind("x", middle, "");
            for queue in queues {
                net.bind(middle, queue, "");
            }
        }
        let counts = counts(&mut net, 4000);
        assert_eq!(counts.len(), 4);
        assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn s7_local_random_takes_classic_queues_under_the_empty_key() {
        let mut net = Net::new(ExchangeKind::LocalRandom);
        net.topology.declare(exchange("y", ExchangeKind::Fanout));
        let mut validate = |destination: &str, key: &str, queue_type| {
            let binding = net.binding("x", destination, key, FieldTable::new());
            net.topology.validate_binding(&binding, queue_type)
        };
        assert_eq!(validate("q", "", Some("classic")), Ok(()));
        let error = validate("q", "k", Some("classic")).unwrap_err();
        assert_eq!(error, "Non empty binding 'k' key not permitted");
        let error = validate("q", "", Some("quorum")).unwrap_err();
        assert_eq!(error, "Queue type rabbit_quorum_queue not valid for this exchange type");
        assert_eq!(validate("y", "", None).unwrap_err(), "Destination not found");
    }
}
