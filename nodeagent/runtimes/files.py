"""Small files that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def put(path: Path, text: str, *, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Write a file under another name, give it away, then rename it into place; raises OSError."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        if owner is not None:
            os.fchown(fd, *owner)
        os.fchmod(fd, mode)
        os.fsync(fd)
    draft.replace(path)
