//! From ready messages to consumers, as the real broker did it, and whether it may (§8.4, §9.1 to §9.3).

use leveret_protocol::basic;

use super::queue::{Consumer, Message, Queue};
use super::{Channel, Outcome, Reference, Sent, Unacked};
use crate::support::sim_script::{Wire, canonical};

impl Reference {
    pub(super) fn dispatch_all(&mut self) {
        // Dead letters of one queue may be for another, and channels are served in order.
        let (mut before, mut dying) = (None, 0);
        let progress = |this: &Self| {
            let delivered = this.observed.iter().filter(|observed| observed.used).count();
            (this.queues.iter().map(|queue| queue.places).sum::<u64>(), delivered)
        };
        while before != Some(progress(self)) {
            before = Some(progress(self));
            let queues: Vec<u64> = self.queues.iter().map(|queue| queue.id).collect();
            for queue in queues {
                self.dispatch(queue);
                dying += usize::from(!self.deaths.is_empty());
                if dying > 1 {
                    self.unclear = Some("the order in which messages of two queues expire");
                } else if dying > 0 && self.commands > 1 {
                    self.unclear = Some("when in a turn a message expires");
                }
                let before = self.levels_entered();
                self.process_deaths();
                if before != self.levels_entered() {
                    self.unclear = Some("whether a dead letter reaches a priority queue before that is served");
                }
            }
        }
        let several = self.expired.iter().any(|(queue, _)| *queue != self.expired[0].0);
        if several && self.expired.iter().any(|(_, returned)| *returned) {
            self.unclear = Some("in which order messages expire that came back together");
        }
        self.expired.clear();
        self.judge();
    }

    /// The turn is over: everything that can be delivered is.
    pub fn end_turn(&mut self) {
        self.ending = None;
        self.dispatch_all();
        self.commands = 0;
    }

    /// Gives ready messages to consumers with credit, as the real broker did.
    pub(super) fn dispatch(&mut self, id: u64) {
        while self.unclear.is_none() {
            let now = self.now;
            let Some(queue) = self.queues.iter().find(|queue| queue.id == id) else { return };
            let Some(next) = queue.next() else { return };
            let ends = |consumer: &&Consumer| {
                let (connection, channel) = (consumer.connection, consumer.channel);
                self.ending == Some((connection, channel)) || self.ending == Some((connection, 0))
            };
            if queue.consumers.iter().filter(ends).any(|consumer| self.may_have(queue, consumer)) {
                self.unclear = Some("what a channel was given, and gave back unsent as it ended in the same turn");
                return;
            }
            // In the very millisecond of its end a message may still be taken.
            let expires_at = queue.ready[next].expires_at;
            let taken = if expires_at.is_some_and(|at| at < now) { None } else { self.observed_consumer(id, next) };
            let Some(consumer) = taken else {
                if expires_at.is_none_or(|at| at > now) {
                    break;
                }
                self.expire_heads(id);
                continue;
            };
            let queue = self.queue(id).expect("it is there");
            let message = queue.ready.remove(next);
            self.note_passed_over(id, consumer.id, consumer.priority, "a consumer of lower priority was served");
            self.note_turn(id, &consumer);
            self.deliver(&consumer, message);
        }
        self.expire_heads(id);
    }

    fn deliver(&mut self, consumer: &Consumer, message: Message) {
        let (at, id) = ((consumer.connection, consumer.channel), self.next_id());
        let channel = self.channel(at);
        channel.delivery_tag += 1;
        let deliver = basic::Deliver {
            consumer_tag: &consumer.tag,
            delivery_tag: channel.delivery_tag,
            redelivered: message.redelivered,
            exchange: &message.exchange,
            routing_key: &message.routing_key,
        };
        let tag = deliver.delivery_tag;
        let wire = Wire::new(at.1, &deliver.into()).with_content(message.properties.clone(), message.body.clone());
        self.sent.push(Sent { connection: at.0, wire, held: Some(id) });
        if !consumer.no_ack {
            let (queue, consumer) = (consumer.queue, consumer.id);
            self.channel(at).unacked.push(Unacked { id, tag, queue, consumer, message, read: false, settled: false });
        }
    }

    /// §8.4
    pub(super) fn get(&mut self, at: (usize, u16), get: &basic::Get<'_>) -> Outcome {
        let queue_id = self.usable_queue(at.0, get.queue)?;
        self.expire_heads(queue_id);
        let (now, id) = (self.now, self.next_id());
        let queue = self.queue(queue_id).expect("it is there");
        queue.last_used = now;
        let Some(next) = queue.next() else {
            self.reply(at, basic::GetEmpty {}.into());
            return Ok(());
        };
        let message = queue.ready.remove(next);
        self.expire_heads(queue_id);
        let message_count = self.queue(queue_id).expect("it is there").ready.len() as u32;
        let channel = self.channel(at);
        channel.delivery_tag += 1;
        let tag = channel.delivery_tag;
        let get_ok = basic::GetOk {
            delivery_tag: tag,
            redelivered: message.redelivered,
            exchange: &message.exchange,
            routing_key: &message.routing_key,
            message_count,
        };
        let wire = Wire::new(at.1, &get_ok.into()).with_content(message.properties.clone(), message.body.clone());
        self.sent.push(Sent { connection: at.0, wire, held: Some(id) });
        if !get.no_ack {
            let unacked = Unacked { id, tag, queue: queue_id, consumer: 0, message, read: false, settled: false };
            self.channel(at).unacked.push(unacked);
        }
        Ok(())
    }

    /// Messages that ever entered a priority queue.
    fn levels_entered(&self) -> u64 {
        let with_levels = self.queues.iter().filter(|queue| queue.number("x-max-priority").is_some());
        with_levels.map(|queue| queue.places).sum()
    }

    /// To whom the real broker has delivered the message, if that one may have it. Of equal messages the first is
    /// for the one whose turn it is.
    fn observed_consumer(&mut self, queue: u64, at: usize) -> Option<Consumer> {
        let queue = self.queues.iter().find(|other| other.id == queue)?;
        let message = &queue.ready[at];
        let content = (canonical(message.properties.clone()), message.body.clone());
        let mut found: Vec<(usize, &Consumer)> = Vec::new();
        for (index, observed) in self.observed.iter().enumerate() {
            let same = observed.exchange == message.exchange && observed.routing_key == message.routing_key;
            if observed.used || !same || observed.content != content {
                continue;
            }
            let is_it = |consumer: &&Consumer| {
                (consumer.connection, consumer.channel) == (observed.connection, observed.channel)
                    && consumer.tag == observed.consumer_tag
            };
            found.extend(queue.consumers.iter().find(is_it).map(|consumer| (index, consumer)));
        }
        found.retain(|(_, consumer)| self.may_have(queue, consumer));
        // Where queues share the limit of a channel, in the order of its delivery tags.
        let is_due = |(index, consumer): &(usize, &Consumer)| {
            let place = |at: usize| (self.observed[at].connection, self.observed[at].channel);
            let first = !(0..*index).any(|before| !self.observed[before].used && place(before) == place(*index));
            first || self.channel_of(consumer).global_prefetch == 0
        };
        let waits = found.iter().any(|found| !is_due(found));
        found.retain(is_due);
        let had_turn = |served: &Consumer| queue.consumers.iter().any(|other| other.passed_by.contains(&served.id));
        let chosen = found.iter().min_by_key(|(_, consumer)| had_turn(consumer));
        let chosen = chosen.map(|(index, consumer)| (*index, (*consumer).clone()));
        self.waits_for_others = chosen.is_none() && waits;
        let (index, consumer) = chosen?;
        self.observed[index].used = true;
        Some(consumer)
    }

    fn channel_of(&self, consumer: &Consumer) -> &Channel {
        let channels = &self.connections[consumer.connection].as_ref().expect("its connection is open").channels;
        channels.iter().find(|channel| channel.number == consumer.channel).expect("its channel is open")
    }

    /// §9.1, §9.3: has it credit, and is it its turn?
    fn may_have(&self, queue: &Queue, consumer: &Consumer) -> bool {
        let channel = self.channel_of(consumer);
        let held = channel.unacked.iter().filter(|unacked| unacked.consumer == consumer.id).count();
        let own = consumer.no_ack || consumer.prefetch == 0 || held < consumer.prefetch.into();
        let counts = |unacked: &&Unacked| !(unacked.settled && channel.commits);
        let shared = channel.unacked.iter().filter(counts).count() < channel.global_prefetch.into();
        let shared = shared || channel.global_prefetch == 0;
        own && shared && (!queue.is_single_active() || queue.active == Some(consumer.id))
    }

    /// Somebody with credit and more than this priority did not get a message. Whether that was right depends on
    /// what else was delivered in this step: it was if the credit is gone at its end.
    pub(super) fn note_passed_over(&mut self, queue: u64, served: u64, priority: i64, what: &str) {
        let queue = self.queues.iter().find(|other| other.id == queue).expect("it is there");
        // Within a commit it is open when the slots of its acks count as free.
        let judged = |other: &&Consumer| other.priority > priority && !self.channel_of(other).commits;
        let others = queue.consumers.iter().filter(|other| other.id != served).filter(judged);
        let free: Vec<u64> = others.filter(|other| self.may_have(queue, other)).map(|other| other.id).collect();
        let what = format!("{}: {what} although one had credit", queue.name);
        self.passed_over.extend(free.iter().map(|consumer| (queue.id, *consumer, what.clone())));
    }

    /// Round robin: between two turns of a consumer everybody else of its priority who has credit gets one.
    fn note_turn(&mut self, queue: u64, served: &Consumer) {
        let at = self.queues.iter().position(|other| other.id == queue).expect("it is there");
        for index in 0..self.queues[at].consumers.len() {
            let (queue, consumer) = (&self.queues[at], &self.queues[at].consumers[index]);
            // With a limit for the channel its other consumers may take the slot, and so the turn.
            let alone = self.channel_of(consumer).global_prefetch == 0;
            let waits = alone && consumer.priority == served.priority && self.may_have(queue, consumer);
            let unfair = consumer.id != served.id && waits && consumer.passed_by.contains(&served.id);
            if unfair {
                let what = format!("{}: {} was served twice while {} waited", queue.name, served.tag, consumer.tag);
                self.unfair.get_or_insert(what);
            }
            let consumer = &mut self.queues[at].consumers[index];
            if consumer.id == served.id || !waits {
                consumer.passed_by.clear();
            } else {
                consumer.passed_by.push(served.id);
            }
        }
    }

    /// Nobody waits for what is ready, and nobody was passed over (§9.2).
    fn judge(&mut self) {
        if self.unclear.is_some() {
            return;
        }
        if let Some(what) = &self.unfair {
            panic!("{what}");
        }
        let passed_over = std::mem::take(&mut self.passed_over);
        // Who cannot be served does not wait for its turn.
        for at in 0..self.queues.len() {
            for index in 0..self.queues[at].consumers.len() {
                let (queue, consumer) = (&self.queues[at], &self.queues[at].consumers[index]);
                if !self.may_have(queue, consumer) || self.channel_of(consumer).global_prefetch > 0 {
                    self.queues[at].consumers[index].passed_by.clear();
                }
            }
        }
        for queue in &self.queues {
            let free: Vec<&Consumer> =
                queue.consumers.iter().filter(|consumer| self.may_have(queue, consumer)).collect();
            if let (Some(next), Some(consumer)) = (queue.next(), free.first()) {
                let body = String::from_utf8_lossy(&queue.ready[next].body);
                let body = body.split('.').next().unwrap_or_default();
                panic!("{}: {body} is to be delivered to {} or another", queue.name, consumer.tag);
            }
            let wrong = passed_over
                .iter()
                .find(|(id, consumer, _)| *id == queue.id && free.iter().any(|other| other.id == *consumer));
            assert!(wrong.is_none(), "{}", wrong.expect("just found").2);
        }
    }
}
