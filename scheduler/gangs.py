"""A grant split by node: one lease for each, and all of them live and end together (docs/gangs.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from portal.leases.gangs import PREPARE_MARGIN
from scheduler.engine.model import DeviceInfo, Grant, GrantedSlot, Held, Snapshot


@dataclass(frozen=True, slots=True)
class GangPart:
    """What one node gives to a grant; ``cost_milli`` of all parts add up to the grant's."""

    number: int
    node_id: int
    slots: tuple[GrantedSlot, ...]
    cost_milli: int


def parts_of(grant: Grant, devices: Mapping[int, DeviceInfo]) -> list[GangPart]:
    """Return the grant by nodes, in the order of its slots.

    A part costs its boards' weights; what rounding leaves over goes to the first.
    """
    by_node = [
        (node, tuple(slots))
        for node, slots in groupby(grant.slots, key=lambda s: devices[s.device_id].node_id)
    ]
    if len(by_node) == 1:
        return [GangPart(0, grant.node_id, grant.slots, grant.cost_milli)]
    # Share x weight, rounded up per slot, as the engine counts what a quota pays.
    costs = [
        sum(-(-slot.share_milli * devices[slot.device_id].weight_milli // 1000) for slot in slots)
        for _node, slots in by_node
    ]
    costs[0] += grant.cost_milli - sum(costs)
    return [
        GangPart(number, node, slots, cost)
        for number, ((node, slots), cost) in enumerate(zip(by_node, costs, strict=True))
    ]


def held_until(grant: Grant, asked_s: int, snapshot: Snapshot, *, now: datetime) -> datetime:
    """Return how long what is granted now may be held before it is active.

    Its time and a margin to start in, but never into what is booked or shut behind it; a grant that was cut
    short ends at its time however long it takes to start.
    """
    until = now + timedelta(seconds=min(asked_s, grant.duration_s))
    if not grant.cut_by:
        until += PREPARE_MARGIN
    return min((until, *(at for at in _blocks(grant.slots, snapshot) if at > now)))


def _blocks(slots: Sequence[GrantedSlot], snapshot: Snapshot) -> Iterable[datetime]:
    """When bookings and outages begin on what these slots take."""
    if not (snapshot.bookings or snapshot.outages):
        return
    taken: dict[int, list[GrantedSlot]] = {}
    for slot in slots:
        taken.setdefault(slot.device_id, []).append(slot)
    nodes = {device.node_id for device in snapshot.devices if device.id in taken}
    for booking in snapshot.bookings:
        if any(_meet(slot, booking.held) for slot in taken.get(booking.held.device_id, ())):
            yield booking.starts_at
    yield from (outage.starts_at for outage in snapshot.outages if outage.node_id in nodes)


def _meet(slot: GrantedSlot, held: Held) -> bool:
    """Whether both take the same of one board; a share may be anywhere on it."""
    if not slot.size or not held.size:
        return True
    return slot.start < held.start + held.size and held.start < slot.start + slot.size
