//! Messages that leave a queue without an ack: to the dead-letter exchange, with a record of their deaths (§11.3).

use bytes::Bytes;
use leveret_protocol::{FieldTable, FieldValue};

use super::Reference;
use super::messages::header_keys;
use super::queue::Message;

/// An entry of x-death.
#[derive(Clone)]
pub struct Event {
    queue: String,
    reason: &'static str,
    count: i64,
    time: u64,
    exchange: String,
    routing_keys: Vec<String>,
    expiration: Option<Bytes>,
}

/// A message that has left its queue for the dead-letter exchange.
pub struct Death {
    message: Message,
    queue: String,
    reason: &'static str,
    exchange: String,
    routing_key: Option<String>,
}

impl Reference {
    /// §11.3: leaves for the dead-letter exchange, if the queue has one.
    pub(super) fn die(&mut self, queue: u64, message: Message, reason: &'static str) {
        let queue = self.queue(queue).expect("it is there");
        if let Some(exchange) = queue.text("x-dead-letter-exchange") {
            let routing_key = queue.text("x-dead-letter-routing-key").map(str::to_owned);
            let (exchange, queue) = (exchange.to_owned(), queue.name.clone());
            self.deaths.push(Death { message, queue, reason, exchange, routing_key });
        }
    }

    pub(super) fn process_deaths(&mut self) {
        while !self.deaths.is_empty() {
            let death = self.deaths.remove(0);
            self.dead_letter(death);
        }
    }

    fn dead_letter(&mut self, death: Death) {
        let Death { mut message, queue, reason, exchange, routing_key } = death;
        if !self.exchanges.iter().any(|known| known.name == exchange) {
            return;
        }
        let cc = header_keys(&message.properties, "CC");
        let mut keys = vec![message.routing_key.clone()];
        keys.extend(cc.clone());
        let died_with = keys.clone();
        match &routing_key {
            Some(key) => {
                keys = vec![key.clone()];
                message.bcc.clear();
            }
            None => keys.extend(message.bcc.clone()),
        }
        let expiration = message.properties.expiration.take();
        let known = message.history.iter().position(|event| event.queue == queue && event.reason == reason);
        let mut event = match known {
            Some(at) => message.history.remove(at),
            None => Event {
                queue: queue.clone(),
                reason,
                count: 0,
                time: self.now / 1000,
                exchange: message.exchange.clone(),
                routing_keys: died_with,
                expiration,
            },
        };
        event.count += 1;
        message.history.insert(0, event);
        let last = (reason.to_owned(), queue, message.exchange.clone());
        message.first_death.get_or_insert(last.clone());
        show_deaths(&mut message, &last);
        message.exchange = exchange;
        message.routing_key = keys[0].clone();
        message.redelivered = false;
        let mut queues = self.route(&message.exchange, &keys, &message.properties);
        queues.retain(|target| {
            let name = &self.queues.iter().find(|queue| queue.id == *target).expect("routes lead to queues").name;
            reason == "rejected" || !is_cycle(&message.history, name)
        });
        self.enqueue_all(&queues, &message, None);
    }
}

/// The headers that tell of a message's deaths.
fn show_deaths(message: &mut Message, last: &(String, String, String)) {
    let text = |text: &str| FieldValue::from(text);
    let show = |event: &Event| {
        let mut table = FieldTable::new();
        if let Some(expiration) = &event.expiration {
            table.insert("original-expiration", FieldValue::LongString(expiration.clone()));
        }
        table.insert("count", event.count);
        table.insert("reason", event.reason);
        table.insert("queue", event.queue.as_str());
        table.insert("time", FieldValue::Timestamp(event.time));
        table.insert("exchange", event.exchange.as_str());
        table.insert("routing-keys", event.routing_keys.iter().map(|key| text(key)).collect::<Vec<_>>());
        FieldValue::Table(table)
    };
    let deaths: Vec<FieldValue> = message.history.iter().map(show).collect();
    let headers = message.properties.headers.get_or_insert_with(FieldTable::new);
    headers.insert("x-death", deaths);
    let first = message.first_death.as_ref().expect("it has died");
    for (when, (reason, queue, exchange)) in [("first", first), ("last", last)] {
        headers.insert(&format!("x-{when}-death-reason"), text(reason));
        headers.insert(&format!("x-{when}-death-queue"), text(queue));
        headers.insert(&format!("x-{when}-death-exchange"), text(exchange));
    }
}

/// §11.3: it was here before, and nobody has rejected it since.
fn is_cycle(history: &[Event], queue: &str) -> bool {
    match history.iter().position(|event| event.queue == queue) {
        Some(at) => history[..=at].iter().all(|event| event.reason != "rejected"),
        None => false,
    }
}
