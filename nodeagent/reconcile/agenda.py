"""What is left to be done, and when: one entry per thing that is really due, by the lane that will do it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from nodeagent.reconcile.lease_records import DRAINING, PREPARING, READY, Key, Work
from nodeagent.reconcile.units import Units, is_tight

AT_ONCE = 0


class Item(NamedTuple):
    """Something to be done on a lane, not before ``at``. ``is_new``: it makes something, so the node must be awake."""

    lane: str
    at: int
    is_new: bool


def agenda(
    works: Iterable[Work], units: Units, leader: Mapping[Key, str], lost: Collection[str]
) -> list[Item]:
    """Return what is left; ``leader`` names the lane on which each draining lease's unit is closed.

    Nothing waits for ``lost`` devices but what is to be done on them.
    """
    items: list[Item] = []
    for work in works:
        if work.phase == DRAINING:
            items += _ending(work, units, leader[work.key], lost)
        elif work.phase in (PREPARING, READY):
            items += _beginning(work, units)
    return items


def _ending(work: Work, units: Units, leader: str, lost: Collection[str]) -> list[Item]:
    if units.is_closed(work):
        return [Item(p.slot.device, p.retry_at, False) for p in work.places if not p.is_cleared]
    # The second time, with force, comes with the next close.
    tight = [place.slot.device for place in work.places if is_tight(place)]
    items = [Item(device, AT_ONCE, False) for device in tight]
    if all(device in lost for device in tight):
        items.append(Item(leader, work.retry_at, False))
    return items


def _beginning(work: Work, units: Units) -> list[Item]:
    if not work.is_standing:
        is_preparing = work.phase == PREPARING
        return [Item(p.slot.device, p.retry_at, True) for p in work.places if is_preparing and not p.is_made]
    if units.is_let_in(work):
        return []
    if not units.is_open(work):
        return [Item(work.places[0].slot.device, work.retry_at, True)]
    return [Item(p.slot.device, p.retry_at, True) for p in work.places if not p.is_confined]
