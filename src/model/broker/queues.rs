//! queue.declare, bind, unbind, purge and delete (§5, §6).

use leveret_protocol::{FieldTable, FieldValue, basic, queue};

use super::consume::REPLY_TO;
use super::{Broker, Finding, clean_name};
use crate::auth::Access;
use crate::model::arguments::{self, QueueType};
use crate::model::error::{AmqpError, Resource};
use crate::model::exchange::Binding;
use crate::model::ids::{ChannelKey, ConnectionKey, Destination, ExchangeKey, QueueKey};
use crate::model::queue::{Declared, Queue};
use crate::model::record::Name;
use crate::model::timer::Millis;

impl Broker {
    pub(super) fn queue_declare(
        &mut self,
        channel: ChannelKey,
        declare: queue::Declare<'_>,
        now: Millis,
    ) -> Result<(), AmqpError> {
        let name = clean_name(declare.queue);
        let (name, ready, consumers) = if name.starts_with(REPLY_TO) {
            self.declare_reply_queue(&name)?
        } else if declare.passive {
            self.declare_passively(channel, &name, now)?
        } else {
            self.declare_actively(channel, &name, &declare, now)?
        };
        self.channels[channel].last_queue = Some(name.clone());
        if !declare.no_wait {
            let ok = queue::DeclareOk {
                queue: &name,
                message_count: u32::try_from(ready).unwrap_or(u32::MAX),
                consumer_count: consumers as u32,
            };
            self.reply_when_defined(channel, &ok.into());
        }
        Ok(())
    }

    /// §13.1: a responder asks whether the requester is still there.
    fn declare_reply_queue(&self, name: &str) -> Result<(Name, u64, usize), AmqpError> {
        if name == REPLY_TO || self.reply_consumers.contains_key(name) {
            return Ok((Name::from(name), 0, 1));
        }
        Err(AmqpError::NotFound(self.queue_resource(name)))
    }

    /// §5.4. Counts as use for `x-expires`.
    fn declare_passively(
        &mut self,
        channel: ChannelKey,
        name: &str,
        now: Millis,
    ) -> Result<(Name, u64, usize), AmqpError> {
        if self.queues_by_name.contains_key(name) {
            self.check_any_access(channel, self.queue_resource(name))?;
        }
        let key = self.find_usable_queue(channel, name)?;
        let queue = &mut self.queues[key];
        queue.last_used = now;
        Ok((queue.name.clone(), queue.ready_count(), queue.consumers.len()))
    }

    /// §5.2, in the order of its checks.
    fn declare_actively(
        &mut self,
        channel: ChannelKey,
        name: &str,
        declare: &queue::Declare<'_>,
        now: Millis,
    ) -> Result<(Name, u64, usize), AmqpError> {
        let requested = self.queue_resource(name);
        let fits = declare.durable && !declare.exclusive && !declare.auto_delete && !declare.queue.is_empty();
        let arguments = self.with_default_type(&declare.arguments, fits);
        let name = if name.is_empty() {
            let queue_type = arguments::queue_type(&arguments, &requested)?;
            if queue_type != QueueType::Classic {
                let text = format!("Cannot declare a server-named queue for type {}", queue_type.internal_name());
                return Err(AmqpError::Precondition(text));
            }
            self.random_name("amq.gen-")
        } else if name.starts_with("amq.") {
            return Err(AmqpError::ReservedPrefix { kind: "queue", name: name.to_owned() });
        } else {
            Name::from(name)
        };
        let resource = self.queue_resource(&name);
        self.stats.queues_declared += 1;
        self.check_access(channel, Access::Configure, resource.clone())?;
        let connection = self.channels[channel].connection;
        if let Some(&key) = self.queues_by_name.get(&name) {
            let queue = &mut self.queues[key];
            if self.settings.relaxed_quorum_redeclare
                && arguments::redeclares_quorum_as_classic(queue.queue_type, &arguments)
            {
                // Not even the flags are looked at.
                arguments::check_equivalent_relaxed(&arguments, &queue.arguments, &resource)?;
                queue.last_used = now;
                return Ok((name, queue.ready_count(), queue.consumers.len()));
            }
            // Strict: exclusive now if and only if it is ours alone (§5.3).
            if queue.exclusive_owner != declare.exclusive.then_some(connection) {
                return Err(AmqpError::LockedQueue(resource));
            }
            if !declare.exclusive {
                check_flag("durable", declare.durable, queue.durable, &resource)?;
            }
            check_flag("auto_delete", declare.auto_delete, queue.auto_delete, &resource)?;
            arguments::check_equivalent(
                queue.queue_type,
                self.settings.profile,
                &arguments,
                &queue.arguments,
                &resource,
            )?;
            queue.last_used = now;
            return Ok((name, queue.ready_count(), queue.consumers.len()));
        }
        self.check_dead_letter_exchange(channel, &declare.arguments, &resource)?;
        let queue_type = arguments::queue_type(&arguments, &resource)?;
        if arguments.get("x-queue-master-locator").is_some() {
            self.lint(channel, Finding::MasterLocator, &name);
        }
        if queue_type != QueueType::Quorum && arguments.get("x-consumer-timeout").is_some() {
            self.lint(channel, Finding::ConsumerTimeoutArgument, &name);
        }
        let owner = declare.exclusive.then_some(connection);
        let key = self.create_queue(name.clone(), arguments, (declare.durable, declare.auto_delete), owner, now)?;
        if declare.exclusive {
            self.connections[connection].exclusive_queues.push(key);
        }
        Ok((name, 0, 0))
    }

    /// Makes a queue whose name is free: the checks of §5.2 that ask nobody's rights. `flags`: durable, auto-delete.
    pub(super) fn create_queue(
        &mut self,
        name: Name,
        arguments: FieldTable,
        (durable, auto_delete): (bool, bool),
        exclusive_owner: Option<ConnectionKey>,
        now: Millis,
    ) -> Result<QueueKey, AmqpError> {
        let resource = self.queue_resource(&name);
        let queue_type = arguments::queue_type(&arguments, &resource)?;
        if self.settings.profile.denies_master_locator() && arguments.get("x-queue-master-locator").is_some() {
            return Err(AmqpError::Deprecated("queue_master_locator"));
        }
        let settings = arguments::queue_settings(&arguments, queue_type, self.settings.profile, &resource)?;
        self.check_queue_limits(&name)?;
        if queue_type != QueueType::Classic {
            let refuse = |property| Err(AmqpError::InvalidProperty { property, resource: resource.clone() });
            if auto_delete {
                return refuse("auto-delete");
            }
            if exclusive_owner.is_some() {
                return refuse("exclusive-owner");
            }
            if !durable {
                return refuse("non-durable");
            }
        }
        if queue_type == QueueType::Stream {
            super::stream::check_ranges(&arguments, self.settings.profile)?;
        }
        // An exclusive queue cannot outlive its connection, so it is not kept (§5.2).
        let durable = durable && exclusive_owner.is_none();
        let declared = Declared { name, queue_type, durable, auto_delete, arguments, settings };
        let mut queue = self.new_queue(declared, now);
        queue.exclusive_owner = exclusive_owner;
        if durable && self.settings.persistent {
            self.queue_ids += 1;
            queue.store_id = Some(self.queue_ids);
            let (key, value) = self.queue_record(&queue);
            self.pending.put(key, value);
        }
        self.stats.queues_created += 1;
        Ok(self.insert_queue(queue))
    }

    pub(super) fn new_queue(&self, declared: Declared, now: Millis) -> Queue {
        Queue::new(declared, self.settings.profile.quorum_priorities(), now)
    }

    /// §5.2 step 1: the vhost's default type, where the flags allow it.
    pub(super) fn with_default_type(&self, arguments: &FieldTable, fits: bool) -> FieldTable {
        let mut arguments = arguments.clone();
        let default = self.settings.default_queue_type;
        if default != QueueType::Classic && fits && arguments.get("x-queue-type").is_none() {
            arguments.insert("x-queue-type", default.as_str());
        }
        arguments
    }

    /// Makes a queue known under its name.
    pub(super) fn insert_queue(&mut self, mut queue: Queue) -> QueueKey {
        queue.set_settings(self.effective_settings(&queue));
        let name = queue.name.clone();
        let key = self.queues.insert(queue);
        self.queues_by_name.insert(name, key);
        // A message to this name may have a remembered route to nowhere.
        self.topology.touch();
        self.arm_queue_expiry(key);
        key
    }

    /// §5.2 steps 5 and 6.
    fn check_dead_letter_exchange(
        &self,
        channel: ChannelKey,
        arguments: &FieldTable,
        queue: &Resource,
    ) -> Result<(), AmqpError> {
        match arguments.get("x-dead-letter-exchange") {
            None => Ok(()),
            Some(FieldValue::LongString(exchange)) => {
                let exchange = String::from_utf8_lossy(exchange);
                self.check_access(channel, Access::Read, queue.clone())?;
                self.check_access(channel, Access::Write, self.exchange_resource(&exchange))
            }
            Some(other) => Err(AmqpError::InvalidArgumentType {
                argument: "x-dead-letter-exchange",
                type_name: other.type_name(),
                resource: queue.clone(),
            }),
        }
    }

    pub(super) fn queue_bind(
        &mut self,
        channel: ChannelKey,
        bind: queue::Bind<'_>,
        now: Millis,
    ) -> Result<(), AmqpError> {
        let ends = self.queue_binding_ends(channel, bind.queue, bind.exchange, bind.routing_key)?;
        let (Some(source), Some(queue)) = (ends.source, ends.queue) else {
            return Err(AmqpError::NotFound(ends.missing(&self.vhost)));
        };
        self.find_usable_queue(channel, &ends.queue_name)?;
        let destination = Destination::Queue(queue);
        self.add_binding(Binding::new(source, destination, ends.routing_key.as_bytes(), bind.arguments), now)?;
        if !bind.no_wait {
            self.reply_when_defined(channel, &queue::BindOk {}.into());
        }
        Ok(())
    }

    pub(super) fn queue_unbind(&mut self, channel: ChannelKey, unbind: queue::Unbind<'_>) -> Result<(), AmqpError> {
        let ends = self.queue_binding_ends(channel, unbind.queue, unbind.exchange, unbind.routing_key)?;
        if let (Some(source), Some(queue)) = (ends.source, ends.queue) {
            let destination = Destination::Queue(queue);
            let binding = Binding::new(source, destination, ends.routing_key.as_bytes(), unbind.arguments);
            if self.topology.contains(&binding) {
                self.find_usable_queue(channel, &ends.queue_name)?;
            }
            let removed = self.topology.unbind(&binding);
            self.forget(removed, None);
        }
        self.reply_when_defined(channel, &queue::UnbindOk {}.into());
        Ok(())
    }

    /// §6 steps 1 to 6, the same for bind and unbind.
    fn queue_binding_ends(
        &self,
        channel: ChannelKey,
        queue: &str,
        exchange: &str,
        routing_key: &str,
    ) -> Result<QueueBindingEnds, AmqpError> {
        let exchange = clean_name(exchange).into_owned();
        let queue_name = self.expand_queue_name(channel, &clean_name(queue))?;
        // With both empty the key, too, is the queue's name (§5.1).
        let routing_key = if queue.is_empty() && routing_key.is_empty() { &queue_name } else { routing_key };
        // Only what a requester's name can be: the bare one just is no queue.
        if self.settings.profile.knows_reply_queues_in_bindings() && is_reply_queue(&queue_name) {
            return Err(AmqpError::BindReplyQueue);
        }
        self.check_access(channel, Access::Write, self.queue_resource(&queue_name))?;
        if exchange.is_empty() {
            return Err(AmqpError::DefaultExchange);
        }
        self.check_access(channel, Access::Read, self.exchange_resource(&exchange))?;
        self.check_topic_access(channel, Access::Read, &exchange, [routing_key.as_bytes()])?;
        Ok(QueueBindingEnds {
            source: self.topology.find(&exchange),
            queue: self.queues_by_name.get(&queue_name).copied(),
            routing_key: routing_key.to_owned(),
            queue_name,
            exchange,
        })
    }

    pub(super) fn queue_purge(&mut self, channel: ChannelKey, purge: &queue::Purge<'_>) -> Result<(), AmqpError> {
        let name = self.expand_queue_name(channel, purge.queue)?;
        self.check_access(channel, Access::Read, self.queue_resource(&name))?;
        let key = self.find_usable_queue(channel, &name)?;
        self.refuse_stream(key, "queue.purge")?;
        let count = self.purge(key);
        if !purge.no_wait {
            let message_count = u32::try_from(count).unwrap_or(u32::MAX);
            self.reply_when_settled(channel, &queue::PurgeOk { message_count }.into());
        }
        Ok(())
    }

    /// Drops every ready message; returns how many (§5.7). A stream keeps what it has.
    pub fn purge(&mut self, key: QueueKey) -> u64 {
        if self.queues[key].is_stream() {
            return 0;
        }
        let mut count = self.drop_pages(key, None);
        while let Some((seq, _)) = self.queues[key].peek() {
            self.queues[key].take_head(seq);
            self.settle(key, seq);
            count += 1;
        }
        self.queues[key].stats.purged += count;
        count
    }

    pub(super) fn queue_delete(
        &mut self,
        channel: ChannelKey,
        delete: &queue::Delete<'_>,
        _now: Millis,
    ) -> Result<(), AmqpError> {
        let name = self.expand_queue_name(channel, &clean_name(delete.queue))?;
        let resource = self.queue_resource(&name);
        self.check_access(channel, Access::Configure, resource.clone())?;
        let mut ready = 0;
        if self.queues_by_name.contains_key(&name) {
            let key = self.find_usable_queue(channel, &name)?;
            let queue = &self.queues[key];
            if queue.queue_type == QueueType::Quorum && (delete.if_unused || delete.if_empty) {
                let flag = if delete.if_unused { "if-unused" } else { "if-empty" };
                return Err(AmqpError::NotImplemented(format!(
                    "cannot delete {resource}. queue.delete operations with {flag} flag set are not supported by quorum queues"
                )));
            }
            if delete.if_empty && queue.ready_count() > 0 && !queue.is_stream() {
                return Err(AmqpError::NotEmpty(resource));
            }
            if delete.if_unused && !queue.consumers.is_empty() && !queue.is_stream() {
                return Err(AmqpError::InUse(resource));
            }
            // RabbitMQ does not count what a stream held.
            ready = if queue.queue_type == QueueType::Stream { 0 } else { queue.ready_count() };
            self.delete_queue(key);
        }
        if !delete.no_wait {
            let message_count = u32::try_from(ready).unwrap_or(u32::MAX);
            self.reply_when_defined(channel, &queue::DeleteOk { message_count }.into());
        }
        Ok(())
    }

    /// Removes a queue, its messages and bindings, and tells its consumers (§5.6, §13.2).
    pub(super) fn delete_queue(&mut self, key: QueueKey) {
        if self.queues.get(key).is_some_and(Queue::has_handed_out) {
            self.encode_all_of_queue(key);
        }
        let Some(queue) = self.queues.remove(key) else { return };
        self.stats.queues_deleted += 1;
        self.gone.add(&queue);
        self.queues_by_name.remove(&queue.name);
        if let Some(owner) = queue.exclusive_owner.and_then(|owner| self.connections.get_mut(owner)) {
            owner.exclusive_queues.retain(|other| *other != key);
        }
        for &consumer in &queue.consumers {
            self.cancel_by_server(consumer);
        }
        let removed = self.topology.remove_queue(key);
        self.topology.touch();
        self.forget(removed, Some(queue.durable));
        if let Some(store_id) = queue.store_id {
            self.pending.remove(self.queue_definition_key(&queue.name));
            self.pending.drop_queue(store_id);
        }
        self.drop_messages(queue);
    }

    /// The consumer ends without its client's wish (§13.2).
    pub(super) fn cancel_by_server(&mut self, key: crate::model::ids::ConsumerKey) {
        let Some(consumer) = self.consumers.get(key) else { return };
        let (channel, tag) = (consumer.channel, consumer.tag.clone());
        let notify = self
            .connections
            .get(consumer.connection)
            .is_some_and(|connection| connection.info.capabilities.consumer_cancel_notify);
        self.remove_consumer(key);
        if notify {
            let consumer_tag = std::str::from_utf8(&tag).unwrap_or_default();
            self.reply(channel, &basic::Cancel { consumer_tag, no_wait: true }.into());
        }
    }
}

/// A requester's own name, which begins with [`REPLY_TO`] and a dot (§13.1).
fn is_reply_queue(name: &str) -> bool {
    name.strip_prefix(REPLY_TO).is_some_and(|rest| rest.starts_with('.'))
}

/// What a binding of a queue is between.
struct QueueBindingEnds {
    source: Option<ExchangeKey>,
    queue: Option<QueueKey>,
    routing_key: String,
    queue_name: Name,
    exchange: String,
}

impl QueueBindingEnds {
    /// The one to name when an end is missing: the source first (§6 step 7).
    fn missing(&self, vhost: &Name) -> Resource {
        if self.source.is_none() {
            Resource::exchange(vhost, &self.exchange)
        } else {
            Resource::queue(vhost, &self.queue_name)
        }
    }
}

pub(super) fn check_flag(argument: &str, received: bool, current: bool, resource: &Resource) -> Result<(), AmqpError> {
    if received == current {
        return Ok(());
    }
    Err(AmqpError::InequivalentArgument {
        argument: argument.to_owned(),
        resource: resource.clone(),
        received: format!("'{received}'"),
        current: format!("'{current}'"),
    })
}
