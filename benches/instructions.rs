//! Runs each hot path once between two marks, for callgrind to count its instructions: see
//! `benches/count-instructions`. By itself it only shows that the paths work. With the start of a name it runs
//! that path alone, for a profile.

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
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let cases = cases::all().into_iter().filter(|case| case.name.starts_with(&wanted));
    for (number, case) in cases.enumerate() {
        // One line for each case, in the order of the counts.
        println!("{}\t{}", case.operations, case.name);
        let work = (case.prepare)();
        mark_begin(number);
        let worked_on = work();
        mark_end(number);
        drop(worked_on);
    }
}
