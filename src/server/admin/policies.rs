//! Policies and operator policies, set while queues are in use.

use leveret_protocol::FieldTable;

use super::{AdminError, Outcome};
use crate::model::policy::{ApplyTo, Policy};
use crate::server::Server;

/// A policy as it is to be.
#[derive(Clone, Debug)]
pub struct PolicySpec {
    pub pattern: String,
    pub definition: FieldTable,
    pub priority: i64,
    pub apply_to: ApplyTo,
}

impl Server {
    /// The policies of a vhost (`None`: it does not exist), highest priority first.
    pub fn policies(&self, vhost: &str, operator: bool) -> Option<Vec<Policy>> {
        let shard = self.directory.get(vhost)?;
        let (mut all, _) = shard.turn(None, |broker, _| broker.policies(operator).cloned().collect::<Vec<_>>());
        all.sort_by(|one, other| other.priority.cmp(&one.priority).then(one.name.cmp(&other.name)));
        Some(all)
    }

    /// Sets or replaces a policy; what it matches feels it at once.
    ///
    /// # Errors
    /// A definition that cannot be used; no such vhost.
    pub async fn set_policy(
        &self,
        vhost: &str,
        name: &str,
        spec: PolicySpec,
        operator: bool,
    ) -> Result<Outcome, AdminError> {
        let shard = self.directory.get(vhost).ok_or_else(|| AdminError::NoVhost(vhost.to_owned()))?;
        let PolicySpec { pattern, definition, priority, apply_to } = spec;
        let policy = Policy::new(name, &pattern, definition, priority, apply_to, operator)
            .map_err(|error| AdminError::Invalid(format!("{error}\n")))?;
        let existed = {
            let _one_at_a_time = self.admin.lock();
            let (existed, _) = shard.turn(None, |broker, now| {
                let existed = broker.policies(operator).any(|old| old.name == policy.name);
                broker.set_policy(policy, operator, now);
                existed
            });
            existed
        };
        self.flushed().await;
        Ok(Outcome::of_existing(existed))
    }

    /// Removes a policy.
    ///
    /// # Errors
    /// There is none; no such vhost.
    pub async fn clear_policy(&self, vhost: &str, name: &str, operator: bool) -> Result<(), AdminError> {
        let shard = self.directory.get(vhost).ok_or_else(|| AdminError::NoVhost(vhost.to_owned()))?;
        {
            let _one_at_a_time = self.admin.lock();
            let (cleared, _) = shard.turn(None, |broker, now| broker.clear_policy(name, operator, now));
            if !cleared {
                return Err(AdminError::Missing("policy"));
            }
        }
        self.flushed().await;
        Ok(())
    }
}
