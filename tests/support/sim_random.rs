//! Random scripts: the next line of a run, from a seed and from what the clients have seen so far.
//!
//! Each seed uses some of the features only, so that some runs go deep into a few of them.

use super::sim::{Sim, is_running};
use super::sim_channel::ClientChannel;
use super::sim_client::{Client, ClientState};

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

/// What kind of script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Partial reads, a slow store, crashes, late timers.
    Simulation,
    /// For comparison with the reference: everything is read and stored after each line.
    Lockstep,
    /// The same where messages come from the disk: those that expire or are dropped go one page after the other, and
    /// so their dead letters would arrive in turns that the reference does not know of.
    PagedLockstep,
}

/// What this script uses.
struct Features {
    ttl: bool,
    limits: bool,
    dead_letters: bool,
    priorities: bool,
    single_active: bool,
    exclusive: bool,
    auto_delete: bool,
    expires: bool,
    timeouts: bool,
    tx: bool,
    confirms: bool,
    global_prefetch: bool,
    consumer_priorities: bool,
    extra_keys: bool,
    topology: bool,
    large: bool,
    batches: bool,
    errors: bool,
    restarts: bool,
    partial: bool,
    slow_store: bool,
    late_timers: bool,
}

pub struct Generator {
    random: Random,
    kind: Kind,
    uses: Features,
    bodies: u64,
    consumers: u64,
    /// Tags that this line has settled.
    settled: Vec<u64>,
    /// Options that the queues and exchanges were declared with last.
    declared: std::collections::BTreeMap<String, String>,
    /// What there is at the moment: mistakes should not be the rule.
    queues: Vec<&'static str>,
    exchanges: Vec<&'static str>,
}

const QUEUES: [&str; 5] = ["q0", "q1", "q2", "q3", "q4"];
const EXCHANGES: [&str; 4] = ["x0", "x1", "x2", "x3"];
const SYSTEM_EXCHANGES: [&str; 4] = ["amq.direct", "amq.fanout", "amq.topic", "amq.headers"];
const ROUTING_KEYS: [&str; 7] = ["a", "b", "a.b", "a.c.b", "''", "q0", "b."];
const BINDING_KEYS: [&str; 11] = ["a", "b", "a.b", "*", "#", "a.*", "#.b", "a.#", "*.#.b", "''", "q1"];

type Choice = (usize, fn(&mut Generator, &ClientChannel) -> String);

impl Generator {
    pub fn new(seed: u64, kind: Kind) -> Self {
        let mut random = Random::new(seed);
        let mut feature = |percent| random.chance(percent);
        let simulation = kind == Kind::Simulation;
        let all_at_once = kind != Kind::PagedLockstep;
        let uses = Features {
            ttl: feature(40),
            limits: feature(40),
            dead_letters: feature(40) && all_at_once,
            priorities: feature(30),
            single_active: feature(20),
            exclusive: feature(30),
            auto_delete: feature(30),
            expires: feature(30),
            timeouts: feature(20) && simulation,
            tx: feature(40),
            confirms: feature(60),
            global_prefetch: feature(30),
            consumer_priorities: feature(30),
            extra_keys: feature(20),
            topology: feature(50),
            large: feature(20),
            batches: feature(50),
            errors: feature(40),
            restarts: feature(40),
            partial: feature(60) && simulation,
            slow_store: feature(60) && simulation,
            late_timers: feature(30) && simulation,
        };
        Self {
            random,
            kind,
            uses,
            bodies: 0,
            consumers: 0,
            settled: Vec::new(),
            declared: Default::default(),
            queues: Vec::new(),
            exchanges: Vec::new(),
        }
    }

    /// The next line.
    pub fn line(&mut self, sim: &Sim) -> String {
        let roll = self.random.below(1000);
        match roll {
            0..60 => return format!("time {}", self.random.pick(&[1, 5, 10, 30, 100, 400])),
            60..70 if self.uses.late_timers => return format!("clock {}", self.random.pick(&[1, 10, 50])),
            70..76 if self.uses.restarts => return self.random.pick(&["crash", "crash", "stop"]).to_owned(),
            80..250 if self.kind == Kind::Simulation => return self.outside(),
            _ => {}
        }
        self.queues = QUEUES.into_iter().filter(|name| sim.broker.queue(name).is_some()).collect();
        self.exchanges = EXCHANGES.into_iter().filter(|name| sim.broker.topology().find(name).is_some()).collect();
        let connection = self.random.below(4);
        let Some(client) = sim.client(connection) else {
            let frame_max = self.random.pick(&["", " frame_max=4096"]);
            return format!("c{connection} open{frame_max}");
        };
        if client.state == ClientState::Failed && self.random.chance(70) {
            return format!("c{connection} connection.close-ok");
        }
        match self.random.below(300) {
            0 => return format!("c{connection} lost"),
            1 if is_running(client) => return format!("c{connection} connection.close"),
            2 if self.uses.errors => return format!("c{connection} channel.open"),
            _ => {}
        }
        let number = 1 + self.random.below(2) as u16;
        if client.channels.get(&number).is_some_and(|channel| channel.state == ClientState::Closing) {
            return format!("poll c{connection}");
        }
        let commands = self.commands(client, number);
        format!("c{connection}.{number} {commands}")
    }

    /// What happens around the broker.
    fn outside(&mut self) -> String {
        let slow_store = self.uses.slow_store && self.random.chance(90);
        if self.random.chance(40) {
            let steps = [
                "store.take",
                "store.write",
                "store.done",
                "store.take",
                "store.write",
                "store.done",
                "store.fail",
                "page",
                "page",
                "page",
            ];
            return if slow_store { self.random.pick(&steps) } else { "store" }.to_owned();
        }
        if self.uses.partial && self.random.chance(90) {
            return format!("poll c{} {}", self.random.below(4), self.random.pick(&[1, 1, 300, 5000, 1_000_000]));
        }
        "poll".to_owned()
    }

    fn commands(&mut self, client: &Client, number: u16) -> String {
        let Some(channel) = client.channels.get(&number) else { return "channel.open".to_owned() };
        if channel.state == ClientState::Failed {
            return "channel.close-ok".to_owned();
        }
        if self.queues.is_empty() || self.queues.len() < 3 && self.random.chance(20) {
            return self.declare_queue();
        }
        let count = if self.uses.batches && self.random.chance(30) { 2 + self.random.below(3) } else { 1 };
        let mut commands = Vec::new();
        self.settled.clear();
        for _ in 0..count {
            let command = self.command(channel);
            let last = command.starts_with("tx.commit") || command.starts_with("channel.close");
            commands.push(command);
            if last {
                break;
            }
        }
        commands.join("; ")
    }

    fn command(&mut self, channel: &ClientChannel) -> String {
        let held = usize::from(!channel.held.is_empty());
        let topology = usize::from(self.uses.topology);
        let in_tx = usize::from(channel.tx);
        let choices: [Choice; 24] = [
            (400, Self::publish),
            (330 * held, Self::settle),
            (90, Self::consume),
            (30, Self::cancel),
            (50, |this, _| {
                let no_ack = if this.random.chance(30) { " no-ack" } else { "" };
                format!("basic.get {}{no_ack}", this.queue())
            }),
            (30, Self::qos),
            (70, |this, _| this.declare_queue()),
            (8, |this, _| {
                let condition = this.random.pick(&["", "", " if-unused", " if-empty"]);
                format!("queue.delete {}{condition}", this.queue())
            }),
            (10, |this, _| format!("queue.purge {}", this.queue())),
            (30 + 40 * topology, |this, _| format!("queue.bind {}", this.queue_binding())),
            (10 * topology, |this, _| format!("queue.unbind {}", this.queue_binding())),
            (20 + 30 * topology, |this, _| this.declare_exchange()),
            (6 * topology, |this, _| {
                let condition = this.random.pick(&["", " if-unused"]);
                format!("exchange.delete {}{condition}", this.random.pick(&EXCHANGES))
            }),
            (20 * topology, |this, _| format!("exchange.bind {}", this.exchange_binding())),
            (6 * topology, |this, _| format!("exchange.unbind {}", this.exchange_binding())),
            (12 * held, |this, _| this.random.pick(&["basic.recover", "basic.recover-async"]).to_owned()),
            (12 * usize::from(self.uses.confirms && !channel.tx), |_, _| "confirm.select".to_owned()),
            (25 * usize::from(self.uses.tx && channel.confirms.is_none()), |_, _| "tx.select".to_owned()),
            (60 * in_tx, |_, _| "tx.commit".to_owned()),
            (20 * in_tx, |_, _| "tx.rollback".to_owned()),
            (8, |_, _| "channel.close".to_owned()),
            (2, |_, _| "channel.flow".to_owned()),
            (6, |this, _| format!("queue.declare {} passive", this.queue())),
            (10 * usize::from(self.uses.errors), |this, _| this.mistake()),
        ];
        let total: usize = choices.iter().map(|(weight, _)| weight).sum();
        let mut roll = self.random.below(total);
        for (weight, choice) in choices {
            if roll < weight {
                return choice(self, channel);
            }
            roll -= weight;
        }
        unreachable!("the roll is below the total")
    }

    /// A queue that there is, mostly.
    fn queue(&mut self) -> &'static str {
        match self.queues.is_empty() || self.random.chance(1) {
            true => self.random.pick(&QUEUES),
            false => self.random.pick(&self.queues),
        }
    }

    fn exchange(&mut self) -> &'static str {
        match self.random.below(100) {
            0 => self.random.pick(&EXCHANGES),
            1..70 if !self.exchanges.is_empty() => self.random.pick(&self.exchanges),
            _ => self.random.pick(&SYSTEM_EXCHANGES),
        }
    }

    fn publish(&mut self, _: &ClientChannel) -> String {
        self.bodies += 1;
        let mut line = if self.random.chance(65) {
            format!("basic.publish {} m{}", self.queue(), self.bodies)
        } else {
            let (key, exchange) = (self.random.pick(&ROUTING_KEYS), self.exchange());
            format!("basic.publish {key} m{} exchange={exchange}", self.bodies)
        };
        let mut add = |chosen: bool, text: &str| {
            if chosen {
                line.push(' ');
                line.push_str(text);
            }
        };
        let random = &mut self.random;
        add(random.chance(45), "persistent");
        add(random.chance(10), "mandatory");
        add(self.uses.ttl && random.chance(25), &format!("expiration={}", random.pick(&[0, 5, 20, 150])));
        add(self.uses.priorities && random.chance(60), &format!("priority={}", random.below(6)));
        add(self.uses.extra_keys && random.chance(20), &format!("CC=[{},a]", random.pick(&QUEUES)));
        add(self.uses.extra_keys && random.chance(20), &format!("BCC=[{},b]", random.pick(&QUEUES)));
        add(self.uses.topology && random.chance(30), &format!("h={}", random.pick(&["1", "2", "x", "void"])));
        add(self.uses.topology && random.chance(30), &format!("x-k={}", random.pick(&["1", "true"])));
        // The reference knows no client that reads too slowly for more.
        let sizes = if self.kind == Kind::Lockstep { [4095, 4096, 5000] } else { [4096, 20_000, 90_000] };
        add(self.uses.large && random.chance(20), &format!("size={}", random.pick(&sizes)));
        add(
            self.uses.errors && random.chance(1),
            random.pick(&["immediate", "expiration=x", "expiration=-1", "user-id=eve"]),
        );
        line
    }

    fn settle(&mut self, channel: &ClientChannel) -> String {
        let mut tags = channel.settleable();
        tags.retain(|tag| !self.settled.contains(tag));
        let tag = match self.random.below(100) {
            0 if self.uses.errors => self.random.pick(&[0, 9999]),
            _ if tags.is_empty() => return "basic.ack 0 multiple".to_owned(),
            1..5 => {
                self.settled.append(&mut tags);
                return self.random.pick(&["basic.ack 0 multiple", "basic.nack 0 multiple"]).to_owned();
            }
            5..60 => tags[0],
            _ => self.random.pick(&tags),
        };
        let multiple = if self.random.chance(15) { " multiple" } else { "" };
        self.settled.extend(tags.into_iter().filter(|other| *other == tag || !multiple.is_empty() && *other < tag));
        let discard = if self.random.chance(50) { " discard" } else { "" };
        match self.random.below(10) {
            0..6 => format!("basic.ack {tag}{multiple}"),
            6..8 => format!("basic.nack {tag}{multiple}{discard}"),
            _ => format!("basic.reject {tag}{discard}"),
        }
    }

    fn consume(&mut self, _: &ClientChannel) -> String {
        self.consumers += 1;
        let tag = if self.uses.errors && self.random.chance(2) { 1 } else { self.consumers };
        let no_ack = if self.random.chance(25) { " no-ack" } else { "" };
        let exclusive = if self.uses.exclusive && self.random.chance(8) { " exclusive" } else { "" };
        let priority = match self.uses.consumer_priorities && self.random.chance(50) {
            true => format!(" x-priority={}", self.random.pick(&[-1, 1, 5])),
            false => String::new(),
        };
        format!("basic.consume {} tag=t{tag}{no_ack}{exclusive}{priority}", self.queue())
    }

    fn cancel(&mut self, channel: &ClientChannel) -> String {
        let tags: Vec<&String> = channel.consumers.keys().collect();
        match tags.is_empty() {
            true => format!("basic.cancel t{}", self.consumers),
            false => format!("basic.cancel {}", self.random.pick(&tags)),
        }
    }

    fn qos(&mut self, _: &ClientChannel) -> String {
        let global = if self.uses.global_prefetch && self.random.chance(50) { " global" } else { "" };
        format!("basic.qos {}{global}", self.random.pick(&[0, 1, 2, 3, 10]))
    }

    /// The options of a name: mostly those it had before, so that a declaration is equivalent.
    fn options(&mut self, name: &str, fresh: impl FnOnce(&mut Self) -> String) -> String {
        match self.declared.get(name) {
            Some(options) if self.random.chance(93) => options.clone(),
            _ => {
                let options = fresh(self);
                self.declared.insert(name.to_owned(), options.clone());
                options
            }
        }
    }

    fn declare_queue(&mut self) -> String {
        let name = self.random.pick(&QUEUES);
        let options = self.options(name, Self::queue_options);
        format!("queue.declare {name}{options}")
    }

    fn queue_options(&mut self) -> String {
        let mut line = String::new();
        let mut add = |chosen: bool, text: String| {
            if chosen {
                line.push(' ');
                line.push_str(&text);
            }
        };
        let (random, uses) = (&mut self.random, &self.uses);
        add(random.chance(60), "durable".to_owned());
        add(uses.exclusive && random.chance(15), "exclusive".to_owned());
        add(uses.auto_delete && random.chance(25), "auto-delete".to_owned());
        add(uses.ttl && random.chance(35), format!("x-message-ttl={}", random.pick(&[0, 10, 70])));
        add(uses.expires && random.chance(30), format!("x-expires={}", random.pick(&[50, 300])));
        add(uses.timeouts && random.chance(30), format!("x-consumer-timeout={}", random.pick(&[40, 200])));
        if uses.limits && random.chance(60) {
            let max = random.pick(&[0, 1, 2, 5]);
            let bytes = random.chance(20);
            add(!bytes, format!("x-max-length={max}"));
            add(bytes, format!("x-max-length-bytes={}", 4 * max));
            let overflow = random.pick(&["drop-head", "reject-publish", "reject-publish-dlx"]);
            add(random.chance(60), format!("x-overflow={overflow}"));
        }
        if uses.dead_letters && random.chance(60) {
            add(true, format!("x-dead-letter-exchange={}", random.pick(&["''", "''", "x0", "x1", "amq.fanout"])));
            add(random.chance(60), format!("x-dead-letter-routing-key={}", random.pick(&QUEUES)));
        }
        add(uses.priorities && random.chance(50), format!("x-max-priority={}", random.pick(&[1, 3, 5])));
        add(uses.single_active && random.chance(50), "x-single-active-consumer=true".to_owned());
        line
    }

    fn declare_exchange(&mut self) -> String {
        let name = self.random.pick(&EXCHANGES);
        let options = self.options(name, |this| {
            let random = &mut this.random;
            let mut line = format!(" {}", random.pick(&["direct", "fanout", "topic", "headers"]));
            for (percent, option) in [(60, "durable"), (10, "auto-delete"), (2, "internal")] {
                if random.chance(percent) {
                    line = format!("{line} {option}");
                }
            }
            if this.uses.topology && random.chance(30) {
                line = format!("{line} alternate-exchange={}", random.pick(&["x0", "x3", "amq.fanout", "nowhere"]));
            }
            line
        });
        format!("exchange.declare {name}{options}")
    }

    fn queue_binding(&mut self) -> String {
        let arguments = self.binding_arguments();
        format!("{} {} {}{arguments}", self.queue(), self.exchange(), self.random.pick(&BINDING_KEYS))
    }

    fn exchange_binding(&mut self) -> String {
        let arguments = self.binding_arguments();
        format!("{} {} {}{arguments}", self.exchange(), self.exchange(), self.random.pick(&BINDING_KEYS))
    }

    fn binding_arguments(&mut self) -> String {
        let mut line = String::new();
        if self.random.chance(40) {
            line = format!(" h={}", self.random.pick(&["1", "2", "x", "void"]));
        }
        if self.random.chance(20) {
            line = format!("{line} x-k={}", self.random.pick(&["1", "true"]));
        }
        if self.random.chance(40) {
            line = format!("{line} x-match={}", self.random.pick(&["all", "any", "all-with-x", "any-with-x"]));
        }
        line
    }

    /// Something that is refused.
    fn mistake(&mut self) -> String {
        let lines = [
            "queue.declare amq.mine",
            "queue.declare q9 passive",
            "queue.declare qbad x-message-ttl=-1",
            "queue.declare qbad x-expires=0",
            "queue.declare qbad x-max-priority=256",
            "queue.declare qbad x-overflow=maybe",
            "queue.declare qbad x-dead-letter-routing-key=q0",
            "queue.bind q9 amq.direct a",
            "queue.bind q0 x9 a",
            "queue.bind q0 '' a",
            "queue.bind q0 amq.headers a x-match=some",
            "exchange.declare x9 passive",
            "exchange.declare amq.mine direct durable",
            "exchange.declare xbad strange",
            "exchange.declare '' direct",
            "exchange.delete amq.topic",
            "exchange.delete ''",
            "basic.get q9",
            "basic.consume q9 tag=t9",
            "basic.publish a m0 exchange=x9",
            "basic.cancel t9",
            "basic.recover discard",
            "basic.qos 1 prefetch-size=5",
            "channel.open",
            "channel.flow inactive",
            "tx.commit",
            "queue.declare '' passive",
            "queue.purge q9",
            "queue.delete q9",
            "exchange.delete x9",
        ];
        self.random.pick(&lines).to_owned()
    }
}
