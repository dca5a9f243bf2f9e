//! What survives a clean stop, and what survives `kill -9` (§16).

use std::cell::RefCell;
use std::time::{Duration, Instant};

use leveret_protocol::{FieldValue, MethodId, Properties, basic, exchange, queue};

use crate::broker::{Broker, is_ours};
use crate::client::{
    Channel, Connection, Declared, Login, bind, consume, declare, declare_args, delete, exchange, exchange_bind,
    expiring, headers, persistent, publish, table, text, unbind,
};

/// A broker with a folder, which outlives the broker.
struct Node {
    folder: tempfile::TempDir,
    broker: Option<Broker>,
    connections: RefCell<Vec<Connection>>,
}

impl Node {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let broker = Some(Broker::in_folder(folder.path()));
        Self { folder, broker, connections: RefCell::default() }
    }

    fn channel(&self) -> Channel {
        let address = self.broker.as_ref().expect("it runs").address;
        let connection = Connection::open(address, &Login::default());
        self.connections.borrow_mut().push(connection.clone());
        connection.channel()
    }

    /// A channel that has confirms.
    fn confirming(&self) -> Channel {
        let channel = self.channel();
        channel.confirm_select();
        channel
    }

    /// A stop waits a moment for clients to say goodbye, so they do.
    fn end(&mut self, signal: &str) {
        let broker = self.broker.take().expect("it runs");
        broker.signal(signal);
        for connection in self.connections.get_mut().drain(..) {
            if signal != "KILL" {
                let text = "broker forced connection closure with reason 'shutdown'";
                connection.expect_close(320, text, MethodId::NONE);
            }
        }
        let exit = broker.wait();
        assert_eq!(exit.code, if signal == "KILL" { None } else { Some(0) }, "{exit:?}");
    }

    fn start_again(&mut self) {
        self.broker = Some(Broker::in_folder(self.folder.path()));
    }

    fn restart(&mut self, signal: &str) {
        self.end(signal);
        self.start_again();
    }
}

fn transient() -> Properties {
    Properties::default()
}

/// Bodies and redelivered flags of what is in a queue; all of it stays unacked.
fn contents(channel: &Channel, queue: &str) -> Vec<(String, bool)> {
    let get = || channel.get(basic::Get { queue, no_ack: false });
    std::iter::from_fn(get).map(|delivery| (delivery.text().to_owned(), delivery.redelivered)).collect()
}

fn row(body: &str, redelivered: bool) -> (String, bool) {
    (body.to_owned(), redelivered)
}

#[test]
fn s16_definitions_survive_if_all_that_they_need_is_durable() {
    if !is_ours() {
        return;
    }
    let mut node = Node::start();
    let channel = node.channel();
    for signal in ["TERM", "INT", "KILL"] {
        let channel = if signal == "TERM" { channel.clone() } else { node.channel() };
        let fleeting_exchange = exchange::Declare { durable: false, ..exchange("fleeting x", "fanout") };
        let fleeting_queue = queue::Declare { durable: false, ..declare("fleeting q") };
        channel.declare_exchange(exchange("lasting x", "topic"));
        channel.declare_exchange(fleeting_exchange);
        channel.declare(declare_args("lasting q", [("x-max-length", FieldValue::I32(100))]));
        channel.declare(queue::Declare { auto_delete: true, ..declare("auto q") });
        channel.declare(fleeting_queue);
        channel.declare(queue::Declare { exclusive: true, ..declare("exclusive q") });
        for (queue, exchange) in [
            ("lasting q", "lasting x"),
            ("fleeting q", "lasting x"),
            ("lasting q", "fleeting x"),
            ("exclusive q", "lasting x"),
        ] {
            channel.bind(bind(queue, exchange, "key.#"));
        }
        channel.bind(bind("lasting q", "lasting x", "gone"));
        channel.unbind(unbind("lasting q", "lasting x", "gone"));
        // What has been confirmed after all that is on disk after it.
        channel.confirm_select();
        channel.publish_properties("", "lasting q", &persistent(), "witness");
        channel.confirm();

        node.restart(signal);
        let channel = node.channel();
        assert!(channel.exchange_exists("lasting x"), "{signal}");
        assert!(!channel.exchange_exists("fleeting x"), "{signal}");
        for (queue, there) in [("lasting q", true), ("auto q", true), ("fleeting q", false), ("exclusive q", false)] {
            assert_eq!(channel.exists(queue), there, "{queue} after {signal}");
        }
        assert_eq!(channel.pop("lasting q").text(), "witness", "{signal}");
        // The arguments, flags and bindings are what they were.
        channel.declare(declare_args("lasting q", [("x-max-length", FieldValue::I32(100))]));
        channel.declare_exchange(exchange("lasting x", "topic"));
        channel.publish("lasting x", "key.of.mine", "routed");
        assert_eq!(channel.pop("lasting q").text(), "routed", "{signal}");
        let mandatory = basic::Publish { mandatory: true, ..publish("lasting x", "gone") };
        channel.publish_with(mandatory, &transient(), b"");
        channel.returned();
        channel.close();
    }
}

#[test]
fn s16_a_clean_stop_keeps_persistent_messages_in_order_with_their_flags() {
    if !is_ours() {
        return;
    }
    let mut node = Node::start();
    let channel = node.confirming();
    channel.declare(declare("q"));
    let sent = [("a", true), ("b", false), ("c", true), ("d", true), ("e", false), ("f", true)];
    for (body, lasting) in sent {
        channel.publish_properties("", "q", &if lasting { persistent() } else { transient() }, body);
    }
    channel.wait_for_confirms(sent.len() as u64);
    // a: taken and given back; b, c: unacked when the broker stops; d and so on: untouched.
    let first = channel.take("q");
    channel.nack(first.tag, false, true);
    for body in ["a", "b", "c"] {
        assert_eq!(channel.take("q").text(), body);
    }
    node.restart("TERM");
    let channel = node.channel();
    let expected = [row("a", true), row("c", true), row("d", false), row("f", false)];
    assert_eq!(channel.look("q").ready, 4);
    assert_eq!(contents(&channel, "q"), expected);
    // And once more, with all of them unacked.
    node.restart("INT");
    assert_eq!(contents(&node.channel(), "q"), expected.map(|(body, _)| (body, true)));
}

#[test]
fn s16_kill_9_loses_nothing_that_was_confirmed_and_brings_back_nothing_that_was_acked() {
    if !is_ours() {
        return;
    }
    let mut node = Node::start();
    let channel = node.confirming();
    channel.declare(declare("q"));
    let large = "x".repeat(300_000);
    for index in 0..200 {
        let body = if index % 50 == 7 { format!("{index} {large}") } else { index.to_string() };
        channel.publish_properties("", "q", &persistent(), &body);
    }
    channel.wait_for_confirms(200);
    for _ in 0..60 {
        channel.take("q");
    }
    channel.ack_multiple(50);
    channel.reject(55, false);
    // On disk after the acks, so they are there too.
    channel.publish_properties("", "q", &persistent(), "last");
    channel.confirm();
    node.restart("KILL");
    let channel = node.channel();
    let back = contents(&channel, "q");
    let numbers: Vec<&str> = back.iter().map(|(body, _)| body.split(' ').next().unwrap()).collect();
    let expected: Vec<String> =
        (50..200).filter(|index| *index != 54).map(|index| index.to_string()).chain(["last".to_owned()]).collect();
    assert_eq!(numbers, expected);
    for (body, _) in &back {
        assert!(body.len() < 10 || body.ends_with(&large), "bodies are whole");
    }
    // What was delivered before says so; a crash may mark more than that, never less.
    assert!(back.iter().take(9).all(|(_, redelivered)| *redelivered), "{:?}", &back[..9]);
}

#[test]
fn s16_what_a_message_carries_survives() {
    if !is_ours() {
        return;
    }
    let mut node = Node::start();
    let channel = node.confirming();
    channel.declare(declare_args("q", [("x-max-priority", FieldValue::I32(5))]));
    let rich = Properties {
        content_type: Some("text/plain".into()),
        delivery_mode: Some(2),
        priority: Some(3),
        expiration: Some("600000".into()),
        timestamp: Some(5),
        ..headers([("deep", table([("list", FieldValue::Array(vec![FieldValue::I8(-1), FieldValue::Void]))]).into())])
    };
    channel.publish_properties("", "q", &persistent(), "plain");
    channel.publish_properties("", "q", &rich, "rich");
    channel.publish_properties("", "q", &Properties { priority: Some(5), ..persistent() }, "first");
    channel.wait_for_confirms(3);
    for signal in ["TERM", "KILL"] {
        node.restart(signal);
        let channel = node.channel();
        assert_eq!(channel.take("q").text(), "first", "priorities count as before");
        let taken = channel.take("q");
        assert_eq!((taken.text(), &taken.properties), ("rich", &rich));
        assert_eq!((taken.exchange.as_str(), taken.routing_key.as_str()), ("", "q"));
        assert_eq!(channel.take("q").text(), "plain");
    }
}

#[test]
fn s16_time_goes_on_while_the_broker_is_down() {
    if !is_ours() {
        return;
    }
    let mut node = Node::start();
    let channel = node.confirming();
    channel.declare(declare("dead"));
    channel.declare(declare_args(
        "q",
        [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text("dead"))],
    ));
    channel.publish_properties("", "q", &Properties { delivery_mode: Some(2), ..expiring("300") }, "mortal");
    channel.publish_properties("", "q", &Properties { delivery_mode: Some(2), ..expiring("600000") }, "long-lived");
    channel.wait_for_confirms(2);
    let published = Instant::now();
    node.end("TERM");
    std::thread::sleep(Duration::from_millis(300).saturating_sub(published.elapsed()));
    node.start_again();
    let channel = node.channel();
    let dead = channel.pop("dead");
    assert_eq!((dead.text(), dead.header("x-first-death-reason")), ("mortal", Some(&text("expired"))));
    assert_eq!(contents(&channel, "q"), [row("long-lived", false)]);
}

#[test]
fn s16_a_history_of_deaths_goes_on_after_a_restart() {
    if !is_ours() {
        return;
    }
    let mut node = Node::start();
    let channel = node.confirming();
    channel
        .declare(declare_args("q", [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text("q"))]));
    channel.publish_properties("", "q", &persistent(), "m");
    channel.confirm();
    for (round, signal) in ["TERM", "KILL", "TERM"].into_iter().enumerate() {
        let channel = node.confirming();
        let taken = channel.take("q");
        let count = taken.header("x-death").and_then(FieldValue::as_array).and_then(|deaths| deaths[0].as_table());
        let count = count.and_then(|entry| entry.get("count")).cloned();
        assert_eq!(count, (round > 0).then_some(FieldValue::I64(round as i64)));
        channel.reject(taken.tag, false);
        channel.publish_properties("", "nowhere", &persistent(), "");
        channel.confirm();
        assert_eq!(channel.look("q").ready, 1);
        // The death is on disk before this confirm is sent.
        channel.publish_properties("", "q", &persistent(), "witness");
        channel.confirm();
        node.restart(signal);
        let channel = node.channel();
        let (message, witness) = (channel.take("q"), channel.take("q"));
        assert_eq!((message.text(), witness.text()), ("m", "witness"));
        channel.ack(witness.tag);
        channel.close();
    }
}

#[test]
fn s16_what_was_deleted_or_purged_stays_away() {
    if !is_ours() {
        return;
    }
    let mut node = Node::start();
    let channel = node.confirming();
    for queue in ["deleted", "purged", "again", "witness"] {
        channel.declare(declare(queue));
    }
    for queue in ["deleted", "purged", "again"] {
        channel.publish_properties("", queue, &persistent(), "old");
    }
    channel.wait_for_confirms(3);
    channel.delete(delete("deleted"));
    assert_eq!(channel.purge("purged"), 1);
    channel.delete(delete("again"));
    channel.declare(declare("again"));
    channel.publish_properties("", "again", &persistent(), "new");
    channel.confirm();
    node.restart("KILL");
    let channel = node.channel();
    assert!(!channel.exists("deleted"));
    assert_eq!(channel.look("purged").ready, 0);
    assert_eq!(channel.drain("again"), ["new"]);
}

#[test]
fn s16_commit_ok_means_on_disk() {
    if !is_ours() {
        return;
    }
    let mut node = Node::start();
    let channel = node.confirming();
    channel.declare(declare("q"));
    channel.publish_properties("", "q", &persistent(), "acked in the transaction");
    channel.confirm();
    let transaction = node.channel();
    transaction.tx_select();
    let taken = transaction.take("q");
    for body in ["a", "b"] {
        transaction.publish_properties("", "q", &persistent(), body);
    }
    transaction.ack(taken.tag);
    transaction.tx_commit();
    transaction.publish_properties("", "q", &persistent(), "not committed");
    transaction.expect_quiet();
    node.restart("KILL");
    assert_eq!(node.channel().drain("q"), ["a", "b"]);
}

#[test]
fn s16_bindings_between_exchanges_and_with_arguments_survive() {
    if !is_ours() {
        return;
    }
    let mut node = Node::start();
    let channel = node.confirming();
    channel.declare(declare("q"));
    channel.declare_exchange(exchange("first", "direct"));
    channel.declare_exchange(exchange::Declare { internal: true, ..exchange("second", "headers") });
    let alternate = exchange::Declare {
        arguments: table([("alternate-exchange", text("first"))]),
        ..exchange("with alternate", "fanout")
    };
    channel.declare_exchange(alternate.clone());
    channel.bind_exchange(exchange_bind("second", "first", "key"));
    let arguments = table([("x-match", text("any")), ("a", FieldValue::I32(1)), ("b", text("x"))]);
    channel.bind(queue::Bind { arguments, ..bind("q", "second", "") });
    channel.publish_properties("", "q", &persistent(), "witness");
    channel.confirm();
    node.restart("KILL");
    let channel = node.channel();
    assert_eq!(channel.pop("q").text(), "witness");
    channel.declare_exchange(alternate);
    let refused = publish("second", "");
    assert!(channel.exchange_exists("second"));
    channel.publish_properties("with alternate", "key", &headers([("b", text("x"))]), "all the way");
    assert_eq!(channel.pop("q").text(), "all the way");
    channel.refuses_publish(refused, &transient(), 403, "cannot publish to internal exchange 'second' in vhost '/'");
}

#[test]
fn s16_an_expiring_queue_starts_its_time_anew() {
    if !is_ours() {
        return;
    }
    let mut node = Node::start();
    let channel = node.confirming();
    channel.declare(declare_args("q", [("x-expires", FieldValue::I32(600))]));
    channel.publish_properties("", "q", &persistent(), "x");
    channel.confirm();
    let consumer = node.channel();
    consumer.consume(consume("q", "tag"));
    node.restart("KILL");
    let started = Instant::now();
    let channel = node.channel();
    let expected = Declared { queue: "q".to_owned(), ready: 1, consumers: 0 };
    assert_eq!(channel.look("q"), expected);
    // Looking is a use, so wait for it without.
    std::thread::sleep(Duration::from_millis(900));
    assert!(!channel.exists("q"), "after {:?}", started.elapsed());
}

#[test]
fn s16_a_broker_in_memory_forgets_everything() {
    if !is_ours() {
        return;
    }
    let broker = Broker::in_memory();
    let channel = Connection::open(broker.address, &Login::default()).channel();
    channel.confirm_select();
    channel.declare(declare("q"));
    channel.publish_properties("", "q", &persistent(), "x");
    channel.confirm();
    assert_eq!(broker.stop("TERM").code, Some(0));
    let broker = Broker::in_memory();
    assert!(!Connection::open(broker.address, &Login::default()).channel().exists("q"));
}
