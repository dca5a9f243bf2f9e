//! What operators change of a whole vhost.

use super::Broker;
use crate::model::connection::ConnectionInfo;
use crate::model::ids::{ConnectionKey, ExchangeKey, QueueKey};
use crate::model::timer::Millis;

impl Broker {
    /// Is the firehose on?
    pub fn is_tracing(&self) -> bool {
        self.tracing
    }

    /// Who an open connection is.
    pub fn connection_info(&self, connection: ConnectionKey) -> Option<&ConnectionInfo> {
        self.connections.get(connection).map(|connection| &connection.info)
    }

    /// No client may stay: the vhost or the node ends.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// The vhost is deleted: connections close, and everything in it goes, from the store too.
    /// What is to be removed there is in the next [`Broker::take_batch`].
    pub fn dissolve(&mut self, reason: &str, now: Millis) {
        self.begin_stop(reason, now);
        for key in self.queues.keys().collect::<Vec<QueueKey>>() {
            self.delete_queue(key);
        }
        for key in self.topology.iter().map(|(key, _)| key).collect::<Vec<ExchangeKey>>() {
            let removed = self.topology.remove_exchange(key);
            self.forget(removed, None);
        }
        for operator in [false, true] {
            let names: Vec<_> = self.policies(operator).map(|policy| policy.name.clone()).collect();
            for name in names {
                self.clear_policy(&name, operator, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use leveret_protocol::FieldTable;

    use super::super::Settings;
    use super::super::testing::Rig;
    use crate::model::record::{Batch, Op};

    #[test]
    fn s15_2_a_dissolved_vhost_leaves_nothing_in_the_store() {
        let mut rig = Rig::new(Settings::default());
        rig.declare("q", FieldTable::new());
        rig.publish("", "q", "m");
        let mut batch = Batch::default();
        let commit = rig.broker.take_batch(&mut batch).unwrap();
        rig.broker.stored(commit);
        let mut kept: Vec<_> = batch.ops.iter().filter_map(put).collect();
        assert!(!kept.is_empty());
        batch.clear();
        rig.broker.dissolve("vhost '/' is deleted", rig.now);
        rig.broker.take_batch(&mut batch).unwrap();
        kept.retain(|kept| !batch.ops.iter().any(|op| matches!(op, Op::Remove { key } if key == kept)));
        assert_eq!(kept, []);
        assert!(batch.ops.iter().any(|op| matches!(op, Op::Drop { .. })));
        assert!(rig.broker.is_stopping() && rig.broker.queues().next().is_none());
    }

    fn put(op: &Op) -> Option<crate::model::record::DefinitionKey> {
        match op {
            Op::Put { key, .. } => Some(key.clone()),
            _ => None,
        }
    }
}
