"""The chargeback report: sums that agree with the invoices, whatever its rows are, and nothing out of sight."""

from __future__ import annotations

import csv
import io
import zipfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from portal.billing.closing import close_period
from portal.billing.energy import EnergyFigures
from portal.billing.metering import meter_all
from portal.billing.models import Invoice
from portal.billing.report import GroupBy, report_of
from portal.billing.selectors import invoice_view, period_of
from portal.catalog.models import Rate
from portal.catalog.pricing import SHARE_HOUR
from portal.teams.models import Team
from portal.web.reports import files
from portal.web.reports.paper import Paper
from portal.web.reports.printed import report_paper
from portal.web.reports.rows import MOST_PARTS, day_chart
from portal.web.teams.rows import in_tree_order
from tests.emptying import PAST_TRIGGERS
from tests.portal.builders import World, build_world
from tests.portal.shared import Shared

pytestmark = pytest.mark.django_db
FEBRUARY = datetime(2026, 2, 5, 9, tzinfo=UTC)
MARCH = datetime(2026, 3, 5, 9, tzinfo=UTC)


@pytest.fixture(scope="module")
def world(shared: Shared) -> World:
    """January closed, February over and open, March with a lease that runs."""
    return shared(_three_months)


def _three_months() -> World:
    world = build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))
    world.ended("bob", seconds=1000, at=datetime(2026, 1, 5, 9, tzinfo=UTC), duration_s=7200)
    for day in (1, 2, 20):
        world.ended("bob", seconds=3607, at=FEBRUARY.replace(day=day), duration_s=7200)
        world.ended("charlie", "h100-3g-40gb", seconds=1234, at=FEBRUARY.replace(day=day), duration_s=7200)
    close_period(period=period_of(datetime(2026, 1, 5, tzinfo=UTC)), actor=None, now=world.now)
    meter_all(now=world.now)
    return world


def teams() -> list[Team]:
    return in_tree_order(list(Team.objects.all()))


@pytest.mark.parametrize("by", GroupBy)
def test_whatever_the_rows_are_they_add_up_to_the_invoices(world: World, by: GroupBy) -> None:
    period = period_of(FEBRUARY)
    total = sum(invoice_view(team, period, now=world.now).total_micro for team in teams())

    for is_closed in (False, True):
        if is_closed:
            close_period(period=period, actor=None, now=world.now)
            period.refresh_from_db()
            assert sum(Invoice.objects.filter(period=period).values_list("total_micro", flat=True)) == total
        report = report_of(period, teams(), by=by, now=world.now)
        roots = [row for row in report.groups if not row.parent]
        assert sum(row.cost_micro for row in roots) == report.whole.cost_micro == total
        assert abs(
            sum(sum(day.values()) for day in report.exact_by_day.values()) / SHARE_HOUR - total
        ) < 10_000 * len(teams())


def test_a_lease_with_two_prices_is_one_lease(world: World) -> None:
    at = world.now - timedelta(hours=2)
    was = Rate.objects.get(device_model__slug="h100-80gb")
    with connection.cursor() as cursor:
        cursor.execute(PAST_TRIGGERS)
        Rate.objects.filter(pk=was.pk).update(valid=(was.valid.lower, at + timedelta(minutes=30)))
        Rate.objects.create(
            card=was.card, device_model=was.device_model, micro_per_hour=5_000_000, created_at=at,
            valid=(at + timedelta(minutes=30), None),
        )  # fmt: skip
        cursor.execute("SET LOCAL session_replication_role = origin")
    before = report_of(period_of(world.now), teams(), by=GroupBy.PERSON, now=world.now).whole.leases
    world.ended("bob", seconds=3600, at=at, duration_s=7200)
    meter_all(now=world.now)

    found = report_of(period_of(world.now), teams(), by=GroupBy.PERSON, now=world.now)

    assert sum(charge.leases for charge in found.charges) == before + 2
    assert found.whole.leases == before + 1


def test_a_running_month_is_compared_with_the_same_part_of_the_one_before(world: World) -> None:
    world.active("bob", at=world.now.replace(hour=8), duration_s=7200)

    report = report_of(period_of(MARCH), teams(), now=world.now)

    # Until 10 March, 9:00; of February that leaves the first two of three days with usage.
    first_two = report_of(period_of(FEBRUARY), teams(), now=world.now).whole.amount_micro * 2 / 3
    assert report.whole.before_micro == pytest.approx(first_two, abs=20_000)
    assert report.whole.amount_micro == 0
    assert report.whole.accruing_micro == 450_000
    assert [row.own_micro for row in report.groups if row.key == "perception"] == [450_000]


def test_the_page_shows_a_month_by_team_and_person_in_few_queries(
    world: World, client: Client, django_assert_max_num_queries: object
) -> None:
    client.force_login(world.user("finance"))
    period_of(timezone.now())  # the first look at a month opens it

    with django_assert_max_num_queries(29):  # type: ignore[operator]
        page = client.get("/reports/?month=2026-02").content.decode()
    assert "Perception" in page
    assert 'class="part part-1"' in page
    narrower = client.get("/reports/?month=2026-02&by=person&team=perception&ordering=-change")
    assert "Bob" in narrower.content.decode()
    assert client.get("/reports/?month=nonsense&by=x&team=y&ordering=z&page=q").status_code == 200


def test_charlie_sees_only_teams_of_his_own(world: World, client: Client) -> None:
    client.force_login(world.user("charlie"))

    page = client.get("/reports/?month=2026-02&by=person").content.decode()

    assert "Bob" not in page
    assert client.get("/reports/2026-02/lines.csv?team=perception").status_code == 404
    assert client.get("/reports/2026-02/report.exe").status_code == 404
    assert client.get("/reports/2026-13/lines.csv").status_code == 404


def test_one_file_has_the_lines_of_all_teams(world: World, client: Client) -> None:
    client.force_login(world.user("finance"))
    total = report_of(period_of(FEBRUARY), teams(), now=world.now).whole.amount_micro

    answer = client.get("/reports/2026-02/lines.csv")

    assert answer["Content-Disposition"] == 'attachment; filename="berth-2026-02-lines.csv"'
    text = b"".join(answer.streaming_content).decode("utf-8-sig")  # type: ignore[attr-defined]
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len({row["team"] for row in rows}) == 2
    assert round(sum(float(row["amount"]) for row in rows) * 1_000_000) == total


def test_the_workbook_has_numbers_as_numbers_and_no_formula(world: World, client: Client) -> None:
    Team.objects.filter(slug="perception").update(name="=1+1")
    client.force_login(world.user("finance"))

    answer = client.get("/reports/2026-02/lines.xlsx")

    book = zipfile.ZipFile(io.BytesIO(b"".join(answer.streaming_content)))  # type: ignore[attr-defined]
    sheets = [book.read(name).decode() for name in book.namelist() if "worksheets/sheet" in name]
    assert len(sheets) == 3  # teams, lines, energy
    assert not any("<f>" in sheet for sheet in sheets)
    assert "=1+1" in "".join(sheets)
    total = report_of(period_of(FEBRUARY), teams(), now=world.now).whole.cost_micro
    assert f"<v>{total / 1_000_000:g}</v>" in sheets[0]  # of the organisation, in its first row


def test_the_paper_names_team_and_person_where_it_is_about_both(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Paper] = []

    def typeset(paper: Paper) -> bytes:
        said.append(paper)
        return b""

    monkeypatch.setattr(files, "pdf", typeset)
    client.force_login(world.user("finance"))

    client.get("/reports/2026-02/report.pdf?team=perception&person=bob")

    assert said[0].facts[0] == ("Of whom", "Perception · bob")


def test_an_open_month_says_that_what_runs_has_no_hours_yet(world: World, client: Client) -> None:
    world.active("bob", at=world.now.replace(hour=8), duration_s=7200)
    client.force_login(world.user("finance"))

    assert "what still runs counts in amounts alone" in client.get("/reports/?month=2026-03").text
    assert "what still runs counts in amounts alone" not in client.get("/reports/?month=2026-01").text


def test_a_lease_without_a_price_is_said_and_not_taken_for_free(world: World, client: Client) -> None:
    lease = world.active("bob", at=world.now.replace(hour=8), duration_s=7200)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(PAST_TRIGGERS)
        cursor.execute("UPDATE catalog_rate SET valid = tstzrange(lower(valid), %s)", [lease.activated_at])
        cursor.execute("SET LOCAL session_replication_role = origin")
    client.force_login(world.user("finance"))

    said = "One lease ran while no price was in force"
    assert said in client.get("/reports/?month=2026-03").text
    assert said not in client.get("/reports/?month=2026-03&person=charlie").text
    assert (
        said
        in report_paper(
            report_of(period_of(MARCH), teams(), now=world.now), of="", energy=EnergyFigures()
        ).notes[0]
    )


def test_of_many_teams_the_days_show_those_that_hold_them(world: World) -> None:
    report = report_of(period_of(FEBRUARY), teams(), by=GroupBy.TEAM, now=world.now)
    top = replace(report.whole, key="top", name="Top", parent="", depth=0)
    parts = [replace(top, key=f"part-{n}", name=f"Part {n}", parent="top", depth=1) for n in (1, 2)]
    below = [
        replace(top, key=f"team-{n}", name=f"Team {n}", parent=f"part-{1 + n % 2}", depth=2)
        for n in range(MOST_PARTS + 2)
    ]
    spent = {row.key: (n + 1) * SHARE_HOUR * 1_000_000 for n, row in enumerate(below)}
    many = replace(report, groups=[top, *parts, *below], exact_by_day={FEBRUARY.date(): spent})
    few = replace(many, exact_by_day={FEBRUARY.date(): dict(list(spent.items())[:3])})

    chart, chart_of_few = day_chart(many), day_chart(few)

    assert chart is not None
    assert chart_of_few is not None
    assert [name for _, name in chart.key] == ["Part 1", "Part 2"]
    assert [name for _, name in chart_of_few.key] == ["Team 2", "Team 1", "Team 0"]
    assert ["16.00 EUR" in chart.parts[0].title, "12.00 EUR" in chart.parts[1].title] == [True, True]

    strays = replace(
        many, groups=many.groups[:-1], exact_by_day={FEBRUARY.date(): spent | {"gone": SHARE_HOUR}}
    )
    chart_of_strays = day_chart(strays)
    assert chart_of_strays is not None, "a team without a row stands for itself"
    assert [name for _, name in chart_of_strays.key] == ["Part 2", "Part 1", "team-6", "gone"]
    assert {part.title.split(" · ")[1] for part in chart_of_strays.parts} == {
        "Part 1",
        "Part 2",
        "team-6",
        "gone",
    }
