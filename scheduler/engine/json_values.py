"""Single values of a snapshot in JSON: written plainly, read strictly. Every reader raises ValueError."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from scheduler.engine.model import Mode, Work

MODES = frozenset(get_args(Mode))
WORKS = frozenset(get_args(Work))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def us(at: datetime) -> int:
    """Microseconds since 1970."""
    return (at - EPOCH) // MICROSECOND


def instant(value: Any) -> datetime:
    """An instant from microseconds since 1970."""
    try:
        return EPOCH + timedelta(microseconds=whole(value))
    except OverflowError:
        raise ValueError(f"not an instant: {value}") from None


def whole(value: Any, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    """A whole number in a range."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"not a whole number in range: {value!r:.40}")
    return value


def known(value: Any) -> int | None:
    """A whole number from 0, or None for unknown."""
    return None if value is None else whole(value, 0)


def wholes(value: Any) -> tuple[int, ...]:
    """Whole numbers from 0."""
    return tuple(whole(one, 0) for one in items(value))


def text(value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise ValueError(f"not a text: {value!r:.40}")
    return value


def mode(value: Any) -> Mode:
    """A sharing mode."""
    if value not in MODES:
        raise ValueError(f"unknown mode: {value!r:.40}")
    found: Mode = value
    return found


def work(value: Any) -> Work:
    """A kind of work."""
    if value not in WORKS:
        raise ValueError(f"unknown kind of work: {value!r:.40}")
    found: Work = value
    return found


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"not true or false: {value!r:.40}")
    return value


def texts(value: Any) -> frozenset[str]:
    """A set of texts."""
    return frozenset(text(one) for one in items(value))


def items(value: Any) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise ValueError(f"not a list: {value!r:.40}")
    return value
