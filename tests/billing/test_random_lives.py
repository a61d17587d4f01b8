"""Random lives over a month's end and a price change, with silent nodes, late looks and closes in between.

After every step usage is a prefix of the active time that the events say; in the end it is all of it.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress
from datetime import date, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.db.models import Sum

from portal.agents import reports
from portal.billing.closing import close_period
from portal.billing.metering import active_intervals, events_by_lease, meter_all
from portal.billing.models import BillingPeriod, UsageRecord
from portal.billing.selectors import period_of
from portal.catalog.services import set_rate
from portal.common.errors import Conflict, PeriodClosed
from portal.common.invariants import INVARIANTS, broken
from portal.fleet.models import DeviceModel, Node
from portal.leases import lifecycle, transitions
from portal.leases.models import Lease
from portal.leases.states import LeaseState
from tests.billing.zones import ZoneMonths, lay_down
from tests.deep import deep_after
from tests.portal.builders import H100, L40S, World, build_world

# Ends of months: an ordinary one, a leap day, a year's end, and the months in which Europe turns its clocks; in zones
# east, west, half or a quarter of an hour off, and one whose clocks show that midnight twice (Havana, 1 November 2026).
ENDS = [
    ("UTC", date(2026, 2, 1)), ("Asia/Shanghai", date(2024, 3, 1)), ("America/New_York", date(2026, 1, 1)),
    ("Europe/Berlin", date(2026, 4, 1)), ("Europe/Berlin", date(2025, 11, 1)), ("America/Havana", date(2026, 11, 1)),
    ("Asia/Kathmandu", date(2026, 5, 1)), ("America/St_Johns", date(2025, 3, 1)),
    ("Pacific/Kiritimati", date(2025, 1, 1)), ("UTC", date(2024, 3, 1)),
]  # fmt: skip
# More of them: BERTH_LIVES=10000 pytest tests/billing/test_random_lives.py, a second or so for each.
LIVES = int(os.environ.get("BERTH_LIVES", "20"))
USAGE = [
    i
    for i in INVARIANTS
    if i.name in {"usage_so_far", "usage_tiles", "usage_never_twice", "usage_in_its_month"}
]
ACTIONS = (
    "hear", "hear", "hear", "report", "meter", "meter", "lost", "expire", "release", "forget", "close", "wait",
)  # fmt: skip


class Life:
    """A few leases on two nodes, and what may happen to them."""

    def __init__(self, world: World, end: datetime, chance: random.Random) -> None:
        """Begin half an hour before the month's end, with a price change near it."""
        self.world, self.end, self.chance, self.now = world, end, chance, world.now
        self.period = period_of(world.now)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL session_replication_role = replica")  # it was set in its time
            for board in (H100, L40S):
                change = end + timedelta(seconds=chance.randint(-1500, 1500))
                model = DeviceModel.objects.get(slug=board)
                per_gib = chance.choice((0, 13_001))
                set_rate(
                    model=model, micro_per_hour=7, micro_per_gib_hour=per_gib, starts_at=change, actor=None,
                    now=world.now,
                )  # fmt: skip
            cursor.execute("SET LOCAL session_replication_role = origin")
        for flavor in ("h100-1g-10gb", "h100-3g-40gb", "l40s-quarter"):
            seconds = chance.choice((600, 1700, 4000))
            world.active("bob", flavor, at=self.now, duration_s=seconds)

    def step(self) -> str:
        """Let some time pass, and one thing happen."""
        self.now += timedelta(milliseconds=self.chance.choice((300, 5_000, 47_000, 400_000)))
        action = self.chance.choice(ACTIONS)
        getattr(self, f"_{action}")(self.chance.choice(list(Node.objects.order_by("id"))))
        return action

    def finish(self) -> None:
        """Let every node be heard, every lease end and every slice come clean."""
        self.now = max(self.now, self.end) + timedelta(hours=3)
        for node in Node.objects.order_by("id"):
            self._report(node)
        lifecycle.expire_due(now=self.now)
        lifecycle.interrupt_lost(now=self.now)
        self.world.gone(*Lease.objects.filter(state__in=("ending", "cleaning")), at=self.now)

    def _wait(self, node: Node) -> None:
        self.now += timedelta(seconds=self.chance.randint(1, 600))

    def _hear(self, node: Node) -> None:
        Node.objects.filter(pk=node.pk).update(last_seen_at=self.now)

    def _report(self, node: Node) -> None:
        with transaction.atomic():
            rows = Lease.objects.filter(node=node, state=LeaseState.INTERRUPTED).values_list("pk", flat=True)
            lifecycle.resume_leases(transitions.lock_leases(rows), at=self.now)
            self._hear(node)

    def _meter(self, node: Node) -> None:
        meter_all(now=self.now)

    def _lost(self, node: Node) -> None:
        lifecycle.interrupt_lost(now=self.now)

    def _expire(self, node: Node) -> None:
        lifecycle.expire_due(now=self.now)

    def _release(self, node: Node) -> None:
        lease = Lease.objects.filter(node=node).order_by("?").first()
        if lease is not None:
            lifecycle.release_lease(lease=lease, actor=self.world.user("bob"), now=self.now)

    def _forget(self, node: Node) -> None:
        reports.lose_forgotten(node.pk, seen_at=node.last_seen_at, now=self.now)
        self._hear(node)

    def _close(self, node: Node) -> None:
        if self.now >= self.end:
            with suppress(Conflict, PeriodClosed):
                close_period(period=self.period, actor=None, now=self.now)


@pytest.mark.django_db
@pytest.mark.parametrize("seed", deep_after(5, range(LIVES)))
def test_usage_is_never_more_and_in_the_end_all_of_the_active_time(seed: int) -> None:
    zone, first = ENDS[seed % len(ENDS)]
    lay_down(zone)
    end = ZoneMonths(zone).start(first)
    begin = end - timedelta(seconds=1800)
    life = Life(build_world(now=begin), end, random.Random(seed))
    assert (life.period.zone, life.period.ends_at) == (zone, end)

    told = []
    for _ in range(25):
        told.append(life.step())
        assert broken(USAGE) == [], told
    life.finish()
    meter_all(now=life.now)

    for lease in Lease.objects.all():
        intervals = active_intervals(events_by_lease([lease])[lease.pk])
        active = sum(int((i.ends_at - i.starts_at).total_seconds()) for i in intervals if i.ends_at)
        usage = UsageRecord.objects.filter(lease=lease).aggregate(n=Sum("seconds"))["n"] or 0
        assert (lease.state, usage) == (LeaseState.ENDED, active), told
    with suppress(PeriodClosed):
        close_period(period=life.period, actor=None, now=life.now)
    assert BillingPeriod.objects.get(pk=life.period.pk).state == "closed"
    assert [b.invariant.name for b in broken()] == []
