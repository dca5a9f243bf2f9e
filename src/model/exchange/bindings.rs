//! What a binding is, when two are the same (reference 6), and the ordered set of all bindings of a vhost.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::BytesMut;
use leveret_protocol::{FieldTable, put_table};

use crate::model::ids::{Destination, ExchangeKey};

/// A binding. Equal ones are the same binding: source, destination, key, and the arguments with their types,
/// in any order.
#[derive(Clone, Debug)]
pub struct Binding {
    pub source: ExchangeKey,
    pub destination: Destination,
    /// Up to 255 bytes.
    pub binding_key: Arc<[u8]>,
    /// Sorted by name; equal names in the order received.
    arguments: FieldTable,
}

impl Binding {
    /// A binding with these arguments, in whatever order they come.
    pub fn new(source: ExchangeKey, destination: Destination, binding_key: &[u8], mut arguments: FieldTable) -> Self {
        arguments.0.sort_by(|(one, _), (other, _)| one.cmp(other));
        arguments.0.shrink_to_fit();
        Self { source, destination, binding_key: binding_key.into(), arguments }
    }

    /// The arguments, sorted by name.
    pub fn arguments(&self) -> &FieldTable {
        &self.arguments
    }

    /// The arguments as bytes: equal only for equal names, types and values, floats bit by bit.
    fn encoded_arguments(&self) -> BytesMut {
        let mut out = BytesMut::new();
        if !self.arguments.is_empty() {
            put_table(&mut out, &self.arguments);
        }
        out
    }
}

impl PartialEq for Binding {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
            && self.destination == other.destination
            && self.binding_key == other.binding_key
            && self.encoded_arguments() == other.encoded_arguments()
    }
}

impl Eq for Binding {}

impl Hash for Binding {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.source.hash(state);
        self.destination.hash(state);
        self.binding_key.hash(state);
        self.encoded_arguments().hash(state);
    }
}

/// The bindings of a vhost, each with its ordinal: a number that grows with every new binding.
/// Lists go by ordinal, so in the order in which the bindings came.
#[derive(Debug, Default)]
pub(super) struct Bindings {
    by_ordinal: BTreeMap<u64, Arc<Binding>>,
    ordinals: HashMap<Arc<Binding>, u64>,
    by_source: BTreeSet<(ExchangeKey, u64)>,
    by_destination: BTreeSet<(Destination, u64)>,
}

impl Bindings {
    /// The ordinal for the next new binding.
    pub(super) fn next_ordinal(&self) -> u64 {
        self.by_ordinal.last_key_value().map_or(0, |(last, _)| last + 1)
    }

    /// Adds a binding; false, and no change, if it or the ordinal is there.
    pub(super) fn insert(&mut self, ordinal: u64, binding: Arc<Binding>) -> bool {
        if self.by_ordinal.contains_key(&ordinal) || self.ordinals.contains_key(&binding) {
            return false;
        }
        self.by_source.insert((binding.source, ordinal));
        self.by_destination.insert((binding.destination, ordinal));
        self.ordinals.insert(binding.clone(), ordinal);
        self.by_ordinal.insert(ordinal, binding);
        true
    }

    pub(super) fn remove(&mut self, ordinal: u64) -> Option<Arc<Binding>> {
        let binding = self.by_ordinal.remove(&ordinal)?;
        self.ordinals.remove(&binding);
        self.by_source.remove(&(binding.source, ordinal));
        self.by_destination.remove(&(binding.destination, ordinal));
        if self.ordinals.is_empty() {
            self.ordinals.shrink_to_fit();
        }
        Some(binding)
    }

    pub(super) fn ordinal(&self, binding: &Binding) -> Option<u64> {
        self.ordinals.get(binding).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.by_ordinal.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Arc<Binding>)> {
        self.by_ordinal.iter().map(|(ordinal, binding)| (*ordinal, binding))
    }

    pub(super) fn of_source(&self, source: ExchangeKey) -> impl Iterator<Item = (u64, &Arc<Binding>)> {
        self.numbered(self.by_source.range((source, 0)..=(source, u64::MAX)))
    }

    pub(super) fn of_destination(&self, destination: Destination) -> impl Iterator<Item = (u64, &Arc<Binding>)> {
        self.numbered(self.by_destination.range((destination, 0)..=(destination, u64::MAX)))
    }

    fn numbered<'a, End: 'a>(
        &'a self,
        entries: impl Iterator<Item = &'a (End, u64)>,
    ) -> impl Iterator<Item = (u64, &'a Arc<Binding>)> {
        entries.map(|(_, ordinal)| (*ordinal, &self.by_ordinal[ordinal]))
    }
}
