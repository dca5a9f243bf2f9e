//! What a queue holds: its messages in no order, its consumers in the order of registration.

use bytes::Bytes;
use leveret_protocol::{FieldTable, FieldValue, Properties};

use super::dead_letter::Event;

pub struct Queue {
    pub id: u64,
    pub name: String,
    pub durable: bool,
    pub owner: Option<usize>,
    pub auto_delete: bool,
    pub arguments: FieldTable,
    /// In no order: see [`Queue::next`].
    pub ready: Vec<Message>,
    /// In the order of registration.
    pub consumers: Vec<Consumer>,
    /// The active one of a single-active-consumer queue.
    pub active: Option<u64>,
    pub last_used: u64,
    /// Messages that ever entered.
    pub places: u64,
}

#[derive(Clone)]
pub struct Consumer {
    pub id: u64,
    pub queue: u64,
    pub connection: usize,
    pub channel: u16,
    pub tag: String,
    pub no_ack: bool,
    pub exclusive: bool,
    pub priority: i64,
    pub prefetch: u16,
    /// Who was served since this one was, while this one had credit (§9.2).
    pub passed_by: Vec<u64>,
}

#[derive(Clone)]
pub struct Message {
    /// Order of entry.
    pub place: u64,
    pub level: u8,
    pub exchange: String,
    pub routing_key: String,
    pub properties: Properties,
    pub body: Bytes,
    pub bcc: Vec<String>,
    pub expires_at: Option<u64>,
    pub redelivered: bool,
    /// Newest first.
    pub history: Vec<Event>,
    pub first_death: Option<(String, String, String)>,
}

impl Queue {
    pub fn number(&self, argument: &str) -> Option<u64> {
        self.arguments.get(argument).and_then(FieldValue::as_integer).map(|number| number as u64)
    }

    pub fn text(&self, argument: &str) -> Option<&str> {
        self.arguments.get(argument).and_then(FieldValue::as_str)
    }

    pub fn is_single_active(&self) -> bool {
        self.arguments.get("x-single-active-consumer") == Some(&FieldValue::Bool(true))
    }

    pub fn level_of(&self, properties: &Properties) -> u8 {
        // 0 behaves like 1 (§11.5).
        let max = self.number("x-max-priority").map_or(0, |max| max.max(1));
        max.min(properties.priority.unwrap_or(0).into()) as u8
    }

    /// The message that goes out next: the oldest of the highest level.
    pub fn next(&self) -> Option<usize> {
        let place = |at: &usize| (std::cmp::Reverse(self.ready[*at].level), self.ready[*at].place);
        (0..self.ready.len()).min_by_key(place)
    }

    pub fn bytes(&self) -> u64 {
        self.ready.iter().map(|message| message.body.len() as u64).sum()
    }

    pub fn is_over_limit(&self) -> bool {
        self.number("x-max-length").is_some_and(|max| self.ready.len() as u64 > max)
            || self.number("x-max-length-bytes").is_some_and(|max| self.bytes() > max)
    }

    /// §11.4, reject-publish: is one more message of this size too much?
    pub fn refuses(&self, size: u64) -> bool {
        let full = self.number("x-max-length").is_some_and(|max| self.ready.len() as u64 + 1 > max)
            || self.number("x-max-length-bytes").is_some_and(|max| self.bytes() + size > max);
        full && self.rejects()
    }

    pub fn rejects(&self) -> bool {
        matches!(self.text("x-overflow"), Some("reject-publish" | "reject-publish-dlx"))
    }
}
