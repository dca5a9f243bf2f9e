"""Charts as SVG text: bars for rows, lines for what grows. No library: a few rectangles are no reason for one."""

import math
from html import escape

COLOURS = {"Leveret": "#2f7d4f", "RabbitMQ": "#b3622d"}
OTHERS = ("#4a6fa5", "#7a5195", "#8a8a2b")
STYLE = (
    "<style>text{font:13px sans-serif;fill:#222}.title{font-weight:bold}.small{font-size:11px;fill:#555}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.small{fill:#aaa}}</style>"
)


def colour(name, names):
    others = [other for other in names if other not in COLOURS]
    return COLOURS.get(name) or OTHERS[others.index(name) % len(OTHERS)]


def number(value):
    """Three digits that say something."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"


def document(width, height, parts):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return "\n".join([head, STYLE, *parts, "</svg>"]) + "\n"


def text(x, y, content, kind="", anchor="start"):
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(content)}</text>'


def bar(x, y, width, height, fill):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height}" rx="2" fill="{fill}"/>'


def row_chart(title, figures):
    """`figures`: (name and unit, more is better, {broker: value}) for each group of bars."""
    names = list(dict.fromkeys(name for _, _, values in figures for name in values))
    parts, y = [text(10, 22, title, "title")], 40
    for name, more, values in figures:
        parts.append(text(10, y + 12, f"{name}, {'more' if more else 'less'} is better", "small"))
        y += 20
        longest = max(values.values(), default=0) or 1
        for broker, value in values.items():
            width = 330 * value / longest
            parts += [text(85, y + 13, broker, anchor="end"), bar(92, y, width, 17, colour(broker, names)),
                      text(98 + width, y + 13, number(value))]
            y += 22
        y += 10
    return document(520, y, parts)


def ratio_chart(title, ratios):
    """`ratios`: (row, times better than the other). A logarithmic scale, 1 is the same."""
    least = min([1, *(ratio for _, ratio in ratios)])
    most = max([10, *(ratio for _, ratio in ratios)])
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    left, width = 290, 340

    def x(ratio):
        return left + width * (math.log10(ratio) - low) / (high - low)

    parts, bottom = [text(10, 22, title, "title")], 48 + 22 * len(ratios)
    for power in range(low, high + 1):
        at = x(10**power)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="40" y2="{bottom}" stroke="#999" stroke-width="0.5"/>')
        parts.append(text(at, bottom + 14, f"{10.0**power:g}x", "small", "middle"))
    for at, (name, ratio) in enumerate(ratios):
        y = 44 + 22 * at
        start, end = sorted((x(1), x(ratio)))
        fill = COLOURS["Leveret"] if ratio >= 1 else COLOURS["RabbitMQ"]
        parts += [text(left - 10, y + 13, name, anchor="end"), bar(start, y, end - start, 16, fill),
                  text(end + 6, y + 13, f"{number(ratio)}x", "small")]
    return document(left + width + 60, bottom + 24, parts)


def line_chart(title, unit, values):
    """`values`: {broker: [(x, y)]}; x on a logarithmic scale, y from 0."""
    names = list(values)
    points = [point for series in values.values() for point in series]
    low = math.log10(min(x for x, _ in points))
    high = max(math.log10(max(x for x, _ in points)), low + 1)
    most = max(y for _, y in points) * 1.1 or 1
    left, top, width, height = 60, 40, 400, 200

    def place(x, y):
        return left + width * (math.log10(x) - low) / (high - low), top + height * (1 - y / most)

    parts = [text(10, 22, title, "title")]
    for part in range(5):
        y = most * part / 4
        _, at = place(10**low, y)
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{at:.1f}" y2="{at:.1f}" stroke="#999" '
                     'stroke-width="0.5"/>')
        parts.append(text(left - 6, at + 4, number(y), "small", "end"))
    for x in sorted({x for x, _ in points}):
        parts.append(text(place(x, 0)[0], top + height + 16, f"{x:,}", "small", "middle"))
    for at, (name, series) in enumerate(values.items()):
        fill = colour(name, names)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in series))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{fill}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{fill}"/>'
                  for x, y in (place(*point) for point in series)]
        parts += [bar(left + 110 * at, top + height + 28, 12, 12, fill), text(left + 18 + 110 * at, top + height + 39, name)]
    parts.append(text(left + width, top + height + 39, unit, "small", "end"))
    return document(left + width + 40, top + height + 50, parts)
