//! `fanout`: every binding matches, whatever its key.

use super::{Binding, Destinations, Matched, Matching, RouteInput, take_out};

#[derive(Debug, Default)]
pub(super) struct Fanout {
    destinations: Destinations,
}

impl Matching for Fanout {
    fn bind(&mut self, _ordinal: u64, binding: &Binding) {
        self.destinations.push(binding.destination);
    }

    fn unbind(&mut self, _ordinal: u64, binding: &Binding) {
        take_out(&mut self.destinations, binding.destination);
    }

    fn route(&mut self, _message: &RouteInput<'_>, matched: &mut Matched<'_>) {
        for destination in &self.destinations {
            matched.add(*destination);
        }
    }
}
