//! `leveret store check` and `dump`: what is in a data folder, without changing it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use leveret_protocol::{Properties, basic};

use crate::broker::{Broker, is_ours};
use crate::client::{Channel, declare};
use crate::s14_limits::enter;

const BODY: &str = "a body that is found again in the log";

fn publish(channel: &Channel, queue: &str, count: u64) {
    let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
    for _ in 0..count {
        let publish = basic::Publish { exchange: "", routing_key: queue, mandatory: false, immediate: false };
        channel.publish_with(publish, &properties, BODY.as_bytes());
    }
    channel.wait_for_confirms(count);
}

/// Three messages in `q`, none in `empty`; the broker ends with this signal.
fn filled(signal: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::in_folder(folder.path());
    let channel = enter(&broker, "/").channel();
    channel.declare(declare("q"));
    channel.declare(declare("empty"));
    channel.confirm_select();
    publish(&channel, "q", 3);
    broker.stop(signal);
    folder
}

struct Exit {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn run(command: &str, dir: &Path, more: &[&str]) -> Exit {
    let mut tool = Command::new(env!("CARGO_BIN_EXE_leveret"));
    let output = tool.args(["store", command]).arg(dir).args(more).output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Exit { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn files(dir: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.is_file() {
            // Not the admin socket, which a kill leaves.
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
}

#[test]
fn a_folder_is_looked_at_and_left_as_it_is() {
    if !is_ours() {
        return;
    }
    for (signal, stop) in [("TERM", "  stopped cleanly"), ("KILL", "  not stopped cleanly")] {
        let folder = filled(signal);
        let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
        files(folder.path(), &mut before);
        let check = run("check", folder.path(), &[]);
        assert_eq!(check.code, Some(0), "{}", check.stderr);
        for line in [stop, "2 durable queues, 3 messages", "every message can be read"] {
            assert!(check.stdout.contains(line), "{line} is not in {}", check.stdout);
        }
        let dump = run("dump", folder.path(), &[]);
        assert_eq!(dump.code, Some(0), "{}", dump.stderr);
        let rows: Vec<Vec<&str>> = dump.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1][..4], ["/", "empty", "classic", "0"]);
        assert_eq!(rows[2][..4], ["/", "q", "classic", "3"]);
        let json = run("dump", folder.path(), &["--json"]);
        let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
        assert_eq!(json["vhosts"][0]["queues"][1]["messages"], 3);
        assert_eq!(json["clean_stop"], signal == "TERM");
        files(folder.path(), &mut after);
        assert!(before == after, "{signal}: the folder was changed");
        let broker = Broker::in_folder(folder.path());
        assert_eq!(enter(&broker, "/").channel().look("q").ready, 3);
    }
}

#[test]
fn a_folder_that_is_in_use_or_none_is_said_to_be() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let none = run("check", folder.path(), &[]);
    assert_eq!(none.code, Some(2));
    assert!(none.stderr.contains("is no data folder of leveret"), "{}", none.stderr);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is made there");
    let broker = Broker::in_folder(folder.path());
    let used = run("dump", folder.path(), &[]);
    assert_eq!(used.code, Some(2));
    assert!(used.stderr.contains("is in use by another leveret"), "{}", used.stderr);
    drop(broker);
}

#[test]
fn damage_is_found_and_named() {
    if !is_ours() {
        return;
    }
    let folder = filled("TERM");
    let log = fs::read_dir(folder.path().join("log")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&log).unwrap();
    let at = bytes.windows(BODY.len()).position(|window| window == BODY.as_bytes()).expect("it is in the log");
    bytes[at] ^= 1;
    fs::write(&log, bytes).unwrap();
    let check = run("check", folder.path(), &[]);
    let said = format!("{}{}", check.stdout, check.stderr);
    assert!(matches!(check.code, Some(1 | 2)), "{said}");
    assert!(said.contains("damaged at byte"), "{said}");
}
