//! What the clients know about every message, and what follows for where it may be after a crash.
//!
//! A message is published into a chain: a queue, and maybe a second one to which the broker moves it by
//! itself. Of every copy the ledger keeps the set of places where the data folder may have it. What is only
//! sent widens the set, since it may be on disk or not; what is proved to be on disk narrows it. A place
//! outside the set is a violation.

use std::collections::{BTreeMap, HashMap};

/// Not in the data folder yet.
const ABSENT: u8 = 1;
/// In the first, or the second queue of its chain.
const IN_QUEUE: [u8; 2] = [2, 4];
/// Gone for ever.
const GONE: u8 = 8;

/// Violations that are worth reading.
const VIOLATIONS_MAX: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Chain {
    Plain,
    FanA,
    FanB,
    /// A rejected message goes to `dead`.
    Work,
    /// A message goes to `expired` after a short time.
    Ttl,
    Tx,
    /// Three priorities.
    Lanes,
    Quorum,
    /// A message is held back for a short time before it is in the queue. Its two places are told apart by nobody.
    Delayed,
    /// Whatever is published to see a confirm come back.
    Marks,
}

impl Chain {
    pub const ALL: [Self; 10] = [
        Self::Plain,
        Self::FanA,
        Self::FanB,
        Self::Work,
        Self::Ttl,
        Self::Tx,
        Self::Lanes,
        Self::Quorum,
        Self::Delayed,
        Self::Marks,
    ];

    pub fn queues(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &["plain"],
            Self::FanA => &["fan.a"],
            Self::FanB => &["fan.b"],
            Self::Work => &["work", "dead"],
            Self::Ttl => &["ttl", "expired"],
            Self::Tx => &["tx"],
            Self::Lanes => &["lanes"],
            Self::Quorum => &["quorum"],
            Self::Delayed => &["delayed"],
            Self::Marks => &["marks"],
        }
    }
}

/// A queue: the chain, and 0 or 1 for its first or second queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub chain: Chain,
    pub stage: usize,
}

impl Place {
    /// Every queue; the first of a chain before the second.
    pub fn all() -> impl Iterator<Item = Self> {
        Chain::ALL.into_iter().flat_map(|chain| (0..chain.queues().len()).map(move |stage| Self { chain, stage }))
    }

    pub fn queue(self) -> &'static str {
        self.chain.queues()[self.stage]
    }

    /// Do messages come in here in the order of their publishes?
    fn keeps_order(self) -> bool {
        // `dead` is in the order of rejects.
        self != Self { chain: Chain::Work, stage: 1 }
    }
}

/// Publisher in the upper half, its counter in the lower.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u64);

impl Id {
    pub fn new(publisher: u32, number: u32) -> Self {
        Self(u64::from(publisher) << 32 | u64::from(number))
    }

    pub fn publisher(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The priority it is published with.
    pub fn priority(self) -> u8 {
        (self.0 % 3) as u8
    }
}

impl std::fmt::Debug for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.publisher(), self.0 as u32)
    }
}

/// How a client settles a delivery for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Acked,
    /// Without requeue.
    Rejected,
}

/// A message as it was found in a queue.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub id: Id,
    pub redelivered: bool,
}

/// Everything that was found, queue by queue, each in its order.
pub type Sight = Vec<(Place, Vec<Seen>)>;

#[derive(Debug)]
struct Copy {
    places: u8,
    persistent: bool,
    /// All copies with this number came in together or not at all.
    unit: u64,
    /// By stage: a client has received it there.
    delivered: [bool; 2],
    /// A settlement was sent to the broker that runs now, in that stage.
    settled: [bool; 2],
}

#[derive(Default)]
pub struct Ledger {
    copies: BTreeMap<(Chain, Id), Copy>,
    units: u64,
    pub violations: Vec<String>,
    /// Publishes that were confirmed.
    pub confirmed: u64,
    /// Settlements that were proved.
    pub proved: u64,
}

impl Ledger {
    pub fn violation(&mut self, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(what);
        }
    }

    /// Copies that will come in together or not at all.
    pub fn publishing(&mut self, copies: &[(Chain, Id)], persistent: bool) {
        self.units += 1;
        for &(chain, id) in copies {
            // The second queue is reached without anybody's doing.
            let moves = if chain == Chain::Ttl { IN_QUEUE[1] } else { 0 };
            let copy = Copy {
                places: ABSENT | IN_QUEUE[0] | moves,
                persistent: persistent || chain == Chain::Quorum,
                unit: self.units,
                delivered: [false; 2],
                settled: [false; 2],
            };
            assert!(self.copies.insert((chain, id), copy).is_none(), "{id:?} is published twice");
        }
    }

    pub fn confirmed(&mut self, copies: &[(Chain, Id)]) {
        self.confirmed += 1;
        for key in copies {
            self.copy(key).places &= !ABSENT;
        }
    }

    /// The broker said that it did not take them.
    pub fn refused(&mut self, copies: &[(Chain, Id)]) {
        for key in copies {
            self.copy(key).places = ABSENT;
        }
    }

    /// A client got it from there.
    pub fn delivered(&mut self, place: Place, seen: Seen) {
        let Seen { id, redelivered } = seen;
        let Some(copy) = self.copies.get_mut(&(place.chain, id)) else {
            return self.violation(format!("{id:?} delivered from {}, never published there", place.queue()));
        };
        let before = std::mem::replace(&mut copy.delivered[place.stage], true);
        let (places, settled) = (copy.places, copy.settled);
        if places & IN_QUEUE[place.stage] == 0 {
            self.violation(format!(
                "{id:?} delivered from {}, but it was {}",
                place.queue(),
                names(place.chain, places)
            ));
        } else if settled[place.stage] {
            self.violation(format!("{id:?} delivered from {} after it was settled there", place.queue()));
        } else if before && !redelivered {
            self.violation(format!("{id:?} delivered again from {}, not marked redelivered", place.queue()));
        }
    }

    /// The settlement is about to be sent.
    pub fn settling(&mut self, place: Place, id: Id, fate: Fate) {
        let copy = self.copy(&(place.chain, id));
        copy.places |= if moves(place, fate) { IN_QUEUE[1] } else { GONE };
        copy.settled[place.stage] = true;
    }

    /// The settlement is on disk.
    pub fn settled(&mut self, place: Place, id: Id, fate: Fate) {
        self.proved += 1;
        let copy = self.copy(&(place.chain, id));
        if moves(place, fate) {
            copy.places &= !(ABSENT | IN_QUEUE[0]);
        } else {
            copy.places = GONE;
        }
    }

    /// Compares what was found after a restart with what may be, and takes it for what is from now on.
    /// `clean`: the broker was stopped properly.
    pub fn compare(&mut self, sight: &Sight, clean: bool) {
        let mut found: HashMap<(Chain, Id), usize> = HashMap::new();
        for (place, messages) in sight {
            self.check_order(*place, messages);
            for seen in messages {
                self.check_seen(*place, *seen, clean);
                if found.insert((place.chain, seen.id), place.stage).is_some() {
                    self.violation(format!("{:?} is twice in the queues of {:?}", seen.id, place.chain));
                }
            }
        }
        self.check_missing(&found);
        for ((chain, id), copy) in &mut self.copies {
            copy.settled = [false; 2];
            match found.get(&(*chain, *id)) {
                Some(&stage) => {
                    copy.delivered = [false; 2];
                    copy.delivered[stage] = true;
                    copy.places = IN_QUEUE[stage];
                    if *chain == Chain::Ttl {
                        copy.places |= IN_QUEUE[1];
                    }
                }
                None => copy.places = GONE,
            }
        }
    }

    /// What was found was taken out for good.
    pub fn emptied(&mut self, sight: &Sight) {
        for (place, messages) in sight {
            for seen in messages {
                self.copy(&(place.chain, seen.id)).places = GONE;
            }
        }
    }

    fn check_order(&mut self, place: Place, messages: &[Seen]) {
        if !place.keeps_order() {
            return;
        }
        let mut last: HashMap<(u32, u8), Id> = HashMap::new();
        for seen in messages {
            let lane = if place.chain == Chain::Lanes { seen.id.priority() } else { 0 };
            if place.chain == Chain::Quorum && self.was_delivered(place, seen.id) {
                // It may have come back, before those that were never handed out.
                continue;
            }
            if let Some(before) = last.insert((seen.id.publisher(), lane), seen.id)
                && before > seen.id
            {
                self.violation(format!("{:?} comes after {before:?} in {}", seen.id, place.queue()));
            }
        }
        if place.chain == Chain::Lanes && !messages.is_sorted_by_key(|seen| std::cmp::Reverse(seen.id.priority())) {
            self.violation("a lower priority comes before a higher one".to_owned());
        }
    }

    fn was_delivered(&self, place: Place, id: Id) -> bool {
        self.copies.get(&(place.chain, id)).is_some_and(|copy| copy.delivered[place.stage])
    }

    fn check_seen(&mut self, place: Place, seen: Seen, clean: bool) {
        let (id, queue) = (seen.id, place.queue());
        let Some(copy) = self.copies.get(&(place.chain, id)) else {
            return self.violation(format!("{id:?} is in {queue}, never published there"));
        };
        let (places, persistent, delivered) = (copy.places, copy.persistent, copy.delivered[place.stage]);
        if places & IN_QUEUE[place.stage] == 0 {
            self.violation(format!("{id:?} is in {queue}, but it was {}", names(place.chain, places)));
        }
        if !persistent {
            self.violation(format!("{id:?} is in {queue}, but it is transient"));
        }
        // It may have come into the queue once more, after the restart.
        let afresh = place == Place { chain: Chain::Ttl, stage: 1 } && places & IN_QUEUE[0] != 0
            || place.chain == Chain::Delayed && !clean;
        if delivered && !seen.redelivered && !afresh {
            self.violation(format!("{id:?} in {queue} was delivered before, and is not marked redelivered"));
        }
        if clean && !delivered && seen.redelivered {
            self.violation(format!("{id:?} in {queue} was never delivered, and is marked redelivered"));
        }
    }

    fn check_missing(&mut self, found: &HashMap<(Chain, Id), usize>) {
        let mut lost = Vec::new();
        let mut split = Vec::new();
        let units: HashMap<u64, Id> =
            found.keys().filter_map(|key| self.copies.get(key).map(|copy| (copy.unit, key.1))).collect();
        for (key, copy) in self.copies.iter().filter(|(key, _)| !found.contains_key(key)) {
            if !copy.persistent || copy.places & GONE != 0 {
                continue;
            }
            if copy.places & ABSENT == 0 {
                lost.push(format!("{:?} is lost; it was {}", key.1, names(key.0, copy.places)));
            } else if let Some(other) = units.get(&copy.unit) {
                split.push(format!("{:?} of {:?} is missing, but {other:?} of the same moment is there", key.1, key.0));
            }
        }
        lost.into_iter().chain(split).for_each(|what| self.violation(what));
    }

    fn copy(&mut self, key: &(Chain, Id)) -> &mut Copy {
        self.copies.get_mut(key).unwrap_or_else(|| panic!("{key:?} was never published"))
    }
}

/// Does that bring it into the second queue?
fn moves(place: Place, fate: Fate) -> bool {
    place == Place { chain: Chain::Work, stage: 0 } && fate == Fate::Rejected
}

fn names(chain: Chain, places: u8) -> String {
    let queues = chain.queues().iter().zip(IN_QUEUE).filter(|(_, bit)| places & bit != 0).map(|(queue, _)| *queue);
    let absent = (places & ABSENT != 0).then_some("not confirmed");
    let gone = (places & GONE != 0).then_some("settled");
    let all: Vec<&str> = absent.into_iter().chain(queues).chain(gone).collect();
    all.join(" or ")
}
