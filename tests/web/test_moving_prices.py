from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

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
