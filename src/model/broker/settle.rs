//! basic.ack, nack, reject and recover; confirm.select and tx: how deliveries and publishes are settled
//! (§8.5, §10, §11.1).

use leveret_protocol::{basic, confirm, tx};

use super::dead_letter::Reason;
use super::{Broker, Finding};
use crate::model::arguments::QueueType;
use crate::model::channel::{Channel, Confirms, Delivery, Settlement, Tx};
use crate::model::error::AmqpError;
use crate::model::ids::{ChannelKey, QueueKey};
use crate::model::queue::Queue;
use crate::model::timer::{Millis, Timer};

impl Broker {
    #[inline]
    pub(super) fn basic_ack(&mut self, channel: ChannelKey, ack: &basic::Ack, now: Millis) -> Result<(), AmqpError> {
        self.settle_tags(channel, ack.delivery_tag, ack.multiple, Settlement::Ack, now)
    }

    pub(super) fn basic_nack(&mut self, channel: ChannelKey, nack: &basic::Nack, now: Millis) -> Result<(), AmqpError> {
        let settlement = if nack.requeue { Settlement::Return } else { Settlement::Discard };
        self.settle_tags(channel, nack.delivery_tag, nack.multiple, settlement, now)
    }

    pub(super) fn basic_reject(
        &mut self,
        channel: ChannelKey,
        reject: &basic::Reject,
        now: Millis,
    ) -> Result<(), AmqpError> {
        let settlement = if reject.requeue { Settlement::RejectReturn } else { Settlement::RejectDiscard };
        self.settle_tags(channel, reject.delivery_tag, false, settlement, now)
    }

    /// Takes every tag before touching a queue: a bad tag leaves nothing half settled.
    #[inline]
    fn settle_tags(
        &mut self,
        channel: ChannelKey,
        tag: u64,
        multiple: bool,
        settlement: Settlement,
        now: Millis,
    ) -> Result<(), AmqpError> {
        let mut taken = std::mem::take(&mut self.taken);
        taken.clear();
        let state = &self.channels[channel];
        if tag > state.sent_tag && tag <= state.delivery_tag {
            // A client that knows its tags beforehand may send get and ack in one go.
            self.encode_up_to(channel, tag);
        }
        let state = &mut self.channels[channel];
        if !state.unacked.take(tag, multiple, state.sent_tag.max(tag), &mut taken) {
            self.taken = taken;
            return Err(AmqpError::UnknownDeliveryTag(tag));
        }
        if self.settings.lint_against.is_some() && settlement == Settlement::Return {
            self.lint_nack(channel, &taken);
        }
        let state = &mut self.channels[channel];
        if let Some(tx) = &mut state.tx {
            tx.settlements.push((settlement, taken));
            return Ok(());
        }
        self.settle_deliveries(channel, settlement, &taken, now);
        taken.shrink_to(4096);
        self.taken = taken;
        Ok(())
    }

    fn lint_nack(&mut self, channel: ChannelKey, taken: &[Delivery]) {
        let quorum = taken
            .iter()
            .find_map(|delivery| self.queues.get(delivery.queue).filter(|queue| queue.queue_type == QueueType::Quorum));
        if let Some(name) = quorum.map(|queue| queue.name.clone()) {
            self.lint(channel, Finding::NackCounts, &name);
        }
    }

    #[inline]
    fn settle_deliveries(&mut self, channel: ChannelKey, settlement: Settlement, taken: &[Delivery], now: Millis) {
        if matches!(settlement, Settlement::RejectReturn | Settlement::RejectDiscard) {
            for delivery in taken {
                if let Some(queue) = self.queues.get_mut(delivery.queue) {
                    queue.mark_failed(delivery.seq);
                }
            }
        }
        match settlement {
            Settlement::Ack => {
                for delivery in taken {
                    self.settle_acked(delivery);
                }
            }
            Settlement::Discard | Settlement::RejectDiscard => {
                for delivery in taken {
                    self.discard(delivery);
                }
            }
            Settlement::Return | Settlement::RejectReturn => {
                let failed = settlement == Settlement::RejectReturn;
                self.return_all(taken, u64::MAX, failed, now);
            }
        }
        if self.channels[channel].global_prefetch > 0 {
            self.offer_all(channel);
        }
    }

    #[inline]
    fn settle_acked(&mut self, delivery: &Delivery) {
        if let Some(queue) = self.queues.get_mut(delivery.queue) {
            queue.unacked_count -= 1;
            queue.stats.acked += 1;
            self.settle(delivery.queue, delivery.seq);
        }
        self.release_credit(delivery);
    }

    /// The message is done with: frees its memory, and tells the store if that has it.
    #[inline]
    pub(super) fn settle(&mut self, key: QueueKey, seq: u64) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        if queue.is_stream() {
            // Stays for other readers, until retention takes it.
            return;
        }
        if queue.settle(seq, &mut self.pool) == Some(true)
            && let Some(store_id) = queue.store_id
        {
            self.pending.settle(store_id, seq);
        }
    }

    /// The delivery no longer counts against its consumer.
    #[inline]
    fn release_credit(&mut self, delivery: &Delivery) {
        if let Some(consumer) = self.consumers.get_mut(delivery.consumer) {
            consumer.unacked -= 1;
            let done = consumer.unacked == 0;
            // Under a limit of the whole channel all its consumers are asked afterwards, each in turn: this one
            // would take the room for itself every time.
            let alone = |channel: &Channel| channel.global_prefetch == 0;
            if !consumer.waiting && self.channels.get(consumer.channel).is_some_and(alone) {
                self.offer(delivery.consumer);
            }
            if done && self.queues.get(delivery.queue).is_some_and(|queue| queue.handing_over) {
                self.finish_hand_over(delivery.queue);
            }
        }
    }

    /// Not to be requeued: dead-lettered or dropped (§11.3).
    fn discard(&mut self, delivery: &Delivery) {
        if let Some(queue) = self.queues.get_mut(delivery.queue) {
            queue.unacked_count -= 1;
            queue.stats.rejected += 1;
            self.die(delivery.queue, delivery.seq, Reason::Rejected);
        }
        self.release_credit(delivery);
    }

    /// Returns deliveries, given in the order of their tags, to their queues (§8.5). Those with tags from
    /// `first_unsent` on the client cannot have seen. `failed` counts towards a delivery limit.
    pub(super) fn return_all(&mut self, taken: &[Delivery], first_unsent: u64, failed: bool, now: Millis) {
        let is_quorum = |delivery: &Delivery| {
            self.queues.get(delivery.queue).is_some_and(|queue| queue.queue_type == QueueType::Quorum)
        };
        if taken.iter().any(is_quorum) {
            for delivery in taken {
                self.return_to_queue(delivery, delivery.tag < first_unsent, failed, now);
            }
        } else {
            // Newest first: a classic queue then mostly just moves its cursor back.
            for delivery in taken.iter().rev() {
                self.return_to_queue(delivery, delivery.tag < first_unsent, failed, now);
            }
        }
        // What came back may be too much (§11.4).
        for delivery in taken {
            let over = |queue: &Queue| queue.is_over_limit() && !queue.rejects_publishes();
            if self.queues.get(delivery.queue).is_some_and(over) {
                self.trim(delivery.queue);
            }
        }
    }

    fn return_to_queue(&mut self, delivery: &Delivery, seen: bool, failed: bool, now: Millis) {
        if let Some(queue) = self.queues.get_mut(delivery.queue) {
            queue.unacked_count -= 1;
            queue.stats.requeued += 1;
            if queue.queue_type == QueueType::Quorum {
                self.return_to_quorum_queue(delivery, failed, now);
            } else if !queue.is_stream() {
                queue.requeue(delivery.seq, seen);
            }
            self.mark_dirty(delivery.queue);
        }
        self.release_credit(delivery);
    }

    /// §12.1: counts the return; over the limit the message dies, with delayed retry it waits.
    fn return_to_quorum_queue(&mut self, delivery: &Delivery, failed: bool, now: Millis) {
        let failed = failed || self.settings.profile.every_return_counts();
        let default_limit = self.settings.profile.default_delivery_limit();
        let queue = &mut self.queues[delivery.queue];
        let returns = queue.count_return(delivery.seq, failed);
        let limit = match queue.settings.delivery_limit {
            Some(limit) => u64::try_from(limit).ok(),
            None => default_limit,
        };
        if failed && limit.is_some_and(|limit| u64::from(returns.failed) > limit) {
            queue.stats.requeued -= 1;
            queue.stats.over_delivery_limit += 1;
            return self.die(delivery.queue, delivery.seq, Reason::DeliveryLimit);
        }
        if let Some(store_id) = queue.store_id
            && delivery.seq < queue.stored_below
        {
            self.pending.delivered(store_id, delivery.seq, returns.to_stored());
        }
        match queue.settings.delayed_retry.delay_ms(failed, returns.failed) {
            Some(delay) => {
                let due = now.saturating_add(delay);
                if queue.delay(delivery.seq, due) {
                    self.timers.arm(due, Timer::QueueDelayed(delivery.queue));
                }
            }
            None => queue.requeue(delivery.seq, true),
        }
    }

    pub(super) fn basic_recover(
        &mut self,
        channel: ChannelKey,
        requeue: bool,
        reply: bool,
        now: Millis,
    ) -> Result<(), AmqpError> {
        if !requeue {
            return Err(AmqpError::NotImplemented("requeue=false".to_owned()));
        }
        let mut taken = Vec::new();
        let state = &mut self.channels[channel];
        state.unacked.take(0, true, state.sent_tag, &mut taken);
        self.settle_deliveries(channel, Settlement::Return, &taken, now);
        if reply {
            self.reply(channel, &basic::RecoverOk {}.into());
        }
        Ok(())
    }

    pub(super) fn confirm_select(&mut self, channel: ChannelKey, no_wait: bool) -> Result<(), AmqpError> {
        let state = &mut self.channels[channel];
        if state.tx.is_some() {
            return Err(AmqpError::ConfirmAfterTx);
        }
        state.confirms.get_or_insert_with(Confirms::default);
        if !no_wait {
            self.reply(channel, &confirm::SelectOk {}.into());
        }
        Ok(())
    }

    pub(super) fn tx_select(&mut self, channel: ChannelKey) -> Result<(), AmqpError> {
        let state = &mut self.channels[channel];
        if state.confirms.is_some() {
            return Err(AmqpError::TxAfterConfirm);
        }
        state.tx.get_or_insert_with(Tx::default);
        self.reply(channel, &tx::SelectOk {}.into());
        Ok(())
    }

    pub(super) fn tx_commit(&mut self, channel: ChannelKey, now: Millis) -> Result<(), AmqpError> {
        let Some(tx) = &mut self.channels[channel].tx else { return Err(AmqpError::NotTransactional) };
        let publishes = std::mem::take(&mut tx.publishes);
        let settlements = std::mem::take(&mut tx.settlements);
        let mut stored = false;
        let mut refused = false;
        for publish in publishes {
            let outcome = self.publish_committed(channel, &publish, now);
            stored |= outcome.stored;
            refused |= outcome.refused;
        }
        for (settlement, deliveries) in settlements {
            self.settle_deliveries(channel, settlement, &deliveries, now);
        }
        if refused {
            return Err(AmqpError::PartialTxCompletion);
        }
        if stored {
            let commit = self.await_commit(channel);
            if let Some(tx) = &mut self.channels[channel].tx {
                tx.committing = Some(commit);
            }
        } else {
            self.reply_when_settled(channel, &tx::CommitOk {}.into());
        }
        Ok(())
    }

    /// What the transaction published and settled is on disk.
    pub(super) fn tx_committed(&mut self, channel: ChannelKey) {
        if let Some(tx) = &mut self.channels[channel].tx {
            tx.committing = None;
        }
        self.reply(channel, &tx::CommitOk {}.into());
    }

    pub(super) fn tx_rollback(&mut self, channel: ChannelKey) -> Result<(), AmqpError> {
        let state = &mut self.channels[channel];
        let Some(tx) = &mut state.tx else { return Err(AmqpError::NotTransactional) };
        tx.publishes.clear();
        for (_, deliveries) in std::mem::take(&mut tx.settlements) {
            state.unacked.put_back(deliveries);
        }
        self.reply(channel, &tx::RollbackOk {}.into());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use leveret_protocol::FieldTable;

    use super::super::Settings;
    use super::super::testing::{Rig, Sent};
    use super::*;

    /// §3.11, pipelining: get and ack in one go; the reply comes first, with the message.
    #[test]
    fn s8_5_an_ack_sent_ahead_of_its_delivery_counts() {
        let mut rig = Rig::new(Settings::default());
        rig.declare("q", FieldTable::new());
        rig.publish("", "q", "m1");
        rig.send_ahead(basic::Get { queue: "q", no_ack: false }.into());
        rig.send_ahead(basic::Ack { delivery_tag: 1, multiple: false }.into());
        let sent = rig.take();
        assert!(
            matches!(&sent[..], [Sent::Method(get_ok), Sent::Content(_, body)]
            if get_ok.contains("GetOk") && body == b"m1"),
            "{sent:?}"
        );
        let queue = rig.broker.queue("q").unwrap();
        assert_eq!((queue.ready_count(), queue.unacked_count, queue.stats.acked), (0, 0, 1));
    }
}
