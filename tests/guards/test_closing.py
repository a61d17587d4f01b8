"""What comes while a month closes: another close is told, a new label waits and leaves the closed month alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from django.db import transaction

from portal.billing.closing import close_period
from portal.billing.labels import label_request, request_labels
from portal.billing.metering import meter_all
from portal.billing.models import Invoice, UsageRecord
from portal.billing.selectors import period_of
from portal.common.errors import PeriodClosed
from tests.portal.builders import build_world
from tests.portal.meanwhile import meanwhile

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_month_closed_twice_at_once_is_closed_once_and_the_other_is_told() -> None:
    world = build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))
    world.ended(seconds=1800, at=datetime(2026, 2, 1, 9, tzinfo=UTC))
    period = period_of(datetime(2026, 2, 5, tzinfo=UTC))

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            close_period(period=period, actor=None, now=world.now)
            other = meanwhile(lambda: close_period(period=period, actor=None, now=world.now), pool)
            assert not other.done()
        with pytest.raises(PeriodClosed):
            other.result(timeout=60)

    assert Invoice.objects.count() == 1


def test_a_label_that_is_given_while_a_month_closes_holds_from_the_open_month_on() -> None:
    world = build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))
    lease = world.ended(seconds=1800, at=datetime(2026, 2, 1, 9, tzinfo=UTC))
    meter_all(now=world.now)
    period = period_of(datetime(2026, 2, 5, tzinfo=UTC))

    def file_anew() -> None:
        label_request(
            request=lease.request, project="", cost_centre="CC-7", tags={}, rights=world.rights("alice"),
            now=world.now,
        )  # fmt: skip

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            close_period(period=period, actor=None, now=world.now)
            filing = meanwhile(file_anew, pool)
            assert not filing.done()
        filing.result(timeout=60)

    assert request_labels(lease.request).cost_centre == "CC-7"
    assert UsageRecord.objects.get(lease=lease).label is None
