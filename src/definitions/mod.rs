//! Definitions: users, vhosts, permissions, policies, exchanges, queues and bindings as RabbitMQ's tools write them
//! in JSON (management reference 1.11). Files of RabbitMQ 3.x and 4.x are read as they are.
//!
//! Reading checks all that can be checked without a broker, and says where in the file something is wrong. Pure: no
//! file, no lock, no broker; who imports does it with what is read here.

mod cursor;
mod json;
mod read;
mod write;

use std::collections::BTreeMap;

pub use self::json::{from_json, to_json, to_json_table};
pub use self::read::{read, read_vhost};
pub use self::write::{
    Description, binding_json, exchange_json, limits_json, policy_json, queue_json, user_json, vhost_json,
};
use crate::auth::{Permissions, User};
use crate::model::arguments::QueueType;
use crate::model::broker::Contents;
use crate::model::policy::Policy;
use crate::model::record::Name;
use crate::model::vhost::VhostLimits;

/// What a file defines, checked, in the order in which it is to be made.
#[derive(Clone, Debug, Default)]
pub struct Definitions {
    pub users: Vec<User>,
    pub vhosts: Vec<VhostDefinition>,
    pub permissions: Vec<PermissionDefinition>,
    pub topic_permissions: Vec<TopicPermissionDefinition>,
    pub policies: Vec<PolicyDefinition>,
    /// By vhost.
    pub vhost_limits: Vec<Located<(Name, VhostLimits)>>,
    /// By vhost.
    pub contents: BTreeMap<Name, Contents>,
    /// What the file says and nobody acts on, a line each.
    pub notes: Vec<String>,
}

/// Something with its place in the file, such as `$.permissions[3]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located<T> {
    pub at: String,
    pub what: T,
}

/// A vhost with what is set for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostDefinition {
    pub name: Name,
    pub description: String,
    pub tags: Vec<String>,
    pub default_queue_type: Option<QueueType>,
    /// The limits, if the file names any.
    pub limits: Option<VhostLimits>,
}

/// The rights of a user in a vhost.
#[derive(Clone, Debug)]
pub struct PermissionDefinition {
    pub at: String,
    pub user: Name,
    pub vhost: Name,
    pub permissions: Permissions,
}

/// The rights of a user on a topic exchange, by routing key.
#[derive(Clone, Debug)]
pub struct TopicPermissionDefinition {
    pub at: String,
    pub user: Name,
    pub vhost: Name,
    pub exchange: Name,
    pub write: String,
    pub read: String,
}

/// A policy, or an operator's.
#[derive(Clone, Debug)]
pub struct PolicyDefinition {
    pub at: String,
    pub vhost: Name,
    pub operator: bool,
    pub policy: Policy,
}

/// What is wrong with a file of definitions, and where. Nothing of it is imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {reason}")]
pub struct DefinitionError {
    /// A path in the JSON: `$.queues[3].name`.
    pub at: String,
    pub reason: String,
}

impl DefinitionError {
    pub fn new(at: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { at: at.into(), reason: reason.into() }
    }
}

#[cfg(test)]
mod tests;
