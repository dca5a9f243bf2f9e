//! What the hot paths take. `cargo bench -p leveret-benches --bench paths`; the work is the same that `instructions.rs` counts.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

#[path = "support/cases.rs"]
mod cases;
#[path = "support/fixture.rs"]
#[allow(dead_code)] // each bench uses its part
mod fixture;

fn paths(c: &mut Criterion) {
    let mut group = c.benchmark_group("paths");
    group.sample_size(20);
    for case in cases::all() {
        group.throughput(Throughput::Elements(case.operations));
        group.bench_function(case.name, |bencher| {
            bencher.iter_batched(case.prepare, |work| work(), BatchSize::PerIteration);
        });
    }
}

criterion_group!(benches, paths);
criterion_main!(benches);
