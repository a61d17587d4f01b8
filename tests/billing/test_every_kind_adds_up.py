"""A gang, what was grown, a booking given up and one that ran, and a lower price: one invoice, to the micro-unit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from portal.billing.closing import close_period
from portal.billing.metering import meter_all
from portal.billing.models import InvoiceLine, UsageRecord
from portal.billing.selectors import period_of
from portal.catalog.models import Flavor
from portal.common.invariants import broken
from portal.leases import lifecycle
from portal.leases.bookings import start_booked
from portal.leases.models import Lease, LeaseRequest
from portal.quotas.models import Quota
from tests.portal.builders import H100, PRICES, World, build_world, make_node
from tests.portal.test_bookings import board, book, heard

FEBRUARY = datetime(2026, 2, 3, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)
PRICE = PRICES["h100-80gb"]


@pytest.fixture
def wide() -> World:
    """Two nodes of 8 x H100, room in every quota, and 600 thousandths of the price for what may be preempted."""
    found = build_world(now=FEBRUARY)
    found.nodes["gpu-02"] = make_node("gpu-02", H100, 8, ("exclusive", "mig"), now=FEBRUARY)
    Quota.objects.update(ceiling_milli=None, guaranteed_milli=0)
    Flavor.objects.update(preemptible_milli=600)
    return found


def end(world: World, at: datetime) -> None:
    lifecycle.expire_due(now=at)
    lifecycle.end_left_behind(now=at)
    world.gone(*Lease.objects.filter(state__in=("ending", "cleaning")), at=at)


@pytest.mark.django_db
def test_each_second_of_each_lease_is_paid_once_at_its_own_price(wide: World) -> None:
    paid: dict[str, int] = {}
    gang = wide.submit("alice", "h100", nodes=2, count=2, duration_s=3600)
    wide.ready(*wide.turn())
    paid[gang.uid] = 4 * PRICE
    end(wide, FEBRUARY + HOUR)

    wide.now = FEBRUARY + HOUR
    heard(wide, wide.now)
    elastic = wide.submit("alice", "h100", most_count=3, duration_s=7200)
    wide.ready(*wide.turn())
    wide.now += HOUR
    heard(wide, wide.now)
    wide.ready(*wide.turn())
    paid[elastic.uid] = 2 * PRICE + 2 * PRICE * 600 // 1000
    end(wide, wide.now + HOUR)

    wide.now += HOUR
    heard(wide, wide.now)
    ran, given_up = (
        wide.submit("bob", "h100", starts_at=wide.now + HOUR, duration_s=1800, is_preemptible=cheap)
        for cheap in (True, False)
    )
    leases = [book(wide, request, device=board(at)) for at, request in enumerate((ran, given_up))]
    assert leases[1] is not None
    lifecycle.release_lease(lease=leases[1], actor=wide.user("bob"), now=wide.now)
    wide.now += HOUR
    heard(wide, wide.now)
    assert start_booked(now=wide.now) == 1
    wide.ready(*Lease.objects.filter(state="preparing"))
    paid[ran.uid] = PRICE * 600 // 1000 // 2
    paid[given_up.uid] = 0
    end(wide, wide.now + HOUR)

    meter_all(now=wide.now + 2 * HOUR)
    found: dict[str, int] = dict.fromkeys(paid, 0)
    for row in UsageRecord.objects.select_related("lease__request"):
        found[row.lease.request.uid] += row.share_milli_seconds * row.micro_per_hour // 3_600_000
    assert found == paid
    assert (gang.quote_micro, ran.quote_micro) == (paid[gang.uid], paid[ran.uid])
    close_period(period=period_of(FEBRUARY), actor=None, now=datetime(2026, 3, 10, tzinfo=UTC))
    assert sum(InvoiceLine.objects.values_list("amount_micro", flat=True)) == sum(paid.values())
    assert LeaseRequest.objects.get(pk=given_up.pk).state == "withdrawn"
    assert broken() == []
