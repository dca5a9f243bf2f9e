//! `leveret perf`: a load generator for any AMQP 0-9-1 broker, built on the project's codec.
//!
//! It must cost less than the broker that it measures: publishes are made ready beforehand and written in bulk,
//! deliveries are counted in the read buffer, nothing is allocated per message. It knows nothing of the broker's
//! own code: it is a client like any other.

mod block;
mod churn;
mod consumer;
mod declare;
mod error;
mod link;
mod options;
mod process;
mod producer;
mod report;
mod rpc;
mod setup;
mod tally;
mod uri;
mod worker;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::error::ErrorKind;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::error::PerfError;
use self::link::Link;
use self::options::{Mode, Options};
use self::process::Usage;
use self::report::Outcome;
use self::setup::Plan;
use self::tally::{Clock, Counts, Tally, histogram};
use self::uri::Uri;
use self::worker::{Event, Order, Phase, Stage};

/// The run is over when all is published and nothing came for so long.
const QUIET: Duration = Duration::from_millis(500);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Runs the command. `args` are those after `perf`.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let options = match Options::read(std::iter::once("leveret perf".into()).chain(args)) {
        Ok(options) => options,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            // A reader that has gone (`| head`) is no error of ours.
            let _ = write!(std::io::stdout(), "{error}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            eprintln!("leveret perf: {}; see leveret perf --help", line.strip_prefix("error: ").unwrap_or(line));
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leveret perf: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(options: &Options) -> Result<(), PerfError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(measure(options))?;
    match options.json.as_deref() {
        None => say(options, &outcome.text()),
        Some(path) if path == Path::new("-") => {
            let _ = writeln!(std::io::stdout(), "{}", outcome.json());
        }
        Some(path) => {
            say(options, &outcome.text());
            let written = std::fs::write(path, format!("{}\n", outcome.json()));
            written.map_err(|reason| PerfError::Result { path: path.display().to_string(), reason })?;
        }
    }
    Ok(())
}

/// A line for people: not among the JSON.
fn say(options: &Options, line: &str) {
    let _ = match options.json.as_deref() {
        Some(path) if path == Path::new("-") => writeln!(std::io::stderr(), "{line}"),
        _ => writeln!(std::io::stdout(), "{line}"),
    };
}

async fn measure(options: &Options) -> Result<Outcome, PerfError> {
    let uri = Uri::parse(&options.uri).map_err(|wrong| PerfError::Usage(format!("--uri {}: {wrong}", options.uri)))?;
    let clock = Clock::start();
    let plan = Plan::new(options, clock.now_ns() / 1000)?;
    let mut link = Link::open(&uri).await?;
    plan.set_up(&mut link).await?;
    let (phase, watched) = watch::channel(Phase::Preparing);
    let (sender, events) = mpsc::unbounded_channel();
    let stage = Stage { uri: Arc::new(uri), clock, phase: watched, events: sender };
    let (threads, tallies) = spawn_all(options, &stage, &plan.orders)?;
    drop(stage);
    let mut run = Run { options, clock, phase, events, tallies, sources: 0, others: 0 };
    run.sources = plan.orders.iter().filter(|order| order.is_source()).count();
    run.others = plan.orders.len() - run.sources;
    let result = run.go(link.product.clone()).await;
    let _ = run.phase.send(Phase::Stopping);
    let _ = tokio::task::spawn_blocking(|| threads.into_iter().try_for_each(std::thread::JoinHandle::join)).await;
    let outcome = result?;
    plan.take_down(&mut link).await?;
    link.close().await?;
    Ok(outcome)
}

type Threads = Vec<std::thread::JoinHandle<()>>;

/// Deals the orders to the threads: those who publish to the first ones, the others to the last.
fn spawn_all(options: &Options, stage: &Stage, orders: &[Order]) -> Result<(Threads, Vec<Arc<Tally>>), PerfError> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let count = options.threads.unwrap_or(if cores > 2 { 2 } else { 1 }).max(1);
    let mut dealt = vec![Vec::new(); count];
    let (sources, others): (Vec<_>, Vec<_>) = orders.iter().cloned().partition(Order::is_source);
    sources.into_iter().enumerate().for_each(|(at, order)| dealt[at % count].push(order));
    others.into_iter().enumerate().for_each(|(at, order)| dealt[count - 1 - at % count].push(order));
    let (mut threads, mut tallies) = (Vec::new(), Vec::new());
    for orders in dealt {
        let tally = Arc::new(Tally::default());
        threads.push(worker::spawn(stage.clone(), orders, tally.clone())?);
        tallies.push(tally);
    }
    Ok((threads, tallies))
}

/// A run, seen from the main thread.
struct Run<'a> {
    options: &'a Options,
    clock: Clock,
    phase: watch::Sender<Phase>,
    events: mpsc::UnboundedReceiver<Event>,
    tallies: Vec<Arc<Tally>>,
    /// Connections that publish, call, open or declare, and that have not done so yet.
    sources: usize,
    /// Those that receive.
    others: usize,
}

impl Run<'_> {
    /// From the start to the end of what is measured.
    async fn go(&mut self, product: String) -> Result<Outcome, PerfError> {
        for _ in 0..self.sources + self.others {
            match self.events.recv().await {
                Some(Event::Failed(error)) => return Err(error),
                Some(_) => {}
                None => break,
            }
        }
        let broker = |pid: Option<u32>| pid.map(PerfError::usage_of).transpose();
        let before = broker(self.options.broker_pid)?;
        let own_before = Usage::of(std::process::id()).unwrap_or_default();
        let (mut latency, mut confirm_latency) = (histogram(), histogram());
        let start_ns = self.clock.now_ns();
        let _ = self.phase.send(Phase::Running);
        let end_ns = self.wait(start_ns, &mut latency).await?;
        let counts = Counts::of(&self.tallies);
        let after = broker(self.options.broker_pid)?;
        let own_after = Usage::of(std::process::id()).unwrap_or_default();
        for tally in &self.tallies {
            tally.latency.fetch(&mut latency);
            tally.confirm_latency.fetch(&mut confirm_latency);
        }
        Ok(Outcome {
            mode: self.options.mode,
            seconds: (end_ns - start_ns).max(1) as f64 / 1e9,
            counts,
            latency,
            confirm_latency,
            broker: before.zip(after),
            own_cpu_s: own_after.cpu_s - own_before.cpu_s,
            product,
        })
    }

    /// Until the time is over, all have done their part, or Ctrl-C: when that was.
    async fn wait(&mut self, start_ns: u64, latency: &mut hdrhistogram::Histogram<u64>) -> Result<u64, PerfError> {
        let start = Instant::now();
        let end = self.options.time.map(|seconds| start + Duration::from_secs_f64(seconds));
        let every = Duration::try_from_secs_f64(self.options.interval).unwrap_or_default();
        let silent = every.is_zero();
        let mut lines = interval(if silent { Duration::from_secs(3600) } else { every });
        lines.set_missed_tick_behavior(MissedTickBehavior::Skip);
        lines.tick().await;
        let mut looks = interval(LOOK);
        let mut said = (start, Counts::default());
        let mut last_change = (start, Counts::default(), start_ns);
        let mut interval_latency = histogram();
        loop {
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(Event::Failed(error)) => return Err(error),
                    Some(Event::Done { is_source, at_ns }) => {
                        let left = if is_source { &mut self.sources } else { &mut self.others };
                        *left = left.saturating_sub(1);
                        // Idle connections have to be looked at for a while; the others are of no more use.
                        if self.sources + self.others == 0 {
                            return Ok(at_ns);
                        }
                    }
                    Some(Event::Ready) => {}
                    None => return Ok(self.clock.now_ns()),
                },
                () = async { tokio::time::sleep_until(end.unwrap_or(start)).await }, if end.is_some() => {
                    return Ok(self.clock.now_ns());
                }
                _ = tokio::signal::ctrl_c() => return Ok(self.clock.now_ns()),
                _ = lines.tick(), if !silent => {
                    let counts = Counts::of(&self.tallies);
                    interval_latency.reset();
                    self.tallies.iter().for_each(|tally| tally.latency.fetch(&mut interval_latency));
                    let took_s = said.0.elapsed().as_secs_f64();
                    let since = counts.since(said.1);
                    let at_s = start.elapsed().as_secs_f64();
                    say(self.options, &report::line(self.options.mode, at_s, took_s, since, &interval_latency));
                    latency.add(&interval_latency).expect("all histograms have the same bounds");
                    said = (Instant::now(), counts);
                }
                _ = looks.tick() => {
                    let counts = Counts::of(&self.tallies);
                    if counts != last_change.1 {
                        last_change = (Instant::now(), counts, self.clock.now_ns());
                    } else if self.is_quiet() && last_change.0.elapsed() >= QUIET {
                        return Ok(last_change.2);
                    }
                }
            }
        }
    }

    /// Nothing more is published, and no consumer has a count of its own to wait for.
    fn is_quiet(&self) -> bool {
        let sends = matches!(self.options.mode, Mode::Send | Mode::Fanout | Mode::Topic | Mode::Rpc);
        sends && self.sources == 0 && self.options.producers > 0 && self.options.consumer_count.is_none()
    }
}
