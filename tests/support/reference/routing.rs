//! Exchanges and bindings: who matches, and the walk of a message (§4, §6, §7).

use bytes::Bytes;
use leveret_protocol::{FieldTable, FieldValue, Properties};

use super::{Binding, Reference};

impl Reference {
    /// §7: the queues that a message reaches, each once.
    pub(super) fn route(&self, exchange: &str, keys: &[String], properties: &Properties) -> Vec<u64> {
        let mut to_visit = vec![exchange.to_owned()];
        let mut reached = Vec::new();
        let mut at = 0;
        while at < to_visit.len() {
            let name = to_visit[at].clone();
            at += 1;
            let Some(exchange) = self.exchanges.iter().find(|exchange| exchange.name == name) else { continue };
            let mut any = false;
            for queue in self.queues.iter().filter(|queue| name.is_empty() && keys.contains(&queue.name)) {
                any = true;
                add(&mut reached, queue.id);
            }
            for binding in self.bindings.iter().filter(|binding| binding.source == name) {
                if !matches(&exchange.kind, binding, keys, properties) {
                    continue;
                }
                any = true;
                if binding.to_queue {
                    let queue = self.queues.iter().find(|queue| queue.name == binding.destination);
                    add(&mut reached, queue.expect("bindings go with their queue").id);
                } else {
                    add(&mut to_visit, binding.destination.clone());
                }
            }
            if let (false, Some(FieldValue::LongString(alternate))) =
                (any, exchange.arguments.get("alternate-exchange"))
            {
                add(&mut to_visit, String::from_utf8_lossy(alternate).into_owned());
            }
        }
        reached
    }

    /// Removes bindings; auto-delete exchanges that lose their last one go too (§4.2).
    pub(super) fn remove_bindings(&mut self, gone: impl Fn(&Binding) -> bool) {
        let removed: Vec<Binding> = self.bindings.extract_if(.., |binding| gone(binding)).collect();
        for binding in removed {
            let left = self.bindings.iter().any(|other| other.source == binding.source);
            let source = self.exchanges.iter().find(|exchange| exchange.name == binding.source);
            if !left && source.is_some_and(|source| source.auto_delete) {
                self.delete_exchange(&binding.source);
            }
        }
    }

    pub(super) fn delete_exchange(&mut self, name: &str) {
        self.exchanges.retain(|exchange| exchange.name != name);
        self.remove_bindings(|binding| binding.source == name || !binding.to_queue && binding.destination == name);
    }
}

fn add<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

fn matches(kind: &str, binding: &Binding, keys: &[String], properties: &Properties) -> bool {
    match kind {
        "direct" => keys.contains(&binding.key),
        "fanout" => true,
        "topic" => keys.iter().any(|key| topic_matches(&words(&binding.key), &words(key))),
        "headers" => headers_match(&binding.arguments, properties.headers.as_ref().unwrap_or(&FieldTable::new())),
        other => panic!("the reference has no {other} exchange"),
    }
}

fn words(key: &str) -> Vec<&str> {
    if key.is_empty() { Vec::new() } else { key.split('.').collect() }
}

fn topic_matches(pattern: &[&str], key: &[&str]) -> bool {
    match (pattern.split_first(), key.split_first()) {
        (None, None) => true,
        (Some((&"#", rest)), None) => topic_matches(rest, key),
        (Some((&"#", rest)), Some((_, later))) => topic_matches(rest, key) || topic_matches(pattern, later),
        (Some((word, rest)), Some((first, later))) => (*word == "*" || word == first) && topic_matches(rest, later),
        _ => false,
    }
}

fn headers_match(arguments: &FieldTable, headers: &FieldTable) -> bool {
    let how = match arguments.get("x-match") {
        Some(FieldValue::LongString(how)) => how.clone(),
        _ => Bytes::from_static(b"all"),
    };
    let with_x = how.ends_with(b"-with-x");
    let mut counting = arguments.iter().filter(|(name, _)| {
        let name = name.as_str().unwrap_or_default();
        name != "x-match" && (with_x || !name.starts_with("x-"))
    });
    let has = |(name, wanted): &(leveret_protocol::ShortName, FieldValue)| {
        let header = headers.iter().find(|(header, _)| header == name);
        header.is_some_and(|(_, value)| *wanted == FieldValue::Void || value == wanted)
    };
    if how.starts_with(b"any") { counting.any(has) } else { counting.all(has) }
}
