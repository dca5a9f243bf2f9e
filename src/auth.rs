//! Who may log in, and what they may touch: users, passwords, permissions, and the records they are kept in.
//!
//! Nothing here locks, reads a clock or makes random bytes: salts come from the caller. What is asked for every
//! command (`permits`) compiles nothing and allocates nothing of its own.
//! Invariant: no value that holds a password or its hash shows it in `Debug` or in an error.

mod password;
mod pattern;
mod permissions;
pub(crate) mod record;
pub mod sasl;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use leveret_protocol::{FieldTable, FieldValue};

pub use self::password::{HashAlgorithm, PasswordHash};
pub use self::pattern::{Pattern, PatternError};
pub use self::permissions::{Access, Permissions, TopicPermissions, TopicRule};
pub use self::record::RecordError;
use self::record::{decode_record, encode_record};

use crate::model::record::{DefinitionKey, DefinitionKind, Name};

/// Someone who may log in. Tags give rights over HTTP, none over AMQP (except `impersonator`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: Name,
    /// `None`: no password will do.
    pub password: Option<PasswordHash>,
    pub tags: Vec<String>,
    pub limits: UserLimits,
}

/// Limits over all vhosts, as they were set: `None` and negative numbers are none, 0 allows nothing (§14.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    pub max_connections: Option<i64>,
    pub max_channels: Option<i64>,
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
        if let Some(hash) = &self.password {
            table.insert(hash.algorithm().field(), FieldValue::ByteArray(Bytes::copy_from_slice(hash.bytes())));
        }
        let tags: Vec<FieldValue> = self.tags.iter().map(|tag| tag.as_str().into()).collect();
        table.insert("tags", tags);
        let UserLimits { max_connections, max_channels } = self.limits;
        for (field, limit) in [("max_connections", max_connections), ("max_channels", max_channels)] {
            if let Some(limit) = limit {
                table.insert(field, FieldValue::I64(limit));
            }
        }
        encode_record(&table)
    }

    /// # Errors
    /// A record that no `encode` of this or an older version wrote.
    pub fn decode(name: Name, record: &[u8]) -> Result<Self, RecordError> {
        let unreadable = |what| RecordError::Field { record: "user", field: what };
        let table = decode_record("user", record)?;
        let mut password = None;
        for algorithm in HashAlgorithm::ALL {
            let field = algorithm.field();
            password = match table.get(field) {
                None => continue,
                Some(FieldValue::ByteArray(bytes)) => PasswordHash::from_bytes(algorithm, bytes),
                Some(_) => None,
            };
            if password.is_none() {
                return Err(unreadable(field));
            }
            break;
        }
        let tags = table.get("tags").and_then(FieldValue::as_array).ok_or(unreadable("tags"))?;
        let tags = tags.iter().map(|tag| tag.as_str().map(str::to_owned).ok_or(unreadable("tags")));
        let limit = |field| match table.get(field) {
            None => Ok(None),
            Some(FieldValue::I64(limit)) => Ok(Some(*limit)),
            Some(_) => Err(unreadable(field)),
        };
        let limits = UserLimits { max_connections: limit("max_connections")?, max_channels: limit("max_channels")? };
        Ok(Self { name, password, tags: tags.collect::<Result<_, _>>()?, limits })
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
        static NOBODY: LazyLock<PasswordHash> = LazyLock::new(PasswordHash::of_nobody);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, password: &str) -> User {
        let password = Some(PasswordHash::new([1, 2, 3, 4], password));
        User { name: name.into(), password, tags: Vec::new(), limits: UserLimits::default() }
    }

    fn directory() -> UserDirectory {
        let mut users = UserDirectory::new();
        users.add(user("guest", "guest"));
        users.add(user("ann", "secret"));
        users.add(user("blank", ""));
        users.add(User { password: None, ..user("nopass", "") });
        users
    }

    // --- Users ---

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

    // --- Records ---

    #[test]
    fn users_survive_their_record() {
        let tags = vec!["administrator".to_owned(), "ünusual".to_owned()];
        let limits = UserLimits { max_connections: Some(0), max_channels: Some(-1) };
        for user in [User { tags, limits, ..user("ann", "pw") }, User { password: None, ..user("ann", "") }] {
            assert_eq!(User::decode("ann".into(), &user.encode()).unwrap(), user);
        }
        for algorithm in HashAlgorithm::ALL {
            let password = PasswordHash::from_bytes(algorithm, &vec![7; algorithm.len()]);
            assert!(password.is_some());
            let user = User { password, ..user("ann", "") };
            assert_eq!(User::decode("ann".into(), &user.encode()).unwrap(), user);
        }
        let key = User::key("ann");
        assert_eq!((key.kind, &*key.vhost, &key.name[..]), (DefinitionKind::User, "", &b"ann"[..]));
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
