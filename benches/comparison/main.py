"""The command line of benches/compare, and the order in which everything runs."""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import brokers, growth, report
from .brokers import Failure
from .rows import ROWS

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent
# What a run may take beyond its time: RabbitMQ deletes a hundred thousand queues at the end of one.
PATIENCE_S = 300
SETTLE_S = 15


def parse():
    parser = argparse.ArgumentParser(
        prog="benches/compare",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measures Leveret against RabbitMQ, row by row and turn by turn, and writes benches/RESULTS.md\n"
        "with a chart for each row, and after a whole run the table in README.md. Installs RabbitMQ from\n"
        "Debian's packages if it is missing (as root). "
        "Under 20 minutes; the machine should do nothing else.",
        epilog="rows: " + ", ".join(row.name for row in ROWS),
    )
    parser.add_argument("--quick", action="store_true", help="one run of 1.5 s each: under 5 minutes, rough figures")
    parser.add_argument("--rows", metavar="A,B", help="only these rows; RESULTS.md then has only these")
    parser.add_argument("--seconds", type=float, metavar="N", help="length of each run [4]")
    parser.add_argument("--runs", type=int, metavar="N", help="runs of each row [3]")
    parser.add_argument("--leveret", metavar="FILE", help="the binary [built with cargo build --release]")
    parser.add_argument("--rabbitmq", metavar="HOST:PORT", help="a RabbitMQ that is running; 'none' goes without")
    parser.add_argument("--also", metavar="NAME=HOST:PORT", action="append", default=[],
                        help="another broker that is running; may be repeated")
    parser.add_argument("--out", metavar="DIR", type=Path, default=HERE, help="where RESULTS.md goes [benches]")
    parser.add_argument("--growth", action="store_true",
                        help="instead: Leveret's cost against queues, bindings, connections, backlog and size")
    options = parser.parse_args()
    options.seconds = options.seconds or (1.5 if options.quick else 4)
    options.runs = options.runs or (1 if options.quick else 3)
    known = {row.name for row in ROWS}
    wanted = set(options.rows.split(",")) if options.rows else known
    if wanted - known:
        parser.error(f"no row {', '.join(sorted(wanted - known))}; there are {', '.join(row.name for row in ROWS)}")
    # Only a whole run is good enough for it.
    options.readme = not options.quick and not options.rows and options.out == HERE
    options.wanted = [row for row in ROWS if row.name in wanted]
    for also in options.also:
        if "=" not in also:
            parser.error(f"--also {also}: NAME=HOST:PORT is expected")
    return options


def build(options):
    if options.leveret:
        return str(Path(options.leveret).resolve())
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    if subprocess.run(["cargo", "build", "--release", "--locked"], cwd=ROOT, check=False).returncode != 0:
        raise Failure("cargo build --release failed, see above")
    return str(target / "release" / "leveret")


class Perf:
    """Runs `leveret perf`."""

    def __init__(self, binary):
        self.binary = binary

    def command(self, broker, arguments):
        command = [self.binary, "perf", *arguments.split(), "-h", f"amqp://{broker.address}", "-i", "0", "--json"]
        return command + (["--broker-pid", str(broker.pid)] if broker.pid else [])

    def run(self, broker, arguments):
        done = subprocess.run(self.command(broker, arguments), capture_output=True, text=True, timeout=PATIENCE_S,
                              check=False)
        if done.returncode != 0:
            raise Failure(f"{broker.name}: leveret perf {arguments}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def start(self, broker, arguments):
        return subprocess.Popen(self.command(broker, arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def settle(broker):
    """Waits until the broker has done what the row before left it to do, such as deleting ten thousand bindings."""
    until = time.monotonic() + SETTLE_S
    while broker.pid and time.monotonic() < until:
        before = brokers.cpu_ticks(broker.pid)
        time.sleep(0.25)
        if brokers.cpu_ticks(broker.pid) - before <= 2:
            return


def run_row(perf, row, broker, options):
    """The JSON of the row's own run: the last one, or the first where the rest only tidies up."""
    quick = options.quick
    words = {
        "s": options.seconds,
        "long": options.seconds + 60,
        "idle": max(options.seconds, 6),
        "n": 200_000 if quick else 1_000_000,
        "queues": 20_000 if quick else 100_000,
    }
    settle(broker)
    beside = perf.start(broker, row.beside.format(**words)) if row.beside else None
    try:
        if beside:
            time.sleep(0.5)
        results = [perf.run(broker, arguments.format(**words)) for arguments in row.runs]
    finally:
        if beside:
            brokers.stop_process(beside)
    return results[0 if row.first else -1]


class Brokers:
    """Those of one turn: ours are started, the others are there."""

    def __init__(self, options, perf, folder):
        self.options, self.perf, self.folder, self.started = options, perf, folder, 0
        self.running = []

    def start(self):
        options, self.started = self.options, self.started + 1
        if options.rabbitmq is None:
            self.running.append(brokers.start_rabbitmq(self.folder / f"rabbitmq-{self.started}"))
        elif options.rabbitmq != "none":
            self.running.append(brokers.running("RabbitMQ", options.rabbitmq))
        self.running += [brokers.running(*also.split("=", 1)) for also in options.also]
        self.running.append(brokers.start_leveret(self.perf.binary, self.folder / f"leveret-{self.started}"))

    def stop(self):
        while self.running:
            self.running.pop().stop()
        for data in self.folder.iterdir():
            shutil.rmtree(data, ignore_errors=True)


def compare(options, perf, folder):
    measured, products = {}, {}
    load = f"{os.getloadavg()[0]:.2f}"
    for turn in range(options.runs):
        turns = Brokers(options, perf, folder)
        used = False
        try:
            for row in options.wanted:
                if row.once and turn > 0:
                    continue
                if row.fresh and used:
                    turns.stop()
                if not turns.running:
                    turns.start()
                used = True
                for broker in turns.running:
                    try:
                        result = run_row(perf, row, broker, options)
                    except (Failure, subprocess.TimeoutExpired) as error:
                        print(f"{row.name}: {error}; left out", file=sys.stderr, flush=True)
                        continue
                    products[broker.name] = result["product"]
                    measured.setdefault(row.name, {}).setdefault(broker.name, []).append(result)
                    figures = ", ".join(
                        f"{figure.name} {report.number(value)} {figure.unit}"
                        for figure in row.figures
                        if (value := figure.read(result)) is not None
                    )
                    print(f"{turn + 1}/{options.runs}  {row.title:<44} {broker.name:<10} {figures}", flush=True)
                if row.fresh:
                    turns.stop()
        finally:
            turns.stop()
    ratios = report.write(options.out, options.wanted, measured, products, options, load)
    print(f"written: {options.out / 'RESULTS.md'}")
    if options.readme:
        report.update_readme(ROOT / "README.md", options.wanted, measured, products)
        print("written: the table in README.md")
    slower = [f"{title} ({ratio:.2f}x)" for title, ratio in ratios if ratio < 1]
    if slower:
        print("slower than RabbitMQ: " + "; ".join(slower))


def main():
    options = parse()
    # Five thousand connections need as many files, here and in both brokers.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        perf = Perf(build(options))
        with tempfile.TemporaryDirectory(prefix="leveret-compare-") as folder:
            if options.growth:
                growth.measure(options, perf, Path(folder))
            else:
                compare(options, perf, Path(folder))
    except Failure as failure:
        print(f"benches/compare: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
