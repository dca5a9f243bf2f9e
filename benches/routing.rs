//! What a route costs, by kind and number of bindings. `cargo bench -p leveret-benches --bench routing`.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use leveret::model::exchange::{Binding, ExchangeKind};
use leveret::model::ids::Destination;
use leveret_protocol::FieldTable;

#[path = "support/fixture.rs"]
mod fixture;

use fixture::{Routes, direct, fanout, headers_10k, picking, topic_100k};

fn measure(c: &mut Criterion, name: &str, routes: &mut Routes) {
    let mut turn = 0;
    c.bench_function(name, |bencher| {
        bencher.iter(|| {
            turn += 1;
            routes.route(turn);
        });
    });
}

fn by_name(c: &mut Criterion) {
    for bindings in [1, 100_000] {
        measure(c, &format!("direct, {bindings} bindings, 1 matches"), &mut direct(bindings));
    }
    for bindings in [10, 10_000] {
        measure(c, &format!("fanout to {bindings}"), &mut fanout(bindings));
    }
    measure(c, "headers, 10000 bindings, 1 matches", &mut headers_10k());
}

fn topic(c: &mut Criterion) {
    let mut routes = topic_100k();
    measure(c, "topic, 100001 bindings, 4 match", &mut routes);
    let queue = Destination::Queue(routes.queues.insert(()));
    let (exchange, topology) = (routes.exchange, &mut routes.topology);
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

fn hashes(c: &mut Criterion) {
    for kind in [ExchangeKind::ConsistentHash, ExchangeKind::ModulusHash, ExchangeKind::Random] {
        measure(c, &format!("{}, 10 bindings", kind.name()), &mut picking(kind));
    }
}

criterion_group!(benches, by_name, topic, hashes);
criterion_main!(benches);
