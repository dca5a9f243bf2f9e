//! Limits, the keys of single vhosts, and login without a name.

use super::*;

#[test]
fn limits_of_the_node() {
    let config = file(
        "connection_max = 0\nchannel_max_per_node = 2\nconsumer_max_per_channel = 3\ncluster_queue_limit = 4\n\
         cluster_exchange_limit = 5\nvhost_max = 6",
    );
    let limits = NodeLimits {
        connections: Some(0),
        channels: Some(2),
        consumers_per_channel: Some(3),
        queues: Some(4),
        exchanges: Some(5),
        vhosts: Some(6),
    };
    assert_eq!(config.limits, limits);
    assert_eq!(file("max_connections = 9").limits.connections, Some(9), "its name since 4.3");
    assert_eq!(file("connection_max = 9\nconnection_max = infinity").limits.connections, None);
}

/// The order and the missing pattern as seen on RabbitMQ 4.0.5 and 4.3.6.
#[test]
fn s14_4_the_default_limits_of_a_vhost_are_those_of_the_first_id_whose_pattern_matches() {
    let config = file(
        "default_limits.vhosts.2.pattern = ^b\ndefault_limits.vhosts.2.max_connections = 22\n\
         default_limits.vhosts.10.max_queues = 10\ndefault_limits.vhosts.10.pattern = ^b\n\
         default_limits.vhosts.a.pattern = x\ndefault_limits.vhosts.a.max_queues = 5\n\
         default_limits.vhosts.b.max_queues = 77",
    );
    let limits = |vhost| {
        let VhostLimits { max_connections, max_queues } = config.default_limits_of(vhost);
        (max_connections, max_queues)
    };
    assert_eq!(limits("bx"), (None, Some(10)), "ids are sorted as text");
    assert_eq!(limits("ax"), (None, Some(5)));
    assert_eq!(limits("cc"), (None, Some(77)));
    assert_eq!(file("").default_limits_of("bx"), VhostLimits::default());
}

#[test]
fn single_vhosts_have_keys_of_their_own() {
    let config = file(
        "leveret.vhosts.a.compat = 3.13\nleveret.vhosts./.default_queue_type = quorum\n\
         leveret.vhosts.a.default_queue_type = stream\nleveret.vhosts.b\\.c.compat = 4.3",
    );
    let options = |vhost: &str| (config.vhosts[vhost].profile, config.vhosts[vhost].default_queue_type);
    assert_eq!(options("a"), (Some(Profile::V3_13), Some(QueueType::Stream)));
    assert_eq!(options("/"), (None, Some(QueueType::Quorum)));
    assert_eq!(options("b.c"), (Some(Profile::V4_3), None));
    assert_eq!(config.vhosts.len(), 3);
    assert_eq!(
        file("leveret.vhosts.a.compta = 4.0\ndefault_limits.vhosts.7.max_queue = 1").warnings,
        [
            "b.conf:1: unknown key leveret.vhosts.a.compta is ignored; did you mean leveret.vhosts.a.compat?",
            "b.conf:2: unknown key default_limits.vhosts.7.max_queue is ignored; \
             did you mean default_limits.vhosts.7.max_queues?",
        ]
    );
}

#[test]
fn s3_3_anonymous_login_is_off_unless_a_user_is_named() {
    let login = |text| file(text).anonymous_login.map(|(user, pass)| (user, pass.expose().to_owned()));
    assert_eq!(login("anonymous_login_pass = x"), None);
    assert_eq!(login("anonymous_login_user = none"), None);
    assert_eq!(login("anonymous_login_user = ann\nanonymous_login_user = none"), None);
    assert_eq!(login("anonymous_login_user = guest"), Some(("guest".into(), "guest".into())));
    assert_eq!(login("anonymous_login_pass = x\nanonymous_login_user = ann"), Some(("ann".into(), "x".into())));
}

#[test]
fn what_else_queues_are_told() {
    assert_eq!(file("default_queue_type = quorum").default_queue_type, QueueType::Quorum);
    let text = "quorum_queue.property_equivalence.relaxed_checks_on_redeclaration = true";
    assert!(file(text).relaxed_quorum_redeclare);
}
