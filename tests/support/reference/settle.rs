//! Consumers come and go, deliveries are settled, transactions end (§8.5 to §8.8, §9, §10).

use leveret_protocol::{FieldValue, ReplyCode, basic, tx};

use super::queue::Consumer;
use super::{Outcome, Reference, Settlement, Unacked, fault, of_queue};

type At = (usize, u16);

impl Reference {
    /// §9.1
    pub(super) fn qos(&mut self, at: At, qos: &basic::Qos) -> Outcome {
        if qos.prefetch_size != 0 {
            return fault(ReplyCode::NotImplemented, format!("prefetch_size!=0 ({})", qos.prefetch_size));
        }
        let channel = self.channel(at);
        if qos.global {
            channel.global_prefetch = qos.prefetch_count;
        } else {
            (channel.prefetch, channel.global_prefetch) = (qos.prefetch_count, 0);
        }
        self.reply(at, basic::QosOk {}.into());
        Ok(())
    }

    /// §8.7
    pub(super) fn consume(&mut self, at: At, consume: &basic::Consume<'_>) -> Outcome {
        let tag = consume.consumer_tag;
        let own = |consumer: &Consumer| (consumer.connection, consumer.channel) == at;
        if self.consumers().any(|consumer| own(consumer) && consumer.tag == tag) {
            return fault(ReplyCode::NotAllowed, format!("attempt to reuse consumer tag '{tag}'"));
        }
        let id = self.usable_queue(at.0, consume.queue)?;
        let prefetch = self.channel(at).prefetch;
        let consumer = Consumer {
            id: self.next_id(),
            queue: id,
            connection: at.0,
            channel: at.1,
            tag: tag.to_owned(),
            no_ack: consume.no_ack,
            exclusive: consume.exclusive,
            priority: consume.arguments.get("x-priority").and_then(FieldValue::as_integer).unwrap_or(0) as i64,
            prefetch,
            passed_by: Vec::new(),
        };
        let now = self.now;
        let queue = self.queue(id).expect("it is there");
        let taken = queue.consumers.iter().any(|other| other.exclusive);
        if taken || consume.exclusive && (!queue.consumers.is_empty() || queue.is_single_active()) {
            return fault(ReplyCode::AccessRefused, format!("{} in exclusive use", of_queue(consume.queue)));
        }
        if queue.active.is_none() {
            queue.active = Some(consumer.id);
        }
        queue.last_used = now;
        queue.consumers.push(consumer);
        self.reply(at, basic::ConsumeOk { consumer_tag: tag }.into());
        Ok(())
    }

    /// §8.8: what it holds stays with the channel.
    pub(super) fn cancel(&mut self, at: At, tag: &str) {
        let own = |consumer: &&Consumer| (consumer.connection, consumer.channel) == at && consumer.tag == tag;
        let found = self.consumers().find(own).map(|consumer| (consumer.queue, consumer.id));
        if let Some((queue, consumer)) = found {
            self.remove_consumer(queue, consumer);
            self.consumer_left(queue);
        }
    }

    /// Another may become the active one: the highest priority, the oldest among equals (§9.3).
    pub(super) fn remove_consumer(&mut self, queue: u64, consumer: u64) {
        let Some(queue) = self.queue(queue) else { return };
        queue.consumers.retain(|other| other.id != consumer);
        if queue.active == Some(consumer) {
            let highest = queue.consumers.iter().map(|other| other.priority).max();
            let next = queue.consumers.iter().find(|other| Some(other.priority) == highest);
            queue.active = next.map(|other| other.id);
        }
    }

    /// §5.8: an auto-delete queue goes with its last consumer.
    pub(super) fn consumer_left(&mut self, id: u64) {
        let (now, stopping) = (self.now, self.stopping);
        let Some(queue) = self.queue(id).filter(|queue| queue.consumers.is_empty()) else { return };
        queue.last_used = now;
        if queue.auto_delete && !stopping {
            self.delete_queue(id);
        }
    }

    /// §8.5
    pub(super) fn settle(&mut self, at: At, tag: u64, multiple: bool, settlement: Settlement) -> Outcome {
        let channel = self.channel(at);
        let known = channel.unacked.iter().any(|unacked| unacked.tag == tag && unacked.is_open());
        if !(known || multiple && tag == 0) {
            return fault(ReplyCode::PreconditionFailed, format!("unknown delivery tag {tag}"));
        }
        let covers = |other: u64| if multiple { tag == 0 || other <= tag } else { other == tag };
        if channel.tx.is_some() {
            let covered = channel.unacked.iter_mut().filter(|unacked| covers(unacked.tag) && unacked.is_open());
            let ids = covered.map(|unacked| {
                unacked.settled = true;
                unacked.id
            });
            let ids = ids.collect();
            channel.settlements.push((settlement, ids));
            return Ok(());
        }
        let settled = channel.unacked.extract_if(.., |unacked| covers(unacked.tag) && unacked.is_open()).collect();
        self.apply(settlement, settled);
        Ok(())
    }

    /// What settled deliveries mean for their queues.
    fn apply(&mut self, settlement: Settlement, settled: Vec<Unacked>) {
        match settlement {
            Settlement::Ack => {}
            Settlement::Requeue => self.requeue(settled),
            Settlement::Discard => {
                for unacked in settled {
                    if self.queue(unacked.queue).is_some() {
                        self.die(unacked.queue, unacked.message, "rejected");
                    }
                }
            }
        }
    }

    /// Back to their places, all of them; then what is too much is dropped (§11.4).
    pub(super) fn requeue(&mut self, returned: Vec<Unacked>) {
        let queues: Vec<u64> = returned.iter().map(|unacked| unacked.queue).collect();
        for unacked in returned {
            self.put_back(unacked);
        }
        for queue in queues {
            self.trim(queue);
        }
    }

    pub(super) fn put_back(&mut self, unacked: Unacked) {
        if let Some(queue) = self.queue(unacked.queue) {
            let mut message = unacked.message;
            message.redelivered = true;
            queue.ready.push(message);
        }
    }

    pub(super) fn recover(&mut self, at: At, requeue: bool) -> Outcome {
        if !requeue {
            return fault(ReplyCode::NotImplemented, "requeue=false");
        }
        let returned = self.channel(at).unacked.extract_if(.., |unacked| unacked.is_open()).collect();
        self.requeue(returned);
        Ok(())
    }

    /// §10: publishes, then settlements in the order in which they were given.
    pub(super) fn commit(&mut self, at: At) -> Outcome {
        let Some(tx) = self.channel(at).tx.take() else {
            return fault(ReplyCode::PreconditionFailed, "channel is not transactional");
        };
        self.channel(at).commits = true;
        let mut accepted = true;
        for (queues, publish) in tx {
            accepted &= self.hand_over(at, &queues, publish);
        }
        self.channel(at).commits = false;
        self.channel(at).tx = Some(Vec::new());
        let settlements = std::mem::take(&mut self.channel(at).settlements);
        for (settlement, ids) in settlements {
            let settled = self.channel(at).unacked.extract_if(.., |unacked| ids.contains(&unacked.id)).collect();
            self.apply(settlement, settled);
        }
        if !accepted {
            return fault(ReplyCode::PreconditionFailed, "partial tx completion");
        }
        self.reply(at, tx::CommitOk {}.into());
        Ok(())
    }

    pub(super) fn rollback(&mut self, at: At) -> Outcome {
        let channel = self.channel(at);
        if channel.tx.is_none() {
            return fault(ReplyCode::PreconditionFailed, "channel is not transactional");
        }
        channel.tx = Some(Vec::new());
        channel.settlements.clear();
        channel.unacked.iter_mut().for_each(|unacked| unacked.settled = false);
        self.reply(at, tx::RollbackOk {}.into());
        Ok(())
    }
}
