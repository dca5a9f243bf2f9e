//! The process: its ready line, its end, and what it says when it cannot start.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::broker::{Broker, Exit, is_ours, run};
use crate::client::{Connection, Login};

/// The lines that are no log.
fn complaints(exit: &Exit) -> Vec<&str> {
    exit.stderr.lines().filter(|line| line.starts_with("leveret: ")).collect()
}

/// It ended with 2, said one thing that has all these words, and nothing on stdout.
#[track_caller]
fn assert_refused(exit: &Exit, words: &[&str]) {
    assert_eq!(exit.code, Some(2), "{exit:?}");
    assert_eq!(exit.stdout, "", "{exit:?}");
    let complaints = complaints(exit);
    assert_eq!(complaints.len(), 1, "{exit:?}");
    assert_eq!(exit.stderr.lines().last(), Some(complaints[0]), "it is the last word: {exit:?}");
    for word in words {
        assert!(complaints[0].contains(word), "{word:?} is missing in {}", complaints[0]);
    }
}

#[test]
fn the_ready_line_says_where_and_as_which_process_it_serves() {
    if !is_ours() {
        return;
    }
    let broker = Broker::in_memory();
    let mut words = broker.ready.split(' ');
    assert_eq!((words.next(), words.next()), (Some("leveret"), Some("ready")));
    let fields: Vec<(&str, &str)> = words.map(|word| word.split_once('=').expect("name=value")).collect();
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    let known = ["amqp", "management", "metrics", "pid", "in"];
    let expected: Vec<&str> = known.into_iter().filter(|name| names.contains(name)).collect();
    assert_eq!(names, expected, "{}", broker.ready);
    let field = |name| fields.iter().find(|(other, _)| *other == name).unwrap_or_else(|| panic!("no {name}")).1;
    let address: SocketAddr = field("amqp").parse().expect("an address");
    assert!(address.ip().is_loopback() && address.port() != 0, "{address}");
    assert_eq!(field("pid"), broker.pid().to_string());
    let took = field("in").strip_suffix("ms").expect("milliseconds");
    assert!(took.parse::<u32>().is_ok(), "{took}");
    Connection::open(address, &Login::default()).channel();
}

#[test]
fn stdout_has_the_ready_line_and_nothing_else() {
    if !is_ours() {
        return;
    }
    let broker = Broker::start(["--ephemeral", "--log", "trace"]);
    let ready = broker.ready.clone();
    let connection = Connection::open(broker.address, &Login::default());
    connection.channel();
    connection.close();
    let exit = broker.stop("TERM");
    assert_eq!(exit.stdout, format!("{ready}\n"));
    assert!(exit.stderr.contains("Server startup complete; 0 plugins started."), "{exit:?}");
}

#[test]
fn both_signals_end_it_with_0_within_2_seconds() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for signal in ["TERM", "INT"] {
        for broker in [Broker::in_memory(), Broker::in_folder(folder.path())] {
            let client = Connection::open(broker.address, &Login::default());
            broker.signal(signal);
            let text = "broker forced connection closure with reason 'shutdown'";
            client.expect_close(320, text, leveret_protocol::MethodId::NONE);
            let exit = broker.wait();
            assert_eq!(exit.code, Some(0), "{signal}: {exit:?}");
            assert!(exit.took < Duration::from_secs(2), "{signal}: {exit:?}");
        }
    }
}

#[test]
fn it_listens_on_both_loopback_addresses_and_on_the_port_it_was_told() {
    if !is_ours() {
        return;
    }
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let broker = Broker::start(["--ephemeral", "--port", &free.port().to_string()]);
    assert_eq!(broker.address, free);
    Connection::open(broker.address, &Login::default()).channel();
    // Where there is no IPv6 there is nothing to ask.
    if TcpListener::bind("[::1]:0").is_ok() {
        Connection::open(SocketAddr::new("::1".parse().unwrap(), free.port()), &Login::default()).channel();
    }
}

#[test]
fn a_port_in_use_is_named() {
    if !is_ours() {
        return;
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let exit = run(["--ephemeral", "--bind", "127.0.0.1", "--port", address.rsplit(':').next().unwrap()]);
    assert_refused(&exit, &["cannot listen on", &address, "--port"]);
}

#[test]
fn an_address_that_is_not_of_this_machine_is_named() {
    if !is_ours() {
        return;
    }
    let exit = run(["--ephemeral", "--bind", "192.0.2.1"]);
    assert_refused(&exit, &["cannot listen on", "192.0.2.1"]);
}

#[test]
fn a_folder_in_use_is_left_alone() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let first = Broker::in_folder(folder.path());
    let exit = run(["--data-dir", path]);
    assert_refused(&exit, &[path]);
    Connection::open(first.address, &Login::default()).channel();
    assert_eq!(first.stop("TERM").code, Some(0));
    // Free again, also after a crash.
    let second = Broker::in_folder(folder.path());
    second.stop("KILL");
    Broker::in_folder(folder.path());
}

#[test]
fn a_folder_of_somebody_else_is_left_alone() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("photo.jpg");
    std::fs::write(&file, "not ours").unwrap();
    let exit = run(["--data-dir", folder.path().to_str().unwrap()]);
    assert_refused(&exit, &[folder.path().to_str().unwrap()]);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, std::slice::from_ref(&file));
    assert_eq!(std::fs::read_to_string(file).unwrap(), "not ours");
}

#[test]
fn a_folder_that_is_a_file_is_refused() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let exit = run(["--data-dir", file.to_str().unwrap()]);
    assert_refused(&exit, &[file.to_str().unwrap()]);
}

#[test]
fn wrong_command_lines_are_one_line_and_2() {
    if !is_ours() {
        return;
    }
    let rows: [(&[&str], &[&str]); 10] = [
        (&["--nonsense"], &["unknown option --nonsense", "--help"]),
        (&["--ephemral"], &["unknown option --ephemral", "did you mean --ephemeral?"]),
        (&["nonsense"], &["nonsense"]),
        (&["--port"], &["--port"]),
        (&["--port", "abc"], &["--port", "abc"]),
        (&["--port", "65536"], &["--port", "65536"]),
        (&["--bind", "nowhere"], &["--bind", "nowhere"]),
        (&["--compat", "2.8"], &["--compat", "2.8"]),
        (&["--ephemeral", "--data-dir", "somewhere"], &["--ephemeral", "--data-dir"]),
        (&["--config", "/no/such/file"], &["/no/such/file"]),
    ];
    for (arguments, words) in rows {
        let exit = run(arguments);
        assert_refused(&exit, words);
        assert_eq!(exit.stderr.lines().count(), 1, "{exit:?}");
    }
}

#[test]
fn help_and_version_go_to_stdout_with_0() {
    if !is_ours() {
        return;
    }
    for (argument, word) in [("--help", "--ephemeral"), ("--version", env!("CARGO_PKG_VERSION"))] {
        let exit = run([argument]);
        assert_eq!((exit.code, exit.stderr.as_str()), (Some(0), ""), "{argument}");
        assert!(exit.stdout.contains(word), "{}", exit.stdout);
    }
}

#[test]
fn brokers_on_free_ports_do_not_meet() {
    if !is_ours() {
        return;
    }
    let brokers = [Broker::in_memory(), Broker::in_memory(), Broker::in_memory()];
    let mut ports = brokers.each_ref().map(|broker| broker.address.port());
    ports.sort_unstable();
    assert!(ports[0] < ports[1] && ports[1] < ports[2], "{ports:?}");
}

#[test]
fn the_pid_file_holds_the_number_of_the_process_while_it_serves() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("leveret.pid");
    let broker = Broker::start(["--ephemeral", "--pid-file", file.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{}\n", broker.pid()));
    assert_eq!(broker.stop("TERM").code, Some(0));
    assert!(!file.exists());
    let exit = run(["--ephemeral", "--pid-file", "/nowhere/leveret.pid"]);
    assert_refused(&exit, &["cannot write the pid file /nowhere/leveret.pid", "--pid-file"]);
}

#[test]
fn config_check_says_what_is_wrong_and_starts_nothing() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.conf");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        run(["config", "check", file.to_str().unwrap()])
    };
    let bad = check("heartbeat = soon\nhearbeat = 1\n");
    assert_eq!((bad.code, bad.stdout.lines().count()), (Some(2), 3), "{bad:?}");
    assert!(bad.stdout.contains("a.conf:1: heartbeat = soon: expected seconds"), "{bad:?}");
    assert!(bad.stdout.contains("a.conf:2: unknown key hearbeat is ignored; did you mean heartbeat?"), "{bad:?}");
    let good = check("heartbeat = 5\n");
    assert_eq!((good.code, good.stderr.as_str()), (Some(0), ""), "{good:?}");
}

/// As systemd starts it: a datagram says when clients are served, another that it stops.
#[test]
fn systemd_is_told_when_it_serves_and_when_it_stops() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let next = || {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let broker = Broker::start_with(["--ephemeral"], &[("NOTIFY_SOCKET", path.to_str().unwrap())]);
    assert_eq!(next(), "READY=1");
    assert_eq!(broker.stop("TERM").code, Some(0));
    assert_eq!(next(), "STOPPING=1");
}

/// Management reference 4.6; and a password is never in a log, however much it tells.
#[test]
fn s4_6_the_log_has_rabbitmqs_lines_and_no_password() {
    if !is_ours() {
        return;
    }
    for format in ["text", "json"] {
        let variables = [("RABBITMQ_DEFAULT_USER", "ann"), ("RABBITMQ_DEFAULT_PASS", "hush-hush")];
        let broker = Broker::start_with(["--ephemeral", "--log", "trace", "--log-format", format], &variables);
        let login = Login { response: b"\0ann\0hush-hush", ..Login::default() };
        Connection::open(broker.address, &login).close();
        drop(Connection::open(broker.address, &login));
        let mut refused = crate::client::Socket::greet(broker.address).0;
        refused.send_start_ok(&Login { response: b"\0ann\0wrong-one", ..Login::default() });
        refused.method();
        let exit = broker.stop("TERM");
        for line in [
            "accepting AMQP connection 127.0.0.1:",
            ": user 'ann' authenticated and granted access to vhost '/'",
            "closing AMQP connection (127.0.0.1:",
            ", vhost: '/'): client unexpectedly closed TCP connection",
            "Server startup complete; ",
        ] {
            assert!(exit.stderr.contains(line), "{format}: {line} is missing in {}", exit.stderr);
        }
        for secret in ["hush-hush", "wrong-one"] {
            assert!(!exit.stderr.contains(secret), "{format}: {secret}");
        }
        let is_json = |line: &str| line.starts_with('{') && line.ends_with('}');
        assert!(format == "text" || exit.stderr.lines().all(is_json), "{}", exit.stderr);
    }
}
