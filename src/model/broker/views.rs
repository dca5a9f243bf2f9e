//! What management may look at, besides queues and topology.

use super::Broker;
use crate::model::channel::{Channel, Consumer};
use crate::model::connection::Connection;
use crate::model::ids::{ChannelKey, ConnectionKey, Destination, QueueKey};
use crate::model::policy::{Effective, Policy, Target};
use crate::model::queue::Queue;
use crate::model::record::Name;

impl Broker {
    /// Connections of clients, in no particular order.
    pub fn clients(&self) -> impl Iterator<Item = (ConnectionKey, &Connection)> {
        self.connections.iter().filter(|(_, connection)| connection.info.socket.is_some())
    }

    /// An open connection.
    pub fn connection(&self, key: ConnectionKey) -> Option<&Connection> {
        self.connections.get(key)
    }

    /// An open channel.
    pub fn channel(&self, key: ChannelKey) -> Option<&Channel> {
        self.channels.get(key)
    }

    /// Consumers that are registered, in no particular order.
    pub fn consumers(&self) -> impl Iterator<Item = &Consumer> {
        self.consumers.values().filter(|consumer| !consumer.cancelled)
    }

    /// The consumer that alone receives, of a queue with a single active one.
    pub fn active_consumer(&self, queue: &Queue) -> Option<&Consumer> {
        queue.active_consumer.and_then(|key| self.consumers.get(key))
    }

    /// The queue with this key.
    pub fn queue_of(&self, key: QueueKey) -> Option<&Queue> {
        self.queues.get(key)
    }

    /// The name of a binding's end, and whether it is a queue.
    pub fn destination_name(&self, destination: Destination) -> Option<(&Name, bool)> {
        match destination {
            Destination::Queue(key) => self.queues.get(key).map(|queue| (&queue.name, true)),
            Destination::Exchange(key) => self.topology.get(key).map(|exchange| (&exchange.name, false)),
        }
    }

    /// The policy and operator policy that apply to this, and both merged.
    pub fn applied_policies(&self, name: &str, target: Target) -> (Option<&Policy>, Option<&Policy>, Effective) {
        let (policy, operator) = (self.policies.find(name, target), self.operator_policies.find(name, target));
        (policy, operator, Effective::merge(policy, operator))
    }
}
