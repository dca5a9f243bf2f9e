"""Medians, ratios and the page that shows them."""

import os
import platform
import statistics
from datetime import datetime, timezone
from pathlib import Path

from .charts import number, ratio_chart, row_chart


def medians(row, results):
    """{broker: [median of each figure of the row]}."""
    return {
        broker: [median([figure.read(result) for result in runs]) for figure in row.figures]
        for broker, runs in results.items()
    }


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def times_better(figure, own, other):
    """How many times better `own` is; None where either is missing."""
    if not own or not other:
        return None
    return own / other if figure.more_is_better else other / own


def machine():
    model = "?"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
        memory = next(line for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
        gib = int(memory.split()[1]) / 2**20
    except (OSError, ValueError, StopIteration):
        gib = 0
    return f"{os.cpu_count()} cores ({model}), {gib:.0f} GiB, Linux {platform.release()}"


# What README.md shows between its marks: row, figure's number in the row.
README_FIGURES = (("auto-ack-16", 0), ("fanout", 0), ("durable", 0), ("rpc", 0), ("latency-50k", 1), ("idle", 0))
README_MARKS = ("<!-- written by benches/compare -->", "<!-- end -->")


def update_readme(path, rows, measured, products):
    """Replaces what stands between the marks."""
    names = list(products)
    lines = ["| | | " + " | ".join(names) + " |", "|---|---|" + "--:|" * len(names)]
    by_name = {row.name: row for row in rows}
    for name, at in README_FIGURES:
        row, results = by_name.get(name), measured.get(name)
        if not row or not results:
            continue
        values, figure = medians(row, results), row.figures[at]
        cells = [number(values[broker][at]) if values.get(broker) and values[broker][at] is not None else "-"
                 for broker in names]
        lines.append(f"| {row.title} | {figure.name}, {figure.unit} | " + " | ".join(cells) + " |")
    versions = " and ".join(products[name] for name in names)
    lines += ["", f"{versions} on {machine()}; medians of side-by-side runs, every row in "
              "[benches/RESULTS.md](benches/RESULTS.md).", "",
              "![How many times better than RabbitMQ, row by row](benches/charts/all.svg)"]
    text = path.read_text(encoding="utf-8")
    begin, end = (text.find(mark) for mark in README_MARKS)
    if 0 <= begin < end:
        begin += len(README_MARKS[0])
        path.write_text(text[:begin] + "\n" + "\n".join(lines) + "\n" + text[end:], encoding="utf-8")


def write(folder, rows, measured, products, options, load):
    """`measured`: {row name: {broker: [JSON]}}."""
    charts = folder / "charts"
    charts.mkdir(parents=True, exist_ok=True)
    names = list(products)
    lines = [
        "# Leveret and RabbitMQ, measured side by side",
        "",
        "Written by `benches/compare`; do not edit. Every row ran against each broker in turn, "
        f"{options.runs} times, {options.seconds:g} s each; the figures are medians. "
        "CPU is the broker's own, user and system. "
        "Latencies are from publish to delivery; at a fixed rate they count from when a message was due.",
        "",
        f"- Machine: {machine()}; load average before: {load}",
        f"- Date: {datetime.now(timezone.utc):%Y-%m-%d}",
        *(f"- {name}: {product}" for name, product in products.items()),
        "",
        "| row | figure | " + " | ".join(names) + " | Leveret is better by |",
        "|---|---|" + "--:|" * (len(names) + 1),
    ]
    ratios = []
    for row in rows:
        results = measured.get(row.name)
        if not results:
            continue
        values = medians(row, results)
        bars = []
        for at, figure in enumerate(row.figures):
            of = {name: values[name][at] for name in names if name in values and values[name][at] is not None}
            ratio = times_better(figure, of.get("Leveret"), of.get("RabbitMQ"))
            title = f"[{row.title}](charts/{row.name}.svg)" if at == 0 else ""
            cells = [number(of[name]) if name in of else "-" for name in names]
            lines.append(f"| {title} | {figure.name}, {figure.unit} | " + " | ".join(cells)
                         + f" | {number(ratio) + 'x' if ratio else '-'} |")
            bars.append((f"{figure.name}, {figure.unit}", figure.more_is_better, of))
            if at == 0 and ratio:
                ratios.append((row.title, ratio))
        (charts / f"{row.name}.svg").write_text(row_chart(row.title, bars), encoding="utf-8")
    if ratios:
        title = "How many times better than RabbitMQ (first figure of each row)"
        (charts / "all.svg").write_text(ratio_chart(title, ratios), encoding="utf-8")
        lines += ["", "![How many times better Leveret is, row by row](charts/all.svg)"]
    (folder / "RESULTS.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ratios
