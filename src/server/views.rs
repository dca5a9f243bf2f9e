//! Looking at what is live, for management: exact, at the moment of the look.

use super::Server;
use crate::model::broker::Broker;
use crate::model::ids::ConnectionKey;
use crate::model::record::Name;

impl Server {
    /// Looks at a vhost's broker, which waits meanwhile: be short. `None`: there is no such vhost.
    pub fn look<T>(&self, vhost: &str, look: impl FnOnce(&Broker) -> T) -> Option<T> {
        self.directory.get(vhost).map(|shard| shard.look(look))
    }

    /// The client's connection of this name; its spaces may be left out.
    pub fn find_connection(&self, name: &str) -> Option<(Name, ConnectionKey)> {
        self.directory.shards().iter().find_map(|shard| {
            let key = shard.look(|broker| {
                let is_it = |own: &str| own == name || own.replace(' ', "") == name;
                broker.clients().find(|(_, connection)| is_it(&connection.info.name)).map(|(key, _)| key)
            });
            key.map(|key| (shard.name.clone(), key))
        })
    }
}
