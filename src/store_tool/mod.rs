//! `leveret store`: looks into a data folder that no broker uses, and changes nothing.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use serde_json::{Value, json};

use crate::server::inspect::{Contents, QueueContents, inspect};

/// Looks into a data folder that no broker uses, and changes nothing
#[derive(Parser)]
#[command(name = "leveret store", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Read every message and say what is there, and what cannot be read (exit code 1)
    Check {
        /// The data folder
        dir: PathBuf,
    },
    /// List the durable queues with their messages
    Dump {
        /// The data folder
        dir: PathBuf,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command. `args` are those after `store`.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(std::iter::once("leveret store".into()).chain(args)) {
        Ok(cli) => cli,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            // A reader that has gone (`| head`) is no error of ours.
            let _ = write!(io::stdout(), "{error}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            eprintln!("leveret store: {}; see leveret store --help", line.strip_prefix("error: ").unwrap_or(line));
            return ExitCode::from(2);
        }
    };
    let (dir, verify) = match &cli.command {
        Command::Check { dir } => (dir, true),
        Command::Dump { dir, .. } => (dir, false),
    };
    let contents = match inspect(dir, verify) {
        Ok(contents) => contents,
        Err(error) => {
            eprintln!("leveret store: {error}");
            return ExitCode::from(error.exit_code());
        }
    };
    let out = &mut io::stdout().lock();
    let _ = match cli.command {
        Command::Check { dir } => {
            let dir = dir.display();
            writeln!(out, "data folder {dir}").and_then(|()| print_check(out, &contents))
        }
        Command::Dump { json: true, .. } => writeln!(out, "{:#}", as_json(&contents)),
        Command::Dump { json: false, .. } => print_dump(out, &contents),
    };
    if contents.damage.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_check(out: &mut impl Write, contents: &Contents) -> io::Result<()> {
    let stop = if contents.is_clean { "stopped cleanly" } else { "not stopped cleanly: killed, or still to be opened" };
    writeln!(out, "  {stop}")?;
    if contents.torn_bytes > 0 {
        let bytes = contents.torn_bytes;
        writeln!(out, "  last commit torn: {bytes} bytes that nobody was promised, the next start cuts them off")?;
    }
    let (segments, log) = (contents.log_segments, size(contents.log_bytes));
    writeln!(out, "  log: {segments} segments, {log}; {} definitions, {} users", contents.definitions, contents.users)?;
    for vhost in &contents.vhosts {
        let (messages, bytes) = sums(&vhost.queues);
        writeln!(
            out,
            "  vhost {}: {} exchanges, {} bindings, {} durable queues, {messages} messages, {}",
            vhost.name,
            vhost.exchanges,
            vhost.bindings,
            vhost.queues.len(),
            size(bytes)
        )?;
    }
    for damage in &contents.damage {
        writeln!(out, "  DAMAGED: {damage}")?;
    }
    match contents.damage.len() {
        0 => writeln!(out, "every message can be read"),
        count => writeln!(out, "{count} places are damaged; a start keeps what can be read"),
    }
}

fn print_dump(out: &mut impl Write, contents: &Contents) -> io::Result<()> {
    writeln!(out, "{:<16} {:<40} {:<18} {:>12} {:>14}", "vhost", "queue", "type", "messages", "bytes")?;
    for vhost in &contents.vhosts {
        for queue in &vhost.queues {
            let QueueContents { name, kind, messages, bytes } = queue;
            writeln!(out, "{:<16} {name:<40} {kind:<18} {messages:>12} {bytes:>14}", vhost.name)?;
        }
    }
    Ok(())
}

fn as_json(contents: &Contents) -> Value {
    let queue = |queue: &QueueContents| json!({ "name": queue.name, "type": queue.kind, "messages": queue.messages, "bytes": queue.bytes });
    let vhosts = contents.vhosts.iter().map(|vhost| {
        let queues: Vec<Value> = vhost.queues.iter().map(queue).collect();
        json!({ "name": vhost.name, "exchanges": vhost.exchanges, "bindings": vhost.bindings, "queues": queues })
    });
    json!({
        "clean_stop": contents.is_clean,
        "torn_bytes": contents.torn_bytes,
        "log_segments": contents.log_segments,
        "log_bytes": contents.log_bytes,
        "definitions": contents.definitions,
        "users": contents.users,
        "vhosts": vhosts.collect::<Vec<Value>>(),
    })
}

fn sums(queues: &[QueueContents]) -> (u64, u64) {
    queues.iter().fold((0, 0), |(messages, bytes), queue| (messages + queue.messages, bytes + queue.bytes))
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        _ if bytes < 1 << 20 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}
