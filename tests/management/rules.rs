//! Policies, parameters and health (management reference 1.11, 1.12).

use serde_json::json;

use crate::access::{refused, start};

#[test]
fn s1_11_policies() {
    let (_broker, http) = start();
    let put = |body| http.put("/api/policies/%2F/p", body);
    refused(&put(json!({"pattern": "("})), 400, "bad_request", "[{key_missing,definition}]");
    let empty = put(json!({"pattern": "x", "definition": {}}));
    refused(&empty, 400, "bad_request", "Validation failed\n\nno policy provided\n");
    assert_eq!(put(json!({"pattern": "x", "definition": {"foo": 1}})).status, 400);
    assert_eq!(http.get("/api/policies").json(), json!([]));
    assert_eq!(put(json!({"pattern": "x", "definition": {"max-length": 10}})).status, 201);
    let expected = json!({"vhost": "/", "name": "p", "pattern": "x", "apply-to": "all",
                          "definition": {"max-length": 10}, "priority": 0});
    assert_eq!(http.get("/api/policies/%2F/p").json(), expected);
    let high = json!({"pattern": "", "definition": {"expires": 10}, "priority": "3", "apply-to": "queues"});
    assert_eq!(http.put("/api/policies/%2F/z", high).status, 201);
    assert_eq!(http.get("/api/policies/%2F").json()[0]["name"], "z", "highest priority first");
    assert_eq!(http.get("/api/operator-policies").json(), json!([]));
    assert_eq!(http.delete("/api/policies/%2F/p").status, 204);
    assert_eq!(http.delete("/api/policies/%2F/p").status, 404);
    assert_eq!(http.put("/api/policies/none/p", json!({"pattern": "", "definition": {"expires": 1}})).status, 404);
}

#[test]
fn s1_11_parameters() {
    let (_broker, http) = start();
    assert_eq!(http.put("/api/parameters/nosuch/%2F/s", json!({"value": {}})).status, 400);
    assert_eq!(http.put("/api/parameters/shovel/%2F/s", json!({"value": {"a": 1}})).status, 201);
    assert_eq!(http.put("/api/parameters/shovel/%2F/s", json!({"value": {"a": 2}})).status, 204);
    let item = json!({"value": {"a": 2}, "vhost": "/", "component": "shovel", "name": "s"});
    assert_eq!(http.get("/api/parameters/shovel/%2F/s").json(), item);
    http.put("/api/vhost-limits/%2F/max-queues", json!({"value": 50}));
    let limits = json!({"value": {"max-queues": 50}, "vhost": "/", "component": "vhost-limits", "name": "limits"});
    assert_eq!(http.get("/api/parameters").json(), json!([item, limits]));
    assert_eq!(http.delete("/api/parameters/shovel/%2F/s").status, 204);
    assert_eq!(http.put("/api/cluster-name", json!({"name": "c"})).status, 204);
    assert_eq!(http.get("/api/cluster-name").json(), json!({"name": "c"}));
    assert_eq!(http.get("/api/global-parameters/cluster_name").json(), json!({"name": "cluster_name", "value": "c"}));
}

#[test]
fn s1_9_vhost_limits() {
    let (_broker, http) = start();
    assert_eq!(http.get("/api/vhost-limits").json(), json!([]));
    assert_eq!(http.put("/api/vhost-limits/%2F/max-queues", json!({"value": 1})).status, 204);
    assert_eq!(http.get("/api/vhost-limits").json(), json!([{"vhost": "/", "value": {"max-queues": 1}}]));
    assert_eq!(http.put("/api/queues/%2F/a", json!({})).status, 201);
    let full = http.put("/api/queues/%2F/b", json!({}));
    refused(&full, 400, "bad_request", "cannot declare queue 'b': queue limit in vhost '/' (1) is reached");
    assert_eq!(http.delete("/api/vhost-limits/%2F/max-queues").status, 204);
    assert_eq!(http.put("/api/queues/%2F/b", json!({})).status, 201);
}

#[test]
fn s1_12_health_checks_say_the_truth() {
    let (broker, http) = start();
    let get = |path: &str| http.get(&format!("/api/{path}"));
    assert_eq!(get("aliveness-test/%2F").text(), r#"{"status":"ok"}"#);
    assert_eq!(get("aliveness-test/none").status, 404);
    for check in ["alarms", "local-alarms", "virtual-hosts", "node-is-quorum-critical", "ready-to-serve-clients"] {
        assert_eq!(get(&format!("health/checks/{check}")).json()["status"], "ok", "{check}");
    }
    let port = broker.address.port();
    assert_eq!(get(&format!("health/checks/port-listener/{port}")).json(), json!({"status": "ok", "port": port}));
    let failed = get("health/checks/port-listener/1");
    assert_eq!((failed.status, &failed.json()["missing"]), (503, &json!(1)));
    assert_eq!(get("health/checks/port-listener/x").status, 400);
    assert_eq!(get("health/checks/protocol-listener/amqp091,http").status, 200);
    let failed = get("health/checks/protocol-listener/mqtt");
    assert_eq!((failed.status, &failed.json()["reason"]), (503, &json!("No active listener")));
    assert_eq!(get("health/checks/certificate-expiration/1/days").status, 200);
    assert_eq!(get("health/checks/certificate-expiration/1/eons").status, 400);
}
