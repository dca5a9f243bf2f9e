//! Runs each hot path once between two marks, for callgrind to count its instructions: see
//! `benches/count-instructions`. By itself it only shows that the paths work.

use std::hint::black_box;

#[path = "support/cases.rs"]
mod cases;
#[path = "support/fixture.rs"]
#[allow(dead_code)] // each bench uses its part
mod fixture;

/// Counting starts when this is entered.
#[inline(never)]
fn mark_begin(case: usize) {
    black_box(case);
}

/// Counting ends when this is entered. It differs from the other mark, or the compiler makes them one.
#[inline(never)]
fn mark_end(case: usize) {
    black_box(!case);
}

fn main() {
    for (number, case) in cases::all().into_iter().enumerate() {
        // One line for each case, in the order of the counts.
        println!("{}\t{}", case.operations, case.name);
        let work = (case.prepare)();
        mark_begin(number);
        let worked_on = work();
        mark_end(number);
        drop(worked_on);
    }
}
