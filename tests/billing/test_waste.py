"""Waste in money: only what is known counts, and what is unknown is said."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from portal.billing.metering import meter_all
from portal.billing.periods import period_of
from portal.billing.waste import CHARGED, WasteBy, WasteRow, waste_of
from portal.common.sql import fetch
from portal.leases.models import Lease
from portal.leases.states import EndReason
from portal.teams.models import Team
from portal.telemetry.models import HourRollup
from tests.portal.builders import World, build_world

AT = datetime(2026, 2, 5, 9, tzinfo=UTC)


@pytest.fixture
def world(db: None) -> World:
    return build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))


def ran(world: World, who: str = "bob", flavor: str = "h100-3g-40gb", day: int = 5, **more: object) -> Lease:
    lease = world.ended(who, flavor, seconds=7200, at=AT.replace(day=day), duration_s=9000)
    if more:
        Lease.objects.filter(pk=lease.pk).update(**more)
    meter_all(now=world.now)
    return lease


def measured(lease: Lease, util: float, *, hours: int = 2, memory_mib: int | None = None) -> None:
    for n in range(hours):
        HourRollup.objects.create(
            lease_id=lease.pk, hour=lease.activated_at + timedelta(hours=n), minutes=60, util_mean=util,
            memory_max_mib=memory_mib,
        )  # fmt: skip


def wasted(world: World, by: WasteBy = WasteBy.PERSON) -> dict[str, WasteRow]:
    rows, whole = waste_of(period_of(AT), list(Team.objects.all()), by=by, now=world.now)
    assert sum(row.charged_micro for row in rows) == whole.charged_micro
    return {row.key: row for row in rows}


def test_what_was_held_and_did_nothing_is_counted_as_far_as_it_was_measured(world: World) -> None:
    measured(ran(world), 25.0, hours=1)
    ran(world, "charlie")

    found = wasted(world)

    bob, charlie = found["bob"], found["charlie"]
    assert bob.idle_micro == bob.charged_micro * 3 // 8
    assert bob.unmeasured_micro == bob.charged_micro // 2
    assert (charlie.idle_micro, charlie.unmeasured_micro) == (0, charlie.charged_micro)
    assert charlie.unseen_micro == charlie.charged_micro
    assert set(wasted(world, WasteBy.TEAM)) == {"perception", "language"}


def test_a_failed_lease_is_failed_and_nothing_else(world: World) -> None:
    lease = ran(world, end_reason=EndReason.FAULT)
    measured(lease, 0.0, memory_mib=1)

    bob = wasted(world)["bob"]

    assert bob.failed_micro == bob.charged_micro > 0
    assert (bob.idle_micro, bob.unmeasured_micro, bob.memory_micro, bob.unseen_micro) == (0, 0, 0, 0)


@pytest.mark.parametrize(("peak", "is_waste"), [(9_000, True), (30_000, False)])
def test_memory_beyond_what_the_next_smaller_size_holds_is_waste(
    world: World, peak: int, is_waste: bool
) -> None:
    lease = ran(world)
    measured(lease, 100.0, memory_mib=peak)
    small, own = world.flavors["h100-1g-10gb"], world.flavors["h100-3g-40gb"]

    bob = wasted(world)["bob"]

    part = 1 - small.share_milli / own.share_milli if is_waste else 0
    assert bob.memory_micro == pytest.approx(bob.charged_micro * part, abs=1)
    assert bob.unseen_micro == 0


def test_a_booking_that_is_not_used_counts_at_its_price_and_is_not_billed(world: World) -> None:
    lease = ran(world, day=6)
    event = lease.events.order_by("at", "id").first()
    assert event is not None

    rows, whole = waste_of(period_of(AT), [world.team("perception")], by=WasteBy.TEAM, now=world.now)

    assert whole.reserved_micro == 0
    assert [row.key for row in rows] == ["perception"]
    assert waste_of(period_of(AT), [], by=WasteBy.TEAM, now=world.now)[0] == []


def test_hours_are_looked_up_lease_by_lease_however_few_leases_are_expected(world: World) -> None:
    ran(world)
    period = period_of(AT)
    given = {
        "period": period.pk, "teams": [team.pk for team in Team.objects.all()],
        "since": period.starts_at, "until": period.ends_at,
    }  # fmt: skip

    plan = "\n".join(line for (line,) in fetch(f"EXPLAIN {CHARGED}", given))

    assert plan.count("CTE Scan on cost") == 1, "else all hours are added up again for each lease"
    assert "(lease_id = c.lease_id)" in plan
