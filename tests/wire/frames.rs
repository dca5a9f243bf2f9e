//! The protocol header, and frames good and bad (§1.1, §1.2).

use std::time::{Duration, Instant};

use leveret_protocol::{FrameKind, MethodId, PROTOCOL_HEADER, Properties, basic, channel, connection, exchange, queue};

use crate::broker::{self, Broker};
use crate::client::{
    Connection, Input, Login, Socket, connect, consume, declare, header_frame, method_frame, open, publish, raw_frame,
};

/// The smallest frame_max that every RabbitMQ of interest accepts.
const FRAME_MAX: u32 = 8192;

fn small_frames() -> Login<'static> {
    Login { tune: (0, FRAME_MAX, 0), ..Login::default() }
}

fn open_with(login: &Login<'_>) -> Connection {
    Connection::open(broker::shared(), login)
}

#[test]
fn s1_1_both_headers_of_0_9_are_answered_with_connection_start() {
    for header in [b"AMQP\x00\x00\x09\x01", b"AMQP\x01\x01\x00\x09"] {
        let mut socket = Socket::open(broker::shared());
        socket.send_bytes(header);
        let start = socket.method();
        assert_eq!(start.payload[..6], [0, 10, 0, 10, 0, 9], "connection.start 0-9 for {header:?}");
    }
}

#[test]
fn s1_1_every_other_header_is_answered_with_ours_and_the_socket_is_closed() {
    let is_leveret = connect().is_leveret();
    let mut headers = vec![
        *b"AMQP\x00\x00\x08\x00",
        *b"AMQP\x01\x01\x08\x00",
        *b"AMQP\x00\x00\x09\x00",
        *b"AMQP\x00\x00\x09\x02",
        *b"AMQP\x00\x00\x0a\x01",
        *b"AMQP\x02\x00\x00\x00",
        *b"AMQP\xff\xff\xff\xff",
        *b"amqp\x00\x00\x09\x01",
        *b"GET / HT",
        *b"\x16\x03\x01\x02\x00\x01\x00\x01",
        [0; 8],
    ];
    if is_leveret {
        // AMQP 1.0 and its SASL layer, which RabbitMQ 4 speaks.
        headers.extend([*b"AMQP\x00\x01\x00\x00", *b"AMQP\x03\x01\x00\x00"]);
    }
    let sockets = headers.map_sockets();
    for (header, mut socket) in sockets {
        let answer = socket.bytes_until_end();
        if is_leveret {
            assert_eq!(answer, PROTOCOL_HEADER, "to {header:?}");
        } else {
            assert!(answer.len() == 8 && answer.starts_with(b"AMQP"), "to {header:?} came {answer:?}");
        }
    }
}

trait MapSockets {
    fn map_sockets(self) -> Vec<([u8; 8], Socket)>;
}

impl MapSockets for Vec<[u8; 8]> {
    /// Sends each on a connection of its own, all at once.
    fn map_sockets(self) -> Vec<([u8; 8], Socket)> {
        let send = |header: [u8; 8]| {
            let mut socket = Socket::open(broker::shared());
            socket.send_bytes(&header);
            (header, socket)
        };
        self.into_iter().map(send).collect()
    }
}

#[test]
fn s1_1_nothing_is_written_before_the_header_is_complete() {
    let mut socket = Socket::open(broker::shared());
    // Wrong from the first byte on, and still no answer.
    socket.send_bytes(b"HELLO W");
    socket.expect_nothing_for(Duration::from_millis(100));
    socket.send_bytes(b"O");
    let answer = socket.bytes_until_end();
    assert!(answer.len() == 8 && answer.starts_with(b"AMQP"), "{answer:?}");
}

#[test]
fn s1_1_the_header_may_come_byte_by_byte() {
    let mut socket = Socket::open(broker::shared());
    for byte in PROTOCOL_HEADER {
        socket.send_bytes(&[byte]);
    }
    assert_eq!(socket.method().payload[..4], [0, 10, 0, 10]);
}

/// Code, text, and the bytes at fault; sent on a running connection whose channel 1 is open.
#[test]
fn s1_2_broken_frames_end_the_connection() {
    let wrong_end = |payload: &[u8]| {
        let mut frame = raw_frame(1, 1, payload);
        *frame.last_mut().unwrap() = 0xCD;
        frame
    };
    let sixteen: Vec<u8> = (1..=16).collect();
    let seventeen: Vec<u8> = (1..=17).collect();
    let octets = "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16";
    let rows: [(&str, u16, String, Vec<u8>); 9] = [
        (
            "too large",
            501,
            "type 1, all octets = <<>>: {frame_too_large,8193,8184}".to_owned(),
            raw_frame(1, 1, &[0; FRAME_MAX as usize + 1]),
        ),
        (
            "end marker",
            501,
            "type 1, all octets = <<1,2,3>>: {invalid_frame_end_marker,205}".to_owned(),
            wrong_end(&[1, 2, 3]),
        ),
        (
            "end marker, 16 octets",
            501,
            format!("type 1, all octets = <<{octets}>>: {{invalid_frame_end_marker,205}}"),
            wrong_end(&sixteen),
        ),
        (
            "end marker, 17 octets",
            501,
            format!("type 1, first 16 octets = <<{octets}>>: {{invalid_frame_end_marker,205}}"),
            wrong_end(&seventeen),
        ),
        ("unknown type", 501, "type 7, all octets = <<1,2>>: unknown_frame".to_owned(), raw_frame(7, 1, &[1, 2])),
        ("unknown type 0", 501, "type 0, all octets = <<>>: unknown_frame".to_owned(), raw_frame(0, 0, &[])),
        ("heartbeat with payload", 501, "type 8, all octets = <<1>>: unknown_frame".to_owned(), raw_frame(8, 0, &[1])),
        ("heartbeat on a channel", 505, "type 8, all octets = <<>>".to_owned(), raw_frame(8, 1, &[])),
        ("body on channel 0", 505, "type 3, all octets = <<5,6>>".to_owned(), raw_frame(3, 0, &[5, 6])),
    ];
    // All at once: the end of a connection takes its time where no close-ok can be found any more.
    let connections = rows.each_ref().map(|(_, _, _, bytes)| {
        let connection = open_with(&small_frames());
        connection.channel();
        connection.send_bytes(bytes);
        connection
    });
    for ((what, code, text, _), connection) in rows.iter().zip(connections) {
        println!("{what}");
        connection.expect_close(*code, text, MethodId::NONE);
    }
}

#[test]
fn s1_2_a_header_frame_on_channel_0_is_505() {
    let connection = connect();
    connection.send_bytes(&header_frame(0, 60, 0, 1, &[0, 0]));
    let text = "type 2, all octets = <<0,60,0,0,0,0,0,0,0,0,0,1,0,0>>";
    connection.expect_close(505, text, MethodId::NONE);
}

/// Its answer could not be found in the stream. We wait 3 s, RabbitMQ a heartbeat or half a minute.
#[test]
fn s1_2_after_a_framing_error_the_socket_is_closed_also_without_close_ok() {
    let heartbeat = if connect().is_leveret() { 0 } else { 1 };
    let connection = open_with(&Login { tune: (0, 0, heartbeat), ..Login::default() });
    connection.send_bytes(&raw_frame(99, 0, &[]));
    connection.unanswered_close();
    let since = Instant::now();
    connection.expect_eof_within(Duration::from_secs(5));
    assert!(since.elapsed() > Duration::from_millis(700), "{:?}", since.elapsed());
}

#[test]
fn s1_2_undecodable_arguments_are_501() {
    // A byte missing, a byte left over, a string longer than the payload, a table cut short.
    let whole = |method: &[u8]| method[7..method.len() - 1].to_vec();
    let qos = whole(&method_frame(1, basic::Qos { prefetch_size: 0, prefetch_count: 1, global: false }));
    let declare = whole(&method_frame(1, declare("s1_2")));
    let mut longer = qos.clone();
    longer.push(0);
    let mut string_too_long = declare.clone();
    string_too_long[6] = 200;
    let rows = [
        (basic::Qos::ID, qos[..qos.len() - 1].to_vec()),
        (basic::Qos::ID, longer),
        (queue::Declare::ID, string_too_long),
        (queue::Declare::ID, declare[..declare.len() - 2].to_vec()),
    ];
    for (id, payload) in rows {
        let connection = connect();
        connection.channel();
        connection.send_bytes(&raw_frame(1, 1, &payload));
        let octets: Vec<String> = payload[4..].iter().map(u8::to_string).collect();
        connection.expect_close(501, &format!("cannot decode <<{}>>", octets.join(",")), id);
    }
}

#[test]
fn s1_2_a_short_string_argument_that_is_not_utf8_is_501() {
    let connection = connect();
    connection.channel();
    let mut frame = method_frame(1, exchange::Delete { exchange: "abc", if_unused: false, no_wait: false });
    let at = frame.windows(3).position(|window| window == b"abc").unwrap();
    frame[at] = 0xFF;
    connection.send_bytes(&frame);
    connection.expect_close(501, "Malformed UTF-8 in shortstr", MethodId::NONE);
}

/// Some clients forget that the overhead counts, so a payload of frame_max bytes passes.
#[test]
fn s1_2_payloads_of_frame_max_bytes_are_tolerated() {
    let connection = open_with(&small_frames());
    let channel = connection.channel();
    channel.declare(declare("s1_2_tolerated"));
    let body = vec![b'x'; FRAME_MAX as usize];
    channel.send(publish("", "s1_2_tolerated"));
    connection.send_bytes(&header_frame(1, 60, 0, body.len() as u64, &[0, 0]));
    connection.send_bytes(&raw_frame(3, 1, &body));
    assert_eq!(channel.take("s1_2_tolerated").body, body);
}

/// Sizes of the body frames that bring a message of so many bytes to a client with small frames.
fn body_frames(len: usize) -> Vec<usize> {
    let queue = format!("s1_2_body_of_{len}");
    let producer = open();
    producer.declare(declare(&queue));
    producer.publish_with(publish("", &queue), &Properties::default(), &vec![b'x'; len]);
    let mut socket = Socket::tuned(broker::shared(), &small_frames());
    socket.send(0, connection::Open { virtual_host: "/" });
    socket.method();
    socket.send(1, channel::Open {});
    socket.method();
    socket.send(1, consume(&queue, "c"));
    socket.method();
    socket.method();
    assert_eq!(socket.frame().kind, FrameKind::Header);
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < len {
        let frame = socket.frame();
        assert_eq!(frame.kind, FrameKind::Body);
        sizes.push(frame.payload.len());
    }
    // Nothing else belongs to the content.
    socket.send(1, channel::Flow { active: true });
    assert_eq!(socket.method().payload[..4], [0, 20, 0, 21]);
    sizes
}

#[test]
fn s1_2_bodies_are_split_into_frames_of_at_most_frame_max() {
    let max = FRAME_MAX as usize - 8;
    assert_eq!(body_frames(max - 1), [max - 1]);
    assert_eq!(body_frames(max), [max]);
    assert_eq!(body_frames(max + 1), [max, 1]);
    assert_eq!(body_frames(3 * max + 7), [max, max, max, 7]);
    assert_eq!(body_frames(70_000).len(), 9);
}

#[test]
fn s1_2_an_empty_body_has_no_body_frame() {
    assert_eq!(body_frames(0), [] as [usize; 0]);
    // And with only a header frame a publish is complete.
    let channel = open();
    channel.declare(declare("s1_2_empty"));
    channel.send(publish("", "s1_2_empty"));
    channel.connection.send_bytes(&header_frame(1, 60, 0, 0, &[0, 0]));
    assert!(channel.take("s1_2_empty").body.is_empty());
}

#[test]
fn s1_2_empty_body_frames_in_between_are_tolerated() {
    let channel = open();
    channel.declare(declare("s1_2_gaps"));
    channel.send(publish("", "s1_2_gaps"));
    channel.connection.send_bytes(&header_frame(1, 60, 0, 4, &[0, 0]));
    for piece in [&b""[..], b"ab", b"", b"", b"c", b"d"] {
        channel.connection.send_bytes(&raw_frame(3, 1, piece));
    }
    assert_eq!(channel.take("s1_2_gaps").text(), "abcd");
}

#[test]
fn s1_2_contents_of_different_channels_may_be_interleaved() {
    let connection = connect();
    let (one, two) = (connection.channel(), connection.channel());
    one.declare(declare("s1_2_one"));
    two.declare(declare("s1_2_two"));
    one.send(publish("", "s1_2_one"));
    two.send(publish("", "s1_2_two"));
    connection.send_bytes(&header_frame(1, 60, 0, 2, &[0, 0]));
    connection.send_bytes(&raw_frame(3, 1, b"a"));
    connection.send_bytes(&header_frame(2, 60, 0, 2, &[0, 0]));
    connection.send_bytes(&raw_frame(3, 2, b"x"));
    connection.send_bytes(&raw_frame(8, 0, b""));
    connection.send_bytes(&raw_frame(3, 1, b"b"));
    connection.send_bytes(&raw_frame(3, 2, b"y"));
    assert_eq!(one.take("s1_2_one").text(), "ab");
    assert_eq!(two.take("s1_2_two").text(), "xy");
}

#[test]
fn s1_2_the_smallest_frame_max_of_older_clients_works() {
    if !broker::is_ours() {
        return;
    }
    let broker = Broker::start(["--ephemeral", "--compat", "4.0"]);
    let login = Login { tune: (0, 4096, 0), ..Login::default() };
    let channel = Connection::open(broker.address, &login).channel();
    channel.declare(declare("s1_2_4096"));
    let body = vec![b'x'; 10_000];
    channel.publish_with(publish("", "s1_2_4096"), &Properties::default(), &body);
    // The client looks that no frame is larger.
    assert_eq!(channel.take("s1_2_4096").body, body);
}

#[test]
fn s1_2_frames_may_come_in_any_pieces() {
    let connection = connect();
    let channel = connection.channel();
    channel.declare(declare("s1_2_pieces"));
    let mut bytes = method_frame(1, publish("", "s1_2_pieces"));
    bytes.extend(header_frame(1, 60, 0, 3, &[0, 0]));
    bytes.extend(raw_frame(3, 1, b"abc"));
    for byte in bytes {
        connection.send_bytes(&[byte]);
    }
    assert_eq!(channel.take("s1_2_pieces").text(), "abc");
}

#[test]
fn s1_2_a_heartbeat_may_come_at_any_time() {
    let mut socket = Socket::tuned(broker::shared(), &Login::default());
    let heartbeat = raw_frame(8, 0, b"");
    socket.send_bytes(&heartbeat);
    socket.send(0, connection::Open { virtual_host: "/" });
    assert_eq!(socket.method().payload[..4], [0, 10, 0, 41]);
    socket.send_bytes(&heartbeat.repeat(3));
    socket.send(1, channel::Open {});
    assert_eq!(socket.method().payload[..4], [0, 20, 0, 11]);
    assert_eq!(socket.read(Instant::now() + Duration::from_millis(20)), Input::Nothing);
}
