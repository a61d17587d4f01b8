from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from django.utils import timezone

from portal.audit.models import AuditEntry
from portal.billing.metering import meter_all
from portal.billing.models import BillingPeriod, Invoice, MonthZone, PeriodState
from portal.billing.periods import month_zones
from portal.billing.selectors import period_of
from portal.catalog.models import Rate
from portal.catalog.services import set_rate
from portal.fleet.models import DeviceModel
from tests.portal.builders import H100, World
from tests.web.conftest import SignedIn

MARCH = datetime(2026, 3, 10, 9, 0, tzinfo=UTC)


@pytest.fixture
def march(world: World) -> BillingPeriod:
    """A month that is over, with one lease."""
    world.ended("bob", seconds=617, at=MARCH)
    meter_all(now=world.now)
    return period_of(MARCH)


def test_closing_issues_invoices_and_freezes_the_month(
    world: World, signed_in: SignedIn, march: BillingPeriod
) -> None:
    finance = signed_in("finance")

    before = finance.get("/finance/months/2026-03/").text
    closed = finance.post("/finance/months/2026-03/close/", follow=True)
    again = finance.post("/finance/months/2026-03/close/", follow=True)

    march.refresh_from_db()
    number = Invoice.objects.get().number
    assert number is not None
    assert 'data-open-dialog="close-month"' in before
    assert march.state == PeriodState.CLOSED
    assert number in closed.text
    assert "This billing period is closed" in again.text
    assert AuditEntry.objects.filter(action="period.closed", actor=world.user("finance")).count() == 1


def test_a_month_that_still_runs_cannot_be_closed(world: World, signed_in: SignedIn) -> None:
    month = f"{timezone.now():%Y-%m}"
    finance = signed_in("finance")
    finance.get("/finance/months/")

    world.active("bob")
    page = finance.get(f"/finance/months/{month}/").text
    answer = finance.post(f"/finance/months/{month}/close/", follow=True)

    assert "The month still runs" in page
    assert "1 lease still runs." in page
    assert "silent" not in page
    assert 'data-open-dialog="close-month"' not in page
    assert "not over yet" in answer.text
    assert not BillingPeriod.objects.filter(state=PeriodState.CLOSED).exists()


@pytest.mark.parametrize(
    ("path", "views"),
    [
        ("/finance/months/{}/close/", "portal.web.invoices.periods"),
        ("/api/v1/periods/{}/close/", "portal.api.invoices"),
    ],
)
def test_a_web_host_whose_clock_runs_ahead_closes_nothing_early(
    world: World, signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch, path: str, views: str
) -> None:
    running = period_of(world.now)
    finance = signed_in("finance")
    ahead = SimpleNamespace(now=lambda: running.ends_at + timedelta(hours=1))
    monkeypatch.setattr(f"{views}.timezone", ahead)

    answer = finance.post(
        path.format(f"{running.starts_at:%Y-%m}"), {}, content_type="application/json", follow=True
    )

    assert "not over yet" in answer.text


def test_the_checklist_names_what_keeps_the_month_open(
    world: World, signed_in: SignedIn, march: BillingPeriod, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = world.active("bob", at=MARCH + timedelta(days=1))
    monkeypatch.setattr("portal.billing.checklist.rates_by_model", lambda models: defaultdict(list))
    finance = signed_in("finance")

    text = finance.get("/finance/months/2026-03/").text
    refused = finance.post("/finance/months/2026-03/close/", follow=True)

    assert f"1 lease ran while no price was in force: {lease.uid}" in text
    assert "may still be dated in this month, because its node has been silent since then" in text
    assert 'data-open-dialog="close-month"' not in text
    assert "This month cannot be closed yet" in refused.text
    march.refresh_from_db()
    assert march.state == PeriodState.OPEN


def test_a_refusal_of_the_books_is_a_sentence(
    world: World, signed_in: SignedIn, march: BillingPeriod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portal.billing.closing._issue", lambda *_: [])

    answer = signed_in("finance").post("/finance/months/2026-03/close/")

    assert answer.status_code == 409
    assert "The books do not allow this" in answer.text
    march.refresh_from_db()
    assert march.state == PeriodState.OPEN


@pytest.mark.parametrize("name", ["alice", "bob", "charlie", "approver", "operator"])
def test_only_finance_works_on_months_and_prices(
    world: World, signed_in: SignedIn, march: BillingPeriod, name: str
) -> None:
    client = signed_in(name)

    assert client.get("/finance/months/").status_code == 403
    assert client.get("/finance/months/2026-03/").status_code == 403
    assert client.post("/finance/months/2026-03/close/").status_code == 403
    assert client.post("/finance/prices/", _price()).status_code == 403
    march.refresh_from_db()
    assert march.state == PeriodState.OPEN


@pytest.mark.parametrize("month", ["2026-13", "1999-01", "x", "2026-031"])
def test_a_month_the_books_do_not_have_is_missing(world: World, signed_in: SignedIn, month: str) -> None:
    finance = signed_in("finance")

    assert finance.get(f"/finance/months/{month}/").status_code == 404
    assert finance.post(f"/finance/months/{month}/close/").status_code == 404


def test_everybody_reads_prices_and_what_each_flavor_costs(world: World, signed_in: SignedIn) -> None:
    text = signed_in("bob").get("/finance/prices/").text

    assert "H100" in text
    assert "In force, locked" in text
    assert "Set a new price" not in text


def test_a_new_price_ends_the_one_before_it(world: World, signed_in: SignedIn) -> None:
    answer = signed_in("finance").post("/finance/prices/", _price(price="4.25"))

    old, new = Rate.objects.filter(device_model__slug=H100).order_by("valid")
    assert answer.status_code == 302
    assert (new.micro_per_hour, old.valid.upper) == (4_250_000, new.valid.lower)
    assert "Planned" in signed_in("finance").get("/finance/prices/").text


@pytest.mark.parametrize(
    "wrong",
    [
        {"starts_at": "2024-06-01T00:00"},
        {"starts_at": "tomorrow"},
        {"starts_at": ""},
        {"starts_at": "0001-01-01T00:00"},
        {"price": "-1"},
        {"price": "NaN"},
        {"price": "Infinity"},
        {"price": "1e30"},
        {"price": "1.1234567"},
        {"price": ""},
        {"model": "b200"},
        {"model": "h100\x00"},
        {"model": ""},
    ],
)
def test_bad_input_sets_no_price(world: World, signed_in: SignedIn, wrong: dict[str, str]) -> None:
    before = list(Rate.objects.order_by("id").values())

    answer = signed_in("finance").post("/finance/prices/", _price() | wrong)

    assert answer.status_code == 422
    assert "field-error" in answer.text
    assert list(Rate.objects.order_by("id").values()) == before


def _price(price: str = "4.25") -> dict[str, str]:
    begin = timezone.now() + timedelta(days=3)
    return {"model": H100, "price": price, "starts_at": f"{begin:%Y-%m-%dT%H:%M}"}


def test_a_planned_price_is_withdrawn_and_the_one_before_it_goes_on(
    world: World, signed_in: SignedIn
) -> None:
    model = DeviceModel.objects.get(slug=H100)
    old = Rate.objects.get(device_model=model)
    for days, price in ((10, 5), (20, 6)):
        set_rate(
            model=model, micro_per_hour=price, starts_at=world.now + timedelta(days=days), actor=None, now=world.now
        )  # fmt: skip
    first, second = Rate.objects.filter(device_model=model).exclude(pk=old.pk).order_by("valid")
    finance = signed_in("finance")

    assert signed_in("bob").post(f"/finance/prices/{first.pk}/withdraw/").status_code == 403
    page = finance.post(f"/finance/prices/{first.pk}/withdraw/", follow=True).text

    old.refresh_from_db()
    assert old.valid.upper == second.valid.lower
    assert not Rate.objects.filter(pk=first.pk).exists()
    assert "is withdrawn" in page
    assert AuditEntry.objects.filter(action="rate.withdrawn", actor=world.user("finance")).count() == 1
    begun = finance.post(f"/finance/prices/{old.pk}/withdraw/", follow=True).text
    assert "This price has begun" in begun
    assert Rate.objects.filter(pk=old.pk).exists()


def test_finance_sets_the_zone_of_months_and_nobody_else(world: World, signed_in: SignedIn) -> None:
    finance, now = signed_in("finance"), timezone.now()
    earliest = f"{month_zones(now=now).earliest:%Y-%m}"
    given = {"zone": "Asia/Shanghai", "since": earliest}
    assert signed_in("alice").post("/finance/zone/", given).status_code == 403
    refused = finance.post("/finance/zone/", {"zone": "Mars/Olympus", "since": "2019-01"})
    assert (refused.status_code, MonthZone.objects.count()) == (422, 0)
    assert "There is no such time zone" in refused.text

    assert finance.post("/finance/zone/", given).status_code == 302
    page = finance.get("/finance/months/").text
    assert "Asia/Shanghai" in page
    assert str(MonthZone.objects.get()) == f"Asia/Shanghai from {earliest}"
