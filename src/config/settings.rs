//! Every setting there is, the tables of their names, and the draft that the sources fill in one after the other.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::log::LogDraft;
use super::policies::PolicyDrafts;
use super::values::{self, Expected, ListenOn};
use super::{
    Config, ConfigError, DefaultLimits, DiskFreeLimit, Listener, LogFormat, MemoryWatermark, MetricsOptions,
    NodeLimits, Secret,
};
use crate::auth::{Pattern, Permissions};
use crate::model::arguments::QueueType;
use crate::model::profile::Profile;
use crate::model::vhost::VhostLimits;
use crate::storage::Fsync;

/// One thing that can be set, wherever it is set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Setting {
    ConfigFile,
    DataDir,
    Ephemeral,
    Bind,
    Port,
    ManagementPort,
    ManagementAddress,
    AdminSocket,
    MetricsPort,
    MetricsAddress,
    MetricsPath,
    MetricsPerObject,
    MetricsAuthentication,
    Compat,
    CompatLint,
    Fsync,
    Log,
    LogFormat,
    Definitions,
    PidFile,
    NoListener,
    Listener,
    HandshakeTimeout,
    Heartbeat,
    FrameMax,
    ChannelMax,
    InitialFrameMax,
    ConsumerTimeout,
    MaxMessageSize,
    QueueMemory,
    DefaultUser,
    DefaultPass,
    DefaultVhost,
    DefaultConfigure,
    DefaultRead,
    DefaultWrite,
    DefaultUserTag,
    NoLoopbackUsers,
    LoopbackUser,
    LogConsole,
    LogConsoleLevel,
    LogFormatter,
    LogDefaultLevel,
    LogLevel,
    LogFile,
    AuthBackend,
    ClusterName,
    AnonymousUser,
    AnonymousPass,
    DefaultQueueType,
    RelaxedQuorumRedeclare,
    ConnectionMax,
    ChannelMaxPerNode,
    ConsumerMaxPerChannel,
    QueueLimit,
    ExchangeLimit,
    VhostMax,
    DefaultLimitsPattern,
    DefaultLimitsConnections,
    DefaultLimitsQueues,
    VhostCompat,
    VhostQueueType,
    MemoryRelative,
    MemoryAbsolute,
    MemoryTotal,
    DiskRelative,
    DiskAbsolute,
    Policy,
}

impl Setting {
    /// Its values must not reach a log or an error.
    pub(super) fn is_secret(self) -> bool {
        matches!(self, Self::DefaultPass | Self::AnonymousPass)
    }
}

/// Our own: `data_dir` is `--data-dir`, `LEVERET_DATA_DIR`, and `leveret.data_dir` in the file.
pub(super) const OPTIONS: [(&str, Setting); 16] = [
    ("config", Setting::ConfigFile),
    ("data_dir", Setting::DataDir),
    ("ephemeral", Setting::Ephemeral),
    ("bind", Setting::Bind),
    ("port", Setting::Port),
    ("management_port", Setting::ManagementPort),
    ("admin_socket", Setting::AdminSocket),
    ("metrics_port", Setting::MetricsPort),
    ("compat", Setting::Compat),
    ("compat_lint", Setting::CompatLint),
    ("definitions", Setting::Definitions),
    ("pid_file", Setting::PidFile),
    ("fsync", Setting::Fsync),
    ("queue_memory", Setting::QueueMemory),
    ("log", Setting::Log),
    ("log_format", Setting::LogFormat),
];

/// Keys that the file alone has: RabbitMQ's that we act on, and ours of single vhosts. `$…` stands for any word.
pub(super) const FILE_KEYS: &[(&str, Setting)] = &[
    ("listeners.tcp", Setting::NoListener),
    ("listeners.tcp.$name", Setting::Listener),
    ("management.tcp.port", Setting::ManagementPort),
    ("management.listener.port", Setting::ManagementPort),
    ("management.tcp.ip", Setting::ManagementAddress),
    ("management.listener.ip", Setting::ManagementAddress),
    ("prometheus.tcp.port", Setting::MetricsPort),
    ("prometheus.tcp.ip", Setting::MetricsAddress),
    ("prometheus.path", Setting::MetricsPath),
    ("prometheus.return_per_object_metrics", Setting::MetricsPerObject),
    ("prometheus.authentication.enabled", Setting::MetricsAuthentication),
    ("handshake_timeout", Setting::HandshakeTimeout),
    ("heartbeat", Setting::Heartbeat),
    ("frame_max", Setting::FrameMax),
    ("channel_max", Setting::ChannelMax),
    ("max_channels_per_connection", Setting::ChannelMax),
    ("initial_frame_max", Setting::InitialFrameMax),
    ("consumer_timeout", Setting::ConsumerTimeout),
    ("max_message_size", Setting::MaxMessageSize),
    ("default_user", Setting::DefaultUser),
    ("default_pass", Setting::DefaultPass),
    ("default_vhost", Setting::DefaultVhost),
    ("default_permissions.configure", Setting::DefaultConfigure),
    ("default_permissions.read", Setting::DefaultRead),
    ("default_permissions.write", Setting::DefaultWrite),
    ("default_user_tags.$tag", Setting::DefaultUserTag),
    ("loopback_users", Setting::NoLoopbackUsers),
    ("loopback_users.$user", Setting::LoopbackUser),
    ("log.console", Setting::LogConsole),
    ("log.console.level", Setting::LogConsoleLevel),
    ("log.console.formatter", Setting::LogFormatter),
    ("log.default.level", Setting::LogDefaultLevel),
    ("log.file", Setting::LogFile),
    ("log.$category.level", Setting::LogLevel),
    ("load_definitions", Setting::Definitions),
    ("management.load_definitions", Setting::Definitions),
    ("definitions.local.path", Setting::Definitions),
    ("auth_backends.$n", Setting::AuthBackend),
    ("cluster_name", Setting::ClusterName),
    ("anonymous_login_user", Setting::AnonymousUser),
    ("anonymous_login_pass", Setting::AnonymousPass),
    ("default_queue_type", Setting::DefaultQueueType),
    ("quorum_queue.property_equivalence.relaxed_checks_on_redeclaration", Setting::RelaxedQuorumRedeclare),
    ("connection_max", Setting::ConnectionMax),
    ("max_connections", Setting::ConnectionMax),
    ("channel_max_per_node", Setting::ChannelMaxPerNode),
    ("consumer_max_per_channel", Setting::ConsumerMaxPerChannel),
    ("cluster_queue_limit", Setting::QueueLimit),
    ("cluster_exchange_limit", Setting::ExchangeLimit),
    ("vhost_max", Setting::VhostMax),
    ("vm_memory_high_watermark.relative", Setting::MemoryRelative),
    ("vm_memory_high_watermark.absolute", Setting::MemoryAbsolute),
    ("total_memory_available_override_value", Setting::MemoryTotal),
    ("disk_free_limit.relative", Setting::DiskRelative),
    ("disk_free_limit.absolute", Setting::DiskAbsolute),
    ("default_limits.vhosts.$id.pattern", Setting::DefaultLimitsPattern),
    ("default_limits.vhosts.$id.max_connections", Setting::DefaultLimitsConnections),
    ("default_limits.vhosts.$id.max_queues", Setting::DefaultLimitsQueues),
    ("leveret.vhosts.$name.compat", Setting::VhostCompat),
    ("leveret.vhosts.$name.default_queue_type", Setting::VhostQueueType),
    ("leveret.policies.$policy", Setting::Policy),
];

/// A config in the making.
pub(super) struct Draft {
    pub(super) config: Config,
    data_dir: PathBuf,
    ephemeral: bool,
    bind: Vec<(IpAddr, bool)>,
    /// By name: `default`, `1`, …; a later line replaces an earlier one of the same name.
    pub(super) listeners: BTreeMap<String, ListenOn>,
    /// `None`: nobody said.
    management_port: Option<Option<u16>>,
    management_address: Option<IpAddr>,
    metrics_port: Option<Option<u16>>,
    metrics_address: Option<IpAddr>,
    max_message_size: Option<u64>,
    policies: PolicyDrafts,
    user_tags: Option<BTreeMap<String, bool>>,
    loopback_users: Option<BTreeMap<String, bool>>,
    no_loopback_users: bool,
    anonymous_user: Option<String>,
    anonymous_pass: Secret,
    /// By id, whose order is that in which patterns are tried.
    default_limits: BTreeMap<String, DefaultLimits>,
    pub(super) log: LogDraft,
}

impl Draft {
    pub(super) fn new() -> Self {
        let all = || Pattern::new(".*").expect("a valid pattern");
        let config = Config {
            config_files: Vec::new(),
            data_dir: None,
            tcp_listeners: Vec::new(),
            management_listeners: Vec::new(),
            admin_socket: None,
            metrics_listeners: Vec::new(),
            metrics: MetricsOptions::default(),
            profile: Profile::default(),
            compat_lint: None,
            fsync: Fsync::Always,
            log: String::new(), // in `finish`
            log_format: LogFormat::Text,
            handshake_timeout: Duration::from_secs(10),
            heartbeat_s: 60,
            frame_max: 128 << 10,
            channel_max: 2047,
            initial_frame_max: 8192,
            consumer_timeout: Some(Duration::from_secs(30 * 60)),
            max_message_size: 0, // by profile, in `finish`
            queue_memory: 40 << 20,
            memory_watermark: MemoryWatermark::Relative(0.6),
            memory_total: None,
            disk_free_limit: DiskFreeLimit::Absolute(50_000_000),
            default_user: "guest".to_owned(),
            default_pass: Secret::new("guest"),
            default_vhost: "/".to_owned(),
            default_permissions: Permissions { configure: all(), write: all(), read: all() },
            default_user_tags: vec!["administrator".to_owned()],
            loopback_users: vec!["guest".to_owned()],
            anonymous_login: None,
            default_queue_type: QueueType::Classic,
            relaxed_quorum_redeclare: false,
            limits: NodeLimits::default(),
            default_limits: Vec::new(),
            vhosts: BTreeMap::new(),
            policies: Vec::new(),
            definitions: None,
            pid_file: None,
            cluster_name: None,
            warnings: Vec::new(),
        };
        Self {
            config,
            data_dir: PathBuf::from("./leveret-data"),
            ephemeral: false,
            bind: values::localhost(false),
            listeners: BTreeMap::from([("default".to_owned(), ListenOn::Port(5672))]),
            management_port: None,
            management_address: None,
            metrics_port: None,
            metrics_address: None,
            max_message_size: None,
            policies: PolicyDrafts::default(),
            user_tags: None,
            loopback_users: None,
            no_loopback_users: false,
            anonymous_user: None,
            anonymous_pass: Secret::new("guest"),
            default_limits: BTreeMap::new(),
            log: LogDraft::default(),
        }
    }

    /// `word` is what the `$…` of the key stands for, empty if it has none.
    pub(super) fn set(&mut self, setting: Setting, word: &str, value: &OsStr) -> Result<(), Expected> {
        // A path need not be UTF-8.
        match setting {
            Setting::DataDir => self.data_dir = PathBuf::from(value),
            Setting::Definitions => self.config.definitions = Some(PathBuf::from(value)),
            Setting::PidFile => self.config.pid_file = Some(PathBuf::from(value)),
            _ => return self.set_text(setting, word, value.to_str().ok_or("UTF-8 text")?),
        }
        Ok(())
    }

    fn set_text(&mut self, setting: Setting, word: &str, text: &str) -> Result<(), Expected> {
        let config = &mut self.config;
        match setting {
            // Read before anything else, or no text.
            Setting::ConfigFile | Setting::DataDir | Setting::Definitions | Setting::PidFile => {}
            Setting::Ephemeral => self.ephemeral = values::boolean(text)?,
            Setting::Bind => self.bind = values::addresses(text)?,
            Setting::Port => {
                let port = values::port(text)?;
                self.listeners.insert("default".to_owned(), ListenOn::Port(port));
            }
            Setting::ManagementPort => self.management_port = Some(values::port_or_off(text)?),
            Setting::ManagementAddress => self.management_address = Some(values::address(text)?),
            Setting::AdminSocket => config.admin_socket = Some(PathBuf::from(text)),
            Setting::MetricsPort => self.metrics_port = Some(values::port_or_off(text)?),
            Setting::MetricsAddress => self.metrics_address = Some(values::address(text)?),
            Setting::MetricsPath => config.metrics.path = values::url_path(text)?,
            Setting::MetricsPerObject => config.metrics.per_object = values::boolean(text)?,
            Setting::MetricsAuthentication => config.metrics.authentication = values::boolean(text)?,
            Setting::Compat => config.profile = values::profile(text)?,
            Setting::CompatLint => config.compat_lint = Some(values::profile(text)?),
            Setting::QueueMemory => config.queue_memory = values::queue_memory(text)?,
            Setting::Fsync => config.fsync = values::fsync(text)?,
            Setting::Log => self.log = LogDraft::of(values::log_filter(text)?),
            Setting::LogFormat => config.log_format = values::log_format(text)?,
            Setting::NoListener => match text {
                "none" => self.listeners.clear(),
                _ => return Err("none; a port goes to listeners.tcp.default".to_owned()),
            },
            Setting::Listener => {
                self.listeners.insert(word.to_owned(), values::listen_on(text)?);
            }
            Setting::HandshakeTimeout => {
                let ms = values::number(text, 1..=u32::MAX, "milliseconds, 1 or more")?;
                config.handshake_timeout = Duration::from_millis(ms.into());
            }
            Setting::Heartbeat => {
                config.heartbeat_s = values::number(text, 0..=u16::MAX, "seconds from 0 (off) to 65535")?;
            }
            Setting::FrameMax => config.frame_max = values::frame_size(text, true)?,
            Setting::ChannelMax => {
                config.channel_max = values::number(text, 0..=u16::MAX, "a number from 0 (no limit) to 65535")?;
            }
            Setting::InitialFrameMax => config.initial_frame_max = values::frame_size(text, false)?,
            Setting::ConsumerTimeout => config.consumer_timeout = values::consumer_timeout(text)?,
            Setting::MaxMessageSize => self.max_message_size = Some(values::message_size(text)?),
            Setting::DefaultUser => config.default_user = values::not_empty(text)?,
            Setting::DefaultPass => config.default_pass = Secret::new(values::not_empty(text)?),
            Setting::DefaultVhost => config.default_vhost = values::not_empty(text)?,
            Setting::DefaultConfigure => config.default_permissions.configure = values::pattern(text)?,
            Setting::DefaultRead => config.default_permissions.read = values::pattern(text)?,
            Setting::DefaultWrite => config.default_permissions.write = values::pattern(text)?,
            Setting::DefaultUserTag => {
                self.user_tags.get_or_insert_default().insert(word.to_owned(), values::boolean(text)?);
            }
            Setting::NoLoopbackUsers => match text {
                "none" => self.no_loopback_users = true,
                _ => return Err("none; a user goes to loopback_users.NAME = true".to_owned()),
            },
            Setting::LoopbackUser => {
                self.loopback_users.get_or_insert_default().insert(word.to_owned(), values::boolean(text)?);
            }
            Setting::LogConsole => self.log.is_off = !values::boolean(text)?,
            Setting::LogConsoleLevel => self.log.filter = Some(values::console_level(text)?.to_owned()),
            Setting::LogDefaultLevel => self.log.default_level = Some(values::console_level(text)?),
            Setting::LogLevel => self.log.set_level(word, values::console_level(text)?)?,
            Setting::LogFormatter => config.log_format = values::log_formatter(text)?,
            Setting::LogFile => match text {
                "false" => {}
                _ => config.warnings.push(format!("log.file = {text} is ignored: the log goes to stderr")),
            },
            Setting::AuthBackend => values::auth_backend(text)?,
            Setting::ClusterName => config.cluster_name = Some(values::not_empty(text)?),
            Setting::AnonymousUser => {
                self.anonymous_user = (text != "none").then(|| values::not_empty(text)).transpose()?;
            }
            Setting::AnonymousPass => self.anonymous_pass = Secret::new(values::not_empty(text)?),
            Setting::DefaultQueueType => config.default_queue_type = values::queue_type(text)?,
            Setting::RelaxedQuorumRedeclare => config.relaxed_quorum_redeclare = values::boolean(text)?,
            Setting::ConnectionMax => config.limits.connections = values::limit(text, 0..=u64::MAX)?,
            Setting::ChannelMaxPerNode => config.limits.channels = values::limit(text, 1..=u64::MAX)?,
            Setting::ConsumerMaxPerChannel => {
                config.limits.consumers_per_channel = values::limit(text, 1..=u32::MAX)?;
            }
            Setting::QueueLimit => config.limits.queues = values::limit(text, 1..=u64::MAX)?,
            Setting::ExchangeLimit => config.limits.exchanges = values::limit(text, 0..=u64::MAX)?,
            Setting::VhostMax => config.limits.vhosts = values::limit(text, 0..=u64::MAX)?,
            Setting::DefaultLimitsPattern => self.default_limits_of(word).pattern = values::pattern(text)?,
            Setting::DefaultLimitsConnections => {
                self.default_limits_of(word).limits.max_connections = Some(values::vhost_limit(text)?);
            }
            Setting::DefaultLimitsQueues => {
                self.default_limits_of(word).limits.max_queues = Some(values::vhost_limit(text)?);
            }
            Setting::MemoryRelative => {
                config.memory_watermark = MemoryWatermark::Relative(values::share(text, 1.0)?);
            }
            Setting::MemoryAbsolute => config.memory_watermark = MemoryWatermark::Absolute(values::size(text)?),
            Setting::MemoryTotal => config.memory_total = Some(values::size(text)?),
            Setting::DiskRelative => config.disk_free_limit = DiskFreeLimit::Relative(values::share(text, 1000.0)?),
            Setting::DiskAbsolute => config.disk_free_limit = DiskFreeLimit::Absolute(values::size(text)?),
            Setting::Policy => self.policies.set(word, text)?,
            Setting::VhostCompat => {
                config.vhosts.entry(word.to_owned()).or_default().profile = Some(values::profile(text)?);
            }
            Setting::VhostQueueType => {
                let queue_type = values::queue_type(text)?;
                config.vhosts.entry(word.to_owned()).or_default().default_queue_type = Some(queue_type);
            }
        }
        Ok(())
    }

    fn default_limits_of(&mut self, id: &str) -> &mut DefaultLimits {
        // RabbitMQ takes a missing pattern for one that matches all.
        let all = || Pattern::new(".*").expect("a valid pattern");
        let new = || DefaultLimits { pattern: all(), limits: VhostLimits::default() };
        self.default_limits.entry(id.to_owned()).or_insert_with(new)
    }

    /// `--bind` and `--port`, and their variables, rule over all listeners of the file.
    pub(super) fn set_over_file(&mut self, setting: Setting, word: &str, value: &OsStr) -> Result<(), Expected> {
        match setting {
            Setting::Port => self.listeners.clear(),
            Setting::Bind => self.listeners.values_mut().for_each(|at| *at = ListenOn::Port(at.port())),
            _ => {}
        }
        self.set(setting, word, value)
    }

    pub(super) fn apply_command_line(&mut self, given: &[(&str, OsString)]) -> Result<(), ConfigError> {
        for (name, value) in given {
            let (_, setting) = OPTIONS.into_iter().find(|(option, _)| option == name).expect("each option has a row");
            self.set_over_file(setting, "", value).map_err(|expected| {
                let option = name.replace('_', "-");
                ConfigError::new(format!("--{option} {}: expected {expected}; see leveret --help", value.display()))
            })?;
            // A folder given here undoes an `ephemeral` of the file or the environment.
            if setting == Setting::DataDir {
                self.ephemeral = false;
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Config, ConfigError> {
        let mut config = self.config;
        for on in self.listeners.into_values() {
            let found = match on {
                ListenOn::Address(address) => vec![Listener { address, required: true }],
                ListenOn::Port(port) => {
                    let at = |&(ip, required)| Listener { address: SocketAddr::new(ip, port), required };
                    self.bind.iter().map(at).collect()
                }
            };
            for listener in found {
                // The same address twice could only fail.
                if !config.tcp_listeners.iter().any(|other| other.address == listener.address) {
                    config.tcp_listeners.push(listener);
                }
            }
        }
        if config.tcp_listeners.is_empty() {
            let message =
                "listeners.tcp = none leaves nothing to serve: remove it from the config file, or give --port";
            return Err(ConfigError::new(message.to_owned()));
        }
        // Whoever takes any free port for AMQP (a test) does not want to be in the way of another broker.
        let is_test = config.tcp_listeners.iter().any(|on| on.address.port() == 0);
        let bind = &self.bind;
        let listeners = |port: Option<Option<u16>>, default: u16, address: Option<IpAddr>| {
            let port = port.unwrap_or(Some(if is_test { 0 } else { default }))?;
            let only = address.map(|ip| vec![(ip, true)]);
            let addresses = only.as_ref().unwrap_or(bind).iter();
            let at = |&(ip, required)| Listener { address: SocketAddr::new(ip, port), required };
            Some(addresses.map(at).collect::<Vec<_>>())
        };
        let management = listeners(self.management_port, 15672, self.management_address);
        config.management_listeners = management.unwrap_or_default();
        config.metrics_listeners = listeners(self.metrics_port, 15692, self.metrics_address).unwrap_or_default();
        config.log = self.log.finish();
        config.policies = self.policies.finish(&config.default_vhost)?;
        config.data_dir = (!self.ephemeral).then_some(self.data_dir);
        config.max_message_size = self.max_message_size.unwrap_or_else(|| config.profile.max_message_size());
        // As RabbitMQ does it, naming any user or tag replaces the default list.
        let chosen =
            |words: BTreeMap<String, bool>| words.into_iter().filter_map(|(word, on)| on.then_some(word)).collect();
        if let Some(tags) = self.user_tags {
            config.default_user_tags = chosen(tags);
        }
        if let Some(users) = self.loopback_users {
            config.loopback_users = chosen(users);
        }
        if self.no_loopback_users {
            config.loopback_users.clear();
        }
        config.anonymous_login = self.anonymous_user.map(|user| (user, self.anonymous_pass));
        config.default_limits = self.default_limits.into_values().collect();
        Ok(config)
    }
}
