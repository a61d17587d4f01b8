from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timedelta
from fractions import Fraction

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation

from portal.advice import selectors
from portal.advice.dismissing import dismiss_advice, restore_advice
from portal.advice.selectors import advice_for_lease, advice_for_request
from portal.advice.sizing import SizeAdvice, SizeVerdict
from portal.advice.words import advice_text
from portal.catalog.discounts import add_discount
from portal.catalog.models import Flavor, Rate
from portal.leases.models import Lease, LeaseRequest
from portal.leases.requests import RequestSpec, quote_of, spec_of
from portal.telemetry.models import HourRollup, MinuteRollup
from portal.telemetry.runs import runs_of
from tests.portal.builders import H100, World, make_flavor

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def ran(world: World, *, minutes: int = 60, name: str = "", flavor: str = "h100", ago: int = 0) -> Lease:
    """Return a lease of bob's that ended ``ago`` minutes before now and began on a full minute."""
    begin = world.now.replace(second=0) - (minutes + ago + 5) * MINUTE
    lease = world.ended("bob", flavor, seconds=minutes * 60, at=begin, duration_s=minutes * 60)
    LeaseRequest.objects.filter(pk=lease.request_id).update(name=name)
    return lease


def measure(
    lease: Lease,
    *,
    memory: int | None = 8_000,
    sm: float | None = 5.0,
    util: float | None = 12.0,
    samples: int = 60,
    skip: int = -1,
) -> None:
    """Store the minutes of an ended lease, but for one."""
    assert lease.activated_at is not None
    assert lease.ended_at is not None
    at = lease.activated_at.replace(second=0, microsecond=0)
    rows = []
    while at < lease.ended_at:
        rows.append(
            MinuteRollup(
                lease_id=lease.pk,
                minute=at,
                samples=samples,
                util_mean=util,
                memory_max_mib=memory,
                sm_mean=sm,
            )
        )
        at += MINUTE
    MinuteRollup.objects.bulk_create([row for n, row in enumerate(rows) if n != skip])


def advised(lease: Lease, *, now: datetime | None = None) -> SizeAdvice:
    found = advice_for_lease(
        Lease.objects.select_related("team", "flavor__device_model", "request__flavor").get(pk=lease.pk),
        now=now or timezone.now(),
    )
    assert found is not None
    return found


def test_a_lease_that_needed_a_slice_is_told_which_and_what_it_saves(world: World) -> None:
    lease = ran(world)
    measure(lease)

    found = advised(lease)

    small, rate = Flavor.objects.get(slug="h100-1g-10gb"), Rate.objects.get(device_model__slug="h100-80gb")
    cents = int(Fraction(small.share_milli * 3600 * rate.micro_per_hour, 3_600_000) / 10_000 + Fraction(1, 2))
    assert found.verdict == SizeVerdict.SMALLER
    assert found.size is not None
    assert (found.size.flavor, found.seconds, found.currency) == (small, 3600, "EUR")
    assert found.saved_micro == rate.micro_per_hour - cents * 10_000
    assert found.speed_percent == 12
    assert "of 79.6 GiB used at most, 5 % of it at work on average (one lease)." in advice_text(found)
    assert f"H100 slice 10 GB costs {found.saved_percent} % less" in advice_text(found)


def test_the_highest_peak_counts_that_one_minute_had(world: World) -> None:
    lease = ran(world)
    measure(lease, skip=30)
    MinuteRollup.objects.create(
        lease_id=lease.pk, minute=lease.activated_at.replace(second=0, microsecond=0) + 30 * MINUTE,  # type: ignore[union-attr]
        samples=60, util_mean=12.0, sm_mean=5.0, memory_max_mib=9_000,
    )  # fmt: skip

    found = advised(lease)

    # 9,000 MiB and the margin are above the 9,984 of the small slice.
    assert found.size is not None
    assert (found.need.peak_mib, found.need.memory_mib, found.size.flavor.slug) == (
        9_000,
        10_024,
        "h100-3g-40gb",
    )


@pytest.mark.parametrize(
    ("how", "verdict"),
    [
        ({"skip": 20}, SizeVerdict.NOT_MEASURED),
        ({"samples": 44}, SizeVerdict.NOT_MEASURED),
        ({"memory": None}, SizeVerdict.NOT_MEASURED),
        ({"sm": None, "util": None}, SizeVerdict.NOT_MEASURED),
        ({"sm": 1.0}, SizeVerdict.UNUSED),
        ({"memory": 70_000}, SizeVerdict.FITS),
    ],
)
def test_what_is_unknown_or_fits_is_said_and_nothing_is_advised(
    world: World, how: dict[str, float | None], verdict: SizeVerdict
) -> None:
    lease = ran(world)
    measure(lease, **how)  # type: ignore[arg-type]

    found = advised(lease)

    assert (found.verdict, found.size, found.saved_micro) == (verdict, None, 0)
    assert advice_text(found)


def test_a_short_lease_an_unpriced_one_and_parts_of_gangs_get_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, lease = ran(world, minutes=14, ago=90), ran(world)
    measure(short)
    measure(lease)

    assert advised(short).verdict == SizeVerdict.TOO_SHORT

    monkeypatch.setattr(selectors, "rates_by_model", lambda _models: defaultdict(list))
    assert advised(lease).verdict == SizeVerdict.NO_PRICE
    lease.request.nodes = 2
    assert advice_for_lease(lease, now=world.now) is None


def test_what_the_team_may_not_ask_for_is_not_advised(world: World) -> None:
    lease = ran(world)
    measure(lease)
    Flavor.objects.filter(slug="h100-1g-10gb").update(is_active=False)
    assert advised(lease).size.flavor.slug == "h100-3g-40gb"  # type: ignore[union-attr]

    # What the same work takes there is longer than this flavor may be had for.
    Flavor.objects.filter(slug="h100-3g-40gb").update(max_duration_s=3600)

    assert advised(lease).verdict == SizeVerdict.FITS


def test_many_sizes_are_priced_with_as_many_queries_as_two(world: World) -> None:
    lease = ran(world)
    measure(lease)
    add_discount(name="night", off_milli=500, actor=None, now=timezone.now())
    later = timezone.now() + timedelta(minutes=5)

    def cost(held: Lease) -> tuple[SizeAdvice, int]:
        with CaptureQueriesContext(connection) as asked:
            found = advised(held, now=later)
        return found, len(asked)

    few, queries = cost(lease)
    for number in range(5):
        make_flavor(f"more-{number}", f"More {number}", H100, "mig", "3g.40gb")
    many, more_queries = cost(lease)

    assert (many.size, many.held) == (few.size, few.held)
    assert many.held is not None
    spec = replace(spec_of(lease.request), count=lease.count, duration_s=many.seconds)
    assert many.held.amount_micro == quote_of(lease.team, lease.flavor, spec, now=later).amount_micro
    assert more_queries == queries


def test_hours_tell_the_same_once_the_minutes_are_gone_and_tell_what_was_lost(world: World) -> None:
    lease = ran(world, minutes=90)
    assert lease.activated_at is not None
    assert lease.ended_at is not None
    life = {lease.pk: (lease.activated_at, lease.ended_at)}
    hour = lease.activated_at.replace(minute=0, second=0, microsecond=0)
    while hour < lease.ended_at:
        inside = min(hour + 60 * MINUTE, lease.ended_at) - max(hour, lease.activated_at)
        HourRollup.objects.create(
            lease_id=lease.pk, hour=hour, minutes=inside // MINUTE, util_mean=20.0, memory_max_mib=8_000
        )
        hour += 60 * MINUTE

    whole = runs_of(life)[lease.pk]
    HourRollup.objects.order_by("hour").filter(minutes__gt=1).first().delete()  # type: ignore[union-attr]

    assert (whole.is_whole, whole.due_min, whole.known_min, whole.activity, whole.signal) == (
        True, 90, 90, 0.2, "util",
    )  # fmt: skip
    assert not runs_of(life)[lease.pk].is_whole


def test_who_asks_again_is_told_from_leases_of_that_name_and_may_dismiss_it(world: World) -> None:
    bob, team, flavor = world.user("bob"), world.team("perception"), world.flavors["h100"]
    big, small, second = (
        ran(world, name="big", ago=200), ran(world, name="probe", ago=120), ran(world, name="probe")
    )  # fmt: skip
    measure(big, memory=70_000)
    measure(small)
    measure(second, memory=8_500)

    def asked(name: str) -> SizeAdvice | None:
        spec = RequestSpec("h100", 7200, name=name)
        return advice_for_request(bob, team, flavor, spec, now=timezone.now())

    named, unnamed = asked("probe"), asked("something new")
    assert named is not None
    assert unnamed is not None
    assert (named.need.runs, named.need.peak_mib, named.seconds) == (2, 8_500, 7200)
    assert named.size is not None
    assert "(2 leases)" in advice_text(named)
    assert (unnamed.verdict, unnamed.need.runs, unnamed.need.peak_mib) == (SizeVerdict.FITS, 3, 70_000)
    assert (
        advice_for_request(world.user("alice"), team, flavor, RequestSpec("h100", 60), now=world.now) is None
    )

    dismiss_advice(user=bob, flavor=flavor, now=world.now)
    dismiss_advice(user=bob, flavor=flavor, now=world.now)
    assert asked("probe") is None
    restore_advice(user=bob, flavor=flavor)
    assert asked("probe") is not None


def test_every_sentence_is_there_in_chinese(world: World) -> None:
    lease = ran(world)
    measure(lease)

    with translation.override("zh-hans"):
        said = advice_text(advised(lease))

    assert "costs" not in said
    assert "最多用了" in said
