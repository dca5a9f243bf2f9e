//! basic.publish: every check in RabbitMQ's order, routing, and the entry into queues (§8.1, §8.2, §11).

use bytes::{Bytes, BytesMut};
use leveret_protocol::{
    Body, FieldTable, FieldValue, Properties, Publish, RawProperties, RawTable, ReplyCode, basic, put_content,
    put_deliver, put_method_frame,
};
use rand_chacha::rand_core::RngCore as _;
use smallvec::SmallVec;

use super::consume::{REPLY_TO, REPLY_TOKEN_LEN};
use super::dead_letter::Reason;
use super::delayed::is_delayed;
use super::{Broker, Finding};
use crate::auth::Access;
use crate::model::arguments::{Overflow, QueueType};
use crate::model::channel::{Destinations, TxPublish};
use crate::model::connection::ConnectionState;
use crate::model::error::AmqpError;
use crate::model::exchange::RouteInput;
use crate::model::ids::{ChannelKey, ExchangeKey, QueueKey};
use crate::model::queue::message::{BodyRef, NewMessage};
use crate::model::timer::Millis;

/// Longest time to live that a message may ask for: 10 years.
const EXPIRATION_MS_MAX: u64 = 315_360_000_000;
/// Properties that call for a closer look at the message.
const CAREFUL: u16 = 0x2000 /* headers */ | 0x0200 /* reply-to */ | 0x0100 /* expiration */ | 0x0010 /* user-id */;
const PERSISTENT: u8 = 2;

/// What became of a publish.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// A durable queue has to write it before it may be confirmed.
    pub stored: bool,
    /// A queue refused it: it is to be nacked.
    pub refused: bool,
}

/// Equality that asks `memcmp` nothing about empty strings: with the dangling pointer of an empty `Vec`, as that of the
/// default exchange's name is, its masked load takes a microcode assist, and that took a third of a publish's time.
#[inline]
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && (a.is_empty() || a == b)
}

/// A publish on its way through the checks.
struct Incoming<'a> {
    exchange: &'a str,
    routing_key: &'a str,
    mandatory: bool,
    properties: RawProperties<'a>,
    body: BodyRef<'a>,
    expiration_ms: Option<u64>,
    bcc: Vec<Vec<u8>>,
}

impl Broker {
    #[inline]
    pub(super) fn basic_publish(
        &mut self,
        key: ChannelKey,
        publish: Publish<'_>,
        now: Millis,
    ) -> Result<(), AmqpError> {
        if publish.immediate {
            return Err(AmqpError::NotImplemented("immediate=true".to_owned()));
        }
        let body = match &publish.body {
            Body::Slice(bytes) => BodyRef::Slice(bytes),
            Body::Owned(bytes) => BodyRef::Shared(bytes),
            Body::Oversized(size) => return Err(self.too_large(*size)),
        };
        let size = body.as_slice().len() as u64;
        if size > self.settings.max_message_size {
            return Err(self.too_large(size));
        }
        let channel = &mut self.channels[key];
        if channel.tx.as_ref().is_some_and(|tx| tx.committing.is_some()) {
            return Err(AmqpError::DuringCommit);
        }
        self.stats.published += 1;
        let cached = channel.route.valid
            && channel.route.epoch == self.topology.epoch()
            && same(&channel.route.routing_key, publish.routing_key.as_bytes())
            && same(&channel.route.exchange, publish.exchange.as_bytes());
        if cached && publish.properties.flags() & CAREFUL == 0 && channel.tx.is_none() && !self.tracing {
            let queues = std::mem::take(&mut channel.route.queues);
            let message = NewMessage {
                exchange: publish.exchange.as_bytes(),
                routing_key: publish.routing_key.as_bytes(),
                properties: publish.properties.as_bytes(),
                body,
                persistent: publish.properties.delivery_mode() == Some(PERSISTENT),
                priority: 0,
                expires_at: None,
                bcc: &[],
                died: false,
            };
            let outcome = self.enqueue_all(&queues, message, None, now);
            if queues.is_empty() {
                self.unroutable(key, publish.mandatory, &message);
            }
            self.channels[key].route.queues = queues;
            self.confirm(key, outcome);
            return Ok(());
        }
        self.publish_carefully(key, &publish, body, now)
    }

    fn too_large(&self, size: u64) -> AmqpError {
        AmqpError::MessageTooLarge { size, max: self.settings.max_message_size }
    }

    /// The whole list of checks (§8.1), for what the route cache does not cover.
    fn publish_carefully(
        &mut self,
        key: ChannelKey,
        publish: &Publish<'_>,
        body: BodyRef<'_>,
        now: Millis,
    ) -> Result<(), AmqpError> {
        self.check_access(key, Access::Write, self.exchange_resource(publish.exchange))?;
        let Some(exchange) = self.topology.find(publish.exchange) else {
            return Err(AmqpError::NotFound(self.exchange_resource(publish.exchange)));
        };
        if self.topology.get(exchange).is_some_and(|exchange| exchange.internal) {
            return Err(AmqpError::InternalExchange(self.exchange_resource(publish.exchange)));
        }
        if self.settings.lint_against.is_some()
            && publish.properties.headers().is_some_and(|headers| headers.get("x-death").is_some())
        {
            self.lint(key, Finding::PublishedDeaths, publish.exchange);
        }
        let mut rewritten = BytesMut::new();
        let (properties, expiration_ms, extra_keys, bcc) = self.check_properties(key, publish, &mut rewritten)?;
        let incoming = Incoming {
            exchange: publish.exchange,
            routing_key: publish.routing_key,
            mandatory: publish.mandatory,
            properties,
            body,
            expiration_ms,
            bcc,
        };
        let mut queues = Vec::new();
        let (mut replies, replied) = self.reply_targets(&incoming, &extra_keys);
        if publish.mandatory && publish.exchange.is_empty() && publish.routing_key.starts_with(REPLY_TO) && !replied {
            self.lint(key, Finding::LostReply, publish.routing_key);
        }
        let by_keys_only = self.route(exchange, &incoming, &extra_keys, &mut queues);
        let keepers = self.topology.take_keepers();
        let message = NewMessage {
            exchange: incoming.exchange.as_bytes(),
            routing_key: incoming.routing_key.as_bytes(),
            properties: incoming.properties.as_bytes(),
            body,
            persistent: incoming.properties.delivery_mode() == Some(PERSISTENT),
            priority: 0,
            expires_at: None,
            bcc: &incoming.bcc,
            died: false,
        };
        if self.tracing {
            let mut keys = vec![message.routing_key];
            keys.extend(extra_keys.iter().map(Vec::as_slice));
            self.trace_publish(key, &message, &keys, &queues);
        }
        let in_tx = self.channels[key].tx.is_some();
        // Replies used not to be part of a transaction.
        if !in_tx || self.settings.profile.has_old_replies() {
            for target in replies.drain(..) {
                self.send_reply(target, &message);
            }
        }
        if in_tx {
            self.publish_later(key, &incoming, Destinations { queues, keepers, replies }, replied);
            return Ok(());
        }
        let mut outcome = self.enqueue_all(&queues, message, incoming.expiration_ms, now);
        if !keepers.is_empty() {
            self.keep(&keepers, &message, &extra_keys, now, &mut outcome);
        }
        if queues.is_empty() && !replied {
            self.reached_no_queue(key, incoming.mandatory, is_delayed(&keepers), &message);
        }
        self.confirm(key, outcome);
        // A reply has no queue, but it may reach somebody every time.
        let is_reply = publish.routing_key.starts_with(REPLY_TO);
        if by_keys_only && !replied && !is_reply && publish.properties.flags() & CAREFUL == 0 {
            self.remember_route(key, publish, queues);
        }
        Ok(())
    }

    /// The route of this (exchange, routing key) holds until the topology changes.
    fn remember_route(&mut self, key: ChannelKey, publish: &Publish<'_>, queues: Vec<QueueKey>) {
        let cache = &mut self.channels[key].route;
        cache.valid = true;
        cache.epoch = self.topology.epoch();
        cache.exchange.clear();
        cache.exchange.extend_from_slice(publish.exchange.as_bytes());
        cache.routing_key.clear();
        cache.routing_key.extend_from_slice(publish.routing_key.as_bytes());
        cache.queues = queues;
    }

    /// §8.1 steps 5 to 9. Returns the properties to pass on (rewritten into `rewritten` where the broker
    /// changes them), the time to live, the CC and BCC keys, and the BCC keys alone.
    #[allow(clippy::type_complexity)] // four results of one pass
    fn check_properties<'a>(
        &self,
        key: ChannelKey,
        publish: &Publish<'a>,
        rewritten: &'a mut BytesMut,
    ) -> Result<(RawProperties<'a>, Option<u64>, Vec<Vec<u8>>, Vec<Vec<u8>>), AmqpError> {
        let properties = publish.properties;
        let routing_key = publish.routing_key.as_bytes();
        if properties.flags() & CAREFUL == 0 {
            self.check_topic_access(key, Access::Write, publish.exchange, [routing_key])?;
            return Ok((properties, None, Vec::new(), Vec::new()));
        }
        let channel = &self.channels[key];
        let mut reply_to = None;
        if properties.reply_to() == Some(REPLY_TO.as_bytes()) {
            let Some(reply) = &channel.reply_consumer else { return Err(AmqpError::NoReplyConsumer) };
            reply_to = Some(reply.name.clone());
        }
        let expiration = properties.expiration().map(parse_expiration).transpose()?;
        let (mut extra_keys, mut bcc) = (Vec::new(), Vec::new());
        if let Some(headers) = properties.headers() {
            if let Some(value) = headers.get("CC") {
                extra_keys = routing_keys("CC", value.to_value().ok())?;
            }
            if let Some(value) = headers.get("BCC") {
                bcc = routing_keys("BCC", value.to_value().ok())?;
            }
        }
        let keys = [routing_key].into_iter().chain(extra_keys.iter().chain(&bcc).map(Vec::as_slice));
        self.check_topic_access(key, Access::Write, publish.exchange, keys)?;
        if let Some(claimed) = properties.user_id() {
            let user = &self.connections[channel.connection].info.user;
            if claimed != user.name.as_bytes() && !user.has_tag("impersonator") {
                return Err(AmqpError::WrongUserId {
                    claimed: String::from_utf8_lossy(claimed).into_owned(),
                    user: user.name.clone(),
                });
            }
        }
        extra_keys.extend(bcc.iter().cloned());
        let has_bcc = properties.headers().is_some_and(|headers| headers.get("BCC").is_some());
        let has_duplicates = properties.headers().is_some_and(has_duplicates);
        let canonical = expiration.map(|ms| ms.to_string());
        let odd_expiration = canonical.as_deref().map(str::as_bytes) != properties.expiration();
        if reply_to.is_some() || has_bcc || has_duplicates || odd_expiration {
            let mut owned = properties.to_properties().unwrap_or_default();
            if let Some(name) = reply_to {
                owned.reply_to = Some(Bytes::copy_from_slice(name.as_bytes()));
            }
            if let Some(headers) = &mut owned.headers {
                headers.remove("BCC");
                if has_duplicates {
                    keep_first_of_each(headers);
                }
            }
            owned.expiration = canonical.map(Bytes::from);
            owned.encode(rewritten);
            return Ok((RawProperties::from_bytes(rewritten), expiration, extra_keys, bcc));
        }
        Ok((properties, expiration, extra_keys, bcc))
    }

    fn route(
        &mut self,
        exchange: ExchangeKey,
        incoming: &Incoming<'_>,
        extra_keys: &[Vec<u8>],
        out: &mut Vec<QueueKey>,
    ) -> bool {
        let mut keys: Vec<&[u8]> = Vec::with_capacity(1 + extra_keys.len());
        keys.push(incoming.routing_key.as_bytes());
        keys.extend(extra_keys.iter().map(Vec::as_slice));
        self.route_keys(exchange, &keys, incoming.properties, out)
    }

    /// §7: the queues that a message with these keys goes to, each once. True if only the keys decided.
    pub(super) fn route_keys(
        &mut self,
        exchange: ExchangeKey,
        keys: &[&[u8]],
        properties: RawProperties<'_>,
        out: &mut Vec<QueueKey>,
    ) -> bool {
        let random = self.random.next_u64();
        let by_name = &self.queues_by_name;
        let find = |name: &[u8]| std::str::from_utf8(name).ok().and_then(|name| by_name.get(name)).copied();
        self.topology.route(exchange, &RouteInput { keys, properties, random }, &find, out)
    }

    /// §13.1: the channels that wait for replies under one of these names, and whether a name belongs to a
    /// reply consumer, or did: a message to it counts as routed.
    fn reply_targets(&self, incoming: &Incoming<'_>, extra_keys: &[Vec<u8>]) -> (Vec<ChannelKey>, bool) {
        let (mut targets, mut replied) = (Vec::new(), false);
        if !incoming.exchange.is_empty() {
            return (targets, replied);
        }
        let old = self.settings.profile.has_old_replies();
        let keys = std::iter::once(incoming.routing_key.as_bytes()).chain(extra_keys.iter().map(Vec::as_slice));
        for name in keys {
            let Some(name) = std::str::from_utf8(name).ok().filter(|name| name.starts_with(REPLY_TO)) else { continue };
            if name.len() == REPLY_TO.len() {
                continue;
            }
            match self.reply_consumers.get(name) {
                Some(&target) => {
                    replied |= !old;
                    targets.push(target);
                }
                // A requester that is gone counts as reached; a name that never was one does not.
                None => replied |= !old && name.len() == REPLY_TO.len() + 1 + REPLY_TOKEN_LEN,
            }
        }
        (targets, replied)
    }

    /// §13.1: the reply goes straight to the channel, if that still waits.
    fn send_reply(&mut self, target: ChannelKey, message: &NewMessage<'_>) {
        let old = self.settings.profile.has_old_replies();
        let Some(channel) = self.channels.get_mut(target) else { return };
        let Some(reply) = &channel.reply_consumer else { return };
        let (number, key, consumer_tag) = (channel.number, channel.connection, reply.tag.clone());
        let tag = if old { channel.delivery_tag + 1 } else { channel.next_tag() };
        let connection = &mut self.connections[key];
        if connection.state != ConnectionState::Running {
            return;
        }
        let frame_max = connection.info.frame_max;
        connection.encode(|encoded| {
            put_deliver(encoded, number, &consumer_tag, tag, false, b"", message.routing_key);
            put_content(encoded, number, frame_max, message.properties, message.body.as_slice());
        });
        self.wake(key);
    }

    /// Puts the message into every queue.
    #[inline]
    pub(super) fn enqueue_all(
        &mut self,
        queues: &[QueueKey],
        message: NewMessage<'_>,
        expiration_ms: Option<u64>,
        now: Millis,
    ) -> Outcome {
        self.stats.routed += queues.len() as u64;
        let mut outcome = Outcome::default();
        if queues.len() > 1
            && let BodyRef::Slice(bytes) = message.body
            && bytes.len() >= crate::model::queue::message::SHARED_BODY_MIN
        {
            // Copied once, then shared by all.
            let shared = Bytes::copy_from_slice(bytes);
            let message = NewMessage { body: BodyRef::Shared(&shared), ..message };
            for &queue in queues {
                self.enqueue(queue, &message, expiration_ms, now, &mut outcome);
            }
            return outcome;
        }
        for &queue in queues {
            self.enqueue(queue, &message, expiration_ms, now, &mut outcome);
        }
        outcome
    }

    /// Puts a message into one queue, within its limits.
    #[inline]
    pub(super) fn enqueue(
        &mut self,
        key: QueueKey,
        message: &NewMessage<'_>,
        expiration_ms: Option<u64>,
        now: Millis,
        outcome: &mut Outcome,
    ) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        // As nearly all do; what follows is one look at each thing that a queue may want of a message.
        if queue.is_plain() && expiration_ms.is_none() && message.priority == 0 && message.expires_at.is_none() {
            return self.push(key, message, now, outcome);
        }
        if queue.is_stream() {
            return self.append_to_stream(key, message, now, outcome);
        }
        let mut message = *message;
        message.priority = queue.level(RawProperties::from_bytes(message.properties));
        message.persistent |= queue.queue_type == QueueType::Quorum;
        let ttl_ms = match (queue.settings.message_ttl_ms, expiration_ms) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        message.expires_at = ttl_ms.map(|ttl| now.saturating_add(ttl));
        let size = message.body.as_slice().len() as u64;
        if queue.dirty && queue.rejects_publishes() && queue.would_overflow(size) {
            // Consumers may have room for what came before in the same turn.
            self.dispatch(key, now);
        }
        let queue = &mut self.queues[key];
        if queue.rejects_publishes() && queue.would_overflow(size) {
            queue.stats.refused += 1;
            outcome.refused = true;
            if queue.settings.overflow == Some(Overflow::RejectPublishDlx) {
                self.die_on_entry(key, &message, Reason::Maxlen);
            }
            return;
        }
        self.push(key, &message, now, outcome);
    }

    /// Appends a message to a queue, and marks the queue for dispatch.
    #[inline]
    fn push(&mut self, key: QueueKey, message: &NewMessage<'_>, now: Millis, outcome: &mut Outcome) {
        let queue = &mut self.queues[key];
        let seq = queue.push(message, &mut self.pool);
        if message.persistent && queue.store_id.is_some() {
            self.pending.publish(key, seq, message.body.as_slice().len());
            outcome.stored = true;
        }
        if !queue.dirty {
            queue.dirty = true;
            self.dirty.push(key);
        }
        if queue.needs_care() {
            self.care_for_limits(key, message.expires_at, now);
        }
    }

    /// §11.1: the publish gets its number and its answer, now or when it is on disk.
    #[inline]
    fn confirm(&mut self, key: ChannelKey, outcome: Outcome) {
        if self.channels[key].confirms.is_none() {
            return;
        }
        let commit = if outcome.stored { self.await_commit(key) } else { 0 };
        if let Some(confirms) = &mut self.channels[key].confirms {
            confirms.publish(commit, outcome.refused);
        }
        if commit == 0 {
            self.list_confirms(key);
        }
    }

    /// A delayed message may yet reach a queue; as with RabbitMQ, it comes back all the same if it is mandatory.
    fn reached_no_queue(&mut self, key: ChannelKey, mandatory: bool, delayed: bool, message: &NewMessage<'_>) {
        if !delayed {
            self.unroutable(key, mandatory, message);
        } else if mandatory {
            self.return_message(key, message);
        }
    }

    fn unroutable(&mut self, key: ChannelKey, mandatory: bool, message: &NewMessage<'_>) {
        self.stats.unroutable += 1;
        if mandatory {
            self.stats.returned += 1;
            self.return_message(key, message);
        }
    }

    /// basic.return with NO_ROUTE.
    fn return_message(&mut self, key: ChannelKey, message: &NewMessage<'_>) {
        let channel = &self.channels[key];
        let (number, connection) = (channel.number, channel.connection);
        let connection_state = &mut self.connections[connection];
        let frame_max = connection_state.info.frame_max;
        let returned = basic::Return {
            reply_code: ReplyCode::NoRoute.code(),
            reply_text: "NO_ROUTE",
            exchange: std::str::from_utf8(message.exchange).unwrap_or_default(),
            routing_key: std::str::from_utf8(message.routing_key).unwrap_or_default(),
        };
        connection_state.encode(|encoded| {
            put_method_frame(encoded, number, &returned.into());
            put_content(encoded, number, frame_max, message.properties, message.body.as_slice());
        });
        self.wake(connection);
    }

    /// §10: routed now, handed over at commit.
    fn publish_later(&mut self, key: ChannelKey, incoming: &Incoming<'_>, destinations: Destinations, replied: bool) {
        let Some(tx) = &mut self.channels[key].tx else { return };
        tx.publishes.push(TxPublish {
            destinations,
            exchange: Bytes::copy_from_slice(incoming.exchange.as_bytes()),
            routing_key: Bytes::copy_from_slice(incoming.routing_key.as_bytes()),
            properties: Bytes::copy_from_slice(incoming.properties.as_bytes()),
            body: match incoming.body {
                BodyRef::Slice(bytes) => Bytes::copy_from_slice(bytes),
                BodyRef::Shared(bytes) => bytes.clone(),
            },
            bcc: incoming.bcc.clone(),
            expiration_ms: incoming.expiration_ms,
            mandatory: incoming.mandatory && !replied,
        });
    }

    /// A publish of a transaction that commits.
    pub(super) fn publish_committed(&mut self, key: ChannelKey, publish: &TxPublish, now: Millis) -> Outcome {
        let properties = RawProperties::from_bytes(&publish.properties);
        let message = NewMessage {
            exchange: &publish.exchange,
            routing_key: &publish.routing_key,
            properties: &publish.properties,
            body: BodyRef::Shared(&publish.body),
            persistent: properties.delivery_mode() == Some(PERSISTENT),
            priority: 0,
            expires_at: None,
            bcc: &publish.bcc,
            died: false,
        };
        for &target in &publish.destinations.replies {
            self.send_reply(target, &message);
        }
        let Destinations { queues, keepers, .. } = &publish.destinations;
        let mut outcome = self.enqueue_all(queues, message, publish.expiration_ms, now);
        if !keepers.is_empty() {
            let headers = properties.headers().and_then(|headers| headers.to_table().ok());
            let mut extra_keys = cc_keys(headers.as_ref());
            extra_keys.extend(publish.bcc.iter().cloned());
            self.keep(keepers, &message, &extra_keys, now, &mut outcome);
        }
        if queues.is_empty() {
            self.reached_no_queue(key, publish.mandatory, is_delayed(keepers), &message);
        }
        outcome
    }
}

/// Does a name stand twice in the table? (§8.6: only the first of them is passed on.)
fn has_duplicates(headers: RawTable<'_>) -> bool {
    /// Beyond this a set is cheaper than a look at every pair.
    const PAIRS_MAX: usize = 16;
    let names: SmallVec<[&[u8]; PAIRS_MAX]> = headers.iter().flatten().map(|(name, _)| name).collect();
    if names.len() <= PAIRS_MAX {
        return names.iter().enumerate().any(|(index, name)| names[..index].contains(name));
    }
    let mut sorted = names;
    sorted.sort_unstable();
    sorted.windows(2).any(|pair| pair[0] == pair[1])
}

fn keep_first_of_each(headers: &mut FieldTable) {
    let mut seen = std::collections::BTreeSet::new();
    headers.0.retain(|(name, _)| seen.insert(name.clone()));
}

/// §8.1 step 6: a decimal number of milliseconds, sign and leading zeros allowed.
fn parse_expiration(text: &[u8]) -> Result<u64, AmqpError> {
    let text = String::from_utf8_lossy(text);
    let invalid = |reason: String| AmqpError::InvalidExpiration { text: text.to_string(), reason };
    let digits_at = usize::from(text.starts_with(['+', '-']));
    let digits = text[digits_at..].bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return Err(invalid("no_integer".to_owned()));
    }
    let (number, leftover) = text.split_at(digits_at + digits);
    if !leftover.is_empty() {
        return Err(invalid(format!("{{leftover_string,\"{leftover}\"}}")));
    }
    let significant = number[digits_at..].trim_start_matches('0');
    let significant = if significant.is_empty() { "0" } else { significant };
    if number.starts_with('-') && significant != "0" {
        return Err(invalid(format!("{{value_negative,-{significant}}}")));
    }
    match significant.parse::<u64>() {
        Ok(ms) if ms <= EXPIRATION_MS_MAX => Ok(ms),
        _ => Err(invalid(format!("{{value_too_large,{significant}}}"))),
    }
}

/// The keys of a CC or BCC header (§8.2): an array; elements that are no strings are ignored.
fn routing_keys(header: &'static str, value: Option<FieldValue>) -> Result<Vec<Vec<u8>>, AmqpError> {
    match value {
        Some(FieldValue::Array(items)) => Ok(items
            .into_iter()
            .filter_map(|item| match item {
                // A key longer than a short string can match nothing.
                FieldValue::LongString(key) if key.len() <= 255 => Some(key.to_vec()),
                _ => None,
            })
            .collect()),
        Some(other) => Err(AmqpError::InvalidHeaderType { header, type_name: other.type_name() }),
        None => Ok(Vec::new()),
    }
}

/// The CC keys that a message still carries.
pub(super) fn cc_keys(headers: Option<&FieldTable>) -> Vec<Vec<u8>> {
    let value = headers.and_then(|headers| headers.get("CC")).cloned();
    routing_keys("CC", value).unwrap_or_default()
}

/// Decodes properties that came from a queue.
pub(super) fn owned_properties(raw: RawProperties<'_>) -> Properties {
    raw.to_properties().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §8.1 step 6 and §8.6: canonical form, and the error terms.
    #[test]
    fn s8_1_expiration_is_a_number_of_milliseconds() {
        for (text, ms) in [("0", 0), ("007", 7), ("+5", 5), ("-0", 0), ("315360000000", 315_360_000_000)] {
            assert_eq!(parse_expiration(text.as_bytes()), Ok(ms), "{text}");
        }
        for (text, reason) in [
            ("", "no_integer"),
            ("abc", "no_integer"),
            ("100abc", "{leftover_string,\"abc\"}"),
            ("10.5", "{leftover_string,\".5\"}"),
            ("-1", "{value_negative,-1}"),
            ("315360000001", "{value_too_large,315360000001}"),
            ("99999999999999999999999", "{value_too_large,99999999999999999999999}"),
        ] {
            let error = parse_expiration(text.as_bytes()).unwrap_err();
            assert_eq!(error.explanation(), format!("invalid expiration '{text}': {reason}"));
        }
    }
}
