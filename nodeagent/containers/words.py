"""Why an image cannot be had, by what Podman said."""

from __future__ import annotations

import re
from typing import Final

MOST_SAID: Final = 200
# By the first that fits; Podman's own sentences change less than its exit codes tell (always 125).
_SAID: Final = (
    (
        "image_space",
        re.compile(r"no space left|disk quota exceeded|of disk would be left|that images may take", re.IGNORECASE),
    ),
    ("image_denied", re.compile(r"unauthorized|denied|authentication required|forbidden", re.IGNORECASE)),
    ("image_digest", re.compile(r"digest .*(?:match|mismatch|invalid)|invalid checksum", re.IGNORECASE)),
    (
        "image_missing",
        re.compile(
            r"manifest unknown|not found|no such image|no such file|no descriptor found|name unknown|not known",
            re.IGNORECASE,
        ),
    ),
    (
        "image_unreachable",
        re.compile(r"no such host|connection refused|timeout|timed out|unreachable", re.IGNORECASE),
    ),
)  # fmt: skip
_NOISE: Final = re.compile(r"^(?:Error: |time=\S+ level=\S+ msg=)")


class ImageRefusedError(Exception):
    """An image cannot be had; ``why`` is one of ``protocol.images.IMAGE_WHYS``, ``detail`` the sentence for people."""

    def __init__(self, why: str, detail: str) -> None:
        super().__init__(detail)
        self.why = why
        self.detail = " ".join(detail.split())[:MOST_SAID]


def refusal_of(said: str) -> ImageRefusedError:
    """Return what Podman's stderr means: its last line, put in one of our words."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if line.startswith("Error:")), lines[-1] if lines else "")
    text = _NOISE.sub("", last) or "Podman ended without a word"
    why = next((word for word, pattern in _SAID if pattern.search(text)), "image")
    return ImageRefusedError(why, text)
