#!/usr/bin/env python3
"""Draws terminal output as an SVG picture in which the lines appear as they were printed.

    make demo | scripts/terminal-svg.py --sections 3-7 >docs/images/demo.svg

Reads lines from standard input and records when each arrives. Copies them to standard error, so that the run can be
followed. Long pauses are shortened. Viewers without animation, and readers who asked for reduced motion, see all lines.
"""

import argparse
import html
import re
import sys
import time

CHARACTER, LINE, MARGIN, TITLE = 7.8, 18, 16, 30
LONGEST_PAUSE = 1.2
SHORTEST_PAUSE = 0.06

STYLE = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d8dee9;
  white-space: pre; }
.heading { fill: #8fbcbb; font-weight: bold; }
.command { fill: #ebcb8b; }
.time { fill: #b48ead; }
.result { fill: #a3be8c; font-weight: bold; }
.line { animation: show 0.01s linear backwards; }
@keyframes show { from { opacity: 0; } to { opacity: 1; } }
@media (prefers-reduced-motion: reduce) { .line { animation: none; } }
"""


def record(stream):
    """Yields each line with the time of its arrival, in seconds."""
    for line in stream:
        print(line, end="", file=sys.stderr, flush=True)
        yield time.monotonic(), line.rstrip()


def choose(lines, first, last):
    """Keeps the numbered sections from `first` to `last`, and the last line, which is the result."""
    section, kept = 0, []
    for at, text in lines:
        if heading := re.match(r"(\d+)\. ", text):
            section = int(heading.group(1))
        if first <= section <= last:
            kept.append((at, text))
    while kept and not kept[-1][1]:
        kept.pop()
    result = next((line for line in reversed(lines) if line[1]), None)
    if result and (not kept or result != kept[-1]):
        kept += [(result[0], ""), result]
    return kept


def kind(text):
    if re.match(r"\d+\. ", text):
        return "heading"
    if text.lstrip().startswith("$ "):
        return "command"
    if text.lstrip().startswith("+"):
        return "time"
    if text.startswith("failover:"):
        return "result"
    return ""


def draw(lines):
    columns = max(len(text) for _, text in lines)
    width = round(2 * MARGIN + columns * CHARACTER)
    height = TITLE + 2 * MARGIN + len(lines) * LINE
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="Terminal output of make demo">'
    )
    yield f"<style>{STYLE}</style>"
    yield f'<rect width="{width}" height="{height}" rx="8" fill="#2e3440"/>'
    for number, color in enumerate(("#bf616a", "#ebcb8b", "#a3be8c")):
        yield f'<circle cx="{MARGIN + 6 + 20 * number}" cy="{TITLE / 2 + 2}" r="6" fill="{color}"/>'
    shown, before = 0.0, lines[0][0]
    for number, (at, text) in enumerate(lines):
        shown += min(LONGEST_PAUSE, max(SHORTEST_PAUSE, at - before))
        before = at
        if text:
            y = TITLE + MARGIN + (number + 0.7) * LINE
            yield (
                f'<text class="line {kind(text)}" x="{MARGIN}" y="{y:.1f}" xml:space="preserve" '
                f'style="animation-delay: {shown:.2f}s">{html.escape(text)}</text>'
            )
    yield "</svg>"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default="1-9", help="numbered sections to show, as in 3-5")
    first, _, last = parser.parse_args().sections.partition("-")
    lines = choose(list(record(sys.stdin)), int(first), int(last or first))
    if not lines:
        sys.exit("error: nothing to draw: standard input has no such section")
    print("\n".join(draw(lines)))


if __name__ == "__main__":
    main()
