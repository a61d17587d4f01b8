"""Sums of hours of energy by month and day: what the hours come to at any time, and nothing else writes them."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from portal.billing.books import verify_books
from portal.billing.energy import EnergyBy, energy_kept_otherwise, energy_of_month
from portal.billing.metering import meter_all
from portal.billing.models import EnergyDay, EnergyFactor, EnergyTotal, LeaseEnergy
from portal.billing.periods import period_of, set_month_zone
from portal.common.errors import Invalid
from portal.common.sql import execute
from portal.leases.models import Lease
from portal.teams.models import Team
from tests.emptying import PAST_TRIGGERS
from tests.portal.builders import World, build_world

AT = datetime(2026, 2, 5, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)
BOTH = [(2026, 2), (2026, 3)]


@pytest.fixture
def world(db: None) -> World:
    made = build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))
    for month in BOTH:
        period_of(datetime(*month, 2, tzinfo=UTC))
    return made


def hour(lease: Lease, at: datetime, *, site: str = "", mj: int = 3_600_000) -> LeaseEnergy:
    return LeaseEnergy.objects.create(
        lease=lease, begins=at, site=site, measured_s=3600, measured_mj=mj, estimated_s=0, estimated_mj=0
    )


def factor(kind: str, value_milli: int, begins: datetime, *, site: str = "") -> EnergyFactor:
    return EnergyFactor.objects.create(
        kind=kind, site=site, value_milli=value_milli, source="x", valid=(begins, None), created_at=AT
    )


def kept_otherwise() -> list[str]:
    return [
        what for month in BOTH for what in energy_kept_otherwise(period_of(datetime(*month, 2, tzinfo=UTC)))
    ]


@pytest.mark.parametrize("seed", range(3))
def test_sums_are_their_hours_whatever_is_written(world: World, seed: int) -> None:
    chance = random.Random(seed)
    leases = [
        world.ended(who, flavor, seconds=60, at=AT + n * HOUR, duration_s=3600)
        for n, (who, flavor) in enumerate((("bob", "h100"), ("bob", "h100-3g-40gb"), ("charlie", "h100")))
    ]
    begins = AT - timedelta(days=4)

    def write() -> None:
        hour(
            chance.choice(leases), begins + chance.randrange(40 * 24) * HOUR,
            site=chance.choice(("", "Hall A")), mj=chance.randrange(9**9),
        )  # fmt: skip

    def change() -> None:
        several = list(LeaseEnergy.objects.order_by("?")[:5].values_list("pk", flat=True))
        LeaseEnergy.objects.filter(pk__in=several).update(
            measured_mj=chance.randrange(9**9),
            estimated_s=9,
            estimated_mj=chance.randrange(9**9),
            site="Hall A",
        )

    def remove() -> None:
        LeaseEnergy.objects.filter(lease=chance.choice(leases), begins__gte=AT + timedelta(days=20)).delete()

    def learn() -> None:
        factor(
            chance.choice(("carbon", "pue")), chance.randrange(1000, 9999), begins + chance.randrange(900) * HOUR,
            site=chance.choice(("", "Hall A")),
        )  # fmt: skip

    steps: list[Callable[[], None]] = [write] * 30 + [change] * 3 + [remove] + [learn] * 3
    chance.shuffle(steps)
    for step in steps:
        try:
            with transaction.atomic():
                step()
        except IntegrityError:  # an hour that is there already, or a factor beside another
            continue

    assert LeaseEnergy.objects.exists()
    assert kept_otherwise() == []
    LeaseEnergy.objects.all().delete()
    assert (EnergyTotal.objects.count(), EnergyDay.objects.count()) == (0, 0)


def test_an_upgrade_adds_up_the_hours_that_are_there(world: World) -> None:
    lease = world.ended("bob", "h100", seconds=3600, at=AT)
    for n in range(3):
        hour(lease, AT + n * HOUR)
    factor("carbon", 400_000, AT + HOUR)
    factor("pue", 1_500, AT)
    before = list(
        EnergyDay.objects.values("day", "hours", "measured_mj", "factored", "carbon", "no_factor_mj")
    )
    fill = importlib.import_module("portal.billing.migrations.0029_energy_sums").FILL

    execute("SET CONSTRAINTS ALL IMMEDIATE")
    execute(PAST_TRIGGERS)
    execute("DELETE FROM billing_energyday; DELETE FROM billing_energytotal")
    execute("DELETE FROM billing_billingperiod")
    execute("SET LOCAL session_replication_role = origin")
    for table in ("energyday", "energytotal"):  # their guards come after the fill
        execute(f"ALTER TABLE billing_{table} DISABLE TRIGGER billing_energy_sums_follow")
    execute(fill)

    assert (
        list(EnergyDay.objects.values("day", "hours", "measured_mj", "factored", "carbon", "no_factor_mj"))
        == before
    )
    assert before[0]["carbon"] == 2 * 3_600_000 * 400_000 * 1_500
    assert energy_kept_otherwise(period_of(AT)) == []


def test_nothing_but_hours_writes_their_sums(world: World) -> None:
    lease = world.ended("bob", "h100", seconds=3600, at=AT)
    hour(lease, AT)
    meter_all(now=world.now)
    execute("SET CONSTRAINTS ALL IMMEDIATE")

    for statement in (
        "UPDATE billing_energytotal SET measured_mj = 1", "UPDATE billing_energyday SET day = day + 1",
        "DELETE FROM billing_energyday", "TRUNCATE billing_energytotal CASCADE",
    ):  # fmt: skip
        with pytest.raises(IntegrityError), transaction.atomic():
            execute(statement)
    with pytest.raises(IntegrityError), transaction.atomic():
        hour(lease, AT - timedelta(days=400))
    for table in ("energyday", "energytotal"):
        with transaction.atomic():
            execute(PAST_TRIGGERS)
            execute(f"UPDATE billing_{table} SET estimated_mj = estimated_mj + 1")
        wrong = {check.name for check in verify_books(period_of(AT), now=world.now) if check.wrong}
        assert wrong == {"energy_sums_are_hours"}
        with transaction.atomic():
            execute(PAST_TRIGGERS)
            execute(f"UPDATE billing_{table} SET estimated_mj = estimated_mj - 1")
    assert not [check for check in verify_books(period_of(AT), now=world.now) if check.wrong]


def test_days_begin_at_midnight_where_the_month_is_even_where_it_comes_twice(db: None) -> None:
    """In Havana clocks go back from one to midnight on 1 November 2026: the day begins with the first of both."""
    world = build_world(now=datetime(2026, 10, 10, 9, tzinfo=UTC))
    set_month_zone(zone="America/Havana", since=None, actor=None, now=datetime(2026, 10, 10, tzinfo=UTC))
    begin = datetime(2026, 11, 1, 4, tzinfo=UTC)
    lease = world.ended("bob", "h100", seconds=3600, at=datetime(2026, 10, 9, 9, tzinfo=UTC))
    period_of(begin - HOUR)
    period_of(begin)
    for n in range(-2, 27):
        hour(lease, begin + n * HOUR)

    days = EnergyDay.objects.order_by("day").values_list("day", "hours")

    assert [(str(day), n) for day, n in days] == [("2026-10-31", 2), ("2026-11-01", 25), ("2026-11-02", 2)]
    assert [energy_kept_otherwise(period_of(begin + n * HOUR)) for n in (-1, 0)] == [[], []]
    with pytest.raises(Invalid):
        set_month_zone(zone="UTC", since=period_of(begin).month, actor=None, now=world.now)


def test_what_is_held_is_the_same_before_and_after_it_is_metered(world: World) -> None:
    world.ended("bob", "h100", seconds=3600, at=AT)
    world.ended("charlie", "h100-3g-40gb", seconds=1800, at=AT.replace(hour=23, minute=45), duration_s=3600)
    teams = list(Team.objects.all())

    def held() -> dict[str, list[tuple[str, int]]]:
        return {
            by: [
                (row.key, row.figures.held_s)
                for row in energy_of_month(period_of(AT), teams, by=by, now=world.now)[0]
            ]
            for by in EnergyBy
        }

    before = held()
    assert meter_all(now=world.now) == 2

    assert held() == before
    assert before[EnergyBy.DAY] == [("2026-02-05", 4500), ("2026-02-06", 900)]
    assert sorted(before[EnergyBy.PERSON]) == [("bob", 3600), ("charlie", 1800)]


def test_a_page_of_energy_reads_no_hours(world: World) -> None:
    hour(world.ended("bob", "h100", seconds=3600, at=AT), AT)
    meter_all(now=world.now)
    teams = list(Team.objects.all())
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE billing_leaseenergy RENAME TO out_of_reach")

    for by in EnergyBy:
        _rows, whole = energy_of_month(period_of(AT), teams, by=by, now=world.now)
        assert (whole.measured_mj, whole.held_s) == (3_600_000, 3600)
