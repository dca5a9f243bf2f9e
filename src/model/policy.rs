//! Policies: settings that operators give to queues and exchanges by the pattern of their names (§15).
//!
//! At most one policy and one operator policy apply to a thing: of those that match and whose keys its type
//! knows, the one of highest priority. Both are merged, then merged with the thing's own arguments.
//! This file decides what is in effect; `broker/policies.rs` lets queues feel it.

use std::collections::BTreeMap;

use leveret_protocol::{FieldTable, FieldValue};
use regex::Regex;

use super::arguments::{Overflow, QueueSettings, QueueType, RetryType, duration_ms};
use super::record::Name;

/// What a policy may apply to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApplyTo {
    #[default]
    All,
    Queues,
    ClassicQueues,
    QuorumQueues,
    Streams,
    Exchanges,
}

impl ApplyTo {
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "all" => Self::All,
            "queues" => Self::Queues,
            "classic_queues" => Self::ClassicQueues,
            "quorum_queues" => Self::QuorumQueues,
            "streams" => Self::Streams,
            "exchanges" => Self::Exchanges,
            _ => return None,
        })
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Queues => "queues",
            Self::ClassicQueues => "classic_queues",
            Self::QuorumQueues => "quorum_queues",
            Self::Streams => "streams",
            Self::Exchanges => "exchanges",
        }
    }

    fn covers(self, target: Target) -> bool {
        matches!(
            (self, target),
            (Self::All, _)
                | (Self::Exchanges, Target::Exchange)
                | (Self::Queues, Target::Queue(_))
                | (Self::ClassicQueues, Target::Queue(QueueType::Classic))
                | (Self::QuorumQueues, Target::Queue(QueueType::Quorum))
                | (Self::Streams, Target::Queue(QueueType::Stream))
        )
    }
}

/// What a policy is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Exchange,
    Queue(QueueType),
}

/// A user's or an operator's policy.
#[derive(Clone, Debug)]
pub struct Policy {
    pub name: Name,
    pub pattern: Regex,
    /// Integers as `I64`, texts as `LongString`.
    pub definition: FieldTable,
    pub priority: i64,
    pub apply_to: ApplyTo,
}

/// Why a policy is refused: the text that RabbitMQ's tools show.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Validation failed\n\n{0}")]
pub struct PolicyError(pub String);

/// How a policy's value goes together with the argument of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// An integer of at least this.
    AtLeast(i64),
    Text,
    OneOf(&'static [&'static str]),
    MaxAge,
    /// Accepted, without effect on one machine.
    Anything,
}

/// A key that policies may have.
struct Key {
    name: &'static str,
    value: Value,
    /// Classic, quorum, stream, exchange.
    types: [bool; 4],
    operator: bool,
}

const fn key(name: &'static str, value: Value, types: [bool; 4], operator: bool) -> Key {
    Key { name, value, types, operator }
}

const CLASSIC_QUORUM: [bool; 4] = [true, true, false, false];
const QUEUES: [bool; 4] = [true, true, true, false];
const QUORUM: [bool; 4] = [false, true, false, false];
const STREAM: [bool; 4] = [false, false, true, false];
const CLASSIC: [bool; 4] = [true, false, false, false];

/// §15.1, the table of keys.
const KEYS: &[Key] = &[
    key("message-ttl", Value::AtLeast(0), CLASSIC_QUORUM, true),
    key("expires", Value::AtLeast(1), CLASSIC_QUORUM, true),
    key("max-length", Value::AtLeast(0), CLASSIC_QUORUM, true),
    key("max-length-bytes", Value::AtLeast(0), QUEUES, true),
    key("max-in-memory-length", Value::AtLeast(0), QUORUM, true),
    key("max-in-memory-bytes", Value::AtLeast(0), QUORUM, true),
    key("consumer-timeout", Value::AtLeast(0), QUEUES, false),
    key("consumer-disconnected-timeout", Value::AtLeast(0), QUORUM, false),
    key("dead-letter-exchange", Value::Text, CLASSIC_QUORUM, false),
    key("dead-letter-routing-key", Value::Text, CLASSIC_QUORUM, false),
    key("dead-letter-strategy", Value::OneOf(&["at-most-once", "at-least-once"]), QUORUM, false),
    key("overflow", Value::OneOf(&["drop-head", "reject-publish", "reject-publish-dlx"]), CLASSIC_QUORUM, true),
    key("delivery-limit", Value::AtLeast(i64::MIN), QUORUM, true),
    key("delayed-retry-type", Value::OneOf(&["disabled", "all", "failed", "returned"]), QUORUM, true),
    key("delayed-retry-min", Value::AtLeast(0), QUORUM, true),
    key("delayed-retry-max", Value::AtLeast(0), QUORUM, true),
    key("alternate-exchange", Value::Text, [false, false, false, true], false),
    key("max-age", Value::MaxAge, STREAM, false),
    key("stream-max-segment-size-bytes", Value::AtLeast(0), STREAM, false),
    key("stream-filter-size-bytes", Value::AtLeast(16), STREAM, false),
    key("queue-leader-locator", Value::Anything, QUEUES, false),
    key("initial-cluster-size", Value::Anything, STREAM, false),
    key("target-group-size", Value::Anything, QUORUM, true),
    key("member-placement-tag", Value::Anything, QUORUM, true),
    key("queue-mode", Value::Anything, CLASSIC, false),
    key("queue-version", Value::Anything, CLASSIC, true),
    key("federation-upstream", Value::Anything, [true; 4], false),
    key("federation-upstream-set", Value::Anything, [true; 4], false),
];

fn find_key(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

impl Policy {
    /// Checks a policy's definition.
    ///
    /// # Errors
    /// An empty definition, a key nobody knows (or no operator may set), a bad value, a bad pattern.
    pub fn new(
        name: &str,
        pattern: &str,
        definition: FieldTable,
        priority: i64,
        apply_to: ApplyTo,
        operator: bool,
    ) -> Result<Self, PolicyError> {
        let pattern = Regex::new(pattern).map_err(|error| PolicyError(format!("pattern is not valid: {error}")))?;
        if definition.is_empty() {
            return Err(PolicyError("no policy provided".to_owned()));
        }
        for (key, value) in definition.iter() {
            let key = key.as_str().unwrap_or_default();
            let known = find_key(key).filter(|known| known.operator || !operator);
            let Some(known) = known else {
                return Err(PolicyError(format!(
                    "[{{<<\"{key}\">>,{}}}] are not recognised policy settings",
                    show(value)
                )));
            };
            check_value(known, value)?;
        }
        Ok(Self { name: Name::from(name), pattern, definition, priority, apply_to })
    }

    /// Does the policy apply to the thing of this name? Not if one of its keys is not for such things.
    fn applies(&self, name: &str, target: Target) -> bool {
        let index = match target {
            Target::Queue(QueueType::Classic) => 0,
            Target::Queue(QueueType::Quorum) => 1,
            Target::Queue(QueueType::Stream) => 2,
            Target::Exchange => 3,
        };
        let fits = |(key, _): &(leveret_protocol::ShortName, FieldValue)| {
            key.as_str().and_then(find_key).is_some_and(|key| key.types[index])
        };
        self.apply_to.covers(target)
            && self.pattern.is_match(name)
            // Exchanges take what is meant for them and ignore the rest; queues want the whole (§15.1).
            && match target {
                Target::Exchange => self.definition.iter().any(fits),
                Target::Queue(_) => self.definition.iter().all(fits),
            }
    }
}

fn show(value: &FieldValue) -> String {
    match value {
        FieldValue::LongString(text) => format!("<<\"{}\">>", String::from_utf8_lossy(text)),
        other => other.as_integer().map_or_else(|| format!("{other:?}"), |number| number.to_string()),
    }
}

fn check_value(key: &Key, value: &FieldValue) -> Result<(), PolicyError> {
    let name = key.name;
    let fine = match key.value {
        Value::AtLeast(min) => value.as_integer().is_some_and(|number| number >= i128::from(min)),
        Value::Text => value.as_str().is_some(),
        Value::OneOf(words) => value.as_str().is_some_and(|word| words.contains(&word)),
        Value::MaxAge => value.as_str().and_then(duration_ms).is_some(),
        Value::Anything => true,
    };
    if fine { Ok(()) } else { Err(PolicyError(format!("{} is not a valid value for {name}", show(value)))) }
}

/// The policies of a vhost, of one kind (users' or operators').
#[derive(Clone, Debug, Default)]
pub struct PolicySet {
    policies: BTreeMap<Name, Policy>,
}

impl PolicySet {
    pub fn set(&mut self, policy: Policy) {
        self.policies.insert(policy.name.clone(), policy);
    }

    /// True if it was there.
    pub fn clear(&mut self, name: &str) -> bool {
        self.policies.remove(name).is_some()
    }

    /// Every policy, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.policies.values()
    }

    pub fn is_empty(&self) -> bool {
        self.policies.is_empty()
    }

    /// The one that applies: highest priority, of equal ones the first by name.
    pub fn find(&self, name: &str, target: Target) -> Option<&Policy> {
        let mut best: Option<&Policy> = None;
        for policy in self.policies.values().filter(|policy| policy.applies(name, target)) {
            if best.is_none_or(|best| policy.priority > best.priority) {
                best = Some(policy);
            }
        }
        best
    }
}

/// What is in effect of a policy and an operator policy together (§15.1).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effective {
    definition: FieldTable,
}

impl Effective {
    pub fn merge(policy: Option<&Policy>, operator: Option<&Policy>) -> Self {
        let mut definition = policy.map(|policy| policy.definition.clone()).unwrap_or_default();
        for (key, value) in operator.iter().flat_map(|policy| policy.definition.iter()) {
            let Some(key) = key.as_str() else { continue };
            let merged = match definition.get(key) {
                None => value.clone(),
                Some(users) => merge_operator(key, users, value),
            };
            definition.insert(key, merged);
        }
        Self { definition }
    }

    fn number(&self, key: &str) -> Option<i64> {
        self.definition.get(key).and_then(FieldValue::as_integer).and_then(|number| i64::try_from(number).ok())
    }

    fn unsigned(&self, key: &str) -> Option<u64> {
        self.number(key).and_then(|number| u64::try_from(number).ok())
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.definition.get(key).and_then(FieldValue::as_str)
    }

    /// The alternate exchange that a policy gives.
    pub fn alternate_exchange(&self) -> Option<Name> {
        self.text("alternate-exchange").map(Name::from)
    }

    /// The merged definition, for management.
    pub fn definition(&self) -> &FieldTable {
        &self.definition
    }

    /// What is in effect for a queue with these settings of its own (§15.1, column "combination").
    pub fn apply(&self, own: &QueueSettings, queue_type: QueueType) -> QueueSettings {
        let mut settings = own.clone();
        if self.definition.is_empty() {
            return settings;
        }
        let min = |own: Option<u64>, key: &str| match (own, self.unsigned(key)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        settings.message_ttl_ms = min(own.message_ttl_ms, "message-ttl");
        settings.expires_ms = min(own.expires_ms, "expires");
        settings.max_length = min(own.max_length, "max-length");
        settings.max_length_bytes = match queue_type {
            QueueType::Stream => self.unsigned("max-length-bytes").or(own.max_length_bytes),
            _ => min(own.max_length_bytes, "max-length-bytes"),
        };
        settings.consumer_timeout_ms = min(own.consumer_timeout_ms, "consumer-timeout");
        if own.dead_letter_exchange.is_none() {
            settings.dead_letter_exchange = self.text("dead-letter-exchange").map(Name::from);
        }
        if own.dead_letter_routing_key.is_none() {
            settings.dead_letter_routing_key = self.text("dead-letter-routing-key").map(Name::from);
        }
        let overflow = match self.text("overflow") {
            Some("reject-publish") => Some(Overflow::RejectPublish),
            Some("reject-publish-dlx") if queue_type == QueueType::Classic => Some(Overflow::RejectPublishDlx),
            Some(_) => Some(Overflow::DropHead),
            None => None,
        };
        settings.overflow = match queue_type {
            QueueType::Quorum => overflow.or(own.overflow),
            _ => own.overflow.or(overflow),
        };
        if let Some(strategy) = self.text("dead-letter-strategy")
            && own.dead_letter_strategy.is_none()
        {
            settings.dead_letter_strategy = Some(strategy == "at-least-once");
        }
        settings.delivery_limit = match (own.delivery_limit, self.number("delivery-limit")) {
            (Some(a), Some(b)) if a < 0 || b < 0 => Some(a.max(b)),
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if let Some(kind) = self.text("delayed-retry-type").and_then(RetryType::parse) {
            settings.delayed_retry.kind = kind;
        }
        if let Some(policy_min) = self.unsigned("delayed-retry-min") {
            let own_min = own.delayed_retry.min_ms;
            settings.delayed_retry.min_ms = if own_min == 0 { policy_min } else { own_min.min(policy_min) };
        }
        settings.delayed_retry.max_ms = min(own.delayed_retry.max_ms, "delayed-retry-max");
        if let Some(age) = self.text("max-age").and_then(duration_ms) {
            settings.max_age_ms = Some(age);
        }
        if let Some(bytes) = self.unsigned("stream-max-segment-size-bytes") {
            settings.segment_size_bytes = Some(bytes);
        }
        settings
    }
}

/// A key that both the user's and the operator's policy set.
fn merge_operator(key: &str, users: &FieldValue, operators: &FieldValue) -> FieldValue {
    let (Some(a), Some(b)) = (users.as_integer(), operators.as_integer()) else { return operators.clone() };
    let merged = match key {
        "delivery-limit" if a < 0 || b < 0 => a.max(b),
        "delayed-retry-min" | "target-group-size" => a.max(b),
        "queue-version" => b,
        _ => a.min(b),
    };
    i64::try_from(merged).map_or_else(|_| operators.clone(), FieldValue::I64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(entries: &[(&str, i64)]) -> FieldTable {
        FieldTable::from_iter(entries.iter().map(|(key, value)| (*key, FieldValue::I64(*value))))
    }

    fn policy(name: &str, pattern: &str, entries: &[(&str, i64)], priority: i64) -> Policy {
        Policy::new(name, pattern, table(entries), priority, ApplyTo::All, false).unwrap()
    }

    const CLASSIC_QUEUE: Target = Target::Queue(QueueType::Classic);

    /// §15.1: highest priority of those that match and fit the type as a whole.
    #[test]
    fn s15_1_the_best_fitting_policy_applies() {
        let mut set = PolicySet::default();
        set.set(policy("low", "^a", &[("max-length", 1)], 0));
        set.set(policy("high", "^a", &[("max-length", 2)], 5));
        set.set(policy("quorum only", "", &[("delivery-limit", 3)], 9));
        assert_eq!(&*set.find("abc", CLASSIC_QUEUE).unwrap().name, "high");
        assert_eq!(&*set.find("abc", Target::Queue(QueueType::Quorum)).unwrap().name, "quorum only");
        assert!(set.find("xyz", CLASSIC_QUEUE).is_none());
        assert!(set.clear("high"));
        assert_eq!(&*set.find("abc", CLASSIC_QUEUE).unwrap().name, "low");
    }

    /// §15.1: minimum with arguments; if a delivery limit is negative the larger.
    #[test]
    fn s15_1_policies_combine_with_arguments() {
        let own = QueueSettings { max_length: Some(10), delivery_limit: Some(-1), ..QueueSettings::default() };
        let policy = policy("p", "", &[("max-length", 5), ("message-ttl", 7), ("delivery-limit", 3)], 0);
        let settings = Effective::merge(Some(&policy), None).apply(&own, QueueType::Quorum);
        assert_eq!((settings.max_length, settings.message_ttl_ms), (Some(5), Some(7)));
        assert_eq!(settings.delivery_limit, Some(3));
        assert_eq!(Effective::default().apply(&own, QueueType::Quorum), own);
    }

    /// §15.1: the combination of overflow differs by type.
    #[test]
    fn s15_1_overflow_argument_wins_on_classic_policy_on_quorum_queues() {
        let definition = FieldTable::from_iter([("overflow", FieldValue::LongString("reject-publish".into()))]);
        let policy = Policy::new("p", "", definition, 0, ApplyTo::All, false).unwrap();
        let effective = Effective::merge(Some(&policy), None);
        let own = QueueSettings { overflow: Some(Overflow::DropHead), ..QueueSettings::default() };
        assert_eq!(effective.apply(&own, QueueType::Classic).overflow, Some(Overflow::DropHead));
        assert_eq!(effective.apply(&own, QueueType::Quorum).overflow, Some(Overflow::RejectPublish));
    }

    /// §15.1: merging of user and operator policy.
    #[test]
    fn s15_1_operator_policies_only_tighten() {
        let users = policy("u", "", &[("max-length", 5), ("expires", 100)], 0);
        let operators =
            Policy::new("o", "", table(&[("max-length", 9), ("message-ttl", 1)]), 0, ApplyTo::All, true).unwrap();
        let merged = Effective::merge(Some(&users), Some(&operators));
        assert_eq!(merged.definition, table(&[("max-length", 5), ("expires", 100), ("message-ttl", 1)]));
    }

    #[test]
    fn s15_1_bad_policies_are_refused_with_a_reason() {
        let refused = |entries: &[(&str, i64)], operator| {
            Policy::new("p", "", table(entries), 0, ApplyTo::All, operator).unwrap_err().0
        };
        assert!(refused(&[("max-size", 5)], false).contains("not recognised"));
        assert!(refused(&[("consumer-timeout", 5)], true).contains("not recognised"), "not for operators");
        assert!(refused(&[("expires", 0)], false).contains("not a valid value for expires"));
        assert!(refused(&[], false).contains("no policy provided"));
        assert!(Policy::new("p", "(", table(&[("expires", 1)]), 0, ApplyTo::All, false).is_err());
    }
}
