"""How an image of a container is named: by a registry, as a layout in the site's folder, or as one of the node's own.

``registry.example/team/pytorch:2.9`` and ``…@sha256:…`` are pulled from that registry; the host is always named, so
nobody else can answer for it. ``oci:pytorch:2.9`` is an OCI layout in the folder that the node's agent was given.
``localhost/mine:1`` is on the node already and is never pulled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

LOCAL: Final = "localhost"
LAYOUT: Final = "oci:"
MOST_REFERENCE: Final = 300
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH: Final = rf"{_PART}(?:/{_PART})*"
_HOST: Final = (
    r"(?:localhost|[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)+|[a-zA-Z0-9][a-zA-Z0-9-]*(?=:\d))(?::\d{1,5})?"
)
_END: Final = r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
_REFERENCE: Final = re.compile(rf"(?P<name>{LAYOUT}{_PATH}|{_HOST}/{_PATH}){_END}")
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
# Why a job's image cannot be had: nobody was let into its lease.
IMAGE_WHYS: Final = (
    "image", "image_missing", "image_denied", "image_digest", "image_space", "image_slow", "image_unreachable",
    "no_containers",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ImageReference:
    """One image. With a digest it is that one or nothing; the tag is then only for people."""

    name: str
    tag: str = ""
    digest: str = ""

    @property
    def is_layout(self) -> bool:
        """Say whether it lies in the folder of layouts."""
        return self.name.startswith(LAYOUT)

    @property
    def is_local(self) -> bool:
        """Say whether it must be on the node already."""
        return self.name.startswith(f"{LOCAL}/")

    @property
    def text(self) -> str:
        """Return it as engines take it: by digest or by tag, never by both (Podman 4 refuses that)."""
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag or 'latest'}"

    def pinned(self, digest: str) -> ImageReference:
        """Return the same image by a digest, where there is one."""
        return ImageReference(self.name, self.tag, digest or self.digest)


def image_of(text: str) -> ImageReference | None:
    """Return the image that a text names, None for anything else."""
    found = _REFERENCE.fullmatch(text) if len(text) <= MOST_REFERENCE else None
    if found is None:
        return None
    return ImageReference(found["name"], found["tag"] or "", found["digest"] or "")
