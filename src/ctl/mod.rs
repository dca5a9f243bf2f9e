//! `leveret ctl`, and the same program under the names of RabbitMQ's tools: `rabbitmqctl`, `rabbitmq-diagnostics` and
//! `rabbitmq-plugins` (management reference 3). Talks HTTP over the broker's admin socket, so it needs no password
//! where the broker's own files can be read.

mod client;
mod commands;
mod diagnostics;
mod lists;
mod output;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use self::client::Client;
use self::output::{Format, Printer};
use crate::config;

/// What RabbitMQ's tools exit with.
pub mod exit {
    pub const USAGE: u8 = 64;
    pub const DATA: u8 = 65;
    pub const NO_USER: u8 = 67;
    pub const UNAVAILABLE: u8 = 69;
    pub const SOFTWARE: u8 = 70;
    pub const TIMEOUT: u8 = 75;
}

/// Why a command failed: what goes to stderr, and the exit code.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    text: String,
}

impl Failure {
    fn new(code: u8, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    fn usage(text: impl Into<String>) -> Self {
        Self::new(exit::USAGE, text)
    }
}

/// The name of a tool that this program is called by, if it is.
pub fn tool_of(program: &Path) -> Option<&'static str> {
    let name = program.file_stem()?.to_str()?;
    ["rabbitmqctl", "rabbitmq-diagnostics", "rabbitmq-plugins"].into_iter().find(|tool| *tool == name)
}

/// What was asked for.
#[derive(Debug, Default)]
struct Request {
    verb: String,
    arguments: Vec<String>,
    vhost: Option<String>,
    quiet: bool,
    silent: bool,
    no_headers: bool,
    format: Format,
    timeout: Option<Duration>,
    /// Options of single commands, by name without dashes; of those without a value it is empty.
    options: Vec<(String, String)>,
}

/// Options with a value that only single commands have.
const VALUED: [&str; 12] = [
    "description",
    "tags",
    "default-queue-type",
    "priority",
    "apply-to",
    "address",
    "limit",
    "per-connection-delay",
    "unit",
    "pid",
    "admin-socket",
    "data-dir",
];

impl Request {
    fn vhost(&self) -> &str {
        self.vhost.as_deref().unwrap_or("/")
    }

    fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The positional argument at this place.
    fn argument(&self, index: usize, name: &str) -> Result<&str, Failure> {
        let missing = || Failure::usage(format!("{}: argument {name} is missing", self.verb));
        self.arguments.get(index).map(String::as_str).ok_or_else(missing)
    }

    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut request = Self::default();
        let mut only_arguments = false;
        while let Some(word) = arguments.next() {
            if only_arguments || !word.starts_with('-') || word == "-" {
                match request.verb.is_empty() {
                    true => request.verb = word,
                    false => request.arguments.push(word),
                }
                continue;
            }
            if word == "--" {
                only_arguments = true;
                continue;
            }
            let (name, mut attached) = match word.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (word.clone(), None),
            };
            let mut value = || {
                let next = attached.take().or_else(|| arguments.next());
                next.ok_or_else(|| Failure::usage(format!("option {name} needs a value")))
            };
            match name.as_str() {
                "-p" | "--vhost" => request.vhost = Some(value()?),
                "-q" | "--quiet" => request.quiet = true,
                "-s" | "--silent" => request.silent = true,
                "--no-table-headers" => request.no_headers = true,
                "--formatter" => request.format = Format::parse(&value()?)?,
                "-t" | "--timeout" => {
                    let text = value()?;
                    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..1e9).contains(seconds));
                    request.timeout = match text.as_str() {
                        "infinity" => None,
                        _ => Some(Duration::from_secs_f64(
                            seconds.ok_or_else(|| Failure::usage(format!("--timeout {text}: expected seconds")))?,
                        )),
                    };
                }
                // Of clusters and of Erlang: there is one node.
                "-n" | "--node" | "--erlang-cookie" | "--script-name" => {
                    value()?;
                }
                "-P" => request.options.push(("pid".to_owned(), value()?)),
                _ => {
                    let short = name.trim_start_matches('-').to_owned();
                    let value = if VALUED.contains(&short.as_str()) { value()? } else { attached.unwrap_or_default() };
                    request.options.push((short, value));
                }
            }
        }
        Ok(request)
    }
}

/// Runs a command. `arguments` are those after the name of the tool.
pub fn main(tool: &str, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments = arguments.map(|word| word.to_string_lossy().into_owned());
    match run(tool, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, text }) => {
            if !text.is_empty() {
                eprintln!("Error:\n{text}");
            }
            ExitCode::from(code)
        }
    }
}

fn run(tool: &str, arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let request = Request::parse(arguments)?;
    let is_set = |name: &str| request.option(name).is_some();
    if is_set("version") || request.verb == "version" {
        println!("{}", crate::model::profile::Profile::default().server_version());
        return Ok(());
    }
    if is_set("help") || request.verb == "help" {
        println!("{}", commands::help(tool));
        return Ok(());
    }
    if request.verb.is_empty() {
        println!("{}", commands::help(tool));
        return Err(Failure::new(exit::USAGE, ""));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(exit::SOFTWARE, error.to_string()))?;
    let client = Client::new(sockets(&request)?);
    let printer = Printer::new(&request);
    runtime.block_on(commands::run(tool, &request, &client, &printer))
}

/// Where the broker's admin socket may be.
fn sockets(request: &Request) -> Result<Vec<PathBuf>, Failure> {
    if let Some(socket) = request.option("admin-socket") {
        return Ok(vec![PathBuf::from(socket)]);
    }
    let mut arguments = vec![OsString::from("leveret")];
    if let Some(dir) = request.option("data-dir") {
        arguments.extend(["--data-dir".into(), dir.into()]);
    }
    // The same settings as the broker: what the environment and the usual files say.
    let config = config::parse(arguments, std::env::vars_os());
    let config = config.map_err(|error| Failure::new(exit::USAGE, error.to_string()))?;
    let port = config.tcp_listeners.first().map_or(5672, |listener| listener.address.port());
    Ok(crate::management::socket_paths(&config, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Request, Failure> {
        Request::parse(line.split(' ').map(str::to_owned))
    }

    #[test]
    fn s3_1_options_stand_before_or_after_the_command() {
        for line in ["-q list_queues -p v name messages", "list_queues name messages --vhost=v --quiet"] {
            let request = parse(line).unwrap();
            assert_eq!((request.verb.as_str(), request.vhost(), request.quiet), ("list_queues", "v", true));
            assert_eq!(request.arguments, ["name", "messages"]);
        }
        let request = parse("set_policy --priority 5 --apply-to queues -n rabbit@x n ^a {}").unwrap();
        assert_eq!((request.option("priority"), request.arguments.len()), (Some("5"), 3));
        assert_eq!(parse("ping -t 5").unwrap().timeout, Some(Duration::from_secs(5)));
        for wrong in ["ping -t x", "list_queues -p", "list_queues --formatter x"] {
            assert_eq!(parse(wrong).unwrap_err().code, exit::USAGE, "{wrong}");
        }
    }

    #[test]
    fn tools_are_known_by_the_name_of_the_program() {
        assert_eq!(tool_of(Path::new("/usr/bin/rabbitmqctl")), Some("rabbitmqctl"));
        assert_eq!(tool_of(Path::new("/usr/bin/leveret")), None);
    }
}
