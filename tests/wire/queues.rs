//! Queues: names, declaration, deletion, purge, and how long they live (§5 but §5.5).

use leveret_protocol::{FieldTable, FieldValue, Method, basic, queue};

use crate::client::{
    Declared, bind, connect, consume, declare, declare_args, delete, exchange, open, purge, table, text, unbind,
};

fn passive(queue: &str) -> queue::Declare<'_> {
    queue::Declare { passive: true, ..declare(queue) }
}

fn exclusive(queue: &str) -> queue::Declare<'_> {
    queue::Declare { exclusive: true, ..declare(queue) }
}

fn declared(queue: &str, ready: u32, consumers: u32) -> Declared {
    Declared { queue: queue.to_owned(), ready, consumers }
}

fn locked(queue: &str) -> String {
    format!(
        "cannot obtain exclusive access to locked queue '{queue}' in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration."
    )
}

/// The text, cut where it is too long for a short string.
fn cut(text: String) -> String {
    const NAME: &str = "RESOURCE_LOCKED - ";
    if NAME.len() + text.len() <= 255 { text } else { text[..255 - 3 - NAME.len()].to_owned() + "..." }
}

#[test]
fn s5_1_an_empty_name_is_replaced_by_a_generated_one() {
    let channel = open();
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..10 {
        let name = channel.declare(exclusive("")).queue;
        let random = name.strip_prefix("amq.gen-").expect("generated names begin with amq.gen-");
        assert_eq!(random.len(), 22, "{name}");
        assert!(random.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)), "{name}");
        names.insert(name);
    }
    assert_eq!(names.len(), 10);
}

#[test]
fn s5_1_only_classic_queues_are_named_by_the_server() {
    for (type_, internal) in [("quorum", "rabbit_quorum_queue"), ("stream", "rabbit_stream_queue")] {
        let text_ = format!("Cannot declare a server-named queue for type {internal}");
        open().refuses(declare_args("", [("x-queue-type", text(type_))]), 406, &text_);
    }
}

#[test]
fn s5_1_names_beginning_with_amq_are_refused_even_if_the_queue_exists() {
    let channel = open();
    let generated = channel.declare(exclusive("")).queue;
    for name in ["amq.s5_1", "amq.", generated.as_str()] {
        let text = format!("queue name '{name}' contains reserved prefix 'amq.*'");
        channel.connection.channel().refuses(exclusive(name), 403, &text);
    }
    assert_eq!(channel.declare(passive(&generated)), declared(&generated, 0, 0));
}

#[test]
fn s5_1_cr_and_lf_are_taken_out_of_names() {
    let channel = open();
    assert_eq!(channel.declare(declare("s5_1\r_c\nr\r\n")), declared("s5_1_cr", 0, 0));
    channel.bind(bind("s5_1\n_cr", "amq\r.direct", "s5_1_cr"));
    channel.publish("amq.direct", "s5_1_cr", "x");
    assert_eq!(channel.pop("s5_1_cr").text(), "x");
    channel.unbind(unbind("s5_1_cr\r", "amq.direct\n", "s5_1_cr"));
    assert_eq!(channel.declare(passive("\ns5_1_cr")), declared("s5_1_cr", 0, 0));
    channel.delete(delete("s5_1_c\rr"));
    assert!(!channel.exists("s5_1_cr"));
}

#[test]
fn s5_1_an_empty_name_means_the_queue_declared_last() {
    let channel = open();
    let name = channel.declare(exclusive("")).queue;
    channel.bind(bind("", "amq.direct", "s5_1_last"));
    channel.publish("amq.direct", "s5_1_last", "a");
    assert_eq!(channel.pop("").text(), "a");
    channel.unbind(unbind("", "amq.direct", "s5_1_last"));
    channel.publish("", &name, "b");
    assert_eq!(channel.ready(&name, 1), 1);
    assert_eq!(channel.purge(""), 1);
    channel.consume(consume("", "tag"));
    channel.publish("", &name, "c");
    assert_eq!(channel.delivery().text(), "c");
    channel.cancel("tag");
    channel.delete(delete(""));
    assert!(!channel.exists(&name));
}

#[test]
fn s5_1_a_passive_declaration_counts_as_the_last_one_too() {
    let (other, channel) = (open(), open());
    other.declare(declare("s5_1_passive"));
    other.publish("", "s5_1_passive", "x");
    channel.declare(declare("s5_1_not_this"));
    channel.declare(passive("s5_1_passive"));
    assert_eq!(channel.pop("").text(), "x");
}

#[test]
fn s5_1_without_a_queue_declared_before_an_empty_name_is_404() {
    let methods: [Method<'_>; 6] = [
        bind("", "amq.direct", "k").into(),
        unbind("", "amq.direct", "k").into(),
        purge("").into(),
        delete("").into(),
        consume("", "tag").into(),
        basic::Get { queue: "", no_ack: true }.into(),
    ];
    let connection = connect();
    // A queue of another channel does not count.
    connection.channel().declare(exclusive(""));
    for method in methods {
        println!("{}", method.name());
        connection.channel().refuses(method, 404, "no previously declared queue");
    }
}

#[test]
fn s5_1_with_queue_and_key_empty_the_key_too_is_the_name_of_the_queue() {
    let channel = open();
    let name = channel.declare(exclusive("")).queue;
    channel.bind(bind("", "amq.direct", ""));
    channel.publish("amq.direct", &name, "by name");
    assert_eq!(channel.pop("").text(), "by name");
    channel.unbind(unbind("", "amq.direct", ""));
    channel.publish("amq.direct", &name, "lost");
    // With a name given the empty key is what it is.
    channel.bind(bind(&name, "amq.direct", ""));
    channel.publish("amq.direct", "", "empty key");
    assert_eq!(channel.drain(""), ["empty key"]);
}

#[test]
fn s5_1_a_passive_declaration_does_not_expand_an_empty_name() {
    let channel = open();
    channel.declare(exclusive(""));
    channel.refuses(passive(""), 404, "no queue '' in vhost '/'");
}

#[test]
fn s5_1_names_may_be_any_utf8_of_255_bytes() {
    let channel = open();
    let name = "s5_1_ü€🐇 '\"{x}".to_owned() + &"y".repeat(300);
    let name = &name[..255];
    assert_eq!(channel.declare(exclusive(name)), declared(name, 0, 0));
    channel.publish("", name, "x");
    let taken = channel.pop(name);
    assert_eq!((taken.text(), taken.routing_key.as_str()), ("x", name));
}

#[test]
fn s5_2_declare_ok_counts_ready_messages_and_consumers() {
    let channel = open();
    let name = "s5_2_counts";
    assert_eq!(channel.declare(declare(name)), declared(name, 0, 0));
    for _ in 0..3 {
        channel.publish("", name, "x");
    }
    channel.ready(name, 3);
    assert_eq!(channel.declare(declare(name)), declared(name, 3, 0));
    channel.take(name);
    channel.qos(1, false);
    channel.consume(consume(name, "one"));
    channel.delivery();
    assert_eq!(channel.declare(declare(name)), declared(name, 1, 1));
    channel.consume(consume(name, "two"));
    channel.delivery();
    assert_eq!(channel.declare(passive(name)), declared(name, 0, 2));
    channel.cancel("one");
    assert_eq!(channel.look(name), declared(name, 0, 1));
}

#[test]
fn s5_2_no_wait_is_not_answered_but_errors_are() {
    let channel = open();
    channel.send(queue::Declare { no_wait: true, ..declare("s5_2_no_wait") });
    channel.expect_quiet();
    // It counts as declared last.
    assert_eq!(channel.get(basic::Get { queue: "", no_ack: true }), None);
    channel.send(queue::Declare { no_wait: true, ..passive("s5_2_no_wait") });
    channel.expect_quiet();
    let text = "no queue 's5_2_no_wait_missing' in vhost '/'";
    channel.refuses(queue::Declare { no_wait: true, ..passive("s5_2_no_wait_missing") }, 404, text);
}

#[test]
fn s5_2_the_checks_come_in_their_order() {
    let connection = connect();
    let quorum = || ("x-queue-type", text("quorum"));
    let bad_dlx = || ("x-dead-letter-exchange", FieldValue::I32(5));
    let bad_expires = || ("x-expires", FieldValue::I32(0));
    let transient = |declare: queue::Declare<'static>| queue::Declare {
        durable: false,
        exclusive: true,
        auto_delete: true,
        ..declare
    };
    let nonsense = || ("x-queue-type", text("nonsense"));
    let rows: [(queue::Declare<'_>, u16, &str); 8] = [
        (
            transient(declare_args("amq.s5_2", [nonsense(), bad_dlx(), bad_expires()])),
            403,
            "queue name 'amq.s5_2' contains reserved prefix 'amq.*'",
        ),
        (
            transient(declare_args("s5_2_order", [nonsense(), bad_dlx(), bad_expires()])),
            406,
            "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 's5_2_order' in vhost '/'",
        ),
        (
            transient(declare_args("s5_2_order", [nonsense(), bad_expires()])),
            406,
            "invalid arg 'x-queue-type' for queue 's5_2_order' in vhost '/': \"unsupported queue type 'nonsense'\"",
        ),
        (
            transient(declare_args("s5_2_order", [("x-queue-type", FieldValue::I32(5)), bad_expires()])),
            406,
            "invalid arg 'x-queue-type' for queue 's5_2_order' in vhost '/': {unacceptable_type,signedint}",
        ),
        (
            transient(declare_args("s5_2_order", [quorum(), bad_expires()])),
            406,
            "invalid arg 'x-expires' for queue 's5_2_order' in vhost '/': {value_zero,0}",
        ),
        (
            transient(declare_args("s5_2_order", [quorum()])),
            406,
            "invalid property 'auto-delete' for queue 's5_2_order' in vhost '/'",
        ),
        (
            queue::Declare { auto_delete: false, ..transient(declare_args("s5_2_order", [quorum()])) },
            406,
            "invalid property 'exclusive-owner' for queue 's5_2_order' in vhost '/'",
        ),
        (
            queue::Declare { durable: false, ..declare_args("s5_2_order", [quorum()]) },
            406,
            "invalid property 'non-durable' for queue 's5_2_order' in vhost '/'",
        ),
    ];
    for (declare, code, text) in rows {
        connection.channel().refuses(declare, code, text);
    }
}

#[test]
fn s5_2_a_durable_exclusive_queue_may_be_redeclared_either_way() {
    let channel = open();
    for durable in [true, false, true] {
        channel.declare(queue::Declare { durable, ..exclusive("s5_2_durable_exclusive") });
    }
}

#[test]
fn s5_3_the_owner_must_say_exclusive_again_and_others_must_not() {
    let (owner, other) = (connect(), connect());
    owner.channel().declare(exclusive("s5_3_owned"));
    owner.channel().declare(exclusive("s5_3_owned"));
    let text = cut(locked("s5_3_owned"));
    other.channel().refuses(exclusive("s5_3_owned"), 405, &text);
    other.channel().refuses(declare("s5_3_owned"), 405, &text);
    owner.channel().refuses(declare("s5_3_owned"), 405, &text);
    owner.channel().declare(declare("s5_3_shared"));
    owner.channel().refuses(exclusive("s5_3_shared"), 405, &cut(locked("s5_3_shared")));
}

#[test]
fn s5_3_an_exclusive_queue_is_locked_for_every_operation_of_others() {
    let (owner, other) = (open(), connect());
    let queue = "s5_3_locked";
    owner.declare(exclusive(queue));
    owner.bind(bind(queue, "amq.direct", "s5_3"));
    let methods: [Method<'_>; 7] = [
        passive(queue).into(),
        bind(queue, "amq.direct", "k").into(),
        unbind(queue, "amq.direct", "s5_3").into(),
        purge(queue).into(),
        delete(queue).into(),
        consume(queue, "tag").into(),
        basic::Get { queue, no_ack: true }.into(),
    ];
    for method in methods {
        println!("{}", method.name());
        other.channel().refuses(method, 405, &cut(locked(queue)));
    }
    // Everybody may publish to it, and every channel of its own connection may use it.
    other.channel().publish("", queue, "x");
    assert_eq!(owner.connection.channel().pop(queue).text(), "x");
}

#[test]
fn s5_3_flags_are_compared_before_arguments() {
    let connection = connect();
    let name = "s5_3_flags";
    connection.channel().declare(declare(name));
    let different = queue::Declare {
        durable: false,
        auto_delete: true,
        ..declare_args(name, [("x-max-length", FieldValue::I32(5))])
    };
    let rows = [
        (queue::Declare { exclusive: true, ..different.clone() }, 405, cut(locked(name))),
        (
            different.clone(),
            406,
            format!(
                "inequivalent arg 'durable' for queue '{name}' in vhost '/': received 'false' but current is 'true'"
            ),
        ),
        (
            queue::Declare { durable: true, ..different.clone() },
            406,
            format!(
                "inequivalent arg 'auto_delete' for queue '{name}' in vhost '/': received 'true' but current is 'false'"
            ),
        ),
        (
            queue::Declare { durable: true, auto_delete: false, ..different },
            406,
            format!(
                "inequivalent arg 'x-max-length' for queue '{name}' in vhost '/': received the value '5' of type 'signedint' but current is none"
            ),
        ),
    ];
    for (declare, code, text) in rows {
        connection.channel().refuses(declare, code, &text);
    }
}

#[test]
fn s5_3_arguments_are_compared_and_shown() {
    let connection = connect();
    let name = "s5_3_arguments";
    connection.channel().declare(declare_args(
        name,
        [
            ("x-expires", FieldValue::I32(600_000)),
            ("x-dead-letter-exchange", text("dlx")),
            ("x-queue-mode", text("lazy")),
        ],
    ));
    let base = || {
        vec![
            ("x-expires", FieldValue::I32(600_000)),
            ("x-dead-letter-exchange", text("dlx")),
            ("x-queue-mode", text("lazy")),
        ]
    };
    let change = |at: usize, value: FieldValue| {
        let mut fields = base();
        fields[at].1 = value;
        fields
    };
    let mut without_dlx = base();
    without_dlx.remove(1);
    let mut with_more = base();
    with_more.push(("x-message-ttl", FieldValue::I64(7)));
    let mut with_bool = base();
    with_bool.push(("x-single-active-consumer", FieldValue::Bool(true)));
    let rows = [
        (change(0, FieldValue::I32(5000)), "x-expires", "'5000'", "'600000'"),
        (change(0, text("600000")), "x-expires", "'600000'", "'600000'"),
        (change(1, text("other")), "x-dead-letter-exchange", "'other'", "'dlx'"),
        (change(2, text("default")), "x-queue-mode", "'default'", "'lazy'"),
        (without_dlx, "x-dead-letter-exchange", "none", "the value 'dlx' of type 'longstr'"),
        (with_more, "x-message-ttl", "the value '7' of type 'long'", "none"),
        (with_bool, "x-single-active-consumer", "the value 'true' of type 'bool'", "none"),
    ];
    for (fields, argument, received, current) in rows {
        let declare = queue::Declare { arguments: FieldTable::from_iter(fields), ..declare(name) };
        let text = format!(
            "inequivalent arg '{argument}' for queue '{name}' in vhost '/': received {received} but current is {current}"
        );
        connection.channel().refuses(declare, 406, &text);
    }
}

#[test]
fn s5_3_what_does_not_matter_is_not_compared() {
    let channel = open();
    let name = "s5_3_equivalent";
    let fields = |expires, queue_type: Option<&str>, extra| {
        let mut arguments = table([("x-expires", expires), ("s5_3", extra)]);
        if let Some(queue_type) = queue_type {
            arguments.insert("x-queue-type", queue_type);
        }
        queue::Declare { arguments, ..declare(name) }
    };
    channel.declare(fields(FieldValue::I32(30_000), None, text("a")));
    // All integers are one type, no type is classic, unknown arguments pass.
    for expires in [FieldValue::I16(30_000), FieldValue::U16(30_000), FieldValue::U32(30_000), FieldValue::I64(30_000)]
    {
        channel.declare(fields(expires, Some("classic"), FieldValue::Void));
    }
}

#[test]
fn s5_3_a_queue_does_not_change_its_type() {
    if !crate::broker::is_default_version() {
        return;
    }
    let connection = connect();
    let as_type = |name, queue_type| declare_args(name, [("x-queue-type", text(queue_type))]);
    connection.channel().declare(as_type("s5_3_quorum", "quorum"));
    connection.channel().declare(as_type("s5_3_classic", "classic"));
    let text = |name: &str, received: &str, current: &str| {
        format!(
            "inequivalent arg 'x-queue-type' for queue '{name}' in vhost '/': received '{received}' but current is '{current}'"
        )
    };
    let channel = || connection.channel();
    channel().refuses(declare("s5_3_quorum"), 406, &text("s5_3_quorum", "classic", "quorum"));
    channel().refuses(as_type("s5_3_quorum", "classic"), 406, &text("s5_3_quorum", "classic", "quorum"));
    channel().refuses(as_type("s5_3_classic", "quorum"), 406, &text("s5_3_classic", "quorum", "classic"));
    channel().refuses(as_type("s5_3_classic", "nonsense"), 406, &text("s5_3_classic", "nonsense", "classic"));
    let number = declare_args("s5_3_classic", [("x-queue-type", FieldValue::I32(5))]);
    channel().refuses(number, 406, &text("s5_3_classic", "5", "classic"));
}

#[test]
fn s5_4_passive_declare_of_a_missing_queue_is_404_and_closes_the_channel() {
    open().refuses(passive("s5_4_missing"), 404, "no queue 's5_4_missing' in vhost '/'");
}

#[test]
fn s5_4_passive_declare_ignores_flags_and_arguments() {
    let channel = open();
    channel.declare(declare("s5_4_flags"));
    let strange = queue::Declare {
        passive: true,
        durable: false,
        auto_delete: true,
        arguments: table([("x-queue-type", text("nonsense")), ("x-expires", FieldValue::I32(-1))]),
        ..exclusive("s5_4_flags")
    };
    assert_eq!(channel.declare(strange), declared("s5_4_flags", 0, 0));
}

#[test]
fn s5_6_deleting_a_missing_queue_is_fine() {
    let channel = open();
    assert_eq!(channel.delete(delete("s5_6_missing")), 0);
    assert_eq!(channel.delete(queue::Delete { if_unused: true, if_empty: true, ..delete("s5_6_missing") }), 0);
}

#[test]
fn s5_6_delete_ok_counts_the_ready_messages() {
    let channel = open();
    let name = "s5_6_counts";
    channel.declare(declare(name));
    for _ in 0..3 {
        channel.publish("", name, "x");
    }
    channel.ready(name, 3);
    channel.take(name);
    assert_eq!(channel.delete(delete(name)), 2);
    assert!(!channel.exists(name));
}

#[test]
fn s5_6_if_empty_comes_before_if_unused_and_both_leave_the_queue_alone() {
    let connection = connect();
    let channel = connection.channel();
    let name = "s5_6_conditions";
    channel.declare(declare(name));
    channel.qos(1, false);
    channel.consume(consume(name, "tag"));
    for body in ["a", "b"] {
        channel.publish("", name, body);
    }
    let first = channel.delivery();
    channel.ready(name, 1);
    let both = queue::Delete { if_unused: true, if_empty: true, ..delete(name) };
    connection.channel().refuses(both.clone(), 406, "queue 's5_6_conditions' in vhost '/' not empty");
    channel.ack(first.tag);
    channel.delivery();
    // Unacked messages do not count: it is empty now.
    connection.channel().refuses(both, 406, "queue 's5_6_conditions' in vhost '/' in use");
    channel.cancel("tag");
    assert_eq!(channel.delete(queue::Delete { if_unused: true, if_empty: true, ..delete(name) }), 0);
}

#[test]
fn s5_6_quorum_queues_do_not_know_the_conditions() {
    let name = "s5_6_quorum";
    open().declare(declare_args(name, [("x-queue-type", text("quorum"))]));
    for (flag, condition) in [
        ("if-unused", queue::Delete { if_unused: true, ..delete(name) }),
        ("if-empty", queue::Delete { if_empty: true, ..delete(name) }),
    ] {
        let text = format!(
            "cannot delete queue '{name}' in vhost '/'. queue.delete operations with {flag} flag set are not supported by quorum queues"
        );
        open().refuses_hard(condition, 540, &text);
    }
}

#[test]
fn s5_6_an_ack_of_a_message_of_a_deleted_queue_is_no_error() {
    let channel = open();
    channel.declare(declare("s5_6_acked"));
    channel.publish("", "s5_6_acked", "a");
    let taken = channel.take("s5_6_acked");
    channel.delete(delete("s5_6_acked"));
    channel.ack(taken.tag);
    channel.expect_quiet();
}

#[test]
fn s5_6_bindings_go_with_the_queue_and_do_not_come_back() {
    let channel = open();
    channel.declare_exchange(exchange("s5_6_x", "fanout"));
    channel.declare(declare("s5_6_bound"));
    channel.bind(bind("s5_6_bound", "s5_6_x", ""));
    channel.delete(delete("s5_6_bound"));
    channel.declare(declare("s5_6_bound"));
    channel.publish("s5_6_x", "", "lost");
    channel.publish("", "s5_6_bound", "found");
    assert_eq!(channel.pop("s5_6_bound").text(), "found");
}

#[test]
fn s5_6_no_wait_is_not_answered() {
    let channel = open();
    channel.declare(declare("s5_6_no_wait"));
    channel.send(queue::Delete { no_wait: true, ..delete("s5_6_no_wait") });
    channel.expect_quiet();
    assert!(!channel.exists("s5_6_no_wait"));
}

#[test]
fn s5_7_purge_takes_ready_messages_only() {
    let channel = open();
    let name = "s5_7_purge";
    channel.declare(declare(name));
    for body in ["a", "b", "c"] {
        channel.publish("", name, body);
    }
    channel.ready(name, 3);
    let unacked = channel.take(name);
    assert_eq!(channel.purge(name), 2);
    assert_eq!(channel.purge(name), 0);
    channel.nack(unacked.tag, false, true);
    assert_eq!(channel.pop(name).text(), "a");
}

#[test]
fn s5_7_purge_of_a_missing_queue_is_404() {
    open().refuses(purge("s5_7_missing"), 404, "no queue 's5_7_missing' in vhost '/'");
}

#[test]
fn s5_7_no_wait_is_not_answered() {
    let channel = open();
    channel.declare(declare("s5_7_no_wait"));
    channel.publish("", "s5_7_no_wait", "x");
    channel.ready("s5_7_no_wait", 1);
    channel.send(queue::Purge { no_wait: true, ..purge("s5_7_no_wait") });
    channel.expect_quiet();
    assert_eq!(channel.look("s5_7_no_wait").ready, 0);
}

#[test]
fn s5_7_purged_and_deleted_messages_are_not_dead_lettered() {
    let channel = open();
    channel.declare(declare("s5_7_dead"));
    let arguments = [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text("s5_7_dead"))];
    channel.declare(declare_args("s5_7_alive", arguments));
    channel.publish("", "s5_7_alive", "purged");
    channel.ready("s5_7_alive", 1);
    channel.purge("s5_7_alive");
    channel.publish("", "s5_7_alive", "deleted");
    channel.ready("s5_7_alive", 1);
    channel.delete(delete("s5_7_alive"));
    channel.publish("", "s5_7_dead", "control");
    assert_eq!(channel.pop("s5_7_dead").text(), "control");
}

#[test]
fn s5_8_an_exclusive_queue_outlives_its_channel_but_not_its_connection() {
    let (owner, other) = (connect(), open());
    let channel = owner.channel();
    channel.declare(exclusive("s5_8_exclusive"));
    channel.close();
    assert!(owner.channel().exists("s5_8_exclusive"));
    owner.close();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while other.probe(passive("s5_8_exclusive")) != Some(404) {
        assert!(!other.connection.is_leveret() && std::time::Instant::now() < deadline, "it is still there");
    }
}

#[test]
fn s5_8_an_auto_delete_queue_goes_with_its_last_consumer() {
    let (channel, other) = (open(), open());
    let name = "s5_8_auto_delete";
    let auto_delete = || queue::Declare { auto_delete: true, ..declare(name) };
    // Not before it had one; basic.get does not count.
    channel.declare(auto_delete());
    assert_eq!(channel.get(basic::Get { queue: name, no_ack: true }), None);
    other.connection.channel().close();
    assert!(channel.exists(name));

    channel.consume(consume(name, "one"));
    other.consume(consume(name, "two"));
    channel.cancel("one");
    assert!(channel.exists(name));
    other.cancel("two");
    assert!(!channel.exists(name), "after the last cancel");

    channel.declare(auto_delete());
    other.consume(consume(name, "one"));
    other.close();
    assert!(!channel.exists(name), "after the close of the consumer's channel");

    other.open();
    channel.declare(auto_delete());
    other.consume(consume(name, "one"));
    other.connection.close();
    assert!(!channel.exists(name), "after the close of the consumer's connection");
}

#[test]
fn s5_8_an_auto_delete_queue_goes_when_its_consumers_channel_fails() {
    let (channel, other) = (open(), open());
    channel.declare(queue::Declare { auto_delete: true, ..declare("s5_8_fails") });
    other.consume(consume("s5_8_fails", "tag"));
    other.refuses(basic::Ack { delivery_tag: 9, multiple: false }, 406, "unknown delivery tag 9");
    assert!(!channel.exists("s5_8_fails"));
}
