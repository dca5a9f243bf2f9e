//! Bindings and their identity, what goes with what, and the walk.

use leveret_protocol::{FieldValue, Properties};

use super::super::tests::{Net, exchange, table};
use super::*;
use ExchangeKind::{Direct, Fanout, Headers, Topic};

fn names(removed: &Removed) -> Vec<&str> {
    removed.exchanges.iter().map(|(_, exchange)| &*exchange.name).collect()
}

#[test]
fn s4_1_exchanges_are_listed_by_name() {
    let mut net = Net::default();
    for name in ["b", "", "a"] {
        net.exchange(name, Direct);
    }
    assert!(net.topology.iter().map(|(_, exchange)| &*exchange.name).eq(["", "a", "b"]));
}

#[test]
fn s4_2_auto_delete_needs_a_binding_first() {
    let mut net = Net::default();
    net.exchange("x", Fanout);
    net.declare(Exchange { auto_delete: true, ..exchange("auto", Fanout) });
    // Being a destination does not count.
    net.bind("x", "auto", "");
    assert!(names(&net.unbind("x", "auto", "")).is_empty());
    assert!(net.topology.find("auto").is_some());
}

#[test]
fn s4_2_auto_delete_goes_with_its_last_binding() {
    let mut net = Net::default();
    net.declare(Exchange { auto_delete: true, ..exchange("auto", Direct) });
    net.bind("auto", "q1", "a");
    net.bind("auto", "q1", "b");
    assert!(names(&net.unbind("auto", "q1", "a")).is_empty());
    let removed = net.unbind("auto", "q1", "b");
    assert_eq!(names(&removed), ["auto"]);
    assert_eq!(net.topology.find("auto"), None);
}

/// first -> second -> third -> q, all but the first bound to nothing else.
#[test]
fn s4_2_auto_delete_cascades() {
    let mut net = Net::default();
    net.declare(Exchange { durable: true, ..exchange("first", Fanout) });
    for name in ["second", "third"] {
        net.declare(Exchange { auto_delete: true, durable: true, ..exchange(name, Fanout) });
    }
    net.bind("first", "second", "1");
    net.bind("second", "third", "2");
    net.bind("third", "q", "3");
    let queue = net.queue("q");
    let removed = net.topology.remove_queue(queue);
    assert_eq!(names(&removed), ["third", "second"]);
    let end = |name: &str| End { name: name.into(), durable: true };
    let ends: Vec<_> =
        removed.bindings.iter().map(|binding| (binding.source.clone(), binding.destination_exchange.clone())).collect();
    let expected = [(end("third"), None), (end("second"), Some(end("third"))), (end("first"), Some(end("second")))];
    assert_eq!(ends, expected);
    assert_eq!(net.topology.binding_count(), 0);
    assert!(net.topology.find("first").is_some());
}

#[test]
fn s4_3_deleting_an_exchange_removes_bindings_at_both_ends() {
    let mut net = Net::new(Fanout);
    net.declare(Exchange { auto_delete: true, ..exchange("before", Fanout) });
    net.declare(Exchange { auto_delete: true, ..exchange("after", Fanout) });
    net.bind("before", "x", "");
    net.bind("x", "after", "");
    net.bind("x", "x", "");
    net.bind("x", "q", "");
    net.bind("after", "q", "");
    let key = net.key("x");
    assert!(net.topology.has_bindings(key));
    let removed = net.topology.remove_exchange(key);
    assert_eq!(names(&removed), ["x", "before"]);
    assert_eq!(removed.bindings.len(), 4);
    assert_eq!(net.topology.binding_count(), 1);
    assert!(net.topology.remove_exchange(key).exchanges.is_empty());
}

#[test]
fn s6_binding_twice_is_one_binding() {
    let mut net = Net::new(Direct);
    assert!(net.bind("x", "q", "k"));
    assert!(!net.bind("x", "q", "k"));
    assert_eq!(net.unbind("x", "q", "k").bindings.len(), 1);
    assert!(net.unbind("x", "q", "k").bindings.is_empty());
    assert!(net.route("k").is_empty());
}

#[test]
fn s6_binding_identity_includes_argument_types() {
    let mut net = Net::new(Direct);
    let values =
        [FieldValue::I32(1), FieldValue::I64(1), FieldValue::from("1"), FieldValue::Void, FieldValue::F64(f64::NAN)];
    for value in &values {
        assert!(net.bind_with("x", "q", "k", table([("a", value.clone())])), "{value:?}");
        assert!(!net.bind_with("x", "q", "k", table([("a", value.clone())])), "{value:?}");
    }
    assert!(net.bind("x", "q", "k"));
    assert_eq!(net.topology.binding_count(), values.len() + 1);
    // The queue gets one copy all the same, until the last of them goes.
    assert_eq!(net.route("k"), ["q"]);
    for value in values {
        let binding = net.binding("x", "q", "k", table([("a", value)]));
        assert_eq!(net.topology.unbind(&binding).bindings.len(), 1);
    }
    assert_eq!(net.route("k"), ["q"]);
    net.unbind("x", "q", "k");
    assert!(net.route("k").is_empty());
}

#[test]
fn s6_binding_identity_ignores_the_order_of_arguments() {
    let mut net = Net::new(Headers);
    let [one, two] = [("a", FieldValue::I32(1)), ("b", FieldValue::I32(2))];
    assert!(net.bind_with("x", "q", "", table([one.clone(), two.clone()])));
    assert!(!net.bind_with("x", "q", "", table([two.clone(), one.clone()])));
    let binding = net.binding("x", "q", "", table([two, one]));
    assert!(net.topology.contains(&binding));
}

#[test]
fn bindings_keep_their_order_over_a_restart() {
    let mut net = Net::new(Fanout);
    for queue in ["q3", "q1", "q2"] {
        net.bind("x", queue, "");
    }
    net.unbind("x", "q1", "");
    net.bind("x", "q1", "");
    let mut kept: Vec<_> = net.topology.bindings().map(|(at, binding)| (at, (**binding).clone())).collect();
    let order: Vec<_> = kept.iter().map(|(_, binding)| binding.destination).collect();

    let mut topology = Topology::new();
    let key = topology.declare(exchange("x", Fanout));
    kept.reverse();
    for (ordinal, binding) in kept {
        let arguments = binding.arguments().clone();
        let binding = Binding::new(key, binding.destination, &binding.binding_key, arguments);
        assert!(topology.restore(ordinal, binding.clone()));
        assert!(!topology.restore(ordinal, binding));
    }
    assert!(topology.bindings().map(|(_, binding)| binding.destination).eq(order));
}

#[test]
fn s7_default_exchange_finds_queues_by_any_key() {
    let mut net = Net::default();
    net.exchange("", Direct);
    for queue in ["q1", "q2"] {
        net.queue(queue);
    }
    let none = Properties::default();
    assert_eq!(net.route_from("", &["q1"], &none), ["q1"]);
    assert_eq!(net.route_from("", &["q2", "none", "q1", "q2"], &none), ["q1", "q2"]);
    assert!(net.route_from("", &["none"], &none).is_empty());
}

#[test]
fn s7_each_queue_once_over_all_paths() {
    let mut net = Net::new(Fanout);
    net.exchange("y", Fanout);
    net.exchange("z", Direct);
    for (source, destination) in [("x", "y"), ("x", "z"), ("y", "z"), ("x", "q"), ("y", "q")] {
        net.bind(source, destination, "");
    }
    net.bind("z", "q", "k");
    net.bind("z", "q2", "k");
    assert_eq!(net.route("k"), ["q", "q2"]);
}

#[test]
fn s7_e2e_cycle_visited_once() {
    let mut net = Net::new(Fanout);
    net.exchange("y", Fanout);
    for (source, destination) in [("x", "y"), ("y", "x"), ("x", "x"), ("y", "q")] {
        net.bind(source, destination, "");
    }
    assert_eq!(net.route("k"), ["q"]);
    assert_eq!(net.route_from("y", &["k"], &Properties::default()), ["q"]);
}

#[test]
fn s7_alternate_takes_what_matches_nothing() {
    let mut net = Net::default();
    let arguments = table([("alternate-exchange", FieldValue::from("ae"))]);
    net.declare(Exchange { arguments, ..exchange("x", Direct) });
    net.bind("x", "q1", "k");
    assert!(net.route("none").is_empty(), "a missing alternate exchange is no error");
    net.exchange("ae", Fanout);
    net.bind("ae", "q2", "");
    assert_eq!(net.route("k"), ["q1"]);
    assert_eq!(net.route("none"), ["q2"]);
}

#[test]
fn s7_alternates_chain_and_may_form_a_cycle() {
    let mut net = Net::default();
    for (name, alternate) in [("x", "y"), ("y", "z"), ("z", "x")] {
        let key = net.exchange(name, Topic);
        net.topology.set_alternate(key, Some(alternate.into()));
    }
    assert!(net.route("k").is_empty());
    net.bind("z", "q", "#");
    assert_eq!(net.route("k"), ["q"]);
}

/// A destination that was reached before, or that itself leads nowhere, is a destination.
#[test]
fn s7_alternate_only_without_any_destination() {
    let mut net = Net::new(Fanout);
    net.exchange("dead end", Fanout);
    let key = net.exchange("y", Fanout);
    net.exchange("ae", Fanout);
    net.topology.set_alternate(key, Some("ae".into()));
    net.bind("ae", "never", "");
    net.bind("x", "q", "");
    net.bind("x", "y", "");
    net.bind("y", "q", "");
    assert_eq!(net.route("k"), ["q"]);
    net.unbind("y", "q", "");
    net.bind("y", "dead end", "");
    assert_eq!(net.route("k"), ["q"]);
    net.unbind("y", "dead end", "");
    assert_eq!(net.route("k"), ["never", "q"]);
}

#[test]
fn epoch_changes_with_what_alters_routes() {
    let mut net = Net::new(Fanout);
    let mut last = net.topology.epoch();
    let mut changed = |net: &Net| std::mem::replace(&mut last, net.topology.epoch()) != last;
    net.bind("x", "q", "");
    assert!(changed(&net));
    net.bind("x", "q", "");
    net.unbind("x", "q", "none");
    net.route("k");
    assert!(!changed(&net));
    net.unbind("x", "q", "");
    assert!(changed(&net));
    let key = net.exchange("y", Direct);
    assert!(changed(&net));
    net.topology.set_alternate(key, None);
    assert!(!changed(&net), "a policy sets what is set already, and often");
    net.topology.set_alternate(key, Some("x".into()));
    assert!(changed(&net));
    net.topology.remove_exchange(key);
    assert!(changed(&net));
    net.topology.touch();
    assert!(changed(&net));
}

#[test]
fn route_says_whether_the_keys_decided() {
    let mut net = Net::new(Topic);
    net.exchange("headers", Headers);
    let by_keys_only = |net: &mut Net| {
        let properties = leveret_protocol::RawProperties::EMPTY;
        let message = RouteInput { keys: &[b"k"], properties, random: 0 };
        net.topology.route(net.key("x"), &message, &|_| None, &mut Vec::new())
    };
    net.bind("x", "q", "k");
    assert!(by_keys_only(&mut net));
    net.bind("x", "headers", "k");
    assert!(!by_keys_only(&mut net));
}
