//! The one node of this cluster (management reference 1.6).

use axum::extract::Path;
use serde_json::{Map, Value, json};

use crate::management::caller::Cx;
use crate::management::error::{Answer, ApiError};
use crate::management::list;
use crate::model::exchange::ExchangeKind;
use crate::server::Server;
use crate::server::alarms::Alarm;

/// Plugins whose work is done here, whether they are called so or not.
pub const PLUGINS: [&str; 3] = ["rabbitmq_management", "rabbitmq_management_agent", "rabbitmq_prometheus"];

/// Counters of Erlang's and RabbitMQ's inner life that exporters ask for: there is nothing to count.
const NOTHING: [&str; 17] = [
    "gc_num",
    "gc_bytes_reclaimed",
    "context_switches",
    "io_read_count",
    "io_read_bytes",
    "io_read_avg_time",
    "io_write_count",
    "io_write_bytes",
    "io_write_avg_time",
    "io_sync_count",
    "io_sync_avg_time",
    "io_seek_count",
    "io_seek_avg_time",
    "mnesia_ram_tx_count",
    "mnesia_disk_tx_count",
    "queue_index_read_count",
    "queue_index_write_count",
];

pub async fn all(cx: Cx) -> Answer {
    cx.needs_monitor()?;
    list::plain(&cx.query, &[node_json(cx.server())])
}

pub async fn get(cx: Cx, Path(name): Path<String>) -> Answer {
    cx.needs_monitor()?;
    find(&cx, &name)?;
    list::one(&cx.query, &node_json(cx.server()))
}

fn find(cx: &Cx, name: &str) -> Result<(), ApiError> {
    if cx.server().node_info.name == name { Ok(()) } else { Err(ApiError::not_found()) }
}

fn node_json(server: &Server) -> Value {
    let config = server.config();
    let version = config.profile.server_version();
    let process = Process::look();
    let alarms = server.alarms();
    let sockets = server.connection_count();
    let db_dir = config.data_dir.as_ref().map(|dir| dir.display().to_string()).unwrap_or_default();
    let mut node = json!({
        "name": server.node_info.name,
        "type": "disc",
        "running": true,
        "being_drained": false,
        "partitions": [],
        "os_pid": std::process::id().to_string(),
        "uptime": server.now() - server.node_info.started_at,
        "run_queue": 0,
        "processors": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        "rates_mode": "basic",
        "fd_total": process.files_max,
        "fd_used": process.files,
        "sockets_total": process.files_max,
        "sockets_used": sockets,
        "proc_total": 1_048_576,
        "proc_used": process.threads,
        "mem_limit": alarms.memory_limit(),
        "mem_alarm": alarms.is_on(Alarm::Memory),
        "mem_used": process.memory,
        "mem_calculation_strategy": "rss",
        "disk_free_limit": alarms.disk_free_limit(),
        "disk_free_alarm": alarms.is_on(Alarm::Disk),
        "log_files": ["<stderr>"],
        "db_dir": db_dir,
        "config_files": config.config_files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>(),
        "net_ticktime": 60,
        "enabled_plugins": PLUGINS,
        "auth_mechanisms": auth_mechanisms(),
        "exchange_types": exchange_types(),
        "applications": [{"name": "rabbit", "description": "RabbitMQ", "version": version}],
        "contexts": [],
        "cluster_links": [],
        "metrics_gc_queue_length": {"connection_closed": 0, "channel_closed": 0},
        "rabbitmq_version": version,
        "erlang_version": "0",
        "erlang_full_version": "none",
        "crypto_lib_version": "none",
    });
    let fields = node.as_object_mut().expect("an object");
    for name in NOTHING {
        fields.insert(name.to_owned(), 0.into());
    }
    for name in NOTHING.into_iter().chain(["mem_used", "fd_used", "sockets_used", "proc_used", "disk_free"]) {
        fields.insert(format!("{name}_details"), json!({"rate": 0.0}));
    }
    node
}

fn auth_mechanisms() -> Vec<Value> {
    let mechanism =
        |name| json!({"name": name, "description": format!("SASL {name} authentication mechanism"), "enabled": true});
    ["PLAIN", "AMQPLAIN"].into_iter().map(mechanism).collect()
}

/// The types of exchanges there are.
pub fn exchange_types() -> Vec<Value> {
    let description = |kind: ExchangeKind| match kind.name() {
        name @ ("direct" | "fanout" | "headers" | "topic") => {
            format!("AMQP {name} exchange, as per the AMQP specification")
        }
        name => format!("{name} exchange"),
    };
    let types = ExchangeKind::ALL.into_iter();
    types.map(|kind| json!({"name": kind.name(), "description": description(kind), "enabled": true})).collect()
}

/// Where memory went: the kinds that RabbitMQ knows, most of which are none here.
pub async fn memory(cx: Cx, Path(name): Path<String>) -> Answer {
    cx.needs_monitor()?;
    find(&cx, &name)?;
    let total = Process::look().memory;
    let mut memory = memory_kinds(cx.server(), total);
    memory.insert("strategy".to_owned(), "rss".into());
    memory.insert("total".to_owned(), json!({"erlang": total, "rss": total, "allocated": total}));
    list::ok(&json!({"memory": memory}))
}

pub async fn memory_relative(cx: Cx, Path(name): Path<String>) -> Answer {
    cx.needs_monitor()?;
    find(&cx, &name)?;
    let total = Process::look().memory;
    let mut memory = memory_kinds(cx.server(), total);
    for value in memory.values_mut() {
        *value = (value.as_u64().unwrap_or(0) * 100 / total.max(1)).into();
    }
    memory.insert("total".to_owned(), 100.into());
    list::ok(&json!({"memory": memory}))
}

fn memory_kinds(server: &Server, total: u64) -> Map<String, Value> {
    const NONE: [&str; 22] = [
        "connection_readers",
        "connection_writers",
        "connection_channels",
        "connection_other",
        "quorum_queue_procs",
        "quorum_queue_dlx_procs",
        "stream_queue_procs",
        "stream_queue_replica_reader_procs",
        "stream_queue_coordinator_procs",
        "plugins",
        "metadata_store",
        "metrics",
        "mgmt_db",
        "quorum_ets",
        "mnesia",
        "metadata_store_ets",
        "other_ets",
        "binary",
        "msg_index",
        "code",
        "atom",
        "other_system",
    ];
    let queues = server.queue_memory();
    let mut memory: Map<String, Value> = NONE.into_iter().map(|kind| (kind.to_owned(), 0.into())).collect();
    memory.insert("queue_procs".to_owned(), queues.into());
    memory.insert("other_proc".to_owned(), total.saturating_sub(queues).into());
    memory.insert("allocated_unused".to_owned(), 0.into());
    memory.insert("reserved_unallocated".to_owned(), 0.into());
    memory
}

/// What the operating system says of this process.
struct Process {
    /// Bytes resident.
    memory: u64,
    files: u64,
    files_max: u64,
    threads: u64,
}

impl Process {
    fn look() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let number = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        Self {
            memory: number(&status, "VmRSS:").unwrap_or(0) << 10,
            files: std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64),
            files_max: number(&limits, "Max open files").unwrap_or(1024),
            threads: number(&status, "Threads:").unwrap_or(1),
        }
    }
}
