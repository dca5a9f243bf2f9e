//! What the settings say of single vhosts (§15.2, §5.2, §5.3), and login without a name (§3.3).

use std::time::{Duration, Instant};

use leveret_protocol::{Method, MethodId, PROTOCOL_HEADER, Properties, queue};

use crate::broker::{self, Broker};
use crate::client::{Connection, Login, Socket, declare, declare_args, delete, text};
use crate::s14_limits::{GUEST, enter, refused, start, start_in};

#[test]
fn s15_2_vhosts_that_the_settings_name_are_created_and_kept() {
    if !broker::is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let broker = start_in(folder.path(), "leveret.vhosts.a.compat = 4.2\nleveret.vhosts.b\\.c.compat = 4.2");
    enter(&broker, "a").channel().declare(declare("q"));
    enter(&broker, "b.c");
    broker.stop("TERM");
    let broker = start_in(folder.path(), "");
    let channel = enter(&broker, "a").channel();
    channel.look("q");
    channel.delete(delete("q"));
    enter(&broker, "b.c");
    refused(&broker, "b", GUEST, "vhost b not found");
}

#[test]
fn s15_2_a_vhost_that_is_made_later_has_its_own_queues() {
    if !broker::is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let broker = start_in(folder.path(), "");
    enter(&broker, "/").channel().declare(declare("q"));
    broker.stop("TERM");
    let settings = "leveret.vhosts.a.compat = 4.2";
    let broker = start_in(folder.path(), settings);
    assert!(!enter(&broker, "a").channel().exists("q"));
    enter(&broker, "a").channel().declare(declare("q"));
    broker.stop("TERM");
    let broker = start_in(folder.path(), settings);
    enter(&broker, "a").channel().delete(delete("q"));
    assert!(enter(&broker, "/").channel().exists("q"));
}

#[test]
fn s0_1_each_vhost_may_behave_like_another_version() {
    if !broker::is_default_version() {
        return;
    }
    let settings = "leveret.vhosts.old.compat = 3.13\nleveret.vhosts.new.compat = 4.3";
    let Some(broker) = start(settings) else { return };
    let old = enter(&broker, "old").channel();
    old.declare(declare_args("q", [("x-queue-type", text("quorum"))]));
    let explanation = "inequivalent arg 'x-queue-type' for queue 'q' in vhost 'old': \
                       received none but current is the value 'quorum' of type 'longstr'";
    old.refuses(declare("q"), 406, explanation);
    let located = || declare_args("l", [("x-queue-master-locator", text("min-masters"))]);
    enter(&broker, "/").channel().declare(located());
    let new = enter(&broker, "new");
    new.channel().send(located());
    let (code, _, _) = new.unanswered_close();
    assert_eq!(code, 541);
    assert_eq!([enter(&broker, "old").version(), enter(&broker, "new").version()], [(4, 2); 2], "the server's");
}

#[test]
fn s15_2_a_folder_may_be_opened_as_a_version_that_refuses_what_is_in_it() {
    if !broker::is_default_version() {
        return;
    }
    if !broker::is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let broker = start_in(folder.path(), "");
    enter(&broker, "/").channel().declare(declare_args("q", [("x-consumer-timeout", 60_000.into())]));
    broker.stop("TERM");
    let broker = start_in(folder.path(), "leveret.vhosts./.compat = 4.3");
    let channel = enter(&broker, "/").channel();
    channel.look("q");
    let explanation = "invalid arg 'x-consumer-timeout' for queue 'r' in vhost '/' of queue type rabbit_classic_queue";
    channel.refuses(declare_args("r", [("x-consumer-timeout", 60_000.into())]), 406, explanation);
}

#[test]
fn s5_2_the_default_queue_type_is_the_vhosts_or_else_the_nodes() {
    let settings = "default_queue_type = quorum\nleveret.vhosts.c.default_queue_type = classic";
    let Some(broker) = start(settings) else { return };
    let channel = enter(&broker, "/").channel();
    channel.declare(declare("q"));
    channel.declare(declare_args("q", [("x-queue-type", text("quorum"))]));
    channel.declare(queue::Declare { durable: false, ..declare("transient") });
    let channel = enter(&broker, "c").channel();
    channel.declare(declare("q"));
    channel.declare(declare_args("q", [("x-queue-type", text("classic"))]));
}

#[test]
fn s5_3_a_quorum_queue_may_be_redeclared_as_a_classic_one_if_the_settings_say_so() {
    let settings = "quorum_queue.property_equivalence.relaxed_checks_on_redeclaration = true";
    let Some(broker) = start(settings) else { return };
    let channel = enter(&broker, "/").channel();
    channel.declare(declare_args("q", [("x-queue-type", text("quorum")), ("x-delivery-limit", 5.into())]));
    channel.declare(queue::Declare { durable: false, auto_delete: true, ..declare("q") });
    let explanation = "inequivalent arg 'x-max-length' for queue 'q' in vhost '/': \
                       received the value '5' of type 'signedint' but current is none";
    channel.refuses(declare_args("q", [("x-max-length", 5.into())]), 406, explanation);
}

// --- Login without a name ---------------------------------------------------------------------------------------------

fn anonymous() -> Login<'static> {
    Login { mechanism: "ANONYMOUS", response: b"", ..Login::default() }
}

fn mechanisms(broker: &Broker) -> String {
    let mut socket = Socket::open(broker.address);
    socket.send_bytes(&PROTOCOL_HEADER);
    let frame = socket.method();
    let Method::ConnectionStart(start) = Method::decode(&frame.payload).unwrap() else { panic!("{frame:?}") };
    String::from_utf8(start.mechanisms.to_vec()).unwrap()
}

#[test]
fn s3_3_anonymous_is_not_offered_and_not_taken_unless_a_user_is_set() {
    let Some(broker) = start("anonymous_login_user = none") else { return };
    assert_eq!(mechanisms(&broker), "PLAIN AMQPLAIN");
    let (mut socket, _) = Socket::greet(broker.address);
    let since = Instant::now();
    socket.send_start_ok(&anonymous());
    socket.expect_eof_within(Duration::from_secs(6));
    assert!(since.elapsed() > Duration::from_millis(2500), "closed after {:?}", since.elapsed());
}

#[test]
fn s3_3_anonymous_logs_in_as_the_user_that_is_set_whatever_the_response() {
    let Some(broker) = start("anonymous_login_user = guest") else { return };
    assert_eq!(mechanisms(&broker), "PLAIN AMQPLAIN ANONYMOUS");
    Connection::open(broker.address, &anonymous()).channel();
    let traced = Login { response: b"ann@example.org", ..anonymous() };
    let channel = Connection::open(broker.address, &traced).channel();
    channel.declare(declare("q"));
    let properties = Properties { user_id: Some("guest".to_owned().into()), ..Properties::default() };
    channel.publish_properties("", "q", &properties, "x");
    assert_eq!(channel.pop("q").text(), "x", "it is guest");
}

#[test]
fn s3_3_anonymous_is_refused_if_the_password_that_is_set_is_wrong() {
    let Some(broker) = start("anonymous_login_user = guest\nanonymous_login_pass = wrong") else { return };
    let (mut socket, _) = Socket::greet(broker.address);
    socket.send_start_ok(&anonymous());
    let explanation = "Login was refused using authentication mechanism ANONYMOUS. For details see the broker logfile.";
    socket.expect_connection_close(403, explanation, MethodId::NONE);
}
