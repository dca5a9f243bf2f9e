//! The answers, by resource.

pub mod bindings;
pub mod clients;
pub mod counts;
pub mod exchanges;
pub mod extras;
pub mod health;
pub mod nodes;
pub mod operator;
pub mod overview;
pub mod parameters;
pub mod permissions;
pub mod policies;
pub mod queues;
pub mod users;
pub mod vhosts;

use serde_json::Value;

/// Tags as they are given: a list of texts, or one text with commas.
pub fn parse_tags(value: &Value) -> Option<Vec<String>> {
    let clean = |text: &str| text.trim().to_owned();
    match value {
        Value::String(text) => Some(text.split(',').map(clean).filter(|tag| !tag.is_empty()).collect()),
        Value::Array(all) => all.iter().map(|tag| tag.as_str().map(clean)).collect(),
        _ => None,
    }
}
