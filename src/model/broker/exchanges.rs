//! exchange.declare, delete, bind and unbind (§4, §6).

use leveret_protocol::{FieldTable, FieldValue, exchange};

use super::delayed::Delayed;
use super::queues::check_flag;
use super::{Broker, clean_name};
use crate::auth::Access;
use crate::model::arguments::check_argument_equivalent;
use crate::model::error::{AmqpError, Resource};
use crate::model::exchange::{Binding, Exchange, ExchangeKind, Removed, Topology};
use crate::model::ids::{ChannelKey, Destination, ExchangeKey};
use crate::model::queue::page::PageOp;
use crate::model::record::Name;
use crate::model::timer::Millis;

/// §4.1: name, kind, internal.
const PREDECLARED: [(&str, ExchangeKind, bool); 7] = [
    ("", ExchangeKind::Direct, false),
    ("amq.direct", ExchangeKind::Direct, false),
    ("amq.fanout", ExchangeKind::Fanout, false),
    ("amq.topic", ExchangeKind::Topic, false),
    ("amq.headers", ExchangeKind::Headers, false),
    ("amq.match", ExchangeKind::Headers, false),
    ("amq.rabbitmq.trace", ExchangeKind::Topic, true),
];

impl Broker {
    pub(super) fn declare_predeclared(&mut self) {
        for (name, kind, internal) in PREDECLARED {
            self.topology.declare(Exchange {
                name: Name::from(name),
                kind,
                durable: true,
                auto_delete: false,
                internal,
                arguments: FieldTable::default(),
                alternate: None,
            });
        }
    }

    pub(super) fn exchange_declare(
        &mut self,
        channel: ChannelKey,
        declare: exchange::Declare<'_>,
    ) -> Result<(), AmqpError> {
        let name = clean_name(declare.exchange);
        let resource = self.exchange_resource(&name);
        if declare.passive {
            if name.is_empty() {
                return Err(AmqpError::DefaultExchange);
            }
            if self.topology.find(&name).is_none() {
                return Err(AmqpError::NotFound(resource));
            }
            self.check_any_access(channel, resource)?;
        } else {
            self.declare_exchange_actively(channel, &name, resource, &declare)?;
        }
        if !declare.no_wait {
            self.reply_when_defined(channel, &exchange::DeclareOk {}.into());
        }
        Ok(())
    }

    /// §4.2, in the order of its checks.
    fn declare_exchange_actively(
        &mut self,
        channel: ChannelKey,
        name: &str,
        resource: Resource,
        declare: &exchange::Declare<'_>,
    ) -> Result<(), AmqpError> {
        let Some(kind) = ExchangeKind::parse(declare.type_) else {
            let word = if declare.type_.is_empty() { "invalid" } else { "unknown" };
            return Err(AmqpError::Precondition(format!("{word} exchange type '{}'", declare.type_)));
        };
        if name.is_empty() {
            return Err(AmqpError::DefaultExchange);
        }
        self.check_access(channel, Access::Configure, resource.clone())?;
        if let Some(existing) = self.topology.find(name).and_then(|key| self.topology.get(key)) {
            return check_exchange_equivalent(existing, kind, declare, &resource);
        }
        if name.starts_with("amq.") {
            return Err(AmqpError::ReservedPrefix { kind: "exchange", name: name.to_owned() });
        }
        if let Some(alternate) = declare.arguments.get("alternate-exchange") {
            let FieldValue::LongString(alternate) = alternate else {
                return Err(AmqpError::InvalidArgumentType {
                    argument: "alternate-exchange",
                    type_name: alternate.type_name(),
                    resource,
                });
            };
            let alternate = self.exchange_resource(&String::from_utf8_lossy(alternate));
            self.check_access(channel, Access::Read, resource)?;
            self.check_access(channel, Access::Write, alternate)?;
        }
        self.check_exchange_limit(&self.exchange_resource(name))?;
        Topology::validate_declare(kind, &declare.arguments).map_err(AmqpError::Precondition)?;
        let exchange = Exchange {
            name: Name::from(name),
            kind,
            durable: declare.durable,
            auto_delete: declare.auto_delete,
            internal: declare.internal,
            alternate: Exchange::alternate_of(&declare.arguments),
            arguments: declare.arguments.clone(),
        };
        self.insert_exchange(exchange);
        Ok(())
    }

    /// Adds an exchange, and keeps it if it is durable. Its name is free.
    pub(super) fn insert_exchange(&mut self, exchange: Exchange) -> ExchangeKey {
        let stored = exchange.durable && self.settings.persistent;
        let delayed = (exchange.kind == ExchangeKind::Delayed).then(|| {
            self.queue_ids += u64::from(stored);
            Delayed::new(stored.then_some(self.queue_ids))
        });
        if stored {
            let store_id = delayed.as_ref().and_then(|delayed| delayed.store_id);
            let (key, value) = self.exchange_record(&exchange, store_id);
            self.pending.put(key, value);
        }
        let key = self.topology.declare(exchange);
        if let Some(delayed) = delayed {
            self.delayed.insert(key, delayed);
        }
        self.apply_exchange_policy(key);
        key
    }

    pub(super) fn exchange_delete(
        &mut self,
        channel: ChannelKey,
        delete: &exchange::Delete<'_>,
    ) -> Result<(), AmqpError> {
        let name = clean_name(delete.exchange);
        let resource = self.exchange_resource(&name);
        if name.is_empty() {
            return Err(AmqpError::DefaultExchange);
        }
        if name.starts_with("amq.") {
            return Err(AmqpError::SystemExchange(resource));
        }
        self.check_access(channel, Access::Configure, resource.clone())?;
        if let Some(key) = self.topology.find(&name) {
            if delete.if_unused && self.topology.has_bindings(key) {
                return Err(AmqpError::InUse(resource));
            }
            let removed = self.topology.remove_exchange(key);
            self.forget(removed, None);
        }
        if !delete.no_wait {
            self.reply_when_defined(channel, &exchange::DeleteOk {}.into());
        }
        Ok(())
    }

    pub(super) fn exchange_bind(
        &mut self,
        channel: ChannelKey,
        bind: exchange::Bind<'_>,
        now: Millis,
    ) -> Result<(), AmqpError> {
        let (source, destination) =
            self.exchange_binding_ends(channel, bind.source, bind.destination, bind.routing_key)?;
        let source = source.map_err(AmqpError::NotFound)?;
        let destination = destination.map_err(AmqpError::NotFound)?;
        let destination = Destination::Exchange(destination);
        self.add_binding(Binding::new(source, destination, bind.routing_key.as_bytes(), bind.arguments), now)?;
        if !bind.no_wait {
            self.reply_when_defined(channel, &exchange::BindOk {}.into());
        }
        Ok(())
    }

    pub(super) fn exchange_unbind(
        &mut self,
        channel: ChannelKey,
        unbind: exchange::Unbind<'_>,
    ) -> Result<(), AmqpError> {
        let (source, destination) =
            self.exchange_binding_ends(channel, unbind.source, unbind.destination, unbind.routing_key)?;
        if let (Ok(source), Ok(destination)) = (source, destination) {
            let destination = Destination::Exchange(destination);
            let binding = Binding::new(source, destination, unbind.routing_key.as_bytes(), unbind.arguments);
            let removed = self.topology.unbind(&binding);
            self.forget(removed, None);
        }
        if !unbind.no_wait {
            self.reply_when_defined(channel, &exchange::UnbindOk {}.into());
        }
        Ok(())
    }

    /// §6 steps 1 to 6, the same for bind and unbind; an end that is missing is given by what it would be.
    #[allow(clippy::type_complexity)] // two ends, each there or named
    fn exchange_binding_ends(
        &self,
        channel: ChannelKey,
        source: &str,
        destination: &str,
        routing_key: &str,
    ) -> Result<(Result<ExchangeKey, Resource>, Result<ExchangeKey, Resource>), AmqpError> {
        let (source, destination) = (clean_name(source), clean_name(destination));
        self.check_access(channel, Access::Write, self.exchange_resource(&destination))?;
        if source.is_empty() || destination.is_empty() {
            return Err(AmqpError::DefaultExchange);
        }
        self.check_access(channel, Access::Read, self.exchange_resource(&source))?;
        self.check_topic_access(channel, Access::Read, &source, [routing_key.as_bytes()])?;
        let find = |name: &str| self.topology.find(name).ok_or_else(|| self.exchange_resource(name));
        Ok((find(&source), find(&destination)))
    }

    /// From 4.3 on the `#` words of a binding to a topic exchange are limited (§0.1).
    fn check_topic_hashes(&self, binding: &Binding) -> Result<(), AmqpError> {
        let is_topic = self.topology.get(binding.source).is_some_and(|source| source.kind == ExchangeKind::Topic);
        let hashes = binding.binding_key.split(|&byte| byte == b'.').filter(|word| *word == b"#").count();
        let max = self.settings.profile.topic_hashes_max();
        if !is_topic || hashes <= max {
            return Ok(());
        }
        let key = String::from_utf8_lossy(&binding.binding_key);
        let text = format!("Topic binding key '{key}' uses {hashes} '#' wildcards, at most {max} are allowed");
        Err(AmqpError::Precondition(text))
    }

    /// Adds a binding whose ends exist, and keeps it if both are durable (§6).
    pub(super) fn add_binding(&mut self, binding: Binding, now: Millis) -> Result<(), AmqpError> {
        let queue_type = match binding.destination {
            Destination::Queue(queue) => self.queues.get(queue).map(|queue| queue.queue_type.as_str()),
            Destination::Exchange(_) => None,
        };
        self.topology.validate_binding(&binding, queue_type).map_err(AmqpError::Precondition)?;
        self.check_topic_hashes(&binding)?;
        let record = self.binding_record(&binding);
        if let Some(ordinal) = self.topology.bind(binding.clone()) {
            if let Some(value) = record {
                self.pending.put(self.binding_key(ordinal), value);
            }
            self.replay_history(&binding, now);
        }
        Ok(())
    }

    /// Takes the records of what a change of topology removed out of the store. `queue_durable` is given when
    /// a queue is going, whose key finds nothing any more.
    pub(super) fn forget(&mut self, removed: Removed, queue_durable: Option<bool>) {
        for (key, _) in &removed.exchanges {
            self.histories.remove(*key);
            let Some(mut delayed) = self.delayed.remove(*key) else { continue };
            let places = delayed.messages.drop_all(&mut self.pool);
            self.paging.ops.extend(places.into_iter().map(PageOp::Free));
            if let Some(store_id) = delayed.store_id {
                self.pending.drop_queue(store_id);
            }
        }
        if !self.settings.persistent {
            return;
        }
        for gone in removed.bindings {
            let destination_durable = match (&gone.destination_exchange, gone.binding.destination) {
                (Some(exchange), _) => exchange.durable,
                (None, Destination::Queue(queue)) => {
                    self.queues.get(queue).map(|queue| queue.durable).or(queue_durable).unwrap_or(false)
                }
                (None, Destination::Exchange(_)) => false,
            };
            if gone.source.durable && destination_durable {
                self.pending.remove(self.binding_key(gone.ordinal));
            }
        }
        for (_, exchange) in removed.exchanges {
            if exchange.durable {
                self.pending.remove(self.exchange_definition_key(&exchange.name));
            }
        }
    }
}

/// §4.2 step 9: type, durable, auto_delete, internal, and of the arguments only the alternate exchange.
fn check_exchange_equivalent(
    existing: &Exchange,
    kind: ExchangeKind,
    declare: &exchange::Declare<'_>,
    resource: &Resource,
) -> Result<(), AmqpError> {
    if existing.kind != kind {
        return Err(AmqpError::InequivalentArgument {
            argument: "type".to_owned(),
            resource: resource.clone(),
            received: format!("'{}'", declare.type_),
            current: format!("'{}'", existing.kind.name()),
        });
    }
    check_flag("durable", declare.durable, existing.durable, resource)?;
    check_flag("auto_delete", declare.auto_delete, existing.auto_delete, resource)?;
    check_flag("internal", declare.internal, existing.internal, resource)?;
    let argument = "alternate-exchange";
    check_argument_equivalent(argument, declare.arguments.get(argument), existing.arguments.get(argument), resource)
}
