#!/usr/bin/env python3
"""Print the manifest of the kubectl plugin for Krew, with the sums of its archives in dist.

krew.py VERSION ADDRESS: the archives can be downloaded from ADDRESS. Each archive in dist is a platform.
"""

import hashlib
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PLUGIN = "kubectl-leadergroup"


def platform(archive, system, architecture, address):
    return {
        "selector": {"matchLabels": {"os": system, "arch": architecture}},
        "uri": f"{address}/{archive.name}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "bin": PLUGIN + (".exe" if system == "windows" else ""),
    }


def platforms(version, address):
    name = re.compile(rf"{PLUGIN}_{re.escape(version)}_([a-z]+)_([a-z0-9]+)\.(?:tar\.gz|zip)")
    for archive in sorted((ROOT / "dist").iterdir()):
        if match := name.fullmatch(archive.name):
            yield platform(archive, *match.groups(), address)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    version, address = sys.argv[1:]
    found = list(platforms(version, address))
    if not found:
        sys.exit(f"error: dist has no archive of {PLUGIN} {version}")
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": PLUGIN.removeprefix("kubectl-")},
        "spec": {
            "version": f"v{version}",
            "homepage": "https://github.com/leadergroup/leadergroup",
            "shortDescription": "Show and switch the active pods of LeaderGroups",
            "description": "Shows which pod of a LeaderGroup is active and why, and makes another one active.\n",
            "platforms": found,
        },
    }
    # JSON is YAML.
    print(json.dumps(manifest, indent=2))


main()
