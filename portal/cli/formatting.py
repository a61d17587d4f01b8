"""Values as people read them in a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from portal.cli import zones
from portal.common.units import amount_places, bytes_text, memory_text, price_places, rounded, span_parts

UNKNOWN = "unknown"


def clean(value: Any) -> str:
    """Return text without control characters: a name must not steer somebody's terminal."""
    text = "" if value is None else str(value)
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Cs") else c for c in text)


def span(seconds: int | None) -> str:
    """Return a length of time, e.g. ``1 h 30 min``; None is unknown."""
    if seconds is None:
        return UNKNOWN
    return " ".join(f"{n} {unit}" for n, unit in span_parts(seconds))


def when(text: str | None) -> str:
    """Return an instant in the zone in use, as pages write it ("22 Nov, 10:30"); None is unknown."""
    if not text:
        return UNKNOWN
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return clean(text)
    local, now = zones.local(at), zones.local(datetime.now(tz=UTC))
    return f"{local.day} {local:%b}{'' if local.year == now.year else f' {local.year}'}, {local:%H:%M}"


def start(likely: str | None, by: str | None) -> str:
    """Return a forecast start: the likely instant and the one that nine of ten keep."""
    if not likely or not by or likely == by:
        return when(likely)
    return f"{when(likely)}, by {when(by)} (9 of 10)"


def money(value: dict[str, str] | None) -> str:
    """Return an amount with its currency, as pages write it; None is unknown."""
    return _written(value, amount_places)


def price(value: dict[str, str] | None) -> str:
    """Return a price with its currency, never rounded; None is unknown."""
    return _written(value, price_places)


def _written(value: dict[str, str] | None, places: Callable[[Decimal], int]) -> str:
    if value is None:
        return UNKNOWN
    try:
        amount = Decimal(value["amount"])
        return clean(f"{rounded(amount, places(amount)):,f} {value['currency']}")
    except InvalidOperation:
        return clean(f"{value['amount']} {value['currency']}")


def memory(mib: int) -> str:
    """Return memory in GiB to a tenth, as the pages do."""
    return memory_text(mib)


def size(count: int) -> str:
    """Return the size of a file, as the pages do."""
    return bytes_text(count)
