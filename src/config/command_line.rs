//! The command line, as clap sees it: names and help texts only. Values are read where those of the
//! environment and the file are read too, so that an error sounds the same wherever it was written.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser, Subcommand};

use super::ConfigError;

/// What to do.
///
/// # Errors
/// Help or version asked for, an option or command that is not known, a value missing.
pub(super) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Task, ConfigError> {
    let cli = Cli::try_parse_from(args).map_err(usage_error)?;
    if let Some(Command::Config { command: ConfigCommand::Check { file } }) = cli.command {
        return Ok(Task::Check(file));
    }
    let given = cli.given();
    let is_given = |option| given.iter().any(|(name, _)| *name == option);
    if is_given("ephemeral") && is_given("data_dir") {
        let message = "--ephemeral and --data-dir exclude each other: leave one out; see leveret --help";
        return Err(ConfigError::new(message.to_owned()));
    }
    Ok(Task::Serve(given))
}

/// What the user wants.
pub(super) enum Task {
    /// Run the broker, with the options that were given, by their names in [`OPTIONS`](super::settings::OPTIONS).
    Serve(Vec<(&'static str, OsString)>),
    /// Say what is wrong with a settings file.
    Check(PathBuf),
}

/// Leveret, a message broker for RabbitMQ's client libraries (AMQP 0-9-1).
#[derive(Parser)]
#[command(
    name = "leveret",
    version,
    override_usage = "leveret [server] [OPTIONS]\n       leveret config check FILE",
    after_help = AFTER_HELP,
    disable_help_subcommand = true,
    args_override_self = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    /// TCP port for AMQP; 0: any free one [default: 5672]
    #[arg(long, global = true, value_name = "N", help_heading = "Network")]
    port: Option<OsString>,
    /// TCP port for the HTTP API; 0: any free one;
    /// off [default: 15672, or 0 with --port 0]
    #[arg(long, global = true, value_name = "N", help_heading = "Network", verbatim_doc_comment)]
    management_port: Option<OsString>,
    /// Unix socket that leveret ctl talks to
    /// [default: admin.sock in the data folder]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Network", verbatim_doc_comment)]
    admin_socket: Option<OsString>,
    /// TCP port for Prometheus metrics; 0: any free one;
    /// off [default: 15692, or 0 with --port 0]
    #[arg(long, global = true, value_name = "N", help_heading = "Network", verbatim_doc_comment)]
    metrics_port: Option<OsString>,
    /// IP address to listen on (repeatable); 0.0.0.0: all
    /// [default: 127.0.0.1 and ::1, this machine only]
    #[arg(long, global = true, value_name = "ADDR", help_heading = "Network", verbatim_doc_comment)]
    bind: Vec<OsString>,

    /// Folder of what is durable [default: ./leveret-data]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Storage")]
    data_dir: Option<OsString>,
    /// Nothing on disk: all in memory, gone at the end
    #[arg(long, global = true, help_heading = "Storage")]
    ephemeral: bool,
    /// Flush to the disk always (before each confirm),
    /// never, or interval:MS [default: always]
    #[arg(long, global = true, value_name = "WHEN", help_heading = "Storage", verbatim_doc_comment)]
    fsync: Option<OsString>,
    /// Waiting messages to keep in memory, in bytes;
    /// the rest waits on disk [default: 40MiB]
    #[arg(long, global = true, value_name = "SIZE", help_heading = "Storage", verbatim_doc_comment)]
    queue_memory: Option<OsString>,

    /// Settings file, in the syntax of rabbitmq.conf
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<OsString>,
    /// Users, queues and so on to import at each start,
    /// before anybody is served; a file or folder of
    /// RabbitMQ's definitions (JSON)
    #[arg(long, global = true, value_name = "FILE", verbatim_doc_comment)]
    definitions: Option<OsString>,
    /// Write the number of the process to this file
    #[arg(long, global = true, value_name = "FILE")]
    pid_file: Option<OsString>,
    /// RabbitMQ to behave like: 3.13, 4.0, 4.1, 4.2, 4.3
    /// [default: 4.2]
    #[arg(long, global = true, value_name = "VERSION", verbatim_doc_comment)]
    compat: Option<OsString>,
    /// Log what this newer RabbitMQ would refuse
    /// or do differently
    #[arg(long, global = true, value_name = "VERSION", verbatim_doc_comment)]
    compat_lint: Option<OsString>,
    /// error, warn, info, debug, trace, or a filter like
    /// info,leveret::storage=debug [default: info]
    #[arg(long, global = true, value_name = "LEVEL", verbatim_doc_comment)]
    log: Option<OsString>,
    /// Log lines on stderr as text or json
    /// [default: text]
    #[arg(long, global = true, value_name = "FORMAT", verbatim_doc_comment)]
    log_format: Option<OsString>,
}

const AFTER_HELP: &str = "\
Each option can also stand in the environment (--data-dir: LEVERET_DATA_DIR) and
in the settings file (leveret.data_dir = ...). The command line wins over the
environment, and that over the file. The variables of RabbitMQ's container image
are understood: RABBITMQ_DEFAULT_USER, _DEFAULT_PASS, _DEFAULT_VHOST (each also
as ..._FILE), _NODE_PORT, _NODE_IP_ADDRESS, _CONFIG_FILE, _CONFIG_FILES, _LOG,
_MNESIA_DIR, _PID_FILE. docs/configuration.md has all keys and variables.

Examples:
  leveret                         localhost:5672, user guest, password guest
  leveret --ephemeral --port 0    for a test: keeps nothing, has its own port
  leveret --bind 0.0.0.0 --config my.conf
                                  for the network; guest is for this machine
                                  only, so my.conf sets another default_user
                                  and default_pass";

#[derive(Subcommand)]
enum Command {
    /// Run the broker; the command that is meant when none is given
    Server,
    /// Put load on a broker and measure it: see leveret perf --help
    Perf,
    /// Look into a data folder: see leveret store --help
    Store,
    /// Look at settings without running anything
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Ask or change a running broker: see leveret ctl help
    Ctl,
    /// Print completions for a shell: bash, zsh or fish
    Completions,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Say what is wrong with a settings file, and where; exit code 2 if the broker would not start with it
    Check {
        /// Settings file, in the syntax of rabbitmq.conf
        file: PathBuf,
    },
}

impl Cli {
    fn given(self) -> Vec<(&'static str, OsString)> {
        let bind = (!self.bind.is_empty()).then(|| self.bind.join(OsStr::new(",")));
        let options = [
            ("config", self.config),
            ("data_dir", self.data_dir),
            ("ephemeral", self.ephemeral.then(|| "true".into())),
            ("bind", bind),
            ("port", self.port),
            ("management_port", self.management_port),
            ("admin_socket", self.admin_socket),
            ("metrics_port", self.metrics_port),
            ("compat", self.compat),
            ("compat_lint", self.compat_lint),
            ("definitions", self.definitions),
            ("pid_file", self.pid_file),
            ("fsync", self.fsync),
            ("queue_memory", self.queue_memory),
            ("log", self.log),
            ("log_format", self.log_format),
        ];
        options.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

/// The script for this shell; `None`: not one that is known.
pub(super) fn completions(shell: &str) -> Option<Vec<u8>> {
    let shell: clap_complete::Shell = shell.parse().ok()?;
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "leveret", &mut script);
    Some(script)
}

/// clap's message of several lines, cut down to one.
fn usage_error(error: clap::Error) -> ConfigError {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => texts.first().cloned(),
        _ => None,
    };
    // clap writes an option as `--port <N>`.
    let option = |kind| context(kind).map(|text| text.split([' ', '=']).next().unwrap_or_default().to_owned());
    let argument = option(ContextKind::InvalidArg).unwrap_or_default();
    let what = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            return ConfigError { message: error.to_string().trim_end().to_owned(), exit_code: 0, to_stdout: true };
        }
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            let near = option(ContextKind::SuggestedArg).map(|near| format!(" (did you mean {near}?)"));
            format!("unknown option {argument}{}", near.unwrap_or_default())
        }
        ErrorKind::UnknownArgument => format!("unexpected argument {argument}"),
        ErrorKind::InvalidSubcommand => {
            let near = context(ContextKind::SuggestedSubcommand).map(|near| format!(" (did you mean {near}?)"));
            let command = context(ContextKind::InvalidSubcommand).unwrap_or_default();
            format!("unknown command {command}{}", near.unwrap_or_default())
        }
        ErrorKind::InvalidValue => format!("{argument} needs a value"),
        ErrorKind::TooManyValues => format!("{argument} takes no value"),
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.strip_prefix("error: ").unwrap_or(line).to_owned()
        }
    };
    ConfigError::new(format!("{what}; see leveret --help"))
}
