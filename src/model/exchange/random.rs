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
pub(super) fn validate_local_binding(
    binding: &Binding,
    queue_type: Option<&str>,
) -> Result<(), String> {
    if !binding.binding_key.is_empty() {
        let key = String::from_utf8_lossy(&binding.binding_key);
        return Err(format!("Non empty binding '{key}' key not permitted"));
    }
    match (binding.destination, queue_type) {
        (Destination::Queue(_), Some("classic")) => Ok(()),
        (Destination::Queue(_), Some(other)) => Err(format!(
            "Queue type rabbit_{other}_queue not valid for this exchange type"
        )),
        _ => Err("Destination not found".to_owned()),
    }
}
