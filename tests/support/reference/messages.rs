//! Messages on their way into queues, and what limits and time do to them there (§8.1, §11.2, §11.4).

use leveret_protocol::{FieldValue, Method, Properties, ReplyCode, basic};

use super::queue::{Message, Queue};
use super::{Fault, Outcome, Publish, Reference, Sent, fault, of_exchange};
use crate::support::sim_script::Wire;

impl Reference {
    /// §8.1
    pub(super) fn publish(&mut self, at: (usize, u16), publish: &basic::Publish<'_>, wire: &Wire) -> Outcome {
        let (properties, body) = wire.content.clone().expect("a publish has a content");
        if publish.immediate {
            return fault(ReplyCode::NotImplemented, "immediate=true");
        }
        let Some(exchange) = self.exchanges.iter().find(|exchange| exchange.name == publish.exchange) else {
            return fault(ReplyCode::NotFound, format!("no {}", of_exchange(publish.exchange)));
        };
        if exchange.internal {
            let text = format!("cannot publish to internal {}", of_exchange(publish.exchange));
            return fault(ReplyCode::AccessRefused, text);
        }
        let ttl = properties.expiration.as_deref().map(parse_expiration).transpose()?;
        let claimed = properties.user_id.as_deref().map(String::from_utf8_lossy);
        if let Some(claimed) = claimed.filter(|claimed| claimed != "guest") {
            let text = format!("user_id property set to '{claimed}' but authenticated user was 'guest'");
            return fault(ReplyCode::PreconditionFailed, text);
        }
        let mut publish = Publish {
            exchange: publish.exchange.to_owned(),
            routing_key: publish.routing_key.to_owned(),
            mandatory: publish.mandatory,
            bcc: header_keys(&properties, "BCC"),
            properties,
            body,
            ttl,
        };
        let mut keys = vec![publish.routing_key.clone()];
        keys.extend(header_keys(&publish.properties, "CC"));
        keys.extend(publish.bcc.clone());
        let queues = self.route(&publish.exchange, &keys, &publish.properties);
        if let Some(headers) = &mut publish.properties.headers {
            headers.remove("BCC");
        }
        if let Some(tx) = &mut self.channel(at).tx {
            tx.push((queues, publish));
            return Ok(());
        }
        let accepted = self.hand_over(at, &queues, publish);
        if let Some(published) = &mut self.channel(at).confirms {
            *published += 1;
            let delivery_tag = *published;
            let answer: Method<'_> = match accepted {
                true => basic::Ack { delivery_tag, multiple: false }.into(),
                false => basic::Nack { delivery_tag, multiple: false, requeue: false }.into(),
            };
            self.reply(at, answer);
        }
        Ok(())
    }

    /// Puts a publish into its queues, or returns it. False if a queue refused it.
    pub(super) fn hand_over(&mut self, at: (usize, u16), queues: &[u64], publish: Publish) -> bool {
        if queues.is_empty() && publish.mandatory {
            let returned = basic::Return {
                reply_code: ReplyCode::NoRoute.code(),
                reply_text: "NO_ROUTE",
                exchange: &publish.exchange,
                routing_key: &publish.routing_key,
            };
            let wire = Wire::new(at.1, &returned.into()).with_content(publish.properties.clone(), publish.body.clone());
            self.sent.push(Sent { connection: at.0, wire, held: None });
        }
        let message = Message {
            place: 0,
            level: 0,
            exchange: publish.exchange,
            routing_key: publish.routing_key,
            properties: publish.properties,
            body: publish.body,
            bcc: publish.bcc,
            expires_at: None,
            redelivered: false,
            history: Vec::new(),
            first_death: None,
        };
        self.enqueue_all(queues, &message, publish.ttl)
    }

    pub(super) fn enqueue_all(&mut self, queues: &[u64], message: &Message, ttl: Option<u64>) -> bool {
        let mut accepted = true;
        let mut died_in = 0;
        for queue in queues {
            let deaths = self.deaths.len();
            accepted &= self.enqueue(*queue, message.clone(), ttl);
            died_in += usize::from(self.deaths.len() > deaths);
        }
        if died_in > 1 {
            self.unclear = Some("the order in which two queues dead-letter the same message");
        }
        accepted
    }

    /// §11.2, §11.4: into one queue. Consumers come first, then limits, then an expiry of 0.
    fn enqueue(&mut self, id: u64, mut message: Message, ttl: Option<u64>) -> bool {
        let (now, size) = (self.now, message.body.len() as u64);
        if self.queue(id).is_some_and(|queue| queue.refuses(size)) {
            // What came before in the same turn is no longer in the way, if somebody waits for it.
            self.dispatch(id);
        }
        let Some(queue) = self.queue(id) else { return true };
        message.level = queue.level_of(&message.properties);
        let ttl = [queue.number("x-message-ttl"), ttl].into_iter().flatten().min();
        message.expires_at = ttl.map(|ttl| now + ttl);
        if queue.refuses(size) {
            if queue.text("x-overflow") == Some("reject-publish-dlx") {
                self.die(id, message, "maxlen");
            }
            return false;
        }
        queue.places += 1;
        message.place = queue.places;
        queue.ready.push(message);
        if queue.is_over_limit() || ttl == Some(0) {
            self.waits_for_others = false;
            self.dispatch(id);
            if self.waits_for_others {
                self.unclear = Some("which queue of a channel with a shared limit is served first");
            }
        }
        if self.trim(id) {
            self.note_passed_over(id, 0, i64::MIN, "a message was dropped");
        }
        true
    }

    /// §11.4, drop-head: what would be delivered next is dropped until the queue is within its limits.
    pub(super) fn trim(&mut self, id: u64) -> bool {
        let mut dropped = false;
        while let Some(queue) = self.queue(id).filter(|queue| queue.is_over_limit() && !queue.rejects()) {
            let Some(next) = queue.next() else { break };
            let message = queue.ready.remove(next);
            self.die(id, message, "maxlen");
            dropped = true;
        }
        dropped
    }

    /// §11.2: an expired message goes as soon as it would be the next to go out, whatever its level.
    pub(super) fn expire_heads(&mut self, id: u64) {
        let now = self.now;
        while let Some(queue) = self.queue(id) {
            let is_expired = |at: &usize| queue.ready[*at].expires_at.is_some_and(|expiry| expiry <= now);
            let Some(expired) = queue.next().filter(is_expired) else { return };
            let message = queue.ready.remove(expired);
            self.expired.push((id, message.redelivered));
            self.die(id, message, "expired");
        }
    }

    pub(super) fn look_at_all_heads(&mut self) {
        let mut expiring = 0;
        let queues: Vec<u64> = self.queues.iter().map(|queue| queue.id).collect();
        for queue in queues {
            let count = |this: &mut Self| this.queue(queue).map(|queue| queue.ready.len());
            let before = count(self);
            self.expire_heads(queue);
            expiring += usize::from(before != count(self));
        }
        if expiring > 1 && !self.deaths.is_empty() {
            self.unclear = Some("the order in which messages of two queues expire");
        }
    }

    /// Time passes: what is due happens when it is due.
    pub fn pass(&mut self, target: u64) {
        loop {
            let head = |queue: &Queue| queue.next().and_then(|at| queue.ready[at].expires_at);
            let unused = |queue: &Queue| {
                let expires = queue.number("x-expires").filter(|_| queue.consumers.is_empty());
                expires.map(|expires| queue.last_used + expires)
            };
            let head = self.queues.iter().filter_map(head).min();
            let queue = self.queues.iter().filter_map(unused).min();
            let Some(due) = [head, queue].into_iter().flatten().min().filter(|due| *due <= target) else { break };
            if head == queue {
                self.unclear = Some("what comes first, the end of a queue or of a message");
            }
            self.now = self.now.max(due);
            self.look_at_all_heads();
            let gone: Vec<u64> = self
                .queues
                .iter()
                .filter(|queue| unused(queue).is_some_and(|at| at <= due))
                .map(|queue| queue.id)
                .collect();
            gone.into_iter().for_each(|queue| self.delete_queue(queue));
            self.process_deaths();
            self.dispatch_all();
        }
        self.now = target;
    }
}

/// §8.2: the texts in the array of this header.
pub fn header_keys(properties: &Properties, header: &str) -> Vec<String> {
    match properties.headers.as_ref().and_then(|headers| headers.get(header)) {
        Some(FieldValue::Array(items)) => items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect(),
        _ => Vec::new(),
    }
}

/// §8.1 step 6, for what scripts say.
fn parse_expiration(text: &[u8]) -> Result<u64, Fault> {
    let text = String::from_utf8_lossy(text);
    let reason = match text.parse::<i64>() {
        Ok(ms) if ms >= 0 => return Ok(ms as u64),
        Ok(ms) => format!("{{value_negative,{ms}}}"),
        Err(_) => "no_integer".to_owned(),
    };
    Err(Fault { code: ReplyCode::PreconditionFailed, text: format!("invalid expiration '{text}': {reason}") })
}
