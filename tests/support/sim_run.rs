//! Running random scripts: a seed to a script, a failing script to a shorter one, and the report.

use std::cell::RefCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Lines of one script.
const LINES: usize = 300;
/// How long a failing script is made shorter.
const SHORTEN: Duration = Duration::from_secs(60);
/// A script that runs longer than this runs for ever.
const ENDLESS: Duration = Duration::from_secs(60);

/// Something that plays scripts.
pub trait Player {
    fn new(seed: u64) -> Self;
    /// The next line of a random script.
    fn next_line(&mut self) -> String;
    /// Plays a line. Panics if something is wrong.
    fn play(&mut self, line: &str);
    /// At the end of a script.
    fn end(&mut self);
    /// The rest of the script cannot be judged.
    fn is_over(&self) -> bool {
        false
    }
}

/// A script that went wrong.
pub struct Failure {
    pub reason: String,
    pub script: Vec<String>,
}

/// Runs the fixed seeds, then one fresh seed, and more of them until the time is over. Panics with a short
/// script at the first failure. `LEVERET_SIM_SEED` plays one seed instead, `LEVERET_SIM_SCRIPT` the script in a
/// file; `LEVERET_SIM_SECONDS` sets the time.
pub fn run_seeds<P: Player>(name: &str, fixed: Range<u64>, default_time: Duration) {
    let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("LEVERET_SIM_SEED") {
        return report::<P>(name, seed, run_seed::<P>(seed));
    }
    if let Ok(path) = std::env::var("LEVERET_SIM_SCRIPT") {
        let script = std::fs::read_to_string(path).expect("the script can be read");
        let mut player = P::new(0);
        script.lines().filter(|line| !line.trim().is_empty()).for_each(|line| player.play(line));
        return player.end();
    }
    let started = Instant::now();
    let time = number("LEVERET_SIM_SECONDS").map_or(default_time, Duration::from_secs);
    let fresh =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    println!("{name}: seeds {fixed:?}, then from {fresh} on; LEVERET_SIM_SEED plays one again");
    let mut played = 0_u64;
    for seed in fixed.chain(fresh..) {
        report::<P>(name, seed, run_seed::<P>(seed));
        played += 1;
        if seed >= fresh && started.elapsed() > time {
            break;
        }
    }
    println!("{name}: {played} seeds in {:?}", started.elapsed());
}

fn report<P: Player>(name: &str, seed: u64, result: Result<(), Failure>) {
    let Err(failure) = result else { return };
    let lines = failure.script.len();
    let short = shorten::<P>(seed, &failure);
    panic!(
        "{name}: seed {seed} fails in line {lines}: {}\nshorter, {} lines: {}\n{}\n",
        failure.reason,
        short.script.len(),
        short.reason,
        short.script.join("\n")
    );
}

/// What a thread is playing, for whoever waits too long.
struct Running {
    thread: ThreadId,
    seed: u64,
    since: Instant,
    script: Vec<String>,
}

static RUNNING: Mutex<Vec<Running>> = Mutex::new(Vec::new());

/// A panic cannot tell of an endless loop: ends the process, and says where it was.
fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let all = running();
                if let Some(endless) = all.iter().find(|one| one.since.elapsed() > ENDLESS) {
                    eprintln!("seed {} does not come to an end:\n{}", endless.seed, endless.script.join("\n"));
                    std::process::abort();
                }
            }
        });
    });
}

fn running() -> MutexGuard<'static, Vec<Running>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The script of a seed, as far as it goes.
pub fn run_seed<P: Player>(seed: u64) -> Result<(), Failure> {
    watch();
    let mut script = Vec::new();
    let thread = std::thread::current().id();
    running().push(Running { thread, seed, since: Instant::now(), script: Vec::new() });
    let result = caught(|| {
        let mut player = P::new(seed);
        for _ in 0..LINES {
            let line = player.next_line();
            script.push(line.clone());
            running().iter_mut().filter(|one| one.thread == thread).for_each(|one| one.script.push(line.clone()));
            player.play(&line);
            if player.is_over() {
                return;
            }
        }
        player.end();
    });
    running().retain(|one| one.thread != thread);
    result.map_err(|reason| Failure { reason, script })
}

fn run_script<P: Player>(seed: u64, script: &[String]) -> Result<(), String> {
    caught(|| {
        let mut player = P::new(seed);
        for line in script {
            player.play(line);
            if player.is_over() {
                return;
            }
        }
        player.end();
    })
}

/// Leaves out runs of lines, then parts of lines, as long as what is left fails at the same place.
fn shorten<P: Player>(seed: u64, failure: &Failure) -> Failure {
    let started = Instant::now();
    let mut script = failure.script.clone();
    let fails = |script: &[String]| {
        let place = |reason: &str| reason.lines().next().map(str::to_owned);
        run_script::<P>(seed, script).err().filter(|reason| place(reason) == place(&failure.reason))
    };
    let mut reason = String::from("not again; the run depends on more than its script");
    let mut size = script.len().next_power_of_two();
    let mut progress = false;
    while started.elapsed() < SHORTEN {
        let mut at = 0;
        while at < script.len() && started.elapsed() < SHORTEN {
            let mut candidate = script.clone();
            candidate.drain(at..(at + size).min(script.len()));
            match fails(&candidate) {
                Some(why) => (script, reason, progress) = (candidate, why, true),
                None => at += size,
            }
        }
        if size > 1 {
            size /= 2;
        } else if !std::mem::take(&mut progress) {
            break;
        }
    }
    for at in 0..script.len() {
        let Some((target, commands)) = script[at].split_once(' ') else { continue };
        for left_out in 0..commands.split(';').count() {
            let rest =
                commands.split(';').enumerate().filter(|(index, _)| *index != left_out).map(|(_, command)| command);
            let rest = rest.map(str::trim).collect::<Vec<_>>().join("; ");
            let mut candidate = script.clone();
            candidate[at] = format!("{target} {rest}");
            if !rest.is_empty()
                && let Some(why) = fails(&candidate)
            {
                (script, reason) = (candidate, why);
                break;
            }
        }
    }
    Failure { reason, script }
}

thread_local! {
    /// Where the panic that is being caught leaves its message.
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs it; a panic becomes its message, and is not printed.
pub fn caught(work: impl FnOnce()) -> Result<(), String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let ours =
                CAUGHT.with_borrow_mut(|caught| caught.as_mut().map(|message| *message = info.to_string()).is_some());
            if !ours {
                default(info);
            }
        }));
    });
    CAUGHT.set(Some(String::new()));
    let result = catch_unwind(AssertUnwindSafe(work));
    let message = CAUGHT.take().unwrap_or_default();
    result.map_err(|_| message)
}
