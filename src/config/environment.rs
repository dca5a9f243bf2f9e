//! Settings from the environment: `LEVERET_…`, one for each option; and the variables of RabbitMQ and of its
//! container image, which set keys of the settings file. Ours win.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use regex::Regex;
use tracing_subscriber::EnvFilter;

use super::file::{self, nearest};
use super::settings::{Draft, OPTIONS};
use super::{ConfigError, Files};

/// All of the environment, by name.
pub(super) type Environment = BTreeMap<OsString, OsString>;

/// Settings that the image of a distribution comes with: a file that is read before all others.
pub(super) const DEFAULTS: &str = "LEVERET_DEFAULTS";

/// What follows `RABBITMQ_`, and the key that it sets; later ones win. Those before the `DEFAULT_` are the names of
/// another wide-spread image.
const VARIABLES: [(&str, &str); 22] = [
    ("USERNAME", "default_user"),
    ("PASSWORD", "default_pass"),
    ("VHOST", "default_vhost"),
    ("DEFAULT_USER", "default_user"),
    ("DEFAULT_PASS", "default_pass"),
    ("DEFAULT_VHOST", "default_vhost"),
    ("NODE_IP_ADDRESS", "leveret.bind"),
    ("NODE_PORT", "leveret.port"),
    ("MNESIA_DIR", "leveret.data_dir"),
    ("PID_FILE", "leveret.pid_file"),
    ("SSL_CACERTFILE", "ssl_options.cacertfile"),
    ("SSL_CERTFILE", "ssl_options.certfile"),
    ("SSL_KEYFILE", "ssl_options.keyfile"),
    ("SSL_VERIFY", "ssl_options.verify"),
    ("SSL_FAIL_IF_NO_PEER_CERT", "ssl_options.fail_if_no_peer_cert"),
    ("SSL_DEPTH", "ssl_options.depth"),
    ("MANAGEMENT_SSL_CACERTFILE", "management.ssl.cacertfile"),
    ("MANAGEMENT_SSL_CERTFILE", "management.ssl.certfile"),
    ("MANAGEMENT_SSL_KEYFILE", "management.ssl.keyfile"),
    ("MANAGEMENT_SSL_VERIFY", "management.ssl.verify"),
    ("MANAGEMENT_SSL_FAIL_IF_NO_PEER_CERT", "management.ssl.fail_if_no_peer_cert"),
    ("MANAGEMENT_SSL_DEPTH", "management.ssl.depth"),
];

/// The value of a variable, unless it is set to nothing.
pub(super) fn variable<'e>(env: &'e Environment, name: &str) -> Option<&'e OsString> {
    env.get(OsStr::new(name)).filter(|value| !value.is_empty())
}

impl Draft {
    pub(super) fn apply_environment(&mut self, env: &Environment, files: &impl Files) -> Result<(), ConfigError> {
        self.apply_rabbitmq_environment(env, files)?;
        self.apply_rust_log(env);
        for (name, value) in env {
            let Some(option) = name.to_str().and_then(|name| name.strip_prefix("LEVERET_")) else { continue };
            // Compose files set what is not wanted to nothing.
            let foreign = is_of_kubernetes(option, value) || name == DEFAULTS;
            if value.is_empty() || foreign {
                continue;
            }
            let known = OPTIONS.into_iter().find(|(name, _)| name.to_uppercase() == option);
            let Some((_, setting)) = known else {
                let names = OPTIONS.iter().map(|(name, _)| name.to_uppercase());
                let near = nearest(option, names).map(|near| format!("; did you mean LEVERET_{near}?"));
                let near = near.unwrap_or_default();
                self.config.warnings.push(format!("unknown environment variable LEVERET_{option} is ignored{near}"));
                continue;
            };
            self.set_over_file(setting, "", value).map_err(|expected| {
                ConfigError::new(format!("LEVERET_{option}={}: expected {expected}", value.display()))
            })?;
        }
        Ok(())
    }

    /// Rust programs share `RUST_LOG`: one that we cannot read was perhaps not meant for us.
    fn apply_rust_log(&mut self, env: &Environment) {
        let Some(value) = variable(env, "RUST_LOG") else { return };
        match value.to_str().filter(|filter| EnvFilter::try_new(filter).is_ok()) {
            Some(filter) => self.log = super::log::LogDraft::of(filter.to_owned()),
            None => self.config.warnings.push(format!("RUST_LOG={} is no log filter, ignored", value.display())),
        }
    }

    fn apply_rabbitmq_environment(&mut self, env: &Environment, files: &impl Files) -> Result<(), ConfigError> {
        // What Erlang's command line says is meant for the same program: the variables proper win over it.
        if let Some(flags) = variable(env, "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS").and_then(|flags| flags.to_str()) {
            self.apply_erlang_flags(flags)?;
        }
        for (word, key) in VARIABLES {
            let name = format!("RABBITMQ_{word}");
            if let Some(value) = variable(env, &name).filter(|value| !is_of_kubernetes(word, value)) {
                self.set_from_variable(&name, key, value)?;
            }
            let name = format!("{name}_FILE");
            if let Some(path) = variable(env, &name).filter(|_| word.starts_with("DEFAULT_")) {
                let text = files.read(Path::new(path)).map_err(|error| {
                    ConfigError::new(format!("{name}={}: {error}; check that the file is there", path.display()))
                })?;
                self.set_from_variable(&name, key, OsStr::new(text.trim_end_matches(['\r', '\n'])))?;
            }
        }
        if let Some(value) = variable(env, "RABBITMQ_VM_MEMORY_HIGH_WATERMARK") {
            let fraction = value.to_str().is_some_and(|value| value.parse::<f64>().is_ok_and(|value| value <= 1.0));
            let key = if fraction { "relative" } else { "absolute" };
            let key = format!("vm_memory_high_watermark.{key}");
            self.set_from_variable("RABBITMQ_VM_MEMORY_HIGH_WATERMARK", &key, value)?;
        }
        if let Some(levels) = variable(env, "RABBITMQ_LOG") {
            self.apply_rabbitmq_log(&levels.to_string_lossy())?;
        }
        for (name, advice) in [
            ("RABBITMQ_ADVANCED_CONFIG_FILE", "write the same as keys of rabbitmq.conf"),
            ("RABBITMQ_CONF_ENV_FILE", "set its variables in the environment"),
        ] {
            if variable(env, name).is_some() {
                self.config.warnings.push(format!("{name} is ignored: {advice}"));
            }
        }
        if variable(env, "RABBITMQ_LOGS").is_some_and(|logs| logs != "-") {
            self.config.warnings.push("RABBITMQ_LOGS is ignored: the log goes to stderr".to_owned());
        }
        Ok(())
    }

    fn set_from_variable(&mut self, name: &str, key: &str, value: &OsStr) -> Result<(), ConfigError> {
        let Some((setting, word)) = file::find_setting(key) else {
            self.config.warnings.push(format!("{name} is ignored: {key} has no effect here"));
            return Ok(());
        };
        self.set_over_file(setting, word, value).map_err(|expected| {
            let shown = if setting.is_secret() { "…".into() } else { value.to_string_lossy() };
            ConfigError::new(format!("{name}={shown}: expected {expected}"))
        })
    }

    /// `debug`, or `connection=warning,default=info` (4.3). Words for the console's looks are passed over.
    fn apply_rabbitmq_log(&mut self, levels: &str) -> Result<(), ConfigError> {
        for word in levels.split(',').map(str::trim) {
            let key = match word.split_once('=') {
                Some((category, level)) => Some((format!("log.{category}.level"), level)),
                None if super::values::console_level(word).is_ok() => Some(("log.console.level".to_owned(), word)),
                None => None,
            };
            if let Some((key, level)) = key {
                self.set_from_variable("RABBITMQ_LOG", &key, OsStr::new(level))?;
            }
        }
        Ok(())
    }

    /// The flags of Erlang's command line that are settings of RabbitMQ (4.3): `-rabbit tcp_listeners [5672]`. All
    /// others are about a virtual machine that is not here.
    fn apply_erlang_flags(&mut self, flags: &str) -> Result<(), ConfigError> {
        const NAME: &str = "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS";
        let flag = Regex::new(r#"-(rabbit|rabbitmq_management)\s+(\w+)\s+(\[[^\]]*\]|"[^"]*"|<<"[^"]*">>|[\w.]+)"#)
            .expect("a valid expression");
        for found in flags_of(&flag, flags) {
            let [application, key, value] = found;
            let text = value.trim_matches(['<', '>', '"', '[', ']', ' ']);
            let key = match (application, key) {
                ("rabbit", "tcp_listeners") => "leveret.port".to_owned(),
                ("rabbit", "loopback_users") if text.is_empty() => {
                    self.set_from_variable(NAME, "loopback_users", OsStr::new("none"))?;
                    continue;
                }
                ("rabbit", "vm_memory_high_watermark") => "vm_memory_high_watermark.relative".to_owned(),
                ("rabbit", "disk_free_limit") => "disk_free_limit.absolute".to_owned(),
                ("rabbitmq_management", "load_definitions") => "load_definitions".to_owned(),
                ("rabbit", key) => key.to_owned(),
                _ => continue,
            };
            // Lists of other things are for those who read Erlang.
            if !value.starts_with('[') || key == "leveret.port" {
                self.set_from_variable(NAME, &key, OsStr::new(text))?;
            }
        }
        Ok(())
    }
}

fn flags_of<'t>(flag: &Regex, flags: &'t str) -> Vec<[&'t str; 3]> {
    flag.captures_iter(flags).map(|found| found.extract().1).collect()
}

/// Kubernetes describes a service called `leveret` to every pod with LEVERET_PORT=tcp://10.0.0.7:5672,
/// LEVERET_SERVICE_HOST and more; likewise one called `rabbitmq`.
fn is_of_kubernetes(name: &str, value: &OsStr) -> bool {
    let is_address = value.to_str().is_some_and(|value| value.starts_with("tcp://") || value.starts_with("udp://"));
    is_address || name.contains("SERVICE_") || name.contains("PORT_")
}
