from __future__ import annotations

import csv
import io
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.billing.closing import close_period
from portal.billing.metering import meter_all
from portal.billing.models import BillingPeriod, Invoice, UsageRecord
from portal.billing.selectors import invoice_view, period_of
from portal.leases.models import Lease
from portal.teams.models import Team
from portal.web.invoices.csv_file import invoice_csv, safe
from portal.web.invoices.rows import bill, gpu_hours
from tests.portal.builders import World
from tests.web.conftest import SignedIn
from tests.web.test_researcher_requests import same_text

LAST_MONTH = datetime(2026, 3, 10, 9, 0, tzinfo=UTC)


@pytest.fixture
def march(world: World) -> BillingPeriod:
    """A month in which bob used two flavors for odd numbers of seconds."""
    world.ended("bob", "h100-1g-10gb", seconds=617, at=LAST_MONTH)
    world.ended("bob", "h100-1g-10gb", seconds=1013, at=LAST_MONTH + timedelta(hours=1))
    world.ended("bob", "l40s-quarter", seconds=37, at=LAST_MONTH + timedelta(hours=2))
    meter_all(now=world.now)
    return period_of(LAST_MONTH)


def amounts(text: str) -> list[Decimal]:
    return [Decimal(found) for found in re.findall(r'<data class="money num" value="([\d.]+)"', text)]


def test_the_chain_leads_from_the_month_to_the_events_of_a_lease(
    world: World, signed_in: SignedIn, march: BillingPeriod
) -> None:
    bob = signed_in("bob")
    lease = Lease.objects.order_by("id")[0]

    months = bob.get("/invoices/?month=2026-03").text
    invoice = bob.get("/invoices/perception/2026-03/").text
    line_url = re.findall(r'href="(/invoices/perception/2026-03/lines/[^"]+/)"', invoice)[0]
    line = bob.get(line_url).text

    assert "/invoices/perception/2026-03/" in months
    assert "Draft" in invoice
    assert f"/leases/{lease.uid}/" in line
    assert "617" in line
    assert line.count("timeline-dot") == 2 * lease.events.count()
    assert "Released early" in line


def test_lines_add_up_to_the_total_as_printed(world: World, march: BillingPeriod) -> None:
    view = invoice_view(world.team("perception"), march, now=world.now)

    printed = bill(view)

    assert len(printed.lines) == 2
    assert sum((line.amount for line in printed.lines if line.amount), Decimal(0)) == printed.total
    assert sum(line.gpu_hours for line in printed.lines) == printed.gpu_hours


@pytest.mark.parametrize("quantities", [[1, 1, 1], [617_333, 1, 999_999_999], [], [0]])
def test_printed_gpu_hours_add_up(quantities: list[int]) -> None:
    hours = gpu_hours(quantities)

    exact = Decimal(sum(quantities)) / 3_600_000
    assert abs(sum(hours, Decimal(0)) - exact) <= Decimal("0.00005")


def test_a_closed_month_shows_the_issued_invoice_with_the_same_amounts(
    world: World, signed_in: SignedIn, march: BillingPeriod
) -> None:
    bob = signed_in("bob")
    draft = amounts(bob.get("/invoices/perception/2026-03/").text)
    close_period(period=march, actor=world.user("finance"), now=world.now)

    issued = bob.get("/invoices/perception/2026-03/").text
    line = bob.get("/invoices/perception/2026-03/lines/1/")

    number = Invoice.objects.get().number
    assert number is not None
    assert number in issued
    assert "Draft" not in issued
    assert {*amounts(issued), Decimal(0)} == {*draft, Decimal(0)}
    assert line.status_code == 200
    assert "617" in line.text


def test_running_leases_accrue_apart_from_the_lines(world: World, signed_in: SignedIn) -> None:
    lease = world.active("bob", "h100", at=world.now - timedelta(minutes=30), duration_s=7200)
    month = f"{world.now - timedelta(minutes=30):%Y-%m}"
    period_of(world.now - timedelta(minutes=30))

    text = signed_in("bob").get(f"/invoices/perception/{month}/").text

    assert "No line yet" in text
    assert "Accruing" in text
    assert lease.uid in text


def test_charlie_meets_another_teams_invoice_like_a_missing_one(
    world: World, signed_in: SignedIn, march: BillingPeriod
) -> None:
    charlie = signed_in("charlie")
    address = "/invoices/perception/2026-03/"
    key = re.findall(r"lines/([^/]+)/", signed_in("bob").get(address).text)[-1]

    foreign = [charlie.get(address + tail) for tail in ("", "lines.csv", f"lines/{key}/")]
    missing = [charlie.get("/invoices/no-such-team/2026-03/" + t) for t in ("", "lines.csv", f"lines/{key}/")]

    assert [a.status_code for a in foreign] == [a.status_code for a in missing] == [404] * 3
    assert [same_text(a.text) for a in foreign] == [same_text(a.text) for a in missing]
    assert "Perception" not in charlie.get("/invoices/?month=2026-03").text


@pytest.mark.parametrize(
    "path",
    [
        "2026-13/", "2026-3/", "0000-01/", "9999-12/", "2026-03x/", "nonsense/", "2026-03/lines/0/",
        "2026-03/lines/1-2-3-4/", "2026-03/lines/99999999999999999999/", "2026-03/lines/%F0%9F%92%B8/",
    ],
)  # fmt: skip
def test_a_month_or_line_that_is_not_there_is_missing_and_makes_nothing(
    world: World, signed_in: SignedIn, march: BillingPeriod, path: str
) -> None:
    before = BillingPeriod.objects.count()

    assert signed_in("bob").get("/invoices/perception/" + path).status_code == 404
    assert BillingPeriod.objects.count() == before


@pytest.mark.parametrize("query", ["month=2099-01", "month=%27", "team=" + "x" * 300, "page=-1", "page=zz"])
def test_bad_filters_never_break_the_list(world: World, signed_in: SignedIn, query: str) -> None:
    assert signed_in("finance").get("/invoices/?" + query).status_code == 200


def test_the_csv_adds_up_and_no_cell_is_a_formula(world: World, march: BillingPeriod) -> None:
    world.user("bob").display_name = '=HYPERLINK("http://x")'
    world.user("bob").save()
    view = invoice_view(world.team("perception"), march, now=world.now)

    text = invoice_csv(view)

    rows = list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"))))
    assert sum(Decimal(row["amount"]) for row in rows) * 1_000_000 == view.total_micro
    assert sum(int(row["seconds"]) for row in rows) == sum(
        UsageRecord.objects.values_list("seconds", flat=True)
    )
    assert all(row["person"] == '\'=HYPERLINK("http://x")' for row in rows)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", " =1", "\n=1", "|x"])
def test_text_that_looks_like_a_formula_is_marked_as_text(text: str) -> None:
    assert safe(text).startswith("'")


@pytest.mark.parametrize("text", ["", "Vision", "a=b", "1g.10gb", "视觉"])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert safe(text) == text


def test_the_csv_is_a_download_with_a_plain_name(
    world: World, signed_in: SignedIn, march: BillingPeriod
) -> None:
    answer = signed_in("bob").get("/invoices/perception/2026-03/lines.csv")

    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert (
        answer.headers["Content-Disposition"] == 'attachment; filename="berth-perception-2026-03-draft.csv"'
    )


def test_the_list_of_a_month_adds_up_over_all_teams(
    world: World, signed_in: SignedIn, march: BillingPeriod
) -> None:
    world.ended("charlie", "h100", seconds=333, at=LAST_MONTH + timedelta(days=1))
    meter_all(now=world.now)
    total = sum(invoice_view(team, march, now=world.now).total_micro for team in Team.objects.all())

    text = signed_in("finance").get("/invoices/?month=2026-03").text

    foot = text[text.index("<tfoot>") :]
    assert Decimal(total) / 1_000_000 in amounts(foot)


def test_lists_take_a_fixed_number_of_queries(
    world: World, signed_in: SignedIn, march: BillingPeriod
) -> None:
    finance = signed_in("finance")
    paths = ("/invoices/?month=2026-03", "/invoices/perception/2026-03/", "/finance/months/")
    counts = {path: _queries(finance, path) for path in paths}
    for n in range(3):
        world.ended("bob", "h100", seconds=50 + n, at=LAST_MONTH + timedelta(days=2 + n))
        world.ended("charlie", "h100", seconds=50 + n, at=LAST_MONTH + timedelta(days=6 + n))
    meter_all(now=world.now)

    assert all(_queries(finance, path) <= counts[path] for path in paths)
    assert max(counts.values()) <= 18


def _queries(client: object, path: str) -> int:
    with CaptureQueriesContext(connection) as seen:
        assert client.get(path).status_code == 200  # type: ignore[attr-defined]
    return len(seen)
