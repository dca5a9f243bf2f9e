//! Queues, exchanges and messages over HTTP (management reference 1.8).

use serde_json::json;

use crate::access::{refused, start};

#[test]
fn s1_8_queues_are_declared_by_the_rules_of_amqp() {
    let (_broker, http) = start();
    assert_eq!(http.put("/api/queues/%2F/a%2Fb", json!({"durable": true})).status, 201);
    assert_eq!(http.put("/api/queues/%2F/a%2Fb", json!({"durable": "true"})).status, 204);
    let text = "inequivalent arg 'durable' for queue 'a/b' in vhost '/': received 'false' but current is 'true'";
    refused(&http.put("/api/queues/%2F/a%2Fb", json!({})), 400, "bad_request", text);
    refused(&http.put("/api/queues/none/q", json!({})), 404, "not_found", "vhost_not_found");
    refused(&http.put("/api/queues/%2F/amq.x", json!({})), 401, "not_authorised", "Access refused.");
    let null = json!({"arguments": {"x": null}});
    refused(&http.put("/api/queues/%2F/q", null), 400, "bad_request", "null_not_allowed");
    assert_eq!(http.put("/api/queues/%2F/q", json!({"arguments": []})).status, 201);
    assert_eq!(http.delete("/api/queues/%2F/q").status, 204);
    refused(&http.delete("/api/queues/%2F/q"), 404, "Object Not Found", "Not Found");
}

#[test]
fn s1_8_publish_and_get() {
    let (_broker, http) = start();
    http.put("/api/queues/%2F/q", json!({}));
    let message = |key: &str| {
        json!({"routing_key": key, "payload": "eyJpZCI6MX0=", "payload_encoding": "base64",
               "properties": {"delivery_mode": 2, "headers": {"n": 1}, "type": "t"}})
    };
    let publish = "/api/exchanges/%2F/amq.default/publish";
    assert_eq!(http.post(publish, message("q")).json(), json!({"routed": true}));
    assert_eq!(http.post(publish, message("none")).json(), json!({"routed": false}));
    refused(&http.post("/api/exchanges/%2F/none/publish", message("q")), 404, "not_found", "exchange_not_found");
    let missing = "[{key_missing,routing_key},\n {key_missing,properties},\n {key_missing,payload},\n \
                   {key_missing,payload_encoding}]";
    refused(&http.post(publish, json!({})), 400, "bad_request", missing);
    let get = |mode: &str| {
        http.post("/api/queues/%2F/q/get", json!({"count": 5, "ackmode": mode, "encoding": "auto"})).json()
    };
    let expected = |redelivered| {
        json!([{"payload_bytes": 8, "redelivered": redelivered, "exchange": "", "routing_key": "q",
                "message_count": 0, "properties": {"type": "t", "delivery_mode": 2, "headers": {"n": 1}},
                "payload": "{\"id\":1}", "payload_encoding": "string"}])
    };
    assert_eq!(get("ack_requeue_true"), expected(false));
    assert_eq!(get("reject_requeue_true"), expected(true));
    assert_eq!(get("ack_requeue_false"), expected(true));
    assert_eq!(get("ack_requeue_false"), json!([]));
    refused(
        &http.post("/api/queues/%2F/none/get", json!({"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"})),
        404,
        "not_found",
        "queue_not_found",
    );
    assert_eq!(http.delete("/api/queues/%2F/q/contents").status, 204);
}

#[test]
fn s1_8_a_full_queue_that_rejects_is_a_400() {
    let (_broker, http) = start();
    let arguments = json!({"x-max-length": 0, "x-overflow": "reject-publish"});
    http.put("/api/queues/%2F/full", json!({"arguments": arguments}));
    let message = json!({"routing_key": "full", "payload": "x", "payload_encoding": "string", "properties": {}});
    let answer = http.post("/api/exchanges/%2F/amq.default/publish", message);
    refused(&answer, 400, "bad_request", "rejected Unable to publish message.  Check queue limits.");
}

#[test]
fn s1_8_exchanges() {
    let (_broker, http) = start();
    assert_eq!(http.put("/api/exchanges/%2F/e", json!({"type": "topic", "durable": true})).status, 201);
    assert_eq!(http.put("/api/exchanges/%2F/e", json!({"type": "topic", "durable": true})).status, 204);
    let unknown = http.put("/api/exchanges/%2F/x", json!({"type": "nosuch"}));
    refused(&unknown, 400, "bad_request", "unknown exchange type 'nosuch'");
    refused(&http.delete("/api/exchanges/%2F/amq.topic"), 401, "not_authorised", "Access refused.");
    assert_eq!(http.delete("/api/exchanges/%2F/e").status, 204);
    assert_eq!(http.delete("/api/exchanges/%2F/e").status, 404);
}
