//! Policies take effect: on what is declared, and on what is there when they change (§15.1).

use std::sync::Arc;

use super::Broker;
use crate::model::arguments::QueueSettings;
use crate::model::exchange::Exchange;
use crate::model::ids::{ExchangeKey, QueueKey};
use crate::model::policy::{Effective, Policy, Target};
use crate::model::queue::Queue;
use crate::model::timer::Millis;

impl Broker {
    /// Sets or replaces a policy, and lets everything it touches feel it at once.
    pub fn set_policy(&mut self, policy: Policy, operator: bool, now: Millis) {
        if self.settings.persistent {
            let (key, value) = self.policy_record(&policy, operator);
            self.pending.put(key, value);
        }
        if operator { &mut self.operator_policies } else { &mut self.policies }.set(policy);
        self.apply_policies(now);
    }

    /// A policy that holds while the settings name it: it is not stored, and covers a stored one of its name.
    /// For the time before [`Self::recovered`], which lets it take effect.
    pub fn add_configured_policy(&mut self, policy: Policy, operator: bool) {
        if operator { &mut self.operator_policies } else { &mut self.policies }.set(policy);
    }

    /// Removes a policy; what it had set goes back to the default. False if there is none of that name.
    pub fn clear_policy(&mut self, name: &str, operator: bool, now: Millis) -> bool {
        if !if operator { &mut self.operator_policies } else { &mut self.policies }.clear(name) {
            return false;
        }
        if self.settings.persistent {
            self.pending.remove(self.policy_key(name, operator));
        }
        self.apply_policies(now);
        true
    }

    /// Every policy, or operator policy, by name.
    pub fn policies(&self, operator: bool) -> impl Iterator<Item = &Policy> {
        if operator { self.operator_policies.iter() } else { self.policies.iter() }
    }

    /// What policies say of this queue or exchange.
    pub fn effective_policy(&self, name: &str, target: Target) -> Effective {
        Effective::merge(self.policies.find(name, target), self.operator_policies.find(name, target))
    }

    pub(super) fn effective_settings(&self, queue: &Queue) -> Arc<QueueSettings> {
        if self.policies.is_empty() && self.operator_policies.is_empty() {
            return queue.declared.clone();
        }
        let policy = self.effective_policy(&queue.name, Target::Queue(queue.queue_type));
        let settings = policy.apply(&queue.declared, queue.queue_type);
        if settings == *queue.declared { queue.declared.clone() } else { settings.shared() }
    }

    /// Looks at everything again.
    pub(super) fn apply_policies(&mut self, now: Millis) {
        let queues: Vec<QueueKey> = self.queues.keys().collect();
        for key in queues {
            self.apply_queue_policy(key, now);
        }
        let exchanges: Vec<ExchangeKey> = self.topology.iter().map(|(key, _)| key).collect();
        for key in exchanges {
            self.apply_exchange_policy(key);
        }
        self.process_deaths(now);
    }

    fn apply_queue_policy(&mut self, key: QueueKey, now: Millis) {
        let settings = self.effective_settings(&self.queues[key]);
        let queue = &mut self.queues[key];
        if queue.settings == settings {
            return;
        }
        let newly_expires = settings.expires_ms != queue.settings.expires_ms;
        queue.set_settings(settings);
        if newly_expires {
            // The time runs from now on (§15.1).
            queue.last_used = queue.last_used.max(now);
            self.arm_queue_expiry(key);
        }
        if self.queues[key].is_stream() {
            self.retain_stream(key, now);
        } else if !self.queues[key].rejects_publishes() {
            self.trim(key);
        }
    }

    /// An exchange's own argument wins over the policy's alternate exchange.
    pub(super) fn apply_exchange_policy(&mut self, key: ExchangeKey) {
        let Some(exchange) = self.topology.get(key) else { return };
        let own = Exchange::alternate_of(&exchange.arguments);
        let policy = if self.policies.is_empty() && self.operator_policies.is_empty() {
            None
        } else {
            self.effective_policy(&exchange.name, Target::Exchange).alternate_exchange()
        };
        self.topology.set_alternate(key, own.or(policy));
    }
}

#[cfg(test)]
mod tests {
    use leveret_protocol::{FieldTable, FieldValue};

    use super::super::Settings;
    use super::super::testing::Rig;
    use super::*;
    use crate::model::policy::ApplyTo;

    fn policy(key: &str, value: impl Into<FieldValue>) -> Policy {
        let definition = FieldTable::from_iter([(key, value.into())]);
        Policy::new("p", "^q", definition, 0, ApplyTo::All, false).unwrap()
    }

    /// §15.1: a limit trims at once; taken away, the default is back.
    #[test]
    fn s15_1_a_length_policy_trims_an_existing_queue() {
        let mut rig = Rig::new(Settings::default());
        rig.declare("q", FieldTable::new());
        for _ in 0..5 {
            rig.publish("", "q", "m");
        }
        rig.broker.set_policy(policy("max-length", FieldValue::I64(2)), false, rig.now);
        assert_eq!(rig.broker.queue("q").unwrap().ready_count(), 2);
        rig.publish("", "q", "m");
        assert_eq!(rig.broker.queue("q").unwrap().ready_count(), 2);
        assert!(rig.broker.clear_policy("p", false, rig.now));
        rig.publish("", "q", "m");
        assert_eq!(rig.broker.queue("q").unwrap().ready_count(), 3);
    }

    /// §15.1: TTL counts for messages that come later; expires arms the timer.
    #[test]
    fn s15_1_ttl_and_expires_policies_take_effect_live() {
        let mut rig = Rig::new(Settings::default());
        rig.declare("q", FieldTable::new());
        rig.publish("", "q", "old");
        rig.broker.set_policy(policy("message-ttl", FieldValue::I64(100)), false, rig.now);
        rig.publish("", "q", "new");
        rig.wait(200);
        assert_eq!(rig.broker.queue("q").unwrap().ready_count(), 2, "the old one stays, and hides the new one");
        rig.broker.set_policy(policy("expires", FieldValue::I64(100)), false, rig.now);
        rig.wait(99);
        assert!(rig.broker.queue("q").is_some());
        rig.wait(1);
        assert!(rig.broker.queue("q").is_none());
    }

    /// §15.1: dead-letter keys apply to later deaths.
    #[test]
    fn s15_1_a_dead_letter_policy_applies_to_existing_messages() {
        let mut rig = Rig::new(Settings::default());
        rig.declare("dead", FieldTable::new());
        rig.declare(
            "q",
            FieldTable::from_iter([
                ("x-dead-letter-exchange", FieldValue::from("")),
                ("x-message-ttl", FieldValue::I64(10)),
            ]),
        );
        rig.broker.set_policy(policy("dead-letter-routing-key", "dead"), false, rig.now);
        rig.publish("", "q", "m");
        rig.wait(11);
        assert_eq!(rig.broker.queue("dead").unwrap().ready_count(), 1);
    }

    /// Policies survive a restart like everything else that is declared.
    #[test]
    fn s16_policies_come_back() {
        let mut rig = Rig::new(Settings::default());
        rig.broker.set_policy(policy("max-length", FieldValue::I64(1)), true, rig.now);
        let (key, value) = rig.broker.policy_record(&policy("max-length", FieldValue::I64(1)), true);
        let mut again = Rig::new(Settings::default());
        again.broker.recover_definition(&key, &value, again.now).unwrap();
        again.broker.recovered(again.now);
        again.declare("q", FieldTable::new());
        again.publish("", "q", "m");
        again.publish("", "q", "m");
        assert_eq!(again.broker.queue("q").unwrap().ready_count(), 1);
    }
}
