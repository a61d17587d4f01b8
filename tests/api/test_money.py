from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from portal.accounts.models import ApiToken
from portal.api.wire import amount, instant
from portal.billing.metering import meter_all
from portal.billing.selectors import period_of
from portal.common.models import InvariantCheck
from tests.portal.builders import World

MARCH = datetime(2026, 3, 10, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("micro", "text"),
    [(0, "0.00"), (1, "0.000001"), (-1_500_000, "-1.50"), (1_234_567, "1.234567"), (10**15, "1000000000.00")],
)
def test_amounts_are_exact_decimal_strings(micro: int, text: str) -> None:
    assert amount(micro) == text


def test_instants_are_utc_with_a_z() -> None:
    assert instant(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02T03:04:05Z"
    assert instant(None) is None


@pytest.mark.parametrize("text", ["2026-1", "2026-13", "26-01", "２０２６-01", "2026-01-01", "1999-01"])
def test_a_month_that_the_books_do_not_have_is_not_found(text: str, world: World, calls: Any) -> None:
    bob = calls("bob")

    assert bob.get(f"invoices/perception/{text}/").status_code == 404
    assert bob.get(f"usage/?month={text}").status_code == 404


def test_invoice_adds_up_from_lines_to_usage(world: World, calls: Any) -> None:
    world.ended("bob", seconds=600, at=MARCH)
    world.ended("bob", "h100", seconds=777, at=MARCH)
    meter_all(now=world.now)
    bob = calls("bob")

    invoice = bob.get("invoices/perception/2026-03/").json()
    usage = [
        record
        for line in invoice["lines"]
        for record in bob.get(f"invoices/perception/2026-03/lines/{line['key']}/usage/").json()["results"]
    ]

    cents = [round(float(line["amount"]["amount"]) * 100) for line in invoice["lines"]]
    assert sum(cents) == round(float(invoice["total"]["amount"]) * 100)
    assert sorted(u["seconds"] for u in usage) == [600, 777]
    assert sum(line["seconds"] for line in invoice["lines"]) == 1377
    listed = bob.get("usage/?month=2026-03").json()["results"]
    assert {u["id"] for u in listed} == {u["id"] for u in usage}


def test_finance_closes_a_month_once(world: World, calls: Any) -> None:
    world.ended("bob", seconds=600, at=MARCH)
    meter_all(now=world.now)
    finance = calls("finance")

    denied = calls("alice").post("periods/2026-03/close/")
    closed, again = finance.post("periods/2026-03/close/"), finance.post("periods/2026-03/close/")

    assert denied.status_code == 403
    assert closed.json()["state"] == "closed"
    assert (again.status_code, again.json()["code"]) == (409, "period_closed")
    (row,) = finance.get("invoices/?month=2026-03&team=perception").json()["results"]
    assert row["is_draft"] is False
    assert row["number"].startswith("202603-")


def test_the_checks_of_a_month_are_those_its_close_keeps_to(world: World, calls: Any) -> None:
    lease = world.active("bob", at=MARCH)  # its end came in March and is not settled
    period_of(MARCH)
    InvariantCheck.objects.create(checked_at=world.now)
    finance = calls("finance")

    checks = finance.get("periods/2026-03/").json()["checks"]
    refused = finance.post("periods/2026-03/close/")

    unmet = [check for check in checks if check["must"] and not check["is_met"]]
    assert {"settled", "metered"} == {check["code"] for check in unmet}
    assert lease.uid in unmet[0]["sentence"]
    assert refused.status_code == 409
    assert unmet[0]["sentence"] in refused.json()["detail"]
    assert refused.json()["facts"]["unmet"] == "settled metered"
    assert calls("alice").get("periods/2026-03/").status_code == 403


def test_csv_cells_cannot_be_formulas(world: World, calls: Any) -> None:
    bob = world.user("bob")
    bob.display_name = "=HYPERLINK(1)"
    bob.save()
    world.ended("bob", seconds=600, at=MARCH)
    meter_all(now=world.now)

    answer = calls("bob").get("invoices/perception/2026-03/csv/")

    assert answer["Content-Type"].startswith("text/csv")
    assert "attachment" in answer["Content-Disposition"]
    assert ",'=HYPERLINK(1)," in answer.content.decode()


def test_finance_sets_a_price_for_the_future_only(world: World, calls: Any) -> None:
    finance = calls("finance")
    body = {"device_model": "h100-80gb", "price_per_hour": "4.123456", "starts_at": "2900-01-01T00:00:00Z"}

    made = finance.post("rates/", body)
    past = finance.post("rates/", {**body, "starts_at": "2020-01-01T00:00:00Z"})
    denied = calls("operator").post("rates/", body)

    assert made.json()["price_per_hour"]["amount"] == "4.123456"
    assert (past.status_code, past.json()["errors"][0]["field"]) == (422, "starts_at")
    assert denied.status_code == 403
    assert len(finance.get("rates/?device_model=h100-80gb").json()["results"]) == 2


def test_spend_reaches_the_teams_below(world: World, calls: Any) -> None:
    world.ended("bob", seconds=3600, at=MARCH)
    meter_all(now=world.now)

    seen = calls("alice").get("teams/vision/spend/?month=2026-03").json()

    assert seen["total"]["amount"] == "0.45"
    assert {row["team"]: row["spend"]["amount"] for row in seen["teams"]}["perception"] == "0.45"


def test_operator_compares_the_agents_clock_with_the_bill(world: World, calls: Any) -> None:
    lease = world.ended("bob", seconds=600)
    meter_all(now=world.now)
    operator = calls("operator")

    (row,) = operator.get("fleet/accounting/").json()["results"]

    assert (row["lease"], row["billed_s"], row["agent_active_ms"]) == (lease.uid, 600, 600_000)
    later = (world.now + timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    assert operator.get(f"fleet/accounting/?since={later}").json()["results"] == []


def test_overlaps_are_counted_by_the_database(world: World, calls: Any) -> None:
    world.active("bob")
    world.active("charlie", "l40s-quarter")

    seen = calls("operator").get("fleet/overlaps/").json()

    assert (seen["live"], seen["ever"], seen["placements"]) == (0, 0, 2)


def test_a_token_is_shown_once_and_dies_when_revoked(world: World, calls: Any) -> None:
    bob = calls("bob")
    made = bob.post("tokens/", {"name": "laptop", "scopes": ["read"]}, **{"Idempotency-Key": "k1"}).json()
    again = bob.post("tokens/", {"name": "laptop", "scopes": ["read"]}, **{"Idempotency-Key": "k1"}).json()
    secret = {"Authorization": f"Bearer {made['secret']}"}

    assert again == {**made, "secret": None}
    assert made["secret"] not in bob.get("tokens/").content.decode()
    assert bob.call("GET", "me/", **secret).json()["token_scopes"] == ["read"]
    assert bob.delete(f"tokens/{made['id']}/").status_code == 204
    refused = bob.call("GET", "me/", **secret)
    assert (refused.status_code, refused.json()["code"]) == (401, "token_refused")
    assert ApiToken.objects.filter(user=world.user("bob")).count() == 2


def test_notifications_are_ones_own(world: World, calls: Any) -> None:
    from portal.notifications.services import notify

    notify([world.user("bob")], "lease.ends_soon", target="lse-1", at=world.now)
    bob = calls("bob")

    assert len(bob.get("notifications/?unread=true").json()["results"]) == 1
    assert bob.post("notifications/read/").json() == {"marked": 1}
    assert bob.get("notifications/?unread=true").json()["results"] == []
    assert calls("charlie").get("notifications/").json()["results"] == []
