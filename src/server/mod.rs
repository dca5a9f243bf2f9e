//! The shell: sockets, tasks, clock and store round the model. Performs what the model asks for, decides nothing.

mod admission;
mod boot;
mod clock;
mod connection;
mod import;
mod listener;
mod notify;
mod pager;
mod recovery;
mod shard;
mod store_thread;

use std::net::SocketAddr;
use std::sync::Arc;

use dashmap::DashMap;
use parking_lot::RwLock;

use self::admission::Admission;
pub use self::boot::{StartError, start};
use self::shard::Shard;

use crate::auth::{AuthFailure, Permissions, TopicPermissions, User, UserDirectory};
use crate::config::Config;
use crate::model::connection::ConnectionInfo;
use crate::model::handshake::HandshakeLimits;
use crate::model::record::Name;

/// Text of the 320 that clients get at shutdown (§3.10).
const SHUTDOWN_REASON: &str = "broker forced connection closure with reason 'shutdown'";

/// The vhosts.
#[derive(Default)]
pub struct Directory {
    shards: DashMap<Name, Arc<Shard>>,
}

impl Directory {
    fn get(&self, vhost: &str) -> Option<Arc<Shard>> {
        self.shards.get(vhost).map(|shard| shard.clone())
    }

    fn add(&self, shard: Arc<Shard>) {
        self.shards.insert(shard.name.clone(), shard);
    }

    fn shards(&self) -> Vec<Arc<Shard>> {
        self.shards.iter().map(|shard| shard.clone()).collect()
    }
}

type ByUserAndVhost<T> = DashMap<(Name, Name), Arc<T>>;

/// A broker in service.
pub struct Server {
    config: Config,
    directory: Arc<Directory>,
    users: RwLock<UserDirectory>,
    /// By user, then vhost.
    permissions: ByUserAndVhost<Permissions>,
    /// By user, then vhost; most have none.
    topic_permissions: ByUserAndVhost<TopicPermissions>,
    admission: Admission,
}

impl Server {
    fn handshake_limits(&self) -> HandshakeLimits {
        HandshakeLimits {
            profile: self.config.profile,
            frame_max: self.config.frame_max,
            initial_frame_max: self.config.initial_frame_max,
            channel_max: self.config.channel_max,
            heartbeat_s: self.config.heartbeat_s,
            max_message_size: self.config.max_message_size,
            anonymous: self.config.anonymous_login.is_some(),
        }
    }

    /// A connection whose frame_max a newer version would refuse is named in the log.
    fn lint_frame_max(&self, info: &ConnectionInfo) {
        if let Some(newer) = self.config.compat_lint
            && info.frame_max != 0
            && info.frame_max < newer.frame_max_min()
        {
            tracing::warn!(
                connection = %info.name,
                user = %info.user.name,
                frame_max = info.frame_max,
                "RabbitMQ {}: this frame_max is below the minimum of {}, the connection will be refused",
                newer.as_str(),
                newer.frame_max_min()
            );
        }
    }

    fn log_in(&self, user: &str, password: &str, peer: SocketAddr) -> Result<Arc<User>, AuthFailure> {
        let is_loopback = peer.ip().to_canonical().is_loopback();
        self.users.read().authenticate(user, password, is_loopback, &self.config.loopback_users)
    }

    /// Logs in whoever the settings say a client without a name is (§3.3).
    fn log_in_anonymously(&self, peer: SocketAddr) -> Result<Arc<User>, AuthFailure> {
        match &self.config.anonymous_login {
            Some((user, password)) => self.log_in(user, password.expose(), peer),
            None => Err(AuthFailure::InvalidCredentials { user: String::new() }),
        }
    }
}
