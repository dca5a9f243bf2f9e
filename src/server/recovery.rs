//! From what the store holds, or from nothing, to brokers that can be put into service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dashmap::DashMap;

use super::admin::Parameters;
use super::boot::StartError;
use super::clock::Clock;
use super::shard::Shard;
use super::store_thread::StoreSignal;
use super::{ByUserAndVhost, Directory, random};
use crate::auth::{PasswordHash, Pattern, Permissions, TopicPermissions, User, UserDirectory, UserLimits};
use crate::config::Config;
use crate::model::broker::{Broker, PagingSettings, Settings};
use crate::model::ids::Holder;
use crate::model::quota::{NodeQuotas, Quota, effective};
use crate::model::record::{DefinitionKey, DefinitionKind, Name, Op, Recovered, StoredBlock};
use crate::model::timer::Millis;
use crate::model::vhost::Vhost;
use crate::storage::{Recovery, Store};

/// A recovery that takes longer says how far it is.
const PROGRESS_AFTER: Duration = Duration::from_secs(1);

/// A queue with less than this is in memory as a whole at the start, if there is room.
const SMALL_QUEUE: u64 = 1 << 20;
/// So much of a longer one.
const HEAD_BYTES: u64 = 256 << 10;

/// What is known so far of a broker that is starting.
pub(super) struct Boot<'a> {
    pub(super) config: &'a Config,
    clock: Clock,
    pub(super) now: Millis,
    pub(super) users: UserDirectory,
    pub(super) permissions: ByUserAndVhost<Permissions>,
    pub(super) topic_permissions: ByUserAndVhost<TopicPermissions>,
    pub(super) brokers: BTreeMap<Name, Broker>,
    pub(super) vhosts: BTreeMap<Name, Vhost>,
    parameters: Parameters,
    /// Counts over all vhosts.
    node: NodeQuotas,
    /// Number of the last vhost: each has its own range of queue ids in the store.
    vhost_number: u64,
}

/// What a server begins with, besides its vhosts.
pub(super) struct Restored {
    pub users: UserDirectory,
    pub permissions: ByUserAndVhost<Permissions>,
    pub topic_permissions: ByUserAndVhost<TopicPermissions>,
    pub parameters: Parameters,
    pub node: NodeQuotas,
    /// Number of the last vhost.
    pub vhost_number: u64,
}

/// Queue ids of one vhost: 2^40 of them.
const QUEUE_ID_BITS: u32 = 40;

impl<'a> Boot<'a> {
    pub(super) fn new(config: &'a Config, clock: Clock) -> Self {
        Self {
            config,
            clock,
            now: clock.now(),
            users: UserDirectory::new(),
            permissions: DashMap::new(),
            topic_permissions: DashMap::new(),
            brokers: BTreeMap::new(),
            vhosts: BTreeMap::new(),
            parameters: Parameters::default(),
            node: NodeQuotas {
                channels: Quota::new(config.limits.channels),
                queues: Quota::new(config.limits.queues),
                exchanges: Quota::new(config.limits.exchanges),
                ..NodeQuotas::default()
            },
            vhost_number: 0,
        }
    }

    /// Everything but the messages; where those are.
    pub(super) fn recover_definitions(
        &mut self,
        store: &mut dyn Store,
    ) -> Result<(Recovery, Vec<StoredBlock>), StartError> {
        let mut failure = None;
        let mut blocks = Vec::new();
        let mut definition = |item| {
            if let (Recovered::Definition { key, value }, None) = (item, &failure) {
                failure = self.recover_definition(&key, &value).err();
            }
        };
        let recovery = store.recover_blocks(&mut definition, &mut |block| blocks.push(block))?;
        failure.map_or(Ok((recovery, blocks)), Err)
    }

    pub(super) fn recover(&mut self, store: &mut dyn Store) -> Result<(), StartError> {
        let started = Instant::now();
        let (recovery, blocks) = self.recover_definitions(store)?;
        self.add_policies();
        for broker in self.brokers.values_mut() {
            broker.definitions_recovered(recovery.clean, recovery.next_sequence, self.now);
        }
        self.recover_messages(store, blocks, Progress { said: started, messages: 0 })?;
        store.recovery_done();
        for broker in self.brokers.values_mut() {
            broker.skip_sequences(recovery.next_sequence);
        }
        if recovery.definitions > 0 {
            tracing::info!(
                definitions = recovery.definitions,
                messages = recovery.messages,
                clean_stop = recovery.clean,
                cut_bytes = recovery.cut_bytes,
                took_ms = started.elapsed().as_millis() as u64,
                "data folder recovered"
            );
        }
        Ok(())
    }

    /// Gives every queue its messages: those that are needed first in memory, as far as the budget allows, of the
    /// others only where they are.
    fn recover_messages(
        &mut self,
        store: &mut dyn Store,
        blocks: Vec<StoredBlock>,
        mut progress: Progress,
    ) -> Result<(), StartError> {
        let holders = self.stored_holders();
        let mut room = self.config.queue_memory / 2;
        for blocks in blocks.chunk_by(|a, b| a.queue == b.queue) {
            let queue = blocks[0].queue;
            let bytes: u64 = blocks.iter().map(|block| block.bytes).sum();
            let Some((vhost, holder)) = holders.get(&queue) else {
                return Err(StartError::Message { queue, seq: blocks[0].first });
            };
            let broker = self.brokers.get_mut(vhost).expect("a holder's vhost is there");
            let all = broker.needs_messages(*holder);
            // A small queue is here as a whole, of a large one its beginning.
            let mut here = if bytes <= SMALL_QUEUE { SMALL_QUEUE } else { HEAD_BYTES };
            for block in blocks {
                if !all && (here == 0 || room < block.bytes) {
                    if !broker.recover_block(*holder, block.clone()) {
                        return Err(StartError::Message { queue, seq: block.first });
                    }
                    progress.count(block.live.into());
                    here = 0;
                    continue;
                }
                let mut failed = None;
                store.read_range(queue, block.first, block.last, &mut |item| {
                    let Recovered::Message { seq, record, body, delivered, .. } = item else { return };
                    if !broker.recover_message(*holder, seq, &record, body, delivered) {
                        failed = failed.or(Some(seq));
                    }
                    progress.count(1);
                })?;
                if let Some(seq) = failed {
                    return Err(StartError::Message { queue, seq });
                }
                here = here.saturating_sub(block.bytes);
                if all {
                    broker.keep_within_budget(self.now);
                } else {
                    room -= block.bytes;
                }
            }
        }
        Ok(())
    }

    fn recover_definition(&mut self, key: &DefinitionKey, value: &Bytes) -> Result<(), StartError> {
        let name = String::from_utf8_lossy(&key.name).into_owned();
        let record = |reason: String| StartError::Record { kind: key.kind, name: name.clone(), reason };
        match key.kind {
            DefinitionKind::Vhost => {
                let vhost =
                    Vhost::decode(Name::from(name.as_str()), value).map_err(|error| record(error.to_string()))?;
                self.add_vhost(vhost);
            }
            DefinitionKind::User => {
                let user = User::decode(Name::from(name.as_str()), value).map_err(|error| record(error.to_string()))?;
                self.users.add(user);
            }
            DefinitionKind::Permission => {
                let permissions = Permissions::decode(value).map_err(|error| record(error.to_string()))?;
                self.permissions.insert((Name::from(name.as_str()), key.vhost.clone()), Arc::new(permissions));
            }
            DefinitionKind::TopicPermission => {
                let (user, vhost) = (Name::from(name.as_str()), key.vhost.clone());
                let permissions = TopicPermissions::decode(user.clone(), vhost.clone(), value)
                    .map_err(|error| record(error.to_string()))?;
                self.topic_permissions.insert((user, vhost), Arc::new(permissions));
            }
            DefinitionKind::Parameter => self.parameters.recover(key, value).map_err(record)?,
            _ => match self.brokers.get_mut(&key.vhost) {
                Some(broker) => broker.recover_definition(key, value, self.now)?,
                None => return Err(record(format!("its vhost '{}' is missing", key.vhost))),
            },
        }
        Ok(())
    }

    fn stored_holders(&self) -> BTreeMap<u64, (Name, Holder)> {
        let all = self.brokers.iter();
        all.flat_map(|(vhost, broker)| broker.stored_holders().map(|(id, key)| (id, (vhost.clone(), key)))).collect()
    }

    fn add_vhost(&mut self, vhost: Vhost) {
        self.vhost_number = self.vhost_number.max(vhost.number);
        let broker = new_broker(self.config, &vhost, &self.node);
        self.brokers.insert(vhost.name.clone(), broker);
        self.vhosts.insert(vhost.name.clone(), vhost);
    }

    /// Makes what an empty folder lacks, and puts the vhosts into service.
    pub(super) fn finish(
        mut self,
        directory: &Directory,
        signal: Option<&Arc<StoreSignal>>,
    ) -> Result<Restored, StartError> {
        let keep = |key: DefinitionKey, value: Bytes| {
            if let Some(signal) = signal {
                signal.submit(Op::Put { key, value });
            }
        };
        match &self.config.definitions {
            // They bring the users and vhosts of an empty folder (management reference 4.4).
            Some(path) => self.import_all(path, &keep)?,
            None if self.brokers.is_empty() => self.make_defaults(&keep)?,
            None => {}
        }
        self.make_named_vhosts(&keep)?;
        self.add_policies();
        for policy in &self.config.policies {
            if !self.brokers.contains_key(policy.vhost.as_str()) {
                tracing::warn!(vhost = %policy.vhost, policy = %policy.policy.name, "policy ignored: no such vhost");
            }
        }
        for (name, mut broker) in std::mem::take(&mut self.brokers) {
            broker.recovered(self.now);
            let vhost = self.vhosts.remove(&name).expect("each broker has its vhost");
            directory.add(Arc::new(Shard::new(&vhost, broker, self.clock, signal.cloned())));
        }
        Ok(Restored {
            users: self.users,
            permissions: self.permissions,
            topic_permissions: self.topic_permissions,
            parameters: self.parameters,
            node: self.node,
            vhost_number: self.vhost_number,
        })
    }

    /// Gives the vhosts that there are the policies of the settings file.
    fn add_policies(&mut self) {
        for policy in &self.config.policies {
            if let Some(broker) = self.brokers.get_mut(policy.vhost.as_str()) {
                broker.add_configured_policy(policy.policy.clone(), policy.operator);
            }
        }
    }

    fn make_defaults(&mut self, keep: &impl Fn(DefinitionKey, Bytes)) -> Result<(), StartError> {
        let config = self.config;
        let vhost = self.make_vhost(&config.default_vhost, "Default virtual host", keep)?;
        let mut salt = [0; 4];
        random(&mut salt);
        let user = User {
            name: Name::from(config.default_user.as_str()),
            password: Some(PasswordHash::new(salt, config.default_pass.expose())),
            tags: config.default_user_tags.clone(),
            limits: UserLimits::default(),
        };
        keep(User::key(&user.name), user.encode());
        self.permit(user.name.clone(), vhost, config.default_permissions.clone(), keep);
        self.users.add(user);
        Ok(())
    }

    /// The vhosts that the settings name and the folder lacks. The default user may do anything there.
    fn make_named_vhosts(&mut self, keep: &impl Fn(DefinitionKey, Bytes)) -> Result<(), StartError> {
        let config = self.config;
        for name in config.vhosts.keys() {
            if self.brokers.contains_key(name.as_str()) {
                continue;
            }
            let vhost = self.make_vhost(name, "", keep)?;
            tracing::info!(%vhost, "vhost created, because the settings name it");
            match self.users.get(&config.default_user) {
                Some(user) => {
                    let all = || Pattern::new(".*").expect("a valid pattern");
                    let permissions = Permissions { configure: all(), write: all(), read: all() };
                    self.permit(user.name.clone(), vhost, permissions, keep);
                }
                None => tracing::warn!(%vhost, "nobody may enter the new vhost: there is no default user"),
            }
        }
        Ok(())
    }

    pub(super) fn make_vhost(
        &mut self,
        name: &str,
        description: &str,
        keep: &impl Fn(DefinitionKey, Bytes),
    ) -> Result<Name, StartError> {
        let config = self.config;
        if let Some(limit) = config.limits.vhosts
            && self.brokers.len() as u64 >= limit
        {
            return Err(StartError::TooManyVhosts { vhost: name.to_owned(), limit });
        }
        let name = Name::from(name);
        let vhost = Vhost {
            description: description.to_owned(),
            limits: config.default_limits_of(&name),
            ..Vhost::new(name.clone(), self.vhost_number + 1)
        };
        keep(Vhost::key(&name), vhost.encode());
        self.add_vhost(vhost);
        Ok(name)
    }

    fn permit(&self, user: Name, vhost: Name, permissions: Permissions, keep: &impl Fn(DefinitionKey, Bytes)) {
        keep(Permissions::key(&user, &vhost), permissions.encode());
        self.permissions.insert((user, vhost), Arc::new(permissions));
    }
}

/// The broker of a vhost, with nothing in it yet.
pub(super) fn new_broker(config: &Config, vhost: &Vhost, node: &NodeQuotas) -> Broker {
    let mut seed = [0; 32];
    random(&mut seed);
    Broker::new(vhost.name.clone(), settings(config, vhost, node), vhost.number << QUEUE_ID_BITS, seed)
}

/// What the broker of a vhost is told: what is set for this vhost alone, else what it has stored, else what is
/// set for the node.
fn settings(config: &Config, vhost: &Vhost, node: &NodeQuotas) -> Settings {
    let options = config.vhosts.get(&*vhost.name).copied().unwrap_or_default();
    let queue_type = options.default_queue_type.or(vhost.default_queue_type);
    Settings {
        profile: options.profile.or(vhost.profile).unwrap_or(config.profile),
        lint_against: config.compat_lint,
        consumer_timeout_ms: config.consumer_timeout.map(|timeout| timeout.as_millis() as u64),
        max_message_size: config.max_message_size,
        consumers_per_channel_max: config.limits.consumers_per_channel,
        persistent: config.data_dir.is_some(),
        default_queue_type: queue_type.unwrap_or(config.default_queue_type),
        queues_max: effective(vhost.limits.max_queues),
        relaxed_quorum_redeclare: config.relaxed_quorum_redeclare,
        paging: config.data_dir.as_ref().map(|_| PagingSettings::with_budget(config.queue_memory as usize)),
        node: node.clone(),
    }
}

/// Says how far a long recovery is.
struct Progress {
    said: Instant,
    messages: u64,
}

impl Progress {
    fn count(&mut self, messages: u64) {
        let before = self.messages;
        self.messages += messages;
        // A look at the clock per message would cost more than the message.
        if before / 4096 != self.messages / 4096 && self.said.elapsed() > PROGRESS_AFTER {
            self.said = Instant::now();
            tracing::info!(messages = self.messages, "recovering");
        }
    }
}
