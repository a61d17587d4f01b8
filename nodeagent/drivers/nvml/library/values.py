"""Values as the binding gives them, in our words."""

from __future__ import annotations

from typing import Any, Final

MIB: Final = 1024 * 1024


def text(value: Any) -> str:
    """Return text from what the binding gives: str, bytes or nothing."""
    if isinstance(value, bytes):
        return value.split(b"\x00", 1)[0].decode(errors="replace")
    return "" if value is None else str(value)


def mib(value: int | None) -> int | None:
    """Return bytes as MiB; unknown stays unknown."""
    return None if value is None else int(value) // MIB
