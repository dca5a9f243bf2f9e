//! What client suites and frameworks count on and no test of a single rule shows: the numbers are those of the rows
//! of `docs/gotchas.md`, which says where each of the others is tested.

use std::path::Path;
use std::time::{Duration, Instant};

use leveret::auth::{PasswordHash, Pattern, Permissions, TopicPermissions, User, UserLimits};
use leveret::model::record::{Batch, Op};
use leveret::storage::sled::SledStore;
use leveret::storage::{Store as _, StoreOptions};
use leveret_protocol::{
    FieldTable, FieldValue, FrameKind, Method, Properties, basic, channel, connection, exchange, queue,
};

use crate::broker::{self, Broker};
use crate::client::{
    Channel, Confirm, Connection, Input, Login, Socket, bind, connect, consume, declare, declare_args, delete,
    exchange, exchange_bind, exchange_delete, exchange_unbind, headers, method_frame, open, persistent, publish, purge,
    table, text, unbind,
};

// --- Connections and channels -----------------------------------------------------------------------------------------

/// As eight threads of one client do, each with some channels of its own: numbers and their states do not leak.
#[test]
fn g20_eighty_thousand_channels_are_opened_and_closed() {
    const AT_ONCE: u16 = 256;
    const THREADS: u16 = 8;
    const CYCLES: usize = 80_000;
    let close = || channel::Close { reply_code: 200, reply_text: "bye", class_id: 0, method_id: 0 };
    let connection = Connection::open(broker::shared(), &Login { tune: (AT_ONCE, 0, 0), ..Login::default() });
    // Each opens its next while the others close theirs.
    let numbers = |thread: u16| (thread + 1..=AT_ONCE).step_by(THREADS.into());
    let per_turn = numbers(0).count();
    let open_all = |thread| numbers(thread).flat_map(|number| method_frame(number, channel::Open {})).collect();
    let close_all = |thread| numbers(thread).flat_map(|number| method_frame(number, close())).collect();
    let mut turns: Vec<Vec<u8>> = vec![open_all(0)];
    for thread in 1..THREADS {
        turns.push([close_all(thread - 1), open_all(thread)].concat());
    }
    turns.push(close_all(THREADS - 1));
    for _ in 0..CYCLES / (per_turn * usize::from(THREADS)) + 1 {
        for (turn, bytes) in (0..).zip(&turns) {
            connection.send_bytes(bytes);
            if turn > 0 {
                numbers(turn - 1).for_each(|number| {
                    connection.channel_number(number).expect(channel::CloseOk::ID);
                });
            }
            if turn < THREADS {
                numbers(turn).for_each(|number| {
                    connection.channel_number(number).expect(channel::OpenOk::ID);
                });
            }
        }
    }
    connection.expect_empty_inbox();
    // All of them are free, and one more is not there.
    for number in 1..=AT_ONCE {
        connection.channel_number(number).open();
    }
    connection.channel_number(AT_ONCE + 1).send(channel::Open {});
    assert_eq!(connection.unanswered_close().0, 530);
}

/// Many channels of a connection fail at once, each with more to come: one close each, nothing else.
#[test]
fn g24_a_hundred_publishes_to_a_missing_exchange_on_a_hundred_channels() {
    let connection = connect();
    let channels: Vec<Channel> = (0..100).map(|_| connection.channel()).collect();
    for _ in 0..100 {
        for channel in &channels {
            channel.publish("g24_missing", "k", "x");
        }
    }
    for channel in &channels {
        channel.expect_close(404, "no exchange 'g24_missing' in vhost '/'", basic::Publish::ID);
    }
    for channel in &channels {
        channel.open();
        channel.expect_quiet();
    }
    connection.expect_empty_inbox();
}

#[test]
fn g41_consumers_are_counted_from_consume_ok_to_cancel_ok() {
    let (channel, other) = (open(), open());
    channel.declare(declare("g41"));
    for _ in 0..20 {
        channel.consume(consume("g41", "tag"));
        assert_eq!(other.declare(declare("g41")).consumers, 1);
        channel.cancel("tag");
        assert_eq!(other.declare(declare("g41")).consumers, 0);
    }
}

#[test]
fn g44_a_transient_queue_may_be_shared_and_delete_itself() {
    let channel = open();
    if channel.connection.version() >= (4, 3) {
        return; // Deprecated, and refused unless permitted.
    }
    channel.declare(queue::Declare { durable: false, auto_delete: true, ..declare("g44") });
    let other = open();
    other.publish("", "g44", "x");
    other.consume(consume("g44", "tag"));
    assert_eq!(other.delivery().text(), "x");
    other.cancel("tag");
    assert!(!channel.exists("g44"));
}

#[test]
fn g71_keys_of_254_and_255_bytes_are_two() {
    let channel = open();
    let (shorter, longer) = ("k".repeat(254), "k".repeat(255));
    for (queue, key) in [("g71_254", &shorter), ("g71_255", &longer)] {
        channel.declare(declare(queue));
        channel.bind(bind(queue, "amq.direct", key));
    }
    channel.publish("amq.direct", &shorter, "254");
    channel.publish("amq.direct", &longer, "255");
    assert_eq!(channel.pop("g71_254").text(), "254");
    assert_eq!(channel.pop("g71_255").text(), "255");
    assert_eq!((channel.look("g71_254").ready, channel.look("g71_255").ready), (0, 0));
}

// --- Rights -----------------------------------------------------------------------------------------------------------

/// A broker whose user ann may do this much in `/`; and guest everything. Patterns: configure, write, read; then
/// rules for topic exchanges: name, write, read.
fn with_ann(folder: &Path, [configure, write, read]: [&str; 3], topics: &[(&str, &str, &str)]) -> Broker {
    // The first start makes guest and the vhost.
    Broker::in_folder(folder).stop("TERM");
    let ann = User {
        name: "ann".into(),
        password: Some(PasswordHash::new([1, 2, 3, 4], "ann")),
        tags: Vec::new(),
        limits: UserLimits::default(),
    };
    let pattern = |source| Pattern::new(source).unwrap();
    let permissions = Permissions { configure: pattern(configure), write: pattern(write), read: pattern(read) };
    let mut rules = TopicPermissions::new("ann".into(), "/".into());
    for &(exchange, write, read) in topics {
        rules.set(exchange.into(), write, read).unwrap();
    }
    let mut ops = vec![
        Op::Put { key: User::key("ann"), value: ann.encode() },
        Op::Put { key: Permissions::key("ann", "/"), value: permissions.encode() },
    ];
    if !rules.is_empty() {
        ops.push(Op::Put { key: TopicPermissions::key("ann", "/"), value: rules.encode() });
    }
    put_records(folder, ops);
    Broker::in_folder(folder)
}

/// Puts records into the store of a broker that does not run.
fn put_records(folder: &Path, ops: Vec<Op>) {
    let mut store = SledStore::open(folder, StoreOptions::default()).unwrap();
    store.recover(&mut |_| {}).unwrap();
    store.commit(&[Batch { ops, ..Batch::default() }]).unwrap();
    store.close().unwrap();
}

fn log_in(broker: &Broker, name: &str) -> Connection {
    let response = format!("\0{name}\0{name}");
    Connection::open(broker.address, &Login { response: response.as_bytes(), ..Login::default() })
}

/// What a text of refusal says after the code.
fn no_access(access: &str, kind: &str, name: &str) -> String {
    format!("{access} access to {kind} '{name}' in vhost '/' refused for user 'ann'")
}

#[test]
fn g56_a_new_queue_needs_rights_to_its_dead_letter_exchange() {
    if !broker::is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let broker = with_ann(folder.path(), [".*", "writable", "readable"], &[]);
    let (guest, ann) = (log_in(&broker, "guest"), log_in(&broker, "ann"));
    let dying = |queue, exchange| declare_args(queue, [("x-dead-letter-exchange", text(exchange))]);
    ann.channel().declare(declare("plain"));
    ann.channel().declare(dying("readable", "writable"));
    let refused = no_access("write", "exchange", "other");
    ann.channel().refuses(dying("readable_2", "other"), 403, &refused);
    ann.channel().refuses(dying("readable_2", ""), 403, &no_access("write", "exchange", "amq.default"));
    ann.channel().refuses(dying("plain_2", "writable"), 403, &no_access("read", "queue", "plain_2"));
    let guest = guest.channel();
    assert!(!guest.exists("readable_2") && !guest.exists("plain_2"));
    // Only a new one is looked at that closely.
    guest.declare(dying("there", "other"));
    ann.channel().declare(dying("there", "other"));
    broker.stop("TERM");
}

#[test]
fn g113_patterns_find_their_word_anywhere_in_a_name() {
    if !broker::is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let broker = with_ann(folder.path(), ["configure", "write", "read"], &[]);
    let (guest, ann) = (log_in(&broker, "guest").channel(), log_in(&broker, "ann"));
    for name in ["may-configure", "may-write", "may-read", "none"] {
        guest.declare(declare(name));
        guest.declare_exchange(exchange(name, "direct"));
    }
    let get = |queue| basic::Get { queue, no_ack: true };
    let allowed: [Method<'_>; 12] = [
        declare("may-configure").into(),
        exchange("may-configure", "direct").into(),
        bind("may-write", "may-read", "k").into(),
        unbind("may-write", "may-read", "k").into(),
        exchange_bind("may-write", "may-read", "k").into(),
        exchange_unbind("may-write", "may-read", "k").into(),
        get("may-read").into(),
        consume("may-read", "tag").into(),
        purge("may-read").into(),
        delete("may-configure").into(),
        exchange_delete("may-configure").into(),
        // Nobody needs a right to ask for replies.
        basic::Consume { no_ack: true, ..consume("amq.rabbitmq.reply-to", "replies") }.into(),
    ];
    for method in allowed {
        let name = method.name();
        assert_eq!(ann.channel().probe(method), None, "{name}");
    }
    let refused: [(Method<'_>, &str, &str, &str); 14] = [
        (declare("may-write").into(), "configure", "queue", "may-write"),
        (delete("may-read").into(), "configure", "queue", "may-read"),
        (exchange("may-read", "direct").into(), "configure", "exchange", "may-read"),
        (exchange_delete("may-write").into(), "configure", "exchange", "may-write"),
        (bind("may-read", "may-read", "k").into(), "write", "queue", "may-read"),
        (bind("may-write", "may-write", "k").into(), "read", "exchange", "may-write"),
        (unbind("may-configure", "may-read", "k").into(), "write", "queue", "may-configure"),
        (unbind("may-write", "none", "k").into(), "read", "exchange", "none"),
        (exchange_bind("none", "may-read", "k").into(), "write", "exchange", "none"),
        (exchange_bind("may-write", "none", "k").into(), "read", "exchange", "none"),
        (exchange_unbind("may-read", "may-read", "k").into(), "write", "exchange", "may-read"),
        (get("may-write").into(), "read", "queue", "may-write"),
        (consume("none", "tag").into(), "read", "queue", "none"),
        (purge("may-configure").into(), "read", "queue", "may-configure"),
    ];
    for (method, access, kind, name) in refused {
        println!("{} {name}", method.name());
        guest.declare(declare("may-configure"));
        ann.channel().refuses(method, 403, &no_access(access, kind, name));
    }
    let channel = ann.channel();
    channel.confirm_select();
    channel.publish("may-write", "k", "x");
    channel.wait_for_confirms(1);
    let none = Properties::default();
    channel.refuses_publish(publish("may-read", "k"), &none, 403, &no_access("write", "exchange", "may-read"));
    let default = no_access("write", "exchange", "amq.default");
    ann.channel().refuses_publish(publish("", "may-write"), &none, 403, &default);
    // Names that the server makes are no exception.
    assert_eq!(ann.channel().probe(queue::Declare { exclusive: true, ..declare("") }), Some(403));
    broker.stop("TERM");
}

#[test]
fn g114_topic_rules_may_name_the_user() {
    if !broker::is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let rules = [("amq.topic", r"^{username}\.", r"^{username}\.public\.")];
    let broker = with_ann(folder.path(), [".*", ".*", ".*"], &rules);
    let ann = log_in(&broker, "ann");
    let channel = ann.channel();
    channel.declare(declare("q"));
    channel.bind(bind("q", "amq.topic", "ann.public.#"));
    // Other types of exchanges and other exchanges have no such rules.
    channel.declare_exchange(exchange("open", "topic"));
    channel.bind(bind("q", "amq.direct", "bob.key"));
    channel.bind(bind("q", "open", "#"));
    for (exchange, key) in [("amq.topic", "ann.public.a"), ("amq.direct", "bob.key"), ("open", "bob.b")] {
        channel.publish(exchange, key, key);
        assert_eq!(channel.pop("q").routing_key, key);
    }
    let topic = |access: &str, key: &str| {
        format!("{access} access to topic '{key}' in exchange 'amq.topic' in vhost '/' refused for user 'ann'")
    };
    let none = Properties::default();
    ann.channel().refuses_publish(publish("amq.topic", "bob.a"), &none, 403, &topic("write", "bob.a"));
    let cc = headers([("CC", FieldValue::Array(vec![text("bob.a")]))]);
    ann.channel().refuses_publish(publish("amq.topic", "ann.a"), &cc, 403, &topic("write", "bob.a"));
    ann.channel().refuses(bind("q", "amq.topic", "ann.private.#"), 403, &topic("read", "ann.private.#"));
    ann.channel().refuses(exchange_bind("open", "amq.topic", "#"), 403, &topic("read", "#"));
    broker.stop("TERM");
}

// --- What libraries and frameworks do ---------------------------------------------------------------------------------

/// A client that comes back declares its queues anew, and binds under whatever name they got.
#[test]
fn g118_a_recovered_topology_works_at_once() {
    let source = open();
    source.declare_exchange(exchange("g118_x", "topic"));
    source.confirm_select();
    let mut names = Vec::new();
    for round in 1..=5 {
        let channel = open();
        let generated = channel.declare(queue::Declare { durable: false, exclusive: true, ..declare("") }).queue;
        assert!(!names.contains(&generated), "{generated} again");
        channel.bind(bind(&generated, "g118_x", "a.*"));
        channel.consume(consume(&generated, "tag"));
        source.publish("g118_x", "a.b", "found");
        assert_eq!(source.confirm(), Confirm::Ack { tag: round, multiple: false });
        assert_eq!(channel.delivery().text(), "found");
        names.push(generated);
        // The connection breaks down.
        drop(channel);
    }
}

/// The same right after unbind-ok: what is answered is done.
#[test]
fn g119_topology_is_as_answered_for_all_connections() {
    let (one, two) = (open(), open());
    one.declare(declare("g119"));
    one.declare_exchange(exchange("g119_far", "fanout"));
    one.bind(bind("g119", "g119_far", ""));
    let returned = |key: &str| {
        let mandatory = basic::Publish { mandatory: true, ..publish("amq.direct", key) };
        two.publish_with(mandatory, &Properties::default(), b"x");
        two.publish_with(basic::Publish { mandatory: true, ..publish("", "g119_end") }, &Properties::default(), b"end");
        let first = two.returned();
        if first.text() == "x" {
            two.returned();
        }
        first.text() == "x"
    };
    for round in 0..20 {
        assert!(returned("g119"), "round {round}: not bound yet");
        one.bind(bind("g119", "amq.direct", "g119"));
        assert!(!returned("g119"), "round {round}: bound");
        one.unbind(unbind("g119", "amq.direct", "g119"));
        assert!(returned("g119"), "round {round}: no longer bound");
        one.bind_exchange(exchange_bind("g119_far", "amq.direct", "g119"));
        assert!(!returned("g119"), "round {round}: bound by way of an exchange");
        one.unbind_exchange(exchange_unbind("g119_far", "amq.direct", "g119"));
    }
    assert_eq!(two.purge("g119"), 40);
}

/// What is on its way to one channel of a connection does not hold another's back until it has ended.
#[test]
fn g122_a_busy_channel_does_not_starve_another_of_its_connection() {
    const BUSY: usize = 8000;
    let producer = open();
    producer.declare(declare("g122_busy"));
    producer.declare(declare("g122_quiet"));
    producer.confirm_select();
    for _ in 0..BUSY {
        producer.publish_with(publish("", "g122_busy"), &Properties::default(), &[b'x'; 4096]);
    }
    producer.wait_for_confirms(BUSY as u64);
    let mut socket = Socket::tuned(broker::shared(), &Login::default());
    socket.send(0, connection::Open { virtual_host: "/" });
    for number in [1, 2] {
        socket.send(number, channel::Open {});
    }
    for (number, prefetch_count) in [(1, 100), (2, 1)] {
        socket.send(number, basic::Qos { prefetch_size: 0, prefetch_count, global: false });
    }
    socket.send(1, consume("g122_busy", "busy"));
    socket.send(2, consume("g122_quiet", "quiet"));
    let deadline = Instant::now() + Duration::from_secs(20);
    let (mut busy, mut quiet) = (0, Vec::new());
    while busy < BUSY {
        let Input::Frame(frame) = socket.read(deadline) else { panic!("{busy} of {BUSY} came") };
        if frame.kind != FrameKind::Method {
            continue;
        }
        match (frame.channel, Method::decode(&frame.payload).unwrap()) {
            (1, Method::BasicDeliver(deliver)) => {
                socket.send(1, basic::Ack { delivery_tag: deliver.delivery_tag, multiple: false });
                busy += 1;
            }
            (2, Method::BasicConsumeOk(_)) => producer.publish("", "g122_quiet", "1"),
            (2, Method::BasicDeliver(deliver)) => {
                socket.send(2, basic::Ack { delivery_tag: deliver.delivery_tag, multiple: false });
                quiet.push(busy);
                producer.publish("", "g122_quiet", "next");
            }
            _ => {}
        }
    }
    // Between two of them lies little more than the busy channel's prefetch.
    assert!(quiet.len() >= 10, "after so many of the busy channel's: {quiet:?}");
}

/// kombu's mailbox beside Celery's tasks, on one channel; the number of tasks changes while they run.
#[test]
fn g123_a_worker_of_celery() {
    let worker = open();
    let transient = worker.connection.version() < (4, 3);
    let mailbox = "celery@host.celery.pidbox";
    let control = exchange::Declare { durable: false, ..exchange("celery.pidbox", "fanout") };
    worker.declare_exchange(control);
    let arguments = [("x-expires", FieldValue::I32(10_000)), ("x-message-ttl", FieldValue::I32(300_000))];
    worker.declare(queue::Declare { durable: !transient, auto_delete: true, ..declare_args(mailbox, arguments) });
    worker.bind(bind(mailbox, "celery.pidbox", ""));
    worker.consume(basic::Consume { no_ack: true, ..consume(mailbox, "1") });
    worker.declare_exchange(exchange("g123_celery", "direct"));
    worker.declare(declare("g123_celery"));
    worker.bind(bind("g123_celery", "g123_celery", "g123_celery"));
    worker.qos(2, false);
    worker.consume(consume("g123_celery", "2"));

    let client = open();
    let tasks: [Properties; 3] = [None, Some(0), None].map(|priority| Properties {
        priority,
        correlation_id: Some("id".into()),
        ..persistent()
    });
    for (index, properties) in tasks.iter().enumerate() {
        client.publish_properties("g123_celery", "g123_celery", properties, &index.to_string());
    }
    let first = [worker.delivery(), worker.delivery()];
    assert_eq!(first.each_ref().map(|task| task.text()), ["0", "1"]);
    assert_eq!(first.each_ref().map(|task| &task.properties), [&tasks[0], &tasks[1]]);
    // For consumers that start later: those that run keep their limit, and control messages have none.
    for prefetch_count in [3, 1, 8] {
        worker.qos(prefetch_count, false);
        client.publish("celery.pidbox", "", "ping");
        let ping = worker.delivery();
        assert_eq!((ping.text(), ping.consumer_tag.as_str()), ("ping", "1"));
    }
    worker.expect_quiet();
    worker.ack(first[0].tag);
    assert_eq!(worker.delivery().text(), "2");
    worker.cancel("1");
    assert!(!client.exists(mailbox));
    worker.delete_exchange(exchange_delete("celery.pidbox"));
}

#[test]
fn g124_a_container_of_spring() {
    let channel = open();
    let passive = || queue::Declare { passive: true, ..declare("g124_late") };
    // It asks again until somebody has declared its queue.
    for _ in 0..3 {
        channel.refuses(passive(), 404, "no queue 'g124_late' in vhost '/'");
        channel.open();
    }
    open().declare(declare("g124_late"));
    channel.declare(passive());
    channel.consume(consume("g124_late", "tag"));
    // An anonymous queue.
    let anonymous = queue::Declare {
        durable: false,
        exclusive: true,
        auto_delete: true,
        ..declare_args("spring.gen-g124", [("x-queue-leader-locator", text("client-local"))])
    };
    assert_eq!(channel.declare(anonymous.clone()).queue, "spring.gen-g124");
    channel.declare(anonymous);
    if channel.connection.version() < (4, 3) {
        // The older name is refused since, as deprecated.
        channel.declare(declare_args("g124_old", [("x-queue-master-locator", text("client-local"))]));
    }
}

/// A type's exchange feeds that of the endpoint, which feeds its queue; what fails too often goes to another queue.
#[test]
fn g125_an_endpoint_of_masstransit() {
    let channel = open();
    for name in ["g125_message", "g125_endpoint", "g125_error"] {
        channel.declare_exchange(exchange(name, "fanout"));
    }
    channel.bind_exchange(exchange_bind("g125_endpoint", "g125_message", ""));
    let arguments = [
        ("x-queue-type", text("quorum")),
        ("x-delivery-limit", FieldValue::I32(2)),
        ("x-dead-letter-exchange", text("g125_error")),
    ];
    channel.declare(declare_args("g125_endpoint", arguments));
    channel.bind(bind("g125_endpoint", "g125_endpoint", ""));
    channel.declare(declare("g125_error"));
    channel.bind(bind("g125_error", "g125_error", ""));
    channel.publish_properties("g125_message", "", &persistent(), "x");
    for round in 0..=2 {
        let taken = channel.take("g125_endpoint");
        let count = (round > 0).then_some(FieldValue::I64(round));
        assert_eq!(taken.header("x-delivery-count"), count.as_ref());
        channel.reject(taken.tag, true);
    }
    let dead = channel.pop("g125_error");
    let deaths = dead.header("x-death").and_then(FieldValue::as_array).expect("x-death is an array");
    let death: &FieldTable = deaths[0].as_table().expect("of tables");
    assert_eq!(death.get("count"), Some(&FieldValue::I64(1)));
    assert_eq!(death.get("reason"), Some(&text("delivery_limit")));

    if channel.connection.is_leveret() {
        let arguments = table([("x-delayed-type", text("fanout"))]);
        channel.declare_exchange(exchange::Declare { arguments, ..exchange("g125_delay", "x-delayed-message") });
        channel.bind_exchange(exchange_bind("g125_error", "g125_delay", ""));
        let since = Instant::now();
        channel.publish_properties("g125_delay", "", &headers([("x-delay", FieldValue::I32(200))]), "later");
        assert_eq!(channel.pop("g125_error").text(), "later");
        assert!(since.elapsed() >= Duration::from_millis(199), "{:?}", since.elapsed());
    }
}
