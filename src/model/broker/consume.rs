//! basic.qos, consume, cancel and get: how messages are asked for (§8.4, §8.7, §8.8, §9).

use leveret_protocol::{FieldTable, basic};
use slotmap::Key as _;

use super::{Broker, Finding, dispatch};
use crate::auth::Access;
use crate::model::arguments::QueueType;
use crate::model::channel::{Consumer, Delivery, ReplyConsumer};
use crate::model::connection::{Out, OutDelivery, OutKind};
use crate::model::error::AmqpError;
use crate::model::ids::{ChannelKey, ConsumerKey, QueueKey};
use crate::model::queue::message::flag;
use crate::model::record::Name;
use crate::model::timer::{Millis, Timer};

/// The queue name that stands for replies sent straight to a channel (§13.1).
pub(super) const REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// Characters of the token in a full reply-to name, as `random_name` makes it.
pub(super) const REPLY_TOKEN_LEN: usize = 22;

/// Messages a quorum queue's consumer may hold when it sets no limit (§12.1).
const QUORUM_PREFETCH_MAX: u32 = 2000;

/// Consumer arguments that only streams know.
const STREAM_ARGUMENTS: [&str; 3] = ["x-stream-offset", "x-stream-filter", "x-stream-match-unfiltered"];

/// How long one consumer of a quorum queue may hold a delivery.
const OWN_TIMEOUT: &str = "x-consumer-timeout";

impl Broker {
    pub(super) fn basic_qos(&mut self, channel: ChannelKey, qos: &basic::Qos) -> Result<(), AmqpError> {
        if qos.prefetch_size != 0 {
            return Err(AmqpError::PrefetchSize(qos.prefetch_size));
        }
        if qos.global {
            self.lint(channel, Finding::ChannelPrefetch, "basic.qos");
        }
        let state = &mut self.channels[channel];
        if qos.global && self.settings.profile.has_channel_prefetch() {
            state.global_prefetch = qos.prefetch_count;
        } else {
            state.prefetch = qos.prefetch_count;
            state.global_prefetch = 0;
        }
        // A raised limit counts at once.
        self.offer_all(channel);
        self.reply(channel, &basic::QosOk {}.into());
        Ok(())
    }

    /// Lets every consumer of the channel look for work, each time another one first.
    pub(super) fn offer_all(&mut self, channel: ChannelKey) {
        for index in 0..self.channels[channel].consumers.len() {
            let consumer = self.channels[channel].consumers[index];
            self.offer(consumer);
        }
        let consumers = &mut self.channels[channel].consumers;
        if !consumers.is_empty() {
            consumers.rotate_left(1);
        }
    }

    pub(super) fn basic_consume(
        &mut self,
        channel: ChannelKey,
        consume: basic::Consume<'_>,
        now: Millis,
    ) -> Result<(), AmqpError> {
        let tag = consume.consumer_tag;
        let state = &self.channels[channel];
        let reused = state.consumers.iter().any(|key| &*self.consumers[*key].tag == tag.as_bytes())
            // A second reply consumer has a fault of its own.
            || (consume.queue != REPLY_TO
                && state.reply_consumer.as_ref().is_some_and(|reply| &*reply.tag == tag.as_bytes()));
        if reused {
            return Err(AmqpError::ReusedConsumerTag(tag.to_owned()));
        }
        if consume.queue == REPLY_TO {
            return self.consume_replies(channel, &consume);
        }
        if let Some(max) = self.settings.consumers_per_channel_max
            && state.consumers.len() >= max as usize
        {
            return Err(AmqpError::TooManyConsumers(max));
        }
        let name = self.expand_queue_name(channel, consume.queue)?;
        self.check_access(channel, Access::Read, self.queue_resource(&name))?;
        let queue_key = self.find_usable_queue(channel, &name)?;
        let (priority, timeout_ms) = self.check_consumer_arguments(queue_key, &consume.arguments)?;
        let resource = self.queue_resource(&name);
        let state = &self.channels[channel];
        let queue = &self.queues[queue_key];
        let quorum = queue.queue_type == QueueType::Quorum;
        if quorum && state.global_prefetch > 0 {
            return Err(AmqpError::NotImplemented(format!("{resource} does not support global qos")));
        }
        let exclusive = consume.exclusive && queue.queue_type == QueueType::Classic;
        if queue.exclusive_consumer
            || (exclusive && (!queue.consumers.is_empty() || queue.settings.single_active_consumer))
        {
            return Err(AmqpError::ExclusiveUse(resource));
        }
        let reader = self.check_stream_consume(channel, queue_key, &consume, now)?;
        let prefetch = match u32::from(state.prefetch) {
            0 if quorum => QUORUM_PREFETCH_MAX,
            prefetch => prefetch,
        };
        let tag = match tag {
            "" => self.random_name("amq.ctag-"),
            tag => Name::from(tag),
        };
        let consumer = self.consumers.insert(Consumer {
            tag: tag.as_bytes().into(),
            connection: self.channels[channel].connection,
            channel,
            queue: queue_key,
            no_ack: consume.no_ack,
            exclusive,
            priority,
            timeout_ms,
            arguments: consume.arguments,
            prefetch,
            unacked: 0,
            waiting: false,
            queued: 0,
            cancelled: false,
        });
        self.channels[channel].consumers.push(consumer);
        let queue = &mut self.queues[queue_key];
        queue.consumers.push(consumer);
        queue.exclusive_consumer = exclusive;
        queue.last_used = now;
        if let Some((offset, filter)) = reader {
            queue.add_reader(consumer, offset, filter);
        }
        if queue.settings.single_active_consumer {
            match queue.active_consumer {
                None => queue.active_consumer = Some(consumer),
                Some(active) if quorum => self.challenge(queue_key, active, priority),
                Some(_) => {}
            }
        }
        if !consume.no_wait {
            self.reply(channel, &basic::ConsumeOk { consumer_tag: &tag }.into());
        }
        self.offer(consumer);
        Ok(())
    }

    /// The consumer's priority and own timeout, if its arguments are valid for the queue (§8.7 step 6).
    fn check_consumer_arguments(
        &self,
        queue: QueueKey,
        arguments: &FieldTable,
    ) -> Result<(i64, Option<u64>), AmqpError> {
        let queue = &self.queues[queue];
        let resource = self.queue_resource(&queue.name);
        let has_own_timeout = self.settings.profile.has_delayed_retry();
        let unknown: &[&str] = if queue.is_stream() { &["x-priority"] } else { &STREAM_ARGUMENTS };
        let foreign = unknown.iter().copied().find(|argument| arguments.get(argument).is_some()).or_else(|| {
            let own_timeout = has_own_timeout && arguments.get(OWN_TIMEOUT).is_some();
            (own_timeout && queue.queue_type != QueueType::Quorum).then_some(OWN_TIMEOUT)
        });
        if let Some(argument) = foreign {
            return Err(AmqpError::ArgumentOfOtherType {
                argument: argument.to_owned(),
                resource,
                queue_type: queue.queue_type.internal_name(),
            });
        }
        let integer = |argument: &str| {
            let Some(value) = arguments.get(argument) else { return Ok(None) };
            value.as_integer().map(Some).ok_or_else(|| AmqpError::InvalidArgument {
                argument: argument.to_owned(),
                resource: resource.clone(),
                reason: format!("\"expected integer, got {}\"", value.type_name()),
            })
        };
        let priority = integer("x-priority")?.unwrap_or(0) as i64;
        let timeout_ms = if has_own_timeout { integer(OWN_TIMEOUT)? } else { None };
        Ok((priority, timeout_ms.and_then(|ms| u64::try_from(ms).ok())))
    }

    /// §13.1: replies come straight to this channel.
    fn consume_replies(&mut self, channel: ChannelKey, consume: &basic::Consume<'_>) -> Result<(), AmqpError> {
        if !consume.no_ack {
            return Err(AmqpError::ReplyConsumerAcknowledges);
        }
        if self.channels[channel].reply_consumer.is_some() {
            return Err(AmqpError::ReplyConsumerSet);
        }
        let tag = match consume.consumer_tag {
            "" => self.random_name("amq.ctag-"),
            tag => Name::from(tag),
        };
        let name = self.random_name("amq.rabbitmq.reply-to.");
        self.channels[channel].reply_consumer = Some(ReplyConsumer { tag: tag.as_bytes().into(), name: name.clone() });
        self.reply_consumers.insert(name, channel);
        if !consume.no_wait {
            self.reply(channel, &basic::ConsumeOk { consumer_tag: &tag }.into());
        }
        Ok(())
    }

    pub(super) fn basic_cancel(
        &mut self,
        channel: ChannelKey,
        cancel: &basic::Cancel<'_>,
        now: Millis,
    ) -> Result<(), AmqpError> {
        let state = &mut self.channels[channel];
        let tag = cancel.consumer_tag.as_bytes();
        let found = state.consumers.iter().copied().find(|key| &*self.consumers[*key].tag == tag);
        if let Some(consumer) = found {
            if let Some(queue) = self.remove_consumer(consumer) {
                self.consumer_left(queue, now);
            }
        } else if state.reply_consumer.as_ref().is_some_and(|reply| &*reply.tag == tag)
            && let Some(reply) = state.reply_consumer.take()
        {
            self.reply_consumers.remove(&reply.name);
        }
        if !cancel.no_wait {
            self.reply(channel, &basic::CancelOk { consumer_tag: cancel.consumer_tag }.into());
        }
        Ok(())
    }

    /// Takes a consumer away from its queue and channel; what it holds unacked stays with the channel.
    /// Returns its queue, if that exists.
    pub(super) fn remove_consumer(&mut self, key: ConsumerKey) -> Option<QueueKey> {
        let consumer = self.consumers.get_mut(key)?;
        consumer.cancelled = true;
        consumer.waiting = false;
        let (queue_key, channel, queued) = (consumer.queue, consumer.channel, consumer.queued);
        if queued == 0 {
            self.consumers.remove(key);
        }
        if let Some(channel) = self.channels.get_mut(channel) {
            channel.consumers.retain(|other| *other != key);
        }
        let queue = self.queues.get_mut(queue_key)?;
        queue.consumers.retain(|other| *other != key);
        queue.remove_waiting(key);
        queue.exclusive_consumer = false;
        if queue.active_consumer == Some(key) {
            queue.active_consumer = None;
            self.activate_next(queue_key);
        }
        Some(queue_key)
    }

    /// §9.3: on a quorum queue a consumer of higher priority takes over as soon as the active one holds nothing.
    fn challenge(&mut self, key: QueueKey, active: ConsumerKey, priority: i64) {
        let holder = &mut self.consumers[active];
        if priority <= holder.priority {
            return;
        }
        holder.waiting = false;
        let queue = &mut self.queues[key];
        queue.remove_waiting(active);
        queue.handing_over = true;
        self.finish_hand_over(key);
    }

    /// Activates the best consumer if the one that makes room for it holds nothing any more.
    pub(super) fn finish_hand_over(&mut self, key: QueueKey) {
        let Some(active) = self.queues[key].active_consumer else { return };
        if self.consumers.get(active).is_none_or(|consumer| consumer.unacked == 0) {
            self.activate_next(key);
        }
    }

    /// §9.3: the waiting consumer of the highest priority, oldest first, becomes the active one.
    fn activate_next(&mut self, key: QueueKey) {
        let queue = &mut self.queues[key];
        let mut next: Option<(i64, ConsumerKey)> = None;
        for &consumer in &queue.consumers {
            let priority = self.consumers[consumer].priority;
            if next.is_none_or(|(best, _)| priority > best) {
                next = Some((priority, consumer));
            }
        }
        queue.active_consumer = next.map(|(_, consumer)| consumer);
        queue.handing_over = false;
        if let Some((_, consumer)) = next {
            self.offer(consumer);
        }
    }

    /// A consumer has left the queue: an auto-delete queue goes with its last one (§5.8).
    pub(super) fn consumer_left(&mut self, key: QueueKey, now: Millis) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        if !queue.consumers.is_empty() {
            return;
        }
        queue.last_used = now;
        if queue.auto_delete && !self.stopping {
            self.delete_queue(key);
        } else {
            self.arm_queue_expiry(key);
        }
    }

    pub(super) fn basic_get(
        &mut self,
        channel: ChannelKey,
        get: &basic::Get<'_>,
        now: Millis,
    ) -> Result<(), AmqpError> {
        let name = self.expand_queue_name(channel, get.queue)?;
        self.check_access(channel, Access::Read, self.queue_resource(&name))?;
        let key = self.find_usable_queue(channel, &name)?;
        let resource = self.queue_resource(&name);
        let queue = &self.queues[key];
        if queue.queue_type == QueueType::Quorum && queue.settings.single_active_consumer {
            let queue_type = self.settings.profile.quorum_in_texts();
            return Err(AmqpError::GetFromSingleActiveConsumer { queue: resource, queue_type });
        }
        self.refuse_stream(key, "basic.get")?;
        self.expire_heads(key, now);
        let queue = &mut self.queues[key];
        queue.last_used = now;
        let Some((seq, record)) = queue.peek() else {
            queue.stats.got_empty += 1;
            self.reply(channel, &basic::GetEmpty {}.into());
            return Ok(());
        };
        let (body_len, priority, redelivered) = (record.body_len, record.priority, record.is(flag::REDELIVERED));
        queue.take(seq, body_len, priority);
        queue.stats.delivered += 1;
        queue.stats.redelivered += u64::from(redelivered);
        queue.stats.delivered_no_ack += u64::from(get.no_ack);
        queue.stats.got += 1;
        queue.stats.got_no_ack += u64::from(get.no_ack);
        // What has expired behind it is gone before the rest is counted.
        self.expire_heads(key, now);
        let queue = &self.queues[key];
        let remaining = u32::try_from(queue.ready_count()).unwrap_or(u32::MAX);
        // Where only consumers are timed, basic.get is not (§9.5).
        let timeout = match self.settings.profile.ack_timeout_closes_channel() {
            true => self.settings.ack_timeout_ms(queue),
            false => None,
        };
        let deadline = timeout.map_or(Millis::MAX, |timeout| now.saturating_add(timeout));
        self.flush_confirms(channel);
        let state = &mut self.channels[channel];
        let (number, connection) = (state.number, state.connection);
        let tag = state.next_tag();
        if !get.no_ack {
            state.unacked.push(Delivery { tag, queue: key, seq, consumer: ConsumerKey::null(), deadline });
            self.queues[key].unacked_count += 1;
            if deadline < state.ack_timer {
                state.ack_timer = deadline;
                self.timers.arm(deadline, Timer::AckTimeout(channel));
            }
        }
        let state = &mut self.connections[connection];
        state.backlog_bytes += dispatch::backlog_of(body_len);
        state.outbox.push_back(Out::Delivery(OutDelivery {
            channel,
            number,
            no_ack: get.no_ack,
            kind: OutKind::Get(remaining),
            queue: key,
            seq,
            tag,
            redelivered,
            body_len,
        }));
        self.wake(connection);
        self.care_for_head(key, now);
        Ok(())
    }

    /// §5.1: an empty name means the queue that this channel declared last.
    pub(super) fn expand_queue_name(&self, channel: ChannelKey, name: &str) -> Result<Name, AmqpError> {
        if !name.is_empty() {
            return Ok(Name::from(name));
        }
        self.channels[channel].last_queue.clone().ok_or(AmqpError::NoPreviouslyDeclaredQueue)
    }

    /// The queue, if it exists and is not exclusive to another connection (§5.3, lax check).
    pub(super) fn find_usable_queue(&self, channel: ChannelKey, name: &str) -> Result<QueueKey, AmqpError> {
        let Some(&key) = self.queues_by_name.get(name) else {
            return Err(AmqpError::NotFound(self.queue_resource(name)));
        };
        let owner = self.queues[key].exclusive_owner;
        if owner.is_some_and(|owner| owner != self.channels[channel].connection) {
            return Err(AmqpError::LockedQueue(self.queue_resource(name)));
        }
        Ok(key)
    }
}
