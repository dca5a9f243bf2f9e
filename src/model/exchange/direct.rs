//! `direct`: a binding matches when its key equals a routing key byte by byte.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Binding, Destinations, Matched, Matching, RouteInput, take_out};

#[derive(Debug, Default)]
pub(super) struct Direct {
    /// Shares the keys with the bindings. An entry has at least one destination.
    by_key: HashMap<Arc<[u8]>, Destinations>,
}

impl Matching for Direct {
    fn bind(&mut self, _ordinal: u64, binding: &Binding) {
        self.by_key.entry(binding.binding_key.clone()).or_default().push(binding.destination);
    }

    fn unbind(&mut self, _ordinal: u64, binding: &Binding) {
        let destinations = self.by_key.get_mut(&binding.binding_key);
        let destinations = destinations.expect("the key of a binding that was bound is there");
        take_out(destinations, binding.destination);
        if destinations.is_empty() {
            self.by_key.remove(&binding.binding_key);
            if self.by_key.is_empty() {
                self.by_key.shrink_to_fit();
            }
        }
    }

    fn route(&mut self, message: &RouteInput<'_>, matched: &mut Matched<'_>) {
        for key in message.keys {
            for destination in self.by_key.get(*key).into_iter().flatten() {
                matched.add(*destination);
            }
        }
    }
}
