"""Pools: which part of the fleet each kind of work is entitled to now, and how much it has.

A pool is no fence. Claims of pools that have less than their part go before claims of those that have more;
what nobody entitled wants, others use.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from zoneinfo import ZoneInfo

from scheduler.engine.model import Snapshot
from scheduler.engine.policy import WORKS, Part, Pools, PoolTime, Work

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


class Entitlements:
    """Parts of one instant against what is used, kept up to date with the grants of a turn.

    ``capacity`` in weighted thousandths. Without pools everybody is always below their part.
    """

    def __init__(self, pools: Pools, snapshot: Snapshot, capacity: int) -> None:
        self.parts = parts_at(pools, snapshot.taken_at)
        self.capacity = capacity
        self.used = used(snapshot) if self.parts else Counter()

    def is_over(self, work: Work) -> bool:
        """Whether this kind of work has all it is entitled to, or more."""
        return bool(self.parts) and self.used[work] >= self.parts[work] * self.capacity

    def take(self, work: Work, cost_milli: int) -> bool:
        """Count a grant; whether this kind of work is over its part now and was not before."""
        was = self.is_over(work)
        self.used[work] += cost_milli
        return self.is_over(work) and not was
