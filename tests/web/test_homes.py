from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation

from portal.billing.daily import MonthDays, MonthSoFar, month_days, month_end, month_so_far
from portal.billing.metering import meter_all
from portal.billing.models import BillingPeriod
from portal.billing.periods import month_bounds, period_of
from portal.billing.selectors import team_spend
from portal.budgets.models import TeamBudget
from portal.budgets.periods import month_start
from portal.fleet.models import HealthEvent, Node
from portal.idle.sweeping import sweep_idle
from portal.leases.availability import availability
from portal.leases.models import Lease
from portal.teams.models import Role, Team
from portal.teams.services import add_member
from portal.telemetry.models import HourRollup
from portal.web.charts import columns_path, line_path, nice_top
from portal.web.home.months import burn_down, by_day, day_text, verdict
from portal.web.home.operator import first_hour
from portal.web.home.troubles import troubles
from tests.portal.builders import World
from tests.portal.test_idle import measure
from tests.web.conftest import Publish, SignedIn

HOUR = timedelta(hours=1)


def measured(world: World, *leases: object, util: float = 60.0) -> None:
    """Say that leases were measured for the whole of the hour before this one, and for this one."""
    hour = world.now.replace(minute=0, second=0, microsecond=0)
    for lease in leases:
        for at in (hour - HOUR, hour):
            HourRollup.objects.create(lease_id=lease.pk, hour=at, minutes=60, util_mean=util)  # type: ignore[attr-defined]


def idles(world: World, *leases: Lease) -> None:
    """Say that nothing computed in leases for the last hour, and have them judged."""
    for lease in leases:
        measure(lease, until=world.now)
    assert sweep_idle(now=world.now) >= len(leases)


def budgets(world: World, **amounts: int) -> None:
    """Give teams so many micro-units for each month from this one on."""
    for slug, amount in amounts.items():
        TeamBudget.objects.create(
            team=world.team(slug), amount_micro=amount, starts_on=month_start(world.now), created_at=world.now
        )


def test_a_gap_is_drawn_as_nothing_and_never_as_zero() -> None:
    drawn = columns_path([0, None, 0], [4, None, 8], 8)

    assert drawn.count("M") == 2
    assert line_path([1, None, 2, 3], 4).count("M") == 2
    assert [nice_top(value)[0] for value in (0, 3.2, 12, 26_000)] == [1.0, 5.0, 20.0, 50_000.0]


def test_the_operators_home_says_what_is_used_who_waits_and_what_needs_a_hand(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    begin = world.now - 3 * HOUR
    lease = world.active("bob", "h100", count=6, duration_s=5 * 3600, at=begin)
    idles(world, lease)
    world.submit("charlie", "h100", count=4)
    world.turn()
    publish(world.now)
    Node.objects.filter(name="gpu-03").update(last_seen_at=world.now - timedelta(minutes=10))
    HealthEvent.objects.create(
        node=world.nodes["gpu-01"], code="xid-79", severity="critical", detail="fell off", at=begin
    )

    text = signed_in("operator").get("/").text

    assert "50 % allocated" in text
    assert "H100 whole" in text
    assert "gpu-03 is silent" in text
    assert "fell off" in text
    assert "One lease idles" in text
    assert f"/leases/{lease.uid}/" in text
    assert "As a table" in text


def test_an_empty_installation_gets_words_instead_of_a_picture(world: World, signed_in: SignedIn) -> None:
    text = signed_in("operator").get("/").text

    assert "Nothing was held yet" in text
    assert "Nobody waits" in text
    assert "nothing needs you" in text


def test_a_person_of_several_roles_chooses_the_home(world: World, signed_in: SignedIn) -> None:
    add_member(team=world.team("vision"), user=world.user("operator"), role=Role.RESEARCHER, now=world.now)
    client = signed_in("operator")

    assert "Needs a hand" in client.get("/").text
    assert "My leases" in client.get("/?home=mine").text
    assert "Needs a hand" not in signed_in("bob").get("/?home=operations").text


@pytest.mark.parametrize("who", ["operator", "finance", "alice", "approver"])
def test_the_number_of_queries_of_a_home_does_not_grow(world: World, signed_in: SignedIn, who: str) -> None:
    client = signed_in(who)

    def one_more() -> None:
        lease = world.active("bob", at=world.now - 2 * HOUR)
        measured(world, lease, util=1.0)
        idles(world, lease)
        world.submit("alice", "h100", count=8)

    one_more()
    client.get("/")
    with CaptureQueriesContext(connection) as few:
        client.get("/")
    for _n in range(3):
        one_more()

    with CaptureQueriesContext(connection) as many:
        client.get("/")

    assert len(many) <= len(few)
    assert len(many) <= 38


def test_finance_sees_the_month_by_team_and_what_stands_in_the_way_of_closing(
    world: World, signed_in: SignedIn
) -> None:
    Team.objects.filter(slug="vision").update(cost_centre="")
    budgets(world, vision=1_000_000, language=1_000_000)
    world.ended("alice", "h100", seconds=1800)
    world.ended("charlie", "h100", seconds=900)
    meter_all(now=world.now)

    text = signed_in("finance").get("/").text

    assert "so far: 2.70 of 2 EUR" in text
    assert text.index(">Vision</a>") < text.index(">Language</a>")
    assert "One team that spends has no cost centre" in text
    assert '"/teams/vision/"' in text.split("has no cost centre")[1].split("has used")[0]
    assert "Vision, its teams included, has used 180 % of its budget" in text
    assert "No forecast yet" in text


def test_a_team_admin_sees_spend_who_waits_who_idles_and_what_was_wasted(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    idle = world.active("bob", "h100", count=6, at=world.now - 2 * HOUR, duration_s=5 * 3600)
    measured(world, idle, util=2.0)
    idles(world, idle)
    waiting = world.submit("alice", "h100", count=3)
    foreign = world.submit("charlie", "h100", count=8)
    world.turn()
    publish(world.now)

    text = signed_in("alice").get("/").text

    assert "Vision spent 43.2" in text
    assert f"/requests/{waiting.uid}/" in text
    assert foreign.uid not in text
    assert f"/leases/{idle.uid}/" in text
    assert "Nothing computed in the last 60 minutes." in text
    assert "42.34" in text  # two hours of six H100 at 3.60, 98 % of it idle
    assert signed_in("alice").get("/?home=team&team=language").status_code == 404


def test_an_approver_reads_what_a_request_would_do_to_those_who_wait(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    perception = world.team("perception")
    perception.approval_above_gpu_seconds = 1
    perception.save()
    world.active("charlie", "h100", count=8, duration_s=3600)
    world.submit("alice", "h100", count=8, duration_s=3600, priority="low")
    world.submit("bob", "h100", count=8, duration_s=2 * 3600)
    world.turn()
    publish(world.now)

    text = signed_in("approver").get("/").text

    assert "One decision waits for you" in text
    assert "one request starts later, by 2 h at most" in text


def test_a_forecast_needs_a_week_and_holds_what_it_says() -> None:
    chance = random.Random(3)
    kept = 0
    for _n in range(400):
        days = [round(chance.gauss(100, 20)) for _day in range(29)]
        end = month_end(days[:14], spent=sum(days[:14]), left=15)
        assert end is not None
        kept += end.low <= sum(days) <= end.high

    assert month_end([100] * 6, spent=600, left=20) is None
    assert 0.72 <= kept / 400 <= 0.88


def test_days_of_a_month_add_up_and_a_night_is_cut_at_midnight(world: World) -> None:
    begin = month_bounds(world.now)[0] + timedelta(hours=23)
    world.ended("alice", "h100", at=begin, seconds=2 * 3600, duration_s=4 * 3600)
    running = world.active("alice", "h100", at=begin + timedelta(days=1), duration_s=6 * 3600)
    meter_all(now=begin + timedelta(days=1, hours=3))
    team, period = world.team("vision"), period_of(begin)

    found = month_days([team.pk], period, now=begin + timedelta(days=1, hours=3))

    assert running.is_metered is False
    assert found.by_team[team.pk][:4] == [3_600_000, 7_200_000, 7_200_000, 0]
    assert found.spent == team_spend([team.pk], period, now=begin + timedelta(days=1, hours=3))[team.pk]


def test_the_strip_says_when_the_usual_size_is_free_by_the_timeline_that_books(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    world.active("charlie", "h100", count=8, duration_s=2 * 3600)
    client = signed_in("bob")
    world.submit("bob", "h100", duration_s=60)
    unknown = client.get("/").text
    publish(world.now)

    text, form = client.get("/").text, client.get("/requests/new/").text
    free = availability(steps=24, now=world.now)

    assert "has not published its picture" in unknown
    assert "kind-unknown" in unknown
    assert "Your usual size, H100 whole, is free from" in text
    assert 'id="free-hours"' in form
    (whole,) = [row.free for row in free.rows if row.flavor.slug == "h100"]
    assert whole[0] == 0
    # Bob's own request of a minute is promised the first place; after it all eight are free.
    assert whole[4:] == [8] * 20


def test_days_and_months_are_written_as_each_language_does() -> None:
    first = date(2026, 11, 3)

    with translation.override("zh-hans"):
        assert day_text(first, 1) == "11月4日"
    with translation.override("en"):
        assert day_text(first, 1) == "4 Nov"


def test_budgets_of_teams_are_a_budget_together_only_if_all_that_spend_have_one(world: World) -> None:
    root, now = world.team("northwind"), world.now
    budgets(world, vision=1_000_000)
    world.ended("bob", "h100", seconds=1800)  # in perception, which is in vision
    meter_all(now=now)

    def budget() -> int | None:
        return month_so_far(root, list(Team.objects.all()), now=now).budget

    of_all_that_spend = budget()
    world.ended("charlie", "h100", seconds=900)
    meter_all(now=now)
    without_one = budget()
    budgets(world, language=2_000_000)

    assert of_all_that_spend == 1_000_000
    assert without_one is None
    assert budget() == 3_000_000


def test_a_note_counts_from_the_first_day_of_what_a_month_adds_up_to() -> None:
    days = MonthDays(datetime(2026, 11, 1, tzinfo=UTC).date(), 3, 2, {1: [5, 7, 0], 2: [1, 0, 0]}, {1: -4})

    assert days.sums == [2, 9, 9]
    assert days.sums[-1] == days.spent


def test_the_running_day_counts_in_the_average_by_its_part() -> None:
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    days = MonthDays(begin.date(), 31, 1, {1: [100_000_000, 50_000_000, *[0] * 29]})
    month = MonthSoFar(BillingPeriod(starts_at=begin), days, days, None, None, begin + 36 * HOUR)

    assert verdict(month, "EUR") == "About 100 EUR a day so far."
    assert by_day(month, {1: "Vision"}, "EUR", url="/", link="").summary == "About 100 EUR a day so far."


@pytest.mark.parametrize(
    ("zone", "begin"),
    [("Europe/Berlin", "03T23:00"), ("Asia/Kolkata", "04T19:00"), ("Asia/Kathmandu", "04T19:00")],
)
def test_a_week_begins_with_a_full_hour_wherever_one_looks(zone: str, begin: str) -> None:
    now = datetime(2026, 3, 10, 20, 44, tzinfo=UTC)
    expected = datetime.fromisoformat(f"2026-03-{begin}:00+00:00")

    with timezone.override(ZoneInfo(zone)):
        assert first_hour(168, now) == expected


def test_a_month_before_that_is_in_no_books_is_unknown_and_not_nothing(world: World) -> None:
    root = world.team("northwind")

    def cells() -> set[str]:
        month = month_so_far(root, [root], now=world.now)
        return {column.cells[1] for column in burn_down(month, "EUR", url="/", link="").columns}

    assert cells() == {"–"}
    period_of(month_bounds(world.now)[0] - HOUR)
    assert "0.00" in cells()


def test_all_that_idles_is_counted(world: World) -> None:
    leases = [world.active("charlie", "h100-1g-10gb", at=world.now - 2 * HOUR) for _n in range(21)]
    idles(world, *leases)

    (idle,) = [one for one in troubles(now=world.now) if "idle" in one.title]

    assert (idle.title, idle.url) == ("21 leases idle", "/idle/")
