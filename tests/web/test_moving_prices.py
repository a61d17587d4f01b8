from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from portal.billing.metering import meter_all
from portal.billing.periods import month_bounds
from portal.catalog.models import Rate
from portal.catalog.services import set_rate
from portal.fleet.models import DeviceModel
from tests.portal.builders import H100, World
from tests.web.conftest import SignedIn


def test_finance_moves_a_planned_price_and_none_that_has_begun(world: World, signed_in: SignedIn) -> None:
    model, soon = DeviceModel.objects.get(slug=H100), timezone.now() + timedelta(days=3)
    begun = Rate.objects.get(device_model=model)
    planned = set_rate(model=model, micro_per_hour=702_469, starts_at=soon, actor=None, now=timezone.now())
    finance, charlie = signed_in("finance"), signed_in("charlie")
    url = f"/finance/prices/{planned.pk}/move/"

    assert "0.702469" in charlie.get("/finance/prices/").text
    assert charlie.post(url, {"starts_at": "2900-01-01T00:00"}).status_code == 403
    for wrong in ("2020-01-01T00:00", "soon", ""):
        finance.post(url, {"starts_at": wrong})
        assert Rate.objects.filter(pk=planned.pk).exists(), wrong
    finance.post(f"/finance/prices/{begun.pk}/move/", {"starts_at": "2900-01-01T00:00"})
    finance.post(url, {"starts_at": "2900-01-01T00:00"})

    first, second = Rate.objects.filter(device_model=model).order_by("valid")
    assert (first.pk, second.micro_per_hour, second.valid.lower.year) == (begun.pk, 702_469, 2900)
    assert first.valid.upper == second.valid.lower


def test_finance_tries_a_price_on_last_month_and_nothing_is_set(world: World, signed_in: SignedIn) -> None:
    last_month = month_bounds(world.now)[0] - timedelta(days=2)
    world.ended("bob", "h100", seconds=3600, at=last_month)
    meter_all(now=world.now)
    finance, charlie = signed_in("finance"), signed_in("charlie")
    before = list(Rate.objects.values())
    typed = {"model": H100, "price": "1000", "starts_at": "2900-01-01T00:00", "do": "preview"}

    answer = finance.post("/finance/prices/", typed)
    no_price = finance.post("/finance/prices/", typed | {"price": "-1"})

    assert (answer.status_code, no_price.status_code) == (200, 422)
    assert "1,000.00" in answer.text
    assert "At this price" in answer.text
    assert "At this price" not in no_price.text
    assert charlie.post("/finance/prices/", typed).status_code == 403
    assert list(Rate.objects.values()) == before
