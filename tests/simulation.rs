//! The broker model under simulation: scenarios written by hand, and random scripts with invariants.

#[allow(dead_code)] // scenarios use what they need
mod support {
    pub mod reference;
    pub mod sim;
    pub mod sim_books;
    pub mod sim_channel;
    pub mod sim_client;
    pub mod sim_compare;
    pub mod sim_pager;
    pub mod sim_random;
    pub mod sim_run;
    mod sim_scenarios;
    pub mod sim_script;
    pub mod sim_store;
}

use std::time::Duration;

use support::sim::{Sim, little_memory};
use support::sim_compare::Lockstep;
use support::sim_random::{Generator, Kind};
use support::sim_run::{Player, run_seeds};

struct Simulation {
    sim: Sim,
    generator: Generator,
}

impl Player for Simulation {
    fn new(seed: u64) -> Self {
        Self { sim: Sim::new(seed), generator: Generator::new(seed, Kind::Simulation) }
    }

    fn next_line(&mut self) -> String {
        self.generator.line(&self.sim)
    }

    fn play(&mut self, line: &str) {
        self.sim.step(line);
    }

    fn end(&mut self) {
        self.sim.step("time 1");
        self.sim.check();
    }
}

/// Everything at once, and invariants after every step.
#[test]
fn random_scripts_keep_the_invariants() {
    run_seeds::<Simulation>("simulation", 0..150, Duration::from_secs(8));
}

/// The same with so little memory that most messages are on disk, and come from there late.
struct Paged(Simulation);

impl Player for Paged {
    fn new(seed: u64) -> Self {
        let generator = Generator::new(seed, Kind::Simulation);
        Self(Simulation { sim: Sim::with_settings(seed, little_memory()), generator })
    }

    fn next_line(&mut self) -> String {
        self.0.next_line()
    }

    fn play(&mut self, line: &str) {
        self.0.play(line);
    }

    fn end(&mut self) {
        self.0.end();
        self.0.sim.check_pages();
    }
}

#[test]
fn random_scripts_keep_the_invariants_with_little_memory() {
    run_seeds::<Paged>("paged simulation", 0..150, Duration::from_secs(8));
}

struct PagedLockstep(Lockstep);

impl Player for PagedLockstep {
    fn new(seed: u64) -> Self {
        let generator = Generator::new(seed, Kind::PagedLockstep);
        Self(Lockstep::with_sim(Sim::with_settings(seed, little_memory()), generator))
    }

    fn next_line(&mut self) -> String {
        self.0.next_line()
    }

    fn play(&mut self, line: &str) {
        self.0.play(line);
    }

    fn end(&mut self) {
        self.0.end();
        self.0.sim.check_pages();
    }

    fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

#[test]
fn random_scripts_agree_with_the_reference_with_little_memory() {
    run_seeds::<PagedLockstep>("paged reference", 0..150, Duration::from_secs(8));
}

/// The same scripts for the broker and a slow, obvious one; every client gets the same.
#[test]
fn random_scripts_agree_with_the_reference() {
    run_seeds::<Lockstep>("reference", 0..150, Duration::from_secs(8));
}
