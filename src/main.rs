//! The `leveret` binary: reads its settings, opens the log, and runs the broker.

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use leveret::config::{self, Config, LogFormat};
use leveret::ctl;
use tracing_subscriber::EnvFilter;

/// Polls of tasks between two looks at the sockets. By default it is 61: then a flooding publisher, whose task is
/// always ready and takes up to a millisecond a poll, keeps the acks of its consumers waiting for a tenth of a second.
const POLLS_PER_LOOK: u32 = 2;

fn main() -> ExitCode {
    let started = Instant::now();
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    if let Some(tool) = ctl::tool_of(Path::new(&program)) {
        return ctl::main(tool, arguments);
    }
    match arguments.next().as_ref().and_then(|command| command.to_str()) {
        Some("perf") => return leveret::perf::main(arguments),
        Some("ctl") => return ctl::main("leveret ctl", arguments),
        Some("completions") => return config::print_completions(arguments),
        _ => {}
    }
    if std::env::args_os().nth(1).is_some_and(|command| command == "store") {
        return leveret::store_tool::main(std::env::args_os().skip(2));
    }
    let config = match config::parse(std::env::args_os(), std::env::vars_os()) {
        Ok(config) => config,
        Err(error) => return error.report(),
    };
    open_log(&config);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(worker_threads())
        .thread_name("leveret")
        .event_interval(POLLS_PER_LOOK)
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(leveret::server::start(config, started)),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leveret: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// One worker per two cores: wake-ups between threads cost more than the broker's own work, and the clients
/// and the store thread want cores too.
fn worker_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

fn open_log(config: &Config) {
    let filter = EnvFilter::try_new(&config.log).unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter);
    match config.log_format {
        LogFormat::Json => log.json().init(),
        LogFormat::Text => log.with_ansi(false).init(),
    }
}
