"""A small image of this host's own programs, as an OCI layout: no registry, no network."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

PROGRAMS = ("sh", "cat", "env", "id", "sleep", "touch", "ls", "ln")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def write_layout(folder: Path, tags: tuple[str, ...] = ("1",)) -> str:
    """Write a layout with one image, unlike any other, under these tags; returns its digest."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layer = _layer(os.urandom(8))
    packed = gzip.compress(layer, 1, mtime=0)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Env": ["PATH=/usr/bin:/bin", "FROM_IMAGE=yes"],
                "Entrypoint": ["/no/such/entrypoint"],
            },
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _described(blobs, config, "application/vnd.oci.image.config.v1+json"),
            "layers": [_described(blobs, packed, "application/vnd.oci.image.layer.v1.tar+gzip")],
        }
    ).encode()
    row = _described(blobs, manifest, MANIFEST)
    named = [{**row, "annotations": {"org.opencontainers.image.ref.name": tag}} for tag in tags]
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": named}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return str(row["digest"])


def _layer(mark: bytes) -> bytes:
    """Return a tar of some programs with the libraries that they load."""
    files: dict[str, Path] = {}
    for name in PROGRAMS:
        found = shutil.which(name, path="/usr/bin:/bin")
        assert found, name
        files[f"usr/bin/{name}"] = Path(found)
        said = subprocess.run(["ldd", found], capture_output=True, text=True, check=False).stdout
        files |= {path.lstrip("/"): Path(path) for path in re.findall(r"(/\S+) \(0x", said)}
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data in [
            ("mark", mark),
            *((name, path.resolve().read_bytes()) for name, path in files.items()),
        ]:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
    return raw.getvalue()


def _described(blobs: Path, data: bytes, media_type: str) -> dict[str, object]:
    digest = _digest(data)
    (blobs / digest.removeprefix("sha256:")).write_bytes(data)
    return {"mediaType": media_type, "digest": digest, "size": len(data)}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
