//! `x-modulus-hash`: the hash of the routing keys, modulo the number of distinct destinations, chooses
//! one; binding keys are ignored.
//!
//! RabbitMQ orders the destinations by name, we by their first binding: any fixed order will do, and this
//! one needs no names.

use super::consistent_hash::{Ring, hash_keys};
use super::{Binding, Matched, Matching, RouteInput};

#[derive(Debug, Default)]
pub(super) struct ModulusHash {
    ring: Ring,
}

impl Matching for ModulusHash {
    fn bind(&mut self, ordinal: u64, binding: &Binding) {
        self.ring.insert(ordinal, binding.destination, 1);
    }

    fn unbind(&mut self, ordinal: u64, _binding: &Binding) {
        self.ring.remove(ordinal);
    }

    fn route(&mut self, message: &RouteInput<'_>, matched: &mut Matched<'_>) {
        let buckets = self.ring.bucket_count();
        if buckets > 0 {
            matched.add(self.ring.destination(hash_keys(message.keys) % buckets));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::ExchangeKind;
    use super::super::tests::Net;

    #[test]
    fn s7_modulus_hash_sends_a_key_to_one_queue() {
        let mut net = Net::new(ExchangeKind::ModulusHash);
        assert!(net.route("k").is_empty());
        for queue in ["q1", "q2", "q3"] {
            net.bind("x", queue, "ignored");
        }
        let mut reached = BTreeSet::new();
        for number in 0..100 {
            let key = format!("k{number}");
            let queues = net.route(&key);
            assert_eq!(queues.len(), 1);
            assert_eq!(net.route(&key), queues);
            reached.extend(queues);
        }
        assert_eq!(reached.len(), 3);
    }

    #[test]
    fn s7_modulus_hash_counts_destinations_not_bindings() {
        let mut net = Net::new(ExchangeKind::ModulusHash);
        for (queue, key) in [("q1", ""), ("q2", "")] {
            net.bind("x", queue, key);
        }
        let routes = |net: &mut Net| -> Vec<_> { (0..50).map(|n| net.route(&n.to_string())).collect() };
        let before = routes(&mut net);
        net.bind("x", "q1", "again");
        assert_eq!(routes(&mut net), before);
    }
}
