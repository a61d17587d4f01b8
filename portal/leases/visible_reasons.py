"""Wait reasons as their reader may know them: how many leases are in the way, and by name only those in sight.

The engine names leases by row; what it tells is stored once, but read by people of many teams.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from portal.leases.selectors import visible_leases
from portal.teams.selectors import Rights

Figures = dict[str, Any]
LEASES = ("leases", "blockers")


def names_in_sight(rights: Rights, reasons: Iterable[Figures]) -> dict[int, str]:
    """Return by row the names of the leases told of that this person may see; one query, none without leases."""
    rows = {pk for reason in reasons for figure in LEASES for pk in _rows(reason, figure)}
    if not rows:
        return {}
    return dict(visible_leases(rights).filter(pk__in=rows).order_by().values_list("pk", "uid"))


def as_seen(reason: Figures, names: Mapping[int, str]) -> Figures:
    """Return a reason with its leases counted, and those in sight by name as ``known``, in the engine's order."""
    told = [figure for figure in LEASES if isinstance(reason.get(figure), list)]
    if not told:
        return reason
    known = [names[pk] for figure in told for pk in _rows(reason, figure) if pk in names]
    return {**reason, **{figure: len(reason[figure]) for figure in told}, "known": known}


def all_as_seen(rights: Rights, reasons: Sequence[Figures]) -> list[Figures]:
    """Return the reasons of one request as this person may know them."""
    names = names_in_sight(rights, reasons)
    return [as_seen(reason, names) for reason in reasons]


def _rows(reason: Figures, figure: str) -> list[int]:
    found = reason.get(figure)
    return found if isinstance(found, list) else []
