//! The differential check: scripted sessions over raw AMQP against the real binary, compared with what a RabbitMQ
//! 4.0 and a 4.3 answered. Scripts, recordings and the runner are in `interop/oracle`.

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::Command;

/// Needs Python 3; there is no fallback, since a check that did not run must not look like one that passed.
#[test]
fn answers_as_rabbitmq_does() {
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/oracle/run");
    let output = Command::new("python3")
        .arg(run)
        .args(["replay", "--bin", env!("CARGO_BIN_EXE_leveret")])
        .output()
        .expect("python3 starts");
    let differences = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "differences from RabbitMQ:\n{differences}\n{errors}");
    println!("{differences}");
}
