//! What is in a data folder, found without changing it: what a start would find, read as a start reads it.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::StartError;
use super::clock::Clock;
use super::recovery::Boot;
use crate::config::Config;
use crate::model::ids::{Holder, QueueKey};
use crate::model::queue::Queue;
use crate::model::record::StoredBlock;
use crate::storage::shadow::Shadow;
use crate::storage::sled::SledStore;
use crate::storage::{Fsync, Store, StoreError, StoreOptions};

/// A data folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The broker was stopped, not killed.
    pub is_clean: bool,
    /// Bytes of a last commit that was not whole, which the next start will cut off: nothing of it was confirmed.
    pub torn_bytes: u64,
    /// Files of the log, and their bytes.
    pub log_segments: u64,
    pub log_bytes: u64,
    /// Users, vhosts, queues, bindings and so on.
    pub definitions: u64,
    pub users: u64,
    pub vhosts: Vec<VhostContents>,
    /// What cannot be read, if every message was looked at; empty: all is well.
    pub damage: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VhostContents {
    pub name: String,
    pub exchanges: u64,
    pub bindings: u64,
    pub queues: Vec<QueueContents>,
}

/// A durable queue, or an exchange that delays messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueContents {
    pub name: String,
    /// `classic`, `quorum`, `stream`, or `x-delayed-message` for an exchange.
    pub kind: String,
    pub messages: u64,
    /// Of records and bodies, about.
    pub bytes: u64,
}

/// Looks into the folder; with `verify` at every message.
///
/// # Errors
/// The folder is in use, not ours, or so damaged that a start would refuse it.
pub fn inspect(dir: &Path, verify: bool) -> Result<Contents, StartError> {
    let shadow = Shadow::of(dir)?;
    let config = Config { data_dir: None, definitions: None, ..Config::default() };
    let mut store = SledStore::open(shadow.path(), StoreOptions { fsync: Fsync::Never, ..StoreOptions::default() })?;
    let mut boot = Boot::new(&config, Clock::start());
    let (recovery, blocks) = boot.recover_definitions(&mut store)?;
    let mut contents = Contents {
        is_clean: recovery.clean,
        torn_bytes: recovery.cut_bytes,
        log_segments: shadow.segments().len() as u64,
        log_bytes: shadow.segments().iter().map(|(_, bytes)| bytes).sum(),
        definitions: recovery.definitions,
        users: boot.users.list().count() as u64,
        ..Contents::default()
    };
    let mut kept: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for block in &blocks {
        let (messages, bytes) = kept.entry(block.queue).or_default();
        *messages += u64::from(block.live);
        *bytes += block.bytes;
    }
    for (name, broker) in &boot.brokers {
        let mut vhost = VhostContents {
            name: name.to_string(),
            exchanges: broker.topology().len() as u64,
            bindings: broker.topology().binding_count() as u64,
            queues: Vec::new(),
        };
        let by_key: HashMap<QueueKey, &Queue> =
            broker.queues().filter_map(|queue| Some((broker.queue_key(&queue.name)?, queue))).collect();
        for (id, holder) in broker.stored_holders() {
            let (name, kind) = match holder {
                Holder::Queue(key) => {
                    by_key.get(&key).map(|queue| (queue.name.to_string(), queue.queue_type.as_str().to_owned()))
                }
                Holder::Exchange(key) => {
                    let exchange = broker.topology().get(key);
                    exchange.map(|exchange| (exchange.name.to_string(), exchange.kind.name().to_owned()))
                }
            }
            .unwrap_or_default();
            let (messages, bytes) = kept.remove(&id).unwrap_or_default();
            vhost.queues.push(QueueContents { name, kind, messages, bytes });
        }
        vhost.queues.sort_by(|a, b| a.name.cmp(&b.name));
        contents.vhosts.push(vhost);
    }
    for (queue, (messages, _)) in kept {
        contents.damage.push(format!("{messages} messages are of a queue ({queue}) that has no definition"));
    }
    if verify {
        for block in &blocks {
            contents.damage.extend(unreadable(&mut store, block)?);
        }
    }
    Ok(contents)
}

/// What is wrong with the messages of a block.
fn unreadable(store: &mut SledStore, block: &StoredBlock) -> Result<Option<String>, StoreError> {
    let mut found = 0;
    match store.read_range(block.queue, block.first, block.last, &mut |_| found += 1) {
        Err(error @ StoreError::Damaged { .. }) => {
            let lost = u64::from(block.live).saturating_sub(found);
            Ok(Some(format!("{lost} of the messages {} to {} cannot be read: {error}", block.first, block.last)))
        }
        Err(error) => Err(error),
        Ok(()) if found != u64::from(block.live) => {
            let (live, first, last) = (block.live, block.first, block.last);
            Ok(Some(format!("messages {first} to {last}: {live} should be there, {found} are")))
        }
        Ok(()) => Ok(None),
    }
}
