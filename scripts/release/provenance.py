#!/usr/bin/env python3
"""Print where the files and images of dist come from: a statement of in-toto with the provenance of SLSA.

provenance.py VERSION COMMIT: VERSION was built from COMMIT by `make release`. Nobody has signed it: its sum is in
SHA256SUMS, which a release signs. The same commit gives the same bytes.
"""

import hashlib
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
REPOSITORY = "https://github.com/leadergroup/leadergroup"
# What is made from all others, or only for the page of the release.
LATER = {"SHA256SUMS", "NOTES.md", "provenance.intoto.json"}


def sha256(path):
    return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def output(*command):
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout.strip()


def subjects(dist):
    files = sorted(path for path in dist.iterdir() if path.is_file() and path.name not in LATER)
    images = (line.rsplit("@sha256:", 1) for line in (dist / "IMAGES").read_text().split())
    return [{"name": path.name, "digest": sha256(path)} for path in files] + [
        {"name": name, "digest": {"sha256": digest}} for name, digest in images
    ]


def materials(commit):
    tools = re.findall(r"(?m)^([a-z-]+)==(\S+)", (ROOT / "scripts/release/zig.txt").read_text())
    return [
        {"uri": f"git+{REPOSITORY}", "digest": {"gitCommit": commit}},
        {"uri": f"git+{REPOSITORY}#Cargo.lock", "digest": sha256(ROOT / "Cargo.lock")},
        {"uri": "pkg:generic/rust@" + output("rustc", "--version").split()[1]},
        *({"uri": f"pkg:pypi/{name}@{version}"} for name, version in tools),
    ]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    version, commit = sys.argv[1:]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects(ROOT / "dist"),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{REPOSITORY}/blob/{commit}/scripts/release.sh",
                "externalParameters": {"command": "make release", "version": version},
                # A release has none: version.sh refuses a tag with changes beside it.
                "internalParameters": {"changesBesideTheCommit": bool(output("git", "status", "--porcelain"))},
                "resolvedDependencies": materials(commit),
            },
            "runDetails": {"builder": {"id": f"{REPOSITORY}/blob/{commit}/Makefile"}},
        },
    }
    print(json.dumps(statement, indent=2))


main()
