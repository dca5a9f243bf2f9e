//! `x-consistent-hash`: a hash of the message chooses one destination, each as likely as its weight says,
//! and a change of the bindings moves few messages to another one.
//!
//! What is hashed: the routing keys, or the header `hash-header`, or the property `hash-property`. A binding
//! key is a weight. Each destination owns that many consecutive buckets, in the order of the bindings; a
//! second binding to it adds none. So the route of a message depends on the order of the bindings, which the
//! store has to keep.

use std::collections::HashSet;

use leveret_protocol::{FieldTable, FieldValue};

use super::header_value::Comparable;
use super::{Binding, Matched, Matching, RouteInput, erlang, mix};
use crate::model::ids::Destination;

const WEIGHT_MAX: u32 = 10_000;

#[derive(Debug)]
pub(super) struct ConsistentHash {
    on: HashOn,
    ring: Ring,
}

/// What of a message is hashed.
#[derive(Debug)]
enum HashOn {
    RoutingKeys,
    Header(Box<str>),
    MessageId,
    CorrelationId,
    Timestamp,
}

impl HashOn {
    fn of(arguments: &FieldTable) -> Self {
        if let Some(header) = arguments.get("hash-header").and_then(FieldValue::as_str) {
            return Self::Header(header.into());
        }
        match arguments.get("hash-property").and_then(FieldValue::as_str) {
            Some("message_id") => Self::MessageId,
            Some("correlation_id") => Self::CorrelationId,
            Some("timestamp") => Self::Timestamp,
            _ => Self::RoutingKeys,
        }
    }

    /// A message without the header or property hashes like every other one without.
    fn hash(&self, message: &RouteInput<'_>) -> u64 {
        let properties = message.properties;
        let found = match self {
            Self::RoutingKeys => return hash_keys(message.keys),
            Self::Header(name) => {
                let header = properties.headers().and_then(|headers| headers.get(name));
                header.map(|value| Comparable::of(value).stable_hash())
            }
            Self::MessageId => properties.message_id().map(hash_bytes),
            Self::CorrelationId => properties.correlation_id().map(hash_bytes),
            Self::Timestamp => properties.timestamp().map(|seconds| hash_bytes(&seconds.to_be_bytes())),
        };
        found.unwrap_or(0)
    }
}

impl ConsistentHash {
    pub(super) fn new(arguments: &FieldTable) -> Self {
        Self { on: HashOn::of(arguments), ring: Ring::default() }
    }
}

impl Matching for ConsistentHash {
    fn bind(&mut self, ordinal: u64, binding: &Binding) {
        let weight = parse_weight(&binding.binding_key).unwrap_or(1);
        self.ring.insert(ordinal, binding.destination, weight);
    }

    fn unbind(&mut self, ordinal: u64, _binding: &Binding) {
        self.ring.remove(ordinal);
    }

    fn route(&mut self, message: &RouteInput<'_>, matched: &mut Matched<'_>) {
        let buckets = self.ring.bucket_count();
        if buckets > 0 {
            matched.add(self.ring.destination(jump(self.on.hash(message), buckets)));
        }
    }

    fn by_keys_only(&self) -> bool {
        matches!(self.on, HashOn::RoutingKeys)
    }
}

/// At most one of the two arguments, and a property that can be hashed.
pub(super) fn validate_declare(arguments: &FieldTable) -> Result<(), String> {
    let property = arguments.get("hash-property");
    if property.is_some() && arguments.get("hash-header").is_some() {
        return Err("hash-header and hash-property are mutually exclusive".to_owned());
    }
    match property {
        None => Ok(()),
        Some(value) => match value.as_str() {
            Some("message_id" | "correlation_id" | "timestamp") => Ok(()),
            Some(other) => Err(format!("Unsupported property: {other}")),
            None => Err(format!("Unsupported property: {}", erlang::term(value))),
        },
    }
}

/// The key must be a weight.
pub(super) fn validate_binding(binding: &Binding) -> Result<(), String> {
    parse_weight(&binding.binding_key).map(drop)
}

/// A decimal integer from 1 to 10000, signs and leading zeros allowed as Erlang reads them.
fn parse_weight(key: &[u8]) -> Result<u32, String> {
    let not_integer = || format!("The binding key must be an integer: {}", erlang::binary(key));
    let (negative, digits) = match key {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(not_integer());
    }
    // Saturates: however many digits, it is too large.
    let value =
        digits.iter().fold(0_u32, |value, digit| value.saturating_mul(10).saturating_add(u32::from(digit - b'0')));
    match value {
        0 => Err("The binding key must be greater than 0".to_owned()),
        _ if negative => Err("The binding key must be greater than 0".to_owned()),
        1..=WEIGHT_MAX => Ok(value),
        _ => Err(format!("The binding key must not exceed {WEIGHT_MAX}")),
    }
}

/// The buckets of the hash exchanges: for each distinct destination as many as its first binding's weight.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// In the order of the ordinals.
    bindings: Vec<(u64, Destination, u32)>,
    /// Each destination with the number of its first bucket after its own. Made anew from `bindings` on the
    /// first route after a change, when `stale`.
    ends: Vec<(u64, Destination)>,
    stale: bool,
}

impl Ring {
    pub(super) fn insert(&mut self, ordinal: u64, destination: Destination, weight: u32) {
        let position = self.bindings.partition_point(|(other, ..)| *other < ordinal);
        self.bindings.insert(position, (ordinal, destination, weight));
        self.stale = true;
    }

    pub(super) fn remove(&mut self, ordinal: u64) {
        let position = self.bindings.binary_search_by_key(&ordinal, |(other, ..)| *other);
        self.bindings.remove(position.expect("a binding that was bound is in the ring"));
        self.stale = true;
    }

    /// The number of buckets; 0 without bindings.
    pub(super) fn bucket_count(&mut self) -> u64 {
        if std::mem::take(&mut self.stale) {
            self.ends.clear();
            let mut seen = HashSet::new();
            let mut end = 0;
            for (_, destination, weight) in &self.bindings {
                if seen.insert(*destination) {
                    end += u64::from(*weight);
                    self.ends.push((end, *destination));
                }
            }
        }
        self.ends.last().map_or(0, |(end, _)| *end)
    }

    /// The owner of a bucket. `bucket` is below what `bucket_count` has just said.
    pub(super) fn destination(&self, bucket: u64) -> Destination {
        self.ends[self.ends.partition_point(|(end, _)| *end <= bucket)].1
    }
}

/// Jump consistent hash (Lamping and Veach, 2014): when `buckets` grows from n to n + 1, only one hash in
/// n + 1 changes its bucket, and that to the new one.
fn jump(mut hash: u64, buckets: u64) -> u64 {
    let mut bucket = 0;
    let mut next = 0;
    while next < buckets {
        bucket = next;
        hash = hash.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let draw = ((hash >> 33) + 1) as f64;
        next = ((bucket + 1) as f64 * ((1_u64 << 31) as f64 / draw)) as u64;
    }
    bucket
}

/// All the keys of a message together; a single one hashes like its bytes.
pub(super) fn hash_keys(keys: &[&[u8]]) -> u64 {
    keys.iter().fold(0, |hash, key| mix(hash) ^ hash_bytes(key))
}

/// FNV-1a with its bits spread. Fixed for all time, unlike the hashes of the standard library: the same
/// message must go to the same queue after a restart and an upgrade.
pub(super) fn hash_bytes(bytes: &[u8]) -> u64 {
    let hash = bytes
        .iter()
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3));
    mix(hash)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use leveret_protocol::Properties;

    use super::super::tests::{Net, exchange, table};
    use super::super::{Exchange, ExchangeKind, Topology};
    use super::*;

    /// With queues `q0`, `q1` and so on of these weights.
    fn net(weights: &[&str], arguments: FieldTable) -> Net {
        let mut net = Net::default();
        net.declare(Exchange { arguments, ..exchange("x", ExchangeKind::ConsistentHash) });
        for (at, weight) in weights.iter().enumerate() {
            net.bind("x", &format!("q{at}"), weight);
        }
        net
    }

    /// The queue of each key.
    fn routes(net: &mut Net, keys: usize) -> Vec<String> {
        (0..keys)
            .map(|key| {
                let queues = net.route(&format!("key {key}"));
                assert_eq!(queues.len(), 1);
                queues[0].clone()
            })
            .collect()
    }

    #[test]
    fn s7_consistent_hash_goes_by_weight() {
        let mut net = net(&["1", "3"], FieldTable::new());
        let mut counts = BTreeMap::new();
        for queue in routes(&mut net, 4000) {
            *counts.entry(queue).or_insert(0) += 1;
        }
        assert!((900..1100).contains(&counts["q0"]), "{counts:?}");
        assert!((2900..3100).contains(&counts["q1"]), "{counts:?}");
    }

    #[test]
    fn s7_consistent_hash_is_stable() {
        let mut one = net(&["2", "2", "2"], FieldTable::new());
        let before = routes(&mut one, 300);
        assert_eq!(routes(&mut net(&["2", "2", "2"], FieldTable::new()), 300), before);
        // A second binding to a destination adds no buckets.
        one.bind("x", "q1", "5");
        assert_eq!(routes(&mut one, 300), before);
        // A new destination only takes messages away from the others.
        one.bind("x", "q3", "2");
        let after = routes(&mut one, 300);
        let moved: Vec<_> = before.iter().zip(&after).filter(|(old, new)| old != new).collect();
        assert!((40..110).contains(&moved.len()), "{}", moved.len());
        assert!(moved.iter().all(|(_, new)| *new == "q3"));
        // When it goes, they come back.
        one.unbind("x", "q3", "2");
        assert_eq!(routes(&mut one, 300), before);
    }

    #[test]
    fn s7_consistent_hash_without_bindings_routes_nowhere() {
        let mut net = net(&[], FieldTable::new());
        assert!(net.route("k").is_empty());
        net.bind("x", "q", "1");
        net.unbind("x", "q", "1");
        assert!(net.route("k").is_empty());
    }

    /// The routes of messages that differ in number and key, with and without what is hashed.
    fn spread(argument: &str, value: &str, message: impl Fn(u64) -> Properties) -> (usize, usize) {
        let arguments = table([(argument, FieldValue::from(value))]);
        assert_eq!(Topology::validate_declare(ExchangeKind::ConsistentHash, &arguments), Ok(()));
        let mut net = net(&["1"; 8], arguments);
        let distinct = |queues: Vec<Vec<String>>| queues.into_iter().collect::<HashSet<_>>().len();
        let by_value = (0..100).map(|number| net.route_from("x", &["same"], &message(number)));
        let by_value = distinct(by_value.collect());
        let without = (0..100).map(|key| net.route_from("x", &[&key.to_string()], &Properties::default()));
        (by_value, distinct(without.collect()))
    }

    #[test]
    fn s7_consistent_hash_on_header_or_property() {
        let none = Properties::default;
        let text = |number: u64| Some(bytes::Bytes::from(number.to_string()));
        let spreads = [
            spread("hash-header", "h", |number| {
                let headers = Some(table([("h", FieldValue::I64(number as i64))]));
                Properties { headers, ..none() }
            }),
            spread("hash-property", "message_id", |it| Properties { message_id: text(it), ..none() }),
            spread("hash-property", "correlation_id", |it| Properties { correlation_id: text(it), ..none() }),
            spread("hash-property", "timestamp", |it| Properties { timestamp: Some(it), ..none() }),
        ];
        assert_eq!(spreads, [(8, 1); 4], "all queues by the value, one queue without it");
    }

    #[test]
    fn s7_consistent_hash_arguments_are_explained() {
        let validate = |arguments| Topology::validate_declare(ExchangeKind::ConsistentHash, &arguments);
        let [header, property] = ["hash-header", "hash-property"];
        let message_id = FieldValue::from("message_id");
        assert_eq!(validate(FieldTable::new()), Ok(()));
        let error = validate(table([(header, FieldValue::from("h")), (property, message_id)]));
        assert_eq!(error.unwrap_err(), "hash-header and hash-property are mutually exclusive");
        let error = validate(table([(property, FieldValue::from("app_id"))]));
        assert_eq!(error.unwrap_err(), "Unsupported property: app_id");
    }

    #[test]
    fn s7_consistent_hash_weights_are_explained() {
        let mut net = net(&[], FieldTable::new());
        let mut validate = |key: &str| {
            let binding = net.binding("x", "q", key, FieldTable::new());
            net.topology.validate_binding(&binding, Some("classic"))
        };
        for weight in ["1", "10000", "007", "+5"] {
            assert_eq!(validate(weight), Ok(()), "{weight}");
        }
        for weight in ["0", "-1", "-99999999999999999999"] {
            assert_eq!(validate(weight).unwrap_err(), "The binding key must be greater than 0");
        }
        for weight in ["10001", "99999999999999999999"] {
            assert_eq!(validate(weight).unwrap_err(), "The binding key must not exceed 10000");
        }
        for (weight, shown) in [("x", "<<\"x\">>"), ("", "<<>>"), ("1.5", "<<\"1.5\">>"), ("-", "<<\"-\">>")] {
            let expected = format!("The binding key must be an integer: {shown}");
            assert_eq!(validate(weight).unwrap_err(), expected);
        }
    }

    #[test]
    fn jump_moves_only_to_the_new_bucket() {
        for hash in (0..1000_u64).map(mix) {
            for buckets in 1..50 {
                let (before, after) = (jump(hash, buckets), jump(hash, buckets + 1));
                assert!(before < buckets && (after == before || after == buckets));
            }
        }
        assert!(jump(u64::MAX, 10_000 * 1_000_000) < 10_000 * 1_000_000);
    }

    /// Routes must not change with a new version.
    #[test]
    fn hashes_are_fixed() {
        assert_eq!(hash_bytes(b""), 0xF52A_15E9_A9B5_E89B);
    }
}
