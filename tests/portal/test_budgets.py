"""Budgets of teams: what counts against them, what they keep from starting, and what the database refuses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from portal.audit.models import AuditEntry
from portal.billing.budgets import budget_course, watch_budgets
from portal.billing.metering import meter_all
from portal.budgets.models import BudgetCrossing, BudgetForecast, BudgetThreshold, TeamBudget
from portal.budgets.periods import stretch_of
from portal.budgets.services import BudgetSpec, ThresholdSpec, change_budget, end_budget, make_budget
from portal.common.errors import BudgetExceeded, Conflict, Forbidden, Invalid
from portal.common.months import Months
from portal.jobs.models import Job
from portal.jobs.services import feed_jobs, submit_job
from portal.jobs.spec import JobSpec
from portal.leases.approvals import approve_request
from portal.leases.budget_standing import standings
from portal.leases.extending import extend_lease
from portal.leases.models import Lease, LeaseRequest
from portal.notifications.models import Notification
from scheduler import budgets as turn_budgets
from scheduler import snapshot
from tests.portal.builders import World, build_world
from tests.portal.meanwhile import meanwhile

UNIT = 1_000_000
MID = datetime(2026, 11, 16, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
# A slice 1g.10gb is an eighth of an H100 of 3.60 an hour, 0.45; a whole one costs 3.60.


@pytest.fixture
def november(db: None) -> World:
    """The small installation in the middle of a month, so that nothing falls into two."""
    return build_world(MID)


def give(world: World, slug: str, amount: float, *marks: tuple[int, str], **more: object) -> TeamBudget:
    """Give a team a budget for each month from this one on."""
    thresholds = tuple(ThresholdSpec(percent, action) for percent, action in marks)
    spec = BudgetSpec(round(amount * UNIT), date(2026, 11, 1), thresholds=thresholds)
    return make_budget(
        team=world.team(slug), actor=world.user("finance"), rights=world.rights("finance"),
        spec=BudgetSpec(**{**{f: getattr(spec, f) for f in spec.__slots__}, **more}), now=world.now,
    )  # fmt: skip


def test_what_is_spent_held_and_waits_counts_and_a_parent_binds_its_subtree(november: World) -> None:
    world = november
    budget = give(world, "vision", 20, (90, "block"))
    world.ended("bob", "h100", seconds=1800)
    meter_all(now=world.now)
    world.active("bob", "h100", at=world.now - HOUR, duration_s=2 * 3600)
    world.submit("bob", "h100", duration_s=3600)

    course = budget_course(world.team("vision"), budget, now=world.now)
    assert course is not None
    standing = course.standing
    assert (standing.spent, standing.held, standing.waiting) == (5_400_000, 3_600_000, 3_600_000)
    with pytest.raises(BudgetExceeded) as refusal:
        world.submit("bob", "h100", duration_s=2 * 3600)  # 12.60 + 7.20 = 19.80 of 18 that may be had

    assert refusal.value.facts["would_percent"] == 99
    assert "Vision would be at 99 %" in str(refusal.value)
    assert "from 1 Dec on" in str(refusal.value)
    assert LeaseRequest.objects.count() == 3
    world.submit("bob", "h100", duration_s=3600)  # 16.20
    world.submit("charlie", "h100", duration_s=2 * 3600)  # language is not below vision


def test_thresholds_ask_for_an_approval_then_for_preemptible_then_stop(november: World) -> None:
    world = november
    give(world, "perception", 10, (30, "approval"), (50, "preemptible"), (80, "block"))

    free = world.submit("bob", "h100", duration_s=1800)  # 1.80
    asks = world.submit("bob", "h100", duration_s=1800)  # 3.60
    with pytest.raises(BudgetExceeded, match="Ask for it as preemptible"):
        world.submit("bob", "h100", duration_s=3600)  # 7.20
    lent = world.submit("bob", "h100", duration_s=3600, is_preemptible=True)
    with pytest.raises(BudgetExceeded, match="nothing new starts"):
        world.submit("bob", "h100", duration_s=3600, is_preemptible=True)

    assert [free.state, asks.state, lent.state] == ["queued", "awaiting_approval", "awaiting_approval"]
    assert asks.reasons[0]["code"] == "budget_reached"
    approve_request(
        request=asks, actor=world.user("approver"), rights=world.rights("approver"), note="", now=world.now
    )
    world.turn()
    assert Lease.objects.filter(request__in=[free, asks]).count() == 2


def test_what_waited_does_not_start_past_a_block_and_keeps_no_place(november: World) -> None:
    world = november
    world.active("bob", "h100", duration_s=3600)
    waits, other = world.submit("bob", "h100", duration_s=3600), world.submit("charlie", "h100")
    budget = give(world, "perception", 5, (100, "block"))

    seen, kept = turn_budgets.hold_back(snapshot.take(now=world.now), now=world.now)
    made = world.turn()

    assert [wait.claim_id for wait in kept] == [waits.pk]
    assert [claim.id for claim in seen.queue] == [other.pk]
    assert kept[0].reasons[0].detail["would_percent"] == 144
    assert [lease.request_id for lease in made] == [other.pk]
    change_budget(
        team=world.team("perception"), budget_id=budget.pk, actor=world.user("finance"),
        rights=world.rights("finance"), version=1, now=world.now,
        spec=BudgetSpec(8 * UNIT, budget.starts_on, thresholds=(ThresholdSpec(100, "block"),)),
    )  # fmt: skip
    assert [lease.request_id for lease in world.turn()] == [waits.pk]


def test_an_extension_and_the_refill_of_an_array_stop_at_a_block(november: World) -> None:
    world = november
    lease = world.active("bob", "h100", duration_s=3600)
    give(world, "perception", 5, (40, "approval"), (100, "block"))

    asked = extend_lease(lease=lease, actor=world.user("bob"), extra_s=600, now=world.now)
    assert asked is not None
    assert asked.state == "awaiting_approval"
    asked.delete()
    with pytest.raises(BudgetExceeded, match="144 %"):
        extend_lease(lease=lease, actor=world.user("bob"), extra_s=3600, now=world.now)


def test_the_database_refuses_what_must_never_happen(november: World) -> None:
    world = november
    budget = give(world, "vision", 10, (50, "approval"), (100, "block"))
    watch_budgets(now=world.now)
    crossing = BudgetCrossing.objects.create(
        budget=budget, since=budget.starts_on, percent=50, basis="actual", action="approval",
        amount_micro=1, figure_micro=1, at=world.now,
    )  # fmt: skip

    for statement in (
        "UPDATE budgets_teambudget SET amount_micro = 0",
        "UPDATE budgets_teambudget SET starts_on = '2026-11-02'",
        "UPDATE budgets_teambudget SET ends_before = starts_on",
        "UPDATE budgets_teambudget SET is_monthly = false",
        "INSERT INTO budgets_teambudget (team_id, amount_micro, is_monthly, starts_on, version, created_at)"
        " SELECT team_id, 5, true, '2027-03-01', 1, now() FROM budgets_teambudget",
        "UPDATE budgets_budgetthreshold SET percent = 40 WHERE action = 'block'",
        "INSERT INTO budgets_budgetthreshold (budget_id, percent, basis, action)"
        " SELECT budget_id, 120, 'actual', 'approval' FROM budgets_budgetthreshold WHERE action = 'block'",
        "UPDATE budgets_budgetthreshold SET percent = 0 WHERE action = 'approval'",
        "UPDATE budgets_budgetcrossing SET figure_micro = 2",
        "DELETE FROM budgets_budgetcrossing",
    ):
        with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
    assert BudgetCrossing.objects.get() == crossing


def test_budgets_follow_each_other_and_changes_of_begun_ones_are_written_down(november: World) -> None:
    world = november
    first = give(world, "vision", 10, (80, "notify"))
    second = give(world, "vision", 12, starts_on=date(2027, 1, 1))
    first.refresh_from_db()
    assert first.ends_before == second.starts_on

    alice = {"actor": world.user("alice"), "rights": world.rights("alice"), "now": world.now}
    with pytest.raises(Forbidden):  # nobody raises their own
        end_budget(team=world.team("vision"), budget_id=first.pk, **alice)
    give_below = {"team": world.team("perception"), "spec": BudgetSpec(UNIT, date(2026, 12, 1)), **alice}
    below = make_budget(**give_below)
    for spec in (
        BudgetSpec(-1, date(2026, 12, 1)),
        BudgetSpec(UNIT, date(2026, 10, 1)),
        BudgetSpec(UNIT, date(2026, 12, 5)),
        BudgetSpec(UNIT, date(2026, 12, 1), is_monthly=False),
        BudgetSpec(UNIT, date(2026, 11, 1), date(2027, 2, 1)),  # december has one already
        BudgetSpec(
            UNIT, date(2027, 5, 1), thresholds=(ThresholdSpec(80, "block"), ThresholdSpec(90, "approval"))
        ),
    ):
        with pytest.raises(Invalid):
            make_budget(**{**give_below, "spec": spec})
    assert end_budget(team=world.team("perception"), budget_id=below.pk, **alice) is None

    finance = {"actor": world.user("finance"), "rights": world.rights("finance"), "now": world.now}
    changed = {"team": world.team("vision"), "budget_id": first.pk, **finance}
    spec = BudgetSpec(15 * UNIT, first.starts_on, first.ends_before)
    with pytest.raises(Conflict):
        change_budget(**changed, spec=spec, version=1)  # it was ended since
    change_budget(**changed, spec=spec, version=2)
    entry = AuditEntry.objects.filter(action="budget.changed").get()
    assert (entry.detail["before"]["amount_micro"], entry.detail["after"]["amount_micro"]) == (
        10 * UNIT,
        15 * UNIT,
    )
    assert entry.detail["before"]["thresholds"] == ["80 % actual: notify"]


def test_people_are_told_once_of_each_threshold_and_a_forecast_can_stop_requests(november: World) -> None:
    world = november
    budget = give(world, "perception", 30, (10, "notify"))
    BudgetThreshold.objects.create(budget=budget, percent=100, basis="forecast", action="block")
    for day in range(8):
        world.ended("bob", "h100", seconds=1800, at=MID - timedelta(days=9 - day))
    meter_all(now=world.now)

    assert [watch_budgets(now=world.now), watch_budgets(now=world.now)] == [2, 0]
    told = Notification.objects.filter(kind="budget.reached")
    assert {row.user.username for row in told} == {"finance"}
    assert told.count() == 2
    kept = BudgetForecast.objects.get()
    assert kept.likely_micro is not None
    assert kept.likely_micro > 30 * UNIT > kept.spent_micro == 14_400_000
    assert kept.earliest_on is not None
    assert kept.runs_out_on is not None
    assert MID.date() < kept.earliest_on <= kept.runs_out_on <= date(2026, 11, 30)
    with pytest.raises(BudgetExceeded, match="will probably end at"):
        world.submit("bob")


def test_an_amount_for_several_months_counts_them_together(november: World) -> None:
    world = november
    world.ended("bob", "h100", seconds=3600, at=MID)
    meter_all(now=MID + 2 * HOUR)
    give(world, "perception", 8, (100, "block"), is_monthly=False, ends_before=date(2027, 2, 1))
    december = MID + timedelta(days=30)

    world.submit("bob", "h100", at=december)
    with pytest.raises(BudgetExceeded, match="108 %"):
        world.submit("bob", "h100", at=december, duration_s=1440)
    together = stretch_of(date(2026, 11, 1), date(2027, 2, 1), Months())
    (standing,) = standings([(world.team("perception").pk, together)], now=december)
    assert (standing.spent, standing.waiting) == (3_600_000, 3_600_000)


def test_a_job_that_the_budget_has_no_room_for_goes_on_waiting(november: World) -> None:
    world = november
    give(world, "perception", 4, (100, "block"))
    spec = JobSpec("true", "h100", time_s=3600, array=[1, 2])
    jobs = submit_job(
        team=world.team("perception"), actor=world.user("bob"), rights=world.rights("bob"), spec=spec,
        now=world.now,
    )  # fmt: skip

    feed_jobs(now=world.now)

    states = dict(Job.objects.values_list("index", "state"))
    assert (len(jobs), set(states.values())) == (2, {"waiting"})
    assert LeaseRequest.objects.count() == 1
    world.turn()  # the first one runs in november
    feed_jobs(now=datetime(2026, 12, 1, 0, 1, tzinfo=UTC))
    assert LeaseRequest.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_of_two_requests_at_once_only_one_takes_the_rest_of_a_budget() -> None:
    world = build_world(MID)
    give(world, "vision", 5, (100, "block"))

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            world.submit("bob", "h100", duration_s=3600)
            other = meanwhile(lambda: world.submit("alice", "h100", duration_s=3600), pool)
            assert not other.done()
        with pytest.raises(BudgetExceeded, match="144 %"):
            other.result(timeout=60)

    assert LeaseRequest.objects.count() == 1
