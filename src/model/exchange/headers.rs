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
mod tests;
