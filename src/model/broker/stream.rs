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
use crate::model::profile::Profile;
use crate::model::queue::message::NewMessage;
use crate::model::queue::page::PageOp;
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
pub(super) fn check_ranges(arguments: &FieldTable, profile: Profile) -> Result<(), AmqpError> {
    let number = |name: &str| arguments.get(name).and_then(|value| value.as_integer());
    if number(SEGMENT_SIZE).is_some_and(|bytes| bytes > SEGMENT_SIZE_MAX) {
        return Err(AmqpError::Precondition(format!("Exceeded max value for {SEGMENT_SIZE}")));
    }
    if arguments.get(FILTER_SIZE).is_some() && number(FILTER_SIZE).is_none_or(|bytes| !(16..=255).contains(&bytes)) {
        // Two spaces until the text was mended.
        let space = if profile.knows_newer_arguments() { " " } else { "  " };
        return Err(AmqpError::Precondition(format!("Invalid value for{space}{FILTER_SIZE}")));
    }
    Ok(())
}

/// Why a consumer's turn ended.
enum Turn {
    Over,
    AtEnd,
    /// Its next message is on disk.
    Away(u64),
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
        let commit = queue.store_id.map(|_| self.pending.commit());
        let (seq, first) = queue.append(message, commit, now, &mut self.pool);
        let Some(commit) = commit else { return self.mark_dirty(key) };
        if first {
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
        self.queues[key].end_chunk();
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
                Read::Away(seq) => break Turn::Away(seq),
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
                redelivered: false,
                body_len,
            }));
            assigned += 1;
        };
        match turn {
            Turn::Over | Turn::Pause => queue.add_waiting(consumer_key, consumer.priority),
            Turn::AtEnd => queue.wait_at_end(consumer_key),
            Turn::Away(seq) => {
                queue.wait_for_page(consumer_key);
                self.paging.read_stream_ahead(key, queue, seq);
            }
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

    /// §12.2, retention: whole parts go while there is more than the stream may keep.
    pub(super) fn retain_stream(&mut self, key: QueueKey, now: Millis) {
        let Some(queue) = self.queues.get(key).filter(|queue| queue.is_stream()) else { return };
        if queue.is_to_retain_less(now) && queue.has_handed_out() {
            // What is on its way has its delivery tag.
            self.encode_all_of_queue(key);
        }
        let queue = &mut self.queues[key];
        while let Some((first, last, places)) = queue.retain(now, &mut self.pool) {
            self.paging.ops.extend(places.into_iter().map(PageOp::Free));
            if let Some(store_id) = queue.store_id {
                self.pending.settle_range(store_id, first, last);
            }
        }
        if let Some(due) = queue.retention_due() {
            self.arm_stream(key, due);
        }
    }

    /// The messages of a stream that are on their way to clients, in order: they must stay in memory.
    pub(super) fn pinned(&self, key: QueueKey) -> Vec<u64> {
        let outs = self.connections.values().flat_map(|connection| &connection.outbox);
        let mut pinned: Vec<u64> = outs
            .filter_map(|out| match out {
                Out::Delivery(delivery) if delivery.queue == key => Some(delivery.seq),
                _ => None,
            })
            .collect();
        pinned.sort_unstable();
        pinned
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
            self.retain_stream(key, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use leveret_protocol::FieldValue;

    use super::*;
    use crate::model::broker::Settings;
    use crate::model::broker::testing::{Rig, Sent};
    use crate::model::queue::message::BodyRef;
    use crate::model::record::{Batch, Op};

    fn stream(more: &[(&str, FieldValue)]) -> FieldTable {
        let own = [("x-queue-type", FieldValue::from("stream"))];
        FieldTable::from_iter(own.into_iter().chain(more.iter().cloned()))
    }

    fn rig(persistent: bool, arguments: &[(&str, FieldValue)]) -> Rig {
        let mut rig = Rig::new(Settings { persistent, ..Settings::default() });
        rig.declare("s", stream(arguments));
        rig
    }

    /// Consumes from `s`; returns the bodies that came at once.
    fn consume(rig: &mut Rig, tag: &str, prefetch_count: u16, offset: &str) -> Vec<String> {
        rig.send(basic::Qos { prefetch_size: 0, prefetch_count, global: false }.into());
        let arguments = FieldTable::from_iter([("x-stream-offset", FieldValue::from(offset))]);
        let consume = basic::Consume {
            queue: "s",
            consumer_tag: tag,
            no_local: false,
            no_ack: false,
            exclusive: false,
            no_wait: true,
            arguments,
        };
        bodies(&rig.send(consume.into()))
    }

    fn bodies(sent: &[Sent]) -> Vec<String> {
        let body = |sent: &Sent| match sent {
            Sent::Content(_, body) => Some(String::from_utf8_lossy(body).into_owned()),
            Sent::Method(_) => None,
        };
        sent.iter().filter_map(body).collect()
    }

    /// Appends a message and assigns it; nothing is polled.
    fn append(rig: &mut Rig, body: &[u8]) {
        let (exchange, routing_key, properties) = (b"".as_slice(), b"s".as_slice(), [0, 0].as_slice());
        let (body, persistent, priority, expires_at) = (BodyRef::Slice(body), false, 0, None);
        let (bcc, died) = ([].as_slice(), false);
        let message =
            NewMessage { exchange, routing_key, properties, body, persistent, priority, expires_at, bcc, died };
        let key = rig.broker.queue_key("s").unwrap();
        rig.broker.append_to_stream(key, &message, rig.now, &mut Outcome::default());
        rig.broker.dispatch_now(rig.now);
    }

    fn ack(rig: &mut Rig, delivery_tag: u64) -> Vec<String> {
        bodies(&rig.send(basic::Ack { delivery_tag, multiple: true }.into()))
    }

    /// Commits what there is; gives the operations, and what the client got.
    fn commit(rig: &mut Rig) -> (Vec<Op>, Vec<String>) {
        let mut batch = Batch::default();
        let commit = rig.broker.take_batch(&mut batch).expect("something to commit");
        rig.broker.stored(commit);
        (batch.ops, bodies(&rig.take()))
    }

    #[test]
    fn s12_2_nothing_is_delivered_before_it_is_on_disk() {
        let mut rig = rig(true, &[]);
        consume(&mut rig, "c", 10, "first");
        assert!(rig.publish("", "s", "m0").is_empty());
        assert_eq!(commit(&mut rig).1, ["m0"]);
        let (ops, got) = {
            rig.publish("", "s", "m1");
            rig.publish("", "s", "m2");
            commit(&mut rig)
        };
        assert_eq!(got, ["m1", "m2"]);
        assert!(matches!(ops[..], [Op::Publish { seq: 1, .. }, Op::Publish { seq: 2, .. }]), "{ops:?}");
    }

    #[test]
    fn s12_2_without_a_store_messages_are_delivered_at_once() {
        let mut rig = rig(false, &[]);
        consume(&mut rig, "c", 10, "next");
        assert_eq!(bodies(&rig.publish("", "s", "m0")), ["m0"]);
        rig.publish("", "s", "m1");
        assert_eq!(consume(&mut rig, "d", 10, "last"), ["m1"], "each turn makes a chunk");
    }

    #[test]
    fn s12_2_an_ack_only_gives_credit_back() {
        let mut rig = rig(false, &[]);
        for body in ["m0", "m1", "m2", "m3"] {
            rig.publish("", "s", body);
        }
        assert_eq!(consume(&mut rig, "a", 2, "first"), ["m0", "m1"]);
        assert_eq!(ack(&mut rig, 2), ["m2", "m3"]);
        assert_eq!(rig.broker.queue("s").unwrap().unacked_count, 2);
        ack(&mut rig, 0);
        let queue = rig.broker.queue("s").unwrap();
        assert_eq!((queue.unacked_count, queue.ready_count()), (0, 4));
        assert_eq!(consume(&mut rig, "b", 9, "first"), ["m0", "m1", "m2", "m3"]);
    }

    /// Nobody's turn is longer than a slice, so a backlog is read by all.
    #[test]
    fn s12_2_consumers_take_turns() {
        let mut rig = rig(true, &[]);
        consume(&mut rig, "a", 1000, "first");
        consume(&mut rig, "b", 1000, "first");
        for number in 0..200 {
            rig.publish("", "s", &number.to_string());
        }
        let got = commit(&mut rig).1;
        assert_eq!(got.len(), 400);
        let slice = SLICE as usize;
        assert_eq!(got[slice], "0", "the other one begins");
        assert_eq!(got[2 * slice], slice.to_string(), "and the first goes on");
    }

    /// Its delivery tag is given out, so the client must see it.
    #[test]
    fn s12_2_what_is_on_its_way_arrives_though_retention_takes_it() {
        let segment = (SEGMENT_SIZE, FieldValue::I32(1));
        let mut rig = rig(false, &[segment, ("x-max-length-bytes", FieldValue::I32(0))]);
        consume(&mut rig, "c", 1, "first");
        // The first is assigned, then it goes.
        for body in [b"m0", b"m1", b"m2"] {
            append(&mut rig, body);
        }
        assert_eq!(rig.broker.queue("s").unwrap().ready_count(), 1);
        assert_eq!(bodies(&rig.take()), ["m0"]);
        assert_eq!(ack(&mut rig, 1), ["m2"]);
    }

    /// §5.6: the same when the queue is deleted.
    #[test]
    fn s5_6_what_is_on_its_way_arrives_though_the_stream_is_deleted() {
        let mut rig = rig(false, &[]);
        rig.publish("", "s", "m0");
        consume(&mut rig, "c", 1, "last");
        rig.send(basic::Ack { delivery_tag: 1, multiple: false }.into());
        let key = rig.broker.queue_key("s").unwrap();
        append(&mut rig, b"m1");
        rig.broker.delete_queue(key);
        assert_eq!(bodies(&rig.take()), ["m1"]);
    }

    #[test]
    fn s12_2_retention_is_told_to_the_store() {
        let segment = (SEGMENT_SIZE, FieldValue::I32(1));
        let mut rig = rig(true, &[segment, ("x-max-length-bytes", FieldValue::I32(60))]);
        for body in ["m0", "m1", "m2", "m3"] {
            rig.publish("", "s", body);
        }
        commit(&mut rig);
        let settled: Vec<(u64, u64)> = commit(&mut rig)
            .0
            .iter()
            .map(|op| match op {
                Op::Settle { first, last, .. } => (*first, *last),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(settled, [(0, 0), (1, 1)]);
        assert_eq!(consume(&mut rig, "c", 9, "first"), ["m2", "m3"]);
    }

    #[test]
    fn s12_2_age_takes_messages_while_nothing_happens() {
        let segment = (SEGMENT_SIZE, FieldValue::I32(1));
        let mut rig = rig(false, &[segment, ("x-max-age", FieldValue::from("10s"))]);
        rig.publish("", "s", "m0");
        rig.publish("", "s", "m1");
        assert_eq!(rig.broker.next_deadline(), Some(rig.now + 10_001));
        rig.wait(10_000);
        assert_eq!(rig.broker.queue("s").unwrap().ready_count(), 2);
        rig.wait(1);
        assert_eq!(rig.broker.queue("s").unwrap().ready_count(), 1);
        assert_eq!(rig.broker.next_deadline(), None);
    }

    /// A consumer that wants nothing of a long stream lets others have the vhost in between.
    #[test]
    fn s12_2_looking_for_what_a_filter_wants_is_sliced() {
        let mut rig = rig(false, &[]);
        let count = LOOKS_MAX as u64 * 3;
        for _ in 0..count {
            rig.publish("", "s", "m");
        }
        rig.send(basic::Qos { prefetch_size: 0, prefetch_count: 1, global: false }.into());
        let arguments = FieldTable::from_iter([
            ("x-stream-offset", FieldValue::from("first")),
            ("x-stream-filter", FieldValue::from("none")),
        ]);
        let (no_local, no_ack, exclusive, no_wait) = (false, false, false, true);
        rig.send(
            basic::Consume { queue: "s", consumer_tag: "c", no_local, no_ack, exclusive, no_wait, arguments }.into(),
        );
        let mut turns = 0;
        while rig.broker.next_deadline().is_some() {
            rig.wait(PAUSE_MS);
            turns += 1;
        }
        assert_eq!(turns, 2, "for {count} messages");
        assert_eq!(consume(&mut rig, "d", 1, "last"), ["m"]);
    }

    /// §12.2: returns, refusals and limits of other queues leave a stream alone.
    #[test]
    fn s12_2_only_retention_takes_messages() {
        let mut rig = rig(false, &[("x-max-length-bytes", FieldValue::I32(1))]);
        for body in ["m0", "m1", "m2"] {
            rig.publish("", "s", body);
        }
        consume(&mut rig, "c", 2, "first");
        rig.send(basic::Nack { delivery_tag: 1, multiple: false, requeue: true }.into());
        rig.send(basic::Reject { delivery_tag: 2, requeue: false }.into());
        let key = rig.broker.queue_key("s").unwrap();
        assert_eq!(rig.broker.purge(key), 0);
        rig.broker.connection_lost(rig.connection, rig.now);
        let queue = rig.broker.queue("s").unwrap();
        assert_eq!((queue.ready_count(), queue.ready_bytes(), queue.unacked_count), (3, 6, 0));
        assert_eq!(queue.ready_sequences(), [0, 1, 2]);
    }

    /// §9.5: up to 4.2 deliveries of streams time out as well.
    #[test]
    fn s9_5_an_unacked_delivery_closes_the_channel() {
        let mut rig = rig(false, &[("x-consumer-timeout", FieldValue::I32(60_000))]);
        rig.publish("", "s", "m0");
        assert_eq!(consume(&mut rig, "c", 1, "first"), ["m0"]);
        let sent = rig.wait(60_000);
        assert!(matches!(&sent[..], [Sent::Method(text)] if text.contains("timed out")), "{sent:?}");
        assert_eq!(rig.broker.queue("s").unwrap().unacked_count, 0);
    }
}
