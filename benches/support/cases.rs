//! The hot paths, each as a fixed piece of work: for criterion (`paths.rs`) and for instruction counts
//! (`instructions.rs`).

use std::any::Any;
use std::hint::black_box;
use std::sync::Arc;

use bytes::BytesMut;
use leveret::auth::{Pattern, Permissions, User, UserLimits};
use leveret::model::broker::{Broker, Effects, Settings};
use leveret::model::connection::{Capabilities, ConnectionInfo};
use leveret::model::ids::{ConnectionKey, QueueKey};
use leveret::model::output::Output;
use leveret::model::quota::Quota;
use leveret::model::record::Name;
use leveret::model::timer::{Timer, Timers};
use leveret_protocol::{
    Decoder, Event, FieldTable, Method, basic, channel, confirm, put_content, put_deliver, put_method_frame, queue,
};

use crate::fixture::{direct, fanout, headers_10k, topic_100k};

/// The work, once. What it worked on comes back, so that taking it apart is not measured.
pub type Work = Box<dyn FnOnce() -> Box<dyn Any>>;

/// A path that is measured.
pub struct Case {
    pub name: &'static str,
    /// Operations in one piece of work; counts are given for one of them.
    pub operations: u64,
    pub prepare: fn() -> Work,
}

/// Messages in a piece of work.
const MESSAGES: u64 = 10_000;
/// Events that a connection's task applies in one turn.
const TURN: usize = 512;

pub fn all() -> Vec<Case> {
    let case = |name, operations, prepare| Case { name, operations, prepare };
    vec![
        case("decode a publish", MESSAGES, decode_publish),
        case("encode a deliver", MESSAGES, encode_deliver),
        case("route direct, 100,000 bindings", MESSAGES, || route(direct(100_000))),
        case("route fanout to 10", MESSAGES, || route(fanout(10))),
        case("route topic, 100,000 bindings", MESSAGES, || route(topic_100k())),
        case("route headers, 10,000 bindings", MESSAGES, || route(headers_10k())),
        case("publish into a queue", MESSAGES, publish),
        case("publish with a confirm", MESSAGES, publish_confirmed),
        case("deliver with auto-ack", MESSAGES, || deliver(true, 0)),
        case("publish and deliver, auto-ack", MESSAGES, publish_and_deliver),
        case("deliver and ack each", MESSAGES, || deliver(false, 1)),
        case("deliver and ack 100 at once", MESSAGES, || deliver(false, 100)),
        case("ack 10,000 at once", MESSAGES, ack_all),
        case("arm and fire a timer among 1,000,000", 100_000, timers),
        case("declare a queue", MESSAGES, declare),
    ]
}

fn publish_frames(number: u64) -> BytesMut {
    let mut bytes = BytesMut::new();
    for _ in 0..number {
        let publish = basic::Publish { exchange: "", routing_key: "q", mandatory: false, immediate: false };
        put_method_frame(&mut bytes, 1, &publish.into());
        put_content(&mut bytes, 1, 131_072, &[0, 0], &[b'x'; 16]);
    }
    bytes
}

fn decode_publish() -> Work {
    let bytes = publish_frames(MESSAGES);
    let mut decoder = Decoder::new(131_072, 1 << 20);
    Box::new(move || {
        let mut consumed = 0;
        while let Some(event) = decoder.next(&bytes[consumed..], &mut consumed).expect("the frames are right") {
            black_box(event);
        }
        assert_eq!(consumed, bytes.len());
        Box::new(bytes)
    })
}

fn encode_deliver() -> Work {
    let mut out = BytesMut::with_capacity(2 << 20);
    Box::new(move || {
        for tag in 0..MESSAGES {
            put_deliver(&mut out, 1, b"amq.ctag-0123456789", tag, false, b"", b"q");
            put_content(&mut out, 1, 131_072, &[0, 0], &[b'x'; 16]);
        }
        Box::new(out)
    })
}

fn route(mut fixture: crate::fixture::Routes) -> Work {
    Box::new(move || {
        for turn in 0..MESSAGES {
            fixture.route(turn as usize);
        }
        Box::new(fixture)
    })
}

/// A broker with one connection, whose channel 1 is open, and the queue `q`.
struct Rig {
    broker: Broker,
    connection: ConnectionKey,
    output: Output,
    effects: Effects,
}

/// A time: the model wants one.
const NOW: u64 = 1_000_000;

impl Rig {
    fn new() -> Self {
        let mut broker = Broker::new(Name::from("/"), Settings::default(), 0, [7; 32]);
        let all = || Pattern::new(".*").expect("the pattern is right");
        let user = User { name: Name::from("guest"), password: None, tags: Vec::new(), limits: UserLimits::default() };
        let info = ConnectionInfo {
            name: Name::from("1.1.1.1:1 -> 2.2.2.2:2"),
            socket: None,
            user: Arc::new(user),
            permissions: Arc::new(Permissions { configure: all(), write: all(), read: all() }),
            topic_permissions: None,
            client_properties: FieldTable::new(),
            capabilities: Capabilities::default(),
            frame_max: 131_072,
            channel_max: 0,
            channel_quota: Quota::new(None),
            heartbeat_s: 0,
        };
        let connection = broker.connection_opened(info, NOW);
        let mut rig = Self { broker, connection, output: Output::default(), effects: Effects::default() };
        rig.send(channel::Open {});
        rig.send(declare_of("q"));
        rig.transmit();
        rig
    }

    fn send<'a>(&mut self, method: impl Into<Method<'a>>) {
        self.broker.client(self.connection, Event::Method { channel: 1, method: method.into() }, NOW);
    }

    /// What a connection's task does with what it has read.
    fn receive(&mut self, bytes: &[u8]) {
        let mut decoder = Decoder::new(131_072, 1 << 20);
        let mut consumed = 0;
        loop {
            let mut events = Vec::with_capacity(TURN);
            while events.len() < TURN
                && let Some(event) = decoder.next(&bytes[consumed..], &mut consumed).expect("the frames are right")
            {
                events.push(event);
            }
            if events.is_empty() {
                return;
            }
            for event in events {
                self.broker.client(self.connection, event, NOW);
            }
            self.transmit();
        }
    }

    /// Sends what there is to nobody.
    fn transmit(&mut self) {
        self.broker.dispatch_now(NOW);
        while self.broker.poll_transmit(self.connection, &mut self.output, 256 << 10, NOW).more {
            self.output.tail.clear();
        }
        self.output.tail.clear();
        self.broker.finish(NOW, &mut self.effects);
        self.effects = Effects::default();
    }

    fn consume(&mut self, no_ack: bool) {
        self.send(basic::Consume {
            queue: "q",
            consumer_tag: "amq.ctag-0123456789",
            no_local: false,
            no_ack,
            exclusive: false,
            no_wait: false,
            arguments: FieldTable::new(),
        });
    }

    fn ready(&self) -> u64 {
        self.broker.queue("q").expect("it was declared").ready_count()
    }

    fn unacked(&self) -> u64 {
        self.broker.queue("q").expect("it was declared").unacked_count
    }
}

fn declare_of(queue: &str) -> queue::Declare<'_> {
    queue::Declare {
        queue,
        passive: false,
        durable: false,
        exclusive: false,
        auto_delete: false,
        no_wait: false,
        arguments: FieldTable::new(),
    }
}

fn publish() -> Work {
    let (mut rig, bytes) = (Rig::new(), publish_frames(MESSAGES));
    Box::new(move || {
        rig.receive(&bytes);
        assert_eq!(rig.ready(), MESSAGES);
        Box::new(rig)
    })
}

fn publish_confirmed() -> Work {
    let (mut rig, bytes) = (Rig::new(), publish_frames(MESSAGES));
    rig.send(confirm::Select { no_wait: false });
    Box::new(move || {
        rig.receive(&bytes);
        assert_eq!(rig.ready(), MESSAGES);
        Box::new(rig)
    })
}

/// `ack_every` 0: none.
fn deliver(no_ack: bool, ack_every: u64) -> Work {
    let mut rig = Rig::new();
    rig.receive(&publish_frames(MESSAGES));
    let mut acks = BytesMut::new();
    for tag in (1..=MESSAGES).filter(|tag| ack_every > 0 && tag % ack_every == 0) {
        leveret_protocol::put_ack(&mut acks, 1, tag, ack_every > 1);
    }
    Box::new(move || {
        rig.consume(no_ack);
        rig.transmit();
        rig.receive(&acks);
        assert_eq!((rig.ready(), rig.unacked()), (0, 0));
        Box::new(rig)
    })
}

fn publish_and_deliver() -> Work {
    let (mut rig, bytes) = (Rig::new(), publish_frames(MESSAGES));
    rig.consume(true);
    rig.transmit();
    Box::new(move || {
        rig.receive(&bytes);
        assert_eq!(rig.ready(), 0);
        Box::new(rig)
    })
}

fn ack_all() -> Work {
    let mut rig = Rig::new();
    rig.receive(&publish_frames(MESSAGES));
    rig.consume(false);
    rig.transmit();
    assert_eq!(rig.unacked(), MESSAGES);
    Box::new(move || {
        rig.send(basic::Ack { delivery_tag: MESSAGES, multiple: true });
        rig.transmit();
        assert_eq!(rig.unacked(), 0);
        Box::new(rig)
    })
}

fn timers() -> Work {
    let mut timers = Timers::default();
    for number in 0..1_000_000_u64 {
        timers.arm(number.wrapping_mul(0x9E37_79B9) % 10_000_000, Timer::QueueHead(QueueKey::default()));
    }
    Box::new(move || {
        for number in 0..100_000_u64 {
            let at = timers.next_deadline().expect("there are more");
            black_box(timers.pop_due(at));
            timers.arm(at + number.wrapping_mul(0x9E37_79B9) % 10_000_000, Timer::QueueHead(QueueKey::default()));
        }
        Box::new(timers)
    })
}

fn declare() -> Work {
    let mut rig = Rig::new();
    let mut bytes = BytesMut::new();
    for number in 0..MESSAGES {
        put_method_frame(&mut bytes, 1, &declare_of(&format!("queue-{number}")).into());
    }
    Box::new(move || {
        rig.receive(&bytes);
        Box::new(rig)
    })
}
