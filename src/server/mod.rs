//! The shell: sockets, tasks, clock and store round the model. Performs what the model asks for, decides nothing.

pub mod admin;
mod admission;
pub mod alarms;
mod boot;
mod clock;
mod commits;
mod connection;
mod figures;
mod import;
pub mod inspect;
mod listener;
pub mod loopback;
mod notify;
mod pager;
mod recovery;
pub mod resources;
mod shard;
mod store_thread;
mod views;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use dashmap::DashMap;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use self::admin::Parameters;
use self::admission::Admission;
pub use self::alarms::Alarms;
pub use self::boot::{StartError, start};
use self::clock::Clock;
pub use self::commits::{CommitFigures, HistogramFigures};
pub use self::figures::{ProcessFigures, VhostFigures};
use self::shard::Shard;
use self::store_thread::StoreSignal;

use crate::auth::{AuthFailure, Permissions, TopicPermissions, User, UserDirectory};
use crate::config::Config;
use crate::model::connection::ConnectionInfo;
use crate::model::handshake::HandshakeLimits;
use crate::model::queue::Queue;
use crate::model::quota::NodeQuotas;
use crate::model::record::Name;
use crate::model::timer::Millis;

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

    fn remove(&self, vhost: &str) {
        self.shards.remove(vhost);
    }

    fn shards(&self) -> Vec<Arc<Shard>> {
        self.shards.iter().map(|shard| shard.clone()).collect()
    }

    /// Bytes that the messages of all queues hold.
    fn queue_memory(&self) -> u64 {
        let shards = self.shards();
        let of = |shard: &Arc<Shard>| shard.turn(None, |broker, _| broker.queues().map(Queue::memory).sum::<usize>()).0;
        shards.iter().map(of).sum::<usize>() as u64
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
    alarms: Arc<Alarms>,
    parameters: RwLock<Parameters>,
    /// What is counted over all vhosts.
    node: NodeQuotas,
    /// Number of the last vhost.
    vhost_number: AtomicU64,
    store: Option<Arc<StoreSignal>>,
    clock: Clock,
    /// Held while an operator changes something: one at a time.
    admin: Mutex<()>,
    /// Who acts through the local admin socket: may do anything, and is no user that could log in.
    pub operator: Arc<User>,
    pub node_info: NodeInfo,
    /// An operator wants the broker to stop.
    pub stop: Notify,
}

/// What this broker is, for management.
#[derive(Debug)]
pub struct NodeInfo {
    /// Such as `rabbit@host`.
    pub name: String,
    /// Milliseconds since the Unix epoch.
    pub started_at: Millis,
    /// What is listened on: protocol and address.
    pub listeners: Vec<(&'static str, SocketAddr)>,
}

/// Fills `bytes` with what nobody can guess, from the operating system.
pub(crate) fn random(bytes: &mut [u8]) {
    use rand_chacha::rand_core::{OsRng, TryRngCore as _};
    OsRng.try_fill_bytes(bytes).expect("the operating system gives random bytes");
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

    /// What runs short.
    pub fn alarms(&self) -> &Alarms {
        &self.alarms
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What this cluster of one is called.
    pub fn cluster_name(&self) -> String {
        let named = self.parameter(admin::GLOBAL, admin::GLOBAL, "cluster_name");
        let named = named.as_ref().and_then(|name| name.as_str()).map(str::to_owned);
        named.or_else(|| self.config.cluster_name.clone()).unwrap_or_else(|| self.node_info.name.clone())
    }

    /// Connections of clients, those in their handshake included.
    pub fn connection_count(&self) -> u64 {
        self.admission.connection_count()
    }

    /// Bytes that the messages of all queues hold.
    pub fn queue_memory(&self) -> u64 {
        self.directory.queue_memory()
    }

    /// May no further connection come?
    pub fn is_full(&self) -> bool {
        self.admission.is_full()
    }

    /// Milliseconds since the Unix epoch.
    pub fn now(&self) -> Millis {
        self.clock.now()
    }

    /// `None`: nothing is stored.
    pub fn commit_figures(&self) -> Option<CommitFigures> {
        self.store.as_ref().map(|store| store.commits.figures())
    }

    /// Checks a name and password, from AMQP and HTTP alike.
    ///
    /// # Errors
    /// See [`UserDirectory::authenticate`].
    pub fn log_in(&self, user: &str, password: &str, peer: SocketAddr) -> Result<Arc<User>, AuthFailure> {
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
