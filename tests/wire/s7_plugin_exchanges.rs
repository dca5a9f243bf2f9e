//! The exchange types of RabbitMQ's plugins that keep messages themselves, and topic permissions (§7, §14.2).
//!
//! What needs exact times or a look inside is tested in `model/broker/delayed/tests.rs` with virtual time; here
//! are the bytes, real time, and `kill -9`. A RabbitMQ under test need not have the plugins: only ours is asked.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use leveret::auth::TopicPermissions;
use leveret::model::record::{Batch, Op};
use leveret::storage::sled::SledStore;
use leveret::storage::{Store as _, StoreOptions};
use leveret_protocol::{FieldValue, Properties, basic, exchange};

use crate::broker::{Broker, is_ours};
use crate::client::{
    Channel, Confirm, Connection, Login, bind, connect, declare, exchange, exchange_bind, exchange_delete, headers,
    persistent, publish, table, text,
};

fn delaying<'a>(name: &'a str, type_: &str) -> exchange::Declare<'a> {
    exchange::Declare { arguments: table([("x-delayed-type", text(type_))]), ..exchange(name, "x-delayed-message") }
}

fn delayed(ms: i32) -> Properties {
    headers([("x-delay", FieldValue::I32(ms))])
}

/// A delaying exchange of type direct, and a queue of the same name bound to it with the key `k`.
fn set_up(channel: &Channel, name: &str) {
    channel.declare_exchange(delaying(name, "direct"));
    channel.declare(declare(name));
    channel.bind(bind(name, name, "k"));
}

#[test]
fn s7_delayed_type_is_checked_at_declare() {
    if !is_ours() {
        return;
    }
    let connection = connect();
    let refuses = |declare: exchange::Declare<'_>, explanation: &str| {
        connection.channel().refuses(declare, 406, explanation);
    };
    let missing = "Invalid argument, 'x-delayed-type' must be an existing exchange type";
    refuses(exchange("s7_type", "x-delayed-message"), missing);
    let itself = "Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'";
    refuses(delaying("s7_type", "x-delayed-message"), itself);
    refuses(delaying("s7_type", "paper"), "unknown exchange type 'paper'");
}

#[test]
fn s4_2_of_a_delayed_exchange_only_the_alternate_is_compared() {
    if !is_ours() {
        return;
    }
    let connection = connect();
    let channel = connection.channel();
    channel.declare_exchange(delaying("s7_again", "direct"));
    channel.declare_exchange(delaying("s7_again", "topic"));
    let mut declare = delaying("s7_again", "direct");
    declare.arguments.insert("alternate-exchange", text("other"));
    let explanation = "inequivalent arg 'alternate-exchange' for exchange 's7_again' in vhost '/': \
                       received the value 'other' of type 'longstr' but current is none";
    channel.refuses(declare, 406, explanation);
    connection.channel().delete_exchange(exchange_delete("s7_again"));
}

#[test]
fn s7_a_delayed_message_comes_when_its_time_has_passed_with_a_negative_header() {
    if !is_ours() {
        return;
    }
    let channel = connect().channel();
    set_up(&channel, "s7_delay");
    let published = Instant::now();
    channel.publish_properties("s7_delay", "k", &delayed(300), "later");
    channel.publish_properties("s7_delay", "k", &delayed(-300), "spent");
    channel.publish("s7_delay", "k", "at once");
    assert_eq!(channel.drain("s7_delay"), ["spent", "at once"]);
    let delivery = channel.take("s7_delay");
    assert!(published.elapsed() >= Duration::from_millis(299), "after {:?}", published.elapsed());
    assert_eq!(
        (delivery.text(), delivery.exchange.as_str(), delivery.routing_key.as_str()),
        ("later", "s7_delay", "k")
    );
    assert_eq!(delivery.header("x-delay"), Some(&FieldValue::I32(-300)));
    assert!(!delivery.redelivered);
}

#[test]
fn s7_delayed_messages_come_in_the_order_of_their_due_times() {
    if !is_ours() {
        return;
    }
    let channel = connect().channel();
    set_up(&channel, "s7_order");
    channel.consume(basic::Consume { no_ack: true, ..crate::client::consume("s7_order", "c") });
    for (ms, body) in [(400, "3"), (200, "1"), (300, "2"), (200, "1 too")] {
        channel.publish_properties("s7_order", "k", &delayed(ms), body);
    }
    assert_eq!(channel.bodies(4), ["1", "1 too", "2", "3"]);
}

#[test]
fn s7_a_delayed_message_is_confirmed_at_once_and_returned_if_mandatory() {
    if !is_ours() {
        return;
    }
    let channel = connect().channel();
    set_up(&channel, "s7_mandatory");
    channel.confirm_select();
    channel.publish_properties("s7_mandatory", "k", &delayed(600_000), "m");
    assert_eq!(channel.confirm(), Confirm::Ack { tag: 1, multiple: false });
    let mandatory = basic::Publish { mandatory: true, ..publish("s7_mandatory", "k") };
    channel.publish_with(mandatory, &delayed(600_000), b"m");
    assert_eq!(channel.returned().text(), "m");
    assert_eq!(channel.confirm(), Confirm::Ack { tag: 2, multiple: false });
    channel.delete_exchange(exchange_delete("s7_mandatory"));
}

#[test]
fn s7_history_length_is_checked_at_declare() {
    if !is_ours() {
        return;
    }
    for (value, shown) in [(FieldValue::I32(0), "0"), (text("many"), "<<\"many\">>")] {
        let arguments = table([("x-recent-history-length", value)]);
        let declare = exchange::Declare { arguments, ..exchange("s7_length", "x-recent-history") };
        let explanation = format!("Invalid argument {shown}, 'x-recent-history-length' must be a positive integer");
        connect().channel().refuses(declare, 406, &explanation);
    }
}

#[test]
fn s7_a_queue_bound_to_a_recent_history_gets_the_last_messages() {
    if !is_ours() {
        return;
    }
    let channel = connect().channel();
    let arguments = table([("x-recent-history-length", FieldValue::I32(2))]);
    channel.declare_exchange(exchange::Declare { arguments, ..exchange("s7_history", "x-recent-history") });
    channel.publish("s7_history", "a", "1");
    channel.publish("s7_history", "b", "2");
    let not_kept = headers([("x-recent-history-no-store", FieldValue::Bool(true))]);
    channel.publish_properties("s7_history", "c", &not_kept, "3");
    channel.publish("s7_history", "d", "4");
    channel.declare(declare("s7_history"));
    channel.bind(bind("s7_history", "s7_history", ""));
    let delivery = channel.take("s7_history");
    assert_eq!((delivery.text(), delivery.exchange.as_str(), delivery.routing_key.as_str()), ("2", "s7_history", "b"));
    assert_eq!(channel.drain("s7_history"), ["4"]);
    channel.declare_exchange(exchange("s7_history_to", "direct"));
    channel.declare(declare("s7_history_to"));
    channel.bind(bind("s7_history_to", "s7_history_to", "d"));
    channel.bind_exchange(exchange_bind("s7_history_to", "s7_history", ""));
    assert_eq!(channel.drain("s7_history_to"), ["4"]);
}

fn start(folder: &Path) -> (Broker, Channel) {
    let broker = Broker::in_folder(folder);
    let channel = Connection::open(broker.address, &Login::default()).channel();
    (broker, channel)
}

/// All that was done before is on disk: what was taken, too, which is not confirmed.
fn flush(channel: &Channel) {
    channel.declare(declare("flush"));
    channel.confirm_select();
    channel.publish_properties("", "flush", &persistent(), "m");
    channel.wait_for_confirms(1);
}

/// Persistent messages that are delayed, some of which are due while the broker is down.
#[test]
fn s16_delayed_messages_survive_kill_9_with_their_due_times() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (broker, channel) = start(folder.path());
    set_up(&channel, "d");
    channel.confirm_select();
    let later = Duration::from_secs(4);
    let persistent = |ms| Properties { headers: delayed(ms).headers, ..persistent() };
    let published = Instant::now();
    channel.publish_properties("d", "k", &persistent(200), "passed on before");
    channel.publish_properties("d", "k", &persistent(4000), "due after");
    channel.publish_properties("d", "k", &persistent(1000), "due while it is down");
    channel.publish_properties("d", "k", &delayed(1000), "transient");
    channel.wait_for_confirms(4);
    assert_eq!(channel.take("d").text(), "passed on before");
    assert_eq!(broker.stop("KILL").code, None);
    sleep(Duration::from_secs(1).saturating_sub(published.elapsed()));

    let (broker, channel) = start(folder.path());
    assert_eq!(channel.pop("d").text(), "passed on before");
    assert_eq!(channel.pop("d").text(), "due while it is down");
    flush(&channel);
    assert_eq!(broker.stop("KILL").code, None);

    let (broker, channel) = start(folder.path());
    let delivery = channel.pop("d");
    assert!(published.elapsed() >= later, "after {:?}", published.elapsed());
    assert_eq!((delivery.text(), delivery.header("x-delay")), ("due after", Some(&FieldValue::I32(-4000))));
    assert_eq!(broker.stop("TERM").code, Some(0));

    let (_broker, channel) = start(folder.path());
    assert_eq!(channel.drain("d"), [""; 0], "each came once");
    channel.publish("d", "k", "bindings are there");
    assert_eq!(channel.pop("d").text(), "bindings are there");
}

#[test]
fn s16_kill_9_while_delayed_messages_go_on_neither_loses_nor_doubles() {
    const MESSAGES: u64 = 3000;
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut broker, mut channel) = start(folder.path());
    set_up(&channel, "d");
    channel.confirm_select();
    let due = Instant::now() + Duration::from_millis(1500);
    for number in 1..=MESSAGES {
        let ms = due.saturating_duration_since(Instant::now()).as_millis().max(1) as i32;
        let properties = Properties { headers: delayed(ms).headers, ..persistent() };
        channel.publish_properties("d", "k", &properties, &number.to_string());
    }
    channel.wait_for_confirms(MESSAGES);
    for _ in 0..2 {
        wait_for_the_first(&channel, "d");
        assert_eq!(broker.stop("KILL").code, None);
        (broker, channel) = start(folder.path());
    }
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < MESSAGES as usize {
        let delivery = channel.pop("d");
        assert!(seen.insert(delivery.text().to_owned()), "{} came twice", delivery.text());
    }
    sleep(Duration::from_millis(300));
    assert_eq!(channel.drain("d"), [""; 0]);
}

/// Until what was delayed has begun to come.
fn wait_for_the_first(channel: &Channel, queue: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while channel.look(queue).ready == 0 {
        assert!(Instant::now() < deadline, "nothing came to {queue}");
        sleep(Duration::from_millis(1));
    }
}

/// Deleting a delaying exchange takes its messages out of the store, and a new one of its name has none of them.
#[test]
fn s7_a_deleted_exchange_comes_back_empty_after_kill_9() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (broker, channel) = start(folder.path());
    set_up(&channel, "d");
    channel.confirm_select();
    channel.publish_properties("d", "k", &Properties { headers: delayed(1).headers, ..persistent() }, "kept");
    channel.publish_properties("d", "k", &Properties { headers: delayed(2000).headers, ..persistent() }, "dropped");
    channel.wait_for_confirms(2);
    wait_for_the_first(&channel, "d");
    channel.delete_exchange(exchange_delete("d"));
    set_up(&channel, "d");
    channel.publish_properties("d", "k", &Properties { headers: delayed(500).headers, ..persistent() }, "new");
    assert_eq!(channel.confirm(), Confirm::Ack { tag: 3, multiple: false });
    assert_eq!(broker.stop("KILL").code, None);
    let (_broker, channel) = start(folder.path());
    assert_eq!(channel.pop("d").text(), "kept");
    assert_eq!(channel.pop("d").text(), "new");
    sleep(Duration::from_millis(2100));
    assert_eq!(channel.drain("d"), [""; 0]);
}

/// As an operator's tool would have put it there: nothing sets topic permissions over AMQP.
fn store_topic_permissions(folder: &Path, permissions: &TopicPermissions) {
    let mut store = SledStore::open(folder, StoreOptions::default()).unwrap();
    store.recover(&mut |_| {}).unwrap();
    let put = Op::Put { key: TopicPermissions::key("guest", "/"), value: permissions.encode() };
    store.commit(&[Batch { ops: vec![put], ..Batch::default() }]).unwrap();
    store.close().unwrap();
}

#[test]
fn s14_2_stored_topic_permissions_hold_for_publishes_and_bindings() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (broker, channel) = start(folder.path());
    channel.declare(declare("q"));
    assert_eq!(broker.stop("TERM").code, Some(0));
    let mut permissions = TopicPermissions::new("guest".into(), "/".into());
    permissions.set("amq.topic".into(), r"^{username}\.", "^[^#]*$").unwrap();
    store_topic_permissions(folder.path(), &permissions);

    let (_broker, channel) = start(folder.path());
    channel.bind(bind("q", "amq.topic", "*.a"));
    channel.publish("amq.topic", "guest.a", "m");
    assert_eq!(channel.pop("q").text(), "m");
    let text = "write access to topic 'other.a' in exchange 'amq.topic' in vhost '/' refused for user 'guest'";
    channel.refuses_publish(publish("amq.topic", "other.a"), &Properties::default(), 403, text);
    channel.open();
    let text = "read access to topic '#' in exchange 'amq.topic' in vhost '/' refused for user 'guest'";
    channel.refuses(bind("q", "amq.topic", "#"), 403, text);
}
