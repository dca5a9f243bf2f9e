//! A channel as its client sees it: what it holds, what it waits for, what it may still get.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use leveret::model::ids::QueueKey;
use leveret_protocol::basic;

use super::sim_books::Books;
use super::sim_client::ClientState;

pub struct ClientChannel {
    pub state: ClientState,
    /// The broker has closed it, whether we have read of that or not.
    pub ended: bool,
    pub delivery_tag: u64,
    pub held: BTreeMap<u64, Held>,
    pub consumers: BTreeMap<String, ClientConsumer>,
    pub waiting_for: VecDeque<Request>,
    pub prefetch: u16,
    pub global_prefetch: u16,
    pub confirms: Option<ClientConfirms>,
    pub tx: bool,
    pub last_queue: String,
    /// The last fresh message of a queue and level that came here.
    pub last_fresh: HashMap<(QueueKey, u8), u64>,
}

/// A delivery that waits for our ack.
#[derive(Clone, Debug)]
pub struct Held {
    pub queue: QueueKey,
    pub body: String,
    /// 0 for basic.get.
    pub consumer: u64,
    /// In a transaction: how it is settled at commit; true means requeued.
    pub settled: Option<bool>,
}

#[derive(Clone, Debug)]
pub struct ClientConsumer {
    pub id: u64,
    pub queue: QueueKey,
    pub no_ack: bool,
    pub prefetch: u16,
}

#[derive(Default)]
pub struct ClientConfirms {
    pub published: u64,
    pub last: u64,
    pub unanswered: BTreeMap<u64, String>,
}

/// A request whose reply has not come.
#[derive(Debug)]
pub enum Request {
    Plain(&'static str),
    /// The queue, unless the server chose its name.
    Declare(Option<QueueKey>),
    Qos(basic::Qos),
    Consume(Option<String>, ClientConsumer),
    Cancel(String),
    Get {
        queue: QueueKey,
        no_ack: bool,
    },
}

impl ClientChannel {
    pub fn new() -> Self {
        Self {
            state: ClientState::Running,
            ended: false,
            delivery_tag: 0,
            held: BTreeMap::new(),
            consumers: BTreeMap::new(),
            waiting_for: VecDeque::from([Request::Plain("channel.open-ok")]),
            prefetch: 0,
            global_prefetch: 0,
            confirms: None,
            tx: false,
            last_queue: String::new(),
            last_fresh: HashMap::new(),
        }
    }

    /// Nothing is asked and unanswered, but for a commit that waits for the store.
    pub fn is_quiet(&self, store_is_idle: bool) -> bool {
        match self.waiting_for.front() {
            None => true,
            Some(_) => !store_is_idle,
        }
    }

    /// Numbers that were published and not answered.
    pub fn unconfirmed(&self) -> usize {
        self.confirms.as_ref().map_or(0, |confirms| confirms.unanswered.len())
    }

    /// Tags that this client may settle.
    pub fn settleable(&self) -> Vec<u64> {
        self.held.iter().filter(|(_, held)| held.settled.is_none()).map(|(tag, _)| *tag).collect()
    }

    /// The consumer could get one more.
    pub fn has_credit(&self, consumer: &ClientConsumer) -> bool {
        let held = self.held.values().filter(|held| held.consumer == consumer.id).count();
        let own = consumer.no_ack || consumer.prefetch == 0 || held < consumer.prefetch.into();
        own && (self.global_prefetch == 0 || self.held.len() < self.global_prefetch.into())
    }

    /// The broker has closed the channel: everything goes back, to these queues.
    pub fn end(&mut self, books: &mut Books) -> Vec<QueueKey> {
        self.ended = true;
        let mut queues: Vec<QueueKey> = self.consumers.values().map(|consumer| consumer.queue).collect();
        queues.extend(self.held.values().map(|held| held.queue));
        queues.extend(self.waiting_for.iter().filter_map(|request| match request {
            Request::Consume(_, ClientConsumer { queue, .. }) | Request::Get { queue, .. } => Some(*queue),
            _ => None,
        }));
        for held in std::mem::take(&mut self.held).into_values() {
            books.returned(held.queue, &held.body);
        }
        queues
    }

    /// Tags that an ack or nack covers; none if the broker must refuse it.
    pub fn covered(&self, tag: u64, multiple: bool) -> Vec<u64> {
        let tags = self.settleable();
        match (multiple, tag) {
            (true, 0) => tags,
            (true, _) if tags.contains(&tag) => tags.into_iter().filter(|other| *other <= tag).collect(),
            (false, _) if tags.contains(&tag) => vec![tag],
            _ => Vec::new(),
        }
    }

    /// Settles these: requeued or not. In a transaction this only notes it.
    pub fn settle(&mut self, tags: Vec<u64>, requeue: bool, books: &mut Books) {
        for tag in tags {
            if self.tx {
                self.held.get_mut(&tag).expect("it is held").settled = Some(requeue);
            } else {
                let held = self.held.remove(&tag).expect("it is held");
                if requeue {
                    books.returned(held.queue, &held.body);
                }
            }
        }
    }

    /// A delivery of any kind arrived.
    pub fn take_in(&mut self, tag: u64, held: Held, no_ack: bool, books: &mut Books) {
        assert_eq!(tag, self.delivery_tag + 1, "delivery tags rise by one");
        self.delivery_tag = tag;
        if self.ended {
            // It was on its way when the channel ended, and has gone back.
            books.returned(held.queue, &held.body);
        } else if !no_ack {
            self.held.insert(tag, held);
        }
    }
}

impl ClientChannel {
    /// The bodies that an answer covers.
    pub fn confirmed(&mut self, last: u64, multiple: bool) -> Vec<String> {
        let confirms = self.confirms.as_mut().expect("confirms on a channel that asked for them");
        assert!(last > confirms.last, "confirms rise: {last} after {}", confirms.last);
        assert!(confirms.unanswered.contains_key(&last), "confirm of {last}, which waits for none");
        confirms.last = last;
        let covered: BTreeSet<u64> = match multiple {
            true => confirms.unanswered.range(..=last).map(|(number, _)| *number).collect(),
            false => BTreeSet::from([last]),
        };
        covered.iter().filter_map(|number| confirms.unanswered.remove(number)).collect()
    }

    /// What the transaction has settled.
    pub fn settled_in_tx(&self) -> Vec<u64> {
        self.held.iter().filter(|(_, held)| held.settled.is_some()).map(|(tag, _)| *tag).collect()
    }
}
