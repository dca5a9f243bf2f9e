//! What each page of metrics has: RabbitMQ's names, types and labels (management reference 2), then our own.

use std::time::Duration;

use super::text::{Kind, Labels, Page};
use crate::model::arguments::QueueType;
use crate::model::broker::{ByKind, DeadLettering, QueueFigures};
use crate::model::queue::QueueStats;
use crate::server::{CommitFigures, ProcessFigures, VhostFigures};

const AMQP: (&str, &str) = ("protocol", "amqp091");

/// Name, help, and what is summed over the vhosts.
type Row<T> = (&'static str, &'static str, fn(&VhostFigures) -> T);

/// Everything that the pages are made of.
#[derive(Debug)]
pub struct Figures {
    pub vhosts: Vec<VhostFigures>,
    pub process: ProcessFigures,
    pub commits: Option<CommitFigures>,
    /// Such as `rabbit@host`.
    pub node: String,
    pub cluster: String,
    /// The version of RabbitMQ that we behave like.
    pub rabbitmq_version: String,
    pub uptime: Duration,
    /// Seconds since the Unix epoch.
    pub started_at_s: f64,
}

/// What `/metrics/detailed` is asked for.
#[derive(Debug, Default)]
pub struct Wanted {
    pub families: Vec<String>,
    /// None: all.
    pub vhosts: Vec<String>,
    pub queues: Option<regex::Regex>,
}

/// `/metrics`: sums.
pub fn aggregated(figures: &Figures) -> String {
    let mut page = Page::new("rabbitmq_");
    node(&mut page, figures, "aggregated");
    let queues = || figures.vhosts.iter().flat_map(|vhost| &vhost.queues);
    for metric in QUEUE_GAUGES {
        page.metric(Kind::Gauge, metric.name, metric.help).sample(&[], queues().map(metric.value).sum::<u64>());
    }
    let mut sum = QueueStats::default();
    for (_, stats) in all_counts(figures).iter() {
        sum += stats;
    }
    for metric in QUEUE_COUNTERS {
        page.metric(Kind::Counter, metric.name, metric.help).sample(&[], (metric.value)(&sum));
    }
    own(&mut page, figures);
    page.finish()
}

/// `/metrics/per-object`: a series for each queue.
pub fn per_object(figures: &Figures) -> String {
    let mut page = Page::new("rabbitmq_");
    node(&mut page, figures, "per-object");
    queue_info(&mut page, &figures.vhosts.iter().flat_map(of_vhost).collect::<Vec<_>>());
    let queues: Vec<_> = figures.vhosts.iter().flat_map(of_vhost).collect();
    queue_gauges(&mut page, &queues, QUEUE_GAUGES);
    queue_counters(&mut page, &queues);
    own(&mut page, figures);
    page.finish()
}

/// `/metrics/detailed`: the families that are asked for.
pub fn detailed(figures: &Figures, wanted: &Wanted) -> String {
    let mut page = Page::new("rabbitmq_detailed_");
    identity(&mut page, figures, "detailed");
    let vhosts: Vec<_> = figures
        .vhosts
        .iter()
        .filter(|vhost| wanted.vhosts.is_empty() || wanted.vhosts.iter().any(|name| **name == *vhost.name))
        .collect();
    let fits = |queue: &&QueueFigures| wanted.queues.as_ref().is_none_or(|pattern| pattern.is_match(&queue.name));
    let queues: Vec<OfVhost<'_>> =
        vhosts.iter().flat_map(|vhost| vhost.queues.iter().filter(fits).map(|queue| (&*vhost.name, queue))).collect();
    let has = |family: &str| wanted.families.iter().any(|wanted| wanted == family);
    // A gauge that two families have is shown once.
    let gauges: Vec<_> =
        QUEUE_GAUGES.iter().copied().filter(|gauge| gauge.families.iter().any(|name| has(name))).collect();
    if !gauges.is_empty() || has("queue_delivery_metrics") {
        queue_info(&mut page, &queues);
    }
    queue_gauges(&mut page, &queues, &gauges);
    if has("queue_delivery_metrics") {
        queue_counters(&mut page, &queues);
    }
    if has("connection_churn_metrics") {
        churn(&mut page, figures);
    }
    if has("node_coarse_metrics") {
        node_coarse(&mut page, figures);
    }
    if has("node_metrics") {
        node_limits(&mut page, figures);
    }
    if has("vhost_status") {
        page.plain_metric(Kind::Gauge, "rabbitmq_cluster_vhost_status", "Whether the vhost is running");
        for vhost in &vhosts {
            page.sample(&[("vhost", &vhost.name)], 1);
        }
    }
    page.finish()
}

type OfVhost<'a> = (&'a str, &'a QueueFigures);

fn of_vhost(vhost: &VhostFigures) -> impl Iterator<Item = OfVhost<'_>> {
    vhost.queues.iter().map(|queue| (&*vhost.name, queue))
}

fn all_counts(figures: &Figures) -> ByKind {
    let mut sum = ByKind::default();
    for vhost in &figures.vhosts {
        sum += &vhost.counts;
    }
    sum
}

// --- The node ---

fn node(page: &mut Page, figures: &Figures, endpoint: &str) {
    identity(page, figures, endpoint);
    let version = &*figures.rabbitmq_version;
    page.metric(Kind::Untyped, "build_info", "RabbitMQ & Erlang/OTP version info").sample(
        &[
            ("rabbitmq_version", version),
            ("prometheus_plugin_version", version),
            ("prometheus_client_version", "none"),
            ("erlang_version", "none"),
            ("product_name", "Leveret"),
            ("product_version", env!("CARGO_PKG_VERSION")),
        ],
        1,
    );
    let sum = |of: fn(&VhostFigures) -> usize| figures.vhosts.iter().map(of).sum::<usize>();
    let gauges: [Row<usize>; 4] = [
        ("connections", "Connections currently open", |vhost| vhost.totals.connections),
        ("channels", "Channels currently open", |vhost| vhost.totals.channels),
        ("consumers", "Consumers currently connected", |vhost| vhost.totals.consumers),
        ("queues", "Queues available", |vhost| vhost.totals.queues),
    ];
    for (name, help, of) in gauges {
        page.metric(Kind::Gauge, name, help).sample(&[], sum(of));
    }
    global(page, figures);
    churn(page, figures);
    node_coarse(page, figures);
    node_limits(page, figures);
    page.plain_metric(
        Kind::Gauge,
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds",
    )
    .sample(&[], figures.started_at_s);
}

fn identity(page: &mut Page, figures: &Figures, endpoint: &str) {
    page.plain_metric(Kind::Untyped, "rabbitmq_identity_info", "RabbitMQ node & cluster identity info").sample(
        &[
            ("rabbitmq_node", &figures.node),
            ("rabbitmq_cluster", &figures.cluster),
            ("rabbitmq_cluster_permanent_id", &figures.cluster),
            ("rabbitmq_endpoint", endpoint),
        ],
        1,
    );
}

fn node_coarse(page: &mut Page, figures: &Figures) {
    let process = &figures.process;
    for (name, help, value) in [
        ("process_open_fds", "Open file descriptors", process.open_files),
        ("process_resident_memory_bytes", "Memory used in bytes", process.resident_bytes),
        ("disk_space_available_bytes", "Disk space available in bytes", process.disk_available_bytes),
    ] {
        page.metric(Kind::Gauge, name, help).sample(&[], value);
    }
}

fn node_limits(page: &mut Page, figures: &Figures) {
    page.metric(Kind::Gauge, "process_max_fds", "Open file descriptors limit")
        .sample(&[], figures.process.open_files_max);
    page.metric(Kind::Gauge, "erlang_uptime_seconds", "Node uptime").sample(&[], figures.uptime.as_secs_f64());
}

/// §2.3, `connection_churn_metrics`.
fn churn(page: &mut Page, figures: &Figures) {
    let sum = |of: fn(&VhostFigures) -> u64| figures.vhosts.iter().map(of).sum::<u64>();
    let counters: [Row<u64>; 7] = [
        ("connections_opened_total", "Total number of connections opened", |vhost| {
            vhost.totals.stats.connections_opened
        }),
        ("connections_closed_total", "Total number of connections closed or terminated", |vhost| {
            vhost.totals.stats.connections_closed
        }),
        ("channels_opened_total", "Total number of channels opened", |vhost| vhost.totals.stats.channels_opened),
        ("channels_closed_total", "Total number of channels closed", |vhost| vhost.totals.stats.channels_closed),
        ("queues_declared_total", "Total number of queues declared", |vhost| vhost.totals.stats.queues_declared),
        ("queues_created_total", "Total number of queues created", |vhost| vhost.totals.stats.queues_created),
        ("queues_deleted_total", "Total number of queues deleted", |vhost| vhost.totals.stats.queues_deleted),
    ];
    for (name, help, of) in counters {
        page.metric(Kind::Counter, name, help).sample(&[], sum(of));
    }
}

// --- Global counters (§2.2) ---

fn global(page: &mut Page, figures: &Figures) {
    let sum = |of: fn(&VhostFigures) -> u64| figures.vhosts.iter().map(of).sum::<u64>();
    let counters: [Row<u64>; 6] = [
        ("messages_received_total", "Total number of messages received from publishers", |vhost| {
            vhost.totals.stats.published
        }),
        (
            "messages_received_confirm_total",
            "Total number of messages received from publishers expecting confirmations",
            |vhost| vhost.totals.stats.confirmable,
        ),
        ("messages_routed_total", "Total number of messages routed to queues or streams", |vhost| {
            vhost.totals.stats.routed
        }),
        (
            "messages_unroutable_dropped_total",
            "Total number of messages published as non-mandatory into an exchange and dropped as unroutable",
            |vhost| vhost.totals.stats.unroutable - vhost.totals.stats.returned,
        ),
        (
            "messages_unroutable_returned_total",
            "Total number of messages published as mandatory into an exchange and returned to the publisher as unroutable",
            |vhost| vhost.totals.stats.returned,
        ),
        ("messages_confirmed_total", "Total number of messages confirmed to publishers", |vhost| {
            vhost.totals.stats.confirmed
        }),
    ];
    for (name, help, of) in counters {
        page.metric(Kind::Counter, &format!("global_{name}"), help).sample(&[AMQP], sum(of));
    }
    let gauges: [Row<u64>; 2] = [
        ("publishers", "Publishers currently connected", |vhost| vhost.totals.publishers as u64),
        ("consumers", "Consumers currently connected", |vhost| vhost.totals.consumers as u64),
    ];
    for (name, help, of) in gauges {
        page.metric(Kind::Gauge, &format!("global_{name}"), help).sample(&[AMQP], sum(of));
    }
    let counts = all_counts(figures);
    for Counter { name, help, value } in GLOBAL_BY_TYPE {
        page.metric(Kind::Counter, &format!("global_{name}"), help);
        for queue_type in [QueueType::Classic, QueueType::Quorum, QueueType::Stream] {
            let of_type = counts.iter().filter(|(kind, _)| kind.queue_type == queue_type);
            let total: u64 = of_type.map(|(_, stats)| value(stats)).sum();
            page.sample(&[AMQP, ("queue_type", type_label(queue_type))], total);
        }
    }
    for Counter { name, help, value } in GLOBAL_DEAD {
        page.metric(Kind::Counter, &format!("global_{name}"), help);
        for (kind, stats) in counts.iter() {
            let is_quorum = kind.queue_type == QueueType::Quorum;
            // As RabbitMQ: streams have no dead letters, classic queues no delivery limit and no sure way.
            let exists = match kind.queue_type {
                QueueType::Stream => false,
                QueueType::Classic => {
                    kind.dead_lettering != DeadLettering::AtLeastOnce && !name.contains("delivery_limit")
                }
                QueueType::Quorum => is_quorum,
            };
            if exists {
                let labels: Labels<'_> = &[
                    ("queue_type", type_label(kind.queue_type)),
                    ("dead_letter_strategy", strategy_label(kind.dead_lettering)),
                ];
                page.sample(labels, value(stats));
            }
        }
    }
}

fn type_label(queue_type: QueueType) -> &'static str {
    match queue_type {
        QueueType::Classic => "rabbit_classic_queue",
        QueueType::Quorum => "rabbit_quorum_queue",
        QueueType::Stream => "rabbit_stream_queue",
    }
}

fn strategy_label(strategy: DeadLettering) -> &'static str {
    match strategy {
        DeadLettering::Disabled => "disabled",
        DeadLettering::AtMostOnce => "at_most_once",
        DeadLettering::AtLeastOnce => "at_least_once",
    }
}

/// A count of queues.
struct Counter {
    name: &'static str,
    help: &'static str,
    value: fn(&QueueStats) -> u64,
}

const fn counter(name: &'static str, help: &'static str, value: fn(&QueueStats) -> u64) -> Counter {
    Counter { name, help, value }
}

fn consumed_auto(stats: &QueueStats) -> u64 {
    stats.delivered_no_ack - stats.got_no_ack
}

fn got_manual(stats: &QueueStats) -> u64 {
    stats.got - stats.got_no_ack
}

fn consumed_manual(stats: &QueueStats) -> u64 {
    stats.delivered - consumed_auto(stats) - stats.got
}

/// Settled by an ack of the client.
fn acked(stats: &QueueStats) -> u64 {
    stats.acked - stats.sent_no_ack
}

const GLOBAL_BY_TYPE: &[Counter] = &[
    counter("messages_delivered_total", "Total number of messages delivered to consumers", |stats| stats.delivered),
    counter(
        "messages_delivered_consume_manual_ack_total",
        "Total number of messages delivered to consumers using basic.consume with manual acknowledgment",
        consumed_manual,
    ),
    counter(
        "messages_delivered_consume_auto_ack_total",
        "Total number of messages delivered to consumers using basic.consume with automatic acknowledgment",
        consumed_auto,
    ),
    counter(
        "messages_delivered_get_manual_ack_total",
        "Total number of messages delivered to consumers using basic.get with manual acknowledgment",
        got_manual,
    ),
    counter(
        "messages_delivered_get_auto_ack_total",
        "Total number of messages delivered to consumers using basic.get with automatic acknowledgment",
        |stats| stats.got_no_ack,
    ),
    counter("messages_get_empty_total", "Total number of times basic.get operations fetched no message", |stats| {
        stats.got_empty
    }),
    counter("messages_redelivered_total", "Total number of messages redelivered to consumers", |stats| {
        stats.redelivered
    }),
    counter("messages_acknowledged_total", "Total number of messages acknowledged by consumers", acked),
];

const GLOBAL_DEAD: &[Counter] = &[
    counter(
        "messages_dead_lettered_maxlen_total",
        "Total number of messages dead-lettered due to overflow drop-head or reject-publish-dlx",
        |stats| stats.overflowed,
    ),
    counter(
        "messages_dead_lettered_expired_total",
        "Total number of messages dead-lettered due to message TTL exceeded",
        |stats| stats.expired,
    ),
    counter(
        "messages_dead_lettered_rejected_total",
        "Total number of messages dead-lettered due to basic.reject or basic.nack",
        |stats| stats.rejected,
    ),
    counter(
        "messages_dead_lettered_delivery_limit_total",
        "Total number of messages dead-lettered due to delivery-limit exceeded",
        |stats| stats.over_delivery_limit,
    ),
];

// --- Queues (§2.3) ---

/// `queue_delivery_metrics`.
const QUEUE_COUNTERS: &[Counter] = &[
    counter(
        "queue_get_ack_total",
        "Total number of messages fetched from a queue with basic.get in manual acknowledgement mode",
        got_manual,
    ),
    counter(
        "queue_get_total",
        "Total number of messages fetched from a queue with basic.get in automatic acknowledgement mode",
        |stats| stats.got_no_ack,
    ),
    counter(
        "queue_messages_delivered_ack_total",
        "Total number of messages delivered from a queue to consumers in manual acknowledgement mode",
        consumed_manual,
    ),
    counter(
        "queue_messages_delivered_total",
        "Total number of messages delivered from a queue to consumers in automatic acknowledgement mode",
        consumed_auto,
    ),
    counter(
        "queue_messages_redelivered_total",
        "Total number of messages from a queue redelivered to consumers",
        |stats| stats.redelivered,
    ),
    counter("queue_messages_acked_total", "Total number of messages acknowledged by consumers on a queue", acked),
    counter(
        "queue_get_empty_total",
        "Total number of times basic.get operations fetched no message on a queue",
        |stats| stats.got_empty,
    ),
];

/// A figure of a queue, and the families of `/metrics/detailed` that have it.
#[derive(Clone, Copy)]
struct Gauge {
    families: &'static [&'static str],
    name: &'static str,
    help: &'static str,
    value: fn(&QueueFigures) -> u64,
}

const fn gauge(
    families: &'static [&'static str],
    name: &'static str,
    help: &'static str,
    value: fn(&QueueFigures) -> u64,
) -> Gauge {
    Gauge { families, name, help, value }
}

const COARSE: &[&str] = &["queue_coarse_metrics"];
const FULL: &[&str] = &["queue_metrics"];

const QUEUE_GAUGES: &[Gauge] = &[
    gauge(COARSE, "queue_messages_ready", "Messages ready to be delivered to consumers", |queue| queue.ready),
    gauge(COARSE, "queue_messages_unacked", "Messages delivered to consumers but not yet acknowledged", |queue| {
        queue.unacked
    }),
    gauge(COARSE, "queue_messages", "Sum of ready and unacknowledged messages - total queue depth", |queue| {
        queue.ready + queue.unacked
    }),
    gauge(&["queue_consumer_count", "queue_metrics"], "queue_consumers", "Consumers on a queue", |queue| {
        queue.consumers as u64
    }),
    gauge(FULL, "queue_process_memory_bytes", "Memory in bytes used by the queue", |queue| queue.memory as u64),
    gauge(FULL, "queue_messages_ready_bytes", "Size in bytes of ready messages", |queue| queue.ready_bytes),
];

fn queue_info(page: &mut Page, queues: &[OfVhost<'_>]) {
    page.metric(Kind::Gauge, "queue_info", "Metadata of a queue");
    for (vhost, queue) in queues {
        let labels: Labels<'_> = &[
            ("vhost", vhost),
            ("queue", &queue.name),
            ("queue_type", type_label(queue.queue_type)),
            ("membership", "leader"),
        ];
        page.sample(labels, 1);
    }
}

fn queue_gauges(page: &mut Page, queues: &[OfVhost<'_>], gauges: &[Gauge]) {
    for gauge in gauges {
        page.metric(Kind::Gauge, gauge.name, gauge.help);
        for (vhost, queue) in queues {
            page.sample(&[("vhost", vhost), ("queue", &queue.name)], (gauge.value)(queue));
        }
    }
}

fn queue_counters(page: &mut Page, queues: &[OfVhost<'_>]) {
    for counter in QUEUE_COUNTERS {
        page.metric(Kind::Counter, counter.name, counter.help);
        for (vhost, queue) in queues {
            page.sample(&[("vhost", vhost), ("queue", &queue.name)], (counter.value)(&queue.stats));
        }
    }
}

// --- Our own ---

fn own(page: &mut Page, figures: &Figures) {
    page.plain_metric(
        Kind::Counter,
        "leveret_lint_findings_total",
        "What the version given by --compat-lint would treat differently",
    );
    for vhost in &figures.vhosts {
        for (finding, user, object, count) in &vhost.lint {
            let labels: Labels<'_> =
                &[("vhost", &vhost.name), ("finding", finding), ("user", user), ("object", object)];
            page.sample(labels, count);
        }
    }
    let Some(commits) = &figures.commits else { return };
    page.plain_metric(
        Kind::Histogram,
        "leveret_store_commit_duration_seconds",
        "Time of a group commit, the sync of the disk included",
    );
    histogram(page, &commits.seconds);
    page.plain_metric(Kind::Histogram, "leveret_store_commit_operations", "Operations in a group commit");
    histogram(page, &commits.operations);
    page.plain_metric(
        Kind::Counter,
        "leveret_store_commit_failures_total",
        "Group commits that failed and were tried again",
    )
    .sample(&[], commits.failures);
}

fn histogram(page: &mut Page, histogram: &crate::server::HistogramFigures) {
    for (bound, count) in &histogram.buckets {
        page.sample_of("_bucket", &[("le", &bound.to_string())], count);
    }
    page.sample_of("_bucket", &[("le", "+Inf")], histogram.count);
    page.sample_of("_sum", &[], histogram.sum).sample_of("_count", &[], histogram.count);
}
