//! What operators do: every change of users, vhosts, rights, policies, limits and parameters, and of what is in the
//! vhosts. The HTTP API, the command line tools and imported definitions all come through here.
//!
//! Each operation checks first, then changes what is live, then notes it for the store; it returns when the change
//! is on disk. One at a time: `Server::admin` is held while something changes, and never while it waits.

mod contents;
mod messages;
mod parameters;
mod permissions;
mod policies;
mod users;
mod vhosts;

use std::sync::Arc;

pub use self::contents::{BindingEnd, ExchangeSpec, QueueSpec};
pub use self::messages::{AckMode, Got};
pub(super) use self::parameters::Parameters;
pub use self::parameters::{GLOBAL, Parameter};
pub use self::policies::PolicySpec;
pub use self::users::{PasswordSpec, UserLimit, UserSpec};
pub(super) use self::vhosts::deleted;
pub use self::vhosts::{VhostLimit, VhostSpec};

use super::Server;
use super::loopback::{Loopback, NACKED, Refusal};
use crate::auth::User;
use crate::model::record::{DefinitionKey, Op};

/// Who does it, for what their permissions cover.
pub type Actor = Arc<User>;

/// Why an operation changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// The thing itself, of this kind, is not there.
    #[error("no such {0}")]
    Missing(&'static str),
    #[error("vhost '{0}' does not exist")]
    NoVhost(String),
    #[error("user '{0}' does not exist")]
    NoUser(String),
    /// The values cannot be used; RabbitMQ's text.
    #[error("{0}")]
    Invalid(String),
    /// The thing is protected.
    #[error("{0}")]
    Protected(String),
    /// As AMQP says it.
    #[error("{0}")]
    Refused(#[from] Refusal),
    #[error("rejected: Unable to publish message. Check queue limits.")]
    Nacked,
}

/// Whether there was such a thing before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Created,
    Updated,
}

impl Outcome {
    fn of_existing(existed: bool) -> Self {
        if existed { Self::Updated } else { Self::Created }
    }
}

impl Server {
    fn keep(&self, key: DefinitionKey, value: bytes::Bytes) {
        if let Some(store) = &self.store {
            store.submit(Op::Put { key, value });
        }
    }

    fn forget(&self, key: DefinitionKey) {
        if let Some(store) = &self.store {
            store.submit(Op::Remove { key });
        }
    }

    /// Waits until everything that was changed before is on disk.
    pub async fn flushed(&self) {
        if let Some(store) = &self.store {
            store.flushed().await;
        }
    }

    async fn client(&self, vhost: &str, actor: &Actor) -> Result<Loopback, AdminError> {
        let opened = Loopback::open(self, vhost, actor).await;
        Ok(opened.ok_or_else(|| AdminError::NoVhost(vhost.to_owned()))??)
    }
}

/// A publish that a queue refused is not an error of AMQP.
fn publish_error(refusal: Refusal) -> AdminError {
    if refusal.code == NACKED { AdminError::Nacked } else { AdminError::Refused(refusal) }
}
