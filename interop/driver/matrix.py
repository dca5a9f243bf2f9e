"""Results as tables: on the terminal, and in MATRIX.md."""

import re

from .languages import INTEROP

SIGN = {"ok": "✓", "fail": "✗", "n/a": "–"}


def shared_features():
    """The names in FEATURES.md, in its order."""
    return re.findall(r"^\| `([a-z0-9-]+)` \|", (INTEROP / "FEATURES.md").read_text(), re.MULTILINE)


def split(client, results):
    """The outcomes of the shared features, and those that only this client has."""
    shared = [] if client.framework else shared_features()
    outcomes = results.outcomes
    own = [feature for feature in outcomes if feature not in shared]
    return {feature: outcomes.get(feature) for feature in shared}, {feature: outcomes[feature] for feature in own}


def summary(client, results):
    """One line about a client, then a line for each feature that is not ok."""
    outcomes = results.outcomes
    counts = {state: sum(outcome.state == state for outcome in outcomes.values()) for state in SIGN}
    lines = [f"{client.name}: {counts['ok']} ok, {counts['fail']} failed, {counts['n/a']} n/a"]
    lines += [f"  {outcome.state} {feature}: {outcome.why}" for feature, outcome in outcomes.items() if outcome.state != "ok"]
    return "\n".join(lines)


def terminal(results):
    """The table of the clients with the shared features, in columns."""
    features = shared_features()
    clients = [client for client in results if not client.framework]
    if not clients:
        return ""
    width = max(len(client.name) for client in clients)
    height = max(map(len, features))
    lines = [" " * (width + 1) + "".join(f"{feature.rjust(height)[row]} " for feature in features) for row in range(height)]
    for client in clients:
        shared, _ = split(client, results[client])
        lines.append(client.name.ljust(width + 1) + "".join(SIGN[outcome.state] + " " if outcome else "? " for outcome in shared.values()))
    return "\n".join(lines)


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def markdown(results):
    features = shared_features()
    clients = [client for client in results if not client.framework]
    frameworks = [client for client in results if client.framework]
    lines = [
        "# Which client does what with Leveret",
        "",
        "Written by `interop/run`. ✓ passed, ✗ failed, – not applicable (the reason is below). What a feature means:",
        "[FEATURES.md](FEATURES.md).",
        "",
        "| client | " + " | ".join(f"`{feature}`" for feature in features) + " |",
        "|---" * (len(features) + 1) + "|",
    ]
    for client in clients:
        shared, _ = split(client, results[client])
        cells = (SIGN[outcome.state] if outcome else "?" for outcome in shared.values())
        lines.append(f"| {client.name} | " + " | ".join(cells) + " |")
    lines += ["", "## Frameworks, and what clients check beyond the list", "", "| program | passed | not passed |", "|---|---|---|"]
    for client in frameworks + clients:
        _, own = split(client, results[client])
        if own:
            passed = ", ".join(f"`{feature}`" for feature, outcome in own.items() if outcome.state == "ok")
            other = ", ".join(f"`{feature}` {SIGN[outcome.state]}" for feature, outcome in own.items() if outcome.state != "ok")
            lines.append(f"| {client.name} ({client.library}) | {passed} | {other} |")
    for title, state in (("Failed", "fail"), ("Not applicable", "n/a")):
        rows = [f"| {client.name} | `{feature}` | {cell(outcome.why)} |" for client in clients + frameworks
                for feature, outcome in results[client].outcomes.items() if outcome.state == state]
        if rows:
            lines += ["", f"## {title}", "", "| client | feature | why |", "|---|---|---|", *rows]
    return "\n".join(lines) + "\n"
