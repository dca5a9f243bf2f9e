//! `docs/gotchas.md` has a row for each of the 125 things that clients count on. No row may be missing, and no test
//! that a row names: this reads the sources; it runs nothing.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const NUMBERS: std::ops::RangeInclusive<u32> = 1..=125;

/// How a row begins that names no test.
const REASON: &str = "No test: ";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(root().join(path)).ok()
}

/// Number, and the last column, of each row that begins with a number.
fn rows() -> Vec<(u32, String)> {
    let list = read("docs/gotchas.md").expect("the list is there");
    let row = |line: &str| {
        let columns: Vec<&str> = line.trim().strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
        let number = columns[0].parse().ok()?;
        assert!(columns.len() == 3 && !columns[1].is_empty(), "three columns: {line}");
        Some((number, columns[2].to_owned()))
    };
    list.lines().filter_map(row).collect()
}

/// What stands in backquotes.
fn references(proof: &str) -> impl Iterator<Item = &str> {
    proof.split('`').skip(1).step_by(2)
}

/// Why this reference leads nowhere, if so.
fn fault(reference: &str) -> Option<String> {
    if let Some(script) = reference.strip_prefix("oracle: ") {
        return oracle_fault(script);
    }
    if let Some(pattern) = reference.strip_prefix("interop: ") {
        return interop_fault(pattern);
    }
    let Some((file, test)) = reference.split_once("::") else { return Some("neither test nor script".to_owned()) };
    let places =
        [format!("tests/{file}.rs"), format!("src/{file}.rs"), format!("src/{file}/tests.rs"), format!("{file}.rs")];
    let sources: Vec<String> = places.iter().filter_map(|path| read(path)).collect();
    if sources.is_empty() {
        return Some("no such file".to_owned());
    }
    if !is_built(file) {
        return Some("its file is not a module of tests/wire.rs or tests/clients.rs".to_owned());
    }
    match sources.iter().find_map(|source| attributes(source, test)) {
        None => Some("no such function in that file".to_owned()),
        Some(attributes) if attributes.iter().any(|line| line.starts_with("#[ignore")) => Some("ignored".to_owned()),
        Some(attributes) if !attributes.iter().any(|line| is_test(line)) => Some("no test".to_owned()),
        Some(_) => None,
    }
}

fn is_test(attribute: &str) -> bool {
    ["#[test]", "#[tokio::test"].iter().any(|start| attribute.starts_with(start))
}

/// Whether a file of these suites is a module of its suite: what nobody names is not compiled.
fn is_built(file: &str) -> bool {
    let Some((suite, module)) = file.split_once('/').filter(|(suite, _)| ["wire", "clients"].contains(suite)) else {
        return true;
    };
    let modules = read(&format!("tests/{suite}.rs")).unwrap_or_default();
    modules.lines().any(|line| line.trim() == format!("mod {module};"))
}

/// The lines of attributes above a function.
fn attributes<'a>(source: &'a str, function: &str) -> Option<Vec<&'a str>> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let head = format!("fn {function}()");
    let at = lines.iter().position(|line| line.strip_prefix("async ").unwrap_or(line).starts_with(&head))?;
    Some(lines[..at].iter().rev().take_while(|line| line.starts_with("#[")).copied().collect())
}

/// A script that was recorded, and is not among the differences that are still open.
fn oracle_fault(script: &str) -> Option<String> {
    let parts = ["scripts", "recorded/4.0", "recorded/4.3"];
    let missing = parts.iter().find(|part| read(&format!("interop/oracle/{part}/{script}.txt")).is_none());
    if let Some(part) = missing {
        return Some(format!("not in interop/oracle/{part}"));
    }
    let open = read("interop/oracle/OPEN.txt").unwrap_or_default();
    let is_open = open.lines().any(|line| !line.starts_with('#') && line.split_whitespace().any(|word| word == script));
    is_open.then(|| "still open, in interop/oracle/OPEN.txt".to_owned())
}

/// A program whose `main` has that pattern.
fn interop_fault(pattern: &str) -> Option<String> {
    let Some((client, name)) = pattern.split_once('/') else { return Some("CLIENT/PATTERN, please".to_owned()) };
    let mains = ["src/main.rs", "interop.py", "interop.js", "main.go", "src/main/java/interop/Main.java"];
    let Some(source) = mains.iter().find_map(|main| read(&format!("interop/{client}/{main}"))) else {
        return Some("no such program".to_owned());
    };
    // JavaScript writes `{ 'work-queue': workQueue, routing }`.
    let quoted = [format!("\"{name}\""), format!("'{name}'")];
    let is_there = quoted.iter().any(|quoted| source.contains(quoted))
        || source.lines().any(|line| line.trim() == format!("{name},"));
    (!is_there).then(|| "no such pattern in that program".to_owned())
}

#[test]
fn every_number_has_its_row() {
    let mut found = BTreeMap::new();
    for (number, _) in rows() {
        *found.entry(number).or_insert(0) += 1;
    }
    let expected: BTreeMap<u32, i32> = NUMBERS.map(|number| (number, 1)).collect();
    assert_eq!(found, expected, "number, and how often it is there");
}

#[test]
fn every_row_names_tests_that_exist_or_a_reason() {
    let mut faults = Vec::new();
    for (number, proof) in rows() {
        if proof.starts_with(REASON) {
            continue;
        }
        if references(&proof).next().is_none() {
            faults.push(format!("{number}: neither a test nor \"{REASON}...\""));
        }
        faults.extend(references(&proof).filter_map(|name| Some(format!("{number}: {name}: {}", fault(name)?))));
    }
    assert!(faults.is_empty(), "in docs/gotchas.md:\n{}", faults.join("\n"));
}

/// The tests that were written for this list: each is named in the row of its number.
#[test]
fn every_test_of_the_list_is_in_its_row() {
    let source = read("tests/wire/gotchas.rs").expect("the tests are there");
    let named: BTreeSet<(u32, String)> = rows()
        .iter()
        .flat_map(|(number, proof)| references(proof).map(|name| (*number, name.to_owned())).collect::<Vec<_>>())
        .collect();
    for line in source.lines() {
        let Some(test) = line.strip_prefix("fn g").and_then(|rest| rest.strip_suffix("() {")) else { continue };
        let Some(number) = test.split('_').next().and_then(|number| number.parse().ok()) else { continue };
        assert!(named.contains(&(number, format!("wire/gotchas::g{test}"))), "row {number} does not name g{test}");
    }
}

/// The checks find what they are for.
#[test]
fn references_that_lead_nowhere_are_found() {
    for good in ["gotchas::every_number_has_its_row", "oracle: ack/multiple", "interop: node-amqplib/routing"] {
        assert_eq!(fault(good), None, "{good}");
    }
    for bad in [
        "gotchas::no_such_test",
        "gotchas::root",
        "wire/no_such_file::test",
        "support/sim::test",
        "oracle: ack/no-such-script",
        "interop: node-amqplib/no-such-pattern",
        "interop: no-such-client/routing",
        "some words",
    ] {
        assert!(fault(bad).is_some(), "{bad}");
    }
    let above = attributes("#[test]\n#[ignore = \"why\"]\nasync fn a() {\n}\nfn ab() {}", "a");
    assert_eq!(above, Some(vec!["#[ignore = \"why\"]", "#[test]"]));
}
