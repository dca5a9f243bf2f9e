//! Login, tags, users, vhosts and permissions (management reference 1.1, 1.2, 1.9, 1.10).

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::broker::Broker;
use crate::client::{Connection, Login, declare, publish};
use crate::http::{Answer, Http};
use leveret_protocol::Properties;

/// A broker in memory, and its API as `guest`.
pub fn start() -> (Broker, Http) {
    let broker = Broker::start(["--ephemeral", "--log", "warn"]);
    let http = Http::of(&broker.ready);
    (broker, http)
}

/// Asserts status and error body.
pub fn refused(answer: &Answer, status: u16, error: &str, reason: impl Into<Value>) {
    assert_eq!((answer.status, answer.json()), (status, json!({"error": error, "reason": reason.into()})));
}

fn enter(broker: &Broker, user: &str, password: &str, vhost: &str) -> Connection {
    let response = format!("\0{user}\0{password}");
    Connection::open(broker.address, &Login { response: response.as_bytes(), vhost, ..Login::default() })
}

#[test]
fn s1_2_login() {
    let (_broker, http) = start();
    let nobody = http.nobody().get("/api/overview");
    assert_eq!((nobody.status, nobody.text().as_str()), (401, ""));
    assert_eq!(nobody.header("www-authenticate"), Some("Basic realm=\"RabbitMQ Management\""));
    for (user, password) in [("guest", "wrong"), ("nobody", "guest"), ("guest", "")] {
        let answer = http.user(user, password).get("/api/overview");
        refused(&answer, 401, "not_authorized", "Not_Authorized");
        assert_eq!(answer.header("www-authenticate"), None);
    }
    assert_eq!(http.put("/api/users/plain", json!({"password": "p", "tags": "other"})).status, 201);
    refused(&http.user("plain", "p").get("/api/whoami"), 401, "not_authorised", "Not management user");
    let whoami = http.get("/api/whoami").json();
    assert_eq!(whoami, json!({"name": "guest", "tags": ["administrator"], "is_internal_user": true}));
    assert_eq!(http.nobody().get("/api/version").json(), json!("4.2.6"));
    assert_eq!(http.nobody().get("/api/health/checks/is-in-service").json(), json!({"status": "ok"}));
}

#[test]
fn s1_2_tags_say_who_may_do_what() {
    let (_broker, http) = start();
    let user = |tag: &str| {
        assert_eq!(http.put(&format!("/api/users/{tag}"), json!({"password": "p", "tags": tag})).status, 201);
        http.user(tag, "p")
    };
    let (management, monitoring, policymaker) = (user("management"), user("monitoring"), user("policymaker"));
    for who in [&management, &monitoring, &policymaker] {
        refused(&who.get("/api/users"), 401, "not_authorised", "Not administrator user");
        refused(&who.put("/api/vhosts/v", json!({})), 401, "not_authorised", "Not administrator user");
        refused(&who.delete("/api/users/guest"), 401, "not_authorised", "Not administrator user");
    }
    assert_eq!(management.get("/api/vhosts").json(), json!([]));
    assert_eq!(monitoring.get("/api/vhosts").json()[0]["name"], "/");
    refused(&management.get("/api/policies/%2F"), 401, "not_authorised", "User not authorised to access virtual host");
    let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
    assert_eq!(http.put("/api/permissions/%2F/policymaker", all).status, 201);
    let policy = json!({"pattern": "^x", "definition": {"max-length": 1}});
    assert_eq!(policymaker.put("/api/policies/%2F/p", policy.clone()).status, 201);
    refused(
        &policymaker.put("/api/operator-policies/%2F/p", policy.clone()),
        401,
        "not_authorised",
        "Not administrator user",
    );
    refused(&monitoring.put("/api/policies/%2F/p", policy), 401, "not_authorised", "Not policymaker user");
}

#[test]
fn s1_1_paths_methods_and_slashes() {
    let (_broker, http) = start();
    assert_eq!(http.get("/api/users/").json(), http.get("/api/users").json());
    assert_eq!(http.get("/api/vhosts/%2f").json()["name"], "/");
    refused(&http.get("/api/nonsense"), 404, "Object Not Found", "Not Found");
    let wrong = http.post("/api/overview", json!({}));
    assert_eq!((wrong.status, wrong.text().as_str()), (405, ""));
    assert!(wrong.header("allow").is_some_and(|allow| allow.contains("GET") && allow.contains("HEAD")));
    let options = http.nobody().send("OPTIONS", "/api/users", b"");
    assert_eq!(options.status, 200);
    assert_eq!(http.nobody().get("/").status, 401);
    assert_eq!(http.get("/").status, 200);
    let head = http.send("HEAD", "/api/overview", b"");
    assert_eq!((head.status, head.body.len()), (200, 0));
}

#[test]
fn s1_1_wrong_bodies_are_refused_and_change_nothing() {
    let (_broker, http) = start();
    let put = |body: &str| http.send("PUT", "/api/vhosts/v", body.as_bytes());
    refused(&put("{x"), 400, "bad_request", "not_json");
    refused(&put("[]"), 400, "bad_request", "not_json");
    let doubly = "invalid payload: the request body JSON-decoded to a string. Is the input doubly-JSON-encoded?";
    refused(&put("\"{}\""), 400, "bad_request", doubly);
    refused(&put(r#"{"tracing":"troo"}"#), 400, "bad_request", json!(["not_boolean", "troo"]));
    let huge = format!(r#"{{"description":"{}"}}"#, "x".repeat(20_000_001));
    refused(&put(&huge), 400, "bad_request", "Exceeded HTTP request body size limit");
    assert_eq!(http.get("/api/vhosts/v").status, 404);
}

#[test]
fn s1_10_users() {
    let (_broker, http) = start();
    refused(&http.put("/api/users/u", json!({"password": "x"})), 400, "bad_request", "tags_not_present");
    let both = json!({"password": "x", "password_hash": "y", "tags": ""});
    assert_eq!(http.put("/api/users/u", both).status, 400);
    assert_eq!(http.get("/api/users/u").status, 404, "nothing of it was done");
    let hash = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR";
    assert_eq!(http.put("/api/users/u", json!({"password_hash": hash, "tags": "monitoring, x"})).status, 201);
    assert_eq!(
        http.get("/api/users/u").json(),
        json!({"name": "u", "password_hash": hash, "hashing_algorithm": "rabbit_password_hashing_sha256",
               "tags": ["monitoring", "x"], "limits": {}})
    );
    assert_eq!(http.user("u", "test12").get("/api/whoami").status, 200);
    assert_eq!(http.put("/api/users/u", json!({"password": "new", "tags": ["management"]})).status, 204);
    assert_eq!(http.user("u", "test12").get("/api/whoami").status, 401);
    assert_eq!(http.user("u", "new").get("/api/whoami").status, 200);
    assert_eq!(http.put("/api/user-limits/u/max-connections", json!({"value": 5})).status, 204);
    assert_eq!(http.get("/api/user-limits").json(), json!([{"user": "u", "value": {"max-connections": 5}}]));
    assert_eq!(http.delete("/api/user-limits/u/max-connections").status, 204);
    assert_eq!(http.get("/api/user-limits/u").json(), json!([]));
    assert_eq!(http.delete("/api/users/u").status, 204);
    refused(&http.delete("/api/users/u"), 404, "Object Not Found", "Not Found");
    for name in ["a", "b"] {
        http.put(&format!("/api/users/{name}"), json!({"tags": ""}));
    }
    assert_eq!(http.post("/api/users/bulk-delete", json!({"users": ["a", "b", "none"]})).status, 204);
    assert_eq!(http.get("/api/users").json().as_array().unwrap().len(), 1);
}

#[test]
fn s1_9_a_new_vhost_can_be_used_at_once_and_is_gone_when_deleted() {
    let (broker, http) = start();
    assert_eq!(http.put("/api/vhosts/v%2F1", json!({"description": "d", "tags": "a,b"})).status, 201);
    assert_eq!(http.put("/api/vhosts/v%2F1", json!({})).status, 204);
    let vhost = http.get("/api/vhosts/v%2F1").json();
    assert_eq!((&vhost["description"], &vhost["tags"]), (&json!("d"), &json!(["a", "b"])));
    let connection = enter(&broker, "guest", "guest", "v/1");
    let channel = connection.channel();
    channel.declare(declare("q"));
    channel.publish("", "q", "m");
    assert_eq!(http.delete("/api/vhosts/v%2F1").status, 204);
    connection.expect_close(320, "vhost 'v/1' is deleted", leveret_protocol::MethodId::NONE);
    assert_eq!(http.get("/api/vhosts/v%2F1").status, 404);
    assert_eq!(http.get("/api/permissions").json().as_array().unwrap().len(), 1, "its permissions are gone too");
    assert_eq!(http.put("/api/vhosts/v%2F1", json!({})).status, 201);
    assert!(!enter(&broker, "guest", "guest", "v/1").channel().exists("q"));
    assert_eq!(http.post("/api/vhosts/v%2F1/deletion/protection", json!({})).status, 204);
    assert_eq!(http.delete("/api/vhosts/v%2F1").status, 412);
    assert_eq!(http.delete("/api/vhosts/v%2F1/deletion/protection").status, 204);
    assert_eq!(http.delete("/api/vhosts/v%2F1").status, 204);
}

#[test]
fn s1_9_permissions_hold_at_once() {
    let (broker, http) = start();
    http.put("/api/users/u", json!({"password": "p", "tags": ""}));
    let some = |write: &str| json!({"configure": ".*", "write": write, "read": ".*"});
    refused(
        &http.put("/api/permissions/%2F/u", json!({"configure": "", "write": ""})),
        400,
        "bad_request",
        "[{key_missing,read}]",
    );
    refused(&http.put("/api/permissions/%2F/none", some("")), 400, "bad_request", "vhost_or_user_not_found");
    assert_eq!(http.put("/api/permissions/%2F/u", some("(")).status, 400);
    assert_eq!(http.put("/api/permissions/%2F/u", some(".*")).status, 201);
    let channel = enter(&broker, "u", "p", "/").channel();
    channel.declare(declare("q"));
    channel.publish("", "q", "m");
    assert_eq!(channel.ready("q", 1), 1);
    assert_eq!(http.put("/api/permissions/%2F/u", some("^$")).status, 204);
    assert_eq!(http.get("/api/permissions/%2F/u").json()["write"], "^$");
    let text = "access to exchange 'amq.default' in vhost '/' refused for user 'u'";
    channel.refuses_publish(publish("", "q"), &Properties::default(), 403, &format!("write {text}"));
    assert_eq!(http.delete("/api/permissions/%2F/u").status, 204);
    assert_eq!(http.delete("/api/permissions/%2F/u").status, 404);
}

#[test]
fn s1_9_topic_permissions() {
    let (_broker, http) = start();
    let rule = json!({"exchange": "events", "write": "^ci\\.", "read": ".*"});
    assert_eq!(http.put("/api/topic-permissions/%2F/guest", rule.clone()).status, 201);
    assert_eq!(http.put("/api/topic-permissions/%2F/guest", rule).status, 204);
    let expected = json!([{"user": "guest", "vhost": "/", "exchange": "events", "write": "^ci\\.", "read": ".*"}]);
    for path in ["topic-permissions", "topic-permissions/%2F/guest", "users/guest/topic-permissions"] {
        assert_eq!(http.get(&format!("/api/{path}")).json(), expected, "{path}");
    }
    assert_eq!(http.delete("/api/topic-permissions/%2F/guest/events").status, 204);
    assert_eq!(http.get("/api/topic-permissions").json(), json!([]));
}

#[test]
fn a_deleted_user_is_turned_out() {
    let (broker, http) = start();
    http.put("/api/users/u", json!({"password": "p", "tags": ""}));
    http.put("/api/permissions/%2F/u", json!({"configure": ".*", "write": ".*", "read": ".*"}));
    let connection = enter(&broker, "u", "p", "/");
    assert_eq!(http.delete("/api/users/u").status, 204);
    connection.expect_close(320, "user 'u' is deleted", leveret_protocol::MethodId::NONE);
}

#[test]
fn what_was_changed_is_there_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::in_folder(folder.path());
    let http = Http::of(&broker.ready);
    http.put("/api/vhosts/gone", json!({}));
    http.put("/api/queues/gone/q", json!({"durable": true}));
    for (path, body) in [
        ("vhosts/v", json!({"description": "d"})),
        ("users/u", json!({"password": "p", "tags": "management"})),
        ("permissions/v/u", json!({"configure": "c", "write": "w", "read": "r"})),
        ("topic-permissions/v/u", json!({"exchange": "e", "write": "w", "read": "r"})),
        ("policies/v/p", json!({"pattern": "^q", "definition": {"max-length": 5}, "priority": 2})),
        ("parameters/shovel/v/s", json!({"value": {"src-uri": "amqp://"}})),
        ("global-parameters/g", json!({"value": [1]})),
        ("vhost-limits/v/max-queues", json!({"value": 7})),
        ("queues/v/q", json!({"durable": true})),
    ] {
        assert!([201, 204].contains(&http.put(&format!("/api/{path}"), body).status), "{path}");
    }
    assert_eq!(http.delete("/api/vhosts/gone").status, 204);
    let paths = [
        "vhosts",
        "users",
        "permissions",
        "topic-permissions",
        "policies",
        "parameters",
        "global-parameters",
        "vhost-limits",
    ];
    let before = paths.map(|path| http.get(&format!("/api/{path}")).json());
    broker.stop("KILL");
    let broker = Broker::in_folder(folder.path());
    let http = Http::of(&broker.ready);
    let after = paths.map(|path| http.get(&format!("/api/{path}")).json());
    assert_eq!(before, after);
    assert_eq!(http.user("u", "p").get("/api/whoami").status, 200);
    assert_eq!(http.put("/api/queues/v/q", json!({"durable": false})).status, 400, "it is there, and durable");
    let since = Instant::now();
    assert_eq!(broker.stop("TERM").code, Some(0));
    assert!(since.elapsed() < Duration::from_secs(10));
}
