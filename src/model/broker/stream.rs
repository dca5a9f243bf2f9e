//! Streams at work: what enters them, who reads them, what retention takes (§12.2).
//!
//! Consumers take turns like those of other queues, but each reads from its own place; an ack only gives credit
//! back. What a stream has is in `queue/stream.rs`.

use leveret_protocol::{FieldTable, basic};

use super::Broker;
use super::dispatch::backlog_of;
use super::publish::Outcome;
use crate::model::arguments::QueueType;
use crate::model::channel::Delivery;
use crate::model::connection::{BACKLOG_BYTES_MAX, Out, OutDelivery, OutKind};
use crate::model::error::AmqpError;
use crate::model::ids::{ChannelKey, ConsumerKey, QueueKey};
use crate::model::queue::message::NewMessage;
use crate::model::queue::stream::{Filter, Offset, Read};
use crate::model::timer::{Millis, Timer};

/// Deliveries to one consumer before the next has its turn.
const SLICE: u32 = 64;
/// Messages looked at in one go that consumers do not want; then others have the vhost.
const LOOKS_MAX: u32 = 10_000;
/// How long a stream that was stopped by [`LOOKS_MAX`] pauses. Not 0: it would go on within the same turn.
const PAUSE_MS: Millis = 1;

const SEGMENT_SIZE: &str = "x-stream-max-segment-size-bytes";
const SEGMENT_SIZE_MAX: i128 = 3_000_000_000;
const FILTER_SIZE: &str = "x-stream-filter-size-bytes";

/// §5.5: the ranges that only streams check, after everything else.
pub(super) fn check_ranges(arguments: &FieldTable) -> Result<(), AmqpError> {
    let number = |name: &str| arguments.get(name).and_then(|value| value.as_integer());
    if number(SEGMENT_SIZE).is_some_and(|bytes| bytes > SEGMENT_SIZE_MAX) {
        return Err(AmqpError::Precondition(format!("Exceeded max value for {SEGMENT_SIZE}")));
    }
    if number(FILTER_SIZE).is_some_and(|bytes| !(16..=255).contains(&bytes)) {
        // Both blanks are RabbitMQ's.
        return Err(AmqpError::Precondition(format!("Invalid value for  {FILTER_SIZE}")));
    }
    Ok(())
}

/// Why a consumer's turn ended.
enum Turn {
    Over,
    AtEnd,
    NoCredit,
    Backlog,
    /// Nobody goes on for now.
    Pause,
}

impl Broker {
    /// What a consumer of this queue reads, if it is a stream.
    ///
    /// # Errors
    /// 406: a bad offset, no prefetch; 540: no-ack, a channel-wide limit.
    pub(super) fn check_stream_consume(
        &self,
        channel: ChannelKey,
        key: QueueKey,
        consume: &basic::Consume<'_>,
        now: Millis,
    ) -> Result<Option<(Offset, Option<Filter>)>, AmqpError> {
        let queue = &self.queues[key];
        if !queue.is_stream() {
            return Ok(None);
        }
        let resource = self.queue_resource(&queue.name);
        const OFFSET: &str = "x-stream-offset";
        let offset = Offset::parse(consume.arguments.get(OFFSET), now).map_err(|reason| {
            AmqpError::InvalidArgument { argument: OFFSET.to_owned(), resource: resource.clone(), reason }
        })?;
        let state = &self.channels[channel];
        if state.prefetch == 0 {
            let text = format!("consumer prefetch count is not set for stream {resource}");
            return Err(AmqpError::Precondition(text));
        }
        if consume.no_ack {
            let text = format!("automatic acknowledgement not supported by stream {resource}");
            return Err(AmqpError::NotImplemented(text));
        }
        if state.global_prefetch > 0 {
            return Err(AmqpError::NotImplemented(format!("{resource} does not support global qos")));
        }
        Ok(Some((offset, Filter::parse(&consume.arguments))))
    }

    /// Refuses what streams cannot do (540).
    pub(super) fn refuse_stream(&self, key: QueueKey, method: &str) -> Result<(), AmqpError> {
        let queue = &self.queues[key];
        if !queue.is_stream() {
            return Ok(());
        }
        let resource = self.queue_resource(&queue.name);
        Err(AmqpError::NotImplemented(format!("{method} not supported by stream queues {resource}")))
    }

    /// Appends a message; it can be read when it is on disk.
    pub(super) fn append_to_stream(
        &mut self,
        key: QueueKey,
        message: &NewMessage<'_>,
        now: Millis,
        outcome: &mut Outcome,
    ) {
        let queue = &mut self.queues[key];
        let seq = queue.append(message, now, &mut self.pool);
        if queue.store_id.is_none() {
            queue.commit_below(seq + 1);
            return self.mark_dirty(key);
        }
        let commit = self.pending.commit();
        if queue.awaits_commit(seq, commit) {
            self.streams_awaiting.push_back((commit, key));
        }
        self.pending.publish(key, seq, message.body.as_slice().len());
        outcome.stored = true;
    }

    /// What the commits up to `self.stored` hold may be read.
    pub(super) fn streams_stored(&mut self) {
        while let Some(&(commit, key)) = self.streams_awaiting.front() {
            if commit > self.stored {
                break;
            }
            self.streams_awaiting.pop_front();
            if let Some(queue) = self.queues.get_mut(key) {
                queue.stream_stored(self.stored);
                self.mark_dirty(key);
            }
        }
    }

    /// Takes what is too old or too much, and hands out what there is to read while somebody can take it.
    pub(super) fn dispatch_stream(&mut self, key: QueueKey, now: Millis) {
        self.retain_stream(key, now);
        let mut looks = LOOKS_MAX;
        while let Some(consumer) = self.queues[key].next_waiting() {
            if let Turn::Pause = self.serve_reader(key, consumer, &mut looks, now) {
                self.arm_stream(key, now + PAUSE_MS);
                break;
            }
        }
    }

    /// Gives one consumer of a stream its turn.
    fn serve_reader(&mut self, key: QueueKey, consumer_key: ConsumerKey, looks: &mut u32, now: Millis) -> Turn {
        let queue = &mut self.queues[key];
        let Some(consumer) = self.consumers.get_mut(consumer_key) else { return Turn::Over };
        let channel = &mut self.channels[consumer.channel];
        let connection = &mut self.connections[consumer.connection];
        let deadline = self.settings.ack_timeout_ms(queue).map_or(Millis::MAX, |timeout| now.saturating_add(timeout));
        let mut assigned = 0;
        let turn = loop {
            if !consumer.has_credit() || !channel.has_credit() {
                break Turn::NoCredit;
            }
            if connection.backlog_bytes >= BACKLOG_BYTES_MAX {
                break Turn::Backlog;
            }
            if assigned == SLICE {
                break Turn::Over;
            }
            let (seq, body_len) = match queue.read(consumer_key, looks) {
                Read::Message { seq, body_len } => (seq, body_len),
                Read::End => break Turn::AtEnd,
                Read::Pause => break Turn::Pause,
            };
            let tag = channel.next_tag();
            consumer.unacked += 1;
            queue.unacked_count += 1;
            queue.stats.delivered += 1;
            channel.unacked.push(Delivery { tag, queue: key, seq, consumer: consumer_key, deadline });
            if deadline < channel.ack_timer {
                channel.ack_timer = deadline;
                self.timers.arm(deadline, Timer::AckTimeout(consumer.channel));
            }
            consumer.queued += 1;
            connection.backlog_bytes += backlog_of(body_len);
            connection.outbox.push_back(Out::Delivery(OutDelivery {
                channel: consumer.channel,
                number: channel.number,
                no_ack: false,
                kind: OutKind::Deliver(consumer_key),
                queue: key,
                seq,
                tag,
                body_len,
            }));
            assigned += 1;
        };
        match turn {
            Turn::Over | Turn::Pause => queue.add_waiting(consumer_key, consumer.priority),
            Turn::AtEnd => queue.wait_at_end(consumer_key),
            Turn::NoCredit => consumer.waiting = false,
            Turn::Backlog => {
                consumer.waiting = false;
                connection.parked.push(consumer_key);
            }
        }
        if assigned > 0 {
            let connection = consumer.connection;
            self.wake(connection);
        }
        turn
    }

    /// A message was retained away before it was sent: the client will not ack it, so its credit comes back.
    pub(super) fn unsent_is_gone(&mut self, delivery: &OutDelivery) {
        let Some(channel) = self.channels.get_mut(delivery.channel) else { return };
        let mut taken = Vec::new();
        if channel.unacked.take(delivery.tag, false, &mut taken) {
            if let Some(queue) = self.queues.get_mut(delivery.queue) {
                queue.unacked_count -= 1;
            }
            taken.iter().for_each(|delivery| self.release_credit(delivery));
        }
    }

    /// §12.2, retention: whole parts go while there is more than the stream may keep.
    pub(super) fn retain_stream(&mut self, key: QueueKey, now: Millis) {
        let Some(queue) = self.queues.get_mut(key).filter(|queue| queue.is_stream()) else { return };
        while let Some((first, last)) = queue.retain(now, &mut self.pool) {
            if let Some(store_id) = queue.store_id {
                self.pending.settle_range(store_id, first, last);
            }
        }
        if let Some(due) = queue.retention_due() {
            self.arm_stream(key, due);
        }
    }

    fn arm_stream(&mut self, key: QueueKey, at: Millis) {
        let armed = self.queues[key].stream_timer();
        if armed.is_none_or(|armed| at < armed) {
            *armed = Some(at);
            self.timers.arm(at, Timer::Stream(key));
        }
    }

    /// The timer of a stream: consumers go on after a pause, or retention is due.
    pub(super) fn look_at_stream(&mut self, key: QueueKey, now: Millis) {
        if let Some(queue) = self.queues.get_mut(key) {
            *queue.stream_timer() = None;
            self.dispatch_stream(key, now);
        }
    }

    /// All stored messages are back.
    pub(super) fn streams_recovered(&mut self, now: Millis) {
        let streams = self.queues.iter().filter(|(_, queue)| queue.queue_type == QueueType::Stream);
        let keys: Vec<QueueKey> = streams.map(|(key, _)| key).collect();
        for key in keys {
            self.queues[key].stream_recovered();
            self.retain_stream(key, now);
        }
    }
}
