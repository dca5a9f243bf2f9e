//! Delayed messages with virtual time: when they go on, where to, and what the store has of them.

use bytes::Bytes;
use leveret_protocol::{FieldTable, FieldValue, Properties, basic, confirm, exchange, queue, tx};

use super::super::testing::{Rig, Sent};
use super::super::{Broker, Settings};
use super::*;
use crate::model::record::{Batch, Name, Op, Recovered};
use crate::storage::Store as _;
use crate::storage::memory::FaultyMemoryStore;

fn declare<'a>(exchange: &'a str, type_: &'a str, arguments: &[(&str, FieldValue)]) -> exchange::Declare<'a> {
    let (passive, durable, auto_delete, internal, no_wait) = (false, true, false, false, true);
    let arguments = FieldTable::from_iter(arguments.iter().cloned());
    exchange::Declare { exchange, type_, passive, durable, auto_delete, internal, no_wait, arguments }
}

fn bind<'a>(queue: &'a str, exchange: &'a str, routing_key: &'a str) -> queue::Bind<'a> {
    queue::Bind { queue, exchange, routing_key, no_wait: true, arguments: FieldTable::new() }
}

/// A durable exchange `d` that delays and routes as a topic exchange, with `q` bound for all keys.
pub(super) fn rig() -> Rig {
    let mut rig = Rig::new(Settings::default());
    rig.send(declare("d", "x-delayed-message", &[("x-delayed-type", "topic".into())]).into());
    rig.declare("q", FieldTable::new());
    rig.send(bind("q", "d", "#").into());
    rig
}

fn delayed(ms: i64) -> Properties {
    with_headers([("x-delay", FieldValue::I64(ms))])
}

fn with_headers<const N: usize>(headers: [(&str, FieldValue); N]) -> Properties {
    Properties { headers: Some(FieldTable::from_iter(headers)), ..Properties::default() }
}

pub(super) fn persistent(ms: i64) -> Properties {
    Properties { delivery_mode: Some(2), ..delayed(ms) }
}

pub(super) fn publish(rig: &mut Rig, routing_key: &str, properties: &Properties, body: &str) -> Vec<Sent> {
    let publish = basic::Publish { exchange: "d", routing_key, mandatory: false, immediate: false };
    rig.publish_with(publish, properties, body)
}

fn names(sent: &[Sent]) -> Vec<&str> {
    fn name(sent: &Sent) -> &str {
        match sent {
            Sent::Method(text) => text.split('(').next().unwrap_or_default(),
            Sent::Content(..) => "content",
        }
    }
    sent.iter().map(name).collect()
}

fn held(rig: &Rig) -> Option<u64> {
    rig.broker.messages_delayed(rig.broker.topology().find("d")?)
}

/// Takes the next message out of the queue: properties, and the answer's text.
fn get(rig: &mut Rig, queue: &str) -> (Properties, String) {
    let mut sent = rig.send(basic::Get { queue, no_ack: true }.into()).into_iter();
    match (sent.next(), sent.next()) {
        (Some(Sent::Method(text)), Some(Sent::Content(properties, _))) => (*properties, text),
        other => panic!("no message: {other:?}"),
    }
}

#[test]
fn s7_messages_go_on_at_their_time_to_the_millisecond() {
    let mut rig = rig();
    publish(&mut rig, "k", &delayed(250), "m");
    assert_eq!((held(&rig), rig.bodies("q").len()), (Some(1), 0));
    assert_eq!(rig.broker.next_deadline(), Some(rig.now + 250));
    rig.wait(249);
    assert_eq!((held(&rig), rig.bodies("q").len()), (Some(1), 0));
    rig.wait(1);
    assert_eq!((held(&rig), rig.bodies("q").len()), (Some(0), 1));
    assert_eq!(rig.broker.next_deadline(), None);
}

#[test]
fn s7_order_is_by_due_time_then_by_arrival() {
    let mut rig = rig();
    for (ms, body) in [(300, "c"), (100, "a1"), (200, "b"), (100, "a2"), (4_294_967_295, "far")] {
        publish(&mut rig, "k", &delayed(ms), body);
    }
    rig.wait(60);
    publish(&mut rig, "k", &delayed(40), "a3");
    publish(&mut rig, "k", &Properties::default(), "at once");
    rig.wait(40);
    assert_eq!(rig.bodies("q"), ["at once", "a1", "a2", "a3"]);
    rig.wait(1000);
    assert_eq!(rig.bodies("q"), ["at once", "a1", "a2", "a3", "b", "c"]);
    rig.wait(4_294_967_295 - 1100 - 1);
    assert_eq!(held(&rig), Some(1));
    rig.wait(1);
    assert_eq!(held(&rig), Some(0));
}

#[test]
fn s7_the_delivered_header_is_negative_and_the_rest_as_published() {
    let mut rig = rig();
    let headers = FieldTable::from_iter([("a", FieldValue::I32(1)), ("x-delay", FieldValue::I32(5))]);
    let message_id = Some(Bytes::from_static(b"id"));
    let published = Properties { headers: Some(headers), message_id, priority: Some(3), ..Properties::default() };
    publish(&mut rig, "some.key", &published, "m");
    rig.wait(5);
    let (mut properties, text) = get(&mut rig, "q");
    assert!(text.contains(r#"exchange: "d", routing_key: "some.key""#), "{text}");
    assert!(text.contains("redelivered: false"), "{text}");
    let headers = properties.headers.as_mut().unwrap();
    assert_eq!(headers.get("x-delay"), Some(&FieldValue::I32(-5)));
    headers.insert("x-delay", FieldValue::I32(5));
    assert_eq!(properties, published);
}

#[test]
fn s7_bindings_of_the_due_time_decide() {
    let mut rig = rig();
    rig.declare("late", FieldTable::new());
    publish(&mut rig, "k", &delayed(10), "m");
    rig.send(bind("late", "d", "k").into());
    let arguments = FieldTable::new();
    rig.send(queue::Unbind { queue: "q", exchange: "d", routing_key: "#", arguments }.into());
    rig.wait(10);
    assert_eq!((rig.bodies("q").len(), rig.bodies("late").len()), (0, 1));
}

#[test]
fn s7_what_no_queue_wants_when_it_is_due_is_dropped() {
    let mut rig = rig();
    rig.send(queue::Delete { queue: "q", if_unused: false, if_empty: false, no_wait: true }.into());
    publish(&mut rig, "k", &delayed(10), "m");
    assert_eq!(rig.broker.stats().unroutable, 0);
    rig.wait(10);
    assert_eq!((held(&rig), rig.broker.stats().unroutable), (Some(0), 1));
}

#[test]
fn s7_a_delayed_message_waits_before_its_alternate_exchange_too() {
    let mut rig = rig();
    let arguments = [("x-delayed-type", "direct".into()), ("alternate-exchange", "amq.fanout".into())];
    rig.send(declare("d2", "x-delayed-message", &arguments).into());
    rig.send(bind("q", "amq.fanout", "").into());
    let publish = basic::Publish { exchange: "d2", routing_key: "k", mandatory: false, immediate: false };
    rig.publish_with(publish, &delayed(10), "m");
    assert_eq!(rig.bodies("q").len(), 0);
    rig.wait(10);
    assert_eq!(rig.bodies("q").len(), 1);
}

#[test]
fn s7_another_delayed_exchange_does_not_hold_it_again() {
    let mut rig = rig();
    rig.send(declare("d2", "x-delayed-message", &[("x-delayed-type", "fanout".into())]).into());
    let (destination, source, routing_key, no_wait) = ("d2", "d", "#", true);
    rig.send(exchange::Bind { destination, source, routing_key, no_wait, arguments: FieldTable::new() }.into());
    rig.declare("q2", FieldTable::new());
    rig.send(bind("q2", "d2", "").into());
    publish(&mut rig, "k", &delayed(10), "m");
    rig.wait(10);
    assert_eq!((rig.bodies("q").len(), rig.bodies("q2").len()), (1, 1));
}

#[test]
fn s8_2_cc_and_bcc_keys_still_count_when_it_is_due() {
    let mut rig = Rig::new(Settings::default());
    rig.send(declare("d", "x-delayed-message", &[("x-delayed-type", "direct".into())]).into());
    for queue in ["q", "cc", "bcc"] {
        rig.declare(queue, FieldTable::new());
        rig.send(bind(queue, "d", queue).into());
    }
    let keys = |key: &str| FieldValue::Array(vec![key.into()]);
    let headers = [("x-delay", FieldValue::I32(10)), ("CC", keys("cc")), ("BCC", keys("bcc"))];
    publish(&mut rig, "q", &with_headers(headers), "m");
    rig.wait(10);
    for queue in ["q", "cc", "bcc"] {
        let kept_bcc: Vec<Vec<Vec<u8>>> = {
            let queue = rig.broker.queue(queue).unwrap();
            queue.ready_sequences().iter().map(|seq| queue.messages().get(*seq).unwrap().0.bcc_keys()).collect()
        };
        assert_eq!(kept_bcc, [[b"bcc".to_vec()]], "only BCC keys are to be remembered");
        let (properties, text) = get(&mut rig, queue);
        assert!(text.contains(r#"routing_key: "q""#), "{text}");
        let headers = properties.headers.unwrap();
        assert_eq!((headers.get("CC"), headers.get("BCC")), (Some(&keys("cc")), None));
    }
}

#[test]
fn s11_2_time_to_live_begins_when_the_message_enters_a_queue() {
    let mut rig = rig();
    let expiration = Some(Bytes::from_static(b"50"));
    publish(&mut rig, "k", &Properties { expiration, ..delayed(100) }, "m");
    rig.wait(100);
    rig.wait(49);
    assert_eq!(rig.bodies("q").len(), 1);
    rig.wait(1);
    assert_eq!(rig.bodies("q").len(), 0);
    assert_eq!(rig.broker.queue("q").unwrap().stats.expired, 1);
}

#[test]
fn s11_3_a_dead_letter_may_be_delayed_and_its_new_key_is_the_only_one() {
    let mut rig = rig();
    rig.declare(
        "dying",
        FieldTable::from_iter([
            ("x-dead-letter-exchange", "d".into()),
            ("x-dead-letter-routing-key", "retry".into()),
            ("x-message-ttl", FieldValue::I32(5)),
        ]),
    );
    rig.declare("cc", FieldTable::new());
    rig.send(bind("cc", "d", "cc").into());
    let publish = basic::Publish { exchange: "", routing_key: "dying", mandatory: false, immediate: false };
    let keys = FieldValue::Array(vec!["cc".into()]);
    rig.publish_with(publish, &with_headers([("x-delay", FieldValue::I32(100)), ("CC", keys)]), "m");
    rig.send(queue::Purge { queue: "cc", no_wait: true }.into());
    rig.wait(5);
    assert_eq!(held(&rig), Some(1));
    rig.wait(99);
    assert_eq!(rig.bodies("q").len(), 0);
    rig.wait(1);
    assert_eq!(rig.bodies("cc").len(), 0);
    let (properties, text) = get(&mut rig, "q");
    assert!(text.contains(r#"routing_key: "retry""#), "{text}");
    let headers = properties.headers.unwrap();
    assert!(headers.get("x-death").is_some());
    assert_eq!(headers.get("x-delay"), Some(&FieldValue::I32(-100)));
}

#[test]
fn s7_deleting_the_exchange_drops_what_it_holds() {
    let mut rig = rig();
    publish(&mut rig, "k", &persistent(10), "m");
    rig.send(exchange::Delete { exchange: "d", if_unused: false, no_wait: true }.into());
    assert_eq!(held(&rig), None);
    rig.wait(10);
    assert_eq!(rig.bodies("q").len(), 0);
    let mut batch = Batch::default();
    rig.broker.take_batch(&mut batch);
    assert_eq!(batch.ops.iter().filter(|op| matches!(op, Op::Drop { .. })).count(), 1);
    assert!(!batch.ops.iter().any(|op| matches!(op, Op::Publish { .. })));
}

#[test]
fn s7_a_mandatory_delayed_message_comes_back_and_is_held_all_the_same() {
    let mut rig = rig();
    rig.send(confirm::Select { no_wait: true }.into());
    let publish = basic::Publish { exchange: "d", routing_key: "k", mandatory: true, immediate: false };
    let sent = rig.publish_with(publish, &delayed(10), "m");
    assert_eq!(names(&sent), ["BasicReturn", "content", "BasicAck"]);
    assert_eq!((held(&rig), rig.broker.stats().unroutable), (Some(1), 0));
    rig.wait(10);
    assert_eq!(rig.bodies("q").len(), 1);
}

#[test]
fn s11_1_a_delayed_message_is_confirmed_when_it_is_stored() {
    let mut rig = rig();
    rig.send(confirm::Select { no_wait: true }.into());
    assert_eq!(names(&publish(&mut rig, "k", &delayed(10), "transient")), ["BasicAck"]);
    assert!(publish(&mut rig, "k", &persistent(10), "persistent").is_empty());
    let mut batch = Batch::default();
    let commit = rig.broker.take_batch(&mut batch).unwrap();
    assert!(rig.take().is_empty());
    rig.broker.stored(commit);
    assert_eq!(names(&rig.take()), ["BasicAck"]);
    assert_eq!(held(&rig), Some(2));
}

#[test]
fn s10_a_transaction_holds_nothing_back_before_its_commit() {
    let mut rig = rig();
    rig.send(tx::Select {}.into());
    publish(&mut rig, "k", &delayed(10), "rolled back");
    rig.send(tx::Rollback {}.into());
    publish(&mut rig, "k", &delayed(10), "m");
    rig.wait(50);
    assert_eq!(held(&rig), Some(0));
    rig.send(tx::Commit {}.into());
    assert_eq!(held(&rig), Some(1));
    rig.wait(9);
    assert_eq!(rig.bodies("q").len(), 0);
    rig.wait(1);
    assert_eq!(rig.bodies("q"), ["m"]);
}

/// What a process leaves on the disk, and the next one makes of it.
pub(super) fn restarted(rig: Rig, store: &mut FaultyMemoryStore, ms: u64) -> Rig {
    let (now, settings) = (rig.now + ms, Settings::default());
    let mut broker = Broker::new(Name::from("/"), settings.clone(), 0, [8; 32]);
    drop(rig);
    *store = store.restarted();
    let recovery = store.recover(&mut |item| match item {
        Recovered::Definition { key, value } => broker.recover_definition(&key, &value, now).unwrap(),
        Recovered::Message { queue, seq, record, body, delivered } => {
            let (_, holder) = broker.stored_holders().find(|(id, _)| *id == queue).unwrap();
            assert!(broker.recover_message(holder, seq, &record, body, delivered));
        }
    });
    broker.skip_sequences(recovery.unwrap().next_sequence);
    broker.recovered(now);
    Rig::with_broker(broker, now)
}

pub(super) fn commit(rig: &mut Rig, store: &mut FaultyMemoryStore) -> Batch {
    let mut batch = Batch::default();
    if let Some(commit) = rig.broker.take_batch(&mut batch) {
        store.commit(std::slice::from_ref(&batch)).unwrap();
        rig.broker.stored(commit);
    }
    batch
}

#[test]
fn s16_persistent_messages_survive_with_their_due_times() {
    let (mut rig, mut store) = (rig(), FaultyMemoryStore::new());
    let large = "x".repeat(10_000);
    for (properties, body) in [
        (persistent(500), "third"),
        (persistent(100), "second"),
        (delayed(100), "transient"),
        (persistent(50), "first"),
        (persistent(10_000), &large),
    ] {
        publish(&mut rig, "k", &properties, body);
    }
    commit(&mut rig, &mut store);
    let mut rig = restarted(rig, &mut store, 100);
    assert_eq!(held(&rig), Some(4));
    rig.wait(0);
    assert_eq!(rig.bodies("q"), ["first", "second"], "what became due meanwhile goes on at once");
    rig.wait(399);
    assert_eq!(rig.bodies("q").len(), 2);
    rig.wait(1);
    assert_eq!(rig.bodies("q"), ["first", "second", "third"]);
    publish(&mut rig, "k", &persistent(20), "new");
    commit(&mut rig, &mut store);
    let mut rig = restarted(rig, &mut store, 10_000);
    rig.wait(0);
    assert_eq!(rig.bodies("q"), ["first", "second", "third", "new", &large]);
}

#[test]
fn s16_the_step_into_the_queue_is_one_commit() {
    let (mut rig, mut store) = (rig(), FaultyMemoryStore::new());
    publish(&mut rig, "k", &persistent(50), "m");
    commit(&mut rig, &mut store);
    rig.wait(50);
    let batch = commit(&mut rig, &mut store);
    let names: Vec<_> = batch.ops.iter().map(|op| format!("{op:?}").split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(names.iter().filter(|name| *name == "Publish").count(), 1, "{names:?}");
    assert_eq!(names.iter().filter(|name| *name == "Settle").count(), 1, "{names:?}");
    let rig = restarted(rig, &mut store, 0);
    assert_eq!((held(&rig), rig.bodies("q").len()), (Some(0), 1));
}

#[test]
fn s16_a_message_due_before_it_was_stored_is_stored_in_its_queue_only() {
    let (mut rig, mut store) = (rig(), FaultyMemoryStore::new());
    commit(&mut rig, &mut store);
    publish(&mut rig, "k", &persistent(50), "m");
    rig.wait(50);
    let batch = commit(&mut rig, &mut store);
    assert!(matches!(batch.ops[..], [Op::Publish { .. }]), "{:?}", batch.ops);
    let rig = restarted(rig, &mut store, 0);
    assert_eq!((held(&rig), rig.bodies("q").len()), (Some(0), 1));
}

#[test]
fn s16_sequences_are_not_given_out_again_after_a_restart() {
    let (mut rig, mut store) = (rig(), FaultyMemoryStore::new());
    let mut last = None;
    for body in ["1", "2"] {
        publish(&mut rig, "nowhere", &persistent(50), body);
        let batch = commit(&mut rig, &mut store);
        let seq = batch.ops.iter().find_map(|op| if let Op::Publish { seq, .. } = op { Some(*seq) } else { None });
        assert!(seq > last, "{seq:?} after {last:?}");
        last = seq;
        rig.wait(50);
        commit(&mut rig, &mut store);
        rig = restarted(rig, &mut store, 0);
    }
}

#[test]
fn s16_a_transient_exchange_keeps_nothing_on_disk() {
    let mut rig = rig();
    rig.send(exchange::Delete { exchange: "d", if_unused: false, no_wait: true }.into());
    let declare = declare("d", "x-delayed-message", &[("x-delayed-type", "topic".into())]);
    rig.send(exchange::Declare { durable: false, ..declare }.into());
    rig.send(confirm::Select { no_wait: true }.into());
    rig.broker.take_batch(&mut Batch::default());
    assert_eq!(names(&publish(&mut rig, "k", &persistent(50), "m")), ["BasicAck"]);
    assert_eq!(rig.broker.take_batch(&mut Batch::default()), None);
}

#[test]
fn much_that_is_due_at_once_is_done_in_several_steps() {
    let mut rig = rig();
    for _ in 0..2 * RELEASE_AT_ONCE_MAX + 1 {
        publish(&mut rig, "k", &delayed(10), "m");
    }
    let mut steps = 0;
    rig.now += 10;
    while rig.broker.next_deadline().is_some_and(|deadline| deadline <= rig.now) {
        let before = rig.bodies("q").len();
        rig.wait(0);
        assert!(rig.bodies("q").len() - before <= RELEASE_AT_ONCE_MAX);
        steps += 1;
    }
    assert_eq!((steps, held(&rig), rig.bodies("q").len()), (3, Some(0), 2 * RELEASE_AT_ONCE_MAX + 1));
}

#[test]
fn one_far_message_does_not_arm_a_timer_for_each_near_one() {
    let mut rig = rig();
    publish(&mut rig, "k", &delayed(1_000_000), "far");
    for _ in 0..100 {
        publish(&mut rig, "k", &delayed(10), "near");
        rig.wait(10);
    }
    let exchange = rig.broker.topology().find("d").unwrap();
    assert_eq!(rig.broker.delayed[exchange].armed.len(), 1);
    let mut fired = 0;
    while rig.broker.timers.pop_due(Millis::MAX).is_some() {
        fired += 1;
    }
    assert_eq!(fired, 1);
}

#[test]
fn memory_comes_back_when_all_has_gone_on() {
    let mut rig = rig();
    for number in 0..20_000_i64 {
        publish(&mut rig, "nowhere", &delayed(1000 + (number * 7919) % 10_000), "m");
    }
    let exchange = rig.broker.topology().find("d").unwrap();
    let full = rig.broker.delayed_memory(exchange);
    assert!(full > 20_000 * 20);
    for _ in 0..12 {
        for _ in 0..3 {
            rig.wait(0);
        }
        rig.wait(1000);
    }
    assert_eq!(held(&rig), Some(0));
    assert!(rig.broker.delayed_memory(exchange) < full / 10);
}
