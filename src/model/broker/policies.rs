//! Policies take effect: on what is declared, and on what is there when they change (§15.1).

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

    pub(super) fn effective_settings(&self, queue: &Queue) -> QueueSettings {
        if self.policies.is_empty() && self.operator_policies.is_empty() {
            return queue.declared.clone();
        }
        self.effective_policy(&queue.name, Target::Queue(queue.queue_type)).apply(&queue.declared, queue.queue_type)
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
        queue.settings = settings;
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
