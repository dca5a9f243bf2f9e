//! Exchanges with many bindings, and messages to route.
//!
//! Messages differ from one to the next, so that with many bindings the caches of the processor do not hide
//! what a look-up costs.

use bytes::BytesMut;
use leveret::model::exchange::{Binding, Exchange, ExchangeKind, RouteInput, Topology};
use leveret::model::ids::{Destination, ExchangeKey, QueueKey};
use leveret_protocol::{FieldTable, FieldValue, Properties, RawProperties};
use slotmap::SlotMap;

/// A vhost with one exchange, and messages for it, each of which must reach so many queues.
pub struct Routes {
    pub topology: Topology,
    pub exchange: ExchangeKey,
    pub queues: SlotMap<QueueKey, ()>,
    messages: Vec<Message>,
    reached: usize,
    out: Vec<QueueKey>,
}

impl Routes {
    fn new(kind: ExchangeKind, reached: usize) -> Self {
        let mut topology = Topology::new();
        let exchange = topology.declare(Exchange {
            name: "x".into(),
            kind,
            durable: true,
            auto_delete: false,
            internal: false,
            arguments: FieldTable::new(),
            alternate: None,
        });
        Self { topology, exchange, queues: SlotMap::with_key(), messages: Vec::new(), reached, out: Vec::new() }
    }

    /// A binding to a new queue.
    fn bind(&mut self, binding_key: &str, arguments: FieldTable) {
        let queue = Destination::Queue(self.queues.insert(()));
        let binding = Binding::new(self.exchange, queue, binding_key.as_bytes(), arguments);
        self.topology.bind(binding).expect("bindings of new queues are new");
    }

    /// Routes one of the messages, in turn.
    pub fn route(&mut self, turn: usize) {
        self.out.clear();
        let message = &self.messages[turn % self.messages.len()];
        let keys: [&[u8]; 1] = [message.key.as_bytes()];
        let properties = RawProperties::from_bytes(&message.properties);
        let input = RouteInput { keys: &keys, properties, random: turn as u64 };
        self.topology.route(self.exchange, &input, &|_| None, &mut self.out);
        assert_eq!(self.out.len(), self.reached);
    }
}

struct Message {
    key: String,
    properties: BytesMut,
}

fn message(key: impl Into<String>, headers: Option<FieldTable>) -> Message {
    let mut properties = BytesMut::new();
    Properties { headers, ..Properties::default() }.encode(&mut properties);
    Message { key: key.into(), properties }
}

/// Numbers below `bound` in an order without a pattern.
fn scattered(bound: usize) -> impl Iterator<Item = usize> {
    (0..10_000).map(move |turn: usize| turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) / 7 % bound)
}

pub fn direct(bindings: usize) -> Routes {
    let mut routes = Routes::new(ExchangeKind::Direct, 1);
    for number in 0..bindings {
        routes.bind(&format!("orders.{number}"), FieldTable::new());
    }
    routes.messages = scattered(bindings).map(|n| message(format!("orders.{n}"), None)).collect();
    routes
}

pub fn fanout(bindings: usize) -> Routes {
    let mut routes = Routes::new(ExchangeKind::Fanout, bindings);
    for _ in 0..bindings {
        routes.bind("", FieldTable::new());
    }
    routes.messages = vec![message("k", None)];
    routes
}

/// Of 100,000 bindings four match: a plain one and three with wildcards.
pub fn topic_100k() -> Routes {
    let mut routes = Routes::new(ExchangeKind::Topic, 4);
    let (regions, devices) = (100, 1000);
    for device in 0..devices {
        for region in 0..regions - 2 {
            routes.bind(&format!("region.{region}.device.{device}"), FieldTable::new());
        }
        routes.bind(&format!("region.*.device.{device}"), FieldTable::new());
        routes.bind(&format!("region.#.{device}"), FieldTable::new());
    }
    routes.bind("#.device.#", FieldTable::new());
    routes.messages = scattered((regions - 2) * devices)
        .map(|n| message(format!("region.{}.device.{}", n / devices, n % devices), None))
        .collect();
    routes
}

/// Of 10,000 bindings for two arguments one matches; the messages have five headers.
pub fn headers_10k() -> Routes {
    let mut routes = Routes::new(ExchangeKind::Headers, 1);
    let arguments = |id: usize| -> FieldTable {
        [("type", FieldValue::from("order")), ("id", FieldValue::I64(id as i64))].into_iter().collect()
    };
    for id in 0..10_000 {
        routes.bind("", arguments(id));
    }
    routes.messages = scattered(10_000)
        .map(|id| {
            let mut headers = arguments(id);
            for name in ["trace", "tenant", "region"] {
                headers.insert(name, "some value of middling length");
            }
            message("", Some(headers))
        })
        .collect();
    routes
}

/// An exchange that picks one of ten queues.
pub fn picking(kind: ExchangeKind) -> Routes {
    let mut routes = Routes::new(kind, 1);
    for _ in 0..10 {
        routes.bind("10", FieldTable::new());
    }
    routes.messages = scattered(1000).map(|n| message(format!("orders.{n}"), None)).collect();
    routes
}
