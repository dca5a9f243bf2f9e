//! From ready messages to consumers, and from a connection's outbox to bytes (§9.2).
//!
//! Dispatch decides which message goes to which consumer and moves positions only. The consumer's own
//! connection then polls, and its deliveries are encoded straight from the queues' segments.

use bytes::BytesMut;
use leveret_protocol::{
    FieldTable, FieldValue, RawProperties, basic, put_ack, put_deliver, put_heartbeat, put_method_frame, put_nack,
};

use super::Broker;
use crate::model::channel::Delivery;
use crate::model::connection::{BACKLOG_BYTES_MAX, BACKLOG_PER_DELIVERY, ConnectionState, Out, OutDelivery, OutKind};
use crate::model::ids::{ChannelKey, ConnectionKey, ConsumerKey, QueueKey};
use crate::model::output::Output;
use crate::model::queue::message::flag;
use crate::model::queue::{Returns, stream};
use crate::model::timer::{Millis, Timer};

/// What a poll leaves to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    /// The limit was reached; there is more to send. Not so for what waits for the disk.
    pub more: bool,
    pub state: ConnectionState,
    /// Bytes that wait for this client: a shell reads no more from one that lets too much gather.
    pub pending_bytes: usize,
    /// The store is far behind: a shell reads no more from anybody who publishes until the next commit.
    pub hold_back: bool,
}

/// What a delivery in an outbox counts towards its connection's backlog.
pub(super) fn backlog_of(body_len: u32) -> usize {
    body_len as usize + BACKLOG_PER_DELIVERY
}

/// The properties of a message of a quorum queue that came back before (§12.1).
fn with_counts(properties: RawProperties<'_>, returns: Returns, acquired: bool) -> BytesMut {
    let mut owned = properties.to_properties().unwrap_or_default();
    let headers = owned.headers.get_or_insert_with(FieldTable::new);
    if returns.failed > 0 {
        headers.insert("x-delivery-count", FieldValue::I64(returns.failed.into()));
    }
    if acquired && returns.acquired > 0 {
        headers.insert("x-acquired-count", FieldValue::I64(returns.acquired.into()));
    }
    let mut encoded = BytesMut::new();
    owned.encode(&mut encoded);
    encoded
}

/// Why a consumer stopped receiving.
enum Stop {
    /// It had its turn, or the queue is empty.
    No,
    Credit,
    Backlog,
}

impl Broker {
    #[inline]
    pub(super) fn mark_dirty(&mut self, key: QueueKey) {
        if let Some(queue) = self.queues.get_mut(key)
            && !queue.dirty
        {
            queue.dirty = true;
            self.dirty.push(key);
        }
    }

    /// Dispatches every marked queue.
    #[inline]
    pub(super) fn dispatch_dirty(&mut self, now: Millis) {
        if self.dirty.is_empty() {
            return;
        }
        let mut index = 0;
        // Dead letters of one queue may mark others.
        while index < self.dirty.len() {
            let key = self.dirty[index];
            index += 1;
            self.dispatch(key, now);
            if !self.deaths.is_empty() {
                self.process_deaths(now);
            }
        }
        self.dirty.clear();
    }

    /// Hands out ready messages while somebody can take them.
    pub(super) fn dispatch(&mut self, key: QueueKey, now: Millis) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        queue.dirty = false;
        if queue.is_stream() {
            return self.dispatch_stream(key, now);
        }
        let has_pages = queue.has_pages();
        while let Some(queue) = self.queues.get_mut(key)
            && queue.ready_count() > 0
        {
            if queue.expired_head(now.saturating_sub(1)).is_some() {
                // Nobody loses a turn to it. One that expires at this moment may still be taken.
                self.expire_heads(key, now);
                continue;
            }
            if has_pages && queue.head_away().is_some() {
                break;
            }
            let Some(consumer) = queue.next_waiting() else { break };
            self.serve(key, consumer, now);
        }
        self.care_for_head(key, now);
        if has_pages && self.queues.contains_key(key) {
            self.read_ahead(key);
        }
    }

    /// Gives one consumer its turn: one message, or all it can take if nobody else waits.
    fn serve(&mut self, key: QueueKey, consumer_key: ConsumerKey, now: Millis) {
        let queue = &mut self.queues[key];
        let Some(consumer) = self.consumers.get_mut(consumer_key) else { return };
        let channel = &mut self.channels[consumer.channel];
        let connection = &mut self.connections[consumer.connection];
        let alone = !queue.has_waiting();
        let timeout_ms = consumer.timeout_ms.or_else(|| self.settings.ack_timeout_ms(queue));
        let deadline = timeout_ms.map_or(Millis::MAX, |timeout| now.saturating_add(timeout));
        let mut stop = Stop::No;
        let mut assigned = false;
        loop {
            if !consumer.has_credit() || !channel.has_credit() {
                stop = Stop::Credit;
                break;
            }
            if connection.backlog_bytes >= BACKLOG_BYTES_MAX {
                stop = Stop::Backlog;
                break;
            }
            let Some((seq, record)) = queue.peek() else { break };
            let (body_len, priority) = (record.body_len, record.priority);
            let redelivered = record.is(flag::REDELIVERED);
            if record.expires_at.is_some_and(|at| at < now) {
                // `care_for_head` takes it, and comes back here.
                break;
            }
            queue.take(seq, body_len, priority);
            queue.stats.delivered += 1;
            queue.stats.redelivered += u64::from(redelivered);
            queue.stats.delivered_no_ack += u64::from(consumer.no_ack);
            let tag = channel.next_tag();
            if !consumer.no_ack {
                consumer.unacked += 1;
                queue.unacked_count += 1;
                channel.unacked.push(Delivery { tag, queue: key, seq, consumer: consumer_key, deadline });
                if deadline < channel.ack_timer {
                    channel.ack_timer = deadline;
                    self.timers.arm(deadline, Timer::AckTimeout(consumer.channel));
                }
            }
            consumer.queued += 1;
            connection.backlog_bytes += backlog_of(body_len);
            connection.outbox.push_back(Out::Delivery(OutDelivery {
                channel: consumer.channel,
                number: channel.number,
                no_ack: consumer.no_ack,
                kind: OutKind::Deliver(consumer_key),
                queue: key,
                seq,
                tag,
                redelivered,
                body_len,
            }));
            assigned = true;
            if !alone {
                break;
            }
        }
        match stop {
            Stop::No => queue.add_waiting(consumer_key, consumer.priority),
            Stop::Credit => consumer.waiting = false,
            Stop::Backlog => {
                consumer.waiting = false;
                connection.parked.push(consumer_key);
            }
        }
        if assigned && !connection.woken {
            connection.woken = true;
            self.wake.push(consumer.connection);
        }
        if matches!(stop, Stop::No) && self.queues[key].expired_head(now).is_some() {
            self.expire_heads(key, now);
        }
    }

    /// The consumer may have room again: lets it wait for messages if it has.
    #[inline]
    pub(super) fn offer(&mut self, consumer_key: ConsumerKey) {
        let Some(consumer) = self.consumers.get_mut(consumer_key) else { return };
        if consumer.waiting || consumer.cancelled || !consumer.has_credit() {
            return;
        }
        let Some(channel) = self.channels.get(consumer.channel) else { return };
        let Some(queue) = self.queues.get_mut(consumer.queue) else { return };
        if !channel.has_credit()
            || (queue.settings.single_active_consumer
                && (queue.active_consumer != Some(consumer_key) || queue.handing_over))
        {
            return;
        }
        consumer.waiting = true;
        queue.add_waiting(consumer_key, consumer.priority);
        if queue.ready_count() > 0 {
            let key = consumer.queue;
            self.mark_dirty(key);
        }
    }

    /// Dispatches before a poll in the same turn, so that a client that publishes to itself is served at once.
    pub fn dispatch_now(&mut self, now: Millis) {
        self.dispatch_dirty(now);
    }

    /// Appends to `out` what the connection is to be sent, until `out` holds `limit` bytes.
    pub fn poll_transmit(&mut self, key: ConnectionKey, out: &mut Output, limit: usize, now: Millis) -> Poll {
        if !self.connections.contains_key(key) {
            return Self::GONE;
        }
        let connection = &mut self.connections[key];
        connection.woken = false;
        if std::mem::take(&mut connection.heartbeat_due) {
            put_heartbeat(&mut out.tail);
        }
        // After the heartbeat: it is no reason to leave out the next.
        let before = out.len();
        loop {
            self.drain_outbox(key, out, limit);
            self.send_confirms(key, out);
            if out.len() >= limit || !self.unpark(key) {
                break;
            }
            self.dispatch_dirty(now);
            if self.connections[key].outbox.is_empty() {
                break;
            }
        }
        let connection = &mut self.connections[key];
        connection.sent |= out.len() > before;
        // Parked consumers go on when this output is written, with the next poll.
        let held = connection.is_held(self.stored);
        let more = !held && (connection.has_output() || !connection.parked.is_empty());
        let pending_bytes = connection.pending_bytes();
        let state = match connection.state {
            // Its last words wait for the disk.
            state if state.is_over() && held && !connection.abandoned => ConnectionState::Closing,
            state => state,
        };
        let deferred = !connection.deferred.is_empty();
        if connection.woken {
            // By the dispatch above; the poller goes on by `more`.
            connection.woken = false;
            self.wake.retain(|other| *other != key);
        }
        let hold_back = self.pending.is_far_behind() || self.paging.is_far_behind() || deferred;
        Poll { more, state, pending_bytes, hold_back }
    }

    fn drain_outbox(&mut self, key: ConnectionKey, out: &mut Output, limit: usize) {
        while out.len() < limit {
            let connection = &mut self.connections[key];
            match connection.outbox.pop_front() {
                None => break,
                Some(Out::Encoded(bytes)) => {
                    let encoded = connection.encoded.split_to(bytes);
                    out.tail.extend_from_slice(&encoded);
                    if connection.encoded.is_empty() {
                        // Give back what a burst of replies took.
                        connection.encoded = bytes::BytesMut::new();
                    }
                }
                Some(Out::Delivery(delivery)) => {
                    self.note_sent(delivery.channel, delivery.tag);
                    self.encode_delivery(key, &delivery, out);
                }
                Some(Out::Sent { channel, tag }) => self.note_sent(channel, tag),
                Some(Out::Hold(commit)) if commit > self.stored => {
                    connection.outbox.push_front(Out::Hold(commit));
                    break;
                }
                Some(Out::Hold(_)) => {}
            }
        }
    }

    /// From now on the client can mean this delivery.
    #[inline]
    fn note_sent(&mut self, channel: ChannelKey, tag: u64) {
        if let Some(channel) = self.channels.get_mut(channel) {
            channel.sent_tag = tag;
        }
    }

    /// A queue is about to go: what waits to be sent of it is encoded, for its delivery tags are given out.
    pub(super) fn encode_all_of_queue(&mut self, queue: QueueKey) {
        let connections: Vec<ConnectionKey> = self.connections.keys().collect();
        for connection in connections {
            self.encode_in_place(connection, |delivery| delivery.queue == queue);
        }
    }

    /// The channel is about to end: every basic.get that was accepted gets its reply.
    pub(super) fn encode_gets(&mut self, channel: ChannelKey) {
        let connection = self.channels[channel].connection;
        let get = |delivery: &OutDelivery| delivery.channel == channel && matches!(delivery.kind, OutKind::Get(_));
        self.encode_in_place(connection, get);
    }

    /// The client settles this delivery before it was sent: it is encoded, while the message is still there.
    pub(super) fn encode_up_to(&mut self, channel: ChannelKey, tag: u64) {
        let connection = self.channels[channel].connection;
        self.encode_in_place(connection, |delivery| delivery.channel == channel && delivery.tag <= tag);
    }

    /// Encodes the deliveries that are wanted where they stand, and all before them on the same channel, so that
    /// no delivery tag is left out. The others are left to the poll.
    fn encode_in_place(&mut self, key: ConnectionKey, wanted: impl Fn(&OutDelivery) -> bool) {
        let connection = &mut self.connections[key];
        let mut last_tags: Vec<(ChannelKey, u64)> = Vec::new();
        for out in connection.outbox.iter().rev() {
            if let Out::Delivery(delivery) = out
                && wanted(delivery)
                && !last_tags.iter().any(|(channel, _)| *channel == delivery.channel)
            {
                last_tags.push((delivery.channel, delivery.tag));
            }
        }
        if last_tags.is_empty() {
            return;
        }
        let is_due = |delivery: &OutDelivery| {
            last_tags.iter().any(|(channel, last)| *channel == delivery.channel && delivery.tag <= *last)
        };
        let outbox = std::mem::take(&mut connection.outbox);
        let mut before = std::mem::take(&mut connection.encoded);
        let mut output = Output::default();
        for out in outbox {
            match out {
                Out::Encoded(bytes) => {
                    let bytes = before.split_to(bytes);
                    self.connections[key].encode(|encoded| encoded.extend_from_slice(&bytes));
                }
                Out::Delivery(delivery) if is_due(&delivery) => {
                    self.encode_delivery(key, &delivery, &mut output);
                    let connection = &mut self.connections[key];
                    // In front: no poll may stop between the two.
                    connection.outbox.push_back(Out::Sent { channel: delivery.channel, tag: delivery.tag });
                    connection.encode(|encoded| output.append_to(encoded));
                }
                other => self.connections[key].outbox.push_back(other),
            }
        }
    }

    #[inline]
    fn encode_delivery(&mut self, key: ConnectionKey, delivery: &OutDelivery, out: &mut Output) {
        if self.tracing {
            self.trace_delivery(delivery.channel, delivery.queue, delivery.seq);
        }
        let connection = &mut self.connections[key];
        connection.backlog_bytes -= backlog_of(delivery.body_len);
        let frame_max = connection.info.frame_max;
        let Some(queue) = self.queues.get_mut(delivery.queue) else {
            return self.delivery_left(delivery);
        };
        if let Some((record, body)) = queue.messages().get(delivery.seq) {
            let redelivered = delivery.redelivered;
            match delivery.kind {
                OutKind::Deliver(consumer) => {
                    let Some(consumer) = self.consumers.get(consumer) else { return };
                    put_deliver(
                        &mut out.tail,
                        delivery.number,
                        &consumer.tag,
                        delivery.tag,
                        redelivered,
                        record.exchange,
                        record.routing_key,
                    );
                }
                OutKind::Get(message_count) => {
                    let get_ok = basic::GetOk {
                        delivery_tag: delivery.tag,
                        redelivered,
                        exchange: std::str::from_utf8(record.exchange).unwrap_or_default(),
                        routing_key: std::str::from_utf8(record.routing_key).unwrap_or_default(),
                        message_count,
                    };
                    put_method_frame(&mut out.tail, delivery.number, &get_ok.into());
                }
            }
            match queue.returns_of(delivery.seq) {
                None if queue.is_stream() => {
                    let properties = stream::with_offset(record.raw_properties(), delivery.seq);
                    out.put_content(delivery.number, frame_max, &properties, record.inline_body, body);
                }
                None => out.put_content(delivery.number, frame_max, record.properties, record.inline_body, body),
                Some(returns) => {
                    let acquired = self.settings.profile.has_acquired_count();
                    let properties = with_counts(record.raw_properties(), returns, acquired);
                    out.put_content(delivery.number, frame_max, &properties, record.inline_body, body);
                }
            }
        }
        if delivery.no_ack {
            self.settle(delivery.queue, delivery.seq);
            if let Some(queue) = self.queues.get_mut(delivery.queue) {
                queue.stats.acked += 1;
                queue.stats.sent_no_ack += 1;
            }
        }
        self.delivery_left(delivery);
    }

    /// A delivery is out of the outbox; a cancelled consumer goes with its last one.
    #[inline]
    fn delivery_left(&mut self, delivery: &OutDelivery) {
        let OutKind::Deliver(key) = delivery.kind else { return };
        if let Some(consumer) = self.consumers.get_mut(key) {
            consumer.queued -= 1;
            if consumer.cancelled && consumer.queued == 0 {
                self.consumers.remove(key);
            }
        }
    }

    /// Lets the consumers that waited for the backlog to shrink go on. True if there were any.
    fn unpark(&mut self, key: ConnectionKey) -> bool {
        let connection = &mut self.connections[key];
        if connection.parked.is_empty() || connection.backlog_bytes > BACKLOG_BYTES_MAX / 2 {
            return false;
        }
        for consumer in std::mem::take(&mut connection.parked) {
            self.offer(consumer);
        }
        true
    }

    /// Notes that the channel has confirms to send once `stored` has come far enough.
    #[inline]
    pub(super) fn list_confirms(&mut self, key: ChannelKey) {
        let channel = &mut self.channels[key];
        if !channel.confirm_listed {
            channel.confirm_listed = true;
            let connection = channel.connection;
            self.connections[connection].confirming.push(key);
            self.wake(connection);
        }
    }

    fn send_confirms(&mut self, key: ConnectionKey, out: &mut Output) {
        let connection = &mut self.connections[key];
        if connection.confirming.is_empty() || !connection.outbox.is_empty() {
            return;
        }
        for channel in connection.confirming.drain(..) {
            let Some(channel) = self.channels.get_mut(channel) else { continue };
            channel.confirm_listed = false;
            let Some(confirms) = &mut channel.confirms else { continue };
            while let Some(answer) = confirms.next_answer(self.stored) {
                if answer.refused {
                    put_nack(&mut out.tail, channel.number, answer.last, answer.multiple);
                } else {
                    put_ack(&mut out.tail, channel.number, answer.last, answer.multiple);
                }
            }
        }
    }

    /// Puts the confirms that are due before whatever is sent on the channel next.
    pub(super) fn flush_confirms(&mut self, key: ChannelKey) {
        let Some(channel) = self.channels.get_mut(key) else { return };
        let Some(confirms) = &mut channel.confirms else { return };
        if !channel.confirm_listed {
            return;
        }
        let (number, connection) = (channel.number, &mut self.connections[channel.connection]);
        while let Some(answer) = confirms.next_answer(self.stored) {
            connection.encode(|encoded| {
                if answer.refused {
                    put_nack(encoded, number, answer.last, answer.multiple);
                } else {
                    put_ack(encoded, number, answer.last, answer.multiple);
                }
            });
        }
    }

    /// The commit is on disk, and all before it: confirms and commit-oks that waited for it may go.
    pub fn stored(&mut self, commit: u64) {
        self.stored = self.stored.max(commit);
        // More is on disk, so more may go.
        self.paging.look_again();
        self.streams_stored();
        self.release_held();
        while let Some(&(awaited, channel)) = self.awaiting.front() {
            if awaited > self.stored {
                break;
            }
            self.awaiting.pop_front();
            let Some(state) = self.channels.get(channel) else { continue };
            if state.confirms.is_some() {
                self.list_confirms(channel);
            } else if state.tx.as_ref().is_some_and(|tx| tx.committing.is_some_and(|commit| commit <= self.stored)) {
                self.tx_committed(channel);
            }
        }
    }

    /// The channel is to be told when the commit that gathers now is on disk.
    #[inline]
    pub(super) fn await_commit(&mut self, key: ChannelKey) -> u64 {
        let commit = self.pending.commit();
        let channel = &mut self.channels[key];
        if channel.awaited_commit != commit {
            channel.awaited_commit = commit;
            self.awaiting.push_back((commit, key));
        }
        commit
    }

    /// Moves what is to be committed into `batch`; returns the number for [`Self::stored`], or `None` if
    /// there is nothing.
    pub fn take_batch(&mut self, batch: &mut crate::model::record::Batch) -> Option<u64> {
        if self.pending.is_empty() {
            return None;
        }
        Some(self.pending.take(&mut self.queues, &mut self.delayed, batch))
    }
}
