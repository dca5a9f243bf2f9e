//! The command line tools, over the admin socket and without a password (management reference 3).

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::broker::Broker;
use crate::client::{Connection, Login, declare};
use crate::http::Http;

/// A broker with a folder, and the program under the name of a tool.
struct Rig {
    folder: tempfile::TempDir,
    broker: Broker,
}

impl Rig {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::in_folder(&folder.path().join("data"));
        Self { folder, broker }
    }

    fn run(&self, tool: &str, line: &[&str]) -> Output {
        run(&tool_in(self.folder.path(), tool), &self.folder.path().join("data"), line)
    }

    /// Runs rabbitmqctl, which must succeed: stdout.
    #[track_caller]
    fn ctl(&self, line: &[&str]) -> String {
        let output = self.run("rabbitmqctl", line);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""), "{line:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs rabbitmqctl, which must fail: exit code and stderr.
    #[track_caller]
    fn fails(&self, line: &[&str]) -> (i32, String) {
        let output = self.run("rabbitmqctl", line);
        assert!(!output.status.success(), "{line:?}");
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    fn json(&self, line: &[&str]) -> Value {
        serde_json::from_str(&self.ctl(&[line, &["--formatter=json"]].concat())).unwrap()
    }
}

fn tool_in(folder: &Path, tool: &str) -> PathBuf {
    let path = folder.join(tool);
    let _ = symlink(env!("CARGO_BIN_EXE_leveret"), &path);
    path
}

fn run(program: &Path, data: &Path, line: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(line).env("LEVERET_DATA_DIR", data).stdin(std::process::Stdio::null());
    command.output().unwrap()
}

#[test]
fn s3_2_health_commands_say_so() {
    let rig = Rig::start();
    let ping = rig.ctl(&["ping"]);
    assert!(ping.starts_with("Will ping rabbit@") && ping.ends_with("Timeout: 60000 ms.\nPing succeeded\n"), "{ping}");
    let output = rig.run("rabbitmq-diagnostics", &["-q", "ping"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "Ping succeeded\n");
    assert!(rig.ctl(&["-q", "check_running"]).ends_with("is fully booted and running\n"));
    assert_eq!(rig.ctl(&["await_startup"]), "");
    assert!(rig.ctl(&["check_port_connectivity"]).contains("Successfully connected to ports "));
    assert!(rig.ctl(&["-q", "check_local_alarms"]).ends_with("reported no local alarms\n"));
    assert!(rig.ctl(&["check_virtual_hosts"]).ends_with("reported all vhosts as running\n"));
    let port = rig.broker.address.port().to_string();
    assert!(rig.ctl(&["check_port_listener", &port]).starts_with(&format!("A listener for port {port} is running on")));
    assert_eq!(rig.fails(&["check_port_listener", "1"]).0, 69);
    assert_eq!(rig.ctl(&["server_version"]), "4.2.6\n");
    let status = rig.ctl(&["status"]);
    for part in ["RabbitMQ version: 4.2.6\n", "Virtual host count: 1", "protocol: amqp, purpose: AMQP 0-9-1"] {
        assert!(status.contains(part), "{status}");
    }
    let pid = u64::from(rig.broker.pid());
    assert_eq!(rig.json(&["status"])["pid"], pid);
}

#[test]
fn s3_2_users_vhosts_and_permissions() {
    let rig = Rig::start();
    assert!(rig.ctl(&["add_user", "u", "p w"]).starts_with("Adding user \"u\" ...\nDone. Don't forget"));
    let exists = rig.fails(&["add_user", "u", "x"]);
    assert_eq!((exists.0, exists.1.as_str()), (70, "Error:\nUser \"u\" already exists\n"));
    assert_eq!(rig.ctl(&["-q", "authenticate_user", "u", "p w"]), "Success\n");
    assert_eq!(rig.fails(&["authenticate_user", "u", "wrong"]).0, 65);
    assert_eq!(
        rig.ctl(&["set_user_tags", "u", "management", "x"]),
        "Setting tags for user \"u\" to [management, x] ...\n"
    );
    assert_eq!(rig.ctl(&["-q", "authenticate_user", "u", "p w"]), "Success\n", "the password stays");
    rig.ctl(&["change_password", "u", "new"]);
    assert_eq!(rig.ctl(&["-q", "authenticate_user", "u", "new"]), "Success\n");
    assert_eq!(rig.ctl(&["list_users"]), "Listing users ...\nuser\ttags\nguest\t[administrator]\nu\t[management, x]\n");
    assert_eq!(rig.ctl(&["list_users", "-q", "--no-table-headers"]), "guest\t[administrator]\nu\t[management, x]\n");
    assert_eq!(rig.ctl(&["list_users", "-s"]), "guest\t[administrator]\nu\t[management, x]\n");
    assert_eq!(rig.json(&["list_users"])[0], json!({"user": "guest", "tags": ["administrator"]}));
    for verb in [&["delete_user", "none"][..], &["change_password", "none", "x"], &["set_user_tags", "none"]] {
        assert_eq!(rig.fails(verb).0, 67, "{verb:?}");
    }
    assert_eq!(rig.ctl(&["add_vhost", "v", "--description", "d"]), "Adding vhost \"v\" ...\n");
    rig.ctl(&["add_vhost", "v"]);
    let text = "Setting permissions for user \"u\" in vhost \"v\" ...\n";
    assert_eq!(rig.ctl(&["set_permissions", "-p", "v", "u", "^a", ".*", ""]), text);
    assert_eq!(rig.ctl(&["-q", "list_permissions", "-p", "v"]), "user\tconfigure\twrite\tread\nu\t^a\t.*\t\n");
    assert_eq!(rig.fails(&["set_permissions", "none", "", "", ""]).0, 67);
    rig.ctl(&["clear_permissions", "-p", "v", "u"]);
    rig.ctl(&["delete_vhost", "v"]);
    assert_eq!(rig.json(&["list_vhosts"]), json!([{"name": "/"}]));
}

#[test]
fn s3_2_policies_queues_and_connections() {
    let rig = Rig::start();
    let connection = Connection::open(rig.broker.address, &Login::default());
    connection.channel().declare(declare("q"));
    assert_eq!(rig.ctl(&["list_queues", "-q", "name", "messages"]), "name\tmessages\nq\t0\n");
    assert_eq!(
        rig.ctl(&["list_queues", "--formatter", "csv", "name", "arguments"]),
        "name,arguments\nq,\"[{\"\"x-queue-type\"\",\"\"classic\"\"}]\"\n"
    );
    let set = rig.ctl(&["set_policy", "n", "^q", r#"{"max-length":3}"#, "--apply-to", "queues", "--priority", "2"]);
    let text = r#"Setting policy "n" for pattern "^q" to "{"max-length":3}" with priority "2" for vhost "/" ..."#;
    assert_eq!(set, format!("{text}\n"));
    assert_eq!(rig.json(&["list_queues", "policy"]), json!([{"policy": "n"}]));
    assert_eq!(rig.fails(&["set_policy", "n", "^q", "{x"]).0, 65);
    rig.ctl(&["clear_policy", "n"]);
    let pid = rig.json(&["list_connections", "pid"])[0]["pid"].as_str().unwrap().to_owned();
    assert!(!pid.contains(' '));
    rig.ctl(&["close_connection", &pid, "enough"]);
    connection.expect_close(320, "enough", leveret_protocol::MethodId::NONE);
    let _other = Connection::open(rig.broker.address, &Login::default());
    assert_eq!(rig.ctl(&["close_all_connections", "--global", "bye"]), "Closed 1 connections\n");
    rig.ctl(&["purge_queue", "q"]);
    let deleted = rig.ctl(&["-q", "delete_queue", "q"]);
    assert_eq!(deleted, "Queue was successfully deleted with 0 ready messages\n");
    let missing = rig.fails(&["delete_queue", "q"]);
    assert_eq!((missing.0, missing.1.as_str()), (64, "Error:\nNo such queue was found\n"));
    assert_eq!(rig.fails(&["nonsense"]).0, 64);
}

#[test]
fn s3_2_plugins_are_known_and_need_no_broker() {
    let folder = tempfile::tempdir().unwrap();
    let plugins = tool_in(folder.path(), "rabbitmq-plugins");
    let enabled = run(&plugins, folder.path(), &["enable", "rabbitmq_management", "--offline"]);
    assert!(enabled.status.success());
    assert_eq!(run(&plugins, folder.path(), &["enable", "nonsense"]).status.code(), Some(64));
    assert!(run(&plugins, folder.path(), &["is_enabled", "rabbitmq_management"]).status.success());
    assert_eq!(run(&plugins, folder.path(), &["is_enabled", "rabbitmq_mqtt"]).status.code(), Some(69));
}

#[test]
fn s3_1_no_broker_is_69_and_waiting_for_one_75() {
    let folder = tempfile::tempdir().unwrap();
    let ctl = tool_in(folder.path(), "rabbitmqctl");
    let line = ["--admin-socket", "/nonexistent/socket"];
    let failed = run(&ctl, folder.path(), &[&["status"], &line[..]].concat());
    assert_eq!(failed.status.code(), Some(69));
    let text = "Error:\nunable to perform an operation on node 'rabbit@localhost'.";
    assert!(String::from_utf8(failed.stderr).unwrap().starts_with(text));
    let waited = run(&ctl, folder.path(), &[&["await_startup", "-t", "0.1"], &line[..]].concat());
    assert_eq!(waited.status.code(), Some(75));
}

#[test]
fn the_admin_socket_is_its_owners_alone_and_stop_stops() {
    let rig = Rig::start();
    let socket = rig.folder.path().join("data/admin/socket");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&socket), mode(socket.parent().unwrap())), (0o600, 0o700));
    let http = Http::of(&rig.broker.ready);
    assert_eq!(http.post("/api/leveret/stop", json!({})).status, 404, "not over TCP");
    rig.ctl(&["stop"]);
    let Rig { broker, folder: _folder } = rig;
    assert_eq!(broker.wait().code, Some(0));
    assert!(!socket.exists());
}

#[test]
fn without_a_folder_the_tools_find_the_broker_by_its_port() {
    let broker = Broker::in_memory();
    let folder = tempfile::tempdir().unwrap();
    let ctl = tool_in(folder.path(), "rabbitmqctl");
    let mut command = Command::new(ctl);
    command.args(["-q", "ping"]).env("LEVERET_PORT", broker.address.port().to_string());
    command.env("LEVERET_DATA_DIR", folder.path());
    assert!(command.output().unwrap().status.success());
}

#[test]
fn completions_are_written_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let output = Command::new(env!("CARGO_BIN_EXE_leveret")).args(["completions", shell]).output().unwrap();
        assert!(output.status.success() && String::from_utf8(output.stdout).unwrap().contains("management-port"));
    }
    let output = Command::new(env!("CARGO_BIN_EXE_leveret")).args(["completions", "tcsh"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
