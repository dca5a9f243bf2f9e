//! Lists and what they show (management reference 1.3, 1.6, 1.7, 1.8).

use std::time::{Duration, Instant};

use leveret_protocol::MethodId;
use serde_json::{Value, json};

use crate::access::{refused, start};
use crate::client::{Connection, Login, consume, declare, table, text};

#[test]
fn s1_8_counts_are_live() {
    let (broker, http) = start();
    let connection = Connection::open(broker.address, &Login::default());
    let channel = connection.channel();
    channel.confirm_select();
    channel.declare(declare("q"));
    for _ in 0..3 {
        channel.publish("", "q", "hello");
    }
    channel.wait_for_confirms(3);
    channel.qos(1, false);
    channel.consume(consume("q", "c"));
    let delivery = channel.delivery();
    let queue = http.get("/api/queues/%2F/q").json();
    let fields = ["messages", "messages_ready", "messages_unacknowledged", "consumers", "message_bytes_ready"];
    assert_eq!(fields.map(|field| queue[field].clone()), [3, 2, 1, 1, 10].map(Value::from));
    assert_eq!(queue["message_stats"]["publish"], 3);
    assert_eq!((&queue["message_stats"]["deliver"], &queue["message_stats"]["ack"]), (&json!(1), &json!(0)));
    assert_eq!(queue["arguments"], json!({"x-queue-type": "classic"}));
    assert_eq!(
        (&queue["type"], &queue["state"], &queue["policy"]),
        (&json!("classic"), &json!("running"), &Value::Null)
    );
    assert_eq!(queue["consumer_details"][0]["consumer_tag"], "c");
    channel.ack(delivery.tag);
    channel.delivery();
    let overview = http.get("/api/overview").json();
    assert_eq!(overview["queue_totals"]["messages"], 2);
    assert_eq!(overview["message_stats"]["ack"], 1);
    let totals = json!({"channels": 1, "connections": 1, "consumers": 1, "exchanges": 7, "queues": 1});
    assert_eq!(overview["object_totals"], totals);
    let consumer = &http.get("/api/consumers/%2F").json()[0];
    assert_eq!((&consumer["queue"], &consumer["prefetch_count"]), (&json!({"name": "q", "vhost": "/"}), &json!(1)));
    let channels = http.get("/api/channels").json();
    assert_eq!((&channels[0]["confirm"], &channels[0]["messages_unacknowledged"]), (&json!(true), &json!(1)));
}

#[test]
fn s1_7_a_connection_is_listed_at_once_and_can_be_closed() {
    let (broker, http) = start();
    let properties = table([("connection_name", text("tests")), ("product", text("p"))]);
    let connection = Connection::open(broker.address, &Login { properties, ..Login::default() });
    let all = http.get("/api/connections").json();
    let one = &all[0];
    assert_eq!((one["user_provided_name"].as_str(), one["state"].as_str()), (Some("tests"), Some("running")));
    assert_eq!(one["client_properties"]["product"], "p");
    let name = one["name"].as_str().unwrap();
    let path = format!("/api/connections/{}", name.replace(' ', "%20").replace('>', "%3E"));
    assert_eq!(http.get(&path).json()["name"], *name);
    assert_eq!(http.send_with("DELETE", &path, &[("x-reason", "enough")], b"").status, 204);
    connection.expect_close(320, "enough", MethodId::NONE);
    let gone = Instant::now();
    while http.get(&path).status != 404 {
        assert!(gone.elapsed() < Duration::from_secs(5));
    }
    assert_eq!(http.delete(&path).status, 404);
    let other = Connection::open(broker.address, &Login::default());
    assert_eq!(http.delete("/api/connections/username/guest").status, 204);
    other.expect_close(320, "Closed via management plugin", MethodId::NONE);
}

#[test]
fn s1_8_bindings_and_their_keys() {
    let (_broker, http) = start();
    http.put("/api/queues/%2F/q", json!({}));
    let ends = "/api/bindings/%2F/e/amq.topic/q/q";
    for (key, encoded) in [("order.#", "order.%2523"), ("a b", "a%2Bb"), ("~", "%257E"), ("", "~")] {
        let bound = http.post(ends, json!({"routing_key": key}));
        assert_eq!((bound.status, bound.text().as_str()), (201, ""), "{key}");
        let location = bound.header("location").unwrap();
        assert_eq!(http.get(&format!("{ends}/{}", location.strip_prefix("q/").unwrap())).json()["routing_key"], key);
        assert_eq!(http.delete(&format!("{ends}/{encoded}")).status, 204, "{key}");
    }
    http.post(ends, json!({"routing_key": "x.#", "arguments": {"a": 1}}));
    assert_eq!(http.get(&format!("{ends}/x.%23")).status, 404, "it has arguments");
    let bindings = http.get("/api/queues/%2F/q/bindings").json();
    assert_eq!(bindings[0]["source"], "");
    let key = bindings[1]["properties_key"].as_str().unwrap();
    assert_eq!(bindings[1]["arguments"], json!({"a": 1}));
    assert_eq!(http.delete(&format!("{ends}/{key}")).status, 204, "pasted as it is");
    let missing = http.post("/api/bindings/%2F/e/amq.topic/q/none", json!({}));
    refused(&missing, 404, "not_found", "no queue 'none' in vhost '/'");
    assert_eq!(http.post("/api/bindings/%2F/e/amq.topic/e/amq.fanout", json!({})).status, 201);
    let of_source = http.get("/api/exchanges/%2F/amq.topic/bindings/source").json();
    assert_eq!(of_source[0]["destination_type"], "exchange");
    assert_eq!(http.get("/api/exchanges/%2F/amq.fanout/bindings/destination").json(), of_source);
}

#[test]
fn s1_3_queues_are_paged_filtered_sorted_and_cut() {
    let (broker, http) = start();
    let connection = Connection::open(broker.address, &Login::default());
    let channel = connection.channel();
    for number in 0..300 {
        channel.declare(declare(&format!("q{number:03}")));
    }
    channel.confirm_select();
    channel.publish("", "q123", "m");
    channel.wait_for_confirms(1);
    let all = http.get("/api/queues").json();
    let names: Vec<&str> = all.as_array().unwrap().iter().map(|queue| queue["name"].as_str().unwrap()).collect();
    assert_eq!((names.len(), names[0], names[299]), (300, "q000", "q299"));
    assert_eq!(http.get("/api/queues//").json().as_array().unwrap().len(), 300);
    let page = http.get("/api/queues/%2F?page=2&page_size=5&name=Q1&columns=name").json();
    let counts = ["total_count", "filtered_count", "item_count", "page", "page_size", "page_count"];
    assert_eq!(counts.map(|field| page[field].clone()), [300, 100, 5, 2, 5, 20].map(Value::from));
    assert_eq!(page["items"][0], json!({"name": "q105"}));
    let regex = http.get("/api/queues?page=1&use_regex=true&name=%5Eq00%5B12%5D%24&pagination=false").json();
    assert_eq!(regex["item_count"], 2);
    let sorted = http.get("/api/queues?sort=messages&sort_reverse=true&columns=name,message_stats.publish").json();
    assert_eq!(sorted[0], json!({"name": "q123", "message_stats": {"publish": 1}}));
    refused(
        &http.get("/api/queues?page=9"),
        400,
        "page_out_of_range",
        "Page out of range, page: 9 page size: 100, len: 300",
    );
    assert_eq!(http.get("/api/queues?page=1&name=none").json()["items"], json!([]));
    assert_eq!(http.put("/api/vhosts/empty", json!({})).status, 201);
    assert_eq!(http.get("/api/queues/empty").json(), json!([]));
}

#[test]
fn s1_6_the_node() {
    let (_broker, http) = start();
    let nodes = http.get("/api/nodes").json();
    let name = nodes[0]["name"].as_str().unwrap();
    assert!(name.starts_with("rabbit@") && nodes[0]["mem_used"].as_u64().unwrap() > 1 << 20);
    let node = http.get(&format!("/api/nodes/{}", name.replace('@', "%40"))).json();
    assert_eq!(node["running"], true);
    let memory = http.get(&format!("/api/nodes/{name}/memory")).json();
    assert!(memory["memory"]["total"]["rss"].as_u64().unwrap() > 1 << 20);
    assert_eq!(http.get("/api/nodes/other").status, 404);
    let flags = http.get("/api/feature-flags").json();
    assert!(flags.as_array().unwrap().iter().any(|flag| flag["name"] == "stream_queue" && flag["state"] == "enabled"));
}
