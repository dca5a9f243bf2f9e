//! Settings from all their sources, and every way to get them wrong.

mod environment;
mod limits;
mod sources;

use super::settings::OPTIONS;
use super::*;
use crate::auth::Pattern;

fn os<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.into_iter().map(OsString::from).collect()
}

/// Parses `leveret {args}` in an environment and with a file, `b.conf`, in the current folder.
fn run(args: &[&str], env: &[(&str, &str)], file: &str) -> Result<Config, ConfigError> {
    let args = os(["leveret"]).into_iter().chain(args.iter().map(OsString::from));
    let env = env.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    parse_with(args, env, &Given { file, more: &[] })
}

/// Files that a test says: `b.conf`, and others by their paths.
struct Given<'a> {
    file: &'a str,
    more: &'a [(&'a str, &'a str)],
}

impl Files for Given<'_> {
    fn read(&self, path: &Path) -> io::Result<String> {
        let more = || self.more.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| *text);
        let found = if path == Path::new("b.conf") { Some(self.file) } else { more() };
        found.map(str::to_owned).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let all = self.more.iter().map(|(name, _)| PathBuf::from(name));
        let found: Vec<_> = all.filter(|path| path.parent() == Some(folder)).collect();
        if found.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(found) }
    }
}

fn args(args: &[&str]) -> Config {
    run(args, &[], "").unwrap()
}

fn env(env: &[(&str, &str)]) -> Config {
    run(&[], env, "").unwrap()
}

fn file(text: &str) -> Config {
    run(&["--config", "b.conf"], &[], text).unwrap()
}

fn args_error(args: &[&str]) -> String {
    let error = run(args, &[], "").unwrap_err();
    assert_eq!((error.exit_code, error.to_stdout), (2, false));
    assert!(!error.message.contains('\n'), "{}", error.message);
    error.message
}

fn file_error(text: &str) -> String {
    let error = run(&["--config", "b.conf"], &[], text).unwrap_err();
    assert_eq!((error.exit_code, error.to_stdout), (2, false));
    assert!(!error.message.contains('\n'), "{}", error.message);
    error.message
}

fn listening(config: &Config) -> Vec<String> {
    config.tcp_listeners.iter().map(|listener| listener.address.to_string()).collect()
}

// --- Sources ---

#[test]
fn without_settings_everything_has_its_default() {
    let config = args(&[]);
    assert_eq!(config.config_files, [""; 0].map(PathBuf::from));
    assert_eq!(config.data_dir.as_deref(), Some(Path::new("./leveret-data")));
    assert_eq!(listening(&config), ["127.0.0.1:5672", "[::1]:5672"]);
    assert_eq!(config.tcp_listeners.iter().map(|l| l.required).collect::<Vec<_>>(), [true, false]);
    assert_eq!(config.profile, Profile::V4_2);
    assert_eq!(config.fsync, Fsync::Always);
    assert_eq!((config.log.as_str(), config.log_format), ("info", LogFormat::Text));
    assert_eq!(config.handshake_timeout, Duration::from_secs(10));
    assert_eq!((config.heartbeat_s, config.frame_max, config.channel_max), (60, 131_072, 2047));
    assert_eq!(config.initial_frame_max, 8192);
    assert_eq!(config.consumer_timeout, Some(Duration::from_secs(1800)));
    assert_eq!(config.max_message_size, 16_777_216);
    assert_eq!(config.default_user, "guest");
    assert_eq!(config.default_pass.expose(), "guest");
    assert_eq!(config.default_vhost, "/");
    let Permissions { configure, write, read } = &config.default_permissions;
    assert_eq!([configure, write, read].map(Pattern::source), [".*"; 3]);
    assert_eq!(config.default_user_tags, ["administrator"]);
    assert_eq!(config.loopback_users, ["guest"]);
    assert_eq!(config.anonymous_login, None);
    assert_eq!((config.default_queue_type, config.relaxed_quorum_redeclare), (QueueType::Classic, false));
    assert_eq!(config.limits, NodeLimits::default());
    assert!(config.default_limits.is_empty() && config.vhosts.is_empty());
    assert_eq!(config.warnings, [""; 0]);
    assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()));
}

#[test]
fn every_option_works_on_the_command_line_in_the_environment_and_in_the_file() {
    for (name, value) in [
        ("data-dir", "/d"),
        ("ephemeral", "true"),
        ("bind", "10.0.0.1"),
        ("port", "1"),
        ("management-port", "off"),
        ("admin-socket", "/s"),
        ("metrics-port", "1"),
        ("compat", "3.13"),
        ("compat-lint", "4.3"),
        ("definitions", "/d.json"),
        ("pid-file", "/run/pid"),
        ("fsync", "never"),
        ("log", "debug"),
        ("log-format", "json"),
    ] {
        let option = format!("--{name}");
        let option = if name == "ephemeral" { vec![option.as_str()] } else { vec![option.as_str(), value] };
        let snake = name.replace('-', "_");
        let by_args = format!("{:?}", args(&option));
        let by_command = format!("{:?}", args(&[vec!["server"], option].concat()));
        let by_env = format!("{:?}", env(&[(&format!("LEVERET_{}", snake.to_uppercase()), value)]));
        let by_file = Config { config_files: Vec::new(), ..file(&format!("leveret.{snake} = {value}")) };
        assert_eq!(by_env, by_args);
        assert_eq!(by_command, by_args);
        assert_eq!(format!("{by_file:?}"), by_args);
        assert_ne!(by_args, format!("{:?}", Config::default()), "{name} changes something");
    }
}

#[test]
fn command_line_beats_environment_beats_file() {
    let text = "leveret.fsync = never\nleveret.log_format = json\nleveret.compat = 4.0";
    let variables = [("LEVERET_FSYNC", "interval:5"), ("LEVERET_COMPAT", "4.1")];
    let config = run(&["--config", "b.conf", "--compat", "4.3"], &variables, text).unwrap();
    assert_eq!(config.log_format, LogFormat::Json);
    assert_eq!(config.fsync, Fsync::Interval(Duration::from_millis(5)));
    assert_eq!(config.profile, Profile::V4_3);
}

#[test]
fn the_config_file_itself_can_come_from_the_environment() {
    let config = run(&[], &[("LEVERET_CONFIG", "b.conf")], "heartbeat = 7").unwrap();
    assert_eq!(config.heartbeat_s, 7);
    assert_eq!(config.config_files, [PathBuf::from("b.conf")]);
    let missing = run(&["--config", "gone.conf"], &[("LEVERET_CONFIG", "b.conf")], "").unwrap_err();
    assert_eq!(missing.message, "cannot read config file gone.conf: entity not found; check --config");
}

#[test]
fn options_given_twice_the_last_one_counts() {
    assert_eq!(listening(&args(&["--port", "1", "--port=2"])), ["127.0.0.1:2", "[::1]:2"]);
}

#[test]
fn bind_may_be_repeated_and_hold_a_list() {
    let config = args(&["--bind", "10.0.0.1", "--bind=[::1],localhost", "--port", "0"]);
    assert_eq!(listening(&config), ["10.0.0.1:0", "[::1]:0", "127.0.0.1:0"]);
    assert!(config.tcp_listeners.iter().all(|listener| listener.required));
}

#[test]
fn a_data_dir_on_the_command_line_undoes_ephemeral_elsewhere() {
    let config = run(&["--data-dir", "/d"], &[("LEVERET_EPHEMERAL", "1")], "").unwrap();
    assert_eq!(config.data_dir.as_deref(), Some(Path::new("/d")));
    let both = env(&[("LEVERET_EPHEMERAL", "1"), ("LEVERET_DATA_DIR", "/d")]);
    assert_eq!(both.data_dir, None);
}

#[cfg(unix)]
#[test]
fn a_data_dir_need_not_be_utf8() {
    use std::os::unix::ffi::OsStringExt;
    let folder = OsString::from_vec(vec![b'/', 0xFF]);
    let config = parse(os(["leveret", "--data-dir"]).into_iter().chain([folder.clone()]), []).unwrap();
    assert_eq!(config.data_dir, Some(PathBuf::from(folder.clone())));
    let error = parse(os(["leveret", "--port"]).into_iter().chain([folder]), []).unwrap_err();
    assert!(error.message.contains("expected UTF-8 text"), "{}", error.message);
}

#[test]
fn the_file_is_read_from_the_disk() {
    let path = std::env::temp_dir().join(format!("leveret-config-{}.conf", std::process::id()));
    fs::write(&path, "heartbeat = 9").unwrap();
    let config = parse([OsString::from("leveret"), "--config".into(), path.clone().into()], []);
    fs::remove_file(path).unwrap();
    assert_eq!(config.unwrap().heartbeat_s, 9);
}

// --- Environment ---

#[test]
fn empty_and_foreign_variables_are_ignored() {
    let config = env(&[
        ("LEVERET_PORT", "tcp://10.0.0.7:5672"), // Kubernetes, for a service called leveret
        ("LEVERET_PORT_5672_TCP_ADDR", "10.0.0.7"),
        ("LEVERET_SERVICE_HOST", "10.0.0.7"),
        ("LEVERET_COMPAT", ""),
        ("HOME", "/root"),
    ]);
    assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()));
}

#[test]
fn unknown_variables_are_warned_of() {
    let config = env(&[("LEVERET_DATADIR", "/d"), ("LEVERET_COLOUR", "red")]);
    assert_eq!(
        config.warnings,
        [
            "unknown environment variable LEVERET_COLOUR is ignored",
            "unknown environment variable LEVERET_DATADIR is ignored; did you mean LEVERET_DATA_DIR?",
        ]
    );
}

#[test]
fn a_bad_variable_is_named() {
    let error = run(&[], &[("LEVERET_PORT", "x")], "").unwrap_err();
    assert_eq!(error.message, "LEVERET_PORT=x: expected a port from 0 (any free one) to 65535");
    assert_eq!(error.exit_code, 2);
}

#[test]
fn rust_log_is_honoured_below_our_own_variable() {
    assert_eq!(env(&[("RUST_LOG", "leveret=trace")]).log, "leveret=trace");
    assert_eq!(env(&[("RUST_LOG", "leveret=trace"), ("LEVERET_LOG", "warn")]).log, "warn");
    let over_file = run(&["--config", "b.conf"], &[("RUST_LOG", "debug")], "log.console.level = error");
    assert_eq!(over_file.unwrap().log, "debug");
    let bad = env(&[("RUST_LOG", "a=b=c")]);
    assert_eq!(bad.log, "info");
    assert_eq!(bad.warnings, ["RUST_LOG=a=b=c is no log filter, ignored"]);
}

// --- Help and usage errors ---

#[test]
fn help_and_version_go_to_stdout() {
    for option in ["--help", "-h"] {
        let help = run(&[option], &[], "").unwrap_err();
        assert_eq!((help.exit_code, help.to_stdout), (0, true));
        for (name, _) in OPTIONS {
            assert!(help.message.contains(&format!("--{}", name.replace('_', "-"))), "{name}");
        }
        assert!(help.message.lines().all(|line| line.len() <= 80), "{}", help.message);
    }
    let version = run(&["--version"], &[], "").unwrap_err();
    assert_eq!((version.exit_code, version.to_stdout), (0, true));
    assert_eq!(version.message, format!("leveret {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn usage_errors_are_one_line() {
    for (line, message) in [
        ("--prot 5", "unknown option --prot (did you mean --port?); see leveret --help"),
        ("-x", "unknown option -x; see leveret --help"),
        ("servr", "unknown command servr (did you mean server?); see leveret --help"),
        ("frobnicate", "unknown command frobnicate; see leveret --help"),
        ("server now", "unexpected argument now; see leveret --help"),
        ("--port", "--port needs a value; see leveret --help"),
        ("--port --bind ::", "--port needs a value; see leveret --help"),
        ("--ephemeral=no", "--ephemeral takes no value; see leveret --help"),
        (
            "--ephemeral server --data-dir d",
            "--ephemeral and --data-dir exclude each other: leave one out; see leveret --help",
        ),
        ("--port -1", "unknown option -1; see leveret --help"),
        ("--port 65536", "--port 65536: expected a port from 0 (any free one) to 65535; see leveret --help"),
        (
            "--bind here",
            "--bind here: expected an IP address such as 0.0.0.0 or ::1, without a port; see leveret --help",
        ),
        ("--compat 5", "--compat 5: expected one of 3.13, 4.0, 4.1, 4.2, 4.3; see leveret --help"),
        (
            "--fsync interval:0",
            "--fsync interval:0: expected always, never, or interval:MS with 1 to 3600000 milliseconds; \
             see leveret --help",
        ),
        (
            "--log verbose",
            "--log verbose: expected error, warn, info, debug, trace, off, or a filter such as \
             info,leveret::storage=debug; see leveret --help",
        ),
        ("--log-format xml", "--log-format xml: expected text or json; see leveret --help"),
    ] {
        assert_eq!(args_error(&line.split(' ').collect::<Vec<_>>()), message);
    }
}

#[test]
fn fsync_and_log_take_all_their_forms() {
    assert_eq!(args(&["--fsync", "always"]).fsync, Fsync::Always);
    assert_eq!(args(&["--fsync", "never"]).fsync, Fsync::Never);
    assert_eq!(args(&["--fsync", "interval:200"]).fsync, Fsync::Interval(Duration::from_millis(200)));
    assert_eq!(args(&["--log", "WARN"]).log, "warn");
    assert_eq!(args(&["--log", "info,leveret::storage=debug"]).log, "info,leveret::storage=debug");
}

// --- File ---

#[test]
fn lines_are_read_as_rabbitmq_reads_them() {
    let config = file(concat!(
        "\u{feff}# a comment\r\n",
        "\r\n",
        "  heartbeat=5 # seconds\r\n",
        "frame_max = 8192\n",
        "default_user = a user#1\n",
        "default_pass = 'p#ss = $word' # quoted\n",
        "default_permissions.configure = ''\n",
        "default_user_tags.my\\.tag = true\n",
        "channel_max = 1\n",
        "channel_max = 2",
    ));
    assert_eq!((config.heartbeat_s, config.frame_max, config.channel_max), (5, 8192, 2));
    assert_eq!(config.default_user, "a user");
    assert_eq!(config.default_pass.expose(), "p#ss = $word");
    assert_eq!(config.default_permissions.configure.source(), "");
    assert_eq!(config.default_user_tags, ["my.tag"]);
    assert_eq!(config.warnings, [""; 0]);
}

#[test]
fn values_may_name_environment_variables() {
    let text = "default_user = $(WHO)-$(WHO)\ndefault_pass = 'a$(b'";
    let config = run(&["--config", "b.conf"], &[("WHO", "ann")], text).unwrap();
    assert_eq!(config.default_user, "ann-ann");
    assert_eq!(config.default_pass.expose(), "a$(b");
    let message = file_error("\ndefault_user = $(WHO)");
    assert_eq!(message, "b.conf:2: default_user = $(WHO): expected environment variable WHO to be set");
}

#[test]
fn double_quotes_stay_with_a_warning() {
    let config = file("default_pass = \"x\"");
    assert_eq!(config.default_pass.expose(), "\"x\"");
    assert_eq!(config.warnings.len(), 1);
    assert!(config.warnings[0].starts_with("b.conf:1: default_pass: double quotes are part of a value"));
}

#[test]
fn unknown_keys_are_warned_of_with_the_nearest_known_one() {
    let config = file(
        "Hearbeat = 5\nlistener.tcp.default = 1\nnet_ticktime = 60\n\
         default_user_tag.ops = true\nleveret.datadir = x\nleveret.config = y\nloopback_user.guest = false",
    );
    assert_eq!(
        config.warnings,
        [
            "b.conf:1: unknown key Hearbeat is ignored; did you mean heartbeat?",
            "b.conf:2: unknown key listener.tcp.default is ignored; did you mean listeners.tcp.default?",
            "b.conf:3: net_ticktime has no effect: there is one node, not a cluster",
            "b.conf:4: unknown key default_user_tag.ops is ignored; did you mean default_user_tags.ops?",
            "b.conf:5: unknown key leveret.datadir is ignored; did you mean leveret.data_dir?",
            "b.conf:6: unknown key leveret.config is ignored; did you mean leveret.compat?",
            "b.conf:7: unknown key loopback_user.guest is ignored; did you mean loopback_users.guest?",
        ]
    );
}

#[test]
fn file_errors_name_file_line_key_and_what_was_expected() {
    for (line, message) in [
        ("heartbeat", "expected key = value"),
        ("= 5", "expected key = value"),
        ("heart beat = 5", "expected key = value"),
        ("[{rabbit, [{tcp_listeners, [5672]}]}].", "expected key = value"),
        ("heartbeat =", "expected a value after heartbeat = (nothing is written '', and # begins a comment)"),
        ("heartbeat = '5", "expected a closing ' after the value"),
        ("heartbeat = '5' s", "expected nothing after the closing '"),
        ("heartbeat = 65536", "heartbeat = 65536: expected seconds from 0 (off) to 65535"),
        ("handshake_timeout = 0", "handshake_timeout = 0: expected milliseconds, 1 or more"),
        ("frame_max = 4095", "frame_max = 4095: expected bytes from 4096 to 4294967295, or 0 for no limit"),
        ("initial_frame_max = 0", "initial_frame_max = 0: expected bytes from 4096 to 4294967295"),
        ("channel_max = 65536", "channel_max = 65536: expected a number from 0 (no limit) to 65535"),
        (
            "consumer_timeout = soon",
            "consumer_timeout = soon: expected milliseconds, 1 or more, or false for no time limit",
        ),
        (
            "max_message_size = 513MiB",
            "max_message_size = 513MiB: expected bytes from 1 to 536870912, or with a unit such as 64MiB",
        ),
        (
            "listeners.tcp.1 = localhost:5672",
            "listeners.tcp.1 = localhost:5672: expected a port, or an IP address and a port such as 0.0.0.0:5672",
        ),
        ("listeners.tcp = 5672", "listeners.tcp = 5672: expected none; a port goes to listeners.tcp.default"),
        ("default_user = ''", "default_user = '': expected a text that is not empty"),
        ("default_pass = ''", "default_pass = …: expected a text that is not empty"),
        ("default_user_tags.x = maybe", "default_user_tags.x = maybe: expected true or false"),
        ("loopback_users = guest", "loopback_users = guest: expected none; a user goes to loopback_users.NAME = true"),
        (
            "default_permissions.read = (",
            "default_permissions.read = (: expected a regular expression (pattern '(': unclosed group)",
        ),
        ("default_queue_type = paper", "default_queue_type = paper: expected classic, quorum or stream"),
        (
            "channel_max_per_node = 0",
            "channel_max_per_node = 0: expected a number, 1 or more, or infinity for no limit",
        ),
        ("max_connections = -1", "max_connections = -1: expected a number, 0 or more, or infinity for no limit"),
        (
            "default_limits.vhosts.1.max_queues = 0",
            "default_limits.vhosts.1.max_queues = 0: expected a number, 1 or more",
        ),
        ("leveret.vhosts.a.compat = 5", "leveret.vhosts.a.compat = 5: expected one of 3.13, 4.0, 4.1, 4.2, 4.3"),
        ("anonymous_login_pass = ''", "anonymous_login_pass = …: expected a text that is not empty"),
        (
            "log.console.level = loud",
            "log.console.level = loud: expected one of debug, info, notice, warning, error, critical, alert, \
             emergency, none",
        ),
    ] {
        let shown = message.replace("= '': ", "= : ");
        assert_eq!(file_error(&format!("# first\n{line}")), format!("b.conf:2: {shown}"));
    }
}

#[test]
fn listeners() {
    assert_eq!(listening(&file("listeners.tcp.default = 5673")), ["127.0.0.1:5673", "[::1]:5673"]);
    let text = "listeners.tcp.1 = 0.0.0.0:1\nlisteners.tcp.2 = ::1:2\nlisteners.tcp.v6 = [::]:3\nleveret.port = 4";
    let all = ["0.0.0.0:1", "[::1]:2", "127.0.0.1:4", "[::1]:4", "[::]:3"];
    assert_eq!(listening(&file(text)), all);
    let run = |args: &[&str]| run(&[&["--config", "b.conf"], args].concat(), &[], text).map(|c| listening(&c)).unwrap();
    assert_eq!(run(&["--port", "9"]), ["127.0.0.1:9", "[::1]:9"]);
    assert_eq!(run(&["--bind", "::"]), ["[::]:1", "[::]:2", "[::]:4", "[::]:3"]);
    let config = file("listeners.tcp.default = 5673\nleveret.bind = 0.0.0.0, ::1");
    assert_eq!(listening(&config), ["0.0.0.0:5673", "[::1]:5673"]);
    assert_eq!(listening(&file("listeners.tcp.a = ::1:1\nlisteners.tcp.b = ::1:1")), ["[::1]:1"]);
}

#[test]
fn no_listener_at_all_is_an_error() {
    let message = file_error("listeners.tcp = none");
    assert!(message.starts_with("listeners.tcp = none leaves nothing to serve"), "{message}");
    let with_port = run(&["--config", "b.conf", "--port", "1"], &[], "listeners.tcp = none").unwrap();
    assert_eq!(listening(&with_port), ["127.0.0.1:1", "[::1]:1"]);
}

#[test]
fn limits_and_times() {
    let config = file(
        "handshake_timeout = 250\nheartbeat = 0\nframe_max = 0\nmax_channels_per_connection = 9\n\
         initial_frame_max = 16KiB\nconsumer_timeout = 5000\nmax_message_size = 1MB",
    );
    assert_eq!(config.handshake_timeout, Duration::from_millis(250));
    assert_eq!((config.heartbeat_s, config.frame_max, config.channel_max), (0, 0, 9));
    assert_eq!(config.initial_frame_max, 16_384);
    assert_eq!(config.consumer_timeout, Some(Duration::from_secs(5)));
    assert_eq!(config.max_message_size, 1_000_000);
    for off in ["false", "undefined", "infinity"] {
        assert_eq!(file(&format!("consumer_timeout = {off}")).consumer_timeout, None);
    }
}

#[test]
fn rabbitmq_3_takes_larger_messages_unless_told_otherwise() {
    assert_eq!(args(&["--compat", "3.13"]).max_message_size, 134_217_728);
    assert_eq!(args(&["--compat", "4.0"]).max_message_size, 16_777_216);
    let text = "max_message_size = 1000\nleveret.compat = 3.13";
    assert_eq!(file(text).max_message_size, 1000);
}

#[test]
fn default_user_and_its_rights() {
    let config = file(
        "default_user = ann\ndefault_pass = pw\ndefault_vhost = shop\n\
         default_permissions.configure = ^ann\\.\ndefault_permissions.read = .*\ndefault_permissions.write = ^$\n\
         default_user_tags.monitoring = true\ndefault_user_tags.administrator = false",
    );
    assert_eq!((config.default_user.as_str(), config.default_pass.expose()), ("ann", "pw"));
    assert_eq!(config.default_vhost, "shop");
    let Permissions { configure, write, read } = &config.default_permissions;
    assert_eq!([configure, write, read].map(Pattern::source), ["^ann\\.", "^$", ".*"]);
    assert_eq!(config.default_user_tags, ["monitoring"]);
    assert!(!format!("{config:?}").contains("pw"), "a password must not reach a log");
}

#[test]
fn loopback_users() {
    assert_eq!(file("loopback_users = none").loopback_users, [""; 0]);
    assert_eq!(file("loopback_users.guest = false").loopback_users, [""; 0]);
    assert_eq!(file("loopback_users.Ann = true").loopback_users, ["Ann"], "as RabbitMQ: this frees guest");
    assert_eq!(file("loopback_users.ann = true\nloopback_users = none").loopback_users, [""; 0]);
}

#[test]
fn log_levels_of_rabbitmq() {
    for (theirs, ours) in [
        ("debug", "debug"),
        ("info", "info"),
        ("notice", "info"),
        ("warning", "warn"),
        ("error", "error"),
        ("critical", "error"),
        ("none", "off"),
    ] {
        assert_eq!(file(&format!("log.console.level = {theirs}")).log, ours);
    }
}

#[test]
fn the_http_api_listens_beside_amqp_and_on_any_port_if_amqp_does() {
    let ports = |config: &Config| config.management_listeners.iter().map(|on| on.address).collect::<Vec<_>>();
    let at = |text: &str| vec![text.parse::<SocketAddr>().unwrap()];
    assert_eq!(ports(&args(&["--bind", "10.0.0.1"])), at("10.0.0.1:15672"));
    assert_eq!(ports(&args(&["--bind", "10.0.0.1", "--port", "0"])), at("10.0.0.1:0"));
    assert_eq!(ports(&args(&["--bind", "10.0.0.1", "--port", "0", "--management-port", "1"])), at("10.0.0.1:1"));
    assert_eq!(ports(&args(&["--management-port", "off"])), []);
    assert_eq!(ports(&file("management.tcp.port = 8080\nmanagement.tcp.ip = 0.0.0.0")), at("0.0.0.0:8080"));
}
