"""Who lets others preempt a lease pays less, and quote, meter, usage and invoice agree on how much."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.billing.closing import close_period
from portal.billing.metering import meter_all
from portal.billing.models import InvoiceLine, UsageRecord, UsageTotal
from portal.billing.selectors import cost_and_price, draft_lines, period_of
from portal.catalog.models import Flavor
from portal.catalog.pricing import lowered, paid_milli, quote
from portal.common.invariants import broken
from portal.leases import lifecycle
from portal.leases.models import Lease, LeaseRequest
from tests.portal.builders import PRICES, World, build_world

FEBRUARY = datetime(2026, 2, 3, 9, tzinfo=UTC)


@given(st.integers(0, 10**12), st.integers(0, 1000))
def test_a_lowered_price_is_never_above_its_part_and_misses_it_by_less_than_a_micro_unit(
    price: int, part: int
) -> None:
    assert 0 <= price * part - lowered(price, part) * 1000 < 1000


def cheap_lease(world: World, at: datetime) -> Lease:
    """A lease that pays 600 thousandths, active for an hour from ``at`` and clean."""
    request = world.submit("bob", "h100", duration_s=7200, at=at)
    LeaseRequest.objects.filter(pk=request.pk).update(is_preemptible=True, price_milli=600)
    world.turn(at)
    lease = Lease.objects.get(request=request)
    world.ready(lease, at=at)
    return lease


@pytest.mark.django_db
def test_a_grant_copies_the_price_and_the_meter_runs_at_it() -> None:
    world = build_world(now=FEBRUARY)
    lease = cheap_lease(world, FEBRUARY)
    lease.refresh_from_db()

    cost, hourly, _currency = cost_and_price(lease, now=FEBRUARY + timedelta(minutes=30))

    assert (lease.is_preemptible, lease.price_milli) == (True, 600)
    assert hourly == PRICES["h100-80gb"] * 600 // 1000
    assert cost == hourly // 2


@pytest.mark.django_db
def test_usage_and_invoice_keep_prices_apart_and_every_promise_holds() -> None:
    world = build_world(now=FEBRUARY)
    full = world.ended("bob", "h100", seconds=3600, at=FEBRUARY - timedelta(hours=5))
    lease = cheap_lease(world, FEBRUARY)
    world.now = FEBRUARY + timedelta(hours=2)
    lifecycle.expire_due(now=world.now)
    world.gone(lease, at=world.now)
    meter_all(now=world.now)

    price = PRICES["h100-80gb"]
    paid = {u.lease_id: u.micro_per_hour for u in UsageRecord.objects.all()}
    assert paid == {full.pk: price, lease.pk: price * 600 // 1000}
    assert len(draft_lines(UsageTotal.objects.all())) == 2
    close_period(period=period_of(FEBRUARY), actor=None, now=datetime(2026, 3, 10, tzinfo=UTC))
    assert sorted(InvoiceLine.objects.values_list("amount_micro", flat=True)) == [price, price * 12 // 10]
    assert broken() == []


@pytest.mark.django_db
def test_a_quote_is_lowered_only_for_who_may_be_preempted(world: World) -> None:
    Flavor.objects.filter(slug="h100").update(preemptible_milli=600)
    flavor = Flavor.objects.get(slug="h100")

    firm, loose = (
        quote(
            flavor,
            team_id=0,
            count=1,
            duration_s=3600,
            starts_at=world.now,
            price_milli=paid_milli(flavor, is_preemptible=may),
        )
        for may in (False, True)
    )

    assert (firm.amount_micro, loose.amount_micro) == (3_600_000, 2_160_000)
    assert loose.hourly_micro == 2_160_000
