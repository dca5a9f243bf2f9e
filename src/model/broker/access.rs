//! What users may do (§14), asked per command: permissions are the connection's, and may change while it is open.

use std::sync::Arc;

use super::Broker;
use crate::auth::{Access, Permissions, TopicPermissions};
use crate::model::error::{AmqpError, Resource};
use crate::model::exchange::ExchangeKind;
use crate::model::ids::ChannelKey;

impl Broker {
    /// §14.1: may the user of this channel do that?
    pub(super) fn check_access(
        &self,
        channel: ChannelKey,
        access: Access,
        resource: Resource,
    ) -> Result<(), AmqpError> {
        let info = &self.connections[self.channels[channel].connection].info;
        let (Resource::Queue { name, .. } | Resource::Exchange { name, .. }) = &resource;
        if info.permissions.permits(access, name) {
            return Ok(());
        }
        Err(AmqpError::AccessRefused { access, resource, user: info.user.name.clone() })
    }

    /// §14.2: may the user of this channel use these routing keys with the exchange? Only exchanges of type
    /// `topic` have such rules.
    pub(super) fn check_topic_access<'a>(
        &self,
        channel: ChannelKey,
        access: Access,
        exchange: &str,
        routing_keys: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), AmqpError> {
        let info = &self.connections[self.channels[channel].connection].info;
        let Some(permissions) = &info.topic_permissions else { return Ok(()) };
        let found = self.topology.find(exchange).and_then(|key| self.topology.get(key));
        if found.is_none_or(|exchange| exchange.kind != ExchangeKind::Topic) {
            return Ok(());
        }
        for routing_key in routing_keys {
            let routing_key = String::from_utf8_lossy(routing_key);
            if !permissions.permits(access, exchange, &routing_key) {
                let exchange = self.exchange_resource(exchange);
                let (routing_key, user) = (routing_key.into_owned(), info.user.name.clone());
                return Err(AmqpError::TopicAccessRefused { access, routing_key, exchange, user });
            }
        }
        Ok(())
    }

    /// Replaces the rights of this user on the connections that are open: they hold from the next command on.
    /// Consumers that are there go on.
    pub fn set_permissions(
        &mut self,
        user: &str,
        permissions: Arc<Permissions>,
        topic_permissions: Option<Arc<TopicPermissions>>,
    ) {
        let mut found = false;
        for connection in self.connections.values_mut().filter(|connection| &*connection.info.user.name == user) {
            connection.info.permissions = permissions.clone();
            connection.info.topic_permissions = topic_permissions.clone();
            found = true;
        }
        if found {
            // A remembered route was checked under the old ones.
            self.topology.touch();
        }
    }

    /// §5.4: a passive declare needs any one permission, where the version asks for one.
    pub(super) fn check_any_access(&self, channel: ChannelKey, resource: Resource) -> Result<(), AmqpError> {
        let all = [Access::Configure, Access::Write, Access::Read];
        if !self.settings.profile.passive_declare_needs_access()
            || all.into_iter().any(|access| self.check_access(channel, access, resource.clone()).is_ok())
        {
            return Ok(());
        }
        self.check_access(channel, Access::Configure, resource)
    }
}

#[cfg(test)]
mod tests {
    use leveret_protocol::{FieldTable, FieldValue, Properties, basic, channel, exchange, queue};

    use super::super::Settings;
    use super::super::testing::{Rig, Sent};
    use super::*;
    use crate::auth::Pattern;

    /// With topic exchange `t` and queue `q`, and these rules for `t`.
    fn rig(write: &str, read: &str) -> Rig {
        let mut rig = Rig::new(Settings::default());
        rig.declare("q", FieldTable::new());
        for (name, type_) in [("t", "topic"), ("d", "direct")] {
            rig.send(exchange_declare(name, type_).into());
        }
        for exchange in ["t", "d"] {
            assert_eq!(refusal(rig.send(bind(exchange, "#").into())), None);
            assert_eq!(refusal(rig.send(bind(exchange, "a.b").into())), None);
        }
        let mut topic = TopicPermissions::new("guest".into(), "/".into());
        topic.set("t".into(), write, read).unwrap();
        topic.set("d".into(), "^$", "^$").unwrap();
        rig.broker.set_permissions("guest", everything(), Some(topic.into()));
        rig
    }

    fn everything() -> Arc<Permissions> {
        permissions(".*")
    }

    fn permissions(write: &str) -> Arc<Permissions> {
        let all = || Pattern::new(".*").unwrap();
        Permissions { configure: all(), write: Pattern::new(write).unwrap(), read: all() }.into()
    }

    fn exchange_declare<'a>(exchange: &'a str, type_: &'a str) -> exchange::Declare<'a> {
        let (passive, durable, auto_delete, internal, no_wait) = (false, true, false, false, true);
        let arguments = FieldTable::new();
        exchange::Declare { exchange, type_, passive, durable, auto_delete, internal, no_wait, arguments }
    }

    fn bind<'a>(exchange: &'a str, routing_key: &'a str) -> queue::Bind<'a> {
        queue::Bind { queue: "q", exchange, routing_key, no_wait: true, arguments: FieldTable::new() }
    }

    /// The text of the channel.close among the answers.
    fn refusal(sent: Vec<Sent>) -> Option<String> {
        sent.into_iter().find_map(|sent| match sent {
            Sent::Method(text) if text.contains("reply_text") => {
                let text = text.split_once("reply_text: \"").unwrap().1;
                Some(text.split_once("\", ").unwrap().0.to_owned())
            }
            _ => None,
        })
    }

    fn reopen(rig: &mut Rig) {
        rig.send(channel::CloseOk {}.into());
        rig.send(channel::Open {}.into());
    }

    fn publish_with_keys(rig: &mut Rig, routing_key: &str, header: &str, key: &str) -> Option<String> {
        let keys = FieldValue::Array(vec![key.into()]);
        let properties = Properties { headers: Some(FieldTable::from_iter([(header, keys)])), ..Properties::default() };
        let publish = basic::Publish { exchange: "t", routing_key, mandatory: false, immediate: false };
        refusal(rig.publish_with(publish, &properties, "m"))
    }

    #[test]
    fn s14_2_write_permission_covers_routing_key_cc_and_bcc() {
        let mut rig = rig("^a", ".*");
        let text = "ACCESS_REFUSED - write access to topic 'b.c' in exchange 't' in vhost '/' refused for user 'guest'";
        assert_eq!(refusal(rig.publish("t", "a.c", "m")), None);
        assert_eq!(refusal(rig.publish("t", "b.c", "m")).as_deref(), Some(text));
        for header in ["CC", "BCC"] {
            reopen(&mut rig);
            assert_eq!(publish_with_keys(&mut rig, "a.c", header, "a.d"), None, "{header}");
            assert_eq!(publish_with_keys(&mut rig, "a.c", header, "b.c").as_deref(), Some(text), "{header}");
        }
        assert_eq!(rig.broker.queue("q").unwrap().ready_count(), 3);
    }

    #[test]
    fn s14_2_only_topic_exchanges_have_rules() {
        let mut rig = rig("^$", "^$");
        assert_eq!(refusal(rig.publish("d", "a.b", "m")), None);
        assert_eq!(refusal(rig.send(bind("d", "x").into())), None);
        assert_eq!(refusal(rig.publish("amq.topic", "a.b", "m")), None, "an exchange without a rule is open");
    }

    #[test]
    fn s14_2_read_permission_covers_the_binding_key_of_bind_and_unbind() {
        let text = |key| format!("read access to topic '{key}' in exchange 't' in vhost '/' refused for user 'guest'");
        let mut rig = rig(".*", "^a");
        assert_eq!(refusal(rig.send(bind("t", "a.x").into())), None);
        assert!(refusal(rig.send(bind("t", "b.x").into())).unwrap().ends_with(&text("b.x")));
        reopen(&mut rig);
        let arguments = FieldTable::new();
        let unbind = queue::Unbind { queue: "q", exchange: "t", routing_key: "#", arguments: arguments.clone() };
        assert!(refusal(rig.send(unbind.into())).unwrap().ends_with(&text("#")));
        reopen(&mut rig);
        let (destination, source, routing_key, no_wait) = ("d", "t", "c", true);
        let bind = exchange::Bind { destination, source, routing_key, no_wait, arguments: arguments.clone() };
        assert!(refusal(rig.send(bind.into())).unwrap().ends_with(&text("c")));
        reopen(&mut rig);
        let unbind = exchange::Unbind { destination, source, routing_key, no_wait, arguments };
        assert!(refusal(rig.send(unbind.into())).unwrap().ends_with(&text("c")));
    }

    #[test]
    fn s14_2_user_and_vhost_stand_for_their_names() {
        let mut rig = rig(r"^{username}\.{vhost}$", ".*");
        assert_eq!(refusal(rig.publish("t", "guest./", "m")), None);
        assert!(refusal(rig.publish("t", "other./", "m")).is_some());
    }

    #[test]
    fn s14_1_rights_of_an_open_connection_change_at_once() {
        let mut rig = rig(".*", ".*");
        assert_eq!(refusal(rig.publish("t", "a.b", "m")), None);
        assert_eq!(refusal(rig.publish("t", "a.b", "m")), None, "by the remembered route");
        rig.broker.set_permissions("somebody else", permissions("^$"), None);
        assert_eq!(refusal(rig.publish("t", "a.b", "m")), None);
        rig.broker.set_permissions("guest", permissions("^d$"), None);
        let text = "ACCESS_REFUSED - write access to exchange 't' in vhost '/' refused for user 'guest'";
        assert_eq!(refusal(rig.publish("t", "a.b", "m")).as_deref(), Some(text));
        reopen(&mut rig);
        assert_eq!(refusal(rig.publish("d", "a.b", "m")), None);
        assert_eq!(rig.broker.queue("q").unwrap().ready_count(), 4);
    }

    #[test]
    fn s14_2_topic_rights_of_an_open_connection_change_at_once() {
        let mut rig = rig(".*", ".*");
        assert_eq!(refusal(rig.publish("t", "a.b", "m")), None);
        let mut topic = TopicPermissions::new("guest".into(), "/".into());
        topic.set("t".into(), "^b", ".*").unwrap();
        rig.broker.set_permissions("guest", everything(), Some(topic.into()));
        assert!(refusal(rig.publish("t", "a.b", "m")).is_some());
        reopen(&mut rig);
        rig.broker.set_permissions("guest", everything(), None);
        assert_eq!(refusal(rig.publish("t", "a.b", "m")), None);
    }
}
