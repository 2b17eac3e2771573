#!/usr/bin/env python3
"""Make the images of a release from its programs, as folders in the layout of OCI: dist/images/NAME.

images.py VERSION COMMIT EPOCH REGISTRY PLATFORM...: the programs are in dist/bin/PLATFORM. An image is what the
Containerfile says of a stage without commands: the program that it copies, its labels, user, ports, entrypoint and
arguments. The program needs no shared library, so the image has nothing else but /tmp and the name of the user. All
times are EPOCH, the time of the commit: the same programs give the same digests.
"""

import gzip
import hashlib
import io
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OCI = "application/vnd.oci.image"
NAME = "org.opencontainers.image"
# As in the images of Debian, for `kubectl exec`.
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def stages(text):
    """The images of the Containerfile: the settings and the program of each stage that copies one."""
    text = re.sub(r"\\\n", " ", text)
    found, stage = [], None
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            stage = {"labels": {}, "config": {}}
        elif word == "LABEL":
            stage["labels"].update(label.split("=", 1) for label in shlex.split(rest))
        elif word == "COPY" and rest.startswith("--from="):
            _, source, target = rest.split()
            stage["program"], stage["target"] = pathlib.PurePath(source).name, target
            found.append(stage)
        elif word == "USER":
            stage["config"]["User"] = rest
        elif word == "EXPOSE":
            stage["config"]["ExposedPorts"] = {f"{port}/tcp": {} for port in rest.split()}
        elif word in ("ENTRYPOINT", "CMD"):
            stage["config"][word.title()] = json.loads(rest)
    return found


def layer(stage, program, epoch):
    """The only layer, as tar. Folders come before what is in them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:

        def add(name, kind, mode, content=b""):
            entry = tarfile.TarInfo(name.strip("/"))
            entry.type, entry.mode, entry.mtime, entry.size = kind, mode, epoch, len(content)
            tar.addfile(entry, io.BytesIO(content))

        user = stage["config"]["User"].partition(":")[0]
        add("etc", tarfile.DIRTYPE, 0o755)
        add("etc/passwd", tarfile.REGTYPE, 0o644, f"nonroot:x:{user}:{user}::/:/sbin/nologin\n".encode())
        add("tmp", tarfile.DIRTYPE, 0o1777)
        for folder in reversed(pathlib.PurePosixPath(stage["target"]).parents[:-1]):
            add(str(folder), tarfile.DIRTYPE, 0o755)
        add(stage["target"], tarfile.REGTYPE, 0o755, program.read_bytes())
    return buffer.getvalue()


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


class Layout:
    """A folder of blobs, each named by its digest."""

    def __init__(self, path):
        self.path = path
        shutil.rmtree(path, ignore_errors=True)
        (path / "blobs/sha256").mkdir(parents=True)
        (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}\n')

    def add(self, content, media_type, **more):
        if not isinstance(content, bytes):
            content = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        (self.path / "blobs/sha256" / digest(content).partition(":")[2]).write_bytes(content)
        return {"mediaType": media_type, "digest": digest(content), "size": len(content), **more}


def manifest(layout, stage, platform, labels, created, epoch):
    """The image of one platform."""
    content = layer(stage, ROOT / "dist/bin" / platform / stage["program"], epoch)
    # The program `gzip`: that of Python is another one on each distribution.
    packed = subprocess.run(["gzip", "--no-name", "--best"], input=content, stdout=subprocess.PIPE, check=True).stdout
    assert gzip.decompress(packed) == content
    config = {
        "architecture": platform,
        "os": "linux",
        "created": created,
        "config": {**stage["config"], "Env": [PATH], "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [digest(content)]},
        "history": [{"created": created, "created_by": "scripts/release/images.py"}],
    }
    image = {
        "schemaVersion": 2,
        "mediaType": f"{OCI}.manifest.v1+json",
        "config": layout.add(config, f"{OCI}.config.v1+json"),
        "layers": [layout.add(packed, f"{OCI}.layer.v1.tar+gzip")],
        "annotations": labels,
    }
    return layout.add(image, image["mediaType"], platform={"architecture": platform, "os": "linux"})


def main():
    if len(sys.argv) < 6:
        sys.exit(__doc__)
    version, commit, epoch, registry, *platforms = sys.argv[1:]
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(epoch)))
    for stage in stages((ROOT / "Containerfile").read_text()):
        name = stage["program"]
        labels = stage["labels"] | {f"{NAME}.version": version, f"{NAME}.revision": commit, f"{NAME}.created": created}
        layout = Layout(ROOT / "dist/images" / name)
        index = {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.index.v1+json",
            "manifests": [manifest(layout, stage, platform, labels, created, int(epoch)) for platform in platforms],
            "annotations": labels,
        }
        # The names for programs that load images from an archive of this folder.
        reference = f"{registry}/{name}:{version}"
        names = {f"{NAME}.ref.name": reference, "io.containerd.image.name": reference}
        top = layout.add(index, index["mediaType"], annotations=names)
        (layout.path / "index.json").write_text(json.dumps({**index, "manifests": [top], "annotations": {}}) + "\n")
        print(f"{name} {top['digest']}")


main()
