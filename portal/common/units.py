"""How lengths of time and amounts of money are written, for pages, the API's sentences and the command line.

Standard library only: the command line uses it too. ``static/js/i18n.js`` writes lengths alike.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
UNITS = ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min"), (1, "s"))
FEWEST, MOST = 2, 6  # decimals of an amount; money is kept in millionths


def span_parts(seconds: int) -> list[tuple[int, str]]:
    """Return a length of time by its two largest units that are not zero: (1, "d"), (6, "h")."""
    parts, left = [], max(0, seconds)
    for size, unit in UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append((count, unit))
    return parts[:2] or [(0, "s")]


def price_places(price: Decimal) -> int:
    """Return how many decimals a price is written with: all that it has, at least two. It is never rounded."""
    exact = price.quantize(Decimal(10) ** -MOST).normalize()
    return min(MOST, max(FEWEST, -int(exact.as_tuple().exponent)))


def amount_places(amount: Decimal) -> int:
    """Return how many decimals an amount is written with: two, and for less than 0.01 as many as show two digits."""
    if amount == 0 or abs(amount) >= Decimal("0.01"):
        return FEWEST
    return min(MOST, 1 - amount.adjusted())


def rounded(amount: Decimal, places: int) -> Decimal:
    """Return an amount with so many decimals, halves away from zero as on bills."""
    return amount.quantize(Decimal(10) ** -places, rounding=ROUND_HALF_UP)


def memory_text(mib: int) -> str:
    """Return MiB as GiB to a tenth ("19.6 GiB"), below one as MiB."""
    return f"{mib} MiB" if mib < 1024 else f"{round(mib / 1024, 1):g} GiB"


def bytes_text(count: int) -> str:
    """Return the size of a file, e.g. "12 B" or "1.5 MiB"."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1023.95:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
