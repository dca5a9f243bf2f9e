//! What queues have counted, as `message_stats` shows it (management reference 1.4).

use std::ops::AddAssign;

use serde_json::{Map, Value, json};

use crate::model::queue::QueueStats;

/// Messages that went in and out, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub publish: u64,
    pub deliver: u64,
    pub deliver_no_ack: u64,
    pub get: u64,
    pub get_no_ack: u64,
    pub get_empty: u64,
    pub redeliver: u64,
    pub ack: u64,
}

impl Counts {
    pub fn of(stats: &QueueStats) -> Self {
        let deliver_no_ack = stats.delivered_no_ack - stats.got_no_ack;
        Self {
            publish: stats.entered,
            deliver: stats.delivered - stats.got - deliver_no_ack,
            deliver_no_ack,
            get: stats.got - stats.got_no_ack,
            get_no_ack: stats.got_no_ack,
            get_empty: stats.got_empty,
            redeliver: stats.redelivered,
            ack: stats.acked - stats.sent_no_ack,
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.publish += other.publish;
        self.deliver += other.deliver;
        self.deliver_no_ack += other.deliver_no_ack;
        self.get += other.get;
        self.get_no_ack += other.get_no_ack;
        self.get_empty += other.get_empty;
        self.redeliver += other.redeliver;
        self.ack += other.ack;
    }
}

pub fn counts_json(counts: &Counts) -> Value {
    let deliver_get = counts.deliver + counts.deliver_no_ack + counts.get + counts.get_no_ack;
    let fields = [
        ("publish", counts.publish),
        ("deliver", counts.deliver),
        ("deliver_no_ack", counts.deliver_no_ack),
        ("get", counts.get),
        ("get_no_ack", counts.get_no_ack),
        ("get_empty", counts.get_empty),
        ("deliver_get", deliver_get),
        ("redeliver", counts.redeliver),
        ("ack", counts.ack),
    ];
    with_rates(fields)
}

/// Each number with its `_details`.
pub fn with_rates<const N: usize>(fields: [(&str, u64); N]) -> Value {
    let mut all = Map::new();
    for (name, value) in fields {
        all.insert(name.to_owned(), value.into());
        all.insert(format!("{name}_details"), json!({"rate": 0.0}));
    }
    Value::Object(all)
}
