"""Images that lie in a folder of the site, as OCI layouts: what an index says of tags and digests.

Format: image-layout.md of the OCI image specification. Podman 4 takes a tag of a layout and no digest, so the digest
is looked up here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nodeagent.containers.words import ImageRefusedError
from nodeagent.protocol.images import DIGEST, LAYOUT, ImageReference

INDEX: Final = "index.json"
REF_NAME: Final = "org.opencontainers.image.ref.name"
MOST_INDEX: Final = 4 * 1024 * 1024
_ONE_IMAGE: Final = "manifest.v1+json"


@dataclass(frozen=True, slots=True)
class LayoutImage:
    """What Podman pulls for an image of a layout. ``is_exact``: its digest is that of the image itself, and not that
    of a list of images for several kinds of machine."""

    source: str
    digest: str
    is_exact: bool


def find_in_layout(folder: Path | None, image: ImageReference) -> LayoutImage:
    """Return where an image of the site's folder is; raises ImageRefusedError."""
    if folder is None:
        raise ImageRefusedError("image_missing", "this node has no folder of images (--image-folder)")
    name = image.name.removeprefix(LAYOUT)
    place = folder / name
    rows = _manifests(place, name)
    for row in rows:
        tag, digest = row.get("annotations", {}).get(REF_NAME), row.get("digest")
        is_it = digest == image.digest if image.digest else tag == (image.tag or "latest")
        if is_it and isinstance(tag, str) and isinstance(digest, str) and DIGEST.fullmatch(digest):
            return LayoutImage(
                f"{LAYOUT}{place}:{tag}", digest, str(row.get("mediaType", "")).endswith(_ONE_IMAGE)
            )
    if image.digest:
        raise ImageRefusedError("image_digest", f"{name} has no image with the digest {image.digest}")
    tags = sorted(str(row.get("annotations", {}).get(REF_NAME)) for row in rows)
    raise ImageRefusedError(
        "image_missing", f"{name} has no tag {image.tag or 'latest'}; there are {', '.join(tags[:8])}"
    )


def _manifests(place: Path, name: str) -> list[dict[str, Any]]:
    try:
        with open(place / INDEX, "rb") as file:
            index = json.loads(file.read(MOST_INDEX))
    except FileNotFoundError:
        raise ImageRefusedError("image_missing", f"there is no image {name} in this node's folder") from None
    except (OSError, ValueError) as no:
        raise ImageRefusedError("image", f"the index of {name} cannot be read: {no}") from no
    rows = index.get("manifests") if isinstance(index, dict) else None
    return [
        row for row in rows or [] if isinstance(row, dict) and isinstance(row.get("annotations", {}), dict)
    ]
