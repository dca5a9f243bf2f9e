//! What the tests of the exchanges share: a vhost in which queues and exchanges go by their names. And a
//! comparison of [`Topology`] with a flat list of bindings that knows nothing of indexes.

use std::collections::{BTreeMap, BTreeSet};

use bytes::BytesMut;
use leveret_protocol::{FieldTable, FieldValue, Properties, RawProperties};
use proptest::prelude::*;
use slotmap::SlotMap;

use super::*;

/// A vhost to try things on. Queues come into being when they are first named.
#[derive(Default)]
pub(super) struct Net {
    pub(super) topology: Topology,
    queues: SlotMap<QueueKey, String>,
    queue_names: BTreeMap<String, QueueKey>,
    /// The random number of the next message.
    pub(super) random: u64,
}

impl Net {
    /// With one exchange of this kind, `x`.
    pub(super) fn new(kind: ExchangeKind) -> Self {
        let mut net = Self::default();
        net.exchange("x", kind);
        net
    }

    pub(super) fn exchange(&mut self, name: &str, kind: ExchangeKind) -> ExchangeKey {
        self.declare(exchange(name, kind))
    }

    /// Declares it with the alternate exchange that its arguments name.
    pub(super) fn declare(&mut self, mut exchange: Exchange) -> ExchangeKey {
        exchange.alternate = Exchange::alternate_of(&exchange.arguments);
        self.topology.declare(exchange)
    }

    pub(super) fn key(&self, exchange: &str) -> ExchangeKey {
        self.topology.find(exchange).expect("a test names an exchange that is there")
    }

    pub(super) fn queue(&mut self, name: &str) -> QueueKey {
        let queues = &mut self.queues;
        let new_queue = || queues.insert(name.to_owned());
        *self.queue_names.entry(name.to_owned()).or_insert_with(new_queue)
    }

    /// A binding to the exchange of that name, or else to the queue.
    pub(super) fn binding(
        &mut self,
        source: &str,
        destination: &str,
        binding_key: &str,
        arguments: FieldTable,
    ) -> Binding {
        let destination = match self.topology.find(destination) {
            Some(exchange) => Destination::Exchange(exchange),
            None => Destination::Queue(self.queue(destination)),
        };
        Binding::new(self.key(source), destination, binding_key.as_bytes(), arguments)
    }

    pub(super) fn bind(&mut self, source: &str, destination: &str, binding_key: &str) -> bool {
        self.bind_with(source, destination, binding_key, FieldTable::new())
    }

    pub(super) fn bind_with(
        &mut self,
        source: &str,
        destination: &str,
        binding_key: &str,
        arguments: FieldTable,
    ) -> bool {
        let binding = self.binding(source, destination, binding_key, arguments);
        self.topology.bind(binding).is_some()
    }

    pub(super) fn unbind(&mut self, source: &str, destination: &str, binding_key: &str) -> Removed {
        let binding = self.binding(source, destination, binding_key, FieldTable::new());
        self.topology.unbind(&binding)
    }

    /// The queues that a message from `x` with this key reaches, by name.
    pub(super) fn route(&mut self, routing_key: &str) -> Vec<String> {
        self.route_from("x", &[routing_key], &Properties::default())
    }

    /// As `route`, with headers and the empty key.
    pub(super) fn route_headers(&mut self, headers: FieldTable) -> Vec<String> {
        let properties = Properties { headers: Some(headers), ..Properties::default() };
        self.route_from("x", &[""], &properties)
    }

    pub(super) fn route_from(&mut self, start: &str, keys: &[&str], properties: &Properties) -> Vec<String> {
        let mut queues = self.route_in_order(start, keys, properties);
        queues.sort();
        queues
    }

    /// As `route_from`, in the order in which they were found.
    pub(super) fn route_in_order(&mut self, start: &str, keys: &[&str], properties: &Properties) -> Vec<String> {
        let (start, mut encoded, mut found) = (self.key(start), BytesMut::new(), Vec::new());
        properties.encode(&mut encoded);
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        let message = RouteInput { keys: &keys, properties: RawProperties::from_bytes(&encoded), random: self.random };
        let names = &self.queue_names;
        let find_queue = |name: &[u8]| names.get(std::str::from_utf8(name).ok()?).copied();
        self.topology.route(start, &message, &find_queue, &mut found);
        found.iter().map(|queue| self.queues[*queue].clone()).collect()
    }
}

/// A plain exchange of this kind.
pub(super) fn exchange(name: &str, kind: ExchangeKind) -> Exchange {
    Exchange {
        name: name.into(),
        kind,
        durable: false,
        auto_delete: false,
        internal: false,
        arguments: FieldTable::new(),
        alternate: None,
    }
}

pub(super) fn table<const N: usize>(fields: [(&str, FieldValue); N]) -> FieldTable {
    fields.into_iter().collect()
}

#[test]
fn kinds_have_the_names_of_the_wire() {
    for kind in ExchangeKind::ALL {
        assert_eq!(ExchangeKind::parse(kind.name()), Some(kind));
    }
    assert_eq!(ExchangeKind::parse("Direct"), None);
    assert_eq!(ExchangeKind::parse(""), None);
}

#[test]
fn alternate_exchange_argument_is_a_long_string() {
    let alternate = |value| Exchange::alternate_of(&table([("alternate-exchange", value)]));
    assert_eq!(alternate(FieldValue::from("ae")).as_deref(), Some("ae"));
    assert_eq!(alternate(FieldValue::I32(1)), None);
}

#[test]
fn s7_fanout_reaches_all_bindings() {
    let mut net = Net::new(ExchangeKind::Fanout);
    assert!(net.route("k").is_empty());
    net.bind("x", "q1", "a");
    net.bind("x", "q2", "");
    net.bind("x", "q1", "b");
    assert_eq!(net.route("k"), ["q1", "q2"]);
    net.unbind("x", "q1", "a");
    assert_eq!(net.route("k"), ["q1", "q2"]);
    net.unbind("x", "q1", "b");
    assert_eq!(net.route("k"), ["q2"]);
}

#[test]
fn s7_direct_compares_whole_keys() {
    let mut net = Net::new(ExchangeKind::Direct);
    let longest = "k".repeat(255);
    for (queue, key) in [("q1", "a"), ("q2", "A"), ("q3", ""), ("q4", "*"), ("q5", &*longest)] {
        net.bind("x", queue, key);
    }
    assert_eq!(net.route("a"), ["q1"]);
    assert_eq!(net.route("A"), ["q2"]);
    assert_eq!(net.route(""), ["q3"]);
    assert_eq!(net.route("*"), ["q4"]);
    assert_eq!(net.route(&longest), ["q5"]);
    assert!(net.route(&longest[1..]).is_empty());
}

#[test]
fn s8_2_further_keys_take_part_in_every_kind() {
    for (kind, key) in [(ExchangeKind::Direct, "b"), (ExchangeKind::Topic, "*")] {
        let mut net = Net::new(kind);
        net.bind("x", "q", key);
        let none = Properties::default();
        assert_eq!(net.route_from("x", &["a.a", "b", "b"], &none), ["q"], "{kind:?}");
        assert!(net.route_from("x", &["a.a"], &none).is_empty(), "{kind:?}");
    }
}

// The comparison with a flat list.

const EXCHANGES: [(&str, ExchangeKind, bool); 5] = [
    ("direct", ExchangeKind::Direct, false),
    ("fanout", ExchangeKind::Fanout, true),
    ("topic", ExchangeKind::Topic, true),
    ("headers", ExchangeKind::Headers, true),
    ("other", ExchangeKind::Direct, true),
];
const QUEUES: [&str; 4] = ["q0", "q1", "q2", "q3"];
const KEYS: [&str; 5] = ["", "a", "a.b", "*", "#"];

#[derive(Clone, Debug)]
enum Step {
    Declare(usize),
    Bind(FlatBinding),
    Unbind(FlatBinding),
    RemoveQueue(usize),
    RemoveExchange(usize),
    Alternate(usize, Option<usize>),
    Route { start: usize, key: usize, with_header: bool },
}

/// Positions in the lists above; destinations go on after the queues with the exchanges.
#[derive(Clone, Debug, PartialEq)]
struct FlatBinding {
    source: usize,
    destination: usize,
    key: usize,
    with_argument: bool,
}

#[derive(Default)]
struct Flat {
    /// The exchanges that are there, with their alternates.
    exchanges: BTreeMap<usize, Option<usize>>,
    bindings: Vec<FlatBinding>,
}

impl Flat {
    fn remove(&mut self, goes: &dyn Fn(&FlatBinding) -> bool) {
        let (gone, stay) = std::mem::take(&mut self.bindings).into_iter().partition(goes);
        self.bindings = stay;
        let gone: Vec<FlatBinding> = gone;
        for FlatBinding { source, .. } in gone {
            let unused = self.bindings.iter().all(|binding| binding.source != source);
            if EXCHANGES[source].2 && unused && self.exchanges.remove(&source).is_some() {
                self.remove(&|binding| binding.destination == QUEUES.len() + source);
            }
        }
    }

    fn route(&self, start: usize, key: &str, with_header: bool) -> BTreeSet<usize> {
        let (mut queues, mut visited, mut to_visit) = (BTreeSet::new(), BTreeSet::new(), vec![start]);
        while let Some(source) = to_visit.pop() {
            if !visited.insert(source) {
                continue;
            }
            let matches = |binding: &&FlatBinding| {
                let binding_key = KEYS[binding.key];
                binding.source == source
                    && match EXCHANGES[source].1 {
                        ExchangeKind::Topic => topic_matches(binding_key, key),
                        ExchangeKind::Headers => with_header || !binding.with_argument,
                        ExchangeKind::Fanout => true,
                        _ => binding_key == key,
                    }
            };
            let matched: Vec<_> = self.bindings.iter().filter(matches).collect();
            for binding in &matched {
                match binding.destination.checked_sub(QUEUES.len()) {
                    None => drop(queues.insert(binding.destination)),
                    Some(exchange) => to_visit.push(exchange),
                }
            }
            if let (true, Some(alternate)) = (matched.is_empty(), self.exchanges[&source]) {
                to_visit.extend(self.exchanges.contains_key(&alternate).then_some(alternate));
            }
        }
        queues
    }
}

/// Whether a topic binding key matches a routing key: the rule of reference 7, word for word.
pub(super) fn topic_matches(binding_key: &str, routing_key: &str) -> bool {
    fn words(key: &str) -> Vec<&str> {
        if key.is_empty() { Vec::new() } else { key.split('.').collect() }
    }
    fn matches(pattern: &[&str], key: &[&str]) -> bool {
        match pattern {
            [] => key.is_empty(),
            ["#", rest @ ..] => (0..=key.len()).any(|from| matches(rest, &key[from..])),
            [word, rest @ ..] => {
                key.first().is_some_and(|first| *word == "*" || word == first) && matches(rest, &key[1..])
            }
        }
    }
    matches(&words(binding_key), &words(routing_key))
}

fn step() -> impl Strategy<Value = Step> {
    let exchange = 0..EXCHANGES.len();
    let binding = || {
        let ends = (exchange.clone(), 0..QUEUES.len() + EXCHANGES.len());
        (ends, 0..KEYS.len(), any::<bool>()).prop_map(|((source, destination), key, with_argument)| FlatBinding {
            source,
            destination,
            key,
            with_argument,
        })
    };
    prop_oneof![
        3 => exchange.clone().prop_map(Step::Declare),
        8 => binding().prop_map(Step::Bind),
        4 => binding().prop_map(Step::Unbind),
        1 => (0..QUEUES.len()).prop_map(Step::RemoveQueue),
        1 => exchange.clone().prop_map(Step::RemoveExchange),
        1 => (exchange.clone(), prop::option::of(exchange.clone()))
            .prop_map(|(exchange, alternate)| Step::Alternate(exchange, alternate)),
        8 => (exchange.clone(), 0..KEYS.len(), any::<bool>())
            .prop_map(|(start, key, with_header)| Step::Route { start, key, with_header }),
    ]
}

/// Both sides of the comparison.
#[derive(Default)]
struct Pair {
    net: Net,
    flat: Flat,
}

impl Pair {
    /// Whether the ends are there.
    fn has_ends(&self, binding: &FlatBinding) -> bool {
        let destination = binding.destination.checked_sub(QUEUES.len());
        self.flat.exchanges.contains_key(&binding.source)
            && destination.is_none_or(|exchange| self.flat.exchanges.contains_key(&exchange))
    }

    fn real(&mut self, flat: &FlatBinding) -> Binding {
        let destination = match flat.destination.checked_sub(QUEUES.len()) {
            None => QUEUES[flat.destination],
            Some(exchange) => EXCHANGES[exchange].0,
        };
        let arguments = if flat.with_argument { header() } else { FieldTable::new() };
        self.net.binding(EXCHANGES[flat.source].0, destination, KEYS[flat.key], arguments)
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Declare(at) => {
                let (name, kind, auto_delete) = EXCHANGES[at];
                if self.net.topology.find(name).is_none() {
                    self.net.declare(Exchange { auto_delete, ..exchange(name, kind) });
                    self.flat.exchanges.insert(at, None);
                }
            }
            Step::Bind(flat) if self.has_ends(&flat) => {
                let binding = self.real(&flat);
                let is_new = !self.flat.bindings.contains(&flat);
                assert_eq!(self.net.topology.bind(binding).is_some(), is_new);
                if is_new {
                    self.flat.bindings.push(flat);
                }
            }
            Step::Unbind(flat) if self.has_ends(&flat) => {
                let binding = self.real(&flat);
                self.removes(|topology| topology.unbind(&binding), |other| *other == flat, None);
            }
            Step::RemoveQueue(at) => {
                let queue = self.net.queue(QUEUES[at]);
                self.removes(|it| it.remove_queue(queue), |other| other.destination == at, None);
            }
            Step::RemoveExchange(at) if self.flat.exchanges.contains_key(&at) => {
                let key = self.net.key(EXCHANGES[at].0);
                let goes = |other: &FlatBinding| other.source == at || other.destination == QUEUES.len() + at;
                self.removes(|topology| topology.remove_exchange(key), goes, Some(at));
            }
            Step::Alternate(at, alternate) if self.flat.exchanges.contains_key(&at) => {
                let key = self.net.key(EXCHANGES[at].0);
                let name = alternate.map(|alternate| EXCHANGES[alternate].0.into());
                self.net.topology.set_alternate(key, name);
                self.flat.exchanges.insert(at, alternate);
            }
            Step::Route { start, key, with_header } if self.flat.exchanges.contains_key(&start) => {
                let headers = with_header.then(header);
                let properties = Properties { headers, ..Properties::default() };
                let real = self.net.route_from(EXCHANGES[start].0, &[KEYS[key]], &properties);
                let flat = self.flat.route(start, KEYS[key], with_header);
                assert_eq!(real, flat.iter().map(|at| QUEUES[*at]).collect::<Vec<_>>());
            }
            _ => {}
        }
        self.check();
    }

    /// Removes on both sides, and compares what went.
    fn removes(
        &mut self,
        real: impl FnOnce(&mut Topology) -> Removed,
        goes: impl Fn(&FlatBinding) -> bool,
        exchange: Option<usize>,
    ) {
        let before = (self.flat.bindings.len(), self.flat.exchanges.len());
        let epoch = self.net.topology.epoch();
        let removed = real(&mut self.net.topology);
        if let Some(at) = exchange {
            self.flat.exchanges.remove(&at);
        }
        self.flat.remove(&goes);
        assert_eq!(removed.bindings.len(), before.0 - self.flat.bindings.len());
        assert_eq!(removed.exchanges.len(), before.1 - self.flat.exchanges.len());
        let changed = !removed.bindings.is_empty() || !removed.exchanges.is_empty();
        assert_eq!(self.net.topology.epoch() != epoch, changed);
    }

    /// The lists agree, order included.
    fn check(&mut self) {
        let flat: Vec<FlatBinding> = self.flat.bindings.clone();
        let expected: Vec<Binding> = flat.iter().map(|binding| self.real(binding)).collect();
        let topology = &self.net.topology;
        let mut names: Vec<&str> = self.flat.exchanges.keys().map(|at| EXCHANGES[*at].0).collect();
        names.sort_unstable();
        assert!(topology.iter().map(|(_, exchange)| &*exchange.name).eq(names));
        assert!(topology.bindings().map(|(_, binding)| &**binding).eq(&expected));
        for (source, exchange) in topology.iter() {
            let of_source = expected.iter().filter(|binding| binding.source == source);
            assert_eq!(topology.has_bindings(source), of_source.clone().next().is_some());
            assert!(topology.bindings_of_source(source).map(|(_, binding)| &**binding).eq(of_source));
            let end = Destination::Exchange(topology.find(&exchange.name).unwrap());
            let to = expected.iter().filter(|binding| binding.destination == end);
            assert!(topology.bindings_of_destination(end).map(|(_, binding)| &**binding).eq(to));
        }
    }
}

fn header() -> FieldTable {
    table([("h", FieldValue::I32(1))])
}

proptest! {
    /// Whatever is bound, unbound and removed: lists, cascades and routes are those of the flat list.
    #[test]
    fn topology_is_a_flat_list_of_bindings(steps in prop::collection::vec(step(), 1..80)) {
        let mut pair = Pair::default();
        for at in 0..EXCHANGES.len() {
            pair.apply(Step::Declare(at));
        }
        for step in steps {
            pair.apply(step);
        }
    }

    /// Two topologies with the same history route in the same order, though their hash maps differ.
    #[test]
    fn equal_histories_give_equal_order(steps in prop::collection::vec(step(), 1..80)) {
        let mut pairs = [Pair::default(), Pair::default()];
        for at in 0..EXCHANGES.len() {
            pairs.iter_mut().for_each(|pair| pair.apply(Step::Declare(at)));
        }
        for step in steps {
            pairs.iter_mut().for_each(|pair| pair.apply(step.clone()));
        }
        let properties = Properties { headers: Some(header()), ..Properties::default() };
        for at in pairs[0].flat.exchanges.clone().into_keys() {
            for key in KEYS {
                let [one, other] = &mut pairs;
                let [one, other] =
                    [one, other].map(|pair| pair.net.route_in_order(EXCHANGES[at].0, &[key], &properties));
                prop_assert_eq!(one, other);
            }
        }
    }
}
