//! Definitions at the start (management reference 1.11, 4.4): files that RabbitMQ 3.10 and 4.0 exported.

use std::path::Path;

use crate::broker::{Broker, is_ours, run};
use crate::client::{Connection, Login, declare, declare_args, text};

fn fixture(name: &str) -> String {
    format!("{}/tests/definitions/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn log_in(broker: &Broker, response: &[u8], vhost: &str) -> Connection {
    Connection::open(broker.address, &Login { response, vhost, ..Login::default() })
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let file = folder.join(name);
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn s1_11_users_log_in_with_their_old_passwords_and_queues_are_there() {
    if !is_ours() {
        return;
    }
    for file in ["rabbitmq-4.0.json", "rabbitmq-3.10.json"] {
        let folder = tempfile::tempdir().unwrap();
        let definitions = fixture(file);
        let start = || Broker::start(["--data-dir", folder.path().to_str().unwrap(), "--definitions", &definitions]);
        let broker = start();
        // Hashed with SHA-256 and with MD5.
        let ann = log_in(&broker, b"\0ann\0secret", "shop").channel();
        log_in(&broker, b"\0old\0secret", "shop").channel();
        for queue in ["orders", "tmp.a", "by-default", "log"] {
            ann.look(queue);
        }
        ann.refuses(
            declare_args("orders", [("x-queue-type", text("quorum"))]),
            406,
            "inequivalent arg 'x-delivery-limit' for queue 'orders' in vhost 'shop': \
             received none but current is the value '7' of type 'long'",
        );
        let ann = log_in(&broker, b"\0ann\0secret", "shop").channel();
        ann.refuses(
            declare_args("tmp.a", [("x-queue-type", text("classic")), ("x-max-priority", 5.into())]),
            406,
            "inequivalent arg 'x-dead-letter-exchange' for queue 'tmp.a' in vhost 'shop': \
             received none but current is the value 'lost' of type 'longstr'",
        );
        // All of it is stored: a second start finds it there, one without the file too.
        let stopped = broker.stop("TERM");
        assert_eq!(stopped.code, Some(0), "{stopped:?}");
        let broker = start();
        log_in(&broker, b"\0ann\0secret", "shop").channel().look("orders");
        broker.stop("TERM");
        let without = Broker::in_folder(folder.path());
        log_in(&without, b"\0ann\0secret", "shop").channel().look("orders");
    }
}

/// §4.4: an empty folder with definitions gets no default user and vhost.
#[test]
fn s4_4_definitions_stand_in_for_the_default_user() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = write(
        folder.path(),
        "d.json",
        r#"{"vhosts":[{"name":"v"}],"users":[{"name":"u","hashing_algorithm":"rabbit_password_hashing_md5",
            "password_hash":"Aj/wIPru8lpMbFcxqNkHKg1Irog=","tags":""}],
            "permissions":[{"user":"u","vhost":"v","configure":".*","write":".*","read":".*"}],
            "parameters":[{"component":"shovel","vhost":"v","name":"s","value":{}}]}"#,
    );
    let broker = Broker::start(["--ephemeral", "--definitions", &file]);
    log_in(&broker, b"\0u\0secret", "v").channel().declare(declare("q"));
    let mut socket = crate::client::Socket::greet(broker.address).0;
    socket.send_start_ok(&Login::default());
    let answer = socket.method();
    let close = leveret_protocol::Method::decode(&answer.payload).unwrap();
    assert!(format!("{close:?}").contains("ACCESS_REFUSED"), "guest is refused: {close:?}");
    let exit = broker.stop("TERM");
    assert!(exit.stderr.contains("leveret does not have what 'shovel' is for"), "{exit:?}");
}

/// A bad file changes nothing, and says where it is wrong.
#[test]
fn s1_11_a_bad_file_keeps_the_broker_from_starting_and_changes_nothing() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let data = data.to_str().unwrap();
    let good = r#"{"vhosts":[{"name":"v"}],"queues":[{"name":"good","vhost":"/"},{"name":"q","vhost":"v"}],
        "bindings":[{"source":"amq.direct","vhost":"v","destination":"gone","destination_type":"queue"}]}"#;
    Broker::in_folder(Path::new(data)).stop("TERM");
    for (text, place) in [
        (good, "$.bindings[0]: no queue 'gone' in vhost 'v'; nothing was imported"),
        (r#"{"queues":[{"name":"good","vhost":"/"},{"name":"x","vhost":"w"}]}"#, "$.queues[1]: there is no vhost 'w'"),
        (r#"{"queues":[{"name":"good","vhost":"/"},{"name":"x"}]}"#, "$.queues[1]: vhost is missing"),
        ("{\n\"queues\":[}", "line 2: not JSON"),
    ] {
        let file = write(folder.path(), "bad.json", text);
        let exit = run(["--data-dir", data, "--definitions", &file]);
        assert_eq!((exit.code, exit.stdout.as_str()), (Some(2), ""), "{exit:?}");
        let last = exit.stderr.lines().last().unwrap();
        assert!(last.contains("bad.json are wrong at") && last.contains(place), "{last}");
    }
    let broker = Broker::in_folder(Path::new(data));
    let channel = Connection::open(broker.address, &Login::default()).channel();
    assert!(!channel.exists("good"));
    let exit = run(["--ephemeral", "--definitions", "/nowhere.json"]);
    assert_eq!(exit.code, Some(2));
    assert!(exit.stderr.contains("cannot read the definitions /nowhere.json"), "{exit:?}");
}
