//! Values, properties and methods to be sent, with everything off that can be: a test changes what it is about.

use leveret_protocol::{FieldTable, FieldValue, Properties, basic, exchange, queue};

/// A table from names and values.
pub fn table<const N: usize>(fields: [(&str, FieldValue); N]) -> FieldTable {
    FieldTable::from_iter(fields)
}

/// A long string value.
pub fn text(value: &str) -> FieldValue {
    FieldValue::from(value)
}

/// Properties with nothing but these headers.
pub fn headers<const N: usize>(fields: [(&str, FieldValue); N]) -> Properties {
    Properties { headers: Some(table(fields)), ..Properties::default() }
}

pub fn persistent() -> Properties {
    Properties { delivery_mode: Some(2), ..Properties::default() }
}

pub fn expiring(expiration: &str) -> Properties {
    Properties { expiration: Some(expiration.to_owned().into()), ..Properties::default() }
}

/// queue.declare of a durable queue: the kind that every RabbitMQ allows.
pub fn declare(queue: &str) -> queue::Declare<'_> {
    queue::Declare {
        queue,
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        no_wait: false,
        arguments: FieldTable::new(),
    }
}

pub fn declare_args<'a, const N: usize>(queue: &'a str, arguments: [(&str, FieldValue); N]) -> queue::Declare<'a> {
    queue::Declare { arguments: table(arguments), ..declare(queue) }
}

pub fn delete(queue: &str) -> queue::Delete<'_> {
    queue::Delete { queue, if_unused: false, if_empty: false, no_wait: false }
}

pub fn purge(queue: &str) -> queue::Purge<'_> {
    queue::Purge { queue, no_wait: false }
}

pub fn bind<'a>(queue: &'a str, exchange: &'a str, routing_key: &'a str) -> queue::Bind<'a> {
    queue::Bind { queue, exchange, routing_key, no_wait: false, arguments: FieldTable::new() }
}

pub fn unbind<'a>(queue: &'a str, exchange: &'a str, routing_key: &'a str) -> queue::Unbind<'a> {
    queue::Unbind { queue, exchange, routing_key, arguments: FieldTable::new() }
}

/// exchange.declare of a durable exchange.
pub fn exchange<'a>(exchange: &'a str, type_: &'a str) -> exchange::Declare<'a> {
    exchange::Declare {
        exchange,
        type_,
        passive: false,
        durable: true,
        auto_delete: false,
        internal: false,
        no_wait: false,
        arguments: FieldTable::new(),
    }
}

pub fn exchange_delete(exchange: &str) -> exchange::Delete<'_> {
    exchange::Delete { exchange, if_unused: false, no_wait: false }
}

pub fn exchange_bind<'a>(destination: &'a str, source: &'a str, routing_key: &'a str) -> exchange::Bind<'a> {
    exchange::Bind { destination, source, routing_key, no_wait: false, arguments: FieldTable::new() }
}

pub fn exchange_unbind<'a>(destination: &'a str, source: &'a str, routing_key: &'a str) -> exchange::Unbind<'a> {
    exchange::Unbind { destination, source, routing_key, no_wait: false, arguments: FieldTable::new() }
}

pub fn publish<'a>(exchange: &'a str, routing_key: &'a str) -> basic::Publish<'a> {
    basic::Publish { exchange, routing_key, mandatory: false, immediate: false }
}

pub fn consume<'a>(queue: &'a str, consumer_tag: &'a str) -> basic::Consume<'a> {
    basic::Consume {
        queue,
        consumer_tag,
        no_local: false,
        no_ack: false,
        exclusive: false,
        no_wait: false,
        arguments: FieldTable::new(),
    }
}
