//! Metrics over HTTP (management reference 2): what happened is what they say, and Prometheus's own tool likes them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use leveret_protocol::{Properties, basic};

use crate::broker::{Broker, is_ours};
use crate::client::{Connection, Login, declare, declare_args, delete, persistent, text};

fn address(broker: &Broker) -> SocketAddr {
    let word = broker.ready.split(' ').find_map(|word| word.strip_prefix("metrics="));
    word.expect("metrics are served").parse().expect("an address")
}

/// Status and body of a GET. `headers` end in a line end each.
fn get(address: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn page(broker: &Broker, path: &str) -> String {
    let (status, body) = get(address(broker), path, "");
    assert_eq!(status, 200, "{body}");
    body
}

/// The value of a series, written as the page has it.
#[track_caller]
fn value(page: &str, series: &str) -> f64 {
    let found: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(series)?.strip_prefix(' ')).collect();
    assert_eq!(found.len(), 1, "{series} in {page}");
    found[0].parse().unwrap()
}

/// What `promtool check metrics` has to say; `None` where it is not installed.
fn promtool(page: &str) -> Option<(bool, String)> {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    Some((done.status.success(), String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()))
}

/// A broker where a bit of everything happened.
fn busy() -> (Broker, Connection, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::in_folder(folder.path());
    let connection = Connection::open(broker.address, &Login::default());
    let channel = connection.channel();
    channel.confirm_select();
    channel.declare(declare("a\"\\b"));
    channel.declare(declare_args("dead", [("x-dead-letter-exchange", text("")), ("x-max-length", 1.into())]));
    channel.declare(declare("gone"));
    for body in ["1", "2", "3"] {
        channel.publish_properties("", "a\"\\b", &persistent(), body);
    }
    channel.publish("", "nowhere", "dropped");
    channel.publish_with(
        basic::Publish { exchange: "", routing_key: "nowhere", mandatory: true, immediate: false },
        &Properties::default(),
        b"returned",
    );
    channel.returned();
    channel.publish("", "dead", "one");
    channel.publish("", "dead", "two");
    channel.publish("", "gone", "away");
    channel.wait_for_confirms(8);
    let get = |queue, no_ack| basic::Get { queue, no_ack };
    channel.get(get("a\"\\b", true)).unwrap();
    let delivery = channel.get(get("a\"\\b", false)).unwrap();
    channel.nack(delivery.tag, false, true);
    let again = channel.get(get("a\"\\b", false)).unwrap();
    assert!(again.redelivered);
    channel.ack(again.tag);
    channel.get(get("gone", true)).unwrap();
    assert!(channel.get(get("gone", true)).is_none());
    channel.delete(delete("gone"));
    (broker, connection, folder)
}

#[test]
fn s2_2_global_counters_count_what_happened() {
    if !is_ours() {
        return;
    }
    let (broker, _connection, _folder) = busy();
    let page = page(&broker, "/metrics");
    let global = |name: &str| value(&page, &format!("rabbitmq_global_{name}_total{{protocol=\"amqp091\"}}"));
    assert_eq!(global("messages_received"), 8.0);
    assert_eq!(global("messages_received_confirm"), 8.0);
    assert_eq!(global("messages_confirmed"), 8.0);
    assert_eq!(global("messages_routed"), 6.0);
    assert_eq!((global("messages_unroutable_dropped"), global("messages_unroutable_returned")), (1.0, 1.0));
    let classic = |name: &str| {
        value(
            &page,
            &format!("rabbitmq_global_{name}_total{{protocol=\"amqp091\",queue_type=\"rabbit_classic_queue\"}}"),
        )
    };
    assert_eq!(classic("messages_delivered"), 4.0);
    assert_eq!((classic("messages_delivered_get_manual_ack"), classic("messages_delivered_get_auto_ack")), (2.0, 2.0));
    assert_eq!(
        (classic("messages_delivered_consume_manual_ack"), classic("messages_delivered_consume_auto_ack")),
        (0.0, 0.0)
    );
    assert_eq!((classic("messages_get_empty"), classic("messages_redelivered")), (1.0, 1.0));
    assert_eq!(classic("messages_acknowledged"), 1.0);
    let dead = "rabbitmq_global_messages_dead_lettered_maxlen_total\
                {queue_type=\"rabbit_classic_queue\",dead_letter_strategy=\"at_most_once\"}";
    assert_eq!(value(&page, dead), 1.0);
    for (name, expected) in [
        ("rabbitmq_connections", 1.0),
        ("rabbitmq_channels", 1.0),
        ("rabbitmq_queues", 2.0),
        ("rabbitmq_queue_messages_ready", 2.0),
        ("rabbitmq_queues_declared_total", 3.0),
        ("rabbitmq_queues_created_total", 3.0),
        ("rabbitmq_queues_deleted_total", 1.0),
        ("rabbitmq_connections_opened_total", 1.0),
    ] {
        assert_eq!(value(&page, name), expected, "{name}");
    }
    assert!(value(&page, "rabbitmq_process_resident_memory_bytes") > 1e6);
    assert!(value(&page, "rabbitmq_process_max_fds") >= value(&page, "rabbitmq_process_open_fds"));
    assert!(value(&page, "rabbitmq_disk_space_available_bytes") > 0.0);
    assert!(value(&page, "leveret_store_commit_duration_seconds_count") >= 1.0);
    assert_eq!(
        page.matches("\nrabbitmq_identity_info{").count() + usize::from(page.starts_with("rabbitmq_identity")),
        1
    );
}

/// §2: auto-ack and manual consumers are told apart.
#[test]
fn s2_2_deliveries_to_consumers() {
    if !is_ours() {
        return;
    }
    let broker = Broker::in_memory();
    let channel = Connection::open(broker.address, &Login::default()).channel();
    for (queue, no_ack) in [("manual", false), ("auto", true)] {
        channel.declare(declare(queue));
        channel.publish("", queue, "m");
        channel.publish("", queue, "m");
        let consume = basic::Consume {
            queue,
            consumer_tag: "",
            no_local: false,
            no_ack,
            exclusive: false,
            no_wait: false,
            arguments: Default::default(),
        };
        channel.consume(consume);
        channel.bodies(2);
    }
    let page = page(&broker, "/metrics/detailed?family=queue_delivery_metrics&family=queue_coarse_metrics");
    let of =
        |name: &str, queue: &str| value(&page, &format!("rabbitmq_detailed_{name}{{vhost=\"/\",queue=\"{queue}\"}}"));
    assert_eq!(
        (of("queue_messages_delivered_ack_total", "manual"), of("queue_messages_delivered_total", "manual")),
        (2.0, 0.0)
    );
    assert_eq!(
        (of("queue_messages_delivered_ack_total", "auto"), of("queue_messages_delivered_total", "auto")),
        (0.0, 2.0)
    );
    assert_eq!((of("queue_messages_unacked", "manual"), of("queue_messages_unacked", "auto")), (2.0, 0.0));
}

#[test]
fn s2_paths_and_what_they_refuse() {
    if !is_ours() {
        return;
    }
    let (broker, _connection, _folder) = busy();
    let each = page(&broker, "/metrics/per-object");
    assert_eq!(value(&each, "rabbitmq_queue_messages_ready{vhost=\"/\",queue=\"a\\\"\\\\b\"}"), 1.0);
    assert!(each.contains("rabbitmq_endpoint=\"per-object\""));
    let some = page(&broker, "/metrics/detailed?family=queue_coarse_metrics&vhost=%2F&queue=%5Edead");
    assert_eq!(value(&some, "rabbitmq_detailed_queue_messages{vhost=\"/\",queue=\"dead\"}"), 1.0);
    assert!(!some.contains("queue=\"a"), "{some}");
    let none = page(&broker, "/metrics/detailed?family=queue_coarse_metrics&vhost=other");
    assert!(!none.contains("queue=\""), "{none}");
    let nothing = page(&broker, "/metrics/detailed");
    assert_eq!(nothing.lines().count(), 3, "identity alone: {nothing}");
    assert_eq!(get(address(&broker), "/metrics/nonsense", ""), (404, "Unknown Registry".into()));
    assert_eq!(get(address(&broker), "/metrics/detailed?queue=(", "").0, 400);
}

#[test]
fn s2_promtool_finds_nothing_wrong() {
    if !is_ours() {
        return;
    }
    let (broker, _connection, _folder) = busy();
    if promtool("").is_none() {
        eprintln!("left out: no promtool (Debian: prometheus)");
        return;
    }
    let families = "family=queue_coarse_metrics&family=queue_metrics&family=queue_consumer_count&\
                    family=queue_delivery_metrics&family=connection_churn_metrics&family=node_coarse_metrics&\
                    family=node_metrics&family=vhost_status";
    for path in ["/metrics", "/metrics/per-object", &format!("/metrics/detailed?{families}")] {
        let (is_good, report) = promtool(&page(&broker, path)).unwrap();
        assert!(is_good && report.is_empty(), "{path}: {report}");
    }
    let (is_good, _) = promtool("# TYPE a counter\n# HELP a x\na 1\n").unwrap();
    assert!(!is_good, "it finds what is wrong");
}

/// §2: `prometheus.authentication.enabled`, and the other settings.
#[test]
fn s2_settings_of_metrics() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.conf");
    std::fs::write(&file, "prometheus.authentication.enabled = true\nprometheus.path = /m/x\n").unwrap();
    let broker = Broker::start(["--ephemeral", "--config", file.to_str().unwrap()]);
    let status = |headers: &str| get(address(&broker), "/m/x", headers).0;
    assert_eq!(status(""), 401);
    assert_eq!(status("Authorization: Basic Z3Vlc3Q6d3Jvbmc=\r\n"), 401, "guest:wrong");
    assert_eq!(status("Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"), 200, "guest:guest");
    let off = Broker::start(["--ephemeral", "--metrics-port", "off"]);
    assert!(!off.ready.contains("metrics="), "{}", off.ready);
}
