//! Who may enter a vhost, and how many at once (§3.5).
//!
//! A connection is counted by its [`Seats`]. They are given back as soon as it closes, before its client can
//! read of it: one that closes and comes again at once is not in its own way.

use std::sync::Arc;

use dashmap::DashMap;

use super::Server;
use super::shard::Shard;
use crate::auth::{Permissions, TopicPermissions, User};
use crate::model::quota::{Permit, Quota, effective};
use crate::model::record::Name;

/// The counts of connections, but for those of single vhosts.
pub(super) struct Admission {
    node: Arc<Quota>,
    users: DashMap<Name, UserQuotas>,
}

/// What a user has, over all vhosts.
#[derive(Clone)]
struct UserQuotas {
    connections: Arc<Quota>,
    channels: Arc<Quota>,
}

impl Admission {
    /// `max`: connections of the whole node, those in their handshake included.
    pub fn new(max: Option<u64>) -> Self {
        Self { node: Quota::new(max), users: DashMap::new() }
    }

    /// Counts a client that has connected and said nothing yet.
    pub fn arrive(&self) -> Permit {
        self.node.join()
    }

    /// The counts of this user, with the limits that it has now.
    fn of_user(&self, user: &User) -> UserQuotas {
        let new = || UserQuotas { connections: Quota::new(None), channels: Quota::new(None) };
        let quotas = self.users.entry(user.name.clone()).or_insert_with(new).clone();
        quotas.connections.set_max(effective(user.limits.max_connections));
        quotas.channels.set_max(effective(user.limits.max_channels));
        quotas
    }
}

/// A vhost that may be entered, and what may be done there.
pub(super) struct Entry {
    pub shard: Arc<Shard>,
    pub permissions: Arc<Permissions>,
    pub topic_permissions: Option<Arc<TopicPermissions>>,
    /// Channels of this user.
    pub channel_quota: Arc<Quota>,
    pub seats: Seats,
}

/// A connection's places among those of its vhost and of its user.
#[derive(Debug)]
pub(super) struct Seats {
    _vhost: Permit,
    _user: Permit,
}

impl Server {
    /// May the user enter the vhost? The order of the checks is RabbitMQ's.
    ///
    /// # Errors
    /// The explanation of the 530.
    pub(super) fn enter(&self, vhost: &str, user: &User) -> Result<Entry, String> {
        if let Some(limit) = self.admission.node.exceeded() {
            return Err(format!("connection refused: node connection limit ({limit}) is reached"));
        }
        let shard = self.directory.get(vhost).ok_or_else(|| format!("vhost {vhost} not found"))?;
        let refused = || format!("access to vhost '{vhost}' refused for user '{}'", user.name);
        let of_vhost = shard.connections.take();
        let of_vhost = of_vhost.map_err(|limit| format!("{}: connection limit ({limit}) is reached", refused()))?;
        let quotas = self.admission.of_user(user);
        let of_user = quotas.connections.take().map_err(|limit| {
            format!("connection refused for user '{}': user connection limit ({limit}) is reached", user.name)
        })?;
        let key = (user.name.clone(), shard.name.clone());
        let permissions = self.permissions.get(&key).map(|permissions| permissions.clone()).ok_or_else(refused)?;
        let topic_permissions = self.topic_permissions.get(&key).map(|permissions| permissions.clone());
        let seats = Seats { _vhost: of_vhost, _user: of_user };
        Ok(Entry { shard, permissions, topic_permissions, channel_quota: quotas.channels, seats })
    }
}
