//! The real broker and the reference side by side: the same lines, and what each client gets must agree.
//!
//! Compared are, for each channel: the order of all methods but deliveries; the deliveries of each consumer in
//! their order; confirms by their numbers; fields, properties and bodies of all. Not compared, for the rules
//! leave it open: how deliveries of several consumers interleave, and so which delivery tags they have.

use std::collections::BTreeSet;

use leveret_protocol::{Method, basic};

use super::reference::{Observed, Reference, Sent};
use super::sim::{Sim, is_running};
use super::sim_random::{Generator, Kind};
use super::sim_run::Player;
use super::sim_script::{Step, Wire, canonical, parse};

const CONNECTIONS: usize = 4;

pub struct Lockstep {
    pub sim: Sim,
    pub reference: Reference,
    generator: Generator,
}

impl Player for Lockstep {
    fn new(seed: u64) -> Self {
        Self::with_sim(Sim::new(seed), Generator::new(seed, Kind::Lockstep))
    }

    fn next_line(&mut self) -> String {
        self.generator.line(&self.sim)
    }

    fn play(&mut self, line: &str) {
        self.sim.step(line);
        self.sim.settle();
        let received: Vec<(usize, Wire)> = (0..CONNECTIONS)
            .flat_map(|connection| self.sim.take_received(connection).into_iter().map(move |wire| (connection, wire)))
            .collect();
        if std::env::var_os("LEVERET_SIM_SCRIPT").is_some() {
            eprintln!("{line}");
            received.iter().for_each(|(connection, wire)| eprintln!("    c{connection}.{wire:?}"));
        }
        self.reference.observed =
            received.iter().filter_map(|(connection, wire)| observed(*connection, wire)).collect();
        self.play_reference(line);
        if self.reference.unclear.is_none() {
            self.compare(received);
        }
    }

    fn end(&mut self) {
        self.sim.check();
    }

    fn is_over(&self) -> bool {
        self.reference.unclear.is_some()
    }
}

impl Lockstep {
    /// `sim` has played nothing yet.
    pub fn with_sim(sim: Sim, generator: Generator) -> Self {
        let reference = Reference::new(sim.now);
        Self { sim, reference, generator }
    }
}

fn observed(connection: usize, wire: &Wire) -> Option<Observed> {
    let Method::BasicDeliver(deliver) = wire.method() else { return None };
    Some(Observed {
        connection,
        channel: wire.channel,
        consumer_tag: deliver.consumer_tag.to_owned(),
        exchange: deliver.exchange.to_owned(),
        routing_key: deliver.routing_key.to_owned(),
        content: wire.content.clone().map(|(properties, body)| (canonical(properties), body)).unwrap_or_default(),
        used: false,
    })
}

impl Lockstep {
    fn play_reference(&mut self, line: &str) {
        let reference = &mut self.reference;
        match parse(line) {
            Step::Open { connection, .. } => reference.open(connection),
            Step::Lost { connection } => reference.lost(connection),
            Step::Send { connection, commands } => {
                let channel = commands.first().map_or(0, |command| command.channel);
                reference.ending = match self.sim.client(connection).filter(|client| is_running(client)) {
                    None => Some((connection, 0)),
                    Some(client) => {
                        let runs = client.channels.get(&channel).is_some_and(|channel| !channel.ended);
                        (!runs).then_some((connection, channel))
                    }
                };
                self.sim.last_sent.iter().for_each(|command| reference.client(connection, command));
            }
            Step::Time(ms) => return reference.pass(reference.now + ms),
            Step::Crash => return reference.restart(false),
            Step::Stop => return reference.restart(true),
            Step::Poll { .. } | Step::PollAll | Step::Store(_) | Step::Page => {}
            Step::Clock(_) => panic!("timers are on time here"),
        }
        reference.end_turn();
    }

    fn compare(&mut self, received: Vec<(usize, Wire)>) {
        let sent = std::mem::take(&mut self.reference.sent);
        let mut places: Vec<(usize, u16)> =
            received.iter().map(|(connection, wire)| (*connection, wire.channel)).collect();
        places.extend(sent.iter().map(|sent| (sent.connection, sent.wire.channel)));
        places.sort_unstable();
        places.dedup();
        for place in places {
            let real: Vec<&Wire> = received
                .iter()
                .filter(|(connection, wire)| (*connection, wire.channel) == place)
                .map(|(_, wire)| wire)
                .collect();
            let expected: Vec<&Sent> =
                sent.iter().filter(|sent| (sent.connection, sent.wire.channel) == place).collect();
            self.compare_channel(place, &real, &expected);
        }
        self.reference.note_read();
        for connection in 0..CONNECTIONS {
            let Some(client) = self.sim.client(connection) else { continue };
            for (number, tags) in self.reference.open_tags(connection) {
                let held = client.channels.get(&number).map(|channel| channel.settleable());
                assert_eq!(held, Some(tags), "tags that c{connection}.{number} holds, and those it should");
            }
        }
    }

    fn compare_channel(&mut self, place: (usize, u16), real: &[&Wire], expected: &[&Sent]) {
        let describe = || {
            let expected: Vec<String> = expected.iter().map(|sent| format!("{:?}", sent.wire)).collect();
            let real: Vec<String> = real.iter().map(|wire| format!("{wire:?}")).collect();
            format!(
                "c{}.{}\nexpected:\n  {}\nbut got:\n  {}",
                place.0,
                place.1,
                expected.join("\n  "),
                real.join("\n  ")
            )
        };
        let plain = |wire: &Wire| !is_confirm(wire) && consumer_of(wire).is_none();
        let theirs: Vec<Wire> = real.iter().filter(|wire| plain(wire)).map(|wire| comparable(wire)).collect();
        let ours: Vec<&Sent> = expected.iter().copied().filter(|sent| plain(&sent.wire)).collect();
        let shown: Vec<Wire> = ours.iter().map(|sent| comparable(&sent.wire)).collect();
        assert!(theirs == shown, "methods of {}", describe());
        let gets = real.iter().filter(|wire| matches!(wire.method(), Method::BasicGetOk(_)));
        for (wire, sent) in gets.zip(ours.iter().filter(|sent| sent.held.is_some())) {
            self.reference.adopt(place, sent.held.expect("just seen"), tag_of(wire));
        }
        let mut consumers: Vec<String> = real.iter().filter_map(|wire| consumer_of(wire)).collect();
        consumers.extend(expected.iter().filter_map(|sent| consumer_of(&sent.wire)));
        for consumer in BTreeSet::from_iter(consumers) {
            let theirs: Vec<&&Wire> =
                real.iter().filter(|wire| consumer_of(wire).as_ref() == Some(&consumer)).collect();
            let ours: Vec<&&Sent> =
                expected.iter().filter(|sent| consumer_of(&sent.wire).as_ref() == Some(&consumer)).collect();
            let same = theirs.len() == ours.len()
                && theirs.iter().zip(&ours).all(|(wire, sent)| comparable(wire) == comparable(&sent.wire));
            assert!(same, "deliveries to {consumer} of {}", describe());
            for (wire, sent) in theirs.iter().zip(&ours) {
                self.reference.adopt(place, sent.held.expect("deliveries have ids"), tag_of(wire));
            }
        }
        let confirms: Vec<&Wire> = expected.iter().map(|sent| &sent.wire).filter(|wire| is_confirm(wire)).collect();
        let mut open: BTreeSet<(u64, bool)> =
            confirms.iter().map(|wire| confirm(wire)).map(|(tag, _, ack)| (tag, ack)).collect();
        for (tag, multiple, ack) in real.iter().filter(|wire| is_confirm(wire)).map(|wire| confirm(wire)) {
            assert!(open.contains(&(tag, ack)), "confirms of {}", describe());
            let covered = |(number, _): &(u64, bool)| if multiple { *number <= tag } else { *number == tag };
            let alike = open.iter().filter(|number| covered(number)).all(|(_, other)| *other == ack);
            assert!(alike, "confirms of {}", describe());
            open.retain(|number| !covered(number));
        }
        // A channel that ends owes no answers any more (§11.1).
        let has_ended = !self.reference.open_tags(place.0).iter().any(|(number, _)| *number == place.1);
        assert!(open.is_empty() || has_ended, "confirms of {}", describe());
    }
}

fn is_confirm(wire: &Wire) -> bool {
    matches!(wire.method(), Method::BasicAck(_) | Method::BasicNack(_))
}

/// Number, multiple, and whether it is an ack.
fn confirm(wire: &Wire) -> (u64, bool, bool) {
    match wire.method() {
        Method::BasicAck(ack) => (ack.delivery_tag, ack.multiple, true),
        Method::BasicNack(nack) => (nack.delivery_tag, nack.multiple, false),
        other => panic!("{} is no confirm", other.name()),
    }
}

fn consumer_of(wire: &Wire) -> Option<String> {
    match wire.method() {
        Method::BasicDeliver(deliver) => Some(deliver.consumer_tag.to_owned()),
        _ => None,
    }
}

fn tag_of(wire: &Wire) -> u64 {
    match wire.method() {
        Method::BasicDeliver(deliver) => deliver.delivery_tag,
        Method::BasicGetOk(get_ok) => get_ok.delivery_tag,
        other => panic!("{} is no delivery", other.name()),
    }
}

/// Without delivery tags, and with headers in the order of their names (§8.6).
fn comparable(wire: &Wire) -> Wire {
    let plain = match wire.method() {
        Method::BasicDeliver(deliver) => Wire::new(wire.channel, &basic::Deliver { delivery_tag: 0, ..deliver }.into()),
        Method::BasicGetOk(get_ok) => Wire::new(wire.channel, &basic::GetOk { delivery_tag: 0, ..get_ok }.into()),
        other => Wire::new(wire.channel, &other),
    };
    let Some((properties, body)) = wire.content.clone() else { return plain };
    plain.with_content(canonical(properties), body)
}
