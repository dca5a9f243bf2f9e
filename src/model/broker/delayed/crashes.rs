//! Crashes at any moment, by chance: nothing that was confirmed is lost, and nothing is there twice.

use std::collections::{BTreeMap, BTreeSet};

use leveret_protocol::basic;
use proptest::prelude::*;

use super::tests::{commit, persistent, publish, restarted, rig};
use crate::model::broker::testing::{Rig, Sent};
use crate::storage::memory::FaultyMemoryStore;

#[derive(Clone, Debug)]
enum Step {
    Publish {
        delay_ms: i64,
    },
    Wait {
        ms: u64,
    },
    /// A consumer takes one message for good.
    Take,
    Commit,
    Crash {
        down_ms: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..200_i64).prop_map(|delay_ms| Step::Publish { delay_ms }),
        4 => (0..100_u64).prop_map(|ms| Step::Wait { ms }),
        2 => Just(Step::Take),
        3 => Just(Step::Commit),
        1 => (0..100_u64).prop_map(|down_ms| Step::Crash { down_ms }),
    ]
}

/// How often each message is there, held back or in the queue.
fn places(rig: &Rig) -> BTreeMap<String, usize> {
    let exchange = rig.broker.topology().find("d").unwrap();
    let held = &rig.broker.delayed[exchange].messages;
    let mut bodies = rig.bodies("q");
    let mut next = 0;
    while let Some(seq) = held.next_live(next) {
        next = seq + 1;
        bodies.push(String::from_utf8(held.get(seq).unwrap().0.inline_body.to_vec()).unwrap());
    }
    let mut places = BTreeMap::new();
    for body in bodies {
        *places.entry(body).or_default() += 1;
    }
    places
}

proptest! {
    #[test]
    fn s16_no_crash_loses_or_doubles_what_was_confirmed(steps in prop::collection::vec(step(), 1..80)) {
        let (mut rig, mut store) = (rig(), FaultyMemoryStore::new());
        commit(&mut rig, &mut store);
        let (mut published, mut confirmed, mut taken) = (0, BTreeSet::new(), BTreeSet::new());
        // Since the last commit.
        let (mut new, mut new_taken) = (BTreeSet::new(), BTreeSet::new());
        for step in steps {
            match step {
                Step::Publish { delay_ms } => {
                    published += 1;
                    publish(&mut rig, "k", &persistent(delay_ms), &published.to_string());
                    new.insert(published.to_string());
                }
                Step::Wait { ms } => drop(rig.wait(ms)),
                Step::Take => {
                    let sent = rig.send(basic::Get { queue: "q", no_ack: true }.into());
                    new_taken.extend(sent.into_iter().filter_map(|sent| match sent {
                        Sent::Content(_, body) => String::from_utf8(body).ok(),
                        Sent::Method(_) => None,
                    }));
                }
                Step::Commit => {
                    commit(&mut rig, &mut store);
                    confirmed.append(&mut new);
                    taken.append(&mut new_taken);
                }
                Step::Crash { down_ms } => {
                    rig = restarted(rig, &mut store, down_ms);
                    new.clear();
                    new_taken.clear();
                    let expected: BTreeMap<_, _> = confirmed.difference(&taken).map(|body| (body.clone(), 1)).collect();
                    prop_assert_eq!(places(&rig), expected);
                }
            }
        }
        rig.wait(200);
        let left: BTreeSet<String> = rig.bodies("q").into_iter().collect();
        let all: BTreeSet<String> = confirmed.union(&new).cloned().collect();
        let gone: BTreeSet<String> = taken.union(&new_taken).cloned().collect();
        prop_assert_eq!(left, all.difference(&gone).cloned().collect());
    }
}
