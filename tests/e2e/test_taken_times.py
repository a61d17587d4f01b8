"""A time that is taken is answered with free ones near it, each a button that books."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tests.e2e.visitor import Visitor

pytestmark = pytest.mark.deep


def test_a_booking_over_maintenance_is_moved_by_one_click(visit: Callable[..., Visitor]) -> None:
    bob = visit("bob")
    page = bob.open("/requests/new/?flavor=dcu-16gb")
    # The story exchanges a fan of the only node with this model, three days from now from 06:00 UTC on.
    taken = (datetime.now(tz=UTC) + timedelta(days=3)).replace(hour=7, minute=0, second=0, microsecond=0)
    zone = ZoneInfo(page.locator("html").get_attribute("data-zone"))
    starts = page.locator("#id_starts_at")
    page.locator("#request-form[data-mounted]").wait_for()

    page.locator("details:has(#id_starts_at) > summary").click()
    starts.fill(f"{taken.astimezone(zone):%Y-%m-%dT%H:%M}")
    free = page.locator("#quote [data-fill='#id_starts_at']").first
    free.wait_for()
    assert "gpu-04" in page.locator("#quote").inner_text()
    wanted = free.get_attribute("data-value")
    free.click()

    page.locator("#quote [data-fill='#id_starts_at']").first.wait_for(state="detached")
    assert starts.input_value() == wanted
    page.locator("#request-form button[type=submit].btn-primary").click()
    page.wait_for_url(re.compile("/(requests/req|leases/lse)-"))
    page.get_by_text("Booked").first.wait_for()
