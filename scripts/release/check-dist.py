#!/usr/bin/env python3
"""Check the files of dist against each other: sums, archives, the manifest for Krew, SBOMs and the provenance.

check-dist.py VERSION: VERSION is in dist.
"""

import hashlib
import json
import pathlib
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DIST = ROOT / "dist"
PLUGIN = "kubectl-leadergroup"
PROVENANCE = "provenance.intoto.json"


def programs():
    """Each program of programs.txt, and its systems."""
    lines = (ROOT / "scripts/release/programs.txt").read_text().splitlines()
    return {words[0]: words[3].split(",") for words in map(str.split, lines) if words and words[0] != "#"}


def content(archive):
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as opened:
            return {name: opened.read(name) for name in opened.namelist()}
    with tarfile.open(archive) as opened:
        return {member.name: opened.extractfile(member).read() for member in opened}


def archives(version):
    """Each built program is in an archive, with the license: the archive of each program, system and architecture."""
    found = {}
    for folder in (DIST / "bin").iterdir():
        system, _, architecture = ("linux_" + folder.name if "_" not in folder.name else folder.name).partition("_")
        for program in folder.iterdir():
            name, ending = program.name.removesuffix(".exe"), "zip" if system == "windows" else "tar.gz"
            archive = DIST / f"{name}_{version}_{system}_{architecture}.{ending}"
            expected = {program.name: program.read_bytes(), "LICENSE": (ROOT / "LICENSE").read_bytes()}
            assert content(archive) == expected, f"{archive.name} is not {program.name} and the license"
            found[name, system, architecture] = archive
    for name, systems in programs().items():
        built = {system for program, system, _ in found if program == name}
        # A trial may be for some platforms only.
        assert built and built <= set(systems), f"{name} was built for {built}"
    return found


def krew(version, found, sums):
    manifest = json.loads((DIST / f"{PLUGIN}.krew.yaml").read_text())
    assert manifest["spec"]["version"] == f"v{version}", manifest
    named = {}
    for platform in manifest["spec"]["platforms"]:
        labels = platform["selector"]["matchLabels"]
        archive = platform["uri"].rpartition("/")[2]
        assert platform["sha256"] == sums[archive], f"the manifest for Krew has another sum of {archive}"
        assert platform["bin"] in content(DIST / archive), f"{archive} has no {platform['bin']}"
        named[labels["os"], labels["arch"]] = archive
    plugins = {(system, machine): path.name for (name, system, machine), path in found.items() if name == PLUGIN}
    assert named == plugins, f"the manifest for Krew has {named}, and dist has {plugins}"


def sboms(version, sums):
    for name in programs():
        file = f"{name}_{version}.cdx.json"
        assert file in sums, f"SHA256SUMS does not name {file}"
        bill = json.loads((DIST / file).read_text())
        about = bill["metadata"]["component"]
        assert (bill["bomFormat"], about["version"]) == ("CycloneDX", version), f"{file} is about {about}"
        assert len(bill["components"]) > 10, f"{file} has {len(bill['components'])} components"


def provenance(version, sums):
    statement = json.loads((DIST / PROVENANCE).read_text())
    assert statement["_type"] == "https://in-toto.io/Statement/v1", statement
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1", statement
    named = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    images = dict(line.split("@sha256:") for line in (DIST / "IMAGES").read_text().split())
    expected = {name: value for name, value in sums.items() if name != PROVENANCE} | images
    assert named == expected, f"the provenance is about others than the files: {named.items() ^ expected.items()}"
    build = statement["predicate"]["buildDefinition"]
    assert build["externalParameters"]["version"] == version, build
    source, lock = build["resolvedDependencies"][:2]
    assert lock["digest"]["sha256"] == hashlib.sha256((ROOT / "Cargo.lock").read_bytes()).hexdigest(), lock
    for layout in (DIST / "images").iterdir():
        labels = image_labels(layout)
        assert labels["org.opencontainers.image.revision"] == source["digest"]["gitCommit"], (labels, source)


def image_labels(layout):
    digest = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"].partition(":")[2]
    return json.loads((layout / "blobs/sha256" / digest).read_text())["annotations"]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    version = sys.argv[1]
    lines = (DIST / "SHA256SUMS").read_text().splitlines()
    sums = {name: value for value, name in (line.split("  ") for line in lines)}
    there = {path.name for path in DIST.iterdir() if path.is_file()} - {"SHA256SUMS", "NOTES.md"}
    assert there == set(sums), f"not in both dist and SHA256SUMS: {there ^ set(sums)}"
    found = archives(version)
    assert {path.name for path in found.values()} <= set(sums), "SHA256SUMS does not name all archives"
    krew(version, found, sums)
    sboms(version, sums)
    provenance(version, sums)
    print(f"{len(found)} archives, the manifest for Krew, the SBOMs and the provenance agree")


main()
