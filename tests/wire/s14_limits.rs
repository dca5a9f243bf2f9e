//! Limits of the node, of vhosts and of users (§3.5, §3.11, §14.4). Each broker here has a settings file of its own.
//!
//! The facts were seen on RabbitMQ 4.0.5 and 4.3.6; where those differ, 4.3.6's are asked for.

use std::path::Path;
use std::time::{Duration, Instant};

use leveret::auth::{PasswordHash, Pattern, Permissions, User, UserLimits};
use leveret::model::record::{Batch, DefinitionKey, Op};
use leveret::model::vhost::{Vhost, VhostLimits};
use leveret::storage::sled::SledStore;
use leveret::storage::{Store as _, StoreOptions};
use leveret_protocol::{FieldTable, Method, MethodId, channel, connection, queue};

use crate::broker::{self, Broker, Exit};
use crate::client::{
    Connection, Login, Socket, consume, declare, declare_args, delete, exchange, exchange_delete, text,
};

/// A broker in memory with this settings file. `None` if the tests ask another broker.
pub fn start(settings: &str) -> Option<Broker> {
    broker::is_ours().then(|| with_file(settings, |file| Broker::start(["--ephemeral", "--config", file])))
}

/// A broker in this folder with this settings file.
pub fn start_in(folder: &Path, settings: &str) -> Broker {
    let folder = folder.to_str().unwrap();
    with_file(settings, |file| Broker::start(["--data-dir", folder, "--config", file]))
}

pub fn with_file<T>(settings: &str, run: impl FnOnce(&str) -> T) -> T {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rabbitmq.conf");
    std::fs::write(&file, settings).unwrap();
    run(file.to_str().unwrap())
}

fn login<'a>(vhost: &'a str, response: &'a [u8]) -> Login<'a> {
    Login { vhost, response, ..Login::default() }
}

pub const GUEST: &[u8] = b"\0guest\0guest";
const ANN: &[u8] = b"\0ann\0ann";

pub fn enter(broker: &Broker, vhost: &str) -> Connection {
    Connection::open(broker.address, &login(vhost, GUEST))
}

/// The vhost may not be entered, and this says why.
#[track_caller]
pub fn refused(broker: &Broker, vhost: &str, response: &[u8], explanation: &str) {
    let mut socket = Socket::tuned(broker.address, &login(vhost, response));
    socket.send(0, connection::Open { virtual_host: vhost });
    socket.expect_connection_close(530, explanation, connection::Open::ID);
}

/// A folder with guest and ann, whose limits are given, and with the vhosts `/`, `other` and `closed`. Ann may
/// enter `/` only; nobody at all fits into `closed`.
fn folder_with_ann(limits: UserLimits) -> tempfile::TempDir {
    let user = |name: &str, limits| User {
        name: name.into(),
        password: Some(PasswordHash::new([1, 2, 3, 4], name)),
        tags: Vec::new(),
        limits,
    };
    let closed =
        Vhost { limits: VhostLimits { max_connections: Some(0), max_queues: None }, ..Vhost::new("closed".into(), 3) };
    let all = || Pattern::new(".*").unwrap();
    let permissions = Permissions { configure: all(), write: all(), read: all() }.encode();
    let (guest, ann) = (user("guest", UserLimits::default()), user("ann", limits));
    folder_with([
        // As the first versions wrote it.
        (Vhost::key("/"), 1_u64.to_be_bytes().to_vec().into()),
        (Vhost::key("other"), Vhost::new("other".into(), 2).encode()),
        (Vhost::key("closed"), closed.encode()),
        (User::key("guest"), guest.encode()),
        (User::key("ann"), ann.encode()),
        (Permissions::key("guest", "/"), permissions.clone()),
        (Permissions::key("guest", "other"), permissions.clone()),
        (Permissions::key("ann", "/"), permissions),
    ])
}

fn folder_with(definitions: impl IntoIterator<Item = (DefinitionKey, bytes::Bytes)>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut store = SledStore::open(folder.path(), StoreOptions::default()).unwrap();
    store.recover(&mut |_| {}).unwrap();
    let ops = definitions.into_iter().map(|(key, value)| Op::Put { key, value }).collect();
    store.commit(&[Batch { ops, ..Batch::default() }]).unwrap();
    store.close().unwrap();
    folder
}

// --- Connections ------------------------------------------------------------------------------------------------------

#[test]
fn s3_5_the_node_counts_connections_in_their_handshake_too() {
    let Some(broker) = start("connection_max = 2") else { return };
    let first = enter(&broker, "/");
    let idle = Socket::open(broker.address);
    let text = "connection refused: node connection limit (2) is reached";
    refused(&broker, "/", GUEST, text);
    refused(&broker, "nosuch", GUEST, text);
    drop(idle);
    first.close();
    // The broker may see the end of the idle one a moment later.
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let mut socket = Socket::tuned(broker.address, &Login::default());
        socket.send(0, connection::Open { virtual_host: "/" });
        if Method::decode(&socket.method().payload).unwrap().id() == connection::OpenOk::ID {
            break;
        }
        assert!(Instant::now() < deadline, "the place of a connection that is gone is free again");
    }
}

#[test]
fn s3_5_a_node_limit_of_0_lets_nobody_in() {
    let Some(broker) = start("connection_max = 0") else { return };
    refused(&broker, "/", GUEST, "connection refused: node connection limit (0) is reached");
}

#[test]
fn s3_5_a_vhost_takes_as_many_connections_as_its_limit_says() {
    let Some(broker) = start("default_limits.vhosts.1.pattern = ^/$\ndefault_limits.vhosts.1.max_connections = 2")
    else {
        return;
    };
    let (first, _second) = (enter(&broker, "/"), enter(&broker, "/"));
    refused(&broker, "/", GUEST, "access to vhost '/' refused for user 'guest': connection limit (2) is reached");
    // Whoever has read close-ok finds the place free, every time.
    first.close();
    for _ in 0..20 {
        enter(&broker, "/").close();
    }
}

#[test]
fn s3_5_a_connection_that_an_error_closes_is_counted_no_more() {
    let Some(broker) = start("default_limits.vhosts.1.max_connections = 1") else { return };
    for _ in 0..10 {
        let connection = enter(&broker, "/");
        connection.send(1, channel::Flow { active: true });
        connection.next(0);
        let again = enter(&broker, "/");
        again.close();
    }
}

#[test]
fn s3_5_a_user_has_as_many_connections_as_its_limit_says() {
    if !broker::is_ours() {
        return;
    }
    let folder = folder_with_ann(UserLimits { max_connections: Some(1), max_channels: None });
    let broker = start_in(folder.path(), "");
    let connection = Connection::open(broker.address, &login("/", ANN));
    let text = "connection refused for user 'ann': user connection limit (1) is reached";
    refused(&broker, "/", ANN, text);
    enter(&broker, "/");
    connection.close();
    Connection::open(broker.address, &login("/", ANN)).close();
}

#[test]
fn s3_5_the_checks_of_connection_open_have_an_order() {
    if !broker::is_ours() {
        return;
    }
    let folder = folder_with_ann(UserLimits { max_connections: Some(1), max_channels: None });
    let broker = start_in(folder.path(), "");
    let connection = Connection::open(broker.address, &login("/", ANN));
    refused(&broker, "nosuch", ANN, "vhost nosuch not found");
    refused(&broker, "closed", ANN, "access to vhost 'closed' refused for user 'ann': connection limit (0) is reached");
    refused(&broker, "other", ANN, "connection refused for user 'ann': user connection limit (1) is reached");
    connection.close();
    refused(&broker, "other", ANN, "access to vhost 'other' refused for user 'ann'");
}

#[test]
fn s14_4_a_negative_limit_is_none() {
    if !broker::is_ours() {
        return;
    }
    let folder = folder_with_ann(UserLimits { max_connections: Some(-1), max_channels: Some(-1) });
    let broker = start_in(folder.path(), "");
    let connections = [(); 3].map(|()| Connection::open(broker.address, &login("/", ANN)));
    for connection in connections {
        connection.channel();
        connection.channel();
    }
}

// --- Channels and consumers -------------------------------------------------------------------------------------------

/// One channel too many: class and method are nobody's.
#[track_caller]
fn no_more_channels(connection: &Connection, explanation: &str) {
    connection.send(99, channel::Open {});
    connection.expect_close(530, explanation, MethodId::NONE);
}

#[test]
fn s3_11_the_channels_of_a_user_are_counted_over_its_connections() {
    if !broker::is_ours() {
        return;
    }
    let folder = folder_with_ann(UserLimits { max_connections: None, max_channels: Some(2) });
    let broker = start_in(folder.path(), "");
    let one = Connection::open(broker.address, &login("/", ANN));
    let other = Connection::open(broker.address, &login("/", ANN));
    let first = one.channel();
    other.channel();
    first.close();
    one.channel();
    enter(&broker, "/").channel();
    let text = "number of channels opened for user 'ann' has reached the maximum allowed user limit of 2";
    no_more_channels(&other, text);
    // The channel of the connection that was closed is free.
    one.channel();
}

#[test]
fn s3_11_the_channels_of_the_node_are_counted_over_all_vhosts() {
    let Some(broker) = start("channel_max_per_node = 2\nleveret.vhosts.other.compat = 4.2") else { return };
    let (here, there) = (enter(&broker, "/"), enter(&broker, "other"));
    here.channel();
    there.channel();
    let text = "number of channels opened on node 'leveret@localhost' has reached the maximum allowed limit of 2";
    no_more_channels(&here, text);
    there.channel();
}

#[test]
fn s3_11_the_negotiated_channel_max_is_looked_at_first() {
    let Some(broker) = start("channel_max_per_node = 1") else { return };
    let connection = Connection::open(broker.address, &Login { tune: (1, 0, 0), ..Login::default() });
    connection.channel();
    no_more_channels(&connection, "number of channels opened (1) has reached the negotiated channel_max (1)");
}

#[test]
fn s8_7_a_channel_has_as_many_consumers_as_the_node_allows() {
    let Some(broker) = start("consumer_max_per_channel = 2") else { return };
    let connection = enter(&broker, "/");
    let (full, other) = (connection.channel(), connection.channel());
    full.declare(declare("q"));
    full.consume(consume("q", "a"));
    full.consume(consume("q", "b"));
    other.consume(consume("q", "c"));
    full.cancel("a");
    full.consume(consume("q", "d"));
    full.refuses_hard(consume("nosuch", "e"), 530, "reached maximum (2) of consumers per channel");
}

// --- Queues and exchanges ---------------------------------------------------------------------------------------------

const QUEUES_FULL: &str = "cannot declare queue 'c': queue limit in vhost '/' (2) is reached";

#[test]
fn s5_2_a_vhost_takes_as_many_queues_as_its_limit_says() {
    let Some(broker) = start("default_limits.vhosts.x.max_queues = 2") else { return };
    let connection = enter(&broker, "/");
    let channel = connection.channel();
    channel.declare(declare("a"));
    channel.declare(queue::Declare { exclusive: true, ..declare("b") });
    channel.refuses(declare("c"), 406, QUEUES_FULL);
    // What is there may be declared again, and looked at.
    let channel = connection.channel();
    channel.declare(declare("a"));
    channel.look("a");
    channel.delete(delete("a"));
    channel.declare(declare("c"));
}

#[test]
fn s5_2_the_queue_limit_comes_after_the_arguments_and_before_the_properties() {
    let Some(broker) = start("default_limits.vhosts.x.max_queues = 2") else { return };
    let connection = enter(&broker, "/");
    let channel = connection.channel();
    channel.declare(declare("a"));
    channel.declare(declare("b"));
    let explanation = "invalid arg 'x-expires' for queue 'c' in vhost '/': {value_zero,0}";
    channel.refuses(declare_args("c", [("x-expires", 0.into())]), 406, explanation);
    let quorum = declare_args("c", [("x-queue-type", text("quorum"))]);
    connection.channel().refuses(queue::Declare { auto_delete: true, ..quorum }, 406, QUEUES_FULL);
}

#[test]
fn s5_2_the_queues_of_the_node_are_counted_over_all_vhosts() {
    let Some(broker) = start("cluster_queue_limit = 2\nleveret.vhosts.other.compat = 4.2") else { return };
    let (here, there) = (enter(&broker, "/"), enter(&broker, "other"));
    let channel = here.channel();
    channel.declare(declare("a"));
    there.channel().declare(queue::Declare { exclusive: true, ..declare("b") });
    channel.refuses(declare("c"), 406, "cannot declare queue 'c': queue limit in cluster (2) is reached");
    there.close();
    here.channel().declare(declare("c"));
}

#[test]
fn s5_2_the_limit_of_the_vhost_is_looked_at_before_that_of_the_node() {
    let Some(broker) = start("cluster_queue_limit = 2\ndefault_limits.vhosts.1.max_queues = 2") else { return };
    let channel = enter(&broker, "/").channel();
    channel.declare(declare("a"));
    channel.declare(declare("b"));
    channel.refuses(declare("c"), 406, QUEUES_FULL);
}

#[test]
fn s5_2_recovered_queues_count() {
    if !broker::is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let broker = start_in(folder.path(), "");
    enter(&broker, "/").channel().declare(declare("a"));
    broker.stop("TERM");
    let broker = start_in(folder.path(), "cluster_queue_limit = 1");
    let channel = enter(&broker, "/").channel();
    channel.refuses(declare("b"), 406, "cannot declare queue 'b': queue limit in cluster (1) is reached");
}

#[test]
fn s4_2_the_exchanges_of_the_node_are_counted_with_the_predeclared_ones() {
    let Some(broker) = start("cluster_exchange_limit = 15\nleveret.vhosts.other.compat = 4.2") else { return };
    let connection = enter(&broker, "/");
    let channel = connection.channel();
    channel.declare_exchange(exchange("a", "fanout"));
    channel.declare_exchange(exchange("a", "fanout"));
    let explanation = "cannot declare exchange 'b' in vhost 'other': exchange limit of 15 is reached";
    enter(&broker, "other").channel().refuses(exchange("b", "fanout"), 406, explanation);
    channel.delete_exchange(exchange_delete("a"));
    enter(&broker, "other").channel().declare_exchange(exchange("b", "fanout"));
}

#[test]
fn s4_2_the_exchange_limit_comes_after_the_type_of_the_alternate_exchange() {
    let Some(broker) = start("cluster_exchange_limit = 7") else { return };
    let connection = enter(&broker, "/");
    let arguments = FieldTable::from_iter([("alternate-exchange", 5.into())]);
    let explanation = "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'a' in vhost '/'";
    let declare = leveret_protocol::exchange::Declare { arguments, ..exchange("a", "fanout") };
    connection.channel().refuses(declare, 406, explanation);
    let explanation = "cannot declare exchange 'a' in vhost '/': exchange limit of 7 is reached";
    connection.channel().refuses(exchange("a", "x-consistent-hash"), 406, explanation);
}

// --- Vhosts -----------------------------------------------------------------------------------------------------------

#[test]
fn s14_4_more_vhosts_than_allowed_are_not_created() {
    if !broker::is_ours() {
        return;
    }
    let settings = "vhost_max = 2\nleveret.vhosts.a.compat = 4.2\nleveret.vhosts.b.compat = 4.2";
    let Exit { code, stdout, stderr, .. } = with_file(settings, |file| broker::run(["--ephemeral", "--config", file]));
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    assert!(stderr.contains("cannot create vhost 'b': vhost limit of 2 is reached"), "{stderr}");
}
