//! Users: who may log in.

use super::{AdminError, Outcome};
use crate::auth::{PasswordHash, User, UserLimits};
use crate::model::record::Name;
use crate::server::{Server, random};

/// More tags than this are refused.
const TAGS_MAX: usize = 32;
/// A user with this tag can be changed and deleted by nobody but the local operator.
const PROTECTED_TAG: &str = "protected";

/// What a user logs in with.
#[derive(Clone, Debug)]
pub enum PasswordSpec {
    /// As it is typed.
    Plain(String),
    Hash(PasswordHash),
    /// No password will do.
    Nothing,
}

/// A user as it is to be.
#[derive(Clone, Debug)]
pub struct UserSpec {
    /// `None`: stays as it is, nothing for a new user.
    pub password: Option<PasswordSpec>,
    /// `None`: stay as they are, none for a new user.
    pub tags: Option<Vec<String>>,
    /// `None`: stay as they are.
    pub limits: Option<UserLimits>,
}

/// Which limit of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserLimit {
    Connections,
    Channels,
}

impl UserLimit {
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "max-connections" => Some(Self::Connections),
            "max-channels" => Some(Self::Channels),
            _ => None,
        }
    }

    fn of(self, limits: &mut UserLimits) -> &mut Option<i64> {
        match self {
            Self::Connections => &mut limits.max_connections,
            Self::Channels => &mut limits.max_channels,
        }
    }
}

impl Server {
    /// Every user, by name.
    pub fn users(&self) -> Vec<std::sync::Arc<User>> {
        self.users.read().list().cloned().collect()
    }

    pub fn user(&self, name: &str) -> Option<std::sync::Arc<User>> {
        self.users.read().get(name).cloned()
    }

    /// Creates or changes a user.
    ///
    /// # Errors
    /// Too many tags; a protected user.
    pub async fn put_user(&self, name: &str, spec: UserSpec) -> Result<Outcome, AdminError> {
        if name.is_empty() {
            return Err(AdminError::Invalid("user name cannot be empty".to_owned()));
        }
        if spec.tags.as_ref().is_some_and(|tags| tags.len() > TAGS_MAX) {
            return Err(AdminError::Invalid("tags_limit_exceeded".to_owned()));
        }
        let existed = {
            let _one_at_a_time = self.admin.lock();
            let old = self.user(name);
            let password = match spec.password {
                Some(PasswordSpec::Plain(password)) => {
                    let mut salt = [0; 4];
                    random(&mut salt);
                    Some(PasswordHash::new(salt, &password))
                }
                Some(PasswordSpec::Hash(hash)) => Some(hash),
                Some(PasswordSpec::Nothing) => None,
                None => old.as_ref().and_then(|old| old.password.clone()),
            };
            let tags = spec.tags.or_else(|| old.as_ref().map(|old| old.tags.clone())).unwrap_or_default();
            let limits = spec.limits.or_else(|| old.as_ref().map(|old| old.limits)).unwrap_or_default();
            self.replace_user(User { name: Name::from(name), password, tags, limits });
            old.is_some()
        };
        self.flushed().await;
        Ok(Outcome::of_existing(existed))
    }

    /// The caller holds `admin`.
    fn replace_user(&self, user: User) {
        self.keep(User::key(&user.name), user.encode());
        self.admission.limit(&user);
        self.users.write().add(user);
    }

    /// Deletes a user with all rights, and closes its connections.
    ///
    /// # Errors
    /// There is none; a protected one.
    pub async fn delete_user(&self, name: &str) -> Result<(), AdminError> {
        {
            let _one_at_a_time = self.admin.lock();
            let user = self.user(name).ok_or(AdminError::Missing("user"))?;
            if user.has_tag(PROTECTED_TAG) {
                return Err(AdminError::Protected(format!("user '{name}' is protected")));
            }
            self.users.write().remove(name);
            self.forget(User::key(name));
            self.forget_rights(|user, _| &**user == name);
            for shard in self.directory.shards() {
                shard.turn(None, |broker, now| {
                    broker.force_close_user(name, &format!("user '{name}' is deleted"), now);
                });
            }
        }
        self.flushed().await;
        Ok(())
    }

    /// Sets or clears (`None`) a limit, for connections and channels that come.
    ///
    /// # Errors
    /// There is no such user.
    pub async fn set_user_limit(&self, name: &str, limit: UserLimit, value: Option<i64>) -> Result<(), AdminError> {
        {
            let _one_at_a_time = self.admin.lock();
            let mut user = User::clone(&*self.user(name).ok_or_else(|| AdminError::NoUser(name.to_owned()))?);
            *limit.of(&mut user.limits) = value;
            self.replace_user(user);
        }
        self.flushed().await;
        Ok(())
    }
}
