//! The variables of RabbitMQ and of its container image (4.3 to 4.5).

use super::*;

fn env_with(env: &[(&str, &str)], more: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let env = env.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    parse_with([OsString::from("leveret")], env, &Given { file: "", more })
}

#[test]
fn the_first_user_comes_from_the_environment() {
    let config =
        env(&[("RABBITMQ_DEFAULT_USER", "ann"), ("RABBITMQ_DEFAULT_PASS", "pw"), ("RABBITMQ_DEFAULT_VHOST", "shop")]);
    assert_eq!((config.default_user.as_str(), config.default_pass.expose()), ("ann", "pw"));
    assert_eq!(config.default_vhost, "shop");
    assert_eq!(config.warnings, [""; 0]);
    let other_image = env(&[("RABBITMQ_USERNAME", "bob"), ("RABBITMQ_PASSWORD", "pw"), ("RABBITMQ_VHOST", "v")]);
    assert_eq!((other_image.default_user.as_str(), other_image.default_vhost.as_str()), ("bob", "v"));
}

#[test]
fn secrets_come_from_files() {
    let files = [("/run/user", "ann\n"), ("/run/pass", "p w\r\n")];
    let variables = [("RABBITMQ_DEFAULT_USER_FILE", "/run/user"), ("RABBITMQ_DEFAULT_PASS_FILE", "/run/pass")];
    let config = env_with(&variables, &files).unwrap();
    assert_eq!((config.default_user.as_str(), config.default_pass.expose()), ("ann", "p w"));
    let missing = env_with(&variables, &[]).unwrap_err();
    let message = "RABBITMQ_DEFAULT_USER_FILE=/run/user: entity not found; check that the file is there";
    assert_eq!((missing.message.as_str(), missing.exit_code), (message, 2));
}

#[test]
fn they_beat_the_file_and_ours_beat_them() {
    let text = "default_user = file\nlisteners.tcp.default = 1\nlisteners.tcp.more = 2";
    let config = run(
        &["--config", "b.conf"],
        &[("RABBITMQ_DEFAULT_USER", "env"), ("RABBITMQ_NODE_PORT", "3"), ("RABBITMQ_NODE_IP_ADDRESS", "10.0.0.1")],
        text,
    );
    let config = config.unwrap();
    assert_eq!((config.default_user.as_str(), listening(&config)), ("env", vec!["10.0.0.1:3".to_owned()]));
    let ours = env(&[("RABBITMQ_NODE_PORT", "3"), ("LEVERET_PORT", "4"), ("RABBITMQ_MNESIA_DIR", "/m")]);
    assert_eq!(listening(&ours), ["127.0.0.1:4", "[::1]:4"]);
    assert_eq!(ours.data_dir.as_deref(), Some(Path::new("/m")));
}

#[test]
fn a_bad_value_is_named_and_a_secret_is_not_shown() {
    let message = |env: &[(&str, &str)]| env_with(env, &[]).unwrap_err().message;
    assert_eq!(
        message(&[("RABBITMQ_NODE_PORT", "x")]),
        "RABBITMQ_NODE_PORT=x: expected a port from 0 (any free one) to 65535"
    );
    let empty = env_with(&[("RABBITMQ_DEFAULT_PASS_FILE", "/empty")], &[("/empty", "\n")]).unwrap_err().message;
    assert_eq!(empty, "RABBITMQ_DEFAULT_PASS_FILE=…: expected a text that is not empty");
}

/// A service called `rabbitmq` is described to every pod.
#[test]
fn kubernetes_and_applications_have_variables_of_such_names() {
    let config = env(&[
        ("RABBITMQ_PORT", "tcp://10.0.0.7:5672"),
        ("RABBITMQ_NODE_PORT", "tcp://10.0.0.7:5672"),
        ("RABBITMQ_SERVICE_HOST", "10.0.0.7"),
        ("RABBITMQ_URL", "amqp://localhost"),
        ("RABBITMQ_ERLANG_COOKIE", "secret"),
        ("RABBITMQ_DEFAULT_USER", ""),
    ]);
    assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()));
}

#[test]
fn the_config_file_may_lack_its_end_or_not_be_there() {
    let files = [("/etc/r/a.conf", "heartbeat = 7")];
    for name in ["/etc/r/a", "/etc/r/a.conf"] {
        let config = env_with(&[("RABBITMQ_CONFIG_FILE", name)], &files).unwrap();
        assert_eq!(config.heartbeat_s, 7);
        assert_eq!(config.config_files, [PathBuf::from("/etc/r/a.conf")]);
    }
    let config = env_with(&[("RABBITMQ_CONFIG_FILE", "/gone")], &files).unwrap();
    assert_eq!(config.warnings, ["RABBITMQ_CONFIG_FILE=/gone: there is no such file"]);
}

#[test]
fn more_files_come_in_the_order_of_their_names_and_later_ones_win() {
    let files = [
        ("/d/20-b.conf", "heartbeat = 20\ndefault_user = b"),
        ("/d/10-a.conf", "heartbeat = 10\nchannel_max = 10"),
        ("/d/30-c.txt", "heartbeat = 30"),
        ("/main.conf", "heartbeat = 1\nframe_max = 9000"),
        ("/image.conf", "heartbeat = 2\nleveret.bind = 10.0.0.1"),
    ];
    for pattern in ["/d", "/d/*.conf", "/d/*-*.conf"] {
        let variables = [
            ("RABBITMQ_CONFIG_FILE", "/main.conf"),
            ("RABBITMQ_CONFIG_FILES", pattern),
            ("LEVERET_DEFAULTS", "/image.conf"),
        ];
        let pattern_has_two_stars = pattern.matches('*').count() > 1;
        let config = env_with(&variables, &files).unwrap();
        if pattern_has_two_stars {
            assert_eq!(config.heartbeat_s, 1, "only one star is understood: no file is called so");
            continue;
        }
        assert_eq!((config.heartbeat_s, config.channel_max, config.frame_max), (20, 10, 9000));
        assert_eq!((config.default_user.as_str(), listening(&config)), ("b", vec!["10.0.0.1:5672".to_owned()]));
        assert_eq!(config.config_files.len(), 4);
    }
    let ours = [("LEVERET_CONFIG", "/main.conf"), ("RABBITMQ_CONFIG_FILES", "/d")];
    assert_eq!(env_with(&ours, &files).unwrap().heartbeat_s, 1, "LEVERET_CONFIG stands for both of RabbitMQ's");
    let missing = env_with(&[("RABBITMQ_CONFIG_FILES", "/gone")], &files).unwrap();
    assert_eq!(missing.warnings, ["RABBITMQ_CONFIG_FILES=/gone: entity not found"]);
}

#[test]
fn erlang_flags_that_are_settings() {
    let flags = |flags: &str| env(&[("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", flags)]);
    let config = flags("+S 1 -rabbit tcp_listeners [5673] -rabbit loopback_users [] -kernel x y");
    assert_eq!(
        (listening(&config), config.loopback_users.len()),
        (vec!["127.0.0.1:5673".into(), "[::1]:5673".into()], 0)
    );
    let config =
        flags("-rabbitmq_management load_definitions \"/etc/d.json\" -rabbit heartbeat 9 -rabbit log_levels [{a,b}]");
    assert_eq!((config.definitions.as_deref(), config.heartbeat_s), (Some(Path::new("/etc/d.json")), 9));
    assert_eq!(flags("-rabbit default_user <<\"ann\">>").default_user, "ann");
}

#[test]
fn rabbitmq_log_sets_levels() {
    let log = |levels: &str| env(&[("RABBITMQ_LOG", levels)]).log;
    assert_eq!(log("debug"), "debug");
    assert_eq!(log("connection=warning,default=error,+color"), "error,leveret::server::connection=warn");
    let over_file = run(&["--config", "b.conf"], &[("RABBITMQ_LOG", "error")], "log.console.level = debug").unwrap();
    assert_eq!(over_file.log, "error");
}
