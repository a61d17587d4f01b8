from __future__ import annotations

from portal.catalog.models import Discount
from tests.portal.builders import World
from tests.web.conftest import SignedIn

PAGE = "/finance/discounts/"


def test_finance_adds_a_discount_that_only_those_see_whose_it_may_be(
    world: World, signed_in: SignedIn
) -> None:
    finance, bob, charlie = signed_in("finance"), signed_in("bob"), signed_in("charlie")
    given = {
        "name": "Contract", "percent": "15", "team": "vision", "from_time": "20:00", "to_time": "06:00",
        "days": ["0", "4"], "starts_at": "2900-01-01T00:00", "ends_at": "",
    }  # fmt: skip

    assert charlie.post(PAGE, given).status_code == 403
    for wrong in ({"days": []}, {"percent": "0"}, {"to_time": "20:00"}, {"starts_at": "2020-01-01T00:00"}):
        assert finance.post(PAGE, given | wrong).status_code == 422
    assert not Discount.objects.exists()
    assert finance.post(PAGE, given).status_code == 302
    finance.post(PAGE, given | {"name": "Now", "team": "", "from_time": "", "to_time": "", "starts_at": ""})

    assert "Mon, Fri 20:00–06:00" in bob.get(PAGE).text
    assert "Contract" not in charlie.get(PAGE).text
    assert "at all times" in charlie.get(PAGE).text
    planned = Discount.objects.get(name="Contract")
    assert charlie.post(f"{PAGE}{planned.pk}/end/").status_code == 403
    finance.post(f"{PAGE}{planned.pk}/end/")
    assert list(Discount.objects.values_list("name", flat=True)) == ["Now"]


def test_the_form_says_what_a_discount_takes_off(world: World, signed_in: SignedIn) -> None:
    finance, bob = signed_in("finance"), signed_in("bob")
    finance.post(
        PAGE, {"name": "Summer", "percent": "50", "team": "", "days": [], "starts_at": "", "ends_at": ""}
    )

    text = bob.get(
        "/requests/quote/",
        {"team": "perception", "flavor": "h100", "count": "1", "duration": "8 h", "priority": "normal"},
    ).text

    assert "before discount: Summer, 50 %" in text
