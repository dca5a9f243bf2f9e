//! Small answers that tools expect (management reference 1.5, 1.11).

use axum::extract::Path;
use serde_json::{Value, json};

use crate::auth::PasswordHash;
use crate::management::caller::Cx;
use crate::management::error::{Answer, ApiError};
use crate::management::list;

/// Features that RabbitMQ has behind flags, all of them on here. Some tools start only if they find theirs.
const FLAGS: [&str; 11] = [
    "classic_mirrored_queue_version",
    "classic_queue_type_delivery_support",
    "direct_exchange_routing_v2",
    "drop_unroutable_metric",
    "feature_flags_v2",
    "message_containers",
    "quorum_queue",
    "stream_filtering",
    "stream_queue",
    "tracking_records_in_ets",
    "virtual_host_metadata",
];

pub async fn auth() -> Answer {
    list::ok(&json!({"oauth_enabled": false}))
}

pub async fn hash_password(_cx: Cx, Path(password): Path<String>) -> Answer {
    let mut salt = [0; 4];
    crate::server::random(&mut salt);
    list::ok(&json!({"ok": PasswordHash::new(salt, &password).to_base64()}))
}

pub async fn extensions(_cx: Cx) -> Answer {
    list::ok(&json!([{"javascript": "dispatcher.js"}]))
}

pub async fn feature_flags(cx: Cx) -> Answer {
    let flag = |name| {
        json!({"name": name, "state": "enabled", "stability": "stable", "desc": "", "doc_url": "",
               "provided_by": "rabbit"})
    };
    list::plain(&cx.query, &FLAGS.into_iter().map(flag).collect::<Vec<Value>>())
}

pub async fn enable_feature_flag(cx: Cx, Path(name): Path<String>) -> Answer {
    cx.needs_administrator()?;
    if name == "all" || FLAGS.contains(&name.as_str()) {
        return list::done();
    }
    Err(ApiError::bad_request("unsupported"))
}

/// A list of what there is not.
pub async fn none(_cx: Cx) -> Answer {
    list::ok(&json!([]))
}

/// One node has nothing to balance, and counts are not kept apart from what they count.
pub async fn nothing_to_do(cx: Cx) -> Answer {
    cx.needs_administrator()?;
    list::done()
}
