//! Definitions at the start, before anybody is served: what the settings name is read, checked and made. A file that
//! is wrong keeps the broker from starting, and nothing of it has reached the store.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use bytes::Bytes;

use super::boot::StartError;
use super::recovery::Boot;
use crate::auth::{Permissions, TopicPermissions, User};
use crate::definitions::{self, DefinitionError, Definitions, VhostDefinition};
use crate::model::quota::effective;
use crate::model::record::{DefinitionKey, Name};
use crate::model::vhost::Vhost;

/// Takes what is to be stored.
type Keep<'a> = &'a dyn Fn(DefinitionKey, Bytes);

impl Boot<'_> {
    /// Imports the file, or every `.json` file of the folder in the order of their names.
    pub(super) fn import_all(&mut self, path: &Path, keep: Keep<'_>) -> Result<(), StartError> {
        let unreadable = |reason| StartError::ReadDefinitions { path: path.display().to_string(), reason };
        for file in files(path).map_err(unreadable)? {
            let text = fs::read_to_string(&file).map_err(unreadable)?;
            let wrong = |error| StartError::Definitions { file: file.display().to_string(), error };
            let definitions = definitions::read(&text).map_err(wrong)?;
            for note in &definitions.notes {
                tracing::warn!("{}: {note}", file.display());
            }
            self.import(&definitions, keep).map_err(wrong)?;
            tracing::info!(
                file = %file.display(),
                users = definitions.users.len(),
                vhosts = definitions.vhosts.len(),
                queues = definitions.contents.values().map(|contents| contents.queues.len()).sum::<usize>(),
                "definitions imported"
            );
        }
        if self.users.list().next().is_none() {
            tracing::warn!("nobody can log in: the definitions have no users, and then no default user is made");
        }
        Ok(())
    }

    fn import(&mut self, definitions: &Definitions, keep: Keep<'_>) -> Result<(), DefinitionError> {
        for user in &definitions.users {
            self.import_user(user, keep);
        }
        for vhost in &definitions.vhosts {
            self.import_vhost(vhost, keep)?;
        }
        for limits in &definitions.vhost_limits {
            let (name, new) = &limits.what;
            let mut vhost = self.vhosts.get(name).cloned().ok_or_else(|| no_vhost(&limits.at, name))?;
            vhost.limits = *new;
            self.set_vhost(vhost, keep);
        }
        for permission in &definitions.permissions {
            self.check_ends(&permission.at, &permission.user, &permission.vhost)?;
            let key = Permissions::key(&permission.user, &permission.vhost);
            keep(key, permission.permissions.encode());
            let key = (permission.user.clone(), permission.vhost.clone());
            self.permissions.insert(key, Arc::new(permission.permissions.clone()));
        }
        for permission in &definitions.topic_permissions {
            self.check_ends(&permission.at, &permission.user, &permission.vhost)?;
            let key = (permission.user.clone(), permission.vhost.clone());
            let mut all = match self.topic_permissions.get(&key) {
                Some(known) => TopicPermissions::clone(&known),
                None => TopicPermissions::new(key.0.clone(), key.1.clone()),
            };
            all.set(permission.exchange.clone(), &permission.write, &permission.read)
                .map_err(|error| DefinitionError::new(permission.at.as_str(), error.to_string()))?;
            keep(TopicPermissions::key(&key.0, &key.1), all.encode());
            self.topic_permissions.insert(key, Arc::new(all));
        }
        for policy in &definitions.policies {
            let broker = self.brokers.get_mut(&policy.vhost).ok_or_else(|| no_vhost(&policy.at, &policy.vhost))?;
            broker.set_policy(policy.policy.clone(), policy.operator, self.now);
        }
        for (vhost, contents) in &definitions.contents {
            let now = self.now;
            let broker = self.brokers.get_mut(vhost).ok_or_else(|| no_vhost(contents.first_place(), vhost))?;
            broker.import(contents, now).map_err(|error| DefinitionError::new(error.at, error.reason))?;
        }
        Ok(())
    }

    fn import_user(&mut self, user: &User, keep: Keep<'_>) {
        keep(User::key(&user.name), user.encode());
        self.users.add(user.clone());
    }

    fn import_vhost(&mut self, new: &VhostDefinition, keep: Keep<'_>) -> Result<(), DefinitionError> {
        if !self.vhosts.contains_key(&new.name) {
            let made = self.make_vhost(&new.name, &new.description, &keep);
            made.map_err(|error| DefinitionError::new(format!("vhost '{}'", new.name), error.to_string()))?;
        }
        let mut vhost = self.vhosts[&new.name].clone();
        vhost.description.clone_from(&new.description);
        vhost.tags.clone_from(&new.tags);
        vhost.default_queue_type = new.default_queue_type;
        vhost.limits = new.limits.unwrap_or(vhost.limits);
        self.set_vhost(vhost, keep);
        Ok(())
    }

    fn set_vhost(&mut self, vhost: Vhost, keep: Keep<'_>) {
        keep(Vhost::key(&vhost.name), vhost.encode());
        if let Some(broker) = self.brokers.get_mut(&vhost.name) {
            let options = self.config.vhosts.get(&*vhost.name).copied().unwrap_or_default();
            let queue_type = options.default_queue_type.or(vhost.default_queue_type);
            broker.set_queues_max(effective(vhost.limits.max_queues));
            broker.set_default_queue_type(queue_type.unwrap_or(self.config.default_queue_type));
        }
        self.vhosts.insert(vhost.name.clone(), vhost);
    }

    fn check_ends(&self, at: &str, user: &Name, vhost: &Name) -> Result<(), DefinitionError> {
        if self.users.get(user).is_none() {
            return Err(DefinitionError::new(at, format!("there is no user '{user}'")));
        }
        if self.vhosts.contains_key(vhost) { Ok(()) } else { Err(no_vhost(at, vhost)) }
    }
}

fn no_vhost(at: &str, vhost: &str) -> DefinitionError {
    DefinitionError::new(at, format!("there is no vhost '{vhost}'"))
}

/// The file, or those of the folder.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
    let mut found: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    found.retain(|path| path.extension().is_some_and(|end| end == "json"));
    found.sort();
    Ok(found)
}
