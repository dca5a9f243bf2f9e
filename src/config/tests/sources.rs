//! Files of RabbitMQ with keys that do nothing here, and `leveret config check`.

use super::*;

fn check(text: &str) -> ConfigError {
    run(&["config", "check", "b.conf"], &[], text).unwrap_err()
}

#[test]
fn a_check_names_every_finding_with_its_line() {
    let report = check(
        "heartbeat = soon\nhearbeat = 60\nnet_ticktime = 60\ndefault_pass = ''\nno line\nchannel_max = 5\n\
         log.console.level = loud",
    );
    assert_eq!((report.exit_code, report.to_stdout), (2, true));
    assert_eq!(
        report.message.lines().collect::<Vec<_>>(),
        [
            "error: b.conf:1: heartbeat = soon: expected seconds from 0 (off) to 65535",
            "warning: b.conf:2: unknown key hearbeat is ignored; did you mean heartbeat?",
            "warning: b.conf:3: net_ticktime has no effect: there is one node, not a cluster",
            "error: b.conf:4: default_pass = …: expected a text that is not empty",
            "error: b.conf:5: expected key = value",
            "error: b.conf:7: log.console.level = loud: expected one of debug, info, notice, warning, error, critical, \
             alert, emergency, none",
            "b.conf: 4 errors, 2 warnings",
        ]
    );
}

#[test]
fn a_check_sees_what_only_the_whole_file_tells() {
    let report = check("listeners.tcp = none");
    assert_eq!(report.exit_code, 2);
    assert!(report.message.ends_with("b.conf: 1 error, 0 warnings"), "{}", report.message);
    let report = check("log.file = /var/log/x");
    assert_eq!(report.exit_code, 0);
    assert_eq!(
        report.message,
        "warning: log.file = /var/log/x is ignored: the log goes to stderr\nb.conf: ok, 1 warning"
    );
}

#[test]
fn a_check_of_a_good_file_is_ok_and_of_none_an_error() {
    let report = check("# all well\nheartbeat = 5");
    assert_eq!((report.message.as_str(), report.exit_code, report.to_stdout), ("b.conf: ok", 0, true));
    let missing = run(&["config", "check", "gone.conf"], &[], "").unwrap_err();
    assert_eq!(missing.message, "cannot read gone.conf: entity not found; check the path");
    assert_eq!((missing.exit_code, missing.to_stdout), (2, false));
    assert_eq!(args_error(&["config"]).lines().count(), 1);
}

#[test]
fn other_backends_are_refused() {
    assert_eq!(file("auth_backends.1 = internal\nauth_backends.2 = rabbit_auth_backend_internal").warnings, [""; 0]);
    let message = file_error("auth_backends.1 = ldap");
    assert!(message.starts_with("b.conf:1: auth_backends.1 = ldap: expected internal"), "{message}");
}

#[test]
fn log_levels_by_category() {
    assert_eq!(file("log.connection.level = warning").log, "info,leveret::server::connection=warn");
    let text = "log.console.level = error\nlog.queue.level = debug\nlog.federation.level = debug";
    assert_eq!(file(text).log, "error,leveret::model=debug");
    assert_eq!(file("log.default.level = warning").log, "warn");
    assert_eq!(file("log.console = false\nlog.connection.level = debug").log, "off");
    assert_eq!(file("log.console = true\nlog.file = false").log, "info");
    assert_eq!(file("log.console.formatter = json").log_format, LogFormat::Json);
    let message = file_error("log.conection.level = debug");
    assert!(message.contains("expected one of the categories connection, channel"), "{message}");
    let by_option = run(&["--config", "b.conf", "--log", "warn"], &[], "log.connection.level = debug").unwrap();
    assert_eq!(by_option.log, "warn", "the command line undoes levels of the file");
}

#[test]
fn definitions_have_three_names() {
    for key in ["load_definitions", "management.load_definitions", "definitions.local.path", "leveret.definitions"] {
        assert_eq!(file(&format!("{key} = /d.json")).definitions.as_deref(), Some(Path::new("/d.json")));
    }
}
