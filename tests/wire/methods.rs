//! Methods at the wrong place (§2.1), and what belongs to no other section (§2).

use leveret_protocol::{Method, MethodId, access, basic, channel, connection, queue};

use crate::client::{connect, declare, header_frame, open, raw_frame};

#[test]
fn s2_access_request_is_always_granted_with_ticket_1() {
    let request =
        |read| access::Request { realm: "/data", exclusive: true, passive: true, active: true, write: true, read };
    let channel = open();
    for read in [false, true] {
        let answer = channel.call(request(read), access::RequestOk::ID);
        assert_eq!(answer.method(), access::RequestOk { ticket: 1 }.into());
    }
}

#[test]
fn s2_a_ticket_of_any_value_is_ignored() {
    let channel = open();
    let mut frame = crate::client::method_frame(1, declare("s2_ticket"));
    frame[11..13].copy_from_slice(&[0xAB, 0xCD]);
    channel.connection.send_bytes(&frame);
    channel.expect(queue::DeclareOk::ID);
}

/// RabbitMQ's reader dies on it.
#[test]
fn s2_1_an_unknown_method_is_503() {
    if !connect().is_leveret() {
        return;
    }
    for (class, method) in [(60, 99), (99, 10), (0, 0), (10, 99)] {
        let connection = connect();
        connection.channel();
        let mut payload = Vec::new();
        payload.extend(u16::to_be_bytes(class));
        payload.extend(u16::to_be_bytes(method));
        connection.send_bytes(&raw_frame(1, 1, &payload));
        connection.expect_close(503, "unimplemented method", MethodId { class, method });
    }
}

#[test]
fn s2_1_connection_methods_on_a_channel_are_503() {
    let close = connection::Close { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 };
    let methods: [Method<'_>; 3] =
        [close.into(), connection::Open { virtual_host: "/" }.into(), connection::CloseOk {}.into()];
    for method in methods {
        open().refuses_hard(method, 503, "unimplemented method");
    }
}

#[test]
fn s2_1_methods_that_only_a_server_sends_are_503() {
    let methods: [Method<'_>; 6] = [
        queue::DeclareOk { queue: "q", message_count: 0, consumer_count: 0 }.into(),
        channel::OpenOk {}.into(),
        basic::ConsumeOk { consumer_tag: "c" }.into(),
        basic::GetEmpty {}.into(),
        basic::QosOk {}.into(),
        leveret_protocol::confirm::SelectOk {}.into(),
    ];
    for method in methods {
        println!("{}", method.name());
        open().refuses_hard(method, 503, "unimplemented method");
    }
}

/// A content must follow before it is refused.
#[test]
fn s2_1_contents_that_only_a_server_sends_are_503_after_their_header() {
    let deliver =
        basic::Deliver { consumer_tag: "c", delivery_tag: 1, redelivered: false, exchange: "", routing_key: "q" };
    let get_ok = basic::GetOk { delivery_tag: 1, redelivered: false, exchange: "", routing_key: "q", message_count: 0 };
    let returned = basic::Return { reply_code: 312, reply_text: "NO_ROUTE", exchange: "", routing_key: "q" };
    let methods: [Method<'_>; 3] = [deliver.into(), get_ok.into(), returned.into()];
    for method in methods {
        let channel = open();
        let id = method.id();
        channel.send(method);
        channel.connection.expect_nothing_for(std::time::Duration::from_millis(30));
        channel.connection.send_bytes(&header_frame(1, 60, 0, 0, &[0, 0]));
        channel.connection.expect_close(503, "unimplemented method", id);
    }
}

#[test]
fn s2_1_other_methods_on_channel_0_are_504() {
    let text = "unexpected method in connection state running";
    let methods: [Method<'_>; 4] = [
        channel::Open {}.into(),
        declare("q").into(),
        basic::Ack { delivery_tag: 1, multiple: false }.into(),
        leveret_protocol::tx::Select {}.into(),
    ];
    for method in methods {
        let connection = connect();
        let id = method.id();
        connection.send(0, method);
        connection.expect_close(504, text, id);
    }
}

#[test]
fn s2_1_connection_methods_out_of_their_order_are_504() {
    let text = "unexpected method in connection state running";
    let methods: [Method<'_>; 3] = [
        connection::Open { virtual_host: "/" }.into(),
        connection::TuneOk { channel_max: 1, frame_max: 8192, heartbeat: 0 }.into(),
        connection::SecureOk { response: b"" }.into(),
    ];
    for method in methods {
        let connection = connect();
        let id = method.id();
        connection.send(0, method);
        connection.expect_close(504, text, id);
    }
}

#[test]
fn s2_1_anything_but_channel_open_on_an_unopened_channel_is_504() {
    let close = channel::Close { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 };
    let methods: [Method<'_>; 4] = [
        declare("q").into(),
        close.into(),
        channel::CloseOk {}.into(),
        basic::Qos { prefetch_size: 0, prefetch_count: 0, global: false }.into(),
    ];
    for method in methods {
        println!("{}", method.name());
        connect().channel_number(7).refuses_hard(method, 504, "expected 'channel.open'");
    }
}

#[test]
fn s2_1_a_publish_on_an_unopened_channel_is_504() {
    let channel = connect().channel_number(7);
    channel.publish("", "q", "x");
    channel.connection.expect_close(504, "expected 'channel.open'", basic::Publish::ID);
}

#[test]
fn s2_1_opening_an_open_channel_is_504() {
    open().refuses_hard(channel::Open {}, 504, "second 'channel.open' seen");
}
