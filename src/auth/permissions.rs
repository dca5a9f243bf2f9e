//! What a user may touch in a vhost.

use std::collections::BTreeMap;

use bytes::Bytes;
use leveret_protocol::{FieldTable, FieldValue};

use super::pattern::{Pattern, PatternError};
use super::record::{RecordError, decode_record, encode_record, text_field, user_in_vhost};
use crate::model::record::{DefinitionKey, DefinitionKind, Name};

/// What is to be done to a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    Configure,
    Write,
    Read,
}

impl Access {
    /// As refusals name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Configure => "configure",
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}

/// The rights of one user in one vhost (reference 14.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions {
    pub configure: Pattern,
    pub write: Pattern,
    pub read: Pattern,
}

impl Permissions {
    /// The right to everything.
    pub fn all() -> Self {
        let all = || Pattern::new(".*").expect("a valid pattern");
        Self { configure: all(), write: all(), read: all() }
    }

    /// The right to nothing.
    pub fn none() -> Self {
        let nothing = || Pattern::new("").expect("the empty pattern is one");
        Self { configure: nothing(), write: nothing(), read: nothing() }
    }

    /// Whether the queue or exchange of this name may be touched so. The default exchange may be given by its empty
    /// name; the patterns see `amq.default`.
    pub fn permits(&self, access: Access, resource_name: &str) -> bool {
        let pattern = match access {
            Access::Configure => &self.configure,
            Access::Write => &self.write,
            Access::Read => &self.read,
        };
        pattern.matches(if resource_name.is_empty() { "amq.default" } else { resource_name })
    }

    /// Where the store keeps these.
    pub fn key(user: &str, vhost: &str) -> DefinitionKey {
        user_in_vhost(DefinitionKind::Permission, user, vhost)
    }

    /// The record for [`Permissions::key`].
    pub fn encode(&self) -> Bytes {
        let mut table = FieldTable::new();
        table.insert("configure", self.configure.source());
        table.insert("write", self.write.source());
        table.insert("read", self.read.source());
        encode_record(&table)
    }

    /// # Errors
    /// A record that no `encode` of this or an older version wrote.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        const RECORD: &str = "permission";
        let table = decode_record(RECORD, record)?;
        let pattern = |field| Pattern::new(text_field(RECORD, &table, field)?).map_err(RecordError::from);
        Ok(Self { configure: pattern("configure")?, write: pattern("write")?, read: pattern("read")? })
    }
}

/// What one user may publish to and bind from topic exchanges of one vhost, by routing key (reference 14.2).
/// An exchange without a rule is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPermissions {
    user: Name,
    vhost: Name,
    rules: BTreeMap<Name, TopicRule>,
}

/// The rule for one exchange: `write` for the routing keys of messages, `read` for binding keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRule {
    pub write: Pattern,
    pub read: Pattern,
}

impl TopicPermissions {
    /// No rules yet.
    pub fn new(user: Name, vhost: Name) -> Self {
        Self { user, vhost, rules: BTreeMap::new() }
    }

    /// Sets the rule for an exchange. `{username}` and `{vhost}` in a pattern stand for the names, taken literally.
    ///
    /// # Errors
    /// A pattern that is none; the old rule stays.
    pub fn set(&mut self, exchange: Name, write: &str, read: &str) -> Result<(), PatternError> {
        let pattern = |source: &str| {
            let user = source.replace("{username}", &regex::escape(&self.user));
            Pattern::compile(source, &user.replace("{vhost}", &regex::escape(&self.vhost)))
        };
        let rule = TopicRule { write: pattern(write)?, read: pattern(read)? };
        self.rules.insert(exchange, rule);
        Ok(())
    }

    /// Removes the rule for an exchange; whether there was one.
    pub fn remove(&mut self, exchange: &str) -> bool {
        self.rules.remove(exchange).is_some()
    }

    /// True without any rule: then there is nothing to store.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules, in the order of the exchanges' names.
    pub fn list(&self) -> impl Iterator<Item = (&Name, &TopicRule)> {
        self.rules.iter()
    }

    /// Whether the key may be published with (`Write`) or bound with (`Read`); `Configure` knows no rules.
    pub fn permits(&self, access: Access, exchange: &str, routing_key: &str) -> bool {
        let Some(rule) = self.rules.get(exchange) else { return true };
        match access {
            Access::Configure => true,
            Access::Write => rule.write.matches(routing_key),
            Access::Read => rule.read.matches(routing_key),
        }
    }

    /// Where the store keeps these: all exchanges in one record.
    pub fn key(user: &str, vhost: &str) -> DefinitionKey {
        user_in_vhost(DefinitionKind::TopicPermission, user, vhost)
    }

    /// The record for [`TopicPermissions::key`].
    pub fn encode(&self) -> Bytes {
        let rules = self.rules.iter().map(|(exchange, rule)| {
            let mut table = FieldTable::new();
            table.insert("exchange", &**exchange);
            table.insert("write", rule.write.source());
            table.insert("read", rule.read.source());
            FieldValue::Table(table)
        });
        let mut table = FieldTable::new();
        table.insert("rules", rules.collect::<Vec<_>>());
        encode_record(&table)
    }

    /// # Errors
    /// A record that no `encode` of this or an older version wrote.
    pub fn decode(user: Name, vhost: Name, record: &[u8]) -> Result<Self, RecordError> {
        const RECORD: &str = "topic permission";
        let unreadable = RecordError::Field { record: RECORD, field: "rules" };
        let table = decode_record(RECORD, record)?;
        let mut decoded = Self::new(user, vhost);
        for rule in table.get("rules").and_then(FieldValue::as_array).ok_or(unreadable.clone())? {
            let rule = rule.as_table().ok_or(unreadable.clone())?;
            let text = |field| text_field(RECORD, rule, field);
            decoded.set(text("exchange")?.into(), text("write")?, text("read")?)?;
        }
        Ok(decoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_pick_the_pattern_of_the_access() {
        let pattern = |source| Pattern::new(source).unwrap();
        let permissions = Permissions { configure: pattern("^c"), write: pattern("^w"), read: pattern("") };
        let permits =
            |name| [Access::Configure, Access::Write, Access::Read].map(|access| permissions.permits(access, name));
        assert_eq!(permits("c1"), [true, false, false]);
        assert_eq!(permits("w1"), [false, true, false]);
        assert_eq!(permits(""), [false; 3], "the default exchange is not the empty name");
        assert_eq!([Access::Configure, Access::Write, Access::Read].map(Access::name), ["configure", "write", "read"]);
    }

    #[test]
    fn the_default_exchange_is_amq_default() {
        let amq = Pattern::new("^amq\\.default$").unwrap();
        let permissions = Permissions { configure: amq.clone(), write: amq.clone(), read: amq };
        assert!(permissions.permits(Access::Write, "") && permissions.permits(Access::Write, "amq.default"));
    }

    #[test]
    fn topic_rules_are_per_exchange_and_access() {
        let mut topics = TopicPermissions::new("ann".into(), "/".into());
        assert!(topics.is_empty() && topics.permits(Access::Write, "x", "any"));
        topics.set("x".into(), "^w\\.", "^r\\.").unwrap();
        assert!(topics.permits(Access::Write, "x", "w.1") && !topics.permits(Access::Write, "x", "r.1"));
        assert!(topics.permits(Access::Read, "x", "r.1") && !topics.permits(Access::Read, "x", "w.1"));
        assert!(topics.permits(Access::Configure, "x", "a"));
        assert!(topics.permits(Access::Write, "other", "a"));
        topics.set("x".into(), "", ".*").unwrap();
        assert!(topics.permits(Access::Write, "x", "") && !topics.permits(Access::Write, "x", "amq.default"));
        assert!(
            topics.set("x".into(), "(", "").is_err() && topics.permits(Access::Read, "x", "a"),
            "the old rule stays"
        );
        assert!(topics.remove("x") && !topics.remove("x") && topics.is_empty());
    }

    #[test]
    fn topic_placeholders_stand_for_the_names_literally() {
        let mut topics = TopicPermissions::new("a.b{1}".into(), "v+".into());
        topics.set("x".into(), "^{username}\\.{vhost}\\.{other}$", "{username}{username}").unwrap();
        assert!(topics.permits(Access::Write, "x", "a.b{1}.v+.{other}"));
        assert!(!topics.permits(Access::Write, "x", "aXb{1}.v+.{other}"));
        assert!(topics.permits(Access::Read, "x", "-a.b{1}a.b{1}-"));
        let (exchange, rule) = topics.list().next().unwrap();
        assert_eq!((&**exchange, rule.read.source()), ("x", "{username}{username}"), "shown as it was given");
    }

    #[test]
    fn permissions_survive_their_records() {
        let pattern = |source| Pattern::new(source).unwrap();
        let permissions = Permissions { configure: pattern("^c"), write: pattern(""), read: pattern(".*") };
        assert_eq!(Permissions::decode(&permissions.encode()).unwrap(), permissions);
        let key = Permissions::key("ann", "/");
        assert_eq!((key.kind, &*key.vhost, &key.name[..]), (DefinitionKind::Permission, "/", &b"ann"[..]));

        let mut topics = TopicPermissions::new("ann".into(), "/".into());
        topics.set("x".into(), "^{username}", "").unwrap();
        topics.set("y".into(), ".*", "a").unwrap();
        let decoded = TopicPermissions::decode("ann".into(), "/".into(), &topics.encode()).unwrap();
        assert_eq!(decoded, topics);
        assert!(decoded.permits(Access::Write, "x", "ann") && !decoded.permits(Access::Write, "x", "bob"));
        assert_eq!(TopicPermissions::key("ann", "/").kind, DefinitionKind::TopicPermission);
    }
}
