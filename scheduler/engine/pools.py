"""Pools: which part of the fleet each kind of work is entitled to now, and how much it has.

A pool is no fence. Claims that keep their kind of work within its part go first, then those that cross its edge
(so nothing is too large for its pool), then those of work that has its part or more; what nobody entitled
wants, others use.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from zoneinfo import ZoneInfo

from scheduler.engine.model import Snapshot
from scheduler.engine.policy import WORKS, Part, Pools, PoolTime, Work

WITHIN, CROSSING, OVER = range(3)
DAYS = 7
MIDNIGHT = 24 * 60


def parts_at(pools: Pools, at: datetime) -> dict[Work, float]:
    """The part of the fleet of each kind of work at this instant, in sum 1; empty without pools.

    A time whose end is not after its begin runs past midnight and belongs to the day it began on. Where several
    hold the first one counts. Kinds of work that no part names are entitled to nothing.
    """
    parts = _in_force(pools, at)
    whole = sum(part for _, part in parts)
    if whole <= 0:
        return {}
    named = {work: part / whole for work, part in parts}
    return {work: named.get(work, 0.0) for work in WORKS}


def _in_force(pools: Pools, at: datetime) -> tuple[Part, ...]:
    if not pools.times:
        return pools.parts
    local = at.astimezone(ZoneInfo(pools.zone))
    minute = local.hour * 60 + local.minute
    return next((time.parts for time in pools.times if _holds(time, local.weekday(), minute)), pools.parts)


def _holds(time: PoolTime, day: int, minute: int) -> bool:
    if time.from_minute < time.to_minute:
        return day in time.days and time.from_minute <= minute < time.to_minute
    since_yesterday = (day - 1) % DAYS in time.days and minute < time.to_minute
    return since_yesterday or (day in time.days and time.from_minute <= minute < MIDNIGHT)


def used(snapshot: Snapshot) -> Counter[Work]:
    """What runs of each kind of work now, in weighted thousandths."""
    found: Counter[Work] = Counter()
    for lease in snapshot.running:
        found[lease.work] += lease.cost_milli
    return found


def capacity_of(snapshot: Snapshot) -> int:
    """Weighted thousandths of all devices that can be used now; of all devices when none can."""
    blocked = {node.id for node in snapshot.nodes if node.blocked}
    usable = sum(d.weight_milli for d in snapshot.devices if not d.blocked and d.node_id not in blocked)
    return usable or sum(device.weight_milli for device in snapshot.devices)


class Entitlements:
    """Parts of one instant against what is used, kept up to date with the grants of a turn.

    Without pools everybody is always within their part.
    """

    def __init__(self, pools: Pools, snapshot: Snapshot) -> None:
        self.parts = parts_at(pools, snapshot.taken_at)
        self.capacity = capacity_of(snapshot) if self.parts else 0
        self.used = used(snapshot) if self.parts else Counter()

    def part_milli(self, work: Work) -> int:
        """What this kind of work is entitled to, in weighted thousandths."""
        return round(self.parts[work] * self.capacity)

    def place(self, work: Work, cost_milli: int) -> int:
        """Where a claim stands: ``WITHIN`` its pool's part, ``CROSSING`` its edge, or ``OVER`` it already."""
        if not self.parts or self.used[work] + cost_milli <= self.part_milli(work):
            return WITHIN
        return CROSSING if self.used[work] < self.part_milli(work) else OVER

    def take(self, work: Work, cost_milli: int) -> None:
        """Count a grant."""
        self.used[work] += cost_milli
