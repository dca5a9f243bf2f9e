//! Who may log in, and what they may touch: users, passwords, permissions, and the records they are kept in.
//!
//! Nothing here locks, reads a clock or makes random bytes: salts come from the caller. What is asked for every
//! command (`permits`) compiles nothing and allocates nothing of its own.
//! Invariant: no value that holds a password or its hash shows it in `Debug` or in an error.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::hint::black_box;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{BufMut as _, Bytes, BytesMut};
use leveret_protocol::{FieldTable, FieldValue, decode_table, put_table};
use regex::bytes::{Regex, RegexBuilder};
use sha2::{Digest as _, Sha256};

use crate::model::record::{DefinitionKey, DefinitionKind, Name};

// --- Users ----------------------------------------------------------------------------------------------------------

/// Someone who may log in. Tags give rights over HTTP, none over AMQP (except `impersonator`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: Name,
    /// `None`: no password will do.
    pub password: Option<PasswordHash>,
    pub tags: Vec<String>,
}

impl User {
    pub fn has_tag(&self, tag: &str) -> bool {
        self.tags.iter().any(|own| own == tag)
    }

    /// Where the store keeps this user.
    pub fn key(name: &str) -> DefinitionKey {
        DefinitionKey {
            kind: DefinitionKind::User,
            vhost: Name::from(""),
            name: Bytes::copy_from_slice(name.as_bytes()),
        }
    }

    /// The record for [`User::key`]; it leaves out the name.
    pub fn encode(&self) -> Bytes {
        let mut table = FieldTable::new();
        if let Some(PasswordHash(bytes)) = &self.password {
            table.insert("sha256", FieldValue::ByteArray(Bytes::copy_from_slice(bytes)));
        }
        let tags: Vec<FieldValue> = self.tags.iter().map(|tag| tag.as_str().into()).collect();
        table.insert("tags", tags);
        encode_record(&table)
    }

    /// # Errors
    /// A record that no `encode` of this or an older version wrote.
    pub fn decode(name: Name, record: &[u8]) -> Result<Self, RecordError> {
        let unreadable = |what| RecordError::Field { record: "user", field: what };
        let table = decode_record("user", record)?;
        let password = match table.get("sha256") {
            None => None,
            Some(FieldValue::ByteArray(bytes)) => {
                let bytes = bytes.as_ref().try_into().map_err(|_| unreadable("sha256"))?;
                Some(PasswordHash(bytes))
            }
            Some(_) => return Err(unreadable("sha256")),
        };
        let tags = table.get("tags").and_then(FieldValue::as_array).ok_or(unreadable("tags"))?;
        let tags = tags.iter().map(|tag| tag.as_str().map(str::to_owned).ok_or(unreadable("tags")));
        Ok(Self { name, password, tags: tags.collect::<Result<_, _>>()? })
    }
}

const SALT_LEN: usize = 4;

/// A salted password, RabbitMQ's `rabbit_password_hashing_sha256`: 4 bytes of salt, then SHA-256 of salt and password.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash([u8; SALT_LEN + 32]);

impl PasswordHash {
    /// The hash of a new password. The salt should be random.
    pub fn new(salt: [u8; SALT_LEN], password: &str) -> Self {
        let mut bytes = [0; SALT_LEN + 32];
        bytes[..SALT_LEN].copy_from_slice(&salt);
        bytes[SALT_LEN..].copy_from_slice(&Sha256::new().chain_update(salt).chain_update(password).finalize());
        Self(bytes)
    }

    /// Reads the `password_hash` of a definitions file; `None` if it is not 36 bytes in base64.
    pub fn from_base64(text: &str) -> Option<Self> {
        BASE64.decode(text).ok()?.try_into().ok().map(Self)
    }

    pub fn to_base64(&self) -> String {
        BASE64.encode(self.0)
    }

    /// Whether this is the hash of `password`; false for the empty one, whatever was hashed. The time taken tells
    /// nothing about how near a wrong password is.
    pub fn matches(&self, password: &str) -> bool {
        let mut salt = [0; SALT_LEN];
        salt.copy_from_slice(&self.0[..SALT_LEN]);
        let tried = Self::new(salt, password);
        // Look at every byte, also after the first difference; black_box keeps the compiler from a short cut.
        let difference = self.0.iter().zip(&tried.0).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
        difference == 0 && !password.is_empty()
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(..)")
    }
}

/// All users, by name.
#[derive(Clone, Debug, Default)]
pub struct UserDirectory {
    users: BTreeMap<Name, Arc<User>>,
}

impl UserDirectory {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a user, or replaces the one of that name and gives it back.
    pub fn add(&mut self, user: User) -> Option<Arc<User>> {
        self.users.insert(user.name.clone(), Arc::new(user))
    }

    pub fn remove(&mut self, name: &str) -> Option<Arc<User>> {
        self.users.remove(name)
    }

    pub fn get(&self, name: &str) -> Option<&Arc<User>> {
        self.users.get(name)
    }

    /// Every user, in the order of their names.
    pub fn list(&self) -> impl Iterator<Item = &Arc<User>> {
        self.users.values()
    }

    /// Checks a login (reference 3.3).
    ///
    /// # Errors
    /// [`AuthFailure`]. Nothing in it, nor the time taken, says whether the user exists.
    pub fn authenticate(
        &self,
        name: &str,
        password: &str,
        peer_is_loopback: bool,
        loopback_users: &[String],
    ) -> Result<Arc<User>, AuthFailure> {
        // Nobody's hash: it costs a stranger the same work as a user.
        const NOBODY: PasswordHash = PasswordHash([0; SALT_LEN + 32]);
        let user = self.users.get(name);
        let hash = user.and_then(|user| user.password.as_ref()).unwrap_or(&NOBODY);
        let matches = hash.matches(password);
        let user = user.filter(|_| matches).ok_or_else(|| AuthFailure::InvalidCredentials { user: name.to_owned() })?;
        if !peer_is_loopback && loopback_users.iter().any(|local| local == name) {
            return Err(AuthFailure::LoopbackOnly { user: name.to_owned() });
        }
        Ok(user.clone())
    }
}

/// Why a login was refused, for the log. The client must get the same answer for both.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthFailure {
    /// No such user, no password set, or the wrong one.
    #[error("user '{user}' - invalid credentials")]
    InvalidCredentials { user: String },
    /// The right password, from another machine.
    #[error("user '{user}' can only connect via localhost")]
    LoopbackOnly { user: String },
}

// --- SASL -----------------------------------------------------------------------------------------------------------

/// The responses of the SASL mechanisms (reference 3.3).
pub mod sasl {
    use leveret_protocol::{DecodeError, FieldValue, decode_table_body};

    /// A response that says no user and password. RabbitMQ's texts, but for the response itself, which they quote:
    /// it may hold a password, and the text goes to the log.
    #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
    pub enum SaslError {
        #[error("response <<...>> invalid")]
        Plain,
        #[error("AMQPLAIN auth info {{...}} is missing LOGIN or PASSWORD field")]
        AmqplainMissing,
        #[error("AMQPLAIN auth info {{...}} uses unsupported type for LOGIN or PASSWORD field")]
        AmqplainType,
        #[error("AMQPLAIN auth info is no table: {0}")]
        AmqplainTable(DecodeError),
    }

    /// Reads the response of `PLAIN`: `NUL user NUL password`. User and password.
    ///
    /// # Errors
    /// Anything else, an authorization id in front or text that is not UTF-8 included.
    pub fn plain(response: &[u8]) -> Result<(String, String), SaslError> {
        let text = std::str::from_utf8(response).map_err(|_| SaslError::Plain)?;
        let (user, password) =
            text.strip_prefix('\0').and_then(|text| text.split_once('\0')).ok_or(SaslError::Plain)?;
        if password.contains('\0') {
            return Err(SaslError::Plain);
        }
        Ok((user.to_owned(), password.to_owned()))
    }

    /// Reads the response of `AMQPLAIN`: a field table without its length, with `LOGIN` and `PASSWORD`.
    /// User and password.
    ///
    /// # Errors
    /// No table, a field missing, or a field that is not text.
    pub fn amqplain(response: &[u8]) -> Result<(String, String), SaslError> {
        let table = decode_table_body(response).map_err(SaslError::AmqplainTable)?;
        let (Some(user), Some(password)) = (table.get("LOGIN"), table.get("PASSWORD")) else {
            return Err(SaslError::AmqplainMissing);
        };
        Ok((text(user)?, text(password)?))
    }

    fn text(value: &FieldValue) -> Result<String, SaslError> {
        let (FieldValue::LongString(bytes) | FieldValue::ByteArray(bytes)) = value else {
            return Err(SaslError::AmqplainType);
        };
        String::from_utf8(bytes.to_vec()).map_err(|_| SaslError::AmqplainType)
    }
}

// --- Permissions ----------------------------------------------------------------------------------------------------

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

// --- Patterns -------------------------------------------------------------------------------------------------------

/// Memory that one compiled pattern may take, in bytes, and again as much while it matches.
const PATTERN_SIZE_MAX: usize = 4 << 20;

/// A regular expression as RabbitMQ's permissions use them: it may match anywhere in the name, and the empty one
/// matches the empty name only. Matching takes time linear in the name, whatever the pattern; the price is that
/// look-around and back-references, which RabbitMQ's PCRE has, are refused.
#[derive(Clone)]
pub struct Pattern {
    source: Box<str>,
    form: Form,
}

#[derive(Clone)]
enum Form {
    /// `.*`, what nearly every user has.
    Everything,
    /// The empty pattern: nothing that has a name.
    EmptyOnly,
    Regex(Regex),
}

impl Pattern {
    /// # Errors
    /// Not a regular expression, one too large, or one that uses what we do not have.
    pub fn new(source: &str) -> Result<Self, PatternError> {
        Self::compile(source, source)
    }

    /// The pattern that means `expanded` and is shown as `source`.
    fn compile(source: &str, expanded: &str) -> Result<Self, PatternError> {
        let form = match expanded {
            ".*" => Form::Everything,
            "" | "^$" => Form::EmptyOnly,
            _ => Form::Regex(regex(expanded).map_err(|error| PatternError::new(source, &error))?),
        };
        Ok(Self { source: source.into(), form })
    }

    /// The pattern as it was given.
    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn matches(&self, name: &str) -> bool {
        match &self.form {
            Form::Everything => true,
            Form::EmptyOnly => name.is_empty(),
            Form::Regex(regex) => regex.is_match(name.as_bytes()),
        }
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Pattern {}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", self.source)
    }
}

fn regex(source: &str) -> Result<Regex, regex::Error> {
    let source = escape_stray_braces(source);
    let build = |unicode| {
        let mut builder = RegexBuilder::new(&source);
        builder.unicode(unicode).size_limit(PATTERN_SIZE_MAX).dfa_size_limit(PATTERN_SIZE_MAX).build()
    };
    // RabbitMQ matches bytes, so `\w` is ASCII there (and `\w{1,255}` stays small). A class such as `[äöü]` can only
    // be built the other way.
    build(false).or_else(|_| build(true))
}

/// Puts a `\` before each `{` that does not begin a count: PCRE takes those literally, our regex crate does not.
fn escape_stray_braces(source: &str) -> Cow<'_, str> {
    if !source.contains('{') {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len() + 8);
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let whole = match c {
            '\\' => escape_len(rest),
            '{' if !begins_count(rest) => {
                out.push('\\');
                1
            }
            _ => c.len_utf8(),
        };
        let (head, tail) = rest.split_at(whole);
        out.push_str(head);
        rest = tail;
    }
    Cow::Owned(out)
}

/// Length in bytes of the escape that `text` begins with: `\d`, or all of `\p{Greek}`, `\x{7F}`.
fn escape_len(text: &str) -> usize {
    let Some(escaped) = text[1..].chars().next() else { return 1 };
    let plain = 1 + escaped.len_utf8();
    match text[plain..].strip_prefix('{').and_then(|braced| braced.find('}')) {
        Some(end) if "pPxuU".contains(escaped) => plain + end + 2,
        _ => plain,
    }
}

/// Whether `text` begins with `{3}`, `{3,}` or `{3,5}`.
fn begins_count(text: &str) -> bool {
    let Some((inside, _)) = text[1..].split_once('}') else { return false };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (least, most) = inside.split_once(',').unwrap_or((inside, ""));
    !least.is_empty() && digits(least) && digits(most)
}

/// Why a text is no pattern, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pattern '{pattern}': {reason}")]
pub struct PatternError {
    pub pattern: String,
    pub reason: String,
}

impl PatternError {
    fn new(pattern: &str, error: &regex::Error) -> Self {
        let reason = match error {
            regex::Error::CompiledTooBig(_) => "too large".to_owned(),
            // A drawing of several lines; the last one has the reason.
            other => {
                let text = other.to_string();
                let line = text.lines().last().unwrap_or_default();
                line.strip_prefix("error: ").unwrap_or(line).to_owned()
            }
        };
        Self { pattern: pattern.to_owned(), reason }
    }
}

// --- Records --------------------------------------------------------------------------------------------------------

/// The first byte of each record here; a field table follows. New fields need no new version if they may be absent.
const RECORD_VERSION: u8 = 1;

/// A stored record that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("{record} record of version {version}, written by a newer leveret: start that one")]
    Version { record: &'static str, version: u8 },
    #[error("{record} record is damaged")]
    Damaged { record: &'static str },
    #[error("{record} record has no readable field '{field}'")]
    Field { record: &'static str, field: &'static str },
    #[error("stored {0}")]
    Pattern(#[from] PatternError),
}

fn encode_record(table: &FieldTable) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(RECORD_VERSION);
    put_table(&mut out, table);
    out.freeze()
}

fn decode_record(record: &'static str, bytes: &[u8]) -> Result<FieldTable, RecordError> {
    let damaged = RecordError::Damaged { record };
    let (&version, rest) = bytes.split_first().ok_or(damaged.clone())?;
    if version != RECORD_VERSION {
        return Err(RecordError::Version { record, version });
    }
    match decode_table(rest) {
        Ok((table, taken)) if taken == rest.len() => Ok(table),
        _ => Err(damaged),
    }
}

fn text_field<'t>(record: &'static str, table: &'t FieldTable, field: &'static str) -> Result<&'t str, RecordError> {
    table.get(field).and_then(FieldValue::as_str).ok_or(RecordError::Field { record, field })
}

fn user_in_vhost(kind: DefinitionKind, user: &str, vhost: &str) -> DefinitionKey {
    DefinitionKey { kind, vhost: vhost.into(), name: Bytes::copy_from_slice(user.as_bytes()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> [u8; 4] {
        u32::from_str_radix(text, 16).unwrap().to_be_bytes()
    }

    fn user(name: &str, password: &str) -> User {
        User { name: name.into(), password: Some(PasswordHash::new([1, 2, 3, 4], password)), tags: Vec::new() }
    }

    fn directory() -> UserDirectory {
        let mut users = UserDirectory::new();
        users.add(user("guest", "guest"));
        users.add(user("ann", "secret"));
        users.add(user("blank", ""));
        users.add(User { name: "nopass".into(), password: None, tags: Vec::new() });
        users
    }

    // --- Passwords and users ---

    /// Hashes made by RabbitMQ (management reference 1.10).
    #[test]
    fn hashes_are_those_of_rabbitmq() {
        for (salt, password, hash) in [
            ("908DC60A", "test12", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"),
            ("F7FD62FA", "guest", "9/1i+jKFRpbTRV1PtRnzFFYibT3cEpP92JeZ8YKGtflf4e/u"),
        ] {
            assert_eq!(PasswordHash::new(hex(salt), password).to_base64(), hash);
            let read = PasswordHash::from_base64(hash).unwrap();
            assert_eq!(read.to_base64(), hash);
            assert!(read.matches(password));
            for wrong in ["", "Guest", "guest ", "test1", "test123"] {
                assert!(!read.matches(wrong), "{wrong}");
            }
        }
    }

    #[test]
    fn only_36_bytes_in_base64_are_a_hash() {
        for text in ["", "guest", "kI3G", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2PORAAAA"] {
            assert_eq!(PasswordHash::from_base64(text), None, "{text}");
        }
    }

    #[test]
    fn debug_hides_the_hash() {
        assert_eq!(format!("{:?}", PasswordHash::new([0; 4], "x")), "PasswordHash(..)");
    }

    #[test]
    fn the_directory_is_sorted_and_replaces() {
        let mut users = directory();
        let names: Vec<_> = users.list().map(|user| user.name.to_string()).collect();
        assert_eq!(names, ["ann", "blank", "guest", "nopass"]);
        let old = users.add(User { tags: vec!["monitoring".into()], ..user("ann", "new") });
        assert!(old.is_some_and(|old| !old.has_tag("monitoring")));
        assert!(users.get("ann").is_some_and(|ann| ann.has_tag("monitoring")));
        assert!(users.remove("ann").is_some() && users.remove("ann").is_none());
        assert!(users.get("ann").is_none());
    }

    #[test]
    fn right_passwords_log_in() {
        let users = directory();
        assert_eq!(users.authenticate("ann", "secret", false, &["guest".into()]).unwrap().name, "ann".into());
        assert_eq!(users.authenticate("guest", "guest", true, &["guest".into()]).unwrap().name, "guest".into());
        assert!(users.authenticate("guest", "guest", false, &[]).is_ok());
    }

    #[test]
    fn wrong_logins_all_fail_alike() {
        let users = directory();
        for (name, password) in [
            ("ann", "wrong"),
            ("ann", ""),
            ("nobody", "secret"),
            ("nobody", ""),
            ("blank", ""),
            ("nopass", ""),
            ("", ""),
        ] {
            let failure = users.authenticate(name, password, true, &[]).unwrap_err();
            assert_eq!(failure, AuthFailure::InvalidCredentials { user: name.into() });
            assert_eq!(failure.to_string(), format!("user '{name}' - invalid credentials"));
        }
    }

    #[test]
    fn loopback_users_stay_at_home() {
        let users = directory();
        let local = ["guest".to_owned()];
        let failure = users.authenticate("guest", "guest", false, &local).unwrap_err();
        assert_eq!(failure, AuthFailure::LoopbackOnly { user: "guest".into() });
        assert_eq!(failure.to_string(), "user 'guest' can only connect via localhost");
        let wrong = users.authenticate("guest", "wrong", false, &local).unwrap_err();
        assert!(matches!(wrong, AuthFailure::InvalidCredentials { .. }), "only the right password learns of the rule");
    }

    // --- SASL (reference 3.3) ---

    fn login(user: &str, password: &str) -> Result<(String, String), sasl::SaslError> {
        Ok((user.into(), password.into()))
    }

    #[test]
    fn plain_is_nul_user_nul_password() {
        use sasl::{SaslError, plain};
        assert_eq!(plain(b"\0guest\0guest"), login("guest", "guest"));
        assert_eq!(plain(b"\0\0"), login("", ""));
        assert_eq!(plain("\0zoë\0pässword".as_bytes()), login("zoë", "pässword"));
        for wrong in [
            &b""[..],
            b"\0",
            b"guest",
            b"\0guest",
            b"guest\0guest",
            b"admin\0guest\0guest",
            b"\0a\0b\0",
            b"\0a\0b\0c",
            b"\0\xFF\0a",
        ] {
            assert_eq!(plain(wrong), Err(SaslError::Plain), "{wrong:?}");
        }
        assert_eq!(SaslError::Plain.to_string(), "response <<...>> invalid");
    }

    /// An AMQPLAIN response of these fields.
    fn response(fields: &[(&str, FieldValue)]) -> BytesMut {
        let table: FieldTable = fields.iter().map(|(name, value)| (*name, value.clone())).collect();
        let mut out = BytesMut::new();
        put_table(&mut out, &table);
        out.split_off(4)
    }

    #[test]
    fn amqplain_is_a_table_without_length() {
        use sasl::{SaslError, amqplain};
        let bytes = |text: &str| FieldValue::ByteArray(Bytes::copy_from_slice(text.as_bytes()));
        assert_eq!(amqplain(b"\x05LOGINS\0\0\0\x01a\x08PASSWORDS\0\0\0\x02bc"), login("a", "bc"));
        let mixed = [("x", 1.into()), ("PASSWORD", bytes("pw")), ("LOGIN", bytes("ann")), ("LOGIN", 1.into())];
        assert_eq!(amqplain(&response(&mixed)), login("ann", "pw"), "any order, either type, the first counts");

        let missing = "AMQPLAIN auth info {...} is missing LOGIN or PASSWORD field";
        for fields in [&[][..], &[("LOGIN", "a".into())], &[("PASSWORD", "a".into())], &[("login", "a".into())]] {
            let error = amqplain(&response(fields)).unwrap_err();
            assert_eq!((&error, error.to_string().as_str()), (&SaslError::AmqplainMissing, missing));
        }
        let unsupported = "AMQPLAIN auth info {...} uses unsupported type for LOGIN or PASSWORD field";
        for fields in
            [[("LOGIN", 1.into()), ("PASSWORD", "a".into())], [("LOGIN", "a".into()), ("PASSWORD", true.into())]]
        {
            let error = amqplain(&response(&fields)).unwrap_err();
            assert_eq!((&error, error.to_string().as_str()), (&SaslError::AmqplainType, unsupported));
        }
        let with_length = b"\0\0\0\x12\x05LOGINS\0\0\0\x01a\x08PASSWORDS\0\0\0\x02bc";
        for wrong in [&b"\x05LOGIN"[..], b"\x05LOGINS\0\0\0\x09a", b"\0guest\0guest", with_length] {
            assert!(matches!(amqplain(wrong), Err(SaslError::AmqplainTable(_))), "{wrong:?}");
        }
    }

    // --- Patterns and permissions (reference 14.1, 14.2) ---

    fn matching(pattern: &str, names: &[&str]) -> Vec<bool> {
        let pattern = Pattern::new(pattern).unwrap();
        names.iter().map(|name| pattern.matches(name)).collect()
    }

    #[test]
    fn patterns_match_anywhere_in_the_name() {
        assert_eq!(matching("b", &["abc", "b", "", "B"]), [true, true, false, false]);
        assert_eq!(matching("^a", &["abc", "ba"]), [true, false]);
        assert_eq!(matching("a$", &["abc", "ba"]), [false, true]);
        assert_eq!(matching("^(a|b)$", &["a", "b", "ab"]), [true, true, false]);
        assert_eq!(matching("^amq\\.gen.*", &["amq.gen-1", "amqxgen"]), [true, false]);
        assert_eq!(matching("(?i)AB", &["xab"]), [true]);
    }

    #[test]
    fn empty_matches_empty_and_everything_matches_all() {
        assert_eq!(matching("", &["", "a"]), [true, false]);
        assert_eq!(matching("^$", &["", "a"]), [true, false]);
        assert_eq!(matching(".*", &["", "a", "a\nb", "ü"]), [true; 4]);
        assert_eq!(matching("^.*$", &["", "a", "ü"]), [true; 3]);
    }

    #[test]
    fn patterns_know_bytes_and_unicode() {
        assert_eq!(matching("^\\w+$", &["abc_1", "zoë"]), [true, false], "ASCII, as in RabbitMQ");
        assert_eq!(matching("^zoë-[äöü]+$", &["zoë-äü", "zoë-a"]), [true, false]);
        assert_eq!(matching("^\\w{1,255}$", &["abc"]), [true]);
    }

    #[test]
    fn stray_braces_are_literal() {
        assert_eq!(matching("^{a}$", &["{a}", "a"]), [true, false]);
        assert_eq!(matching("^{client_id}-.*", &["{client_id}-x"]), [true]);
        assert_eq!(matching("^a{2}$", &["aa", "a{2}"]), [true, false]);
        assert_eq!(matching("^a{2,}b{1,3}$", &["aaabb", "ab"]), [true, false]);
        assert_eq!(matching("^\\{a\\{[{}]$", &["{a{{"]), [true]);
        assert_eq!(matching("^\\x{41}\\p{Lu}$", &["AB"]), [true]);
        assert_eq!(matching("a{", &["a{"]), [true]);
    }

    #[test]
    fn bad_patterns_say_why_in_one_line() {
        let error = |source: &str| Pattern::new(source).unwrap_err().to_string();
        assert_eq!(error("("), "pattern '(': unclosed group");
        assert_eq!(error("a\\"), "pattern 'a\\': incomplete escape sequence, reached end of pattern prematurely");
        let look = error("^(?!amq\\.).*");
        assert!(look.contains("look-around") && !look.contains('\n'), "{look}");
        assert_eq!(error("(a{1000}){1000}"), "pattern '(a{1000}){1000}': too large");
    }

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

    // --- Records ---

    #[test]
    fn users_survive_their_record() {
        let tags = vec!["administrator".to_owned(), "ünusual".to_owned()];
        for user in [User { tags, ..user("ann", "pw") }, User { password: None, ..user("ann", "") }] {
            assert_eq!(User::decode("ann".into(), &user.encode()).unwrap(), user);
        }
        let key = User::key("ann");
        assert_eq!((key.kind, &*key.vhost, &key.name[..]), (DefinitionKind::User, "", &b"ann"[..]));
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

    #[test]
    fn unreadable_records_say_what_is_wrong() {
        let good = user("ann", "pw").encode();
        let decode = |bytes: &[u8]| User::decode("ann".into(), bytes).unwrap_err().to_string();
        let damaged = "user record is damaged";
        assert_eq!(decode(b""), damaged);
        assert_eq!(decode(&good[..good.len() - 1]), damaged);
        assert_eq!(decode(&[&good[..], b"x"].concat()), damaged);
        assert_eq!(decode(&[9]), "user record of version 9, written by a newer leveret: start that one");
        assert_eq!(decode(&encode_record(&FieldTable::new())), "user record has no readable field 'tags'");
        let mut table = FieldTable::new();
        table.insert("sha256", FieldValue::ByteArray(Bytes::from_static(b"short")));
        assert_eq!(decode(&encode_record(&table)), "user record has no readable field 'sha256'");
        let error = Permissions::decode(&encode_record(&FieldTable::new())).unwrap_err();
        assert_eq!(error.to_string(), "permission record has no readable field 'configure'");
        for end in 0..good.len() {
            let _ = User::decode("ann".into(), &good[..end]);
        }
    }
}
