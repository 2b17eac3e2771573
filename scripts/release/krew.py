#!/usr/bin/env python3
"""Print the manifest of the kubectl plugin for Krew, with the sums of its archives in dist.

krew.py VERSION ADDRESS: the archives can be downloaded from ADDRESS.
"""

import hashlib
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PLUGIN = "kubectl-leadergroup"


def platform(archive, address):
    return {
        "selector": {"matchLabels": {"os": "linux", "arch": archive.name.removesuffix(".tar.gz").rpartition("_")[2]}},
        "uri": f"{address}/{archive.name}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "bin": PLUGIN,
    }


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    version, address = sys.argv[1:]
    archives = sorted((ROOT / "dist").glob(f"{PLUGIN}_{version}_linux_*.tar.gz"))
    if not archives:
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
            "platforms": [platform(archive, address) for archive in archives],
        },
    }
    # JSON is YAML.
    print(json.dumps(manifest, indent=2))


main()
