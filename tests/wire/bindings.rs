//! Bindings of queues and of exchanges (§6).

use leveret_protocol::{FieldTable, FieldValue, Method, exchange, queue};

use crate::client::{
    bind, connect, declare, delete, exchange, exchange_bind, exchange_delete, exchange_unbind, open, table, text,
    unbind,
};

#[test]
fn s6_the_default_exchange_is_not_for_bindings() {
    let connection = connect();
    let channel = connection.channel();
    channel.declare(declare("s6_default"));
    channel.declare_exchange(exchange("s6_default_x", "fanout"));
    let methods: [Method<'_>; 9] = [
        bind("s6_default", "", "k").into(),
        unbind("s6_default", "", "s6_default").into(),
        bind("s6_default", "\r\n", "k").into(),
        exchange_bind("s6_default_x", "", "k").into(),
        exchange_unbind("s6_default_x", "", "k").into(),
        exchange_bind("", "s6_default_x", "k").into(),
        exchange_unbind("", "s6_default_x", "k").into(),
        // Before a look whether the other end exists.
        bind("s6_missing", "", "k").into(),
        exchange_bind("s6_missing", "", "k").into(),
    ];
    for method in methods {
        connection.channel().refuses(method, 403, "operation not permitted on the default exchange");
    }
}

#[test]
fn s6_an_end_that_is_missing_is_404_the_source_first() {
    let connection = connect();
    connection.channel().declare(declare("s6_there"));
    let rows: [(Method<'_>, &str); 6] = [
        (bind("s6_there", "s6_no_x", "k").into(), "no exchange 's6_no_x' in vhost '/'"),
        (bind("s6_no_q", "s6_no_x", "k").into(), "no exchange 's6_no_x' in vhost '/'"),
        (bind("s6_no_q", "amq.direct", "k").into(), "no queue 's6_no_q' in vhost '/'"),
        (exchange_bind("amq.direct", "s6_no_x", "k").into(), "no exchange 's6_no_x' in vhost '/'"),
        (exchange_bind("s6_no_y", "s6_no_x", "k").into(), "no exchange 's6_no_x' in vhost '/'"),
        (exchange_bind("s6_no_y", "amq.direct", "k").into(), "no exchange 's6_no_y' in vhost '/'"),
    ];
    for (method, text) in rows {
        println!("{method:?}");
        connection.channel().refuses(method, 404, text);
    }
}

#[test]
fn s6_unbinding_what_is_not_there_is_fine() {
    let channel = open();
    channel.declare(declare("s6_unbind"));
    for (queue, exchange) in
        [("s6_unbind", "amq.direct"), ("s6_unbind", "s6_no_x"), ("s6_no_q", "amq.direct"), ("s6_no_q", "s6_no_x")]
    {
        channel.unbind(unbind(queue, exchange, "k"));
    }
    for (destination, source) in [("amq.fanout", "amq.direct"), ("s6_no_x", "amq.direct"), ("amq.direct", "s6_no_x")] {
        channel.unbind_exchange(exchange_unbind(destination, source, "k"));
    }
}

#[test]
fn s6_reply_queues_cannot_be_bound() {
    let connection = connect();
    let bare = "amq.rabbitmq.reply-to";
    let of_somebody = "amq.rabbitmq.reply-to.whoever";
    let not_found = |name| format!("no queue '{name}' in vhost '/'");
    connection.channel().refuses(bind(bare, "amq.direct", "k"), 404, &not_found(bare));
    connection.channel().unbind(unbind(bare, "amq.direct", "k"));
    if connection.version() < (4, 3) {
        connection.channel().refuses(bind(of_somebody, "amq.direct", "k"), 404, &not_found(of_somebody));
        connection.channel().unbind(unbind(of_somebody, "amq.direct", "k"));
    } else {
        let text = "cannot bind or unbind to a volatile (direct reply-to) queue";
        connection.channel().refuses(bind(of_somebody, "amq.direct", "k"), 403, text);
        connection.channel().refuses(unbind(of_somebody, "", "k"), 403, text);
    }
}

#[test]
fn s6_binding_twice_is_one_binding() {
    let channel = open();
    let name = "s6_twice";
    channel.declare(declare(name));
    for _ in 0..3 {
        channel.bind(bind(name, "amq.direct", name));
    }
    channel.publish("amq.direct", name, "once");
    assert_eq!(channel.pop(name).text(), "once");
    assert_eq!(channel.look(name).ready, 0);
    channel.unbind(unbind(name, "amq.direct", name));
    channel.publish("amq.direct", name, "lost");
    channel.publish("", name, "control");
    assert_eq!(channel.pop(name).text(), "control");
}

/// Key and arguments, with their types, belong to the identity of a binding.
#[test]
fn s6_bindings_with_other_keys_or_arguments_coexist() {
    let channel = open();
    let name = "s6_coexist";
    channel.declare(declare(name));
    channel.declare_exchange(exchange("s6_coexist_x", "fanout"));
    let with = |key, arguments: FieldTable| queue::Bind { arguments, ..bind(name, "s6_coexist_x", key) };
    let without = |key, arguments: FieldTable| queue::Unbind { arguments, ..unbind(name, "s6_coexist_x", key) };
    let number = |value: FieldValue| table([("n", value)]);
    channel.bind(with("a", table([])));
    channel.bind(with("b", table([])));
    channel.bind(with("a", number(FieldValue::I32(1))));
    channel.bind(with("a", number(text("1"))));
    // The order of arguments does not matter.
    channel.bind(with("a", table([("x", FieldValue::Void), ("y", FieldValue::Bool(true))])));
    let unbinds = [
        without("a", table([])),
        without("b", table([])),
        without("a", number(FieldValue::I32(1))),
        without("a", number(text("1"))),
        without("a", table([("y", FieldValue::Bool(true)), ("x", FieldValue::Void)])),
    ];
    for (gone, unbind) in unbinds.into_iter().enumerate() {
        channel.publish("s6_coexist_x", "", "x");
        assert_eq!(channel.pop(name).text(), "x", "{gone} bindings are gone");
        assert_eq!(channel.look(name).ready, 0, "one copy per queue");
        channel.unbind(unbind);
    }
    channel.publish("s6_coexist_x", "", "lost");
    channel.publish("", name, "control");
    assert_eq!(channel.pop(name).text(), "control");
}

#[test]
fn s6_unbind_must_repeat_the_arguments() {
    let channel = open();
    let name = "s6_repeat";
    channel.declare(declare(name));
    let arguments = || table([("x-match", text("all")), ("s6", FieldValue::I32(1))]);
    channel.bind(queue::Bind { arguments: arguments(), ..bind(name, "amq.headers", "") });
    channel.unbind(unbind(name, "amq.headers", ""));
    let headers = crate::client::headers([("s6", FieldValue::I32(1))]);
    channel.publish_properties("amq.headers", "", &headers, "still bound");
    assert_eq!(channel.pop(name).text(), "still bound");
    channel.unbind(queue::Unbind { arguments: arguments(), ..unbind(name, "amq.headers", "") });
    channel.publish_properties("amq.headers", "", &headers, "lost");
    channel.publish("", name, "control");
    assert_eq!(channel.pop(name).text(), "control");
}

#[test]
fn s6_no_wait_is_not_answered_but_errors_are() {
    let channel = open();
    let name = "s6_no_wait";
    channel.declare(declare(name));
    channel.declare_exchange(exchange("s6_no_wait_x", "fanout"));
    channel.send(queue::Bind { no_wait: true, ..bind(name, "s6_no_wait_x", "") });
    channel.send(exchange::Bind { no_wait: true, ..exchange_bind("s6_no_wait_x", "amq.direct", name) });
    channel.publish("amq.direct", name, "through both");
    channel.expect_quiet();
    assert_eq!(channel.pop(name).text(), "through both");
    channel.send(exchange::Unbind { no_wait: true, ..exchange_unbind("s6_no_wait_x", "amq.direct", name) });
    channel.publish("amq.direct", name, "lost");
    channel.expect_quiet();
    assert_eq!(channel.look(name).ready, 0);
    let missing = queue::Bind { no_wait: true, ..bind(name, "s6_no_x", "") };
    channel.refuses(missing, 404, "no exchange 's6_no_x' in vhost '/'");
}

#[test]
fn s6_a_new_binding_counts_at_once_on_every_connection() {
    let (one, two) = (open(), open());
    let name = "s6_at_once";
    one.declare(declare(name));
    two.confirm_select();
    for round in 0..20 {
        one.bind(bind(name, "amq.direct", name));
        two.publish("amq.direct", name, "in");
        one.unbind(unbind(name, "amq.direct", name));
        two.confirm();
        two.publish("amq.direct", name, "out");
        two.confirm();
        // The first publish may come after the unbind, the second cannot come before it.
        let bodies = one.drain(name);
        assert!(bodies.iter().all(|body| body == "in"), "round {round}: {bodies:?}");
    }
    one.bind(bind(name, "amq.direct", name));
    two.publish("amq.direct", name, "in");
    assert_eq!(one.pop(name).text(), "in");
}

#[test]
fn s6_exchanges_can_be_bound_to_themselves_and_in_circles() {
    let channel = open();
    for name in ["s6_circle_1", "s6_circle_2"] {
        channel.declare_exchange(exchange(name, "fanout"));
    }
    channel.bind_exchange(exchange_bind("s6_circle_1", "s6_circle_1", ""));
    channel.bind_exchange(exchange_bind("s6_circle_2", "s6_circle_1", ""));
    channel.bind_exchange(exchange_bind("s6_circle_1", "s6_circle_2", ""));
    channel.declare(declare("s6_circle_q"));
    channel.bind(bind("s6_circle_q", "s6_circle_1", ""));
    channel.bind(bind("s6_circle_q", "s6_circle_2", ""));
    channel.publish("s6_circle_2", "", "x");
    assert_eq!(channel.pop("s6_circle_q").text(), "x");
    assert_eq!(channel.look("s6_circle_q").ready, 0);
    channel.delete_exchange(exchange_delete("s6_circle_1"));
    channel.publish("s6_circle_2", "", "y");
    assert_eq!(channel.pop("s6_circle_q").text(), "y");
}

#[test]
fn s6_a_binding_goes_with_its_queue() {
    let channel = open();
    let name = "s6_goes";
    channel.declare(declare(name));
    channel.declare_exchange(exchange("s6_goes_x", "fanout"));
    channel.bind(bind(name, "s6_goes_x", ""));
    let if_unused = || exchange::Delete { if_unused: true, ..exchange_delete("s6_goes_x") };
    assert_eq!(channel.probe(if_unused()), Some(406));
    channel.delete(delete(name));
    channel.delete_exchange(if_unused());
}
