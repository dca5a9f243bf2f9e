//! What is in a vhost: queues, exchanges, bindings, and connections. All but the last by the rules of AMQP.

use leveret_protocol::{FieldTable, exchange, queue};

use super::{Actor, AdminError, Outcome};
use crate::model::ids::ConnectionKey;
use crate::server::Server;

/// A queue as it is to be.
#[derive(Clone, Debug, Default)]
pub struct QueueSpec {
    pub durable: bool,
    pub auto_delete: bool,
    pub arguments: FieldTable,
}

/// An exchange as it is to be.
#[derive(Clone, Debug)]
pub struct ExchangeSpec {
    pub kind: String,
    pub durable: bool,
    pub auto_delete: bool,
    pub internal: bool,
    pub arguments: FieldTable,
}

/// What a binding leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingEnd<'a> {
    Queue(&'a str),
    Exchange(&'a str),
}

impl Server {
    /// Is there a queue of this name?
    pub fn has_queue(&self, vhost: &str, name: &str) -> bool {
        let shard = self.directory.get(vhost);
        shard.is_some_and(|shard| shard.turn(None, |broker, _| broker.queue(name).is_some()).0)
    }

    /// Is there an exchange of this name?
    pub fn has_exchange(&self, vhost: &str, name: &str) -> bool {
        let shard = self.directory.get(vhost);
        shard.is_some_and(|shard| shard.turn(None, |broker, _| broker.topology().find(name).is_some()).0)
    }

    /// queue.declare.
    ///
    /// # Errors
    /// No such vhost; what AMQP refuses.
    pub async fn declare_queue(
        &self,
        vhost: &str,
        name: &str,
        spec: &QueueSpec,
        actor: &Actor,
    ) -> Result<Outcome, AdminError> {
        let mut client = self.client(vhost, actor).await?;
        let existed = self.has_queue(vhost, name);
        let declare = queue::Declare {
            queue: name,
            passive: false,
            durable: spec.durable,
            exclusive: false,
            auto_delete: spec.auto_delete,
            no_wait: false,
            arguments: spec.arguments.clone(),
        };
        client.call(declare.into()).await?;
        Ok(Outcome::of_existing(existed))
    }

    /// queue.delete. Returns how many ready messages went with it.
    ///
    /// # Errors
    /// No such vhost or queue; what AMQP refuses.
    pub async fn delete_queue(
        &self,
        vhost: &str,
        name: &str,
        if_unused: bool,
        if_empty: bool,
        actor: &Actor,
    ) -> Result<u32, AdminError> {
        let mut client = self.client(vhost, actor).await?;
        if !self.has_queue(vhost, name) {
            return Err(AdminError::Missing("queue"));
        }
        let answer = client.call(queue::Delete { queue: name, if_unused, if_empty, no_wait: false }.into()).await?;
        Ok(match answer.method() {
            leveret_protocol::Method::QueueDeleteOk(ok) => ok.message_count,
            _ => 0,
        })
    }

    /// queue.purge. Returns how many messages went.
    ///
    /// # Errors
    /// No such vhost or queue; what AMQP refuses.
    pub async fn purge_queue(&self, vhost: &str, name: &str, actor: &Actor) -> Result<u32, AdminError> {
        let mut client = self.client(vhost, actor).await?;
        if !self.has_queue(vhost, name) {
            return Err(AdminError::Missing("queue"));
        }
        let answer = client.call(queue::Purge { queue: name, no_wait: false }.into()).await?;
        Ok(match answer.method() {
            leveret_protocol::Method::QueuePurgeOk(ok) => ok.message_count,
            _ => 0,
        })
    }

    /// exchange.declare.
    ///
    /// # Errors
    /// No such vhost; what AMQP refuses.
    pub async fn declare_exchange(
        &self,
        vhost: &str,
        name: &str,
        spec: &ExchangeSpec,
        actor: &Actor,
    ) -> Result<Outcome, AdminError> {
        let mut client = self.client(vhost, actor).await?;
        let existed = self.has_exchange(vhost, name);
        let declare = exchange::Declare {
            exchange: name,
            type_: &spec.kind,
            passive: false,
            durable: spec.durable,
            auto_delete: spec.auto_delete,
            internal: spec.internal,
            no_wait: false,
            arguments: spec.arguments.clone(),
        };
        client.call(declare.into()).await?;
        Ok(Outcome::of_existing(existed))
    }

    /// exchange.delete.
    ///
    /// # Errors
    /// No such vhost or exchange; what AMQP refuses.
    pub async fn delete_exchange(
        &self,
        vhost: &str,
        name: &str,
        if_unused: bool,
        actor: &Actor,
    ) -> Result<(), AdminError> {
        let mut client = self.client(vhost, actor).await?;
        if !self.has_exchange(vhost, name) {
            return Err(AdminError::Missing("exchange"));
        }
        client.call(exchange::Delete { exchange: name, if_unused, no_wait: false }.into()).await?;
        Ok(())
    }

    /// queue.bind or exchange.bind.
    ///
    /// # Errors
    /// No such vhost; what AMQP refuses.
    pub async fn bind(
        &self,
        vhost: &str,
        source: &str,
        destination: BindingEnd<'_>,
        routing_key: &str,
        arguments: FieldTable,
        actor: &Actor,
    ) -> Result<(), AdminError> {
        let mut client = self.client(vhost, actor).await?;
        let no_wait = false;
        let method = match destination {
            BindingEnd::Queue(queue) => queue::Bind { queue, exchange: source, routing_key, no_wait, arguments }.into(),
            BindingEnd::Exchange(destination) => {
                exchange::Bind { destination, source, routing_key, no_wait, arguments }.into()
            }
        };
        client.call(method).await?;
        Ok(())
    }

    /// queue.unbind or exchange.unbind.
    ///
    /// # Errors
    /// No such vhost; what AMQP refuses.
    pub async fn unbind(
        &self,
        vhost: &str,
        source: &str,
        destination: BindingEnd<'_>,
        routing_key: &str,
        arguments: FieldTable,
        actor: &Actor,
    ) -> Result<(), AdminError> {
        let mut client = self.client(vhost, actor).await?;
        let method = match destination {
            BindingEnd::Queue(queue) => queue::Unbind { queue, exchange: source, routing_key, arguments }.into(),
            BindingEnd::Exchange(destination) => {
                exchange::Unbind { destination, source, routing_key, no_wait: false, arguments }.into()
            }
        };
        client.call(method).await?;
        Ok(())
    }

    /// Closes all connections of a user with 320.
    pub fn close_connections_of_user(&self, user: &str, reason: &str) {
        for shard in self.directory.shards() {
            shard.turn(None, |broker, now| broker.force_close_user(user, reason, now));
        }
    }

    /// Closes a client's connection with 320. False if it is gone.
    pub fn close_connection(&self, vhost: &str, connection: ConnectionKey, reason: &str) -> bool {
        let Some(shard) = self.directory.get(vhost) else { return false };
        let (closed, _) = shard.turn(None, |broker, now| {
            let found = broker.connection_info(connection).is_some();
            if found {
                broker.force_close(connection, reason, now);
            }
            found
        });
        closed
    }
}
