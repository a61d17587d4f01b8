"""What is left to be done, and when: one entry per thing that is really due, by the lane that will do it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from nodeagent.reconcile.lease_records import DRAINING, PREPARING, READY, Key, LeaseRecord
from nodeagent.reconcile.units import LeaseUnits, is_tight

AT_ONCE = 0


class DueItem(NamedTuple):
    """Something to be done on a lane, not before ``at``. ``is_new``: it makes something, so the node must be awake."""

    lane: str
    at: int
    is_new: bool


def agenda(
    lease_records: Iterable[LeaseRecord], units: LeaseUnits, leader: Mapping[Key, str], lost: Collection[str]
) -> list[DueItem]:
    """Return what is left; ``leader`` names the lane on which each draining lease's unit is closed.

    Nothing waits for ``lost`` devices but what is to be done on them.
    """
    items: list[DueItem] = []
    for record in lease_records:
        if record.phase == DRAINING:
            items += _ending(record, units, leader[record.key], lost)
        elif record.phase in (PREPARING, READY):
            items += _beginning(record, units)
    return items


def _ending(record: LeaseRecord, units: LeaseUnits, leader: str, lost: Collection[str]) -> list[DueItem]:
    if units.is_closed(record):
        return [DueItem(p.slot.device, p.retry_at, False) for p in record.places if not p.is_cleared]
    # The second time, with force, comes with the next close.
    tight = [place.slot.device for place in record.places if is_tight(place)]
    items = [DueItem(device, AT_ONCE, False) for device in tight]
    if all(device in lost for device in tight):
        items.append(DueItem(leader, record.retry_at, False))
    return items


def _beginning(record: LeaseRecord, units: LeaseUnits) -> list[DueItem]:
    if not record.is_standing:
        is_preparing = record.phase == PREPARING
        return [
            DueItem(p.slot.device, p.retry_at, True) for p in record.places if is_preparing and not p.is_made
        ]
    if units.is_let_in(record) or record.awaits_image:
        return []
    if not units.is_open(record):
        return [DueItem(record.places[0].slot.device, record.retry_at, True)]
    return [DueItem(p.slot.device, p.retry_at, True) for p in record.places if not p.is_confined]
