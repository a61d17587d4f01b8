from __future__ import annotations

from portal.billing.models import RefundRule
from tests.portal.builders import World
from tests.web.conftest import SignedIn

PAGE = "/finance/refunds/"


def test_finance_sets_a_rule_that_everybody_reads(world: World, signed_in: SignedIn) -> None:
    finance, charlie = signed_in("finance"), signed_in("charlie")
    given = {"cause": "device_fault", "percent": "50", "most": "2 h", "within": "", "starts_at": ""}

    assert charlie.post(PAGE, given).status_code == 403
    assert finance.post(PAGE, given | {"cause": "failed_start"}).status_code == 422
    assert finance.post(PAGE, given).status_code == 302
    finance.post(PAGE, given | {"percent": "0", "most": "", "starts_at": "2900-01-01T00:00"})

    text = charlie.get(PAGE).text
    assert "50 % of the last 2 h are given back" in text
    planned = RefundRule.objects.get(credit_milli=0)
    assert charlie.post(f"{PAGE}{planned.pk}/withdraw/").status_code == 403
    finance.post(f"{PAGE}{planned.pk}/withdraw/")
    assert [rule.credit_milli for rule in RefundRule.objects.all()] == [500]
