//! How many channels, queues and exchanges there may be (§14.4). Consumers per channel are checked in `consume`.

use super::Broker;
use crate::model::error::{AmqpError, Resource};
use crate::model::ids::ConnectionKey;
use crate::model::quota::{NodeQuotas, Permit, Share};
use crate::model::record::Name;

/// What this vhost has of what the whole node counts.
#[derive(Debug)]
pub(super) struct Shares {
    queues: Share,
    exchanges: Share,
}

impl Shares {
    pub fn new(node: &NodeQuotas) -> Self {
        Self { queues: Share::new(&node.queues), exchanges: Share::new(&node.exchanges) }
    }
}

impl Broker {
    /// Tells the node's counts what there is now. Once per turn, and before a look at a limit.
    #[inline]
    pub(super) fn update_shares(&mut self) {
        self.shares.queues.set(self.queues.len());
        self.shares.exchanges.set(self.topology.len());
    }

    /// §5.2 step 8, for a queue that is not there yet: the vhost's limit, then the node's.
    pub(super) fn check_queue_limits(&mut self, queue: &Name) -> Result<(), AmqpError> {
        if let Some(limit) = self.settings.queues_max
            && self.queues.len() as u64 >= limit
        {
            return Err(AmqpError::QueueLimit { queue: queue.to_string(), vhost: self.vhost.clone(), limit });
        }
        self.update_shares();
        match self.shares.queues.reached() {
            Some(limit) => Err(AmqpError::NodeQueueLimit { queue: queue.to_string(), limit }),
            None => Ok(()),
        }
    }

    /// §4.2 step 8, for an exchange that is not there yet. The predeclared ones count too.
    pub(super) fn check_exchange_limit(&mut self, exchange: &Resource) -> Result<(), AmqpError> {
        self.update_shares();
        match self.shares.exchanges.reached() {
            Some(limit) => Err(AmqpError::ExchangeLimit { exchange: exchange.clone(), limit }),
            None => Ok(()),
        }
    }

    /// May this connection have one more channel (§3.11)? Its own limit first, its user's, then the node's.
    pub(super) fn admit_channel(&self, connection: ConnectionKey) -> Result<[Permit; 2], AmqpError> {
        let state = &self.connections[connection];
        let (open, max) = (state.channels.len(), state.info.channel_max);
        if max != 0 && open >= usize::from(max) {
            return Err(AmqpError::TooManyChannels { open, max });
        }
        let user = state.info.channel_quota.take();
        let user = user.map_err(|limit| AmqpError::UserChannelLimit { user: state.info.user.name.clone(), limit })?;
        let node = self.settings.node.channels.take();
        let node = node.map_err(|limit| AmqpError::NodeChannelLimit { limit })?;
        Ok([user, node])
    }
}

#[cfg(test)]
mod tests {
    use leveret_protocol::{Event, FieldTable, FieldValue, channel, exchange, queue};

    use crate::model::broker::Settings;
    use crate::model::broker::testing::{Rig, Sent};
    use crate::model::quota::{NodeQuotas, Quota};

    fn declare(queue: &str) -> queue::Declare<'_> {
        queue::Declare {
            queue,
            passive: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            no_wait: false,
            arguments: FieldTable::new(),
        }
    }

    fn declare_exchange(exchange: &str) -> exchange::Declare<'_> {
        exchange::Declare {
            exchange,
            type_: "fanout",
            passive: false,
            durable: true,
            auto_delete: false,
            internal: false,
            no_wait: false,
            arguments: FieldTable::new(),
        }
    }

    /// Nothing is kept, so no answer waits for a disk.
    fn in_memory() -> Settings {
        Settings { persistent: false, ..Settings::default() }
    }

    #[track_caller]
    fn expect(sent: &[Sent], text: &str) {
        assert!(matches!(sent, [Sent::Method(method)] if method.contains(text)), "{sent:?}");
    }

    #[test]
    fn s5_2_the_queue_limit_of_the_vhost_comes_before_the_one_of_the_node() {
        let node = NodeQuotas { queues: Quota::new(Some(1)), ..NodeQuotas::default() };
        let mut rig = Rig::new(Settings { queues_max: Some(1), node, ..in_memory() });
        expect(&rig.send(declare("a").into()), "DeclareOk");
        expect(&rig.send(declare("a").into()), "DeclareOk");
        expect(&rig.send(declare("b").into()), "cannot declare queue 'b': queue limit in vhost '/' (1) is reached");
    }

    #[test]
    fn s5_2_the_queue_limit_of_the_node_counts_all_vhosts_and_forgets_deleted_queues() {
        let node = NodeQuotas { queues: Quota::new(Some(2)), ..NodeQuotas::default() };
        let settings = Settings { node: node.clone(), ..in_memory() };
        let (mut one, mut other) = (Rig::new(settings.clone()), Rig::new(settings));
        expect(&one.send(declare("a").into()), "DeclareOk");
        expect(&other.send(declare("b").into()), "DeclareOk");
        expect(&other.send(declare("c").into()), "cannot declare queue 'c': queue limit in cluster (2) is reached");
        let delete = queue::Delete { queue: "a", if_unused: false, if_empty: false, no_wait: false };
        expect(&one.send(delete.into()), "DeleteOk");
        assert_eq!(node.queues.used(), 1);
        drop(other);
        assert_eq!(node.queues.used(), 0);
    }

    #[test]
    fn s4_2_the_exchange_limit_counts_the_predeclared_and_lets_redeclares_pass() {
        let node = NodeQuotas { exchanges: Quota::new(Some(8)), ..NodeQuotas::default() };
        let mut rig = Rig::new(Settings { node, ..in_memory() });
        expect(&rig.send(declare_exchange("a").into()), "DeclareOk");
        expect(&rig.send(declare_exchange("a").into()), "DeclareOk");
        let text = "PRECONDITION_FAILED - cannot declare exchange 'b' in vhost '/': exchange limit of 8 is reached";
        expect(&rig.send(declare_exchange("b").into()), text);
    }

    /// All of it seen on RabbitMQ 4.0.5 and 4.3.6.
    #[test]
    fn s5_3_a_quorum_queue_may_be_redeclared_as_a_classic_one_where_checks_are_relaxed() {
        let quorum = FieldTable::from_iter([
            ("x-queue-type", FieldValue::from("quorum")),
            ("x-max-length", 5.into()),
            ("x-delivery-limit", 9.into()),
        ]);
        let with = |name: &str, value: FieldValue| {
            let mut table = FieldTable::from_iter([("x-max-length", FieldValue::from(5))]);
            table.insert(name, value);
            table
        };
        let start = |relaxed_quorum_redeclare| {
            let mut rig = Rig::new(Settings { relaxed_quorum_redeclare, ..in_memory() });
            rig.declare("q", quorum.clone());
            move |change: &dyn Fn(&mut queue::Declare<'static>), arguments: FieldTable| {
                let mut again = queue::Declare { arguments, ..declare("q") };
                change(&mut again);
                format!("{:?}", rig.send(again.into()))
            }
        };
        let unchanged = |_: &mut queue::Declare<'static>| {};
        let mut strict = start(false);
        assert!(strict(&unchanged, with("x-overflow", "drop-head".into())).contains("inequivalent arg"));
        let mut relaxed = start(true);
        for (name, value) in
            [("x-queue-type", "classic".into()), ("x-max-priority", 3.into()), ("x-queue-mode", "lazy".into())]
        {
            assert!(relaxed(&unchanged, with(name, value)).contains("DeclareOk"), "{name}");
        }
        let flags = |declare: &mut queue::Declare<'static>| {
            (declare.durable, declare.auto_delete, declare.exclusive) = (false, true, true);
        };
        assert!(relaxed(&flags, with("x-queue-type", "classic".into())).contains("DeclareOk"));
    }

    #[test]
    fn s5_3_relaxed_checks_still_compare_what_both_types_know() {
        let settings = Settings { relaxed_quorum_redeclare: true, ..Settings::default() };
        for (name, value) in [
            ("x-expires", FieldValue::from(1)),
            ("x-message-ttl", 1.into()),
            ("x-dead-letter-exchange", "x".into()),
            ("x-max-length", 1.into()),
            ("x-max-length-bytes", 1.into()),
            ("x-single-active-consumer", true.into()),
        ] {
            let mut rig = Rig::new(settings.clone());
            rig.declare("q", FieldTable::from_iter([("x-queue-type", FieldValue::from("quorum"))]));
            let arguments = FieldTable::from_iter([(name, value)]);
            let sent = rig.send(queue::Declare { arguments, ..declare("q") }.into());
            expect(&sent, &format!("inequivalent arg '{name}' for queue 'q' in vhost '/'"));
        }
        let mut rig = Rig::new(settings);
        rig.declare("q", FieldTable::new());
        let arguments = FieldTable::from_iter([("x-queue-type", FieldValue::from("quorum"))]);
        let text =
            "inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received 'quorum' but current is 'classic'";
        expect(&rig.send(queue::Declare { arguments, ..declare("q") }.into()), text);
    }

    #[test]
    fn s3_11_channels_of_a_user_and_of_the_node_are_counted_until_they_close() {
        let channels = Quota::new(Some(2));
        let node = NodeQuotas { channels: channels.clone(), ..NodeQuotas::default() };
        let mut rig = Rig::new(Settings { node, ..Settings::default() });
        let user = rig.broker.connections[rig.connection].info.channel_quota.clone();
        assert_eq!((user.used(), channels.used()), (1, 1));
        let event = |channel| Event::Method { channel, method: channel::Open {}.into() };
        rig.broker.client(rig.connection, event(2), 0);
        expect(&rig.take(), "OpenOk");
        assert_eq!((user.used(), channels.used()), (2, 2));
        let close = channel::Close { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 };
        expect(&rig.send(close.into()), "CloseOk");
        assert_eq!((user.used(), channels.used()), (1, 1));
        rig.broker.client(rig.connection, event(1), 0);
        expect(&rig.take(), "OpenOk");
        rig.broker.client(rig.connection, event(3), 0);
        expect(
            &rig.take(),
            "number of channels opened on node 'leveret@localhost' has reached the maximum allowed limit of 2",
        );
        assert_eq!((user.used(), channels.used()), (0, 0), "a closed connection holds none");
    }

    #[test]
    fn s3_11_the_limit_of_the_user_comes_before_the_one_of_the_node() {
        let node = NodeQuotas { channels: Quota::new(Some(1)), ..NodeQuotas::default() };
        let mut rig = Rig::new(Settings { node, ..Settings::default() });
        rig.broker.connections[rig.connection].info.channel_quota.set_max(Some(1));
        rig.broker.client(rig.connection, Event::Method { channel: 2, method: channel::Open {}.into() }, 0);
        let text =
            "NOT_ALLOWED - number of channels opened for user 'guest' has reached the maximum allowed user limit of 1";
        let sent = rig.take();
        expect(&sent, text);
        expect(&sent, "class_id: 0, method_id: 0");
    }
}
