"""What is left to be done, and when: one entry per thing that is really due, by the lane that will do it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nodeagent.units import Units
from nodeagent.works import DRAINING, PREPARING, READY, Place, Work

AT_ONCE = 0


class Item(NamedTuple):
    """Something to be done on a lane, not before ``at``. ``is_new``: it makes something, so the node must be awake."""

    lane: str
    at: int
    is_new: bool


def agenda(works: Iterable[Work], units: Units, leader: dict[tuple[str, int], str]) -> list[Item]:
    """Return what is left; ``leader`` names the lane on which each draining lease's unit is closed."""
    items: list[Item] = []
    for work in works:
        if work.phase == DRAINING:
            items += _ending(work, units, leader[work.key])
        elif work.phase in (PREPARING, READY):
            items += _beginning(work, units)
    return items


def _ending(work: Work, units: Units, leader: str) -> list[Item]:
    if units.is_closed(work):
        return [Item(p.slot.device, p.retry_at, False) for p in work.places if not p.is_cleared]
    tight = [place for place in work.places if _is_tight(place)]
    return [Item(place.slot.device, AT_ONCE, False) for place in tight] or [
        Item(leader, work.retry_at, False)
    ]


def _is_tight(place: Place) -> bool:
    """Say whether a place's limits were never loosened; the second time, with force, comes with the next close."""
    return place.is_made and not place.is_cleared and place.loosened == 0


def _beginning(work: Work, units: Units) -> list[Item]:
    if not work.is_standing:
        is_preparing = work.phase == PREPARING
        return [Item(p.slot.device, p.retry_at, True) for p in work.places if is_preparing and not p.is_made]
    if units.is_let_in(work):
        return []
    if not units.is_open(work):
        return [Item(work.places[0].slot.device, work.retry_at, True)]
    return [Item(p.slot.device, p.retry_at, True) for p in work.places if not p.is_confined]
