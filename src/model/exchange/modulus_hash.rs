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
