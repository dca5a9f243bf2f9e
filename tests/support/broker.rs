//! The real binary as a child process: started, asked where it listens, stopped in several ways.
//!
//! Most tests share one broker in memory, see [`shared`]; those about processes, folders and command lines
//! start their own. With `LEVERET_TEST_AMQP=host:port` the tests talk to that broker instead, say to a
//! RabbitMQ, and those that need a process of ours are left out. With `LEVERET_TEST_COMPAT=3.13` all brokers behave
//! like that version.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long a broker may take to start or to end before the test fails: a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

const BINARY: &str = env!("CARGO_BIN_EXE_leveret");

/// The broker that `LEVERET_TEST_AMQP` names.
fn external() -> Option<SocketAddr> {
    let text = std::env::var("LEVERET_TEST_AMQP").ok()?;
    let address = text.to_socket_addrs().ok().and_then(|mut all| all.next());
    Some(address.unwrap_or_else(|| panic!("LEVERET_TEST_AMQP={text}: not host:port")))
}

/// Whether the broker under test is a process that the test may start and stop. Says so if not.
pub fn is_ours() -> bool {
    let ours = external().is_none();
    if !ours {
        eprintln!("skipped: it needs a broker of its own, and LEVERET_TEST_AMQP is set");
    }
    ours
}

/// Whether the brokers behave like the default version. What differs between versions is tested under each in the
/// model (`profile_tests.rs`); here the texts of the default are looked at. Says so if not.
pub fn is_default_version() -> bool {
    let default = std::env::var_os("LEVERET_TEST_COMPAT").is_none();
    if !default {
        eprintln!("skipped: it is about the default version, and LEVERET_TEST_COMPAT is set");
    }
    default
}

/// Where the broker listens that all tests of this process share. Started by the first who asks.
pub fn shared() -> SocketAddr {
    static EXTERNAL: OnceLock<Option<SocketAddr>> = OnceLock::new();
    static SHARED: OnceLock<Shared> = OnceLock::new();
    EXTERNAL.get_or_init(external).unwrap_or_else(|| SHARED.get_or_init(Shared::start).address)
}

/// A broker that ends with this process. Statics are not dropped, so a shell keeps watch: once its input
/// ends, because this process has, it kills the broker.
struct Shared {
    address: SocketAddr,
    /// Holds the shell's input open.
    _shell: Child,
}

impl Shared {
    fn start() -> Self {
        let mut command = command("sh");
        command.args(["-c", r#""$@" & read -r _; kill -9 $!"#, "sh", BINARY, "--ephemeral", "--port", "0"]);
        command.args(["--log", "warn"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("sh starts");
        let lines = read_lines(child.stdout.take().expect("stdout is piped"));
        let ready = lines.recv_timeout(PATIENCE).expect("the shared broker says that it is ready");
        Self { address: address_in(&ready), _shell: child }
    }
}

/// How a broker ended.
#[derive(Debug)]
pub struct Exit {
    /// `None` when a signal ended it.
    pub code: Option<i32>,
    /// All that it wrote there.
    pub stdout: String,
    /// All that it wrote there.
    pub stderr: String,
    /// From the signal to the end, or from start to end.
    pub took: Duration,
}

/// A running broker; killed when dropped.
pub struct Broker {
    child: Child,
    /// The line that it wrote to stdout.
    pub ready: String,
    pub address: SocketAddr,
    /// What else it writes there, until it ends.
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl Broker {
    /// Starts `leveret` on a free port and waits until it serves.
    ///
    /// # Panics
    /// It ends instead; the message has its stderr.
    pub fn start<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Self {
        Self::start_with(arguments, &[])
    }

    /// As [`Self::start`], in an environment with these variables.
    ///
    /// # Panics
    /// As there.
    pub fn start_with<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>, variables: &[(&str, &str)]) -> Self {
        let mut child = spawn(arguments, variables);
        let stdout = read_lines(child.stdout.take().expect("stdout is piped"));
        let stderr = read_all(child.stderr.take().expect("stderr is piped"));
        let Ok(ready) = stdout.recv_timeout(PATIENCE) else {
            let _ = child.kill();
            panic!("the broker did not start: {}", stderr.recv().unwrap_or_default());
        };
        Self { address: address_in(&ready), child, ready, stdout, stderr }
    }

    pub fn in_memory() -> Self {
        Self::start(["--ephemeral"])
    }

    pub fn in_folder(folder: &Path) -> Self {
        Self::start([OsStr::new("--data-dir"), folder.as_os_str()])
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as `TERM`, without waiting for what it does.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.pid().to_string()).status();
        assert!(status.is_ok_and(|status| status.success()), "kill -{name}");
    }

    /// Sends a signal and waits for the end.
    pub fn stop(self, signal: &str) -> Exit {
        self.signal(signal);
        self.wait()
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// It does not come.
    pub fn wait(mut self) -> Exit {
        let since = Instant::now();
        let mut stdout = format!("{}\n", self.ready);
        loop {
            match self.stdout.recv_timeout(PATIENCE) {
                Ok(line) => stdout = stdout + &line + "\n",
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("the broker does not end"),
            }
        }
        let status = self.child.wait().expect("it is our child");
        Exit { code: status.code(), stdout, stderr: self.stderr.recv().unwrap_or_default(), took: since.elapsed() }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `leveret` to its end, for command lines that do not serve.
///
/// # Panics
/// It serves, or does not end.
pub fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Exit {
    let since = Instant::now();
    let mut child = spawn(arguments, &[]);
    let stdout = read_all(child.stdout.take().expect("stdout is piped"));
    let stderr = read_all(child.stderr.take().expect("stderr is piped"));
    let Ok(stdout) = stdout.recv_timeout(PATIENCE) else {
        let _ = child.kill();
        panic!("leveret runs on");
    };
    let status = child.wait().expect("it is our child");
    Exit { code: status.code(), stdout, stderr: stderr.recv().unwrap_or_default(), took: since.elapsed() }
}

fn spawn<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>, variables: &[(&str, &str)]) -> Child {
    let mut command = command(BINARY);
    command.args(["--port", "0"]).args(arguments).envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("leveret starts")
}

/// A command that no setting of the caller's environment or folder reaches.
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    let is_setting =
        |name: &str| name.starts_with("LEVERET_") || name.starts_with("RABBITMQ_") || name == "NOTIFY_SOCKET";
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_setting(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    if let Some(version) = std::env::var_os("LEVERET_TEST_COMPAT") {
        command.env("LEVERET_COMPAT", version);
    }
    command.current_dir(env!("CARGO_TARGET_TMPDIR"));
    command
}

/// The address in a ready line.
fn address_in(ready: &str) -> SocketAddr {
    let address = ready.split(' ').find_map(|word| word.strip_prefix("amqp="));
    address.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("no address in {ready:?}"))
}

/// Lines, as they come; the channel closes with the stream.
fn read_lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || BufReader::new(stream).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    receiver
}

/// Everything, at the end.
fn read_all(mut stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}
