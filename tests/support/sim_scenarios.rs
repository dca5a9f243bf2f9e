//! Scenarios written by hand: rules that random scripts pass too quickly, and what random scripts have found.

use super::sim::Sim;

/// Prefetch 1 holds the second message until the first is acked (§9.1).
#[test]
fn s9_1_ack_frees_prefetch() {
    let mut sim = Sim::new(7);
    let (p, c) = (sim.channel(), sim.channel());
    sim.run(c, "queue.declare q; basic.qos 1; basic.consume q");
    sim.run(p, "basic.publish q m1; basic.publish q m2");
    assert_eq!(sim.delivered(c), ["m1"]);
    sim.run(c, "basic.ack 1");
    assert_eq!(sim.delivered(c), ["m2"]);
    sim.check();
}

/// §9.2: consumers with credit take turns.
#[test]
fn s9_2_messages_spread_evenly() {
    let mut sim = Sim::new(1);
    let p = sim.channel();
    sim.run(p, "queue.declare q");
    let consumers: Vec<_> = (0..4).map(|_| sim.channel()).collect();
    for c in &consumers {
        sim.run(*c, "basic.qos 10; basic.consume q");
    }
    for n in 0..40 {
        sim.run(p, &format!("basic.publish q m{n}"));
    }
    for c in consumers {
        assert_eq!(sim.delivered(c).len(), 10);
    }
    sim.check();
}

/// §9.1: when a slot of the channel-wide limit is freed, both queues of the channel get some share.
#[test]
fn s9_1_a_channel_wide_limit_starves_no_queue() {
    let mut sim = Sim::new(1);
    let (p, c) = (sim.channel(), sim.channel());
    sim.run(p, "queue.declare a; queue.declare b");
    for n in 0..20 {
        sim.run(p, &format!("basic.publish a a{n}; basic.publish b b{n}"));
    }
    sim.run(c, "basic.qos 1 global; basic.consume a; basic.consume b");
    for tag in 1..=20 {
        sim.run(c, &format!("basic.ack {tag}"));
    }
    let delivered = sim.delivered(c);
    assert_eq!(delivered.len(), 21);
    let of_a = delivered.iter().filter(|body| body.starts_with('a')).count();
    assert!((7..=14).contains(&of_a), "{delivered:?}");
}

/// §8.4: a get that was accepted is answered, even if its queue is deleted before anything is sent.
#[test]
fn s8_4_get_is_answered_though_the_queue_goes() {
    let mut sim = Sim::new(1);
    let (p, c) = (sim.channel(), sim.channel());
    sim.run(p, "queue.declare q; basic.publish q m1; basic.publish q m2");
    sim.replies(c);
    sim.step("c1.1 basic.get q; basic.get q no-ack; queue.delete q");
    sim.check();
    assert_eq!(sim.delivered(c), ["m1", "m2"]);
    assert_eq!(sim.replies(c), ["queue.delete-ok"]);
}

/// §8.4: so it is if its channel is closed before anything is sent, by whomever. The message goes back.
#[test]
fn s8_4_get_is_answered_though_the_channel_ends() {
    for close in ["channel.close", "basic.get none", "queue.declare q9 passive"] {
        let mut sim = Sim::new(1);
        let (p, c) = (sim.channel(), sim.channel());
        sim.run(p, "queue.declare q; basic.publish q m1; basic.publish q m2");
        sim.step(&format!("c1.1 basic.get q; basic.get q no-ack; queue.declare q passive; {close}"));
        sim.check();
        assert_eq!(sim.delivered(c), ["m1", "m2"]);
        sim.run(p, "basic.get q; basic.get q");
        assert_eq!(sim.delivered(p), ["m1"]);
    }
}

/// §8.3: delivery tags have no gaps, though a queue is deleted while its deliveries wait to be sent.
#[test]
fn s8_3_delivery_tags_have_no_gaps() {
    let mut sim = Sim::new(1);
    let (p, c) = (sim.channel(), sim.channel());
    sim.run(p, "queue.declare a; queue.declare b");
    sim.run(c, "basic.consume a; basic.consume b");
    sim.step("c0.1 basic.publish a m1; basic.publish b m2; basic.publish a m3; queue.delete b; basic.publish a m4");
    sim.check();
    assert_eq!(sim.delivered(c), ["m1", "m3", "m2", "m4"]);
    sim.run(c, "basic.ack 2; basic.ack 4 multiple");
    sim.check();
}

/// §8.5: ack 0 multiple settles what the client has been sent, not what waits for it.
#[test]
fn s8_5_ack_of_all_leaves_what_was_not_sent() {
    let mut sim = Sim::new(1);
    let (p, c) = (sim.channel(), sim.channel());
    sim.run(p, "queue.declare q");
    sim.run(c, "basic.consume q");
    sim.step("c0.1 basic.publish q m1; basic.publish q m2");
    sim.step("poll c1 1");
    sim.step("c1.1 basic.ack 0 multiple");
    sim.check();
    assert_eq!(sim.delivered(c), ["m1", "m2"]);
    sim.run(c, "basic.nack 2");
    assert_eq!(sim.delivered(c), ["m2"]);
    sim.check();
}

/// §8.5: recover returns what the client has been sent; what waits for it is delivered once, with its tag.
#[test]
fn s8_5_recover_leaves_what_was_not_sent() {
    let mut sim = Sim::new(1);
    let (p, c) = (sim.channel(), sim.channel());
    sim.run(p, "queue.declare q");
    sim.run(c, "basic.consume q");
    sim.step("c0.1 basic.publish q m1; basic.publish q m2");
    sim.step("poll c1 1");
    sim.step("c1.1 basic.recover");
    sim.check();
    assert_eq!(sim.delivered(c), ["m1", "m2", "m1"]);
    sim.run(c, "basic.ack 2; basic.ack 3");
    sim.check();
}

/// §9.1, §10: an ack in a transaction frees no slot of the channel before the commit.
#[test]
fn s10_acks_of_a_transaction_hold_the_channel_wide_prefetch() {
    let mut sim = Sim::new(1);
    let (p, c) = (sim.channel(), sim.channel());
    sim.run(c, "queue.declare q; tx.select; basic.qos 1 global; basic.consume q");
    sim.run(p, "basic.publish q m1; basic.publish q m2");
    sim.run(c, "basic.ack 1");
    sim.run(p, "basic.publish q m3");
    assert_eq!(sim.delivered(c), ["m1"]);
    sim.run(c, "tx.rollback; basic.ack 1; tx.commit");
    assert_eq!(sim.delivered(c), ["m2"]);
    sim.check();
}

/// §11.2: a message that comes back unsent, without ever having been unacked, still expires.
#[test]
fn s11_2_a_message_that_was_never_sent_expires() {
    let mut sim = Sim::new(1);
    let (p, c) = (sim.channel(), sim.channel());
    sim.run(c, "queue.declare q; basic.consume q no-ack");
    sim.step("c0.1 basic.publish q m1 expiration=20");
    sim.step("c1 lost");
    sim.step("clock 30");
    sim.run(p, "basic.consume q");
    assert_eq!(sim.delivered(p), Vec::<String>::new());
    sim.check();
}

/// §5.8: a durable auto-delete queue is not deleted because the broker stops.
#[test]
fn s5_8_a_stop_deletes_no_durable_queue() {
    let mut sim = Sim::new(1);
    let (p, c) = (sim.channel(), sim.channel());
    sim.run(c, "queue.declare q durable auto-delete; basic.consume q");
    sim.run(p, "basic.publish q m1 persistent; basic.publish q m2");
    sim.step("stop");
    let c = sim.channel();
    sim.run(c, "basic.get q");
    assert_eq!(sim.delivered(c), ["m1"], "and m2 was not persistent");
    sim.check();
}

/// §11.4: publishes that arrive together are refused only if nobody takes those before them.
#[test]
fn s11_4_reject_publish_refuses_nothing_that_consumers_make_room_for() {
    let mut sim = Sim::new(1);
    let (p, c) = (sim.channel(), sim.channel());
    sim.run(p, "confirm.select; queue.declare q x-max-length=1 x-overflow=reject-publish");
    sim.run(c, "basic.qos 3; basic.consume q");
    sim.replies(p);
    let publish = (1..=5).map(|n| format!("basic.publish q m{n}")).collect::<Vec<_>>().join("; ");
    sim.step(&format!("c0.1 {publish}"));
    sim.check();
    assert_eq!(sim.delivered(c), ["m1", "m2", "m3"]);
    assert_eq!(sim.replies(p), ["basic.ack 4", "basic.nack 5"]);
}

/// §9.2: a consumer does not lose its turn to a message that has expired.
#[test]
fn s9_2_an_expired_message_takes_nobodys_turn() {
    let mut sim = Sim::new(1);
    let (p, a) = (sim.channel(), sim.channel());
    let (b, c) = (sim.channel(), sim.channel());
    sim.run(p, "queue.declare q");
    sim.run(a, "basic.consume q");
    sim.run(p, "basic.publish q m1 expiration=10");
    sim.run(b, "basic.consume q");
    sim.run(c, "basic.consume q");
    sim.run(p, "basic.publish q m2");
    assert_eq!(sim.delivered(b).len() + sim.delivered(c).len() + sim.delivered(a).len(), 2);
    sim.step("time 20");
    sim.run(a, "basic.cancel none; basic.nack 1");
    for n in 3..=8 {
        sim.run(p, &format!("basic.publish q m{n}"));
    }
    let counts = [sim.delivered(a).len(), sim.delivered(b).len(), sim.delivered(c).len()];
    assert_eq!(counts.iter().sum::<usize>(), 6);
    assert!(counts.iter().all(|count| *count == 2), "{counts:?}");
}
