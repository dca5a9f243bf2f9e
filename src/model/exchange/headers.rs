//! `headers`: the arguments of a binding are compared with the headers of a message; keys are ignored.
//!
//! `x-match` says how: `all` (the default) or `any` of the arguments, where those whose name starts with `x-`
//! do not count; with `all-with-x` and `any-with-x` they do. An argument of type void wants the header with
//! whatever value; how others compare is said in `header_value.rs`.
//!
//! No message is compared with every binding. A binding for `all` is one rule with all its terms, filed under
//! one of them, the rarest at the time; a binding for `any` is one rule for each of its terms. A message looks
//! up those of its headers whose names are in use, and only the rules that it finds are compared in full.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use leveret_protocol::FieldValue;
use smallvec::SmallVec;

use super::hash_index::PrehashedMap;
use super::header_value::{Comparable, EncodedValue};
use super::{Binding, Destinations, Matched, Matching, RouteInput, erlang, take_out};
use crate::model::ids::Destination;

#[derive(Debug, Default)]
pub(super) struct Headers {
    /// Bindings for `all` without any argument that counts: they match every message.
    unconditional: Destinations,
    /// Every name in the terms of the rules.
    names: HashMap<Arc<[u8]>, Named>,
    value_hash_key: RandomState,
}

/// What goes by the name of a header.
#[derive(Debug, Default)]
struct Named {
    /// How many terms have the name, filed here or not.
    term_count: usize,
    /// The rules filed under the name with any value, and under the hash of a value. The latter are not empty.
    any_value: Rules,
    by_value: PrehashedMap<Rules>,
}

/// Rules filed in one place.
type Rules = SmallVec<[Rule; 1]>;

/// A message that fulfils each of the terms goes to the destination.
#[derive(Debug)]
struct Rule {
    ordinal: u64,
    destination: Destination,
    terms: Box<[Term]>,
}

/// What a rule wants of one header.
#[derive(Debug)]
struct Term {
    /// Shared with the key of `names`.
    name: Arc<[u8]>,
    /// `None`: any value will do.
    value: Option<EncodedValue>,
}

/// How the arguments of a binding count.
#[derive(Clone, Copy)]
struct Match {
    any: bool,
    /// Whether arguments with names in `x-` count.
    with_x: bool,
}

impl Match {
    fn parse(name: &[u8]) -> Option<Self> {
        let (any, with_x) = match name {
            b"all" => (false, false),
            b"any" => (true, false),
            b"all-with-x" => (false, true),
            b"any-with-x" => (true, true),
            _ => return None,
        };
        Some(Self { any, with_x })
    }

    /// Errors: the explanation of the 406.
    fn of(binding: &Binding) -> Result<Self, String> {
        let value = match binding.arguments().get("x-match") {
            None => {
                return Ok(Self { any: false, with_x: false });
            }
            Some(FieldValue::LongString(value)) => value,
            Some(other) => {
                let (type_name, value) = (other.type_name(), erlang::term(other));
                return Err(format!("Invalid x-match field type {type_name} (value {value}); expected longstr"));
            }
        };
        Self::parse(value).ok_or_else(|| {
            let value = erlang::binary(value);
            format!("Invalid x-match field value {value}; expected all, any, all-with-x, or any-with-x")
        })
    }

    fn counts(self, name: &[u8]) -> bool {
        name != b"x-match" && (self.with_x || !name.starts_with(b"x-"))
    }
}

/// The argument `x-match` must say one of the four ways.
pub(super) fn validate_binding(binding: &Binding) -> Result<(), String> {
    Match::of(binding).map(drop)
}

impl Headers {
    /// How a binding matches, and its terms. A wrong `x-match` counts as none.
    fn terms_of(&self, binding: &Binding) -> (Match, Vec<Term>) {
        let how = Match::of(binding).unwrap_or(Match { any: false, with_x: false });
        let counting = binding.arguments().iter().filter(|(name, _)| how.counts(name));
        let terms = counting.map(|(name, value)| Term {
            name: match self.names.get_key_value(&**name) {
                Some((shared, _)) => shared.clone(),
                None => Arc::from(&**name),
            },
            value: (*value != FieldValue::Void).then(|| EncodedValue::new(value)),
        });
        (how, terms.collect())
    }

    /// How many rules are filed where this term would send one.
    fn filed_count(&self, term: &Term) -> usize {
        self.names.get(&term.name).map_or(0, |named| match &term.value {
            None => named.any_value.len(),
            Some(value) => named.by_value.get(&self.hash(value.comparable())).map_or(0, SmallVec::len),
        })
    }

    /// Adds a rule, filed under the term at this position.
    fn file(&mut self, position: usize, rule: Rule) {
        for term in &rule.terms {
            self.names.entry(term.name.clone()).or_default().term_count += 1;
        }
        let term = &rule.terms[position];
        let hash = term.value.as_ref().map(|value| self.hash(value.comparable()));
        let named = self.names.get_mut(&term.name).expect("the names of a rule have been added");
        match hash {
            None => named.any_value.push(rule),
            Some(hash) => named.by_value.entry(hash).or_default().push(rule),
        }
    }

    /// Takes out a rule of this binding from where this term sends it, if it is there; and the term.
    fn unfile(&mut self, term: &Term, ordinal: u64) {
        let hash = term.value.as_ref().map(|value| self.hash(value.comparable()));
        let named = self.names.get_mut(&term.name).expect("the names of a binding that was bound are there");
        let rules = match hash {
            None => Some(&mut named.any_value),
            Some(hash) => named.by_value.get_mut(&hash),
        };
        if let Some(rules) = rules
            && let Some(position) = rules.iter().position(|rule| rule.ordinal == ordinal)
        {
            rules.swap_remove(position);
            if let (true, Some(hash)) = (rules.is_empty(), hash) {
                named.by_value.remove(&hash);
            }
        }
        named.term_count -= 1;
        if named.term_count == 0 {
            self.names.remove(&term.name);
        }
    }

    #[inline]
    fn hash(&self, value: Comparable<'_>) -> u64 {
        self.value_hash_key.hash_one(value)
    }
}

impl Matching for Headers {
    fn bind(&mut self, ordinal: u64, binding: &Binding) {
        let destination = binding.destination;
        let (how, terms) = self.terms_of(binding);
        if how.any {
            for term in terms {
                self.file(0, Rule { ordinal, destination, terms: [term].into() });
            }
        } else {
            match (0..terms.len()).min_by_key(|position| self.filed_count(&terms[*position])) {
                Some(rarest) => self.file(rarest, Rule { ordinal, destination, terms: terms.into() }),
                None => self.unconditional.push(destination),
            }
        }
    }

    fn unbind(&mut self, ordinal: u64, binding: &Binding) {
        let (how, terms) = self.terms_of(binding);
        if terms.is_empty() && !how.any {
            take_out(&mut self.unconditional, binding.destination);
        }
        for term in &terms {
            self.unfile(term, ordinal);
        }
    }

    fn route(&mut self, message: &RouteInput<'_>, matched: &mut Matched<'_>) {
        for destination in &self.unconditional {
            matched.add(*destination);
        }
        if self.names.is_empty() {
            return;
        }
        let headers = HeadersInUse::of(message, &self.names);
        for header in &headers.0 {
            let by_value = match header.named.by_value.is_empty() {
                true => None,
                false => header.named.by_value.get(&self.hash(header.value)),
            };
            for rule in header.named.any_value.iter().chain(by_value.into_iter().flatten()) {
                if headers.fulfil(&rule.terms) {
                    matched.add(rule.destination);
                }
            }
        }
    }

    fn by_keys_only(&self) -> bool {
        false
    }
}

/// The headers of one message whose names are in use, by name. A name is there once.
struct HeadersInUse<'a>(SmallVec<[Header<'a>; 8]>);

struct Header<'a> {
    name: &'a [u8],
    value: Comparable<'a>,
    named: &'a Named,
}

impl<'a> HeadersInUse<'a> {
    fn of(message: &RouteInput<'a>, names: &'a HashMap<Arc<[u8]>, Named>) -> Self {
        let mut headers = SmallVec::<[Header<'_>; 8]>::new();
        let table = message.properties.headers();
        for (name, value) in table.into_iter().flatten().map_while(Result::ok) {
            if let Some(named) = names.get(name) {
                headers.push(Header { name, value: Comparable::of(value), named });
            }
        }
        // Sorted, for a peer may send thousands. Of several with a name the last counts: the sort is stable,
        // and `dedup_by` gives the later one first.
        headers.sort_by(|one, other| one.name.cmp(other.name));
        headers.dedup_by(|later, earlier| {
            let same = later.name == earlier.name;
            if same {
                std::mem::swap(later, earlier);
            }
            same
        });
        Self(headers)
    }

    fn fulfil(&self, terms: &[Term]) -> bool {
        terms.iter().all(|term| {
            let found = self.0.binary_search_by(|header| header.name.cmp(&term.name));
            found.is_ok_and(|at| term.value.as_ref().is_none_or(|value| value.comparable() == self.0[at].value))
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use leveret_protocol::{FieldTable, ShortName};
    use proptest::prelude::*;

    use super::super::ExchangeKind;
    use super::super::tests::{Net, table};
    use super::*;
    use FieldValue::{Array, Bool, ByteArray, Decimal, F32, F64, I8, I32, I64, Table, Timestamp, U16, U32, Void};

    fn matches(arguments: FieldTable, headers: FieldTable) -> bool {
        let mut net = Net::new(ExchangeKind::Headers);
        net.bind_with("x", "q", "", arguments);
        !net.route_headers(headers).is_empty()
    }

    /// With these arguments besides `x-match`.
    fn matching<const N: usize>(x_match: &str, arguments: [(&str, FieldValue); N]) -> FieldTable {
        let mut table = table(arguments);
        table.insert("x-match", x_match);
        table
    }

    fn text(text: &str) -> FieldValue {
        FieldValue::from(text)
    }

    fn both() -> [(&'static str, FieldValue); 2] {
        [("a", I32(1)), ("b", text("v"))]
    }

    #[test]
    fn s7_headers_all_is_the_default() {
        for arguments in [table(both()), matching("all", both())] {
            assert!(matches(arguments.clone(), table(both())));
            assert!(matches(arguments.clone(), table([("c", Void), both()[1].clone(), both()[0].clone()])));
            assert!(!matches(arguments.clone(), table([("a", I32(1))])));
            assert!(!matches(arguments, table([("a", I32(1)), ("b", text("w"))])));
        }
    }

    #[test]
    fn s7_headers_any_wants_one() {
        let arguments = matching("any", both());
        assert!(matches(arguments.clone(), table([("a", I32(1))])));
        assert!(matches(arguments.clone(), table([("a", I32(2)), ("b", text("v"))])));
        assert!(!matches(arguments.clone(), table([("a", I32(2)), ("c", text("v"))])));
        assert!(!matches(arguments, FieldTable::new()));
    }

    #[test]
    fn s7_headers_all_with_none_matches_everything() {
        let mut net = Net::new(ExchangeKind::Headers);
        net.bind("x", "q1", "");
        net.bind_with("x", "q2", "", matching("all-with-x", []));
        net.bind_with("x", "q3", "", table([("x-a", I32(1))]));
        assert_eq!(net.route("no headers"), ["q1", "q2", "q3"]);
        assert_eq!(net.route_headers(table(both())), ["q1", "q2", "q3"]);
    }

    #[test]
    fn s7_headers_any_with_none_matches_nothing() {
        for x_match in ["any", "any-with-x"] {
            assert!(!matches(matching(x_match, []), table(both())));
        }
        assert!(!matches(matching("any", [("x-a", I32(1))]), table([("x-a", I32(1))])));
    }

    #[test]
    fn s7_headers_void_matches_presence() {
        for x_match in ["all", "any"] {
            let arguments = matching(x_match, [("a", Void)]);
            assert!(matches(arguments.clone(), table([("a", I32(7))])));
            assert!(matches(arguments.clone(), table([("a", Void)])));
            assert!(!matches(arguments, table([("b", Void)])));
        }
        assert!(!matches(table([("a", I32(1))]), table([("a", Void)])));
    }

    #[test]
    fn s7_headers_x_names_count_only_with_x() {
        let arguments = [("x-a", I32(1)), ("b", I32(2))];
        assert!(matches(matching("all", arguments.clone()), table([("b", I32(2))])));
        assert!(!matches(matching("any", arguments.clone()), table([("x-a", I32(1))])));
        assert!(!matches(matching("all-with-x", arguments.clone()), table([("b", I32(2))])));
        assert!(matches(matching("all-with-x", arguments.clone()), table(arguments.clone())));
        assert!(matches(matching("any-with-x", arguments), table([("x-a", I32(1))])));
        // Its own name never counts.
        let of_its_own = table([("x-match", text("any-with-x"))]);
        assert!(!matches(of_its_own.clone(), of_its_own));
    }

    /// As RabbitMQ 4.0.5 answered, but for timestamps.
    #[test]
    fn s7_headers_values_compare_as_decoded() {
        let nested = |value| Table(table([("n", value)]));
        let bytes = |text: &'static str| ByteArray(Bytes::from_static(text.as_bytes()));
        let equal = [
            (I8(5), U32(5)),
            (I64(-5), I8(-5)),
            (U16(40000), I32(40000)),
            (F32(1.5), F64(1.5)),
            (text("v"), bytes("v")),
            (Bool(true), Bool(true)),
            (Timestamp(5), Timestamp(5)),
            (Decimal { scale: 1, value: 10 }, Decimal { scale: 1, value: 10 }),
            (nested(I32(1)), nested(I32(1))),
            (nested(Timestamp(5)), nested(Timestamp(5))),
            (Array(vec![I32(1), text("v")]), Array(vec![I32(1), text("v")])),
        ];
        let different = [
            (I32(1), F64(1.0)),
            (F64(0.0), F64(-0.0)),
            (Bool(true), I32(1)),
            (text("1"), I32(1)),
            (text("true"), Bool(true)),
            (text("v"), text("V")),
            (Timestamp(5), I64(5)),
            (Decimal { scale: 1, value: 10 }, Decimal { scale: 0, value: 1 }),
            (nested(I32(1)), nested(I64(1))),
            (Array(vec![I32(1), I32(2)]), Array(vec![I32(2), I32(1)])),
            (Array(vec![text("v")]), Array(vec![bytes("v")])),
        ];
        for (cases, expected) in [(equal, true), (different, false)] {
            for (one, other) in cases {
                for (want, have) in [(&one, &other), (&other, &one)] {
                    let matched = matches(table([("a", want.clone())]), table([("a", have.clone())]));
                    assert_eq!(matched, expected, "{want:?} and {have:?}");
                }
            }
        }
    }

    #[test]
    fn s7_headers_last_of_a_name_counts() {
        let twice = || table([("a", I32(1)), ("a", I32(2))]);
        assert!(matches(table([("a", I32(2))]), twice()));
        assert!(!matches(table([("a", I32(1))]), twice()));
        assert!(!matches(twice(), twice()), "both arguments cannot be fulfilled");
        assert!(matches(table([("a", Void)]), twice()));
    }

    #[test]
    fn s7_headers_wrong_x_match_is_explained() {
        let validate = |value: FieldValue| {
            let mut net = Net::new(ExchangeKind::Headers);
            let binding = net.binding("x", "q", "", table([("x-match", value)]));
            net.topology.validate_binding(&binding, Some("classic"))
        };
        for value in ["all", "any", "all-with-x", "any-with-x"] {
            assert_eq!(validate(text(value)), Ok(()));
        }
        let expected = "Invalid x-match field value <<\"foo\">>; expected all, any, all-with-x, or any-with-x";
        assert_eq!(validate(text("foo")).unwrap_err(), expected);
        let expected = "Invalid x-match field type signedint (value 5); expected longstr";
        assert_eq!(validate(I32(5)).unwrap_err(), expected);
        let expected = "Invalid x-match field type bool (value true); expected longstr";
        assert_eq!(validate(Bool(true)).unwrap_err(), expected);
    }

    #[test]
    fn unbinding_leaves_nothing() {
        let mut net = Net::new(ExchangeKind::Headers);
        let mut headers = Headers::default();
        let all = [
            table(both()),
            matching("any", [("a", I32(1)), ("a", I64(1)), ("c", Void)]),
            matching("any", []),
            FieldTable::new(),
        ];
        let bindings = all.map(|arguments| net.binding("x", "q", "", arguments));
        for (ordinal, binding) in bindings.iter().enumerate() {
            headers.bind(ordinal as u64, binding);
        }
        for (ordinal, binding) in bindings.iter().enumerate() {
            headers.unbind(ordinal as u64, binding);
        }
        assert!(headers.names.is_empty() && headers.unconditional.is_empty());
    }

    /// A thousand bindings that share a term are told apart by their other one.
    #[test]
    fn all_is_filed_under_its_rarest_term() {
        let mut net = Net::new(ExchangeKind::Headers);
        let mut headers = Headers::default();
        for id in 0..1000 {
            let arguments = table([("a-type", text("order")), ("id", I32(id))]);
            headers.bind(id as u64, &net.binding("x", "q", "", arguments));
        }
        assert_eq!(headers.names[&b"id"[..]].by_value.len(), 999);
        assert!(headers.names.values().flat_map(|named| named.by_value.values()).all(|rules| rules.len() == 1));
    }

    fn value() -> impl Strategy<Value = FieldValue> {
        let values = vec![I32(0), I64(0), I32(1), text("0"), Bool(false), F64(0.0), Void, Array(vec![])];
        prop::sample::select(values)
    }

    fn fields() -> impl Strategy<Value = FieldTable> {
        let name = prop::sample::select(vec!["a", "b", "c", "x-a"]);
        prop::collection::vec((name, value()), 0..4).prop_map(|fields| fields.into_iter().collect())
    }

    /// The rule of reference 7, word for word.
    fn rule_matches(x_match: Option<&str>, arguments: &FieldTable, headers: &FieldTable) -> bool {
        let x_match = x_match.unwrap_or("all");
        let counts = |name: &str| x_match.ends_with("-with-x") || !name.starts_with("x-");
        let equal = |one: &FieldValue, other: &FieldValue| match (one.as_integer(), other.as_integer()) {
            (None, None) => one == other,
            (one, other) => one == other,
        };
        let fulfilled = |(name, want): &(ShortName, FieldValue)| {
            let header = headers.iter().rev().find(|(other, _)| other == name);
            header.is_some_and(|(_, have)| *want == Void || equal(want, have))
        };
        let mut counting = arguments.iter().filter(|(name, _)| name.as_str().is_some_and(counts));
        if x_match.starts_with("all") { counting.all(fulfilled) } else { counting.any(fulfilled) }
    }

    proptest! {
        /// After any binds and unbinds the index says what the rule says of each binding that is left.
        #[test]
        fn index_matches_like_the_rule(
            bound in prop::collection::vec(
                (
                    prop::sample::select(vec![
                        None, Some("all"), Some("any"), Some("all-with-x"), Some("any-with-x"),
                    ]),
                    fields(),
                    any::<bool>(),
                ),
                1..25,
            ),
            messages in prop::collection::vec(fields(), 1..20),
        ) {
            let mut net = Net::new(ExchangeKind::Headers);
            let with_match = |at: usize| {
                let mut arguments = bound[at].1.clone();
                if let Some(x_match) = bound[at].0 {
                    arguments.insert("x-match", x_match);
                }
                arguments
            };
            let queue = |at: usize| format!("q{at:02}");
            for at in 0..bound.len() {
                net.bind_with("x", &queue(at), "", with_match(at));
            }
            for at in (0..bound.len()).filter(|at| !bound[*at].2) {
                let binding = net.binding("x", &queue(at), "", with_match(at));
                prop_assert_eq!(net.topology.unbind(&binding).bindings.len(), 1);
            }
            for headers in messages {
                let expected: Vec<String> = (0..bound.len())
                    .filter(|at| bound[*at].2 && rule_matches(bound[*at].0, &bound[*at].1, &headers))
                    .map(queue)
                    .collect();
                prop_assert_eq!(net.route_headers(headers), expected);
            }
        }
    }
}
