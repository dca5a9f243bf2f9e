//! Who may enter a vhost, and how many at once (§3.5).
//!
//! A connection is counted by its [`Seats`]. They are given back as soon as it closes, before its client can
//! read of it: one that closes and comes again at once is not in its own way.

use std::sync::Arc;

use dashmap::DashMap;

use super::Server;
use super::admin::deleted;
use super::shard::{Shard, Wakeup};
use crate::auth::{Permissions, TopicPermissions, User};
use crate::model::connection::ConnectionInfo;
use crate::model::ids::ConnectionKey;
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

    pub fn connection_count(&self) -> u64 {
        self.node.used()
    }

    /// May no further connection come?
    pub fn is_full(&self) -> bool {
        self.node.reached().is_some()
    }

    /// The counts of this user.
    fn of_user(&self, user: &User) -> UserQuotas {
        let new = || UserQuotas {
            connections: Quota::new(effective(user.limits.max_connections)),
            channels: Quota::new(effective(user.limits.max_channels)),
        };
        self.users.entry(user.name.clone()).or_insert_with(new).clone()
    }

    /// The user's limits have changed, perhaps.
    pub fn limit(&self, user: &User) {
        let quotas = self.of_user(user);
        quotas.connections.set_max(effective(user.limits.max_connections));
        quotas.channels.set_max(effective(user.limits.max_channels));
    }
}

/// A vhost that may be entered, and what may be done there.
pub(super) struct Entry {
    pub shard: Arc<Shard>,
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
        if !self.permissions.contains_key(&key) {
            return Err(refused());
        }
        let seats = Seats { _vhost: of_vhost, _user: of_user };
        Ok(Entry { shard, channel_quota: quotas.channels, seats })
    }

    /// Lets a connection into its vhost, with the rights that its user has at that moment: whoever changes them
    /// does so first, and then, under the vhost's lock, for the connections that are open.
    pub(super) fn open(&self, shard: &Shard, mut info: ConnectionInfo, wakeup: &Arc<Wakeup>) -> ConnectionKey {
        let (connection, _) = shard.turn(None, |broker, now| {
            let user = info.user.clone();
            (info.permissions, info.topic_permissions) = self.rights(&user, &shard.name);
            let connection = broker.connection_opened(info, now);
            shard.add_wakeup(connection, wakeup.clone());
            if shard.is_closed() {
                broker.force_close(connection, &deleted(&shard.name), now);
            } else if !Arc::ptr_eq(&user, &self.operator) && self.users.read().get(&user.name).is_none() {
                broker.force_close(connection, &format!("user '{}' is deleted", user.name), now);
            }
            connection
        });
        connection
    }

    fn rights(&self, user: &Arc<User>, vhost: &Name) -> (Arc<Permissions>, Option<Arc<TopicPermissions>>) {
        if Arc::ptr_eq(user, &self.operator) {
            return (Arc::new(Permissions::all()), None);
        }
        let key = (user.name.clone(), vhost.clone());
        let permissions = self.permissions.get(&key).map(|permissions| permissions.clone());
        let topic = self.topic_permissions.get(&key).map(|permissions| permissions.clone());
        (permissions.unwrap_or_else(|| Arc::new(Permissions::none())), topic)
    }
}
