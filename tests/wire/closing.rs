//! Heartbeats, and how connections end (§3.7, §3.10).

use std::time::{Duration, Instant};

use leveret_protocol::{FrameKind, Method, MethodId, basic, channel, connection, queue};

use crate::broker::{self, Broker};
use crate::client::{
    Channel, Connection, Frame, Input, Login, Socket, connect, consume, declare, open, publish, raw_frame,
};

fn with_heartbeat(seconds: u16) -> Login<'static> {
    Login { tune: (0, 0, seconds), ..Login::default() }
}

/// A running connection, as a bare socket.
fn running(login: &Login<'_>) -> Socket {
    let mut socket = Socket::tuned(broker::shared(), login);
    socket.send(0, connection::Open { virtual_host: "/" });
    loop {
        let frame = socket.frame();
        if frame.kind == FrameKind::Method {
            assert_eq!(frame.payload, [0, 10, 0, 41, 0]);
            return socket;
        }
    }
}

fn heartbeat() -> Input {
    Input::Frame(Frame { kind: FrameKind::Heartbeat, channel: 0, payload: Vec::new() })
}

/// A server with heartbeat 1 sends one each half second, and gives up a silent client after 2 to 3 s, without any
/// other frame.
#[test]
fn s3_7_heartbeats_are_sent_and_a_silent_client_is_cut_off() {
    let mut socket = running(&with_heartbeat(1));
    let since = Instant::now();
    let mut beats = Vec::new();
    loop {
        match socket.read(since + Duration::from_secs(6)) {
            Input::End => break,
            Input::Nothing => panic!("the silent client was not cut off"),
            frame => {
                assert_eq!(frame, heartbeat());
                beats.push(since.elapsed());
            }
        }
    }
    let took = since.elapsed();
    assert!((1900..3900).contains(&took.as_millis()), "cut off after {took:?}");
    // A look each half second sends one if nothing else was sent since the last; the last heartbeat is nothing else.
    assert!(beats.len() >= 3, "{beats:?}");
    assert!(beats[0] < Duration::from_millis(900), "{beats:?}");
    let mut gaps: Vec<_> = beats.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort();
    assert!(gaps[gaps.len() / 2] < Duration::from_millis(800), "{beats:?}");
}

#[test]
fn s3_7_deliveries_alone_do_not_keep_a_silent_client_alive() {
    let producer = open();
    producer.declare(declare("s3_7_deliveries"));
    let mut socket = running(&with_heartbeat(1));
    socket.send(1, channel::Open {});
    socket.send(1, basic::Consume { no_ack: true, ..consume("s3_7_deliveries", "c") });
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(6) {
        producer.publish("", "s3_7_deliveries", "x");
        if drain_until(&mut socket, Instant::now() + Duration::from_millis(100)) == Input::End {
            return;
        }
    }
    panic!("the silent client was not cut off");
}

/// Takes what comes: [`Input::Nothing`] at the end of the time, or [`Input::End`].
fn drain_until(socket: &mut Socket, deadline: Instant) -> Input {
    loop {
        match socket.read(deadline) {
            Input::Frame(_) => {}
            end => return end,
        }
    }
}

/// Several clients for longer than a silent one would be suffered, each with its own way to say that it lives.
#[test]
fn s3_7_any_sign_of_life_each_half_second_will_do() {
    let mut clients = ["heartbeats", "methods", "single bytes"].map(|sign| (sign, running(&with_heartbeat(1))));
    for (_, socket) in &mut clients {
        socket.send(1, channel::Open {});
    }
    // One frame that takes all the time there is.
    let mut body = raw_frame(3, 1, &[b'x'; 20]).into_iter();
    clients[2].1.send(1, publish("", "s3_7_slow"));
    clients[2].1.send_bytes(&crate::client::header_frame(1, 60, 0, 20, &[0, 0]));
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(3600) {
        clients[0].1.send_bytes(&raw_frame(8, 0, b""));
        clients[1].1.send(1, channel::Flow { active: true });
        clients[2].1.send_bytes(&[body.next().unwrap()]);
        let next = Instant::now() + Duration::from_millis(400);
        for (sign, socket) in &mut clients {
            assert_ne!(drain_until(socket, next), Input::End, "{sign}: cut off after {:?}", since.elapsed());
        }
    }
}

#[test]
fn s3_7_heartbeat_0_means_none_in_either_direction() {
    let mut socket = running(&with_heartbeat(0));
    socket.expect_nothing_for(Duration::from_millis(3500));
    socket.send(1, channel::Open {});
    assert_eq!(socket.method().payload[..4], [0, 20, 0, 11]);
}

#[test]
fn s3_10_a_client_that_closes_is_answered_and_the_socket_closed() {
    let connection = connect();
    connection.close();
    connection.expect_eof_within(Duration::from_secs(40));
}

/// Go's client, for one, takes an end of the stream that it sees before it has handled close-ok for an error.
#[test]
fn s3_10_after_close_ok_the_client_closes_the_socket() {
    let mut socket = running(&with_heartbeat(2));
    let since = Instant::now();
    socket.send(0, connection::Close { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 });
    loop {
        match socket.read(since + Duration::from_secs(6)) {
            Input::End => break,
            Input::Nothing => panic!("the socket was not closed"),
            Input::Frame(_) => {}
        }
    }
    let took = since.elapsed();
    assert!((1800..4500).contains(&took.as_millis()), "closed after {took:?}");
}

#[test]
fn s3_10_close_is_answered_while_channels_are_open_and_deliveries_under_way() {
    let channel = open();
    let queue = "s3_10_under_way";
    channel.declare(declare(queue));
    for _ in 0..500 {
        channel.publish("", queue, "some text that takes a while");
    }
    channel.consume(consume(queue, "c"));
    channel.connection.channel();
    let close = connection::Close { reply_code: 200, reply_text: "bye", class_id: 0, method_id: 0 };
    channel.connection.send(0, close);
    assert_eq!(channel.connection.next(0).method().id(), connection::CloseOk::ID);
}

/// Declares a queue whose name was that of an exclusive one. Here the name is free at once; RabbitMQ may take
/// a moment.
fn declare_when_free(channel: &Channel, declare: &queue::Declare<'_>) {
    if !channel.connection.is_leveret() {
        let deadline = Instant::now() + Duration::from_secs(5);
        while channel.is_locked(declare.queue) {
            assert!(Instant::now() < deadline, "{} is still exclusive", declare.queue);
        }
    }
    channel.declare(declare.clone());
}

/// What was the connection's is free before close-ok.
#[test]
fn s3_10_exclusive_queues_are_gone_and_deliveries_back_before_close_ok() {
    for round in 0..10 {
        let (other, channel) = (open(), open());
        let exclusive = || queue::Declare { exclusive: true, ..declare("s3_10_exclusive") };
        channel.declare(exclusive());
        other.declare(declare("s3_10_requeued"));
        other.publish("", "s3_10_requeued", "x");
        assert_eq!(channel.take("s3_10_requeued").redelivered, round > 0);
        channel.connection.close();
        declare_when_free(&other, &exclusive());
        let again = other.take("s3_10_requeued");
        assert!(again.redelivered);
        other.connection.close();
    }
}

#[test]
fn s3_10_a_lost_connection_leaves_nothing_behind() {
    let (other, channel) = (open(), open());
    channel.declare(queue::Declare { exclusive: true, ..declare("s3_10_lost_exclusive") });
    other.declare(declare("s3_10_lost"));
    other.publish("", "s3_10_lost", "x");
    channel.take("s3_10_lost");
    drop(channel);
    assert!(other.take("s3_10_lost").redelivered);
    // The message came back when the connection's end was noticed; the queue goes with it.
    declare_when_free(&other, &queue::Declare { exclusive: true, ..declare("s3_10_lost_exclusive") });
}

#[test]
fn s3_10_after_a_close_by_the_server_only_close_and_close_ok_count() {
    let connection = connect();
    let (one, two) = (connection.channel(), connection.channel());
    two.declare(declare("s3_10_after_close"));
    one.send(channel::Flow { active: false });
    let (code, text, id) = connection.unanswered_close();
    assert_eq!((code, text.as_str(), id), (540, "NOT_IMPLEMENTED - active=false", (20, 20)));
    // None of this is answered, and none of it is done.
    two.publish("", "s3_10_after_close", "x");
    two.send(crate::client::delete("s3_10_after_close"));
    two.send(channel::Flow { active: false });
    connection.send(0, connection::TuneOk { channel_max: 0, frame_max: 0, heartbeat: 0 });
    // A close that crossed ours is answered.
    let close = connection::Close { reply_code: 200, reply_text: "bye", class_id: 0, method_id: 0 };
    connection.send(0, close);
    assert_eq!(connection.next(0).method().id(), connection::CloseOk::ID);
    connection.send(0, connection::CloseOk {});
    connection.expect_eof_within(Duration::from_secs(2));
    let other = open();
    assert_eq!(other.look("s3_10_after_close").ready, 0);
}

#[test]
fn s3_10_a_close_by_the_server_that_is_not_answered_ends_after_the_heartbeat_interval() {
    let mut socket = running(&with_heartbeat(1));
    socket.send(7, channel::CloseOk {});
    while socket.frame().kind != FrameKind::Method {}
    let since = Instant::now();
    loop {
        match socket.read(since + Duration::from_secs(4)) {
            Input::End => break,
            Input::Nothing => panic!("the socket stays open"),
            frame => assert_eq!(frame, heartbeat()),
        }
    }
    assert!(since.elapsed() > Duration::from_millis(800), "closed after {:?}", since.elapsed());
}

#[test]
fn s3_10_update_secret_is_accepted() {
    let connection = connect();
    connection.send(0, connection::UpdateSecret { new_secret: b"guest", reason: "renewed" });
    assert_eq!(connection.next(0).method().id(), connection::UpdateSecretOk::ID);
    connection.channel();
}

#[test]
fn s3_10_an_error_on_channel_0_closes_the_connection_whatever_its_code() {
    let connection = connect();
    connection.send(0, basic::Get { queue: "q", no_ack: true });
    connection.expect_close(504, "unexpected method in connection state running", basic::Get::ID);
}

#[test]
fn s3_10_clients_get_320_when_the_broker_is_told_to_stop() {
    if !broker::is_ours() {
        return;
    }
    let broker = Broker::in_memory();
    let busy = Connection::open(broker.address, &Login::default());
    busy.channel();
    let idle = Connection::open(broker.address, &Login::default());
    broker.signal("TERM");
    for connection in [busy, idle] {
        let text = "broker forced connection closure with reason 'shutdown'";
        connection.expect_close(320, text, MethodId::NONE);
    }
    let exit = broker.wait();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    assert!(exit.took < Duration::from_secs(2), "{exit:?}");
}

#[test]
fn s3_10_a_stop_does_not_wait_for_clients_that_do_not_answer() {
    if !broker::is_ours() {
        return;
    }
    let broker = Broker::in_memory();
    let silent = Connection::open(broker.address, &Login::default());
    let mut in_handshake = Socket::open(broker.address);
    in_handshake.send_bytes(b"AMQP");
    let exit = broker.stop("TERM");
    assert_eq!(exit.code, Some(0), "{exit:?}");
    assert!(exit.took < Duration::from_secs(2), "{exit:?}");
    let (code, text, _) = silent.unanswered_close();
    assert_eq!(
        (code, text.as_str()),
        (320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'")
    );
    silent.expect_eof_within(Duration::from_secs(1));
}

#[test]
fn s3_10_the_other_channels_and_connections_of_a_user_are_not_disturbed() {
    let (faulty, healthy) = (connect(), open());
    healthy.declare(declare("s3_10_healthy"));
    faulty.send(0, Method::TxSelect(leveret_protocol::tx::Select {}));
    faulty.unanswered_close();
    healthy.publish("", "s3_10_healthy", "x");
    assert_eq!(healthy.take("s3_10_healthy").text(), "x");
}
