"""What is measured: each row is one or more runs of `leveret perf`, and the figures that are read from the last."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A number of a result."""

    name: str
    unit: str
    # From the JSON of `leveret perf` to the number, or None where there is none.
    read: object
    more_is_better: bool = False


def at(*path):
    def read(result):
        for name in path:
            result = result and result.get(name)
        return result

    return read


def per(count, scale=1e6):
    """The broker's CPU time for each of what `count` names."""

    def read(result):
        cpu = at("broker", "cpu_seconds")(result)
        return cpu * scale / result[count] if cpu is not None and result[count] else None

    return read


def grown_kib(result):
    """What the broker's memory grew by, for each operation."""
    broker = result.get("broker")
    if not broker or not result["operations"]:
        return None
    return (broker["resident_kib"] - broker["resident_kib_before"]) / result["operations"]


RECEIVED = Figure("received", "/s", at("received_per_second"), more_is_better=True)
SENT = Figure("sent", "/s", at("sent_per_second"), more_is_better=True)
CONFIRMED = SENT
RATE = Figure("rate", "/s", at("operations_per_second"), more_is_better=True)
P50 = Figure("p50", "ms", lambda result: scaled(at("latency_us", "p50")(result)))
P99 = Figure("p99", "ms", lambda result: scaled(at("latency_us", "p99")(result)))
CONFIRM_P50 = Figure("confirm p50", "ms", lambda result: scaled(at("confirm_latency_us", "p50")(result)))
CPU_RECEIVED = Figure("CPU", "us each", per("received"))
CPU_SENT = Figure("CPU", "us each", per("sent"))
CPU_EACH = Figure("CPU", "us each", per("operations"))
MEMORY = Figure("memory", "KiB each", grown_kib)


def scaled(us):
    return None if us is None else us / 1000


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    # Arguments of `leveret perf`; {s} is the time, {n} the number of messages to fill a queue with.
    runs: tuple
    # The first is the row's own, the one that the ratio and the chart are of.
    figures: tuple
    # Runs beside it as long as the row does.
    beside: str = ""
    # Too slow to repeat.
    once: bool = False
    # Memory that was used before would be used again: it starts with new brokers, those that are ours.
    fresh: bool = False
    # The figures are of the first run; the others tidy up.
    first: bool = False


ROWS = (
    Row("idle", "5,000 idle connections", ("idle -x 5000 -z {idle}",), (MEMORY, CPU_EACH), fresh=True),
    Row("queues", "100,000 queues", ("declare -C {queues} --in-flight 100",), (MEMORY, RATE), once=True, fresh=True),
    Row("auto-ack-16", "1 to 1, auto-ack, 16 B", ("-a -s 16 -z {s}",), (RECEIVED, CPU_RECEIVED)),
    Row("auto-ack-1k", "1 to 1, auto-ack, 1 KiB", ("-a -s 1024 -z {s}",), (RECEIVED, CPU_RECEIVED)),
    Row("multi-ack", "1 to 1, an ack for 100", ("-q 1000 -A 100 -z {s}",), (RECEIVED, CPU_RECEIVED)),
    Row("ack-each", "1 to 1, each acked", ("-q 1000 -z {s}",), (RECEIVED, CPU_RECEIVED)),
    Row("confirm-1", "Durable 1 KiB, 1 unconfirmed", ("-f persistent -c 1 -s 1024 -y 0 -z {s}",),
        (CONFIRMED, CONFIRM_P50, CPU_SENT)),
    Row("confirm-100", "Durable 1 KiB, 100 unconfirmed", ("-f persistent -c 100 -s 1024 -y 0 -z {s} -C 500000",),
        (CONFIRMED, CONFIRM_P50, CPU_SENT)),
    Row("confirm-1000", "Durable 1 KiB, 1000 unconfirmed", ("-f persistent -c 1000 -s 1024 -y 0 -z {s} -C 500000",),
        (CONFIRMED, CONFIRM_P50, CPU_SENT)),
    Row("durable", "Durable 1 KiB, published, consumed, acked",
        ("-f persistent -c 1000 -s 1024 -q 1000 -A 100 -z {s}",), (RECEIVED, CPU_RECEIVED)),
    Row("fill", "Fill a queue", ("-u fill -ad false -y 0 -C {n}", "-u fill -p -x 0 -a -D {n}"),
        (SENT, CPU_SENT), first=True),
    Row("drain", "Drain a queue", ("-u fill -ad false -y 0 -C {n}", "-u fill -p -x 0 -a -D {n}"),
        (RECEIVED, CPU_RECEIVED)),
    Row("fanout", "Fan-out, 1 to 10", ("fanout -y 10 -a -z {s}",), (RECEIVED, CPU_RECEIVED)),
    Row("topic", "Topic exchange, 10,000 bindings", ("topic --bindings 10000 -a -z {s}",), (RECEIVED, CPU_RECEIVED)),
    Row("many", "100 queues, 100 + 100 connections", ("-x 100 -y 100 -qp many-%d -qpt 100 -a -z {s}",),
        (RECEIVED, CPU_RECEIVED)),
    Row("rpc", "Request and reply, one in flight", ("rpc -a -z {s}",), (P50, P99, CPU_EACH)),
    Row("large-64k", "1 to 1, auto-ack, 64 KiB", ("-a -s 65536 -z {s}",), (RECEIVED, CPU_RECEIVED)),
    Row("large-1m", "1 to 1, auto-ack, 1 MiB", ("-a -s 1048576 -z {s}",), (RECEIVED, CPU_RECEIVED)),
    Row("latency-2k", "Latency at 2,000/s", ("-a -r 2000 -z {s}",), (P50, P99, CPU_EACH)),
    Row("latency-50k", "Latency at 50,000/s", ("-a -r 50000 -z {s}",), (P50, P99, CPU_EACH)),
    Row("fairness", "A call's p99 beside a flood", ("rpc -a -z {s}",), (P99, P50), beside="-a -x 2 -y 2 -z {long}"),
    Row("connections", "Connections opened and closed", ("connections -x 4 -z {s}",), (RATE, CPU_EACH)),
    Row("channels", "Channels opened and closed", ("channels -x 4 -z {s}",), (RATE, CPU_EACH)),
    Row("declare", "Queues declared one by one", ("declare -C 5000",), (RATE, CPU_EACH)),
)

# Cost as work grows: the broker's CPU per message along one dimension. {v} is the value.
GROWTH = (
    ("queues", "queues, all in use", (1, 10, 100, 1000, 10_000), "-x 2 -y 2 -qp grow-%d -qpt {v} -a -r 20000 -z {s}"),
    ("bindings", "bindings of a topic exchange", (1, 100, 1000, 10_000, 100_000),
     "topic --bindings {v} -a -r 40000 -z {s}"),
    ("connections", "connections, a quarter of which publish", (4, 40, 400, 4000), "-x {x} -y {y} -a -r {r} -z {s}"),
    ("backlog", "messages that wait while as many come as go", (1, 1000, 100_000, 1_000_000),
     "-u grow -p -a -r 40000 -z {s}"),
    ("size", "bytes of a message", (16, 256, 4096, 65_536, 1_048_576), "-a -s {v} -r {r} -z {s}"),
)
