//! Keys of RabbitMQ that have no effect here, and why: so that a file written for it is told from one with slips.

const CLUSTER: &str = "there is one node, not a cluster";
const ERLANG: &str = "it is about Erlang's virtual machine, and there is none";
const PLUGIN: &str = "leveret does not have what this plugin does";
const LOG: &str = "the log goes to stderr, one line a message";
const STORAGE: &str = "leveret stores messages in its own way";
const TCP: &str = "leveret chooses the options of its sockets itself";
const TLS: &str = "the TLS library has a safe setting of its own";
const NAME: &str = "it is for a RabbitMQ under another name";
const STATISTICS: &str = "counts are always there, and exact";
const LOGIN: &str = "users are leveret's own, and log in with PLAIN, AMQPLAIN or ANONYMOUS";
const ALLOWED: &str = "nothing is deprecated here: what a version allows is set with leveret.compat";
const LATER: &str = "leveret cannot do this yet";

/// Keys, or beginnings of keys if they end in a dot.
const IGNORED: &[(&str, &str)] = &[
    ("advertised_host", CLUSTER),
    ("amqp1_0.", PLUGIN),
    ("auth_backends", LOGIN),
    ("auth_http.", LOGIN),
    ("auth_ldap.", LOGIN),
    ("auth_mechanisms.", LOGIN),
    ("auth_oauth2.", LOGIN),
    ("background_gc_enabled", ERLANG),
    ("background_gc_target_interval", ERLANG),
    ("channel_operation_timeout", CLUSTER),
    ("channel_tick_interval", STATISTICS),
    ("classic_queue.", STORAGE),
    ("cluster_formation.", CLUSTER),
    ("cluster_keepalive_interval", CLUSTER),
    ("cluster_partition_handling", CLUSTER),
    ("cluster_partition_handling.", CLUSTER),
    ("cluster_tags.", CLUSTER),
    ("collect_statistics", STATISTICS),
    ("collect_statistics_interval", STATISTICS),
    ("credential_validator.", LATER),
    ("default_policies.", LATER),
    ("default_users.", LATER),
    ("definitions.", LATER),
    ("delegate_count", ERLANG),
    ("deprecated_features.", ALLOWED),
    ("direct_exchange_routing_v2", STORAGE),
    ("distribution.", CLUSTER),
    ("erlang.", ERLANG),
    ("federation.", PLUGIN),
    ("ha_promote_on_shutdown", CLUSTER),
    ("hipe_compile", ERLANG),
    ("khepri.", STORAGE),
    ("lazy_queue_explicit_gc_run_operation_threshold", ERLANG),
    ("listeners.ssl", LATER),
    ("listeners.ssl.", LATER),
    ("log.console.", LOG),
    ("log.dir", LOG),
    ("log.exchange", LOG),
    ("log.exchange.", LOG),
    ("log.file.", LOG),
    ("log.journald", LOG),
    ("log.journald.", LOG),
    ("log.syslog", LOG),
    ("log.syslog.", LOG),
    ("log.summarize_process_state", ERLANG),
    ("log.error_logger_format_depth", ERLANG),
    ("management.", LATER),
    ("management_agent.", STATISTICS),
    ("memory_monitor_interval", ERLANG),
    ("message_interceptors.", LATER),
    ("message_store_shutdown_timeout", STORAGE),
    ("metadata_store.", STORAGE),
    ("mirroring_flow_control", CLUSTER),
    ("mirroring_sync_batch_size", CLUSTER),
    ("mnesia_table_loading_retry_limit", CLUSTER),
    ("mnesia_table_loading_retry_timeout", CLUSTER),
    ("motd_file", NAME),
    ("mqtt.", PLUGIN),
    ("msg_store_", STORAGE),
    ("net_ticktime", CLUSTER),
    ("node_tags.", CLUSTER),
    ("num_acceptors.", TCP),
    ("oauth2_", LOGIN),
    ("product.", NAME),
    ("prometheus.", LATER),
    ("proxy_protocol", LATER),
    ("queue_explicit_gc_run_operation_threshold", ERLANG),
    ("queue_index_embed_msgs_below", STORAGE),
    ("queue_leader_locator", CLUSTER),
    ("queue_master_locator", CLUSTER),
    ("quorum_queue.", STORAGE),
    ("quorum_cluster_size", CLUSTER),
    ("raft.", STORAGE),
    ("random_exchange.", PLUGIN),
    ("reverse_dns_lookups", TCP),
    ("shovel.", PLUGIN),
    ("ssl_cert_login_from", LATER),
    ("ssl_handshake_timeout", LATER),
    ("ssl_options.honor_", TLS),
    ("ssl_options.", LATER),
    ("stomp.", PLUGIN),
    ("stream.", PLUGIN),
    ("sysmon_handler.", ERLANG),
    ("tcp_listen_options.", TCP),
    ("tracing.", PLUGIN),
    ("trust_store.", PLUGIN),
    ("vm_memory_calculation_strategy", ERLANG),
    ("vm_memory_high_watermark_paging_ratio", STORAGE),
    ("web_dispatch.", PLUGIN),
    ("web_mqtt.", PLUGIN),
    ("web_stomp.", PLUGIN),
];

/// Why a key of RabbitMQ does nothing here; `None` for one that is not RabbitMQ's.
pub(super) fn why(key: &str) -> Option<&'static str> {
    let names = |known: &str| known == key || (known.ends_with(['.', '_']) && key.starts_with(known));
    IGNORED.iter().find(|(known, _)| names(known)).map(|(_, why)| *why)
}
