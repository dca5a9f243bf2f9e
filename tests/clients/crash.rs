//! `kill -9` under load: nothing that was confirmed is lost, nothing that was settled for good comes back.
//!
//! A life of a data folder is some crashes of its broker, each followed by a look at everything that came
//! back, and a clean stop at the end. Every failure prints the seed of its life. The seed decides what each
//! client does and about when the broker is killed; how the clients interleave it cannot decide.
//!
//! `LEVERET_CRASH_TRIALS`: number of kills. `LEVERET_CRASH_SEED`: the life to begin with.

mod churn;
mod ledger;
mod load;
mod look;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use self::churn::Churn;
use self::ledger::{Chain, Place};
use self::load::{Killer, Pace, Scene};
use super::harness::{Rng, connect, seed, soon};
use crate::broker::{Broker, is_ours};

const KILLS: u32 = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_loses_nothing_that_was_confirmed() {
    if !is_ours() {
        return;
    }
    let kills = std::env::var("LEVERET_CRASH_TRIALS").map_or(KILLS, |text| text.parse().expect("a number"));
    // The first life has the given seed itself, so that a printed one can be given.
    let first = seed("LEVERET_CRASH_SEED");
    println!("LEVERET_CRASH_SEED={first}");
    let (mut seed, mut seeds) = (first, Rng::new(first));
    let started = Instant::now();
    let mut totals = Totals::default();
    while totals.kills < kills {
        let kills_max = kills - totals.kills;
        Life::new(seed).run(kills_max, &mut totals).await;
        seed = seeds.next();
    }
    println!("{:.0?}: {totals:?}", started.elapsed());
}

/// What all lives saw.
#[derive(Debug, Default)]
struct Totals {
    lives: u32,
    kills: u32,
    confirmed: u64,
    settlements_proved: u64,
    came_back: usize,
    recoveries_killed: u32,
    /// The longest start after a kill.
    start_max: Duration,
}

struct Life {
    seed: u64,
    rng: Rng,
    folder: tempfile::TempDir,
    scene: Arc<Scene>,
    churns: Vec<Arc<Churn>>,
}

impl Life {
    fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let churns = (0..2).map(Churn::new).collect();
        Self { seed, rng: Rng::new(seed), folder, scene: Arc::default(), churns }
    }

    async fn run(mut self, kills_max: u32, totals: &mut Totals) {
        let kills = (1 + self.rng.below(4) as u32).min(kills_max);
        let mut broker = start(self.folder.path());
        let connection = connect(broker.address).await;
        look::declare(&connection, false).await;
        look::probe(&self.scene, broker.address).await;
        drop(connection);
        for _ in 0..kills {
            self.load_and_kill(broker).await;
            totals.kills += 1;
            for _ in 0..self.rng.below(3) {
                self.kill_recovery();
                totals.recoveries_killed += 1;
            }
            let since = Instant::now();
            broker = start(self.folder.path());
            totals.start_max = totals.start_max.max(since.elapsed());
            totals.came_back += self.check(&broker, false).await;
        }
        look::probe(&self.scene, broker.address).await;
        self.stop(broker);
        broker = start(self.folder.path());
        self.check(&broker, true).await;
        self.stop(broker);
        let ledger = self.scene.ledger();
        totals.confirmed += ledger.confirmed;
        totals.settlements_proved += ledger.proved;
        totals.lives += 1;
    }

    /// Clients do what they do until the broker is killed, at a random moment.
    async fn load_and_kill(&mut self, broker: Broker) {
        let (address, rng) = (broker.address, &mut self.rng);
        let confirmed = self.scene.ledger().confirmed + 50 + rng.below(2500);
        // At a confirm, or some time after it.
        let at_last = if rng.chance(50) { Duration::ZERO } else { Duration::from_micros(rng.below(5000)) };
        let killer = Killer::of(broker.pid());
        self.scene.arm(if at_last.is_zero() { confirmed } else { u64::MAX }, killer);
        let pace = if rng.chance(20) { Pace::Heavy } else { Pace::Usual };
        let mut clients = JoinSet::new();
        clients.spawn(load::publisher(self.scene.clone(), address, rng.fork(), Pace::Sentinel));
        for _ in 0..1 + rng.below(3) {
            clients.spawn(load::publisher(self.scene.clone(), address, rng.fork(), pace));
        }
        clients.spawn(load::committer(self.scene.clone(), address, rng.fork()));
        for place in Place::all().filter(|place| place.chain != Chain::Marks) {
            // A queue without a consumer now and then, and some with two. Nobody takes from `ttl`.
            let consumers = if (place == Place { chain: Chain::Ttl, stage: 0 }) { 0 } else { rng.below(3) };
            for _ in 0..consumers {
                clients.spawn(load::consumer(self.scene.clone(), address, place, rng.fork()));
            }
        }
        for churn in &self.churns {
            clients.spawn(churn.clone().run(self.scene.clone(), address, rng.fork()));
        }
        let deadline = Instant::now() + Duration::from_secs(3);
        while self.scene.ledger().confirmed < confirmed && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(at_last).await;
        self.scene.kill();
        let exit = broker.wait();
        self.read_log(&exit.stderr);
        soon("the clients' end", clients.join_all()).await;
        self.judge();
    }

    /// Starts a broker and kills it at once, mostly before it is ready.
    fn kill_recovery(&mut self) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_leveret"))
            .args(["--port", "0", "--log", "error", "--data-dir"])
            .arg(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("leveret starts");
        std::thread::sleep(Duration::from_micros(self.rng.below(60_000)));
        child.kill().expect("it is our child");
        child.wait().expect("it is our child");
    }

    /// Compares what came back with the ledger; returns how many messages there are.
    async fn check(&mut self, broker: &Broker, clean: bool) -> usize {
        let connection = connect(broker.address).await;
        look::declare(&connection, true).await;
        for churn in &self.churns {
            churn.check(&self.scene, &connection).await;
        }
        let sight = look::look(&self.scene, broker.address, false).await;
        self.scene.ledger().compare(&sight, clean);
        self.judge();
        if self.rng.chance(50) {
            // What is there now is known; then the queues start empty, with whatever the store remembers.
            self.empty(broker).await;
        }
        sight.iter().map(|(_, messages)| messages.len()).sum()
    }

    async fn empty(&mut self, broker: &Broker) {
        let sight = look::look(&self.scene, broker.address, true).await;
        let mut ledger = self.scene.ledger();
        ledger.compare(&sight, false);
        ledger.emptied(&sight);
        drop(ledger);
        self.judge();
    }

    fn stop(&self, broker: Broker) {
        let exit = broker.stop("TERM");
        assert_eq!(exit.code, Some(0), "seed {}: {}", self.seed, exit.stderr);
        self.read_log(&exit.stderr);
    }

    /// A broker that panics or complains is a failure, even if nothing is lost.
    fn read_log(&self, log: &str) {
        let complaint = log.lines().find(|line| line.contains("panicked") || line.contains(" ERROR "));
        if let Some(line) = complaint {
            self.scene.ledger().violation(format!("the broker's log: {line}"));
        }
    }

    /// # Panics
    /// Something was violated. The data folder stays.
    fn judge(&self) {
        let violations = std::mem::take(&mut self.scene.ledger().violations);
        if violations.is_empty() {
            return;
        }
        let kept = keep(self.folder.path());
        panic!("LEVERET_CRASH_SEED={}, data folder copied to {kept}:\n  {}", self.seed, violations.join("\n  "));
    }
}

fn start(folder: &Path) -> Broker {
    Broker::start([
        "--fsync".as_ref(),
        "always".as_ref(),
        "--log".as_ref(),
        "warn".as_ref(),
        "--data-dir".as_ref(),
        folder.as_os_str(),
    ])
}

/// Copies the folder, as far as that goes, out of the way of its removal.
fn keep(folder: &Path) -> String {
    let target = folder.with_extension("failed");
    let copied = Command::new("cp").arg("-r").arg(folder).arg(&target).status();
    if copied.is_ok_and(|status| status.success()) { target.display().to_string() } else { "nowhere".to_owned() }
}
