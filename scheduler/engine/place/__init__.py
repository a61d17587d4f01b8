"""Where the units go. One file per policy, one line in ``PLACES``; copy ``binpack`` for a new one.

A placement policy gets the shape and the open boards that can serve it, grouped by node, and returns
one spot per unit, all on one node, or None when no node has room for all of them. It changes nothing.
It must find a placement whenever one exists.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduler.engine.errors import UnknownPolicy
from scheduler.engine.place.binpack import binpack
from scheduler.engine.place.fill import Groups, Spot
from scheduler.engine.shape import Shape

Place = Callable[[Shape, Groups], list[Spot] | None]

PLACES: dict[str, Place] = {
    "binpack": binpack,
}


def place_named(name: str) -> Place:
    """The placement policy of that name, or raise UnknownPolicy."""
    try:
        return PLACES[name]
    except KeyError:
        raise UnknownPolicy("placement", name, sorted(PLACES)) from None
