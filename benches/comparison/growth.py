"""Cost as work grows: the broker's CPU for each message along one dimension, at a fixed rate."""

from . import brokers
from .charts import line_chart, number
from .report import machine, median
from .rows import GROWTH, per


def words(name, value, seconds):
    """What the arguments of a dimension may name."""
    found = {"v": value, "s": seconds}
    if name == "connections":
        sources = max(value // 4, 1)
        # The same number of messages a second, whoever sends them.
        found |= {"x": sources, "y": value - sources, "r": 20_000 / sources}
    if name == "size":
        found["r"] = min(20_000, 200_000_000 // value)
    return found


def measure(options, perf, folder):
    charts = options.out / "charts"
    charts.mkdir(parents=True, exist_ok=True)
    lines = [
        "# What Leveret's work costs as it grows",
        "",
        "Written by `benches/compare --growth`; do not edit. The broker's CPU for each delivered message, at a fixed "
        f"rate, median of {options.runs} runs of {options.seconds:g} s. Machine: {machine()}.",
    ]
    for name, title, values, arguments in GROWTH:
        points = []
        for value in values:
            costs = []
            for turn in range(options.runs):
                data = folder / f"{name}-{value}-{turn}"
                broker = brokers.start_leveret(perf.binary, data)
                try:
                    if name == "backlog":
                        perf.run(broker, f"-u grow -ad false -y 0 -C {value}")
                    costs.append(per("received")(perf.run(broker, arguments.format(**words(name, value, options.seconds)))))
                finally:
                    broker.stop()
            cost = median(costs)
            if cost is not None:
                points.append((value, cost))
                print(f"{name} {value:,}: {number(cost)} us", flush=True)
        (charts / f"growth-{name}.svg").write_text(
            line_chart(f"CPU for each message against {title}", "us", {"Leveret": points}), encoding="utf-8")
        table = " | ".join(f"{value:,}" for value, _ in points)
        lines += ["", f"## {title[0].upper()}{title[1:]}", "", f"| | {table} |", "|---|" + "--:|" * len(points),
                  "| us each | " + " | ".join(number(cost) for _, cost in points) + " |", "",
                  f"![{title}](charts/growth-{name}.svg)"]
    (options.out / "GROWTH.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"written: {options.out / 'GROWTH.md'}")
