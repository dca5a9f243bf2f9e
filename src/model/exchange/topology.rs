//! All exchanges and bindings of a vhost, and the walk of a message through them (reference 4, 6, 7).

use std::collections::BTreeMap;
use std::sync::Arc;

use leveret_protocol::FieldTable;
use slotmap::{SecondaryMap, SlotMap};

use super::bindings::{Binding, Bindings};
use super::{Exchange, ExchangeKind, Keepers, Matched, Matching, RouteInput};
use crate::model::ids::{Destination, ExchangeKey, QueueKey};
use crate::model::record::Name;

/// The exchanges of one vhost with their bindings.
///
/// Starts empty: the predeclared exchanges are declared like others. The exchange named `""` routes to
/// queues by name; it must not be bound.
#[derive(Debug, Default)]
pub struct Topology {
    exchanges: SlotMap<ExchangeKey, Node>,
    names: BTreeMap<Name, ExchangeKey>,
    bindings: Bindings,
    epoch: u64,
    walks: u64,
    /// For [`Matched`], kept between walks.
    queues_reached: SecondaryMap<QueueKey, u64>,
    exchanges_reached: SecondaryMap<ExchangeKey, u64>,
    to_visit: Vec<ExchangeKey>,
    keepers: Keepers,
}

#[derive(Debug)]
struct Node {
    exchange: Exchange,
    matching: Box<dyn Matching>,
}

/// What a removal took away, in order: what the caller has to record and report.
#[derive(Debug, Default)]
pub struct Removed {
    pub bindings: Vec<RemovedBinding>,
    pub exchanges: Vec<(ExchangeKey, Exchange)>,
}

/// A binding that is gone, with what its keys meant: one or both of its exchanges may be gone too.
#[derive(Debug)]
pub struct RemovedBinding {
    /// See [`Topology::bind`].
    pub ordinal: u64,
    pub binding: Arc<Binding>,
    pub source: End,
    /// `None` if the destination is a queue.
    pub destination_exchange: Option<End>,
}

/// An exchange at one end of a removed binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub name: Name,
    pub durable: bool,
}

impl Topology {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn find(&self, name: &str) -> Option<ExchangeKey> {
        self.names.get(name).copied()
    }

    pub fn get(&self, key: ExchangeKey) -> Option<&Exchange> {
        self.exchanges.get(key).map(|node| &node.exchange)
    }

    /// All exchanges by name.
    pub fn iter(&self) -> impl Iterator<Item = (ExchangeKey, &Exchange)> {
        self.names.values().map(|key| (*key, &self.exchanges[*key].exchange))
    }

    /// The number of exchanges.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether the kind accepts these declare arguments. Errors: the explanation of the 406 (reference 7).
    pub fn validate_declare(kind: ExchangeKind, arguments: &FieldTable) -> Result<(), String> {
        kind.validate_declare(arguments)
    }

    /// Adds an exchange. The caller has checked that the name is free.
    pub fn declare(&mut self, exchange: Exchange) -> ExchangeKey {
        self.touch();
        let name = exchange.name.clone();
        let matching = exchange.kind.matching(&exchange.arguments);
        let key = self.exchanges.insert(Node { exchange, matching });
        let before = self.names.insert(name, key);
        assert!(before.is_none(), "an exchange of this name is there");
        key
    }

    /// Sets the alternate exchange in effect, as a policy may. No change if there is no such exchange.
    pub fn set_alternate(&mut self, key: ExchangeKey, alternate: Option<Name>) {
        if let Some(node) = self.exchanges.get_mut(key)
            && node.exchange.alternate != alternate
        {
            node.exchange.alternate = alternate;
            self.touch();
        }
    }

    /// Whether the source accepts the binding. `queue_type` is `classic`, `quorum` or `stream` if the destination
    /// is a queue. Errors: the explanation of the 406 (reference 7).
    pub fn validate_binding(&self, binding: &Binding, queue_type: Option<&str>) -> Result<(), String> {
        match self.get(binding.source) {
            Some(source) => source.routing_kind().validate_binding(binding, queue_type),
            None => Ok(()),
        }
    }

    /// Adds a binding. Its source is there and is not the default exchange; its destination exists.
    ///
    /// Returns its ordinal, or `None` if the binding was there already. Ordinals grow; the hash exchanges go by
    /// their order, so whoever records a binding must record it too and give it to [`restore`](Self::restore).
    pub fn bind(&mut self, binding: Binding) -> Option<u64> {
        let ordinal = self.bindings.next_ordinal();
        self.restore(ordinal, binding).then_some(ordinal)
    }

    /// As [`bind`](Self::bind), with the ordinal that the binding had before a restart. False, and no change, if
    /// the binding is there, or another with the ordinal.
    pub fn restore(&mut self, ordinal: u64, binding: Binding) -> bool {
        let binding = Arc::new(binding);
        let is_new = self.bindings.insert(ordinal, binding.clone());
        if is_new {
            self.exchanges[binding.source].matching.bind(ordinal, &binding);
            self.touch();
        }
        is_new
    }

    /// Removes a binding, if it is there, and what goes with it.
    pub fn unbind(&mut self, binding: &Binding) -> Removed {
        let ordinals = self.bindings.ordinal(binding).into_iter().collect();
        self.remove(ordinals, None)
    }

    /// Removes all bindings to a queue that is about to go, and what goes with them.
    pub fn remove_queue(&mut self, queue: QueueKey) -> Removed {
        self.queues_reached.remove(queue);
        let bindings = self.bindings.of_destination(Destination::Queue(queue));
        let ordinals = bindings.map(|(ordinal, _)| ordinal).collect();
        self.remove(ordinals, None)
    }

    /// Removes an exchange, if it is there, its bindings as source and destination, and what goes with them.
    pub fn remove_exchange(&mut self, exchange: ExchangeKey) -> Removed {
        if !self.exchanges.contains_key(exchange) {
            return Removed::default();
        }
        let from = self.bindings.of_source(exchange);
        let to = self.bindings.of_destination(Destination::Exchange(exchange));
        let mut ordinals: Vec<u64> = from.chain(to).map(|(ordinal, _)| ordinal).collect();
        // One that binds the exchange to itself is there twice; the second time, nothing is found.
        ordinals.sort_unstable();
        self.remove(ordinals, Some(exchange))
    }

    /// Removes these bindings and this exchange. An auto-delete exchange whose last binding as a source goes,
    /// goes too, with its bindings as a destination, and so on (reference 4.2, 5.8).
    fn remove(&mut self, mut ordinals: Vec<u64>, exchange: Option<ExchangeKey>) -> Removed {
        let mut removed = Removed::default();
        // They stay in place until the end, for the names.
        let mut doomed: Vec<ExchangeKey> = exchange.into_iter().collect();
        let mut next = 0;
        while let Some(ordinal) = ordinals.get(next) {
            next += 1;
            let Some(binding) = self.bindings.remove(*ordinal) else {
                continue;
            };
            let source = binding.source;
            let end = |key: ExchangeKey| {
                let Exchange { name, durable, .. } = &self.exchanges[key].exchange;
                End { name: name.clone(), durable: *durable }
            };
            removed.bindings.push(RemovedBinding {
                ordinal: *ordinal,
                source: end(source),
                destination_exchange: match binding.destination {
                    Destination::Queue(_) => None,
                    Destination::Exchange(key) => Some(end(key)),
                },
                binding: binding.clone(),
            });
            if exchange == Some(source) {
                continue; // its matching structure goes as a whole
            }
            let node = &mut self.exchanges[source];
            node.matching.unbind(*ordinal, &binding);
            if node.exchange.auto_delete && !self.has_bindings(source) {
                doomed.push(source);
                let to = self.bindings.of_destination(Destination::Exchange(source));
                ordinals.extend(to.map(|(ordinal, _)| ordinal));
            }
        }
        for key in doomed {
            self.exchanges_reached.remove(key);
            let node = self.exchanges.remove(key).expect("an exchange is doomed once");
            self.names.remove(&node.exchange.name);
            removed.exchanges.push((key, node.exchange));
        }
        if !removed.bindings.is_empty() || !removed.exchanges.is_empty() {
            self.touch();
        }
        removed
    }

    /// Whether the exchange is the source of a binding.
    pub fn has_bindings(&self, source: ExchangeKey) -> bool {
        self.bindings.of_source(source).next().is_some()
    }

    /// The number of bindings.
    pub fn binding_count(&self) -> usize {
        self.bindings.len()
    }

    /// Whether this very binding is there.
    pub fn contains(&self, binding: &Binding) -> bool {
        self.bindings.ordinal(binding).is_some()
    }

    /// All bindings with their ordinals, oldest first.
    pub fn bindings(&self) -> impl Iterator<Item = (u64, &Arc<Binding>)> {
        self.bindings.iter()
    }

    /// The bindings of a source with their ordinals, oldest first.
    pub fn bindings_of_source(&self, source: ExchangeKey) -> impl Iterator<Item = (u64, &Arc<Binding>)> {
        self.bindings.of_source(source)
    }

    /// The bindings to a destination with their ordinals, oldest first.
    pub fn bindings_of_destination(&self, destination: Destination) -> impl Iterator<Item = (u64, &Arc<Binding>)> {
        self.bindings.of_destination(destination)
    }

    /// A number that changes with every change that can alter a route. Whoever remembers a route compares it.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Changes the epoch: for changes that are not seen here, above all of the names of queues.
    pub fn touch(&mut self) {
        self.epoch += 1;
    }

    /// Appends each queue that the message reaches from `start`, once, in an order that depends on the history of
    /// this topology alone. `find_queue` knows queues by name, for the default exchange.
    ///
    /// Each exchange is visited once, so cycles do no harm. One that matches nothing, not even what was reached
    /// before, passes the message to its alternate exchange, if there is one of that name.
    ///
    /// Returns true if nothing but the keys decided: then the route holds for all messages with these keys until
    /// the epoch changes. If not, [`take_keepers`](Self::take_keepers) says which exchanges want the message.
    pub fn route(
        &mut self,
        start: ExchangeKey,
        message: &RouteInput<'_>,
        find_queue: &dyn Fn(&[u8]) -> Option<QueueKey>,
        out: &mut Vec<QueueKey>,
    ) -> bool {
        self.walks += 1;
        self.to_visit.clear();
        self.keepers.clear();
        let mut matched = Matched {
            queues_reached: &mut self.queues_reached,
            exchanges_reached: &mut self.exchanges_reached,
            walk: self.walks,
            queues: out,
            exchanges: &mut self.to_visit,
            keepers: &mut self.keepers,
            at: start,
            any: false,
            random: message.random,
        };
        let mut by_keys_only = true;
        let mut visited = 0;
        matched.visit(start);
        while let Some(&key) = matched.exchanges.get(visited) {
            visited += 1;
            let Some(node) = self.exchanges.get_mut(key) else {
                continue;
            };
            matched.any = false;
            matched.at = key;
            if node.exchange.name.is_empty() {
                for queue in message.keys.iter().filter_map(|key| find_queue(key)) {
                    matched.add(Destination::Queue(queue));
                }
            } else {
                node.matching.route(message, &mut matched);
                by_keys_only &= node.matching.by_keys_only();
            }
            if !matched.any
                && let Some(name) = &node.exchange.alternate
                && let Some(alternate) = self.names.get(name)
            {
                matched.visit(*alternate);
            }
        }
        by_keys_only
    }

    /// The exchanges that want the message of the last walk for themselves. Whoever forgets to ask loses it.
    #[inline]
    pub fn take_keepers(&mut self) -> Keepers {
        std::mem::take(&mut self.keepers)
    }
}

#[cfg(test)]
mod tests;
