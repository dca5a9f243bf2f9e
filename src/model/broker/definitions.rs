//! Durable definitions as records, and the way back from records to a broker.
//!
//! A record is a version byte and a field table: self-describing, and every argument keeps its type.
//! A queue is found by its name, a binding by its ordinal, which orders bindings for ever.

use bytes::{BufMut as _, Bytes, BytesMut};
use leveret_protocol::{FieldTable, FieldValue, decode_table, put_table};

use super::Broker;
use super::delayed::Delayed;
use crate::model::arguments;
use crate::model::exchange::{Binding, Exchange, ExchangeKind};
use crate::model::ids::{Destination, ExchangeKey, Holder, QueueKey};
use crate::model::policy::{ApplyTo, Policy};
use crate::model::profile::Profile;
use crate::model::queue::{Declared, Queue, Returns};
use crate::model::record::{DefinitionKey, DefinitionKind, Name, StoredBlock};
use crate::model::timer::Millis;

/// First byte of every record.
const VERSION: u8 = 1;

/// A stored definition that cannot be used. The broker does not start with it: what depends on it would be lost.
#[derive(Debug, thiserror::Error)]
#[error(
    "the stored {kind:?} '{name}' cannot be read: {reason}; it was written by another version, or the data folder is damaged"
)]
pub struct RecoveryError {
    pub kind: DefinitionKind,
    pub name: String,
    pub reason: String,
}

impl Broker {
    fn definition_key(&self, kind: DefinitionKind, name: &[u8]) -> DefinitionKey {
        DefinitionKey { kind, vhost: self.vhost.clone(), name: Bytes::copy_from_slice(name) }
    }

    pub(super) fn queue_definition_key(&self, name: &str) -> DefinitionKey {
        self.definition_key(DefinitionKind::Queue, name.as_bytes())
    }

    pub(super) fn exchange_definition_key(&self, name: &str) -> DefinitionKey {
        self.definition_key(DefinitionKind::Exchange, name.as_bytes())
    }

    pub(super) fn binding_key(&self, ordinal: u64) -> DefinitionKey {
        self.definition_key(DefinitionKind::Binding, &ordinal.to_be_bytes())
    }

    pub(super) fn queue_record(&self, queue: &Queue) -> (DefinitionKey, Bytes) {
        let mut table = FieldTable::new();
        table.insert("id", FieldValue::I64(queue.store_id.unwrap_or_default() as i64));
        table.insert("auto_delete", FieldValue::Bool(queue.auto_delete));
        table.insert("arguments", FieldValue::Table(queue.arguments.clone()));
        if queue.redelivered_below > 0 {
            table.insert("redelivered_below", FieldValue::I64(queue.redelivered_below.cast_signed()));
        }
        (self.queue_definition_key(&queue.name), encode(&table))
    }

    /// `store_id` is given for an exchange that delays messages.
    pub(super) fn exchange_record(&self, exchange: &Exchange, store_id: Option<u64>) -> (DefinitionKey, Bytes) {
        let mut table = FieldTable::new();
        if let Some(id) = store_id {
            table.insert("id", FieldValue::I64(id as i64));
        }
        table.insert("type", text(exchange.kind.name()));
        table.insert("auto_delete", FieldValue::Bool(exchange.auto_delete));
        table.insert("internal", FieldValue::Bool(exchange.internal));
        table.insert("arguments", FieldValue::Table(exchange.arguments.clone()));
        (self.exchange_definition_key(&exchange.name), encode(&table))
    }

    /// The record of a binding, if both of its ends are durable.
    pub(super) fn binding_record(&self, binding: &Binding) -> Option<Bytes> {
        if !self.settings.persistent {
            return None;
        }
        let source = self.topology.get(binding.source).filter(|source| source.durable)?;
        let (kind, destination) = match binding.destination {
            Destination::Queue(key) => {
                let queue = self.queues.get(key).filter(|queue| queue.durable)?;
                ("queue", queue.name.clone())
            }
            Destination::Exchange(key) => {
                let exchange = self.topology.get(key).filter(|exchange| exchange.durable)?;
                ("exchange", exchange.name.clone())
            }
        };
        let mut table = FieldTable::new();
        table.insert("source", text(&source.name));
        table.insert("destination_type", text(kind));
        table.insert("destination", text(&destination));
        table.insert("routing_key", FieldValue::ByteArray(Bytes::copy_from_slice(&binding.binding_key)));
        table.insert("arguments", FieldValue::Table(binding.arguments().clone()));
        Some(encode(&table))
    }

    /// Takes a stored definition of this vhost back. Exchanges and queues must come before bindings
    /// (they do in the order of their kinds).
    ///
    /// # Errors
    /// A record of another version, or a damaged one.
    pub fn recover_definition(&mut self, key: &DefinitionKey, value: &[u8], now: Millis) -> Result<(), RecoveryError> {
        let name = String::from_utf8_lossy(&key.name).into_owned();
        let result = match key.kind {
            DefinitionKind::Exchange => self.recover_exchange(&name, value),
            DefinitionKind::Queue => self.recover_queue(&name, value, now),
            DefinitionKind::Binding => self.recover_binding(&key.name, value),
            DefinitionKind::Policy => self.recover_policy(&name, value, false),
            DefinitionKind::OperatorPolicy => self.recover_policy(&name, value, true),
            _ => return Ok(()),
        };
        result.map_err(|reason| RecoveryError { kind: key.kind, name, reason })
    }

    fn recover_exchange(&mut self, name: &str, value: &[u8]) -> Result<(), String> {
        let table = decode(value)?;
        let kind = string(&table, "type")?;
        let kind = ExchangeKind::parse(&kind).ok_or_else(|| format!("unknown exchange type '{kind}'"))?;
        if self.topology.find(name).is_some() {
            return Ok(());
        }
        let arguments = nested(&table, "arguments")?;
        let key = self.topology.declare(Exchange {
            name: Name::from(name),
            kind,
            durable: true,
            auto_delete: boolean(&table, "auto_delete")?,
            internal: boolean(&table, "internal")?,
            alternate: Exchange::alternate_of(&arguments),
            arguments,
        });
        if kind == ExchangeKind::Delayed {
            let id = store_id(&table)?;
            self.queue_ids = self.queue_ids.max(id);
            self.delayed.insert(key, Delayed::new(Some(id)));
        }
        Ok(())
    }

    fn recover_queue(&mut self, name: &str, value: &[u8], now: Millis) -> Result<(), String> {
        let table = decode(value)?;
        let arguments = nested(&table, "arguments")?;
        let resource = self.queue_resource(name);
        let queue_type = arguments::queue_type(&arguments, &resource).map_err(|error| error.explanation())?;
        // Declared under another version, perhaps, that took what this one would refuse.
        let read = |profile| arguments::queue_settings(&arguments, queue_type, profile, &resource);
        let settings = read(self.settings.profile)
            .or_else(|error| Profile::ALL.into_iter().find_map(|other| read(other).ok()).ok_or(error))
            .map_err(|error| error.explanation())?;
        let auto_delete = boolean(&table, "auto_delete")?;
        let name = Name::from(name);
        let declared = Declared { name, queue_type, durable: true, auto_delete, arguments, settings };
        let mut queue = self.new_queue(declared, now);
        let id = store_id(&table)?;
        queue.store_id = Some(id);
        if let Some(FieldValue::I64(below)) = table.get("redelivered_below") {
            queue.redelivered_below = below.cast_unsigned();
        }
        self.queue_ids = self.queue_ids.max(id);
        self.insert_queue(queue);
        Ok(())
    }

    fn recover_binding(&mut self, ordinal: &[u8], value: &[u8]) -> Result<(), String> {
        let ordinal = ordinal.try_into().map(u64::from_be_bytes).map_err(|_| "its key is no ordinal".to_owned())?;
        let table = decode(value)?;
        let source = string(&table, "source")?;
        let source = self.topology.find(&source).ok_or_else(|| format!("its source '{source}' is missing"))?;
        let destination = string(&table, "destination")?;
        let destination = match string(&table, "destination_type")?.as_str() {
            "queue" => self.queues_by_name.get(destination.as_str()).copied().map(Destination::Queue),
            _ => self.topology.find(&destination).map(Destination::Exchange),
        }
        .ok_or_else(|| format!("its destination '{destination}' is missing"))?;
        let Some(FieldValue::ByteArray(routing_key)) = table.get("routing_key") else {
            return Err("it has no routing key".to_owned());
        };
        let binding = Binding::new(source, destination, routing_key, nested(&table, "arguments")?);
        self.topology.restore(ordinal, binding);
        Ok(())
    }

    pub(super) fn policy_record(&self, policy: &Policy, operator: bool) -> (DefinitionKey, Bytes) {
        let mut table = FieldTable::new();
        table.insert("pattern", text(policy.pattern.as_str()));
        table.insert("priority", FieldValue::I64(policy.priority));
        table.insert("apply_to", text(policy.apply_to.as_str()));
        table.insert("definition", FieldValue::Table(policy.definition.clone()));
        (self.policy_key(&policy.name, operator), encode(&table))
    }

    pub(super) fn policy_key(&self, name: &str, operator: bool) -> DefinitionKey {
        let kind = if operator { DefinitionKind::OperatorPolicy } else { DefinitionKind::Policy };
        self.definition_key(kind, name.as_bytes())
    }

    fn recover_policy(&mut self, name: &str, value: &[u8], operator: bool) -> Result<(), String> {
        let table = decode(value)?;
        let apply_to = string(&table, "apply_to")?;
        let apply_to = ApplyTo::parse(&apply_to).ok_or_else(|| format!("it applies to '{apply_to}'"))?;
        let priority = table.get("priority").and_then(FieldValue::as_integer).unwrap_or(0) as i64;
        let pattern = string(&table, "pattern")?;
        let policy = Policy::new(name, &pattern, nested(&table, "definition")?, priority, apply_to, operator)
            .map_err(|error| error.to_string())?;
        if operator { &mut self.operator_policies } else { &mut self.policies }.set(policy);
        Ok(())
    }

    /// The queues that have messages in the store, by their ids there.
    pub fn stored_queues(&self) -> impl Iterator<Item = (u64, QueueKey)> {
        self.queues.iter().filter_map(|(key, queue)| queue.store_id.map(|id| (id, key)))
    }

    /// Everybody who has messages in the store, by their ids there.
    pub fn stored_holders(&self) -> impl Iterator<Item = (u64, Holder)> {
        let delayed = self.delayed.iter();
        let delayed = delayed.filter_map(|(key, delayed)| delayed.store_id.map(|id| (id, Holder::Exchange(key))));
        self.stored_queues().map(|(id, key)| (id, Holder::Queue(key))).chain(delayed)
    }

    /// Takes a stored message back; `delivered` is what [`Op::Delivered`](crate::model::record::Op) kept of it,
    /// 0 if it was never delivered. Returns false if its record is unreadable.
    pub fn recover_message(
        &mut self,
        holder: impl Into<Holder>,
        seq: u64,
        record: &[u8],
        body: Option<Bytes>,
        delivered: u32,
    ) -> bool {
        match holder.into() {
            Holder::Queue(key) => self
                .queues
                .get_mut(key)
                .is_some_and(|queue| queue.restore(seq, record, body, Returns::from_stored(delivered), &mut self.pool)),
            Holder::Exchange(key) => {
                let delayed = self.delayed.get_mut(key);
                delayed.is_some_and(|delayed| delayed.restore(seq, record, body, &mut self.pool))
            }
        }
    }

    /// All definitions are back, messages come next. After a crash (`clean` is false) nobody knows which of them,
    /// all below `next`, were delivered: rather too many are marked than too few (§16).
    pub fn definitions_recovered(&mut self, clean: bool, next: u64, now: Millis) {
        self.apply_policies(now);
        if !clean {
            for queue in self.queues.values_mut() {
                queue.redelivered_below = next;
            }
        }
    }

    /// Must the messages of this holder be seen one by one on start? Otherwise [`Self::recover_block`] will do.
    pub fn needs_messages(&self, holder: Holder) -> bool {
        match holder {
            Holder::Queue(key) => self.queues.get(key).is_none_or(Queue::needs_messages),
            Holder::Exchange(_) => true,
        }
    }

    /// Some messages of a queue are in the store, and stay there until somebody needs them. False if they do
    /// not follow those before.
    pub fn recover_block(&mut self, holder: Holder, block: StoredBlock) -> bool {
        let Holder::Queue(key) = holder else { return false };
        self.queues.get_mut(key).is_some_and(|queue| queue.restore_block(block))
    }

    /// Sequences below this one may have been given out before the restart: they are not given out again.
    pub fn skip_sequences(&mut self, next: u64) {
        for queue in self.queues.values_mut() {
            queue.skip_sequences(next);
        }
        for delayed in self.delayed.values_mut() {
            delayed.messages.skip_to(next);
        }
    }

    /// A clean stop: notes which stored messages were delivered, so that they say so after the restart (§16).
    pub fn prepare_stop(&mut self, now: Millis) {
        let connections: Vec<_> = self.connections.keys().collect();
        for connection in connections {
            self.connection_lost(connection, now);
        }
        for queue in self.queues.values() {
            let Some(store_id) = queue.store_id else { continue };
            for (seq, returns) in queue.redelivered_on_disk() {
                self.pending.delivered(store_id, seq, returns);
            }
            if queue.has_unseen_redelivered() {
                let (key, value) = self.queue_record(queue);
                self.pending.put(key, value);
            }
        }
    }

    /// All is back: looks at what has expired meanwhile. Call once, before the first client.
    pub fn recovered(&mut self, now: Millis) {
        self.apply_policies(now);
        self.streams_recovered(now);
        let keys: Vec<QueueKey> = self.queues.keys().collect();
        for key in keys {
            self.care_for_head(key, now);
        }
        let exchanges: Vec<ExchangeKey> = self.delayed.keys().collect();
        for key in exchanges {
            self.arm_delayed(key);
        }
        self.process_deaths(now);
    }
}

fn text(value: &str) -> FieldValue {
    FieldValue::LongString(Bytes::copy_from_slice(value.as_bytes()))
}

fn encode(table: &FieldTable) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(VERSION);
    put_table(&mut out, table);
    out.freeze()
}

fn decode(value: &[u8]) -> Result<FieldTable, String> {
    match value.split_first() {
        Some((&VERSION, rest)) => decode_table(rest).map(|(table, _)| table).map_err(|error| error.to_string()),
        Some((version, _)) => Err(format!("record version {version} is unknown")),
        None => Err("the record is empty".to_owned()),
    }
}

fn store_id(table: &FieldTable) -> Result<u64, String> {
    match table.get("id") {
        Some(FieldValue::I64(id)) => Ok(id.cast_unsigned()),
        _ => Err("it has no id".to_owned()),
    }
}

fn string(table: &FieldTable, name: &str) -> Result<String, String> {
    table.get(name).and_then(FieldValue::as_str).map(str::to_owned).ok_or_else(|| format!("it has no {name}"))
}

fn boolean(table: &FieldTable, name: &str) -> Result<bool, String> {
    table.get(name).and_then(FieldValue::as_bool).ok_or_else(|| format!("it has no {name}"))
}

fn nested(table: &FieldTable, name: &str) -> Result<FieldTable, String> {
    table.get(name).and_then(FieldValue::as_table).cloned().ok_or_else(|| format!("it has no {name}"))
}
