//! Messages and queues with a time to live (§11.2).

use std::time::{Duration, Instant};

use leveret_protocol::{FieldValue, Method, Properties, basic, queue};

use crate::client::{Channel, Delivery, bind, consume, declare, declare_args, exchange, expiring, open, text};

fn ms(value: i32) -> FieldValue {
    FieldValue::I32(value)
}

/// A queue whose messages live so long, and one for what becomes of them; a consumer of the latter.
fn with_ttl(queue: &str, ttl_ms: i32) -> (Channel, Channel) {
    let channel = open();
    channel.declare(declare_args(queue, [dead_to_default(), to_key(queue), ("x-message-ttl", ms(ttl_ms))]));
    let dead = watch(queue);
    (channel, dead)
}

fn dead_to_default() -> (&'static str, FieldValue) {
    ("x-dead-letter-exchange", text(""))
}

fn to_key(queue: &str) -> (&'static str, FieldValue) {
    ("x-dead-letter-routing-key", text(&format!("{queue}_dead")))
}

/// Consumes where the dead of this queue go.
fn watch(queue: &str) -> Channel {
    let dead = open();
    let name = format!("{queue}_dead");
    dead.declare(declare(&name));
    dead.consume(basic::Consume { no_ack: true, ..consume(&name, "dead") });
    dead
}

/// The time to the next delivery.
fn time_to(dead: &Channel, since: Instant) -> (Delivery, Duration) {
    let delivery = dead.delivery();
    (delivery, since.elapsed())
}

#[track_caller]
fn assert_around(took: Duration, ms: u64) {
    let (least, most) = (Duration::from_millis(ms - 1), Duration::from_millis(ms + 1500));
    assert!(took >= least && took < most, "{took:?} instead of {ms} ms");
}

#[test]
fn s11_2_messages_expire_at_the_head_without_a_consumer() {
    let (channel, dead) = with_ttl("s11_2_head", 200);
    let since = Instant::now();
    channel.publish("", "s11_2_head", "a");
    let (delivery, took) = time_to(&dead, since);
    assert_eq!(delivery.text(), "a");
    assert_around(took, 200);
    assert_eq!(channel.look("s11_2_head").ready, 0);
}

#[test]
fn s11_2_an_expiration_counts_without_an_argument() {
    let channel = open();
    channel.declare(declare_args("s11_2_property", [dead_to_default(), to_key("s11_2_property")]));
    let dead = watch("s11_2_property");
    let since = Instant::now();
    channel.publish_properties("", "s11_2_property", &expiring("150"), "a");
    assert_around(time_to(&dead, since).1, 150);
}

#[test]
fn s11_2_the_smaller_of_both_counts() {
    let (channel, dead) = with_ttl("s11_2_smaller", 300);
    let since = Instant::now();
    channel.publish_properties("", "s11_2_smaller", &expiring("100"), "by property");
    let (first, took) = time_to(&dead, since);
    assert_eq!(first.text(), "by property");
    assert_around(took, 100);
    let since = Instant::now();
    channel.publish_properties("", "s11_2_smaller", &expiring("60000"), "by argument");
    assert_around(time_to(&dead, since).1, 300);
}

#[test]
fn s11_2_a_message_behind_one_that_lives_longer_waits_for_the_head() {
    let channel = open();
    channel.declare(declare_args("s11_2_behind", [dead_to_default(), to_key("s11_2_behind")]));
    let dead = watch("s11_2_behind");
    channel.publish("", "s11_2_behind", "immortal");
    channel.publish_properties("", "s11_2_behind", &expiring("50"), "mortal");
    channel.ready("s11_2_behind", 2);
    std::thread::sleep(Duration::from_millis(150));
    dead.expect_quiet();
    assert_eq!(channel.look("s11_2_behind").ready, 2, "it is still counted");
    assert_eq!(channel.pop("s11_2_behind").text(), "immortal");
    assert_eq!(dead.delivery().text(), "mortal");
    assert_eq!(channel.get(basic::Get { queue: "s11_2_behind", no_ack: true }), None);
}

#[test]
fn s11_2_a_lifetime_of_0_is_long_enough_for_a_consumer_that_waits() {
    let channel = open();
    channel.declare(declare_args("s11_2_zero", [("x-message-ttl", ms(0))]));
    channel.declare(declare("s11_2_zero_property"));
    let consumer = open();
    for queue in ["s11_2_zero", "s11_2_zero_property"] {
        consumer.consume(consume(queue, queue));
        channel.publish_properties("", queue, &expiring("0"), "taken");
        assert_eq!(consumer.delivery().text(), "taken");
        consumer.cancel(queue);
        channel.publish_properties("", queue, &expiring("0"), "gone");
        channel.expect_quiet();
        assert_eq!(channel.drain(queue), [] as [&str; 0]);
    }
}

#[test]
fn s11_2_unacked_messages_do_not_expire_until_they_are_back() {
    let (channel, dead) = with_ttl("s11_2_unacked", 150);
    let since = Instant::now();
    channel.publish("", "s11_2_unacked", "a");
    channel.publish("", "s11_2_unacked", "b");
    let taken = channel.take("s11_2_unacked");
    let (b, took) = time_to(&dead, since);
    assert_eq!(b.text(), "b");
    assert_around(took, 150);
    dead.expect_quiet();
    // Its time was fixed when it was published: it is over as soon as it is back.
    channel.nack(taken.tag, false, true);
    assert_eq!(dead.delivery().text(), "a");
    assert_eq!(channel.look("s11_2_unacked").ready, 0);
}

#[test]
fn s11_2_a_requeue_does_not_prolong_a_life() {
    let (channel, dead) = with_ttl("s11_2_requeue", 300);
    let since = Instant::now();
    channel.publish("", "s11_2_requeue", "a");
    let taken = channel.take("s11_2_requeue");
    std::thread::sleep(Duration::from_millis(150));
    channel.reject(taken.tag, true);
    assert_around(time_to(&dead, since).1, 300);
}

#[test]
fn s11_2_what_has_expired_is_not_delivered() {
    let channel = open();
    channel.declare(declare_args("s11_2_late", [("x-message-ttl", ms(60))]));
    channel.publish("", "s11_2_late", "too late");
    std::thread::sleep(Duration::from_millis(130));
    channel.consume(consume("s11_2_late", "tag"));
    channel.publish("", "s11_2_late", "in time");
    assert_eq!(channel.delivery().text(), "in time");
}

#[test]
fn s11_2_many_expire_at_once_in_order() {
    let (channel, dead) = with_ttl("s11_2_many", 100);
    let bodies: Vec<String> = (0..300).map(|index| index.to_string()).collect();
    for body in &bodies {
        channel.publish("", "s11_2_many", body);
    }
    assert_eq!(dead.bodies(300), bodies);
}

/// The description says that each level has a head of its own; RabbitMQ looks only at what is next.
#[test]
fn s11_2_the_head_of_a_priority_queue_is_what_would_be_delivered_next() {
    let channel = open();
    let name = "s11_2_levels";
    channel.declare(declare_args(name, [dead_to_default(), to_key(name), ("x-max-priority", ms(5))]));
    let dead = watch(name);
    let with = |priority, expiration: Option<&str>| Properties {
        priority: Some(priority),
        expiration: expiration.map(|text| text.to_owned().into()),
        ..Properties::default()
    };
    channel.publish_properties("", name, &with(5, None), "immortal");
    channel.publish_properties("", name, &with(1, Some("60")), "mortal");
    std::thread::sleep(Duration::from_millis(150));
    dead.expect_quiet();
    channel.publish_properties("", name, &with(5, Some("60")), "mortal behind immortal");
    assert_eq!(channel.pop(name).text(), "immortal");
    let mut gone = dead.bodies(2);
    gone.sort_unstable();
    assert_eq!(gone, ["mortal", "mortal behind immortal"]);
    assert_eq!(channel.look(name).ready, 0);
}

/// Waits until the exchange that goes with the queue is gone.
fn time_to_end(channel: &Channel, queue: &str, since: Instant) -> Duration {
    let name = format!("{queue}_bound");
    while channel.exchange_exists(&name) {
        assert!(since.elapsed() < Duration::from_secs(10), "{queue} lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!channel.exists(queue));
    since.elapsed()
}

/// A queue that ends when it is not used for so long, and an exchange that ends with it: asking for the queue
/// itself would be a use.
fn with_expiry(queue: &str, expires: FieldValue) -> Channel {
    let channel = open();
    channel.declare(declare_args(queue, [("x-expires", expires)]));
    let name = format!("{queue}_bound");
    channel.declare_exchange(leveret_protocol::exchange::Declare { auto_delete: true, ..exchange(&name, "fanout") });
    channel.bind(bind(queue, &name, ""));
    channel
}

#[test]
fn s11_2_an_unused_queue_ends_after_its_time() {
    let since = Instant::now();
    let channel = with_expiry("s11_2_expires", ms(300));
    // To publish is no use.
    channel.publish("", "s11_2_expires", "x");
    assert_around(time_to_end(&channel, "s11_2_expires", since), 300);
}

#[test]
fn s11_2_declare_passive_declare_and_get_are_uses() {
    let name = "s11_2_used";
    let channel = with_expiry(name, ms(400));
    let uses: [&dyn Fn(); 3] = [
        &|| drop(channel.declare(declare_args(name, [("x-expires", ms(400))]))),
        &|| drop(channel.declare(queue::Declare { passive: true, ..declare(name) })),
        &|| assert_eq!(channel.get(basic::Get { queue: name, no_ack: true }), None),
    ];
    let mut last = Instant::now();
    for used in uses {
        std::thread::sleep(Duration::from_millis(250));
        last = Instant::now();
        used();
    }
    assert_around(time_to_end(&channel, name, last), 400);
}

#[test]
fn s11_2_a_queue_does_not_end_while_it_has_a_consumer() {
    let name = "s11_2_consumed";
    let channel = with_expiry(name, ms(200));
    let consumer = open();
    consumer.consume(consume(name, "tag"));
    std::thread::sleep(Duration::from_millis(500));
    assert!(channel.exchange_exists("s11_2_consumed_bound"));
    let since = Instant::now();
    consumer.cancel("tag");
    assert_around(time_to_end(&channel, name, since), 200);
}

#[test]
fn s11_2_what_is_in_a_queue_that_ends_is_not_dead_lettered() {
    let channel = open();
    let name = "s11_2_ends";
    channel.declare(declare_args(name, [dead_to_default(), to_key(name), ("x-expires", ms(100))]));
    let dead = watch(name);
    channel.publish("", name, "lost");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!channel.exists(name));
    dead.expect_quiet();
}

#[test]
fn s11_2_a_queue_that_ends_takes_unacked_messages_along() {
    let channel = open();
    channel.declare(declare_args("s11_2_taken", [("x-expires", FieldValue::I16(100))]));
    channel.publish("", "s11_2_taken", "a");
    let taken = channel.take("s11_2_taken");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!channel.exists("s11_2_taken"));
    channel.ack(taken.tag);
    channel.expect_quiet();
}

#[test]
fn s11_2_a_declaration_of_other_properties_is_refused_until_the_end() {
    let channel = with_expiry("s11_2_again", ms(150));
    channel.send(declare("s11_2_again"));
    assert!(matches!(channel.next().method(), Method::ChannelClose(close) if close.reply_code == 406));
    channel.send(leveret_protocol::channel::CloseOk {});
    channel.open();
    time_to_end(&channel, "s11_2_again", Instant::now());
    channel.declare(declare("s11_2_again"));
}
