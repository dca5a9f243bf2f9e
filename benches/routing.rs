//! What a route costs, by kind and number of bindings. `cargo bench --bench routing`.
//!
//! Messages differ from one to the next, so that with many bindings the caches of the processor do not hide
//! what a look-up costs.

use bytes::BytesMut;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use leveret::model::exchange::{Binding, Exchange, ExchangeKind, RouteInput, Topology};
use leveret::model::ids::{Destination, ExchangeKey, QueueKey};
use leveret_protocol::{FieldTable, FieldValue, Properties, RawProperties};
use slotmap::SlotMap;

/// A vhost with one exchange.
struct Fixture {
    topology: Topology,
    exchange: ExchangeKey,
    queues: SlotMap<QueueKey, ()>,
}

impl Fixture {
    fn new(kind: ExchangeKind) -> Self {
        let mut topology = Topology::new();
        let exchange = topology.declare(Exchange {
            name: "x".into(),
            kind,
            durable: true,
            auto_delete: false,
            internal: false,
            arguments: FieldTable::new(),
            alternate: None,
        });
        Self { topology, exchange, queues: SlotMap::with_key() }
    }

    /// A binding to a new queue.
    fn bind(&mut self, binding_key: &str, arguments: FieldTable) {
        let queue = Destination::Queue(self.queues.insert(()));
        let binding = Binding::new(self.exchange, queue, binding_key.as_bytes(), arguments);
        self.topology.bind(binding).expect("bindings of new queues are new");
    }

    /// Measures messages in turn, each of which must reach so many queues.
    fn measure(&mut self, c: &mut Criterion, name: &str, messages: &[Message], queues: usize) {
        let mut out = Vec::new();
        let mut turn = 0;
        c.bench_function(name, |bencher| {
            bencher.iter(|| {
                out.clear();
                let message = &messages[turn % messages.len()];
                turn += 1;
                let keys: [&[u8]; 1] = [message.key.as_bytes()];
                let properties = RawProperties::from_bytes(&message.properties);
                let input = RouteInput { keys: &keys, properties, random: turn as u64 };
                self.topology.route(self.exchange, &input, &|_| None, &mut out);
                assert_eq!(out.len(), queues);
            });
        });
    }
}

struct Message {
    key: String,
    properties: BytesMut,
}

fn message(key: impl Into<String>, headers: Option<FieldTable>) -> Message {
    let mut properties = BytesMut::new();
    Properties { headers, ..Properties::default() }.encode(&mut properties);
    Message { key: key.into(), properties }
}

/// Numbers below `bound` in an order without a pattern.
fn scattered(bound: usize) -> impl Iterator<Item = usize> {
    (0..10_000).map(move |turn: usize| turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) / 7 % bound)
}

fn direct(c: &mut Criterion) {
    for bindings in [1, 100_000] {
        let mut fixture = Fixture::new(ExchangeKind::Direct);
        for number in 0..bindings {
            fixture.bind(&format!("orders.{number}"), FieldTable::new());
        }
        let messages: Vec<_> = scattered(bindings).map(|n| message(format!("orders.{n}"), None)).collect();
        fixture.measure(c, &format!("direct, {bindings} bindings, 1 matches"), &messages, 1);
    }
}

fn fanout(c: &mut Criterion) {
    for bindings in [10, 10_000] {
        let mut fixture = Fixture::new(ExchangeKind::Fanout);
        for _ in 0..bindings {
            fixture.bind("", FieldTable::new());
        }
        fixture.measure(c, &format!("fanout to {bindings}"), &[message("k", None)], bindings);
    }
}

/// Of 100,000 bindings four match: a plain one and three with wildcards.
fn topic(c: &mut Criterion) {
    let mut fixture = Fixture::new(ExchangeKind::Topic);
    let (regions, devices) = (100, 1000);
    for device in 0..devices {
        for region in 0..regions - 2 {
            fixture.bind(&format!("region.{region}.device.{device}"), FieldTable::new());
        }
        fixture.bind(&format!("region.*.device.{device}"), FieldTable::new());
        fixture.bind(&format!("region.#.{device}"), FieldTable::new());
    }
    fixture.bind("#.device.#", FieldTable::new());
    let messages: Vec<_> = scattered((regions - 2) * devices)
        .map(|n| message(format!("region.{}.device.{}", n / devices, n % devices), None))
        .collect();
    fixture.measure(c, "topic, 100001 bindings, 4 match", &messages, 4);

    let queue = Destination::Queue(fixture.queues.insert(()));
    let (exchange, topology) = (fixture.exchange, &mut fixture.topology);
    let mut number = 0;
    let mut new_binding = || {
        number += 1;
        Binding::new(exchange, queue, format!("region.new.{number}").as_bytes(), FieldTable::new())
    };
    c.bench_function("bind and unbind among 100001", |bencher| {
        bencher.iter_batched(
            &mut new_binding,
            |binding| {
                topology.bind(binding.clone());
                topology.unbind(&binding)
            },
            BatchSize::SmallInput,
        );
    });
}

/// Of 10,000 bindings for two arguments one matches; the messages have five headers.
fn headers(c: &mut Criterion) {
    let mut fixture = Fixture::new(ExchangeKind::Headers);
    let arguments = |id: usize| -> FieldTable {
        [("type", FieldValue::from("order")), ("id", FieldValue::I64(id as i64))].into_iter().collect()
    };
    for id in 0..10_000 {
        fixture.bind("", arguments(id));
    }
    let messages: Vec<_> = scattered(10_000)
        .map(|id| {
            let mut headers = arguments(id);
            for name in ["trace", "tenant", "region"] {
                headers.insert(name, "some value of middling length");
            }
            message("", Some(headers))
        })
        .collect();
    fixture.measure(c, "headers, 10000 bindings, 1 matches", &messages, 1);
}

fn hashes(c: &mut Criterion) {
    for kind in [ExchangeKind::ConsistentHash, ExchangeKind::ModulusHash, ExchangeKind::Random] {
        let mut fixture = Fixture::new(kind);
        for _ in 0..10 {
            fixture.bind("10", FieldTable::new());
        }
        let messages: Vec<_> = scattered(1000).map(|n| message(format!("orders.{n}"), None)).collect();
        fixture.measure(c, &format!("{}, 10 bindings", kind.name()), &messages, 1);
    }
}

criterion_group!(benches, direct, fanout, topic, headers, hashes);
criterion_main!(benches);
