//! `leveret perf` against a broker of its own: its counts are exact, and it says what goes wrong.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

#[path = "support/broker.rs"]
#[allow(dead_code)] // every test binary uses its part
mod broker;

use broker::Broker;

/// Exit code, stdout, stderr.
fn perf(line: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leveret"));
    let output = command.arg("perf").args(line.split_whitespace()).stdin(Stdio::null()).output().expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it writes text");
    (output.status.code().expect("it ends by itself"), text(output.stdout), text(output.stderr))
}

/// Runs it to a good end: the JSON that it writes.
#[track_caller]
fn measure(broker: &Broker, line: &str) -> Value {
    let line = format!("{line} -h amqp://{} -i 0 --json --broker-pid {}", broker.address, broker.pid());
    let (code, stdout, stderr) = perf(&line);
    assert_eq!(code, 0, "{line}: {stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{line}: {error} in {stdout}"))
}

#[track_caller]
fn assert_counts(result: &Value, expected: &[(&str, u64)]) {
    for (name, count) in expected {
        assert_eq!(result[*name], *count, "{name} of {result}");
    }
}

#[test]
fn producers_and_consumers_count_exactly() {
    let broker = Broker::in_memory();
    // Every way to acknowledge, several connections and channels, an end by count on both sides.
    for (line, each) in [
        ("-x 2 -y 1 -C 1000 -D 2000 -a", 2000),
        ("-x 1 -y 2 -C 3000 -D 1500 -q 10", 3000),
        ("-x 3 -y 1 -X 2 -Y 2 -C 1000 -D 3000 -q 50 -A 20", 3000),
        ("-C 2000 -a -e perf-x -t topic -u perf-q -k some.key", 2000),
        ("-C 50 -D 50 -s 300000 -a", 50),
    ] {
        let result = measure(&broker, line);
        assert_counts(&result, &[("sent", each), ("received", each), ("confirmed", 0)]);
        assert_eq!(result["latency_us"]["count"], each, "{line}");
        assert!(result["broker"]["resident_kib"].as_u64() > Some(1000), "{result}");
    }
}

#[test]
fn confirms_are_counted_per_message() {
    let broker = Broker::in_memory();
    let result = measure(&broker, "-x 2 -X 2 -c 7 -C 1001 -D 2002 -f persistent -a");
    assert_counts(&result, &[("sent", 2002), ("received", 2002), ("confirmed", 2002), ("nacked", 0)]);
    assert_eq!(result["confirm_latency_us"]["count"], 2002);
    let result = measure(&broker, "-c 10 -C 100 -y 0 -u full -qa x-max-length=30,x-overflow=reject-publish");
    assert_counts(&result, &[("sent", 100), ("confirmed", 30), ("nacked", 70)]);
    let result = measure(&broker, "-c 10 -C 100 -y 0 -f mandatory -u elsewhere -p");
    assert_counts(&result, &[("sent", 100), ("confirmed", 100), ("returned", 100)]);
}

#[test]
fn a_queue_is_filled_by_one_run_and_drained_by_the_next() {
    let broker = Broker::in_memory();
    assert_counts(&measure(&broker, "-u jobs -ad false -C 5000 -y 0"), &[("sent", 5000), ("received", 0)]);
    // What was read beyond the count goes back; the rest is there for the third.
    assert_counts(&measure(&broker, "-u jobs -p -x 0 -D 2000 -A 100"), &[("sent", 0), ("received", 2000)]);
    assert_counts(&measure(&broker, "-u jobs -p -x 0 -D 3000"), &[("received", 3000)]);
}

#[test]
fn modes_count_their_operations() {
    let broker = Broker::in_memory();
    let result = measure(&broker, "fanout -y 3 -C 500 -D 500 -a");
    assert_counts(&result, &[("sent", 500), ("received", 1500)]);
    // Every message matches one binding of one of the two queues.
    let result = measure(&broker, "topic -y 2 --bindings 100 -C 1000 -a");
    assert_counts(&result, &[("sent", 1000), ("received", 1000)]);
    for (line, operations) in [
        ("rpc -x 2 -y 2 -C 300 --in-flight 4 -a", 600),
        ("rpc -C 100 -q 1 -s 200000", 100),
        ("connections -x 2 -C 20", 40),
        ("channels -x 2 -C 50", 100),
        ("declare -x 2 -C 150 --in-flight 10", 300),
        ("idle -x 100 -z 1", 100),
    ] {
        let result = measure(&broker, line);
        assert_counts(&result, &[("operations", operations)]);
        assert_eq!(result["latency_us"]["count"], operations, "{line}");
    }
    // Nothing of all that is left.
    let result = measure(&broker, "-qp leveret-perf-%d -C 10 -a");
    assert_counts(&result, &[("sent", 10), ("received", 10)]);
}

#[test]
fn many_queues_are_shared_out() {
    let broker = Broker::in_memory();
    let result = measure(&broker, "-x 3 -y 4 -qp many-%d -qpt 50 -C 1000 -a");
    assert_counts(&result, &[("sent", 3000), ("received", 3000)]);
}

#[test]
fn a_rate_is_kept_and_a_stall_of_the_broker_shows_in_the_latencies() {
    let broker = Broker::in_memory();
    let line = format!("-h amqp://{} -a -r 2000 -z 2 -i 0 --json", broker.address);
    let run = thread::spawn(move || perf(&line));
    thread::sleep(Duration::from_millis(800));
    broker.signal("STOP");
    thread::sleep(Duration::from_millis(600));
    broker.signal("CONT");
    let (code, stdout, stderr) = run.join().unwrap();
    assert_eq!(code, 0, "{stderr}");
    let result: Value = serde_json::from_str(&stdout).unwrap();
    let sent = result["sent"].as_u64().unwrap();
    assert!((3500..=4100).contains(&sent), "{result}");
    // Those due in 0.6 of 2 seconds were late, not one or two: 600 ms down to nothing.
    assert!(result["latency_us"]["p95"].as_f64() > Some(300_000.0), "{result}");
}

#[test]
fn lines_for_people_say_rates_and_latencies() {
    let broker = Broker::in_memory();
    let (code, stdout, _) = perf(&format!("-h amqp://{} -a -r 1000 -z 1.2 -i 0.5", broker.address));
    assert_eq!(code, 0);
    let lines: Vec<_> = stdout.lines().collect();
    assert!(lines[0].trim_start().starts_with("0.5 s  sent ") && lines[0].contains("/s  p50 "), "{stdout}");
    assert!(lines.iter().any(|line| line.trim_start().starts_with("latency ")), "{stdout}");
    let (code, stdout, _) = perf("--help");
    assert!(code == 0 && stdout.contains("-x, --producers <N>") && stdout.contains("Examples:"), "{stdout}");
}

/// One line on stderr: what, and what to do.
#[test]
fn what_goes_wrong_is_said_in_one_line() {
    let broker = Broker::in_memory();
    let at = format!("-h amqp://{}", broker.address);
    for (line, code, part) in [
        (format!("{at} -u none -p"), 1, "404 NOT_FOUND - no queue 'none' in vhost '/'"),
        (format!("-h amqp://guest:wrong@{}", broker.address), 1, "403 ACCESS_REFUSED - Login was refused"),
        ("-h amqp://127.0.0.1:1".to_owned(), 1, "cannot connect to 127.0.0.1:1: "),
        ("-h http://h".to_owned(), 2, "the scheme is http, not amqp; see leveret perf --help"),
        ("-A 3 -q 2".to_owned(), 2, "would never come; see leveret perf --help"),
        ("--no-such".to_owned(), 2, "unexpected argument '--no-such' found; see leveret perf --help"),
        (format!("{at} --broker-pid 999999999"), 2, "there is no process 999999999"),
    ] {
        let (found, stdout, stderr) = perf(&format!("{line} -z 5 -i 0"));
        assert_eq!((found, stdout.as_str()), (code, ""), "{line}: {stderr}");
        assert!(stderr.starts_with("leveret perf: ") && stderr.contains(part), "{line}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}
