"""Quantities and instants as Kubernetes writes them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

_QUANTITY: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{0,9})?)(?:e([0-9]{1,2})|([numkMGTPE]|[KMGTPE]i)?)")
_SUFFIXES: Final = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1), "k": Decimal(1000),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("MGTPE", 2)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
}  # fmt: skip


def quantity(text: object) -> Decimal | None:
    """Return the number that a quantity such as ``80Gi`` or ``500m`` is, None for anything else."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        return None
    number, power, suffix = found.groups()
    return Decimal(number) * (Decimal(10) ** int(power) if power else _SUFFIXES[suffix or ""])


def whole(text: object) -> int:
    """Return a quantity as a whole number, 0 where it is none."""
    found = quantity(text)
    return 0 if found is None else int(found)


def instant(text: object) -> int | None:
    """Return seconds since 1970 of an instant such as ``2026-08-01T10:00:00Z``, None where it is none."""
    try:
        told = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return int(told.timestamp()) if told.tzinfo is not None else int(told.replace(tzinfo=UTC).timestamp())


def dig(tree: Any, *names: str, otherwise: Any = None) -> Any:
    """Return what lies at a path of an object, ``otherwise`` where any step is missing or of another form."""
    for name in names:
        if not isinstance(tree, dict):
            return otherwise
        tree = tree.get(name)
    return otherwise if tree is None else tree


def listed(tree: Any, *names: str) -> list[dict[str, Any]]:
    """Return the objects of a list at a path; what is not an object is passed over."""
    found = dig(tree, *names, otherwise=[])
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
