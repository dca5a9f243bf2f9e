//! From the header to connection.open-ok, and what goes wrong on the way (§3.1 to §3.6).

use std::time::{Duration, Instant};

use leveret_protocol::{
    FieldValue, Method, MethodId, PROTOCOL_HEADER, channel, connection, put_long_string, put_short_string,
};

use crate::broker::{self, Broker};
use crate::client::{Connection, Input, Login, Socket, connect, declare, method_frame, raw_frame, table, text};

/// The socket is closed without a word, and not at once.
#[track_caller]
fn expect_silent_close(mut socket: Socket, since: Instant, what: &str) {
    let came = socket.read(since + Duration::from_secs(6));
    assert_eq!(came, Input::End, "{what}");
    let took = since.elapsed();
    assert!(took > Duration::from_millis(2500), "{what}: closed after {took:?}");
}

/// A client that does not know `authentication_failure_close`.
fn old_client() -> Login<'static> {
    Login { properties: table([]), ..Login::default() }
}

#[test]
fn s3_1_tune_ok_and_open_may_be_sent_together() {
    let login = Login::default();
    let (mut socket, _) = Socket::greet(broker::shared());
    socket.log_in(&login);
    let mut bytes = method_frame(0, connection::TuneOk { channel_max: 10, frame_max: 8192, heartbeat: 0 });
    bytes.extend(method_frame(0, connection::Open { virtual_host: "/" }));
    bytes.extend(method_frame(1, channel::Open {}));
    socket.send_bytes(&bytes);
    assert_eq!(socket.frame().payload, [0, 10, 0, 41, 0]);
    assert_eq!(socket.frame().payload, [0, 20, 0, 11, 0, 0, 0, 0]);
}

#[test]
fn s3_1_the_whole_handshake_may_be_sent_at_once() {
    if !connect().is_leveret() {
        return;
    }
    let login = Login::default();
    let mut socket = Socket::open(broker::shared());
    socket.send_bytes(&PROTOCOL_HEADER);
    socket.send_start_ok(&login);
    socket.send(0, connection::TuneOk { channel_max: 10, frame_max: 8192, heartbeat: 0 });
    socket.send(0, connection::Open { virtual_host: "/" });
    for expected in [10, 30, 41] {
        assert_eq!(socket.method().payload[..4], [0, 10, 0, expected]);
    }
}

#[test]
fn s3_1_a_socket_closed_before_any_byte_harms_nobody() {
    for _ in 0..10 {
        drop(Socket::open(broker::shared()));
    }
    connect();
}

#[test]
fn s3_1_an_unfinished_handshake_is_cut_off_without_a_frame() {
    if !broker::is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rabbitmq.conf");
    std::fs::write(&file, "handshake_timeout = 400\n").unwrap();
    let broker = Broker::start(["--ephemeral", "--config", file.to_str().unwrap()]);
    let since = Instant::now();
    let silent = Socket::open(broker.address);
    let (greeted, _) = Socket::greet(broker.address);
    let tuned = Socket::tuned(broker.address, &Login::default());
    for mut socket in [silent, greeted, tuned] {
        socket.expect_eof_within(Duration::from_secs(3));
        assert!(since.elapsed() >= Duration::from_millis(400), "{:?}", since.elapsed());
    }
}

#[test]
fn s3_2_connection_start_says_what_the_server_can_do() {
    let mut socket = Socket::open(broker::shared());
    socket.send_bytes(&PROTOCOL_HEADER);
    let frame = socket.method();
    let Method::ConnectionStart(start) = Method::decode(&frame.payload).unwrap() else { panic!("{frame:?}") };
    assert_eq!((start.version_major, start.version_minor), (0, 9));
    let mechanisms = std::str::from_utf8(start.mechanisms).unwrap();
    for mechanism in ["PLAIN", "AMQPLAIN"] {
        assert!(mechanisms.split(' ').any(|word| word == mechanism), "{mechanisms}");
    }
    assert_eq!(start.locales, b"en_US");
    let properties = &start.server_properties;
    for name in ["cluster_name", "copyright", "information", "platform", "version"] {
        assert!(properties.get(name).and_then(FieldValue::as_str).is_some_and(|text| !text.is_empty()), "{name}");
    }
    assert_eq!(properties.get("product"), Some(&text("RabbitMQ")));
    let mut names: Vec<_> = properties.iter().map(|(name, _)| name.clone()).collect();
    names.sort();
    assert!(properties.iter().map(|(name, _)| name).eq(&names), "sorted by name: {properties:?}");
    let version = properties.get("version").and_then(FieldValue::as_str).unwrap();
    assert!(version.split('.').count() == 3 && version.split('.').all(|part| part.parse::<u32>().is_ok()), "{version}");
    let capabilities = properties.get("capabilities").and_then(FieldValue::as_table).expect("capabilities is a table");
    for name in [
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ] {
        assert_eq!(capabilities.get(name), Some(&FieldValue::Bool(true)), "{name}");
    }
}

#[test]
fn s3_2_client_properties_of_any_kind_are_accepted() {
    let strange = table([
        ("capabilities", text("not a table")),
        ("nested", table([("deep", FieldValue::Array(vec![FieldValue::Void, FieldValue::I8(-1)]))]).into()),
        ("connection_name", FieldValue::I32(5)),
        ("product", FieldValue::Void),
    ]);
    Connection::open(broker::shared(), &Login { properties: strange, ..Login::default() }).channel();
}

fn amqplain<const N: usize>(fields: [(&str, FieldValue); N]) -> Vec<u8> {
    let mut out = bytes::BytesMut::new();
    leveret_protocol::put_table(&mut out, &table(fields));
    // The response has no length in front.
    out[4..].to_vec()
}

#[test]
fn s3_3_amqplain_logs_in_with_strings_or_bytes() {
    let strings = amqplain([("LOGIN", text("guest")), ("PASSWORD", text("guest"))]);
    let bytes = amqplain([
        ("PASSWORD", FieldValue::ByteArray("guest".into())),
        ("other", FieldValue::Void),
        ("LOGIN", FieldValue::ByteArray("guest".into())),
    ]);
    for response in [strings, bytes] {
        let login = Login { mechanism: "AMQPLAIN", response: &response, ..Login::default() };
        Connection::open(broker::shared(), &login).channel();
    }
}

#[test]
fn s3_3_a_refused_login_is_403_for_clients_that_know_it() {
    let amqplain = amqplain([("LOGIN", text("guest")), ("PASSWORD", text("wrong"))]);
    let rows: [(&str, &str, &[u8]); 5] = [
        ("wrong password", "PLAIN", b"\0guest\0wrong"),
        ("unknown user", "PLAIN", b"\0nobody\0guest"),
        ("empty password", "PLAIN", b"\0guest\0"),
        ("empty user", "PLAIN", b"\0\0guest"),
        ("wrong password, AMQPLAIN", "AMQPLAIN", &amqplain),
    ];
    for (what, mechanism, response) in rows {
        println!("{what}");
        let (mut socket, _) = Socket::greet(broker::shared());
        socket.send_start_ok(&Login { mechanism, response, ..Login::default() });
        let text = format!(
            "Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
        );
        socket.expect_connection_close(403, &text, MethodId::NONE);
    }
}

#[test]
fn s3_3_everything_else_that_is_wrong_with_a_login_is_a_silent_close_after_3_seconds() {
    let no_password = amqplain([("LOGIN", text("guest"))]);
    let (old, new) = (old_client, Login::default);
    let rows = [
        ("wrong password, old client", Login { response: b"\0guest\0wrong", ..old() }),
        ("unknown user, old client", Login { response: b"\0nobody\0guest", ..old() }),
        ("unknown mechanism", Login { mechanism: "CRAM-MD5", ..new() }),
        ("mechanism in lower case", Login { mechanism: "plain", ..new() }),
        ("no mechanism", Login { mechanism: "", ..new() }),
        ("PLAIN without NUL", Login { response: b"guest", ..new() }),
        ("PLAIN with one NUL", Login { response: b"\0guest", ..new() }),
        ("PLAIN with an authorization id", Login { response: b"other\0guest\0guest", ..new() }),
        ("AMQPLAIN without password", Login { mechanism: "AMQPLAIN", response: &no_password, ..new() }),
        ("AMQPLAIN, no table", Login { mechanism: "AMQPLAIN", response: b"\x05LO", ..new() }),
    ];
    let since = Instant::now();
    let waiting = rows.map(|(what, login)| {
        let (mut socket, _) = Socket::greet(broker::shared());
        socket.send_start_ok(&login);
        (what, socket)
    });
    for (what, socket) in waiting {
        expect_silent_close(socket, since, what);
    }
}

#[test]
fn s3_4_the_server_proposes_its_limits() {
    let (mut socket, _) = Socket::greet(broker::shared());
    let tune = socket.log_in(&Login::default());
    assert_eq!(tune, connection::Tune { channel_max: 2047, frame_max: 131_072, heartbeat: 60 });
}

/// RabbitMQ closes the socket without a word, after 3 s. A text that names both values helps more.
#[test]
fn s3_4_limits_over_the_proposal_are_530() {
    if !connect().is_leveret() {
        return;
    }
    let rows = [
        (2047, 131_073, "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)"),
        (2047, u32::MAX, "negotiated frame_max = 4294967295 is higher than the maximum allowed value (131072)"),
        (2047, 0, "negotiated frame_max = 0 is higher than the maximum allowed value (131072)"),
        (2048, 131_072, "negotiated channel_max = 2048 is higher than the maximum allowed value (2047)"),
        (0, 131_072, "negotiated channel_max = 0 (no limit) is higher than the maximum allowed value (2047)"),
    ];
    for (channel_max, frame_max, text) in rows {
        let (mut socket, _) = Socket::greet(broker::shared());
        socket.log_in(&Login::default());
        socket.send(0, connection::TuneOk { channel_max, frame_max, heartbeat: 0 });
        socket.expect_connection_close(530, text, connection::Tune::ID);
    }
}

#[test]
fn s3_4_a_frame_max_under_the_minimum_is_530() {
    let server = connect();
    if !server.is_leveret() {
        return; // As above.
    }
    let least = if server.version() < (4, 1) { 4096 } else { 8192 };
    for frame_max in [1, 100, least - 1] {
        let (mut socket, _) = Socket::greet(broker::shared());
        socket.log_in(&Login::default());
        socket.send(0, connection::TuneOk { channel_max: 1, frame_max, heartbeat: 0 });
        let text = format!("negotiated frame_max = {frame_max} is lower than the minimum allowed value ({least})");
        socket.expect_connection_close(530, &text, connection::Tune::ID);
    }
}

#[test]
fn s3_4_lower_limits_and_any_heartbeat_are_accepted() {
    for tune in [(1, 8192, 0), (2047, 131_072, 60), (100, 8193, 65_535)] {
        Connection::open(broker::shared(), &Login { tune, ..Login::default() }).channel();
    }
}

#[test]
fn s3_5_an_unknown_vhost_is_530() {
    for vhost in ["nope", "", "//", "/ "] {
        let mut socket = Socket::tuned(broker::shared(), &Login::default());
        socket.send(0, connection::Open { virtual_host: vhost });
        socket.expect_connection_close(530, &format!("vhost {vhost} not found"), connection::Open::ID);
    }
}

#[test]
fn s3_5_a_refusal_that_is_not_answered_ends_by_itself() {
    let mut socket = Socket::tuned(broker::shared(), &Login { tune: (0, 0, 1), ..Login::default() });
    socket.send(0, connection::Open { virtual_host: "nope" });
    assert_eq!(socket.method().payload[..4], [0, 10, 0, 50]);
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match socket.read(deadline) {
            Input::End => break,
            // Heartbeats may go on.
            Input::Frame(frame) => assert!(frame.payload.is_empty(), "{frame:?}"),
            Input::Nothing => panic!("the socket stays open"),
        }
    }
}

#[test]
fn s3_6_offences_before_tune_ok_are_a_silent_close_after_3_seconds() {
    let close = || connection::Close { reply_code: 200, reply_text: "bye", class_id: 0, method_id: 0 };
    let mut huge = bytes::BytesMut::new();
    put_short_string(&mut huge, b"huge");
    huge.extend_from_slice(b"S");
    put_long_string(&mut huge, &[b'x'; 140_000]);
    let before_login: [(&str, Vec<u8>); 7] = [
        ("wrong method", method_frame(0, connection::Open { virtual_host: "/" })),
        ("close", method_frame(0, close())),
        ("a frame on a channel", method_frame(1, channel::Open {})),
        ("an oversized frame", raw_frame(1, 0, &huge)),
        ("arguments that do not decode", raw_frame(1, 0, &[0, 10, 0, 11, 9])),
        ("a wrong frame end", {
            let mut frame = method_frame(0, close());
            *frame.last_mut().unwrap() = 0;
            frame
        }),
        ("an unknown frame type", raw_frame(42, 0, &[])),
    ];
    let before_tune_ok = [
        ("open instead of tune-ok", method_frame(0, connection::Open { virtual_host: "/" })),
        ("start-ok again", {
            let properties = table([]);
            let response = b"\0guest\0guest";
            let start_ok =
                connection::StartOk { client_properties: properties, mechanism: "PLAIN", response, locale: "" };
            method_frame(0, start_ok)
        }),
        ("a frame on a channel instead of tune-ok", method_frame(1, channel::Open {})),
    ];
    let since = Instant::now();
    let mut waiting = Vec::new();
    for (what, bytes) in before_login {
        let (mut socket, _) = Socket::greet(broker::shared());
        socket.send_bytes(&bytes);
        waiting.push((what, socket));
    }
    for (what, bytes) in before_tune_ok {
        let (mut socket, _) = Socket::greet(broker::shared());
        socket.log_in(&Login::default());
        socket.send_bytes(&bytes);
        waiting.push((what, socket));
    }
    for (what, socket) in waiting {
        expect_silent_close(socket, since, what);
    }
}

#[test]
fn s3_6_a_wrong_method_instead_of_open_is_504() {
    let mut socket = Socket::tuned(broker::shared(), &Login::default());
    socket.send(0, connection::TuneOk { channel_max: 1, frame_max: 8192, heartbeat: 0 });
    let text = "unexpected method in connection state opening";
    socket.expect_connection_close(504, text, connection::TuneOk::ID);
    let mut socket = Socket::tuned(broker::shared(), &Login::default());
    socket.send(0, connection::Close { reply_code: 200, reply_text: "bye", class_id: 0, method_id: 0 });
    socket.expect_connection_close(504, text, connection::Close::ID);
}

#[test]
fn s3_6_a_frame_on_a_channel_before_open_is_505() {
    let mut socket = Socket::tuned(broker::shared(), &Login::default());
    socket.send(1, channel::Open {});
    socket.expect_connection_close(505, "type 1, all octets = <<0,20,0,10,0>>", MethodId::NONE);
    let mut socket = Socket::tuned(broker::shared(), &Login::default());
    socket.send(1, declare("s3_6_"));
    let text = "type 1, first 16 octets = <<0,50,0,10,0,0,5,115,51,95,54,95,2,0,0,0>>";
    socket.expect_connection_close(505, text, MethodId::NONE);
}

#[test]
fn s3_6_heartbeats_during_the_handshake_are_ignored() {
    let heartbeat = raw_frame(8, 0, b"");
    let login = Login::default();
    let (mut socket, _) = Socket::greet(broker::shared());
    socket.send_bytes(&heartbeat);
    let tune = socket.log_in(&login);
    socket.send_bytes(&heartbeat);
    socket.send(0, crate::client::tune_ok(&login, &tune));
    socket.send_bytes(&heartbeat);
    socket.send(0, connection::Open { virtual_host: "/" });
    assert_eq!(socket.method().payload[..4], [0, 10, 0, 41]);
}
