//! How connections and channels begin and end, and what goes with them (§3.10, §3.11, §5.8).

use leveret_protocol::{Event, Method, MethodId, ReplyCode, channel, connection};

use super::{Broker, Poll};
use crate::model::channel::Channel;
use crate::model::connection::{ChannelSlot, Connection, ConnectionInfo, ConnectionState, Out, OutKind};
use crate::model::error::AmqpError;
use crate::model::ids::{ChannelKey, ConnectionKey};
use crate::model::timer::{Millis, Timer};

/// The longest we wait for an answer to connection.close.
const CLOSE_TIMEOUT_MS: Millis = 30_000;

impl Broker {
    /// A client has passed the handshake: answers connection.open.
    pub fn connection_opened(&mut self, info: ConnectionInfo, now: Millis) -> ConnectionKey {
        self.stats.connections_opened += u64::from(info.socket.is_some());
        let heartbeat_ms = u64::from(info.heartbeat_s) * 1000;
        let key = self.connections.insert(Connection::new(info));
        if heartbeat_ms > 0 {
            self.timers.arm(now + heartbeat_ms / 2, Timer::HeartbeatSend(key));
            self.timers.arm(now + heartbeat_ms, Timer::HeartbeatReceive(key));
        }
        self.connections[key].send(0, &connection::OpenOk {}.into());
        self.wake(key);
        key
    }

    /// The socket is gone: everything of the connection ends; nothing more can be sent to it.
    pub fn connection_lost(&mut self, connection: ConnectionKey, now: Millis) {
        if !self.connections.contains_key(connection) {
            return;
        }
        self.end_channels(connection, now);
        let gone = self.connections.remove(connection);
        self.stats.connections_closed += u64::from(gone.is_some_and(|gone| gone.info.socket.is_some()));
        if !self.deaths.is_empty() {
            self.process_deaths(now);
        }
    }

    /// Closes the connection with 320 (§3.10): an operator's wish, or shutdown.
    pub fn force_close(&mut self, connection: ConnectionKey, reason: &str, now: Millis) {
        if self.connections.get(connection).is_some_and(|state| state.state == ConnectionState::Running) {
            let error = AmqpError::Forced(reason.to_owned());
            self.fail(connection, 0, MethodId::NONE, &error, now);
        }
    }

    /// Closes the connections of this user as [`Self::force_close`] does.
    pub fn force_close_user(&mut self, user: &str, reason: &str, now: Millis) {
        let of_user = self.connections.iter().filter(|(_, connection)| &*connection.info.user.name == user);
        for connection in of_user.map(|(key, _)| key).collect::<Vec<ConnectionKey>>() {
            self.force_close(connection, reason, now);
        }
    }

    /// Closes every connection as [`Self::force_close`] does.
    pub fn force_close_all(&mut self, reason: &str, now: Millis) {
        let all: Vec<ConnectionKey> = self.connections.keys().collect();
        for connection in all {
            self.force_close(connection, reason, now);
        }
    }

    /// The broker stops: no connection stays, and no queue goes because its last consumer does (§5.8).
    /// [`Self::prepare_stop`] follows.
    pub fn begin_stop(&mut self, reason: &str, now: Millis) {
        self.stopping = true;
        self.force_close_all(reason, now);
    }

    /// Methods on channel 0 of a running connection.
    pub(super) fn connection_method(
        &mut self,
        connection: ConnectionKey,
        method: &Method<'_>,
        now: Millis,
    ) -> Result<(), AmqpError> {
        match method {
            Method::ConnectionClose(_) => {
                // Exclusive queues are gone before close-ok, so that their names are free (§3.10).
                self.answer_gets(connection);
                self.end_channels(connection, now);
                let state = &mut self.connections[connection];
                state.send(0, &connection::CloseOk {}.into());
                state.state = ConnectionState::Answered;
                self.wake(connection);
                Ok(())
            }
            Method::ConnectionUpdateSecret(_) => {
                // A password needs no renewal: accepted as it is (§3.10).
                self.connections[connection].send(0, &connection::UpdateSecretOk {}.into());
                self.wake(connection);
                Ok(())
            }
            _ => Err(AmqpError::UnexpectedMethod { state: "running" }),
        }
    }

    /// We have sent connection.close: only its answer counts, or a close that crossed it.
    pub(super) fn closing_client(&mut self, connection: ConnectionKey, event: &Event<'_>) {
        match event {
            Event::Method { channel: 0, method: Method::ConnectionCloseOk(_) } => self.close_now(connection),
            Event::Method { channel: 0, method: Method::ConnectionClose(_) } => {
                self.connections[connection].send(0, &connection::CloseOk {}.into());
                self.wake(connection);
            }
            _ => {}
        }
    }

    pub(super) fn close_now(&mut self, connection: ConnectionKey) {
        self.connections[connection].state = ConnectionState::Closed;
        self.connections[connection].abandoned = true;
        self.wake(connection);
    }

    pub(super) fn close_connection_by_server(
        &mut self,
        connection: ConnectionKey,
        code: ReplyCode,
        text: &str,
        id: MethodId,
        now: Millis,
    ) {
        tracing::warn!(
            vhost = %self.vhost,
            connection = %self.connection_name(connection),
            user = %self.connections[connection].info.user.name,
            %text,
            "closing connection"
        );
        self.answer_gets(connection);
        self.end_channels(connection, now);
        let state = &mut self.connections[connection];
        state.state = ConnectionState::Closing;
        let close =
            connection::Close { reply_code: code.code(), reply_text: text, class_id: id.class, method_id: id.method };
        state.send(0, &close.into());
        let heartbeat_ms = u64::from(state.info.heartbeat_s) * 1000;
        let wait = if heartbeat_ms == 0 { CLOSE_TIMEOUT_MS } else { heartbeat_ms.min(CLOSE_TIMEOUT_MS) };
        self.timers.arm(now + wait, Timer::CloseConnection(connection));
        self.wake(connection);
    }

    /// §3.8: nothing is read from this connection until [`Self::unblock`]; the client is told, if it wants to know.
    pub fn block(&mut self, connection: ConnectionKey, reason: &str) {
        let Some(state) = self.connections.get_mut(connection) else { return };
        state.blocked = true;
        if state.info.capabilities.connection_blocked && state.state == ConnectionState::Running {
            state.send(0, &connection::Blocked { reason }.into());
            self.wake(connection);
        }
    }

    /// §3.8: it is read from again.
    pub fn unblock(&mut self, connection: ConnectionKey) {
        let Some(state) = self.connections.get_mut(connection) else { return };
        state.blocked = false;
        state.idle_checks = 0;
        if state.info.capabilities.connection_blocked && state.state == ConnectionState::Running {
            state.send(0, &connection::Unblocked {}.into());
            self.wake(connection);
        }
    }

    /// The connection is about to be closed, and its client reads on until then.
    fn answer_gets(&mut self, connection: ConnectionKey) {
        let open: Vec<ChannelKey> = self.connections[connection].open_channels().collect();
        for channel in open {
            self.encode_gets(channel);
        }
    }

    fn end_channels(&mut self, connection: ConnectionKey, now: Millis) {
        let slots = std::mem::take(&mut self.connections[connection].channels);
        for slot in slots.into_values() {
            if let ChannelSlot::Open(channel) = slot {
                self.end_channel(channel, now);
            }
        }
        for queue in std::mem::take(&mut self.connections[connection].exclusive_queues) {
            self.delete_queue(queue);
        }
        let state = &mut self.connections[connection];
        state.recent = None;
        state.confirming.clear();
        state.parked.clear();
    }

    pub(super) fn channel_open(
        &mut self,
        connection: ConnectionKey,
        number: u16,
        now: Millis,
    ) -> Result<(), AmqpError> {
        let state = &self.connections[connection];
        if state.channels.contains_key(&number) {
            // The client still owes close-ok (§3.11, corrections).
            return Err(AmqpError::ChannelAlreadyOpen);
        }
        let permits = match self.admit_channel(connection) {
            Ok(permits) => permits,
            Err(error) => {
                // Nobody's method: class and method are 0 (§3.11).
                self.fail(connection, 0, MethodId::NONE, &error, now);
                return Ok(());
            }
        };
        self.stats.channels_opened += 1;
        let mut channel = Channel::new(number, connection);
        channel.permits = Some(permits);
        let key = self.channels.insert(channel);
        let state = &mut self.connections[connection];
        state.channels.insert(number, ChannelSlot::Open(key));
        state.send(number, &channel::OpenOk {}.into());
        self.wake(connection);
        Ok(())
    }

    /// channel.close and close-ok for a number that is not open.
    pub(super) fn unopened_close(
        &mut self,
        connection: ConnectionKey,
        number: u16,
        method: &Method<'_>,
    ) -> Result<(), AmqpError> {
        let state = &mut self.connections[connection];
        if state.channels.get(&number) != Some(&ChannelSlot::Closing) {
            return Err(AmqpError::ChannelNotOpen);
        }
        if matches!(method, Method::ChannelCloseOk(_)) {
            state.channels.remove(&number);
        } else {
            // It crossed ours; the number is free when the client has answered ours too.
            state.send(number, &channel::CloseOk {}.into());
            self.wake(connection);
        }
        Ok(())
    }

    pub(super) fn channel_close(&mut self, channel: ChannelKey, now: Millis) {
        let (connection, number) = (self.channels[channel].connection, self.channels[channel].number);
        self.flush_confirms(channel);
        self.encode_gets(channel);
        self.end_channel(channel, now);
        let state = &mut self.connections[connection];
        state.channels.remove(&number);
        state.send(number, &channel::CloseOk {}.into());
        self.wake(connection);
    }

    pub(super) fn channel_flow(&mut self, channel: ChannelKey, active: bool) -> Result<(), AmqpError> {
        if !active {
            return Err(AmqpError::NotImplemented("active=false".to_owned()));
        }
        self.reply(channel, &channel::FlowOk { active: true }.into());
        Ok(())
    }

    /// Ends a channel: consumers go, what it held unacked is requeued, in that order (§3.11).
    /// The slot in its connection is the caller's business.
    pub(super) fn end_channel(&mut self, channel: ChannelKey, now: Millis) {
        let unsent = self.take_unsent(channel);
        let Some(mut ended) = self.channels.remove(channel) else { return };
        self.stats.channels_closed += 1;
        if let Some(confirms) = &ended.confirms {
            self.stats.confirmable += confirms.published();
            self.stats.confirmed += confirms.published() - confirms.outstanding();
        }
        let state = &mut self.connections[ended.connection];
        state.recent = None;
        if let Some(reply) = ended.reply_consumer.take() {
            self.reply_consumers.remove(&reply.name);
        }
        let mut touched = Vec::new();
        for consumer in std::mem::take(&mut ended.consumers) {
            touched.push(self.remove_consumer(consumer));
        }
        if let Some(tx) = ended.tx.take() {
            for (_, deliveries) in tx.settlements {
                ended.unacked.put_back(deliveries);
            }
        }
        for out in unsent.iter().rev().filter(|out| out.no_ack) {
            // Sent without acknowledgement, but never encoded: the client cannot have seen it.
            if let Some(queue) = self.queues.get_mut(out.queue) {
                queue.requeue(out.seq, false);
                self.mark_dirty(out.queue);
            }
        }
        let first_unsent = unsent.iter().map(|out| out.tag).min().unwrap_or(u64::MAX);
        let held: Vec<_> = ended.unacked.iter().copied().collect();
        self.return_all(&held, first_unsent, true, now);
        for queue in touched.into_iter().flatten() {
            self.consumer_left(queue, now);
        }
    }

    /// Takes the deliveries of a channel that were never encoded out of its connection's outbox.
    fn take_unsent(&mut self, channel: ChannelKey) -> Vec<crate::model::connection::OutDelivery> {
        let Some(state) = self.channels.get(channel).and_then(|channel| self.connections.get_mut(channel.connection))
        else {
            return Vec::new();
        };
        let mut unsent = Vec::new();
        let mut backlog = 0;
        state.outbox.retain(|out| match out {
            Out::Delivery(delivery) if delivery.channel == channel => {
                backlog += super::dispatch::backlog_of(delivery.body_len);
                unsent.push(*delivery);
                false
            }
            _ => true,
        });
        state.backlog_bytes -= backlog;
        for delivery in &unsent {
            if let OutKind::Deliver(consumer) = delivery.kind
                && let Some(state) = self.consumers.get_mut(consumer)
            {
                state.queued -= 1;
                if state.cancelled && state.queued == 0 {
                    self.consumers.remove(consumer);
                }
            }
        }
        unsent
    }

    /// What [`Broker::poll_transmit`] says of a connection that is gone.
    pub(super) const GONE: Poll =
        Poll { more: false, state: ConnectionState::Closed, pending_bytes: 0, hold_back: false };
}
