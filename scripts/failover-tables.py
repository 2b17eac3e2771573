#!/usr/bin/env python3
"""Write the tables of the failover benchmark into README.md and docs/benchmarks.md.

failover-tables.py FIGURES [owners|peers]: FIGURES is the JSON file that `make bench-failover` writes. With `owners`, only
the table of the power-offs by the owner of the group is written, which is of a run of its own. With `peers`, FIGURES is
the file of `make bench-peers`, and its table is written. Each table of a document is between a line
`<!-- NAME: begin -->` and a line `<!-- NAME: end -->`.
"""

import json
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The candidates and changes of the short table.
SHORT = ["managed endpoints", "by selector", "Kubernetes alone", "client-go, 5 s", "client-go", "baseline"]
STEPS = ["decided", "labelled", "endpoint", "answered", "gap", "lost"]


def quantile(values, share):
    """The value that this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * share) - 1, 0)]


def number(value):
    return f"{value:,.0f}" if math.isfinite(value) else "never"


def spread(it, step):
    """Median and 99th percentile. A round that failed counts as the slowest one."""
    values = [one[step] for one in it["rounds"] if one[step] is not None]
    if not values:
        return "–"
    count = f" ({len(values)})" if len(values) < len(it["rounds"]) else ""
    return median_and_p99(values + [math.inf] * it["failed"]) + count


def median_and_p99(values):
    return f"{number(quantile(values, 0.5))} / {number(quantile(values, 0.99))}"


def row(cells):
    return "| " + " | ".join(cells) + " |"


def long_table(rows):
    lines = [
        row(["change", "candidate", "rounds", *STEPS, "stale", "misrouted", "two"]),
        "|---|---|---:|" + "---:|" * (len(STEPS) + 3),
    ]
    for it in rows:
        rounds = it["rounds"]
        change = it["change"]
        if it["proxy_min_sync_period_ms"] != 1000:
            change += f", minSyncPeriod {it['proxy_min_sync_period_ms']} ms"
        stale = sum(one["stale"] for one in rounds)
        misrouted = [one["misrouted"] for one in rounds]
        misrouted = "–" if None in misrouted else str(sum(misrouted))
        two = sum(one["two_endpoints"] for one in rounds)
        spreads = [spread(it, step) for step in STEPS]
        count = str(len(rounds) + it["failed"])
        lines.append(row([change, it["candidate"], count, *spreads, str(stale), misrouted, str(two)]))
    return lines


def short_table(rows):
    usual = [it for it in rows if it["proxy_min_sync_period_ms"] == 1000]
    changes = list(dict.fromkeys(it["change"] for it in usual))
    lines = [row(["", *SHORT]), "|---|" + "---:|" * len(SHORT)]
    for change in changes:
        cells = [change]
        for candidate in SHORT:
            found = [it for it in usual if (it["change"], it["candidate"]) == (change, candidate)]
            gaps = [one["gap"] for it in found for one in it["rounds"]]
            gaps += [math.inf for it in found for _ in range(it["failed"])]
            cells.append(number(quantile(gaps, 0.5)) if gaps else "–")
        lines.append(row(cells))
    return lines


def target_table(targets):
    lines = [row(["target", "measured", "goal", ""]), "|---|---:|---:|---|"]
    for it in targets:
        goal = f"{it['bound']} {number(it['limit'])}"
        lines.append(row([it["what"], number(it["is"]), goal, "met" if it["met"] else "**missed**"]))
    return lines


def owner_table(rows):
    """The power-offs of the operator's groups, by whether the owner of the group was on the node."""
    lines = [
        row(["power-off, to the label", "rounds", "owner elsewhere", "rounds", "owner on the node"]),
        "|---|---:|---:|---:|---:|",
    ]
    for it in rows:
        if it["change"] != "power-off" or not it["candidate"].startswith(("managed", "by selector")):
            continue
        cells = [it["candidate"]]
        for with_owner in (False, True):
            labelled = [one["labelled"] for one in it["rounds"] if one["with_owner"] == with_owner]
            cells += [str(len(labelled)), median_and_p99(labelled) if labelled else "–"]
        lines.append(row(cells))
    return lines


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["owners"], ["peers"]):
        sys.exit(__doc__)
    figures = json.loads(pathlib.Path(sys.argv[1]).read_text())
    if sys.argv[2:] == ["peers"]:
        write("docs/benchmarks.md", "peers", figures["table"])
        return
    rows = figures["rows"]
    if sys.argv[2:]:
        write("docs/benchmarks.md", "failover owners", owner_table(rows))
        return
    write("README.md", "failover", short_table(rows))
    write("docs/benchmarks.md", "failover", long_table(rows))
    write("docs/benchmarks.md", "failover targets", target_table(figures["targets"]))


def write(path, name, table):
    document = ROOT / path
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    text, count = re.subn(
        f"({re.escape(begin)}).*?({re.escape(end)})",
        lambda found: found[1] + "".join(f"{line}\n" for line in table) + found[2],
        document.read_text(),
        flags=re.DOTALL,
    )
    if count != 1:
        sys.exit(f"error: {path} must have the two marker lines of {name} once")
    document.write_text(text)


main()
