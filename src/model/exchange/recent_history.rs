//! `x-recent-history`: a fanout that also keeps its last messages, for queues that are bound later.
//!
//! This file says which messages are kept and how many; the broker keeps them (`broker/history.rs`).

use leveret_protocol::{FieldTable, FieldValue};

use super::fanout::Fanout;
use super::{Binding, Keep, Matched, Matching, RouteInput, erlang};

const NO_STORE: &str = "x-recent-history-no-store";
const ARGUMENT: &str = "x-recent-history-length";
const LENGTH_DEFAULT: usize = 20;

#[derive(Debug, Default)]
pub(super) struct RecentHistory {
    fanout: Fanout,
}

impl Matching for RecentHistory {
    fn bind(&mut self, ordinal: u64, binding: &Binding) {
        self.fanout.bind(ordinal, binding);
    }

    fn unbind(&mut self, ordinal: u64, binding: &Binding) {
        self.fanout.unbind(ordinal, binding);
    }

    fn route(&mut self, message: &RouteInput<'_>, matched: &mut Matched<'_>) {
        self.fanout.route(message, matched);
        let no_store = message.properties.headers().and_then(|headers| headers.get(NO_STORE));
        if no_store.and_then(|value| value.to_value().ok()?.as_bool()) != Some(true) {
            matched.keep(Keep::Remember);
        }
    }

    /// Each message is to be kept, so no route may be taken from memory.
    fn by_keys_only(&self) -> bool {
        false
    }
}

/// How many messages an exchange with these arguments keeps.
pub(super) fn length(arguments: &FieldTable) -> usize {
    let length = arguments.get(ARGUMENT).and_then(FieldValue::as_integer);
    length.and_then(|length| usize::try_from(length).ok()).unwrap_or(LENGTH_DEFAULT)
}

pub(super) fn validate_declare(arguments: &FieldTable) -> Result<(), String> {
    match arguments.get(ARGUMENT) {
        Some(value) if value.as_integer().is_none_or(|length| length <= 0) => {
            Err(format!("Invalid argument {}, '{ARGUMENT}' must be a positive integer", erlang::term(value)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use leveret_protocol::Properties;

    use super::super::tests::{Net, exchange, table};
    use super::super::{Exchange, ExchangeKind, Topology};
    use super::*;

    #[test]
    fn s7_history_length_is_a_positive_integer() {
        let validate = |value| Topology::validate_declare(ExchangeKind::RecentHistory, &table([(ARGUMENT, value)]));
        assert_eq!(validate(FieldValue::I64(1)), Ok(()));
        assert_eq!(validate(FieldValue::U8(200)), Ok(()));
        assert_eq!(Topology::validate_declare(ExchangeKind::RecentHistory, &FieldTable::new()), Ok(()));
        for (value, shown) in [(FieldValue::I32(0), "0"), (FieldValue::I32(-3), "-3"), ("5".into(), "<<\"5\">>")] {
            let text = format!("Invalid argument {shown}, 'x-recent-history-length' must be a positive integer");
            assert_eq!(validate(value), Err(text));
        }
    }

    #[test]
    fn s7_history_length_is_20_unless_declared() {
        let length = |arguments| Exchange { arguments, ..exchange("x", ExchangeKind::RecentHistory) }.history_length();
        assert_eq!(length(FieldTable::new()), Some(20));
        assert_eq!(length(table([(ARGUMENT, 3.into())])), Some(3));
        assert_eq!(exchange("x", ExchangeKind::Fanout).history_length(), None);
    }

    #[test]
    fn s7_history_keeps_what_it_routes_and_not_what_says_no_store() {
        let mut net = Net::new(ExchangeKind::RecentHistory);
        let key = net.key("x");
        net.bind("x", "q", "ignored");
        assert_eq!(net.route("k"), ["q"]);
        assert_eq!(net.topology.take_keepers()[..], [(key, Keep::Remember)]);
        for (value, kept) in [(FieldValue::Bool(true), 0), (FieldValue::Bool(false), 1), ("true".into(), 1)] {
            assert_eq!(net.route_headers(table([(NO_STORE, value)])), ["q"]);
            assert_eq!(net.topology.take_keepers().len(), kept);
        }
    }

    #[test]
    fn s7_history_without_bindings_passes_to_its_alternate_and_keeps_all_the_same() {
        let mut net = Net::default();
        let arguments = table([("alternate-exchange", "other".into())]);
        net.declare(Exchange { arguments, ..exchange("x", ExchangeKind::RecentHistory) });
        net.exchange("other", ExchangeKind::Fanout);
        net.bind("other", "q", "");
        assert_eq!(net.route_from("x", &["k"], &Properties::default()), ["q"]);
        assert_eq!(net.topology.take_keepers().len(), 1);
    }
}
