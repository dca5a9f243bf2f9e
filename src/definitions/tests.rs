//! Files of RabbitMQ as they are, and every way to get one wrong.

use leveret_protocol::{FieldTable, FieldValue};
use serde_json::json;

use super::*;
use crate::auth::HashAlgorithm;
use crate::model::exchange::ExchangeKind;

const RABBITMQ_4_0: &str = include_str!("../../tests/definitions/rabbitmq-4.0.json");
const RABBITMQ_3_10: &str = include_str!("../../tests/definitions/rabbitmq-3.10.json");
const RABBITMQ_3_10_VHOST: &str = include_str!("../../tests/definitions/rabbitmq-3.10-vhost.json");
const RABBITMQ_4_0_VHOST: &str = include_str!("../../tests/definitions/rabbitmq-4.0-vhost.json");

fn wrong(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

fn notes(text: &str) -> Vec<String> {
    read(text).unwrap().notes
}

#[test]
fn s1_11_an_export_of_rabbitmq_4_0_is_read_whole() {
    let read = read(RABBITMQ_4_0).unwrap();
    assert_eq!(read.notes, [""; 0]);
    let user = |name: &str| read.users.iter().find(|user| &*user.name == name).unwrap();
    assert!(user("ann").password.as_ref().unwrap().matches("secret"));
    assert_eq!((user("ann").limits.max_connections, user("ann").tags.len()), (Some(50), 2));
    for (name, algorithm) in [("old", HashAlgorithm::Md5), ("big", HashAlgorithm::Sha512)] {
        let hash = user(name).password.as_ref().unwrap();
        assert!(hash.algorithm() == algorithm && hash.matches("secret"), "{name}");
    }
    assert_eq!(user("nopass").password, None);
    let vhost = |name: &str| read.vhosts.iter().find(|vhost| &*vhost.name == name).unwrap();
    assert_eq!((vhost("shop").description.as_str(), vhost("shop").tags.len()), ("The shop", 2));
    assert_eq!(vhost("shop").default_queue_type, Some(QueueType::Quorum));
    let limits = VhostLimits { max_connections: Some(-1), max_queues: Some(10) };
    assert_eq!(read.vhost_limits[0].what, ("plain".into(), limits));
    assert!(read.permissions.iter().any(|p| &*p.user == "ann" && p.permissions.write.source() == "^shop"));
    assert_eq!(
        (&*read.topic_permissions[0].exchange, read.topic_permissions[0].write.as_str()),
        ("events", "^{username}\\.")
    );
    let policy = |name: &str| read.policies.iter().find(|policy| &*policy.policy.name == name).unwrap();
    assert!(policy("cap").operator && !policy("ttl").operator && policy("ttl").policy.priority == 3);
    let shop = &read.contents["shop"];
    assert_eq!((shop.exchanges.len(), shop.queues.len(), shop.bindings.len()), (3, 4, 4));
    let by_header = shop.bindings.iter().find(|binding| &*binding.source == "by-header").unwrap();
    assert_eq!(by_header.arguments.get("f"), Some(&FieldValue::F64(1.5)));
    assert_eq!(by_header.arguments.get("n"), Some(&FieldValue::I64(5)));
    assert!(read.contents["plain"].queues.iter().any(|queue| &*queue.name == "ünïcode" && queue.auto_delete));
}

#[test]
fn s1_11_definitions_of_one_vhost_go_where_they_are_sent() {
    let read = read_vhost(RABBITMQ_4_0_VHOST, "other").unwrap();
    assert_eq!(read.contents.keys().map(|name| &**name).collect::<Vec<_>>(), ["other"]);
    assert!(read.policies.iter().all(|policy| &*policy.vhost == "other"));
    assert!(read.notes.is_empty() && read.users.is_empty());
    let whole = read_vhost(RABBITMQ_4_0, "other").unwrap();
    assert!(whole.users.is_empty() && whole.contents.len() == 1);
    assert!(whole.notes.contains(&"$.users has no effect in the definitions of one vhost".to_owned()));
    let error = wrong(RABBITMQ_4_0_VHOST);
    assert!(error.starts_with("$.policies[0]: vhost is missing"), "{error}");
}

#[test]
fn s1_11_an_export_of_rabbitmq_3_10_is_read_whole() {
    let whole = read(RABBITMQ_3_10).unwrap();
    assert_eq!(whole.notes, [""; 0]);
    assert_eq!((whole.users.len(), whole.vhosts.len(), whole.permissions.len()), (5, 3, 5));
    assert!(whole.users.iter().any(|user| &*user.name == "ann" && user.password.as_ref().unwrap().matches("secret")));
    let shop = &whole.contents["shop"];
    assert_eq!((shop.exchanges.len(), shop.queues.len(), shop.bindings.len()), (3, 4, 4));
    let vhost = read_vhost(RABBITMQ_3_10_VHOST, "v").unwrap();
    assert_eq!((vhost.notes.len(), vhost.contents["v"].queues.len(), vhost.policies.len()), (0, 4, 3));
}

/// §1.11: forms of older versions.
#[test]
fn s1_11_older_forms_are_read() {
    let read = read(
        "\u{feff}{\"rabbit_version\":\"3.5.7\",
        \"users\":[{\"name\":\"a\",\"password_hash\":\"Aj/wIPru8lpMbFcxqNkHKg1Irog=\",\"tags\":\"administrator, x\"}],
        \"vhosts\":[{\"name\":\"/\",\"description\":\"d\",\"tags\":\"t\",\"default_queue_type\":\"undefined\",\"limits\":[]}],
        \"queues\":[{\"name\":\"q\",\"vhost\":\"/\",\"durable\":\"true\",\"arguments\":[]}],
        \"exchanges\":[{\"name\":\"amq.direct\",\"vhost\":\"/\",\"type\":\"direct\"},{\"name\":\"x\",\"vhost\":\"/\",\"type\":\"topic\"}],
        \"policies\":[{\"vhost\":\"/\",\"name\":\"ha\",\"pattern\":\"\",\"definition\":{\"ha-mode\":\"all\"}},
          {\"vhost\":\"/\",\"name\":\"p\",\"pattern\":\"\",\"definition\":{\"ha-mode\":\"all\",\"max-length\":5}}]}",
    )
    .unwrap();
    let hash = read.users[0].password.as_ref().unwrap();
    assert!(hash.algorithm() == HashAlgorithm::Md5 && hash.matches("secret"));
    assert_eq!(read.users[0].tags, ["administrator", "x"]);
    let vhost = &read.vhosts[0];
    assert_eq!((vhost.description.as_str(), vhost.tags.len(), vhost.default_queue_type), ("d", 1, None));
    let contents = &read.contents["/"];
    assert!(contents.queues[0].durable && !contents.queues[0].auto_delete);
    assert_eq!((contents.exchanges.len(), contents.exchanges[0].kind), (1, ExchangeKind::Topic));
    assert_eq!(read.policies.len(), 1, "nothing is left of the other");
    assert_eq!(read.notes.len(), 3, "{:?}", read.notes);
}

#[test]
fn s1_11_what_is_wrong_is_named_with_its_place() {
    for (text, error) in [
        ("{", "line 1: not JSON: EOF while parsing an object at line 1 column 1"),
        ("[]", "$: expected an object, found a list"),
        (r#"{"queues":{}}"#, "$.queues: expected a list, found an object"),
        (
            r#"{"queues":[{"name":"q"}]}"#,
            "$.queues[0]: vhost is missing: definitions of one vhost are imported into a vhost, not as a whole",
        ),
        (r#"{"queues":[{"name":"a","vhost":"/"},{"vhost":"/"}]}"#, "$.queues[1]: name is missing"),
        (r#"{"queues":[{"name":5,"vhost":"/"}]}"#, "$.queues[0].name: expected a text, found 5"),
        (
            r#"{"queues":[{"name":"a","vhost":"/","durable":"troo"}]}"#,
            "$.queues[0].durable: expected true or false, found \"troo\"",
        ),
        (
            r#"{"queues":[{"name":"a","vhost":"/","arguments":{"x":null}}]}"#,
            "$.queues[0].arguments: expected a value, found null",
        ),
        (
            r#"{"queues":[{"name":"a","vhost":"/","arguments":[1]}]}"#,
            "$.queues[0].arguments: expected an object, found a list",
        ),
        (r#"{"exchanges":[{"name":"a","vhost":"/","type":"x"}]}"#, "$.exchanges[0].type: unknown exchange type 'x'"),
        (
            r#"{"bindings":[{"source":"a","vhost":"/","destination":"b","destination_type":"topic"}]}"#,
            "$.bindings[0].destination_type: expected queue or exchange",
        ),
        (
            r#"{"users":[{"name":"a","password_hash":"x"}]}"#,
            "$.users[0].password_hash: expected 20 bytes in base64: salt and rabbit_password_hashing_md5",
        ),
        (
            r#"{"users":[{"name":"a","hashing_algorithm":"x"}]}"#,
            "$.users[0].hashing_algorithm: expected one of rabbit_password_hashing_sha256, rabbit_password_hashing_sha512, rabbit_password_hashing_md5",
        ),
        (
            r#"{"users":[{"name":"a","limits":{"max-channels":"x"}}]}"#,
            "$.users[0].limits.max-channels: expected an integer, found \"x\"",
        ),
        (
            r#"{"policies":[{"name":"a","vhost":"/","pattern":"","definition":{"max-lenght":1}}]}"#,
            "$.policies[0]: [{<<\"max-lenght\">>,1}] are not recognised policy settings",
        ),
    ] {
        assert_eq!(wrong(text), error, "{text}");
    }
    let pattern = wrong(r#"{"permissions":[{"user":"a","vhost":"/","configure":"(","write":"","read":""}]}"#);
    assert!(pattern.starts_with("$.permissions[0].configure: pattern '('"), "{pattern}");
    let long = format!(r#"{{"queues":[{{"name":"{}","vhost":"/"}}]}}"#, "q".repeat(256));
    assert_eq!(wrong(&long), "$.queues[0].name: expected a name of at most 255 bytes, found a text");
}

#[test]
fn s1_11_nothing_is_dropped_silently() {
    assert_eq!(
        notes(
            r#"{"colour":1,"queues":[{"name":"q","vhost":"/","shape":2},{"name":"amq.gen-1","vhost":"/"}],
                "parameters":[{"component":"shovel","vhost":"/","name":"s","value":{}}],
                "global_parameters":[{"name":"cluster_name","value":"c"},{"name":"mine","value":1}]}"#
        ),
        [
            "$.colour is not known and has no effect",
            "$.global_parameters[1]: the global parameter 'mine' has no effect",
            "$.parameters[0] has no effect: leveret does not have what 'shovel' is for",
            "$.queues[0].shape is not known and has no effect",
            "$.queues[1]: the queue 'amq.gen-1' is left out: such names are the broker's own",
        ]
    );
}

#[test]
fn s1_1_values_go_both_ways() {
    let value = json!({"a": [1, -2, 1.5, true, "t", {}], "b": {"c": "d"}});
    assert_eq!(to_json(&from_json(&value).unwrap()), value);
    assert_eq!(
        from_json(&json!(u64::MAX)),
        Err("expected a number of at most 9223372036854775807, found 18446744073709551615".into())
    );
    assert_eq!(to_json(&FieldValue::F64(f64::NAN)), json!(null));
    assert_eq!(to_json(&FieldValue::Decimal { scale: 2, value: 275 }), json!(2.75));
    assert_eq!(to_json_table(&FieldTable::new()), json!({}));
}

/// What is exported of users, vhosts and policies is what RabbitMQ exported of them.
#[test]
fn s1_11_exports_have_rabbitmqs_fields() {
    let original: serde_json::Value = serde_json::from_str(RABBITMQ_4_0).unwrap();
    let read = read(RABBITMQ_4_0).unwrap();
    let users: Vec<_> = read.users.iter().map(user_json).collect();
    assert_eq!(json!(users), original["users"]);
    let vhosts = read.vhosts.iter().map(|new| {
        vhost_json(&crate::model::vhost::Vhost {
            description: new.description.clone(),
            tags: new.tags.clone(),
            default_queue_type: new.default_queue_type,
            ..crate::model::vhost::Vhost::new(new.name.clone(), 1)
        })
    });
    assert_eq!(json!(vhosts.collect::<Vec<_>>()), original["vhosts"]);
    let policies = read.policies.iter().filter(|policy| !policy.operator).map(|policy| {
        let mut json = policy_json(&policy.policy);
        json["vhost"] = policy.vhost.as_ref().into();
        json
    });
    assert_eq!(json!(policies.collect::<Vec<_>>()), original["policies"]);
}
