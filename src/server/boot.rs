//! Start and stop: recovers what the store holds, opens the listeners, says so, and takes it all down again.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::admission::Admission;
use super::alarms::{Alarms, Monitor};
use super::clock::Clock;
use super::notify::notify;
use super::pager::Pager;
use super::recovery::Boot;
use super::store_thread::{self, StoreSignal};
use super::{Directory, NodeInfo, SHUTDOWN_REASON, Server, listener};
use crate::auth::{User, UserLimits};
use crate::config::Config;
use crate::definitions::DefinitionError;
use crate::management::{AdminSocket, Management, socket_paths};
use crate::metrics::Metrics;
use crate::model::broker::RecoveryError;
use crate::model::record::{DefinitionKind, Name};
use crate::storage::paging::PageLog;
use crate::storage::sled::SledStore;
use crate::storage::{Store, StoreError, StoreOptions};

/// How long clients have to answer the 320 of a shutdown.
const SHUTDOWN_PATIENCE: Duration = Duration::from_millis(1200);

/// Why the broker did not start. Display says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot listen on {address}: {reason}; stop what uses it, or choose another with --port or --bind")]
    Listen { address: SocketAddr, reason: std::io::Error },
    #[error(
        "cannot listen on {address} for the HTTP API: {reason}; stop what uses it, or give --management-port a number, 0 or off"
    )]
    Management { address: SocketAddr, reason: std::io::Error },
    #[error(
        "cannot listen on {address} for metrics: {reason}; stop what uses it, or give --metrics-port a number, 0 or off"
    )]
    Metrics { address: SocketAddr, reason: std::io::Error },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Definition(#[from] RecoveryError),
    #[error("the stored {kind:?} '{name}' cannot be read: {reason}")]
    Record { kind: DefinitionKind, name: String, reason: String },
    #[error("cannot create vhost '{vhost}': vhost limit of {limit} is reached; raise vhost_max")]
    TooManyVhosts { vhost: String, limit: u64 },
    #[error("message {seq} of the stored queue {queue} cannot be read; the data folder is damaged")]
    Message { queue: u64, seq: u64 },
    #[error("cannot read the definitions {path}: {reason}; check --definitions")]
    ReadDefinitions { path: String, reason: std::io::Error },
    #[error("the definitions in {file} are wrong at {error}; nothing was imported")]
    Definitions { file: String, error: DefinitionError },
    #[error("cannot write the pid file {path}: {reason}; check --pid-file")]
    PidFile { path: String, reason: std::io::Error },
    #[error("the operating system refused: {0}")]
    System(#[from] std::io::Error),
    /// It ran and was stopped, but not cleanly.
    #[error("not everything could be stored at the stop: {0}; nothing that was confirmed is lost")]
    NotStored(StoreError),
}

impl StartError {
    /// 2: usage, port or data folder; 1: anything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::System(_) | Self::NotStored(_) => 1,
            _ => 2,
        }
    }
}

/// Runs a broker until SIGTERM or SIGINT.
///
/// # Errors
/// Nothing was served; or [`StartError::NotStored`], at the stop.
pub async fn start(config: Config, started: Instant) -> Result<(), StartError> {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let clock = Clock::start();
    let directory = Arc::new(Directory::default());
    let mut boot = Boot::new(&config, clock);
    let mut store: Option<Box<dyn Store>> = None;
    let mut pages = None;
    if let Some(dir) = &config.data_dir {
        let options = StoreOptions { fsync: config.fsync, ..StoreOptions::default() };
        let mut opened = SledStore::open(dir, options)?;
        pages = Some(PageLog::new(dir.join("paging"))?);
        boot.recover(&mut opened)?;
        store = Some(Box::new(opened));
    }
    let signal = store.is_some().then(|| Arc::new(StoreSignal::default()));
    let restored = boot.finish(&directory, signal.as_ref())?;
    let listeners = listener::bind_all(&config.tcp_listeners)
        .map_err(|(address, reason)| StartError::Listen { address, reason })?;
    let management_listeners = listener::bind_all(&config.management_listeners)
        .map_err(|(address, reason)| StartError::Management { address, reason })?;
    let metrics_listeners = listener::bind_all(&config.metrics_listeners)
        .map_err(|(address, reason)| StartError::Metrics { address, reason })?;
    let store_thread = match (store, &signal) {
        (Some(store), Some(signal)) => {
            let pager = Pager::new(pages.expect("a data folder has a place for pages"));
            Some(store_thread::spawn(store, signal.clone(), directory.clone(), pager)?)
        }
        _ => None,
    };
    let served =
        addresses(&[("amqp", &listeners), ("http", &management_listeners), ("http/prometheus", &metrics_listeners)]);
    let admission = Admission::new(config.limits.connections);
    let alarms = Arc::new(Alarms::new(directory.clone()));
    let mut monitor = Monitor::new(
        alarms.clone(),
        config.data_dir.clone(),
        config.memory_watermark,
        config.memory_total,
        config.disk_free_limit,
    );
    // Nobody may publish into memory or a disk that are short already.
    monitor.look();
    let server = Arc::new(Server {
        config,
        directory: directory.clone(),
        users: RwLock::new(restored.users),
        permissions: restored.permissions,
        topic_permissions: restored.topic_permissions,
        admission,
        alarms,
        parameters: RwLock::new(restored.parameters),
        node: restored.node,
        vhost_number: AtomicU64::new(restored.vhost_number),
        store: signal.clone(),
        clock,
        admin: Mutex::new(()),
        operator: Arc::new(User {
            name: Name::from("rmq-cli"),
            password: None,
            tags: vec!["administrator".to_owned()],
            limits: UserLimits::default(),
        }),
        node_info: NodeInfo { name: node_name(), started_at: clock.now(), listeners: served },
        stop: Notify::new(),
    });
    // Before the ready line: whoever reads it may send a signal at once.
    let mut stop = StopSignals::listen()?;
    let mut tasks = JoinSet::new();
    for shard in directory.shards() {
        tokio::spawn(shard.run_timers());
    }
    let metrics = Metrics::new(server.clone());
    for listener in metrics_listeners {
        tasks.spawn(metrics.clone().serve(listener));
    }
    tasks.spawn(monitor.run());
    for listener in listeners {
        tasks.spawn(listener::accept(server.clone(), listener));
    }
    let pid_file = server.config.pid_file.as_deref().map(PidFile::write).transpose()?;
    let management = Management::new(server.clone());
    for listener in management_listeners {
        tasks.spawn(management.clone().serve(listener));
    }
    let port = server.node_info.listeners.first().map_or(0, |(_, at)| at.port());
    match AdminSocket::open(&socket_paths(&server.config, port)) {
        Ok(socket) => {
            tasks.spawn(socket.serve(management));
        }
        Err(error) => {
            tracing::warn!(%error, "no admin socket: leveret ctl cannot reach this broker; see --admin-socket");
        }
    }
    announce(&server.node_info.listeners, started);
    notify("READY=1");
    let name = tokio::select! {
        name = stop.wait() => name,
        () = server.stop.notified() => "operator",
    };
    notify("STOPPING=1");
    tracing::info!(signal = name, "stopping");
    for shard in directory.shards() {
        shard.turn(None, |broker, now| {
            broker.begin_stop(SHUTDOWN_REASON, now);
        });
    }
    let patience = Instant::now();
    while patience.elapsed() < SHUTDOWN_PATIENCE
        && directory.shards().iter().any(|shard| shard.turn(None, |broker, _| broker.connection_count()).0 > 0)
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tasks.shutdown().await;
    for shard in directory.shards() {
        shard.close();
    }
    if let (Some(signal), Some(thread)) = (signal, store_thread) {
        for shard in directory.shards() {
            shard.turn(None, |broker, now| broker.prepare_stop(now));
        }
        signal.stop();
        if let Ok(Ok(result)) = tokio::task::spawn_blocking(move || thread.join()).await {
            result.map_err(StartError::NotStored)?;
            tracing::info!("store closed");
        }
    }
    drop(pid_file);
    tracing::info!("stopped");
    Ok(())
}

/// Holds the number of the process while it serves.
struct PidFile<'a>(&'a Path);

impl<'a> PidFile<'a> {
    fn write(path: &'a Path) -> Result<Self, StartError> {
        let written = std::fs::write(path, format!("{}\n", std::process::id()));
        written.map_err(|reason| StartError::PidFile { path: path.display().to_string(), reason })?;
        Ok(Self(path))
    }
}

impl Drop for PidFile<'_> {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(self.0) {
            tracing::warn!(path = %self.0.display(), %error, "the pid file stays");
        }
    }
}

/// Where we listen, by protocol.
fn addresses(bound: &[(&'static str, &[TcpListener])]) -> Vec<(&'static str, SocketAddr)> {
    let of = |listeners: &[TcpListener]| listeners.iter().filter_map(|on| on.local_addr().ok()).collect::<Vec<_>>();
    bound.iter().flat_map(|(protocol, listeners)| of(listeners).into_iter().map(|at| (*protocol, at))).collect()
}

/// What RabbitMQ would be called here: tools show it and send it back.
fn node_name() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let host = read.ok().map(|host| host.trim().to_owned()).filter(|host| !host.is_empty());
    let host = host.unwrap_or_else(|| "localhost".to_owned());
    format!("rabbit@{}", host.split('.').next().unwrap_or(&host))
}

/// The one line on stdout, when and only when clients are served.
fn announce(listeners: &[(&'static str, SocketAddr)], started: Instant) {
    let took = started.elapsed();
    tracing::info!("Server startup complete; 0 plugins started.");
    let first = |wanted| listeners.iter().find(|(protocol, _)| *protocol == wanted).map(|(_, address)| address);
    let mut served = String::new();
    for (word, protocol) in [("amqp", "amqp"), ("management", "http"), ("metrics", "http/prometheus")] {
        if let Some(address) = first(protocol) {
            let _ = write!(served, "{word}={address} ");
        }
    }
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "leveret ready {served}pid={} in={}ms", std::process::id(), took.as_millis());
    let _ = stdout.flush();
}

struct StopSignals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl StopSignals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn wait(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
