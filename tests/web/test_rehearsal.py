from __future__ import annotations

from datetime import UTC, datetime

from portal.billing.metering import meter_all
from portal.billing.models import BillingPeriod, Invoice
from portal.billing.rehearsal import rehearse_close
from portal.billing.selectors import period_of
from tests.portal.builders import World
from tests.web.conftest import SignedIn

MARCH = datetime(2026, 3, 10, 9, 0, tzinfo=UTC)
PAGE = "/finance/months/2026-03/rehearsal/"


def test_finance_rehearses_a_month_and_closes_what_it_has_seen(world: World, signed_in: SignedIn) -> None:
    world.ended("bob", "h100", seconds=7200, at=MARCH)
    meter_all(now=world.now)
    finance = signed_in("finance")

    text = finance.get(PAGE).text

    seen = rehearse_close(period_of(MARCH), now=world.now).seen
    assert f'value="{seen}"' in text
    assert "The invoices add up to it." in text
    assert signed_in("bob").get(PAGE).status_code == 403
    close = "/finance/months/2026-03/close/"
    told = finance.post(close, {"seen": seen + "0"}, follow=True).text
    assert "The amounts are not those that you have seen" in told
    assert not Invoice.objects.exists()
    finance.post(close, {"seen": seen})
    assert BillingPeriod.objects.get(pk=period_of(MARCH).pk).state == "closed"
    assert finance.get(PAGE).status_code == 302
