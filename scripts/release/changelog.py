#!/usr/bin/env python3
"""Print the section of a version in CHANGELOG.md; without one, the section Unreleased.

changelog.py notes VERSION    the section as it is, for the notes of the release
changelog.py changes VERSION  the first sentence of each entry as YAML, for `artifacthub.io/changes` of the chart
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# What Artifact Hub calls the groups of entries.
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def section(text, version):
    sections = re.split(r"(?m)^## \[", text)[1:]
    for name in (version, "Unreleased"):
        for one in sections:
            title, _, body = one.partition("\n")
            if title.startswith(f"{name}]"):
                # The addresses of links, at the end of the file, are no part of it.
                return re.sub(r"(?m)^\[[^]]+\]: .*\n?", "", body).strip()
    sys.exit(f"error: CHANGELOG.md has neither a section [{version}] nor [Unreleased]")


def paragraphs(text):
    """Each entry and paragraph in one line: a page of a release shows the ends of lines."""
    return re.sub(r"(?<=\S)\n(?!\n|[-#] |\| )\s*", " ", text)


def changes(text):
    kind = None
    for line in text.splitlines():
        if line.startswith("### "):
            kind = line[4:].strip()
            if kind not in KINDS:
                sys.exit(f"error: CHANGELOG.md: no group of changes is called {kind}")
        elif line.startswith("- ") and kind:
            entry = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line[2:])
            yield kind.lower(), re.split(r"(?<=[.:]) (?=[A-Z`])", entry)[0].rstrip(".:")


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("notes", "changes"):
        sys.exit(__doc__)
    text = paragraphs(section((ROOT / "CHANGELOG.md").read_text(), sys.argv[2]))
    if sys.argv[1] == "notes":
        # Links of the file lead to the repository, which the page of a release is not in.
        base = f"https://github.com/leadergroup/leadergroup/blob/v{sys.argv[2]}/"
        print(re.sub(r"\]\((?![a-z]+:|#)", f"]({base}", text))
        return
    for kind, description in changes(text):
        print(f"- kind: {kind}\n  description: {json.dumps(description, ensure_ascii=False)}")


main()
