//! The exchanges of one vhost: their kinds, their bindings, and the walk from a message to its queues
//! (reference 4, 6, 7).
//!
//! [`Topology`] is the whole; each kind has a file of its own with its matching structure, its rules for
//! arguments and its tests. Nothing here knows connections, permissions, the store or messages as such:
//! names of queues come and go as keys, and what a removal took away is handed to the caller to record.
//!
//! Invariants: the matching structure of an exchange holds exactly its bindings as a source; hash maps are
//! only ever looked up, never iterated, so that equal histories give equal routes.
//!
//! A new kind: its file with an `impl Matching`, and an arm in each `match` of [`ExchangeKind`].

mod bindings;
mod consistent_hash;
mod delayed;
mod direct;
pub(super) mod erlang;
mod fanout;
mod hash_index;
mod header_value;
mod headers;
mod modulus_hash;
mod random;
mod recent_history;
mod topic;
mod topology;

use std::fmt::Debug;

use leveret_protocol::{FieldTable, FieldValue, RawProperties};
use slotmap::SecondaryMap;
use smallvec::SmallVec;

pub use self::bindings::Binding;
pub use self::delayed::with_negated_delay;
pub use self::topology::{Removed, RemovedBinding, Topology};
use crate::model::ids::{Destination, ExchangeKey, QueueKey};
use crate::model::record::Name;

/// How an exchange chooses among its bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExchangeKind {
    Direct,
    Fanout,
    Topic,
    Headers,
    ConsistentHash,
    ModulusHash,
    Random,
    LocalRandom,
    RecentHistory,
    Delayed,
}

impl ExchangeKind {
    /// Every kind that a client may declare.
    pub const ALL: [Self; 10] = [
        Self::Direct,
        Self::Fanout,
        Self::Topic,
        Self::Headers,
        Self::ConsistentHash,
        Self::ModulusHash,
        Self::Random,
        Self::LocalRandom,
        Self::RecentHistory,
        Self::Delayed,
    ];

    /// The kind that `exchange.declare` means by this type, case-sensitive.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The type as clients and the management API write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Topic => "topic",
            Self::Headers => "headers",
            Self::ConsistentHash => "x-consistent-hash",
            Self::ModulusHash => "x-modulus-hash",
            Self::Random => "x-random",
            Self::LocalRandom => "x-local-random",
            Self::RecentHistory => "x-recent-history",
            Self::Delayed => "x-delayed-message",
        }
    }

    /// An empty matching structure. The declare arguments have passed [`Topology::validate_declare`];
    /// what is wrong in them all the same counts as absent.
    fn matching(self, arguments: &FieldTable) -> Box<dyn Matching> {
        match self {
            Self::Direct => Box::new(direct::Direct::default()),
            Self::Fanout => Box::new(fanout::Fanout::default()),
            Self::Topic => Box::new(topic::Topic::default()),
            Self::Headers => Box::new(headers::Headers::default()),
            Self::ConsistentHash => Box::new(consistent_hash::ConsistentHash::new(arguments)),
            Self::ModulusHash => Box::new(modulus_hash::ModulusHash::default()),
            Self::Random | Self::LocalRandom => Box::new(random::Random::default()),
            Self::RecentHistory => Box::new(recent_history::RecentHistory::default()),
            Self::Delayed => Box::new(delayed::Delayed::new(arguments)),
        }
    }

    /// The rules of the kind for declare arguments. Errors: the explanation of the 406 (reference 7).
    fn validate_declare(self, arguments: &FieldTable) -> Result<(), String> {
        match self {
            Self::ConsistentHash => consistent_hash::validate_declare(arguments),
            Self::RecentHistory => recent_history::validate_declare(arguments),
            Self::Delayed => delayed::validate_declare(arguments),
            Self::Direct
            | Self::Fanout
            | Self::Topic
            | Self::Headers
            | Self::ModulusHash
            | Self::Random
            | Self::LocalRandom => Ok(()),
        }
    }

    /// The rules of the kind for a binding; `queue_type` as in [`Topology::validate_binding`]. To be asked of
    /// [`Exchange::routing_kind`].
    /// Errors: the explanation of the 406 (reference 7).
    fn validate_binding(self, binding: &Binding, queue_type: Option<&str>) -> Result<(), String> {
        match self {
            Self::Headers => headers::validate_binding(binding),
            Self::ConsistentHash => consistent_hash::validate_binding(binding),
            Self::LocalRandom => random::validate_local_binding(binding, queue_type),
            Self::Direct
            | Self::Fanout
            | Self::Topic
            | Self::ModulusHash
            | Self::Random
            | Self::RecentHistory
            | Self::Delayed => Ok(()),
        }
    }
}

/// One exchange. Plain data: its bindings and matching structure lie in the [`Topology`].
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// `""` is the default exchange, which routes to queues by name and has no bindings.
    pub name: Name,
    pub kind: ExchangeKind,
    pub durable: bool,
    /// Goes when its last binding as a source goes (reference 4.2).
    pub auto_delete: bool,
    /// Clients cannot publish to it.
    pub internal: bool,
    /// As declared; all are kept, few are looked at.
    pub arguments: FieldTable,
    /// The alternate exchange in effect, by argument or by policy. It need not exist.
    pub alternate: Option<Name>,
}

impl Exchange {
    /// The alternate exchange that the declare arguments name, if any (a long string in UTF-8).
    pub fn alternate_of(arguments: &FieldTable) -> Option<Name> {
        arguments.get("alternate-exchange").and_then(FieldValue::as_str).map(Name::from)
    }

    /// The kind that chooses among the bindings: for `x-delayed-message` the one it was declared with.
    pub fn routing_kind(&self) -> ExchangeKind {
        match self.kind {
            ExchangeKind::Delayed => delayed::underlying(&self.arguments).unwrap_or(ExchangeKind::Direct),
            kind => kind,
        }
    }

    /// How many messages it keeps for queues that are bound later, if it does (`x-recent-history`).
    pub fn history_length(&self) -> Option<usize> {
        (self.routing_kind() == ExchangeKind::RecentHistory).then(|| recent_history::length(&self.arguments))
    }
}

/// Why an exchange wants a message for itself, beside or instead of routing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// To route it once so many milliseconds have passed (`x-delayed-message`).
    Delay(u64),
    /// To give it to queues that are bound later (`x-recent-history`).
    Remember,
}

/// The exchanges of one walk that want the message, in the order in which they were visited.
pub type Keepers = SmallVec<[(ExchangeKey, Keep); 1]>;

/// What routing looks at in a message.
#[derive(Clone, Copy, Debug)]
pub struct RouteInput<'a> {
    /// The routing key of the publish, then those of its CC and BCC headers (reference 8.2).
    pub keys: &'a [&'a [u8]],
    /// As received and checked.
    pub properties: RawProperties<'a>,
    /// Uniformly random; only the random kinds look at it.
    pub random: u64,
}

/// What each kind must do. Bindings are given with their ordinal, which grows with every new binding
/// of the vhost and orders those of one exchange for the kinds to which order matters.
trait Matching: Debug + Send {
    /// Takes in a binding that it does not have. It has passed [`Topology::validate_binding`], or was
    /// kept by an older version: what is wrong in it matches something harmless, and never panics.
    fn bind(&mut self, ordinal: u64, binding: &Binding);

    /// Forgets a binding that it has.
    fn unbind(&mut self, ordinal: u64, binding: &Binding);

    /// Adds the destinations of the message, in an order that depends on the history of calls alone.
    /// A destination may be added more than once.
    fn route(&mut self, message: &RouteInput<'_>, matched: &mut Matched<'_>);

    /// Whether `route` looks at nothing but the keys.
    fn by_keys_only(&self) -> bool {
        true
    }
}

/// Some destinations; nearly always one. Duplicates stand for several bindings.
type Destinations = SmallVec<[Destination; 1]>;

/// Takes out one of the equal ones. Order is not kept: a removal must not move thousands of others.
fn take_out(destinations: &mut Destinations, destination: Destination) {
    let position = destinations.iter().position(|other| *other == destination);
    destinations.swap_remove(position.expect("a binding that was bound is there to unbind"));
}

/// Collects what the exchanges of one walk match: each queue once, each exchange visited once.
struct Matched<'a> {
    /// For each queue, the last walk that reached it; so too for exchanges. Cheaper than a set per walk.
    queues_reached: &'a mut SecondaryMap<QueueKey, u64>,
    exchanges_reached: &'a mut SecondaryMap<ExchangeKey, u64>,
    /// The number of this walk; it never comes again.
    walk: u64,
    queues: &'a mut Vec<QueueKey>,
    /// Exchanges to visit, in order, those visited included.
    exchanges: &'a mut Vec<ExchangeKey>,
    keepers: &'a mut Keepers,
    /// The exchange being visited.
    at: ExchangeKey,
    /// Whether the exchange being visited has matched anything, reached before or not.
    any: bool,
    random: u64,
}

impl Matched<'_> {
    #[inline]
    fn add(&mut self, destination: Destination) {
        self.any = true;
        match destination {
            Destination::Queue(queue) => {
                if self.queues_reached.insert(queue, self.walk) != Some(self.walk) {
                    self.queues.push(queue);
                }
            }
            Destination::Exchange(exchange) => self.visit(exchange),
        }
    }

    /// The exchange being visited wants the message. One that delays it has matched, though nothing is reached yet.
    fn keep(&mut self, keep: Keep) {
        self.any |= matches!(keep, Keep::Delay(_));
        self.keepers.push((self.at, keep));
    }

    #[inline]
    fn visit(&mut self, exchange: ExchangeKey) {
        if self.exchanges_reached.insert(exchange, self.walk) != Some(self.walk) {
            self.exchanges.push(exchange);
        }
    }

    /// The next number, uniform below `bound`, of the sequence that the message's random number starts.
    fn random_below(&mut self, bound: usize) -> usize {
        // SplitMix64: several random exchanges of one walk must not choose alike.
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let scaled = u128::from(mix(self.random)) * bound as u128;
        (scaled >> 64) as usize
    }
}

/// Spreads the bits of a number over all 64 (the finalizer of SplitMix64). Fixed for all time: routes of
/// hash exchanges depend on it.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests;
