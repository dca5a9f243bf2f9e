//! What the broker is told at start: command line, environment and config file, merged into one [`Config`].
//!
//! The command line beats the environment, the environment beats the files, a later file beats an earlier one.
//! Nothing here prints, exits, opens a socket or reads the process environment: the caller hands it in.
//! A key we do not know is a warning (files written for RabbitMQ must work); a value we cannot read is an error.

mod command_line;
mod environment;
mod file;
mod ignored;
mod log;
mod policies;
mod settings;
mod sources;
#[cfg(test)]
mod tests;
mod values;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{fmt, fs, io};

use self::command_line::Task;
use self::environment::Environment;
use self::settings::Draft;
use self::sources::Files;
use crate::auth::{Pattern, Permissions};
use crate::model::arguments::QueueType;
use crate::model::policy::Policy;
use crate::model::profile::Profile;
use crate::model::vhost::VhostLimits;
use crate::storage::Fsync;

/// The largest `max_message_size` that may be set, in bytes (RabbitMQ's own bound).
pub const MESSAGE_SIZE_MAX: u64 = 512 << 20;

/// Everything that can be set. [`Config::default`] is what a start without any setting gives.
#[derive(Clone, Debug)]
pub struct Config {
    /// The files that were read, in that order.
    pub config_files: Vec<PathBuf>,
    /// Where durable state is kept; `None` keeps everything in memory.
    pub data_dir: Option<PathBuf>,
    /// Where AMQP over plain TCP is served; at least one. All with port 0 should share the port the first one gets.
    pub tcp_listeners: Vec<Listener>,
    /// Where the HTTP API is served; none: not at all. Ports as for `tcp_listeners`.
    pub management_listeners: Vec<Listener>,
    /// The Unix socket of the command line tools; `None`: in the data folder.
    pub admin_socket: Option<PathBuf>,
    /// Where metrics are served; none: not at all. Ports as for `tcp_listeners`.
    pub metrics_listeners: Vec<Listener>,
    pub metrics: MetricsOptions,
    /// The RabbitMQ version to behave like.
    pub profile: Profile,
    /// A newer version: what it would treat differently is logged.
    pub compat_lint: Option<Profile>,
    /// When stored data is flushed to the disk.
    pub fsync: Fsync,
    /// A filter that `tracing_subscriber::EnvFilter` accepts.
    pub log: String,
    pub log_format: LogFormat,
    /// How long a client may take from connecting to `connection.open-ok`.
    pub handshake_timeout: Duration,
    /// Proposed in `connection.tune`, in seconds; 0 = off.
    pub heartbeat_s: u16,
    /// Proposed in `connection.tune`, in bytes; 0 = no limit, else at least `FRAME_MIN_SIZE`.
    pub frame_max: u32,
    /// Proposed in `connection.tune`, channels per connection; 0 = no limit.
    pub channel_max: u16,
    /// The largest frame taken before `connection.tune-ok`, in bytes.
    pub initial_frame_max: u32,
    /// How long a delivery may stay unacked before its channel is closed; `None` = for ever.
    pub consumer_timeout: Option<Duration>,
    /// The largest message body taken, in bytes.
    pub max_message_size: u64,
    /// Bytes that messages in queues may take in memory; what is more goes to the disk.
    pub queue_memory: u64,
    /// Above this the memory alarm is on.
    pub memory_watermark: MemoryWatermark,
    /// What to take for the memory there is, in bytes; `None`: what the system says.
    pub memory_total: Option<u64>,
    /// Below this the disk alarm is on.
    pub disk_free_limit: DiskFreeLimit,
    /// The user made on an empty data folder.
    pub default_user: String,
    pub default_pass: Secret,
    /// The vhost made on an empty data folder.
    pub default_vhost: String,
    /// The rights of the default user in the default vhost.
    pub default_permissions: Permissions,
    pub default_user_tags: Vec<String>,
    /// Users that may log in from this machine only.
    pub loopback_users: Vec<String>,
    /// Who a client is that logs in without a name (SASL ANONYMOUS); `None`: nobody may.
    pub anonymous_login: Option<(String, Secret)>,
    /// The type of queues whose declare does not say, where the vhost has no default of its own.
    pub default_queue_type: QueueType,
    /// A quorum queue may be redeclared as a classic one.
    pub relaxed_quorum_redeclare: bool,
    pub limits: NodeLimits,
    /// The limits that a new vhost gets: those of the first pattern that matches.
    pub default_limits: Vec<DefaultLimits>,
    /// What is set for single vhosts, by their names. Beats what they have stored.
    pub vhosts: BTreeMap<String, VhostOptions>,
    /// Policies that hold while the settings name them.
    pub policies: Vec<PolicyOptions>,
    /// Definitions to import at each start, before anybody is served: a file, or a folder of them.
    pub definitions: Option<PathBuf>,
    /// Where to write the number of the process, while it serves.
    pub pid_file: Option<PathBuf>,
    /// What the cluster is called; `None`: after the node.
    pub cluster_name: Option<String>,
    /// What the log should say once it is open, a line each.
    pub warnings: Vec<String>,
}

impl Config {
    /// The limits that a new vhost of this name gets.
    pub fn default_limits_of(&self, vhost: &str) -> VhostLimits {
        let found = self.default_limits.iter().find(|limits| limits.pattern.matches(vhost));
        found.map(|found| found.limits).unwrap_or_default()
    }
}

/// How metrics are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsOptions {
    /// Begins with a slash and does not end in one.
    pub path: String,
    /// `/metrics` has a series for each queue, not sums.
    pub per_object: bool,
    /// Only for users with the tag `monitoring` or `administrator`.
    pub authentication: bool,
}

impl Default for MetricsOptions {
    fn default() -> Self {
        Self { path: "/metrics".to_owned(), per_object: false, authentication: false }
    }
}

/// Limits of the whole broker; `None` for any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeLimits {
    /// Those in their handshake count too.
    pub connections: Option<u64>,
    pub channels: Option<u64>,
    pub consumers_per_channel: Option<u32>,
    pub queues: Option<u64>,
    /// The seven of each vhost count too.
    pub exchanges: Option<u64>,
    pub vhosts: Option<u64>,
}

/// How much memory the process may use before publishers have to wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryWatermark {
    /// A share of what there is.
    Relative(f64),
    /// Bytes.
    Absolute(u64),
}

/// How much of the disk must stay free, or publishers have to wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DiskFreeLimit {
    /// In units of the memory there is.
    Relative(f64),
    /// Bytes.
    Absolute(u64),
}

/// The limits of new vhosts whose names match.
#[derive(Clone, Debug)]
pub struct DefaultLimits {
    pub pattern: Pattern,
    pub limits: VhostLimits,
}

/// What the settings say of one vhost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VhostOptions {
    pub profile: Option<Profile>,
    pub default_queue_type: Option<QueueType>,
}

/// A policy that the settings name.
#[derive(Clone, Debug)]
pub struct PolicyOptions {
    pub vhost: String,
    /// An operator's policy, not a user's.
    pub operator: bool,
    pub policy: Policy,
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    pub address: SocketAddr,
    /// False for an address nobody asked for by name (the default `::1`): go on without it if the machine lacks it.
    pub required: bool,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// A text that must not reach a log: `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Default for Config {
    fn default() -> Self {
        Draft::new().finish().expect("the defaults are valid")
    }
}

/// Why there is no [`Config`]: the user asked for help, the version or a check, or something is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// One line that says what is wrong, where, and what to do; or the text that was asked for.
    pub message: String,
    /// 0 for help, version and a check that found no error, else 2.
    pub exit_code: u8,
    /// True for what was asked for, false for an error.
    pub to_stdout: bool,
}

impl ConfigError {
    fn new(message: String) -> Self {
        Self { message, exit_code: 2, to_stdout: false }
    }

    /// Prints the message where it belongs and gives the code to exit with.
    pub fn report(&self) -> ExitCode {
        // A reader that has gone (`leveret --help | head -1`) is no error of ours.
        let _ = match self.to_stdout {
            true => writeln!(io::stdout(), "{}", self.message),
            false => writeln!(io::stderr(), "leveret: {}", self.message),
        };
        ExitCode::from(self.exit_code)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

/// Prints completions of the command line for the shell that the one argument names.
pub fn print_completions(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let shell = arguments.next().and_then(|shell| shell.to_str().and_then(command_line::completions));
    match shell {
        Some(script) => {
            let _ = io::stdout().write_all(&script);
            ExitCode::SUCCESS
        }
        None => ConfigError::new("completions needs bash, zsh or fish; see leveret --help".to_owned()).report(),
    }
}

/// Reads the settings. `args` begins with the program's name; `env` is all of the environment.
///
/// # Errors
/// Help, version or a check asked for, a usage error, an unreadable config file, a value that is not what it should be.
pub fn parse(
    args: impl IntoIterator<Item = OsString>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Config, ConfigError> {
    parse_with(args, env, &Disk)
}

struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path) -> io::Result<String> {
        fs::read_to_string(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
    }
}

fn parse_with(
    args: impl IntoIterator<Item = OsString>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
    files: &impl Files,
) -> Result<Config, ConfigError> {
    let env: Environment = env.into_iter().collect();
    let given = match command_line::parse(args)? {
        Task::Serve(given) => given,
        Task::Check(path) => return Err(sources::check(&path, &env, files)),
    };
    let chosen = given.iter().find(|(name, _)| *name == "config").map(|(_, path)| Path::new(path));
    let mut draft = Draft::new();
    // Lowest first: each source overwrites what the ones before it said.
    draft.apply_files(chosen, &env, files)?;
    draft.apply_environment(&env, files)?;
    draft.apply_command_line(&given)?;
    draft.finish()
}
