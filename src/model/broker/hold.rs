//! Answers that promise something durable wait for the disk, as confirms do.
//!
//! A queue that was declared, an exchange, a binding, a deletion, a purge: once its -ok is read, a crash does not
//! undo it. (RabbitMQ answers a declare after its metadata store has it.) All of the connection waits behind such
//! an answer, not its channel alone: so everything stays in order, and it is for one sync of the disk only.
//! Heartbeats go ahead, since a disk may fail for longer.

use leveret_protocol::Method;

use super::Broker;
use crate::model::connection::Out;
use crate::model::ids::ChannelKey;

impl Broker {
    /// Answers what changed definitions, or relies on them: once they are on disk as they are now.
    pub(super) fn reply_when_defined(&mut self, channel: ChannelKey, method: &Method<'_>) {
        self.hold_until(channel, self.pending.defined());
        self.reply(channel, method);
    }

    /// Answers what settled messages: once that is on disk.
    pub(super) fn reply_when_settled(&mut self, channel: ChannelKey, method: &Method<'_>) {
        if !self.pending.is_empty() {
            self.hold_until(channel, self.pending.commit());
        }
        self.reply(channel, method);
    }

    /// Nothing more is sent to the connection of the channel before `commit` is on disk.
    fn hold_until(&mut self, channel: ChannelKey, commit: u64) {
        if commit <= self.stored || !self.settings.persistent {
            return;
        }
        self.flush_confirms(channel);
        let key = self.channels[channel].connection;
        let connection = &mut self.connections[key];
        if connection.held_until < commit {
            connection.held_until = commit;
            connection.outbox.push_back(Out::Hold(commit));
            self.held.push_back((commit, key));
        }
    }

    /// Wakes the connections whose answers may go, since `stored` has come this far.
    pub(super) fn release_held(&mut self) {
        while let Some(&(_, connection)) = self.held.front().filter(|(commit, _)| *commit <= self.stored) {
            self.held.pop_front();
            if self.connections.contains_key(connection) {
                self.wake(connection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use leveret_protocol::{Event, FieldTable, basic, confirm, connection, exchange, queue, tx};

    use super::super::Settings;
    use super::super::testing::{Rig, Sent};
    use crate::model::connection::ConnectionState;
    use crate::model::output::Output;
    use crate::model::record::Batch;

    /// The names of the methods, without the class of those that are not needed to tell.
    fn names(sent: &[Sent]) -> Vec<String> {
        let name = |sent: &Sent| match sent {
            Sent::Method(method) => method.split(['(', ' ']).next().unwrap_or_default().to_owned(),
            Sent::Content(_, body) => String::from_utf8_lossy(body).into_owned(),
        };
        sent.iter().map(name).collect()
    }

    fn declare(queue: &str, durable: bool) -> queue::Declare<'_> {
        let (passive, exclusive, auto_delete, no_wait) = (false, false, false, false);
        queue::Declare { queue, passive, durable, exclusive, auto_delete, no_wait, arguments: FieldTable::new() }
    }

    fn take_commit(rig: &mut Rig) -> u64 {
        rig.broker.take_batch(&mut Batch::default()).expect("something to commit")
    }

    /// Commits what there is, and gives what the client got then.
    fn store(rig: &mut Rig) -> Vec<String> {
        let commit = take_commit(rig);
        rig.broker.stored(commit);
        names(&rig.take())
    }

    #[test]
    fn s16_declare_ok_of_a_durable_queue_waits_for_the_disk() {
        let mut rig = Rig::new(Settings::default());
        assert!(rig.send(declare("q", true).into()).is_empty());
        let commit = take_commit(&mut rig);
        assert!(rig.take().is_empty(), "taken is not stored");
        rig.broker.stored(commit);
        assert_eq!(names(&rig.take()), ["QueueDeclareOk"]);
        assert_eq!(names(&rig.send(declare("q", true).into())), ["QueueDeclareOk"], "nothing new to store");
    }

    #[test]
    fn s16_what_is_not_kept_is_answered_at_once() {
        let mut rig = Rig::new(Settings::default());
        assert_eq!(names(&rig.send(declare("q", false).into())), ["QueueDeclareOk"]);
        let mut rig = Rig::new(Settings { persistent: false, ..Settings::default() });
        assert_eq!(names(&rig.send(declare("q", true).into())), ["QueueDeclareOk"]);
    }

    /// It says that the queue is there, too.
    #[test]
    fn s16_a_redeclare_waits_for_the_declare_of_somebody_else() {
        let mut rig = Rig::new(Settings::default());
        rig.declare("q", FieldTable::new());
        let commit = take_commit(&mut rig);
        assert!(rig.send(declare("q", true).into()).is_empty(), "its commit is taken, but not stored");
        let passive = queue::Declare { passive: true, ..declare("q", false) };
        assert!(rig.send(passive.into()).is_empty());
        rig.broker.stored(commit);
        assert_eq!(names(&rig.take()), ["QueueDeclareOk", "QueueDeclareOk"]);
    }

    #[test]
    fn s16_bind_purge_delete_and_unbind_wait_for_the_disk() {
        let mut rig = Rig::new(Settings::default());
        rig.declare("q", FieldTable::new());
        rig.declare("other", FieldTable::new());
        let (no_wait, routing_key, arguments) = (false, "k", FieldTable::new);
        let fanout = exchange::Declare {
            exchange: "x",
            type_: "fanout",
            passive: false,
            durable: true,
            auto_delete: false,
            internal: false,
            no_wait,
            arguments: arguments(),
        };
        let bind = queue::Bind { queue: "q", exchange: "x", routing_key, no_wait, arguments: arguments() };
        let bind_exchange =
            exchange::Bind { destination: "x", source: "amq.topic", routing_key, no_wait, arguments: arguments() };
        let unbind = queue::Unbind { queue: "q", exchange: "x", routing_key, arguments: arguments() };
        let unbind_exchange =
            exchange::Unbind { destination: "x", source: "amq.topic", routing_key, no_wait, arguments: arguments() };
        let (if_unused, if_empty) = (false, false);
        for (method, ok) in [
            (fanout.into(), "ExchangeDeclareOk"),
            (bind.into(), "QueueBindOk"),
            (bind_exchange.into(), "ExchangeBindOk"),
            (unbind.into(), "QueueUnbindOk"),
            (unbind_exchange.into(), "ExchangeUnbindOk"),
            (exchange::Delete { exchange: "x", if_unused, no_wait }.into(), "ExchangeDeleteOk"),
            (queue::Delete { queue: "q", if_unused, if_empty, no_wait }.into(), "QueueDeleteOk"),
        ] {
            assert!(rig.send(method).is_empty(), "{ok} before its commit");
            assert_eq!(store(&mut rig), [ok]);
        }
        rig.publish_persistent("other", "m");
        take_commit(&mut rig);
        assert!(rig.send(queue::Purge { queue: "other", no_wait }.into()).is_empty());
        assert_eq!(store(&mut rig), ["QueuePurgeOk"]);
    }

    #[test]
    fn s16_what_follows_a_waiting_answer_keeps_its_place() {
        let mut rig = Rig::new(Settings::default());
        rig.send(confirm::Select { no_wait: true }.into());
        rig.send_ahead(declare("q", true).into());
        let consume = basic::Consume {
            queue: "q",
            consumer_tag: "c",
            no_local: false,
            no_ack: true,
            exclusive: false,
            no_wait: false,
            arguments: FieldTable::new(),
        };
        rig.send_ahead(consume.into());
        assert!(rig.publish("", "q", "m").is_empty());
        assert_eq!(store(&mut rig), ["QueueDeclareOk", "BasicConsumeOk", "BasicDeliver", "m", "BasicAck"]);
    }

    #[test]
    fn s16_many_declares_in_one_go_wait_for_one_commit() {
        let mut rig = Rig::new(Settings::default());
        for name in ["a", "b", "c"] {
            rig.send_ahead(declare(name, true).into());
        }
        assert!(rig.take().is_empty());
        assert_eq!(store(&mut rig), ["QueueDeclareOk"; 3]);
    }

    #[test]
    fn s10_a_commit_of_acks_alone_waits_for_the_disk() {
        let mut rig = Rig::new(Settings::default());
        rig.declare("q", FieldTable::new());
        rig.publish_persistent("q", "m");
        store(&mut rig);
        rig.send(tx::Select {}.into());
        rig.send(basic::Get { queue: "q", no_ack: false }.into());
        rig.send(basic::Ack { delivery_tag: 1, multiple: false }.into());
        assert!(rig.send(tx::Commit {}.into()).is_empty());
        assert_eq!(store(&mut rig), ["TxCommitOk"]);
        assert_eq!(names(&rig.send(tx::Commit {}.into())), ["TxCommitOk"], "nothing to store");
    }

    /// A full disk must not cost the connection.
    #[test]
    fn s3_7_heartbeats_go_ahead_of_an_answer_that_waits() {
        let mut rig = Rig::with_heartbeat(Settings::default(), 10);
        rig.send_ahead(declare("q", true).into());
        let mut output = Output::default();
        for _ in 0..4 {
            rig.now += 5_000; // half an interval
            rig.broker.advance(rig.now);
            let poll = rig.broker.poll_transmit(rig.connection, &mut output, 1 << 20, rig.now);
            assert!(!poll.more, "a shell would poll for ever");
        }
        assert_eq!(output.tail[..], [[8, 0, 0, 0, 0, 0, 0, 0xCE]; 4].concat());
    }

    #[test]
    fn s3_10_close_ok_comes_after_an_answer_that_waits() {
        let mut rig = Rig::new(Settings::default());
        rig.send_ahead(declare("q", true).into());
        let close = connection::Close { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 };
        rig.broker.client(rig.connection, Event::Method { channel: 0, method: close.into() }, rig.now);
        let mut output = Output::default();
        let state = |rig: &mut Rig, output: &mut Output| {
            rig.broker.poll_transmit(rig.connection, output, 1 << 20, rig.now).state
        };
        assert_eq!(state(&mut rig, &mut output), ConnectionState::Closing);
        assert!(output.is_empty());
        let commit = take_commit(&mut rig);
        rig.broker.stored(commit);
        assert_eq!(names(&rig.take()), ["QueueDeclareOk", "ConnectionCloseOk"]);
        assert_eq!(state(&mut rig, &mut output), ConnectionState::Answered);
    }
}
