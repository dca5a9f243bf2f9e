//! Vhosts: created and deleted while others serve.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Actor, AdminError, Outcome};
use crate::auth::Permissions;
use crate::model::arguments::QueueType;
use crate::model::quota::effective;
use crate::model::record::{Batch, DefinitionKey, DefinitionKind, Name, Op};
use crate::model::vhost::{Vhost, VhostLimits};
use crate::server::Server;
use crate::server::recovery::new_broker;
use crate::server::shard::Shard;

/// What is to be set; `None` stays as it is.
#[derive(Clone, Debug, Default)]
pub struct VhostSpec {
    pub description: Option<String>,
    pub tags: Option<Vec<String>>,
    /// `Some(None)`: the node's default.
    pub default_queue_type: Option<Option<QueueType>>,
    pub limits: Option<VhostLimits>,
    /// The firehose. Not kept over a restart.
    pub tracing: Option<bool>,
    pub protected: Option<bool>,
}

/// Which limit of a vhost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VhostLimit {
    Connections,
    Queues,
}

impl VhostLimit {
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "max-connections" => Some(Self::Connections),
            "max-queues" => Some(Self::Queues),
            _ => None,
        }
    }

    fn of(self, limits: &mut VhostLimits) -> &mut Option<i64> {
        match self {
            Self::Connections => &mut limits.max_connections,
            Self::Queues => &mut limits.max_queues,
        }
    }
}

impl Server {
    /// Every vhost, by name.
    pub fn vhosts(&self) -> Vec<Vhost> {
        let mut all: Vec<Vhost> = self.directory.shards().iter().map(|shard| shard.vhost.read().clone()).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    pub fn vhost(&self, name: &str) -> Option<Vhost> {
        self.directory.get(name).map(|shard| shard.vhost.read().clone())
    }

    /// Is the vhost's firehose on?
    pub fn is_tracing(&self, name: &str) -> bool {
        self.directory.get(name).is_some_and(|shard| shard.turn(None, |broker, _| broker.is_tracing()).0)
    }

    /// Creates or changes a vhost. `creator` gets all permissions in a new one.
    ///
    /// # Errors
    /// An empty name; `vhost_max` is reached.
    pub async fn put_vhost(&self, name: &str, spec: VhostSpec, creator: Option<&Actor>) -> Result<Outcome, AdminError> {
        if name.is_empty() {
            return Err(AdminError::Invalid("vhost name cannot be empty".to_owned()));
        }
        let existed = {
            let _one_at_a_time = self.admin.lock();
            match self.directory.get(name) {
                Some(shard) => {
                    self.change_vhost(&shard, spec);
                    true
                }
                None => {
                    self.create_vhost(name, spec, creator)?;
                    false
                }
            }
        };
        self.flushed().await;
        Ok(Outcome::of_existing(existed))
    }

    fn create_vhost(&self, name: &str, spec: VhostSpec, creator: Option<&Actor>) -> Result<(), AdminError> {
        if let Some(limit) = self.config.limits.vhosts
            && self.directory.shards().len() as u64 >= limit
        {
            let text = format!("cannot create vhost '{name}': vhost limit of {limit} is reached");
            return Err(AdminError::Invalid(text));
        }
        let number = self.vhost_number.fetch_add(1, Ordering::Relaxed) + 1;
        let name = Name::from(name);
        let mut vhost = Vhost::new(name.clone(), number);
        vhost.limits = self.config.default_limits_of(&name);
        let broker = new_broker(&self.config, &vhost, &self.node);
        let shard = Arc::new(Shard::new(&vhost, broker, self.clock, self.store.clone()));
        self.change_vhost(&shard, spec);
        tokio::spawn(shard.clone().run_timers());
        self.directory.add(shard.clone());
        if let Some(creator) = creator.and_then(|creator| self.user(&creator.name)) {
            self.replace_permissions(&creator, &shard, Permissions::all());
        }
        tracing::info!(vhost = %name, "vhost created");
        Ok(())
    }

    /// Sets what the spec names, and keeps the vhost's record.
    fn change_vhost(&self, shard: &Shard, spec: VhostSpec) {
        let mut vhost = shard.vhost.write();
        if let Some(description) = spec.description {
            vhost.description = description;
        }
        if let Some(tags) = spec.tags {
            vhost.tags = tags;
        }
        if let Some(default_queue_type) = spec.default_queue_type {
            vhost.default_queue_type = default_queue_type;
        }
        if let Some(limits) = spec.limits {
            vhost.limits = limits;
        }
        if let Some(protected) = spec.protected {
            vhost.protected = protected;
        }
        shard.connections.set_max(effective(vhost.limits.max_connections));
        let configured = self.config.vhosts.get(&*vhost.name).and_then(|options| options.default_queue_type);
        let queue_type = configured.or(vhost.default_queue_type).unwrap_or(self.config.default_queue_type);
        shard.turn(None, |broker, _| {
            broker.set_default_queue_type(queue_type);
            broker.set_queues_max(effective(vhost.limits.max_queues));
            if let Some(tracing) = spec.tracing {
                broker.set_tracing(tracing);
            }
        });
        self.keep(Vhost::key(&vhost.name), vhost.encode());
    }

    /// Sets or clears (`None`) a limit, for what comes.
    ///
    /// # Errors
    /// There is no such vhost.
    pub async fn set_vhost_limit(&self, name: &str, limit: VhostLimit, value: Option<i64>) -> Result<(), AdminError> {
        {
            let _one_at_a_time = self.admin.lock();
            let shard = self.directory.get(name).ok_or_else(|| AdminError::NoVhost(name.to_owned()))?;
            let mut limits = shard.vhost.read().limits;
            *limit.of(&mut limits) = value;
            self.change_vhost(&shard, VhostSpec { limits: Some(limits), ..VhostSpec::default() });
        }
        self.flushed().await;
        Ok(())
    }

    /// Deletes a vhost with all that is in it, and closes its connections. On disk it goes in one commit.
    ///
    /// # Errors
    /// There is none; it is protected.
    pub async fn delete_vhost(&self, name: &str) -> Result<(), AdminError> {
        let (shard, commit) = {
            let _one_at_a_time = self.admin.lock();
            let shard = self.directory.get(name).ok_or(AdminError::Missing("vhost"))?;
            if shard.vhost.read().protected {
                let text = format!("Cannot delete vhost '{name}': it is protected from deletion");
                return Err(AdminError::Protected(text));
            }
            // From here on nobody finds it, and whoever comes in through an older look is turned out.
            self.directory.remove(name);
            shard.close();
            let mut batch = Batch::default();
            let (commit, _) = shard.turn(None, |broker, now| {
                broker.dissolve(&deleted(name), now);
                broker.take_batch(&mut batch)
            });
            self.forget_rights(|_, vhost| &**vhost == name);
            let parameters = self.parameters.write().remove_vhost(name);
            if let Some(store) = &self.store {
                // Of what waited to be written, only what takes things away is of any use now.
                let mut ops = batch.ops;
                ops.retain(|op| matches!(op, Op::Remove { .. } | Op::Drop { .. }));
                ops.extend(parameters.into_iter().map(|key| Op::Remove { key }));
                let name = bytes::Bytes::copy_from_slice(name.as_bytes());
                let key = DefinitionKey { kind: DefinitionKind::Vhost, vhost: Name::from(""), name };
                ops.push(Op::Remove { key });
                store.submit_all(ops);
            }
            (shard, commit)
        };
        self.flushed().await;
        if let Some(commit) = commit {
            shard.stored(commit);
        }
        tracing::info!(vhost = name, "vhost deleted");
        Ok(())
    }
}

/// Why connections of a deleted vhost are closed (§15.2).
pub(in crate::server) fn deleted(vhost: &str) -> String {
    format!("vhost '{vhost}' is deleted")
}
