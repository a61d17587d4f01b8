"""Energy and carbon: each lease has its share of what was measured, and what nobody measured stays unknown."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import IntegrityError, connection, transaction

from portal.billing.charges import charges_of
from portal.billing.closing import close_period
from portal.billing.energy import (
    RECORD_ENERGY,
    EnergyBasis,
    EnergyBy,
    EnergyFigures,
    energy_of_lease,
    energy_of_lines,
    energy_of_month,
    refused_counters,
    roll_up_energy,
)
from portal.billing.energy_factors import add_factor, end_factor, import_factors
from portal.billing.focus import write_focus
from portal.billing.metering import meter_all
from portal.billing.models import EnergyFactor, LeaseEnergy, UsageRecord
from portal.billing.periods import period_of, set_month_zone
from portal.common.errors import Conflict, Invalid
from portal.common.sql import fetch
from portal.fleet.models import Node
from portal.leases.models import Lease
from portal.teams.models import Team
from portal.telemetry.models import MinuteRollup
from tests.portal.builders import World, build_world

AT = datetime(2026, 2, 5, 9, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
MINUTE_MJ = 36_000_000  # of 600 W


@pytest.fixture
def world(db: None) -> World:
    return build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))


def minutes(
    lease: Lease, count: int = 60, *, mj: int | None = MINUTE_MJ, power: float | None = None, at: datetime = AT,
    samples: int = 60,
) -> None:  # fmt: skip
    device = lease.placements.get().device_id
    for n in range(count):
        MinuteRollup.objects.update_or_create(
            device_id=device, minute=at + n * MINUTE,
            defaults={"samples": samples, "energy_mj": mj, "power_mean_w": power},
        )  # fmt: skip


def rolled(lease: Lease, *, until: datetime = AT + HOUR + 5 * MINUTE) -> EnergyFigures:
    roll_up_energy(now=until)
    lease.refresh_from_db()
    return energy_of_lease(lease, now=until)


def factor(
    kind: str, value: str, site: str = "", at: datetime = datetime(2026, 2, 1, tzinfo=UTC)
) -> EnergyFactor:
    return add_factor(
        kind=kind, site=site, value=Decimal(value), source="operator of the grid", starts_at=at, ends_at=None,
        actor=None,
    )  # fmt: skip


def test_a_whole_device_is_measured_by_its_counter(world: World) -> None:
    lease = world.ended("bob", "h100", seconds=3600, at=AT)
    minutes(lease)

    found = rolled(lease)

    assert (found.basis, found.kwh, found.unknown_s) == (EnergyBasis.MEASURED, 0.6, 0)
    assert (found.carbon_mg, found.no_factor_mj) == (None, 60 * MINUTE_MJ)


def test_a_slice_has_its_share_of_its_device_as_an_estimate_and_the_rest_is_nobody_s(world: World) -> None:
    lease = world.ended("bob", "h100-3g-40gb", seconds=3600, at=AT)
    minutes(lease)

    found = rolled(lease)

    share = lease.placements.get().share_milli
    assert 0 < share < 1000
    assert (found.basis, found.unknown_s) == (EnergyBasis.ESTIMATED, 0)
    assert found.estimated_mj == 60 * MINUTE_MJ * share // 1000
    assert LeaseEnergy.objects.count() == 1


def test_leases_on_one_device_never_get_more_than_it_used(world: World) -> None:
    slices = [world.active("bob", "h100-1g-10gb", at=AT, duration_s=9000) for _n in range(7)]
    device = slices[0].placements.get().device_id
    assert {lease.placements.get().device_id for lease in slices} == {device}
    for lease in slices:
        lease.placements.update(share_milli=200)  # together 1400 thousandths
    minutes(slices[0])

    found = [rolled(lease) for lease in slices]

    assert sum(one.estimated_mj for one in found) == pytest.approx(60 * MINUTE_MJ, abs=7)


def test_leases_that_follow_each_other_within_a_minute_share_it_by_their_seconds(world: World) -> None:
    first = world.ended("bob", "h100", seconds=1830, at=AT)
    second = world.active("bob", "h100", at=AT + timedelta(seconds=1845), duration_s=3600)
    device = first.placements.get().device_id
    second.placements.update(device_id=device)
    minutes(first)

    assert rolled(first).measured_mj == pytest.approx(30.5 * MINUTE_MJ, abs=1)
    assert rolled(second).measured_mj == pytest.approx((29 + 15 / 60) * MINUTE_MJ, abs=1)


def test_where_a_device_has_no_counter_its_power_makes_an_estimate(world: World) -> None:
    lease = world.ended("bob", "h100", seconds=3600, at=AT)
    minutes(lease, mj=None, power=300.0)

    found = rolled(lease)

    assert (found.basis, found.kwh) == (EnergyBasis.ESTIMATED, 0.3)


def test_what_was_not_measured_is_unknown_and_never_zero(world: World) -> None:
    silent = world.ended("bob", "h100", seconds=3600, at=AT)
    half = world.ended("charlie", "h100", seconds=3600, at=AT + 2 * HOUR)
    minutes(half, 30, at=AT + 2 * HOUR)
    minutes(half, 1, at=AT + 2 * HOUR + 30 * MINUTE, samples=15, mj=MINUTE_MJ // 4)
    minutes(half, 1, at=AT + 2 * HOUR + 31 * MINUTE, mj=None)

    nothing, some = rolled(silent), rolled(half, until=AT + 3 * HOUR + 5 * MINUTE)

    assert (nothing.basis, nothing.kwh, nothing.carbon_g, nothing.unknown_s) == (
        EnergyBasis.UNKNOWN, None, None, 3600,
    )  # fmt: skip
    assert (some.basis, some.unknown_s) == (EnergyBasis.MEASURED, 3600 - 30 * 60 - 15)
    assert energy_of_lease(Lease(), now=AT) == EnergyFigures()


def test_hours_are_made_anew_until_all_minutes_are_in(world: World) -> None:
    lease = world.ended("bob", "h100", seconds=3600, at=AT)
    minutes(lease, 20)
    assert rolled(lease, until=AT + 20 * MINUTE).measured_s == 20 * 60
    minutes(lease, 60)

    assert rolled(lease).kwh == 0.6
    MinuteRollup.objects.all().delete()
    assert rolled(lease).kwh == 0.6  # fewer minutes never replace more


def test_carbon_is_energy_times_pue_times_the_factor_of_its_site_and_hour(world: World) -> None:
    Node.objects.update(site="Hall A")
    lease = world.ended("bob", "h100", seconds=7200, at=AT, duration_s=9000)
    minutes(lease, 120)
    factor("pue", "1.25")
    factor("carbon", "400")
    import_factors(
        "kind,site,from,until,value,source\n"
        f"carbon,Hall A,{(AT + HOUR).isoformat()},{(AT + 2 * HOUR).isoformat()},100.5,the grid's hours\n",
        actor=None,
    )

    found = rolled(lease, until=AT + 2 * HOUR + 5 * MINUTE)

    assert found.carbon_g == pytest.approx(0.6 * 1.25 * 400 + 0.6 * 1.25 * 100.5)
    assert found.no_factor_mj == 0


def test_without_a_pue_carbon_is_unknown(world: World) -> None:
    lease = world.ended("bob", "h100", seconds=3600, at=AT)
    minutes(lease)
    factor("carbon", "400")

    found = rolled(lease)

    assert (found.carbon_g, found.no_factor_mj) == (None, 60 * MINUTE_MJ)


def test_a_month_adds_up_to_the_same_by_team_person_model_and_day(world: World) -> None:
    for who, day in (("bob", 5), ("charlie", 6)):
        at = AT.replace(day=day)
        lease = world.ended(who, "h100", seconds=3600, at=at)
        minutes(lease, at=at)
        roll_up_energy(now=at + HOUR)
    world.ended("bob", "l40s-quarter", seconds=3600, at=AT.replace(day=7))
    factor("carbon", "400")
    factor("pue", "1.5")
    teams = list(Team.objects.all())

    lists = {by: energy_of_month(period_of(AT), teams, by=by, now=world.now) for by in EnergyBy}

    wholes = {whole for _rows, whole in lists.values()}
    assert len(wholes) == 1
    (whole,) = wholes
    assert (whole.kwh, whole.held_s, whole.unknown_s) == (1.2, 3 * 3600, 3600)
    assert whole.carbon_g == pytest.approx(1.2 * 400 * 1.5)
    assert {row.key: row.figures.kwh for row in lists[EnergyBy.PERSON][0]} == {"bob": 0.6, "charlie": 0.6}
    assert [row.figures.kwh for row in lists[EnergyBy.DEVICE_MODEL][0]] == [1.2, None]
    assert {row.key: row.figures.kwh for row in lists[EnergyBy.TEAM][0]} == {
        "perception": 0.6,
        "language": 0.6,
    }
    assert [(row.key, row.figures.kwh) for row in lists[EnergyBy.DAY][0]] == [
        ("2026-02-05", 0.6), ("2026-02-06", 0.6), ("2026-02-07", None),
    ]  # fmt: skip
    (only, _rest) = energy_of_month(period_of(AT), teams, by=EnergyBy.PERSON, person="bob", now=world.now)
    assert [row.key for row in only] == ["bob"]


def test_an_hour_in_which_a_month_begins_is_cut_there(db: None) -> None:
    begin = datetime(2026, 3, 31, 18, 30, tzinfo=UTC)  # midnight of April in India
    world = build_world(now=begin - HOUR / 2)
    set_month_zone(zone="Asia/Kolkata", since=None, actor=None, now=datetime(2026, 3, 10, tzinfo=UTC))
    lease = world.ended("bob", "h100", seconds=3600, at=begin - HOUR / 2)
    minutes(lease, at=begin - HOUR / 2)

    rolled(lease, until=begin + 35 * MINUTE)

    teams = list(Team.objects.all())
    for at in (begin - HOUR, begin):
        _rows, whole = energy_of_month(period_of(at), teams, by=EnergyBy.TEAM, now=begin + HOUR)
        assert (whole.kwh, whole.held_s) == (0.3, 1800)


def test_a_closed_month_keeps_its_energy_and_its_factors(world: World) -> None:
    lease = world.ended("bob", "h100", seconds=3600, at=AT)
    minutes(lease)
    rolled(lease)
    kept = factor("carbon", "400")
    meter_all(now=world.now)
    for month in (period_of(AT - timedelta(days=31)), period_of(AT)):
        close_period(period=month, actor=None, now=world.now)
    before = list(LeaseEnergy.objects.values())

    minutes(lease, mj=2 * MINUTE_MJ)
    roll_up_energy(now=AT + HOUR + 5 * MINUTE)

    assert list(LeaseEnergy.objects.values()) == before
    for change in (
        lambda: LeaseEnergy.objects.update(measured_mj=1),
        lambda: LeaseEnergy.objects.all().delete(),
        lambda: LeaseEnergy.objects.create(
            lease=lease, begins=AT - HOUR, measured_s=1, measured_mj=1, estimated_s=0, estimated_mj=0
        ),
        lambda: EnergyFactor.objects.filter(pk=kept.pk).update(value_milli=1),
        lambda: EnergyFactor.objects.filter(pk=kept.pk).update(valid=(AT, None)),
        lambda: EnergyFactor.objects.filter(pk=kept.pk).update(valid=(kept.valid.lower, AT)),
        lambda: EnergyFactor.objects.all().delete(),
        lambda: EnergyFactor.objects.create(
            kind="pue", value_milli=1200, source="x", valid=(AT, None), created_at=world.now
        ),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            change()
    with pytest.raises(Invalid) as refused:
        factor("pue", "1.2")
    assert "starts_at" in refused.value.fields


def test_a_factor_that_follows_ends_the_one_before_it(world: World) -> None:
    first = factor("carbon", "400")
    later = add_factor(
        kind="carbon", site="", value=Decimal("350.25"), source="x",
        starts_at=datetime(2100, 1, 1, tzinfo=UTC), ends_at=None, actor=None,
    )  # fmt: skip
    first.refresh_from_db()
    assert first.valid.upper == later.valid.lower
    assert later.value_milli == 350_250

    assert end_factor(key=later.pk, actor=None) is None
    now = add_factor(
        kind="pue", site="", value=Decimal("1.3"), source="x", starts_at=None, ends_at=None, actor=None
    )
    following = add_factor(
        kind="pue", site="", value=Decimal("1.2"), source="x", starts_at=None, ends_at=None, actor=None
    )
    now.refresh_from_db()
    assert now.valid.upper == following.valid.lower
    with pytest.raises(Conflict):
        factor("pue", "1.1", at=AT)
    ended = end_factor(key=following.pk, actor=None)
    assert ended is not None
    assert ended.valid.upper is not None
    with pytest.raises(Conflict):
        end_factor(key=following.pk, actor=None)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("carbon", "-1"), ("carbon", "5000.1"), ("carbon", "NaN"), ("carbon", "1e90"), ("carbon", "9e999999"),
     ("carbon", "1.0001"),
     ("pue", "0.9"), ("pue", "11"), ("heat", "1")],
)  # fmt: skip
def test_absurd_factors_are_refused(world: World, kind: str, value: str) -> None:
    with pytest.raises(Invalid):
        factor(kind, value)
    assert not EnergyFactor.objects.exists()


HEAD = "kind,site,from,until,value,source\n"
GOOD = "carbon,,2026-02-01T00:00:00Z,2026-02-01T01:00:00Z,400,grid\n"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "csv"),
        (HEAD, "csv"),
        ("kind,value\n", "csv"),
        (HEAD + GOOD + "carbon,,2026-02-01T01:00:00Z,,abc,grid\n", "line 3"),
        (HEAD + GOOD + "carbon,,2026-02-01T01:00:00,,1,grid\n", "line 3"),
        (HEAD + GOOD + "carbon,,2026-02-31T01:00:00Z,,1,grid\n", "line 3"),
        (HEAD + GOOD + "carbon,,2026-02-01T01:00:00Z,,1e99,grid\n", "line 3"),
        (HEAD + GOOD + "carbon,,2026-02-01T01:00:00Z,,9e999999,grid\n", "line 3"),
        (HEAD + GOOD + "carbon,,2026-02-01T01:00:00Z,9999-12-31T23:59:59-14:00,1,grid\n", "line 3"),
        (HEAD + GOOD + "carbon,,2026-02-01T00:30:00Z,,300,grid\n", "line 3"),
        (HEAD + GOOD + "carbon,,2026-02-01T02:00:00Z,2026-02-01T01:00:00Z,300,grid\n", "line 3"),
        (HEAD + GOOD + "carbon,,2026-02-01T02:00:00Z,,300,\n", "line 3"),
        (HEAD + GOOD + "carbon,2026-02-01T02:00:00Z,300\n", "line 3"),
        (HEAD + GOOD + 'carbon,"a"b,2026-02-01T02:00:00Z,,300,x\n', "csv"),
        (HEAD + GOOD + "car\0bon\n", "line 3"),
    ],
)
def test_a_file_with_one_wrong_line_adds_nothing_and_names_it(world: World, text: str, place: str) -> None:
    with pytest.raises(Invalid) as refused:
        import_factors(text, actor=None)

    assert list(refused.value.fields) == [place]
    assert not EnergyFactor.objects.exists()


def test_a_trial_of_a_file_adds_nothing(world: World) -> None:
    assert len(import_factors(HEAD + GOOD, actor=None, is_trial=True)) == 1
    assert not EnergyFactor.objects.exists()
    assert len(import_factors("\ufeff" + HEAD + GOOD, actor=None)) == 1
    with pytest.raises(Invalid):
        import_factors(HEAD + GOOD, actor=None)
    assert EnergyFactor.objects.count() == 1


def test_counters_that_could_not_be_true_are_named(world: World) -> None:
    lease = world.ended("bob", "h100", seconds=3600, at=AT)
    minutes(lease, 2)
    MinuteRollup.objects.update(energy_refused=3)

    (named,) = refused_counters(since=AT - HOUR)

    device = lease.placements.get().device
    assert (named.node, named.index, named.seconds, named.at) == (
        device.node.name,
        device.index,
        6,
        AT + MINUTE,
    )


def test_lines_and_focus_have_the_energy_of_their_leases_and_no_more(world: World) -> None:
    factor("carbon", "400")
    factor("pue", "1.5")
    for who, day in (("bob", 5), ("charlie", 6)):
        at = AT.replace(day=day)
        minutes(world.ended(who, "h100", seconds=3600, at=at), at=at)
        roll_up_energy(now=at + HOUR)
    meter_all(now=world.now)
    period, teams = period_of(AT), list(Team.objects.all())

    lines = energy_of_lines(period)
    file = io.BytesIO()
    write_focus(file, period, charges_of(period, teams))

    rows = list(csv.DictReader(io.StringIO(file.getvalue().decode())))
    _listed, whole = energy_of_month(period, teams, by=EnergyBy.TEAM, now=world.now)
    assert whole.kwh == 1.2
    assert sum(one.kwh or 0 for one in lines.values()) == pytest.approx(1.2)
    assert sum(float(row["x_EnergyKwh"]) for row in rows) == pytest.approx(1.2)
    assert sum(float(row["x_CarbonGrams"]) for row in rows) == pytest.approx(whole.carbon_g)
    assert {row["x_EnergyBasis"] for row in rows} == {"measured"}


def test_an_hour_is_parted_among_usage_records_by_their_seconds(world: World) -> None:
    lease = world.ended("bob", "h100", seconds=3600, at=AT)
    minutes(lease)
    roll_up_energy(now=AT + HOUR + 5 * MINUTE)
    meter_all(now=world.now)
    (one,) = UsageRecord.objects.filter(lease=lease)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE; ALTER TABLE billing_usagerecord DISABLE TRIGGER USER")
    UsageRecord.objects.filter(pk=one.pk).update(
        span=(AT, AT + 15 * MINUTE), seconds=900, share_milli_seconds=900_000
    )
    one.pk, one.span, one.seconds, one.share_milli_seconds = (
        None,
        (AT + 15 * MINUTE, AT + HOUR),
        2700,
        2_700_000,
    )
    one.save()

    month = period_of(AT)
    sql = RECORD_ENERGY.format(
        period="%(period)s", since="%(since)s::timestamptz", until="%(until)s::timestamptz"
    )
    parts = fetch(sql, {"period": month.pk, "since": month.starts_at, "until": month.ends_at})

    assert sorted(int(row[2]) for row in parts) == [15 * MINUTE_MJ, 45 * MINUTE_MJ]
