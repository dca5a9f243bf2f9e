//! Which headers match which arguments, and that the index finds the same as the rule.

use bytes::Bytes;
use leveret_protocol::{FieldTable, ShortName};
use proptest::prelude::*;

use super::super::ExchangeKind;
use super::super::tests::{Net, table};
use super::*;
use FieldValue::{Array, Bool, ByteArray, Decimal, F32, F64, I8, I32, I64, Table, Timestamp, U16, U32, Void};

fn matches(arguments: FieldTable, headers: FieldTable) -> bool {
    let mut net = Net::new(ExchangeKind::Headers);
    net.bind_with("x", "q", "", arguments);
    !net.route_headers(headers).is_empty()
}

/// With these arguments besides `x-match`.
fn matching<const N: usize>(x_match: &str, arguments: [(&str, FieldValue); N]) -> FieldTable {
    let mut table = table(arguments);
    table.insert("x-match", x_match);
    table
}

fn text(text: &str) -> FieldValue {
    FieldValue::from(text)
}

fn both() -> [(&'static str, FieldValue); 2] {
    [("a", I32(1)), ("b", text("v"))]
}

#[test]
fn s7_headers_all_is_the_default() {
    for arguments in [table(both()), matching("all", both())] {
        assert!(matches(arguments.clone(), table(both())));
        assert!(matches(arguments.clone(), table([("c", Void), both()[1].clone(), both()[0].clone()])));
        assert!(!matches(arguments.clone(), table([("a", I32(1))])));
        assert!(!matches(arguments, table([("a", I32(1)), ("b", text("w"))])));
    }
}

#[test]
fn s7_headers_any_wants_one() {
    let arguments = matching("any", both());
    assert!(matches(arguments.clone(), table([("a", I32(1))])));
    assert!(matches(arguments.clone(), table([("a", I32(2)), ("b", text("v"))])));
    assert!(!matches(arguments.clone(), table([("a", I32(2)), ("c", text("v"))])));
    assert!(!matches(arguments, FieldTable::new()));
}

#[test]
fn s7_headers_all_with_none_matches_everything() {
    let mut net = Net::new(ExchangeKind::Headers);
    net.bind("x", "q1", "");
    net.bind_with("x", "q2", "", matching("all-with-x", []));
    net.bind_with("x", "q3", "", table([("x-a", I32(1))]));
    assert_eq!(net.route("no headers"), ["q1", "q2", "q3"]);
    assert_eq!(net.route_headers(table(both())), ["q1", "q2", "q3"]);
}

#[test]
fn s7_headers_any_with_none_matches_nothing() {
    for x_match in ["any", "any-with-x"] {
        assert!(!matches(matching(x_match, []), table(both())));
    }
    assert!(!matches(matching("any", [("x-a", I32(1))]), table([("x-a", I32(1))])));
}

#[test]
fn s7_headers_void_matches_presence() {
    for x_match in ["all", "any"] {
        let arguments = matching(x_match, [("a", Void)]);
        assert!(matches(arguments.clone(), table([("a", I32(7))])));
        assert!(matches(arguments.clone(), table([("a", Void)])));
        assert!(!matches(arguments, table([("b", Void)])));
    }
    assert!(!matches(table([("a", I32(1))]), table([("a", Void)])));
}

#[test]
fn s7_headers_x_names_count_only_with_x() {
    let arguments = [("x-a", I32(1)), ("b", I32(2))];
    assert!(matches(matching("all", arguments.clone()), table([("b", I32(2))])));
    assert!(!matches(matching("any", arguments.clone()), table([("x-a", I32(1))])));
    assert!(!matches(matching("all-with-x", arguments.clone()), table([("b", I32(2))])));
    assert!(matches(matching("all-with-x", arguments.clone()), table(arguments.clone())));
    assert!(matches(matching("any-with-x", arguments), table([("x-a", I32(1))])));
    // Its own name never counts.
    let of_its_own = table([("x-match", text("any-with-x"))]);
    assert!(!matches(of_its_own.clone(), of_its_own));
}

/// As RabbitMQ 4.0.5 answered, but for timestamps.
#[test]
fn s7_headers_values_compare_as_decoded() {
    let nested = |value| Table(table([("n", value)]));
    let bytes = |text: &'static str| ByteArray(Bytes::from_static(text.as_bytes()));
    let equal = [
        (I8(5), U32(5)),
        (I64(-5), I8(-5)),
        (U16(40000), I32(40000)),
        (F32(1.5), F64(1.5)),
        (text("v"), bytes("v")),
        (Bool(true), Bool(true)),
        (Timestamp(5), Timestamp(5)),
        (Decimal { scale: 1, value: 10 }, Decimal { scale: 1, value: 10 }),
        (nested(I32(1)), nested(I32(1))),
        (nested(Timestamp(5)), nested(Timestamp(5))),
        (Array(vec![I32(1), text("v")]), Array(vec![I32(1), text("v")])),
    ];
    let different = [
        (I32(1), F64(1.0)),
        (F64(0.0), F64(-0.0)),
        (Bool(true), I32(1)),
        (text("1"), I32(1)),
        (text("true"), Bool(true)),
        (text("v"), text("V")),
        (Timestamp(5), I64(5)),
        (Decimal { scale: 1, value: 10 }, Decimal { scale: 0, value: 1 }),
        (nested(I32(1)), nested(I64(1))),
        (Array(vec![I32(1), I32(2)]), Array(vec![I32(2), I32(1)])),
        (Array(vec![text("v")]), Array(vec![bytes("v")])),
    ];
    for (cases, expected) in [(equal, true), (different, false)] {
        for (one, other) in cases {
            for (want, have) in [(&one, &other), (&other, &one)] {
                let matched = matches(table([("a", want.clone())]), table([("a", have.clone())]));
                assert_eq!(matched, expected, "{want:?} and {have:?}");
            }
        }
    }
}

#[test]
fn s7_headers_last_of_a_name_counts() {
    let twice = || table([("a", I32(1)), ("a", I32(2))]);
    assert!(matches(table([("a", I32(2))]), twice()));
    assert!(!matches(table([("a", I32(1))]), twice()));
    assert!(!matches(twice(), twice()), "both arguments cannot be fulfilled");
    assert!(matches(table([("a", Void)]), twice()));
}

#[test]
fn s7_headers_wrong_x_match_is_explained() {
    let validate = |value: FieldValue| {
        let mut net = Net::new(ExchangeKind::Headers);
        let binding = net.binding("x", "q", "", table([("x-match", value)]));
        net.topology.validate_binding(&binding, Some("classic"))
    };
    for value in ["all", "any", "all-with-x", "any-with-x"] {
        assert_eq!(validate(text(value)), Ok(()));
    }
    let expected = "Invalid x-match field value <<\"foo\">>; expected all, any, all-with-x, or any-with-x";
    assert_eq!(validate(text("foo")).unwrap_err(), expected);
    let expected = "Invalid x-match field type signedint (value 5); expected longstr";
    assert_eq!(validate(I32(5)).unwrap_err(), expected);
    let expected = "Invalid x-match field type bool (value true); expected longstr";
    assert_eq!(validate(Bool(true)).unwrap_err(), expected);
}

#[test]
fn unbinding_leaves_nothing() {
    let mut net = Net::new(ExchangeKind::Headers);
    let mut headers = Headers::default();
    let all = [
        table(both()),
        matching("any", [("a", I32(1)), ("a", I64(1)), ("c", Void)]),
        matching("any", []),
        FieldTable::new(),
    ];
    let bindings = all.map(|arguments| net.binding("x", "q", "", arguments));
    for (ordinal, binding) in bindings.iter().enumerate() {
        headers.bind(ordinal as u64, binding);
    }
    for (ordinal, binding) in bindings.iter().enumerate() {
        headers.unbind(ordinal as u64, binding);
    }
    assert!(headers.names.is_empty() && headers.unconditional.is_empty());
}

/// A thousand bindings that share a term are told apart by their other one.
#[test]
fn all_is_filed_under_its_rarest_term() {
    let mut net = Net::new(ExchangeKind::Headers);
    let mut headers = Headers::default();
    for id in 0..1000 {
        let arguments = table([("a-type", text("order")), ("id", I32(id))]);
        headers.bind(id as u64, &net.binding("x", "q", "", arguments));
    }
    assert_eq!(headers.names[&b"id"[..]].by_value.len(), 999);
    assert!(headers.names.values().flat_map(|named| named.by_value.values()).all(|rules| rules.len() == 1));
}

fn value() -> impl Strategy<Value = FieldValue> {
    let values = vec![I32(0), I64(0), I32(1), text("0"), Bool(false), F64(0.0), Void, Array(vec![])];
    prop::sample::select(values)
}

fn fields() -> impl Strategy<Value = FieldTable> {
    let name = prop::sample::select(vec!["a", "b", "c", "x-a"]);
    prop::collection::vec((name, value()), 0..4).prop_map(|fields| fields.into_iter().collect())
}

/// The rule of reference 7, word for word.
fn rule_matches(x_match: Option<&str>, arguments: &FieldTable, headers: &FieldTable) -> bool {
    let x_match = x_match.unwrap_or("all");
    let counts = |name: &str| x_match.ends_with("-with-x") || !name.starts_with("x-");
    let equal = |one: &FieldValue, other: &FieldValue| match (one.as_integer(), other.as_integer()) {
        (None, None) => one == other,
        (one, other) => one == other,
    };
    let fulfilled = |(name, want): &(ShortName, FieldValue)| {
        let header = headers.iter().rev().find(|(other, _)| other == name);
        header.is_some_and(|(_, have)| *want == Void || equal(want, have))
    };
    let mut counting = arguments.iter().filter(|(name, _)| name.as_str().is_some_and(counts));
    if x_match.starts_with("all") { counting.all(fulfilled) } else { counting.any(fulfilled) }
}

proptest! {
    /// After any binds and unbinds the index says what the rule says of each binding that is left.
    #[test]
    fn index_matches_like_the_rule(
        bound in prop::collection::vec(
            (
                prop::sample::select(vec![
                    None, Some("all"), Some("any"), Some("all-with-x"), Some("any-with-x"),
                ]),
                fields(),
                any::<bool>(),
            ),
            1..25,
        ),
        messages in prop::collection::vec(fields(), 1..20),
    ) {
        let mut net = Net::new(ExchangeKind::Headers);
        let with_match = |at: usize| {
            let mut arguments = bound[at].1.clone();
            if let Some(x_match) = bound[at].0 {
                arguments.insert("x-match", x_match);
            }
            arguments
        };
        let queue = |at: usize| format!("q{at:02}");
        for at in 0..bound.len() {
            net.bind_with("x", &queue(at), "", with_match(at));
        }
        for at in (0..bound.len()).filter(|at| !bound[*at].2) {
            let binding = net.binding("x", &queue(at), "", with_match(at));
            prop_assert_eq!(net.topology.unbind(&binding).bindings.len(), 1);
        }
        for headers in messages {
            let expected: Vec<String> = (0..bound.len())
                .filter(|at| bound[*at].2 && rule_matches(bound[*at].0, &bound[*at].1, &headers))
                .map(queue)
                .collect();
            prop_assert_eq!(net.route_headers(headers), expected);
        }
    }
}
