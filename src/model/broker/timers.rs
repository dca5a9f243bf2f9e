//! What happens because time passes, and what keeps queues within their limits (§3.7, §9.5, §11.2, §11.4).

use leveret_protocol::MethodId;

use super::dead_letter::Reason;
use super::delayed::RELEASE_AT_ONCE_MAX;
use super::{Broker, Finding};
use crate::model::channel::Delivery;
use crate::model::connection::ConnectionState;
use crate::model::error::AmqpError;
use crate::model::ids::{ChannelKey, ConnectionKey, ConsumerKey, QueueKey};
use crate::model::record::Name;
use crate::model::timer::{Millis, Timer};

/// Messages expired in one go; more wait for the next turn, so that nobody is kept from the vhost for long.
const EXPIRE_AT_ONCE_MAX: usize = 10_000;

impl Broker {
    /// Time has passed: does what is due. To be called when `Effects::deadline` is reached; if there is much to
    /// do, a part of it may be left for the next call, with a deadline that has passed.
    pub fn advance(&mut self, now: Millis) {
        let mut budget = RELEASE_AT_ONCE_MAX;
        let mut unfinished = Vec::new();
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::QueueHead(queue) => {
                    if let Some(queue) = self.queues.get_mut(queue) {
                        queue.head_timer = None;
                    }
                    self.care_for_head(queue, now);
                }
                Timer::QueueExpires(queue) => self.queue_may_expire(queue, now),
                Timer::QueueDelayed(queue) => self.end_delays(queue, now),
                Timer::DelayedExchange(exchange) => {
                    if !self.release_delayed(exchange, now, &mut budget) {
                        unfinished.push(exchange);
                    }
                }
                Timer::Stream(queue) => self.look_at_stream(queue, now),
                Timer::RetryDeaths => self.retry_deaths(now),
                Timer::AckTimeout(channel) => self.ack_may_time_out(channel, now),
                Timer::HeartbeatSend(connection) => self.heartbeat_send(connection, now),
                Timer::HeartbeatReceive(connection) => self.heartbeat_receive(connection, now),
                Timer::CloseConnection(connection) => {
                    if self.connections.contains_key(connection) {
                        self.close_now(connection);
                    }
                }
            }
            if !self.deaths.is_empty() {
                self.process_deaths(now);
            }
        }
        for exchange in unfinished {
            // Due already: the next call goes on.
            self.arm_delayed(exchange);
        }
    }

    /// When [`Self::advance`] has something to do next.
    pub fn next_deadline(&self) -> Option<Millis> {
        self.timers.next_deadline()
    }

    /// Drops what has expired at the heads of the queue, and arms its timer for the next that will.
    #[inline]
    pub(super) fn care_for_head(&mut self, key: QueueKey, now: Millis) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        let mut next = queue.next_head_expiry();
        if next.is_some_and(|next| next <= now) {
            self.expire_heads(key, now);
            let Some(queue) = self.queues.get_mut(key) else { return };
            next = queue.next_head_expiry();
        }
        let queue = &mut self.queues[key];
        if let Some(next) = next {
            if queue.head_timer.is_none_or(|armed| next < armed) {
                queue.head_timer = Some(next);
                self.timers.arm(next, Timer::QueueHead(key));
            }
        } else if queue.has_pages() {
            self.care_for_head_away(key, now);
        }
    }

    /// The head may have expired, and is away.
    #[cold]
    fn care_for_head_away(&mut self, key: QueueKey, now: Millis) {
        if self.queues[key].may_expire() {
            let before = self.queues[key].ready_count();
            self.expire_heads(key, now);
            if self.queues[key].ready_count() < before {
                self.mark_dirty(key);
            }
            self.want_head(key);
        }
    }

    /// §11.2: expired messages at the head are dead-lettered or dropped.
    pub(super) fn expire_heads(&mut self, key: QueueKey, now: Millis) {
        for _ in 0..EXPIRE_AT_ONCE_MAX {
            let Some(queue) = self.queues.get_mut(key) else { return };
            let Some(seq) = queue.expired_head(now) else {
                let Some(base) = queue.expired_page(now) else { return };
                let expired = self.drop_pages(key, Some(base));
                self.queues[key].stats.expired += expired;
                continue;
            };
            queue.take_head(seq);
            queue.stats.expired += 1;
            self.die(key, seq, Reason::Expired);
        }
    }

    /// A message has entered a queue with limits or expiring messages: whoever can takes one first (§11.4).
    pub(super) fn care_for_limits(&mut self, key: QueueKey, expires_at: Option<Millis>, now: Millis) {
        let over = self.queues[key].is_over_limit();
        if over || expires_at.is_some_and(|at| at <= now) {
            self.dispatch(key, now);
        } else if self.queues[key].head_timer.is_none() || self.queues[key].has_levels() {
            self.care_for_head(key, now);
        }
        if over {
            self.trim(key);
        }
    }

    /// §11.4, drop-head: the next to be delivered goes until the queue is within its limits.
    pub(super) fn trim(&mut self, key: QueueKey) {
        while let Some(queue) = self.queues.get_mut(key)
            && queue.is_over_limit()
            && let Some((seq, _)) = queue.peek()
        {
            queue.take_head(seq);
            queue.stats.overflowed += 1;
            self.die(key, seq, Reason::Maxlen);
        }
        if let Some(queue) = self.queues.get_mut(key)
            && queue.has_pages()
        {
            // Goes on when it is here.
            queue.trim_waits = queue.is_over_limit();
            if queue.trim_waits {
                self.want_head(key);
            }
        }
    }

    /// Starts the time after which an unused queue goes (`x-expires`), from its last use.
    pub(super) fn arm_queue_expiry(&mut self, key: QueueKey) {
        if let Some(queue) = self.queues.get(key)
            && let Some(expires_ms) = queue.settings.expires_ms
        {
            self.timers.arm(queue.last_used.saturating_add(expires_ms), Timer::QueueExpires(key));
        }
    }

    fn queue_may_expire(&mut self, key: QueueKey, now: Millis) {
        let Some(queue) = self.queues.get(key) else { return };
        let Some(expires_ms) = queue.settings.expires_ms else { return };
        if !queue.consumers.is_empty() {
            // Armed again when the last one leaves.
            return;
        }
        if queue.last_used.saturating_add(expires_ms) > now {
            return self.arm_queue_expiry(key);
        }
        tracing::debug!(vhost = %self.vhost, queue = %queue.name, "queue expired");
        self.delete_queue(key);
    }

    /// §12.1: returned messages whose wait is over are ready again.
    fn end_delays(&mut self, key: QueueKey, now: Millis) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        let next = queue.end_delays(now);
        self.mark_dirty(key);
        if let Some(next) = next {
            self.timers.arm(next, Timer::QueueDelayed(key));
        }
    }

    /// §9.5: a delivery has been unacked for too long: the channel is closed and gives everything back.
    fn ack_may_time_out(&mut self, key: ChannelKey, now: Millis) {
        let Some(channel) = self.channels.get_mut(key) else { return };
        if channel.ack_timer > now {
            return;
        }
        channel.ack_timer = Millis::MAX;
        let Some(oldest) = channel.unacked.iter().min_by_key(|delivery| delivery.deadline).copied() else { return };
        if oldest.deadline > now {
            if oldest.deadline < Millis::MAX {
                channel.ack_timer = oldest.deadline;
                self.timers.arm(oldest.deadline, Timer::AckTimeout(key));
            }
            return;
        }
        let (connection, number) = (channel.connection, channel.number);
        let of_queue = self.queues.get(oldest.queue).and_then(|queue| self.settings.ack_timeout_ms(queue));
        let of_consumer = self.consumers.get(oldest.consumer).and_then(|consumer| consumer.timeout_ms);
        let timeout_ms = of_consumer.or(of_queue).unwrap_or_default();
        tracing::warn!(
            vhost = %self.vhost,
            connection = %self.connection_name(connection),
            channel = number,
            consumer_tag = %self.consumers.get(oldest.consumer).map_or_else(String::new, |consumer| String::from_utf8_lossy(&consumer.tag).into_owned()),
            timeout_ms,
            "delivery acknowledgement timed out, closing channel"
        );
        let queue = self.queues.get(oldest.queue).map_or_else(|| Name::from(""), |queue| queue.name.clone());
        self.lint(key, Finding::AckTimeout, &queue);
        if self.settings.profile.ack_timeout_closes_channel() {
            let error = AmqpError::AckTimeout { channel: number, timeout_ms: timeout_ms.to_string() };
            return self.fail(connection, number, MethodId::NONE, &error, now);
        }
        if !self.connections[connection].info.capabilities.consumer_cancel_notify {
            let error = AmqpError::AckTimeout { channel: number, timeout_ms: "-1".to_owned() };
            return self.fail(connection, number, MethodId::NONE, &error, now);
        }
        self.return_timed_out(key, oldest.consumer, now);
        self.cancel_by_server(oldest.consumer);
        self.ack_may_time_out(key, now);
    }

    /// §9.5, from 4.3 on: what a consumer held for too long goes back without counting as failed.
    fn return_timed_out(&mut self, key: ChannelKey, consumer: ConsumerKey, now: Millis) {
        let channel = &mut self.channels[key];
        let late = |delivery: &&Delivery| delivery.consumer == consumer && delivery.deadline <= now;
        let tags: Vec<u64> = channel.unacked.iter().filter(late).map(|delivery| delivery.tag).collect();
        let mut taken = Vec::new();
        for tag in tags {
            channel.unacked.take(tag, false, channel.sent_tag, &mut taken);
        }
        self.return_all(&taken, u64::MAX, false, now);
    }

    /// §3.7: every half interval, if nothing but heartbeats was sent since the last look, and at the first.
    /// Clients with heartbeat 1 exist that give up after a second without a byte (Node's @cloudamqp/amqp-client).
    fn heartbeat_send(&mut self, key: ConnectionKey, now: Millis) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.state.is_over() {
            return;
        }
        let half_ms = u64::from(connection.info.heartbeat_s) * 500;
        let sent = std::mem::take(&mut connection.sent) & std::mem::replace(&mut connection.looked, true);
        if !sent && (connection.held_until > self.stored || !connection.has_output()) {
            connection.heartbeat_due = true;
        }
        self.timers.arm(now + half_ms, Timer::HeartbeatSend(key));
        if !sent {
            self.wake(key);
        }
    }

    /// §3.7: after two intervals in a row without a byte the connection is given up, without a frame; but not while
    /// nothing is read from it.
    fn heartbeat_receive(&mut self, key: ConnectionKey, now: Millis) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.state != ConnectionState::Running {
            return;
        }
        let received = std::mem::take(&mut connection.received) || connection.blocked;
        connection.idle_checks = if received { 0 } else { connection.idle_checks + 1 };
        if connection.idle_checks >= 2 {
            tracing::warn!(
                vhost = %self.vhost,
                connection = %connection.info.name,
                heartbeat_s = connection.info.heartbeat_s,
                "missed heartbeats from client, closing connection"
            );
            return self.close_now(key);
        }
        let interval_ms = u64::from(connection.info.heartbeat_s) * 1000;
        self.timers.arm(now + interval_ms, Timer::HeartbeatReceive(key));
    }
}
