//! What users may do in vhosts. A change holds at once, for connections that are open too.

use std::sync::Arc;

use super::{AdminError, Outcome};
use crate::auth::{Permissions, TopicPermissions, User};
use crate::model::record::Name;
use crate::server::Server;
use crate::server::shard::Shard;

impl Server {
    /// Every permission: user, vhost, and what; by vhost, then user.
    pub fn permissions(&self) -> Vec<(Name, Name, Arc<Permissions>)> {
        sorted(
            self.permissions.iter().map(|entry| (entry.key().0.clone(), entry.key().1.clone(), entry.value().clone())),
        )
    }

    /// Every topic permission, in the same order.
    pub fn topic_permissions(&self) -> Vec<(Name, Name, Arc<TopicPermissions>)> {
        let all = self.topic_permissions.iter();
        sorted(all.map(|entry| (entry.key().0.clone(), entry.key().1.clone(), entry.value().clone())))
    }

    /// What the user may do in the vhost, if anything.
    pub fn permissions_of(&self, user: &str, vhost: &str) -> Option<Arc<Permissions>> {
        self.permissions.get(&(Name::from(user), Name::from(vhost))).map(|permissions| permissions.clone())
    }

    /// Sets what a user may do in a vhost.
    ///
    /// # Errors
    /// A pattern that is none; no such user or vhost.
    pub async fn set_permissions(&self, user: &str, vhost: &str, new: Permissions) -> Result<Outcome, AdminError> {
        let existed = {
            let _one_at_a_time = self.admin.lock();
            let (user, shard) = self.user_and_vhost(user, vhost)?;
            self.replace_permissions(&user, &shard, new)
        };
        self.flushed().await;
        Ok(Outcome::of_existing(existed))
    }

    /// The caller holds `admin`.
    pub(super) fn replace_permissions(&self, user: &User, shard: &Shard, new: Permissions) -> bool {
        self.keep(Permissions::key(&user.name, &shard.name), new.encode());
        let old = self.permissions.insert((user.name.clone(), shard.name.clone()), Arc::new(new));
        self.refresh_rights(&user.name, shard);
        old.is_some()
    }

    /// Takes all rights in the vhost away.
    ///
    /// # Errors
    /// There were none.
    pub async fn clear_permissions(&self, user: &str, vhost: &str) -> Result<(), AdminError> {
        {
            let _one_at_a_time = self.admin.lock();
            let gone = self.permissions.remove(&(Name::from(user), Name::from(vhost)));
            gone.ok_or(AdminError::Missing("permission"))?;
            self.forget(Permissions::key(user, vhost));
            if let Some(shard) = self.directory.get(vhost) {
                self.refresh_rights(user, &shard);
            }
        }
        self.flushed().await;
        Ok(())
    }

    /// Sets the rule of a user for an exchange's routing keys.
    ///
    /// # Errors
    /// A pattern that is none; no such user or vhost.
    pub async fn set_topic_permission(
        &self,
        user: &str,
        vhost: &str,
        exchange: &str,
        write: &str,
        read: &str,
    ) -> Result<Outcome, AdminError> {
        let existed = {
            let _one_at_a_time = self.admin.lock();
            let (user, shard) = self.user_and_vhost(user, vhost)?;
            let key = (user.name.clone(), shard.name.clone());
            let old = self.topic_permissions.get(&key).map(|old| TopicPermissions::clone(&old));
            let mut new = old.unwrap_or_else(|| TopicPermissions::new(key.0.clone(), key.1.clone()));
            let existed = new.remove(exchange);
            new.set(Name::from(exchange), write, read).map_err(|error| AdminError::Invalid(error.to_string()))?;
            self.replace_topic_permissions(key, new);
            self.refresh_rights(&user.name, &shard);
            existed
        };
        self.flushed().await;
        Ok(Outcome::of_existing(existed))
    }

    /// Removes the rule for an exchange, or for all of them.
    ///
    /// # Errors
    /// There is none.
    pub async fn clear_topic_permission(
        &self,
        user: &str,
        vhost: &str,
        exchange: Option<&str>,
    ) -> Result<(), AdminError> {
        {
            let _one_at_a_time = self.admin.lock();
            let key = (Name::from(user), Name::from(vhost));
            let old = self.topic_permissions.get(&key).map(|old| TopicPermissions::clone(&old));
            let mut new = old.ok_or(AdminError::Missing("topic permission"))?;
            match exchange {
                Some(exchange) if !new.remove(exchange) => return Err(AdminError::Missing("topic permission")),
                Some(_) => {}
                None => new = TopicPermissions::new(key.0.clone(), key.1.clone()),
            }
            self.replace_topic_permissions(key, new);
            if let Some(shard) = self.directory.get(vhost) {
                self.refresh_rights(user, &shard);
            }
        }
        self.flushed().await;
        Ok(())
    }

    fn replace_topic_permissions(&self, key: (Name, Name), new: TopicPermissions) {
        let record = TopicPermissions::key(&key.0, &key.1);
        if new.is_empty() {
            self.topic_permissions.remove(&key);
            self.forget(record);
        } else {
            self.keep(record, new.encode());
            self.topic_permissions.insert(key, Arc::new(new));
        }
    }

    /// Lets open connections feel what has changed.
    fn refresh_rights(&self, user: &str, shard: &Shard) {
        let key = (Name::from(user), shard.name.clone());
        let permissions = self.permissions.get(&key).map(|permissions| permissions.clone());
        let topic = self.topic_permissions.get(&key).map(|permissions| permissions.clone());
        let permissions = permissions.unwrap_or_else(|| Arc::new(Permissions::none()));
        shard.turn(None, |broker, _| broker.set_permissions(user, permissions, topic));
    }

    /// Removes the records of rights whose user and vhost `is_gone` says are going.
    pub(super) fn forget_rights(&self, is_gone: impl Fn(&Name, &Name) -> bool) {
        self.permissions.retain(|(user, vhost), _| {
            let gone = is_gone(user, vhost);
            if gone {
                self.forget(Permissions::key(user, vhost));
            }
            !gone
        });
        self.topic_permissions.retain(|(user, vhost), _| {
            let gone = is_gone(user, vhost);
            if gone {
                self.forget(TopicPermissions::key(user, vhost));
            }
            !gone
        });
    }

    fn user_and_vhost(&self, user: &str, vhost: &str) -> Result<(Arc<User>, Arc<Shard>), AdminError> {
        let shard = self.directory.get(vhost).ok_or_else(|| AdminError::NoVhost(vhost.to_owned()))?;
        let user = self.user(user).ok_or_else(|| AdminError::NoUser(user.to_owned()))?;
        Ok((user, shard))
    }
}

fn sorted<T>(all: impl Iterator<Item = (Name, Name, T)>) -> Vec<(Name, Name, T)> {
    let mut all: Vec<_> = all.collect();
    all.sort_by(|one, other| (&one.1, &one.0).cmp(&(&other.1, &other.0)));
    all
}
