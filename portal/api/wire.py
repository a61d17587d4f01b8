"""How values look on the wire: money as decimal strings, instants in RFC 3339 UTC."""

from __future__ import annotations

from datetime import UTC, datetime

MICRO = 1_000_000


def amount(micro: int) -> str:
    """Return micro-units as an exact decimal string with at least two decimals."""
    sign, whole, rest = "-" if micro < 0 else "", abs(micro) // MICRO, abs(micro) % MICRO
    digits = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{digits}"


def money(micro: int | None, currency: str) -> dict[str, str] | None:
    """Return an amount with its currency, or None for one that is not known."""
    return None if micro is None else {"amount": amount(micro), "currency": currency}


def instant(at: datetime | None) -> str | None:
    """Return an instant in UTC as RFC 3339, or None."""
    if at is None:
        return None
    return at.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
