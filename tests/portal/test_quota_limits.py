"""Limits of a quota beside devices: they hold for the team and all below it, wherever something is asked for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from portal.audit.models import AuditEntry
from portal.billing.metering import meter_all
from portal.common.errors import BudgetExceeded, Invalid
from portal.fleet.models import Node
from portal.jobs.models import Job
from portal.jobs.services import submit_job
from portal.jobs.spec import JobSpec
from portal.leases import bookings, lifecycle
from portal.leases.attendees import AttendeeList
from portal.leases.budget_gate import Expense, hold_budgets, is_limited, judge, limited_teams
from portal.leases.budget_standing import quota_uses
from portal.leases.extending import extend_lease
from portal.leases.models import LeaseRequest
from portal.leases.next_blocks import block_sentence, latest_end
from portal.leases.reasons import sentence
from portal.leases.reservations import SeriesSpec, create_reservation
from portal.leases.workshops import WorkshopSpec, create_workshop
from portal.quotas.models import Quota
from portal.quotas.selectors import shortest_run_limit
from portal.quotas.services import lock_lineages, set_quota
from scheduler import budgets as turn_budgets
from scheduler import snapshot
from tests.billing.zones import lay_down
from tests.portal.builders import World, build_world
from tests.portal.meanwhile import meanwhile

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
MID = datetime(2026, 11, 16, 12, tzinfo=UTC)


def limit(world: World, slug: str, **limits: int | None) -> Quota:
    """Set limits of a team's quota and leave the rest as it is."""
    row = Quota.objects.get(team__slug=slug)
    return set_quota(
        team=world.team(slug), actor=world.user("operator"), rights=world.rights("operator"), now=world.now,
        guaranteed_milli=row.guaranteed_milli, ceiling_milli=row.ceiling_milli, version=row.version, **limits,
    )  # fmt: skip


def _as_bob(world: World) -> dict[str, Any]:
    return {"actor": world.user("bob"), "rights": world.rights("bob")}


def test_a_parents_longest_run_time_binds_its_subtree_and_nobody_else(world: World) -> None:
    limit(world, "vision", most_duration_s=7200)
    limit(world, "perception", most_duration_s=36_000)

    with pytest.raises(Invalid) as refused:
        world.submit("bob", duration_s=7201)

    assert "By the quota of Vision a lease runs for at most 2 h in all." in refused.value.fields["duration_s"]
    assert LeaseRequest.objects.count() == 0
    world.submit("bob", duration_s=7200)
    world.submit("charlie", duration_s=36_000)


def test_an_extension_counts_the_whole_time(world: World) -> None:
    lease = world.active("bob", duration_s=3600)
    limit(world, "vision", most_duration_s=5400)

    with pytest.raises(Invalid) as refused:
        extend_lease(lease=lease, actor=world.user("bob"), extra_s=1801, now=world.now)
    extend_lease(lease=lease, actor=world.user("bob"), extra_s=1800, now=world.now)

    assert "at most 1 h 30 min in all" in refused.value.fields["extra_s"]
    lease.refresh_from_db()
    block = latest_end(lease, now=world.now)
    assert block is not None
    assert (block.why, block.at) == ("quota", lease.not_after)
    assert block_sentence(block).startswith("The quota of Vision lets it run until")


def test_jobs_reservations_and_workshops_are_held_to_the_longest_run_time(world: World) -> None:
    limit(world, "vision", most_duration_s=3600)
    start, who = world.now + 24 * HOUR, _as_bob(world)
    flavor, team = "h100-1g-10gb", world.team("perception")

    with pytest.raises(Invalid) as job:
        submit_job(team=team, spec=JobSpec(["true"], flavor, time_s=3660), now=world.now, **who)
    with pytest.raises(Invalid) as series:
        create_reservation(team=team, spec=SeriesSpec(flavor, 3660, start), now=world.now, **who)
    spec, people = WorkshopSpec("Class", flavor, start, 3660), AttendeeList((world.user("bob"),))
    with pytest.raises(Invalid) as workshop:
        create_workshop(team=team, spec=spec, people=people, now=world.now, rights=world.rights("bob"))

    for refused in (job, series, workshop):
        assert "at most 1 h in all" in str(refused.value.fields["duration_s"])
    assert (Job.objects.count(), LeaseRequest.objects.count()) == (0, 0)


def test_limits_are_kept_changed_and_taken_away_and_written_down(world: World) -> None:
    limit(world, "vision", most_duration_s=3600)
    limit(world, "vision")
    kept = shortest_run_limit(world.team("perception"))
    limit(world, "vision", most_duration_s=None)

    assert kept is not None
    assert (kept.most_s, kept.team) == (3600, "Vision")
    assert shortest_run_limit(world.team("perception")) is None
    told = AuditEntry.objects.filter(action="quota.changed").order_by("id")
    assert [entry.detail["after"]["most_duration_s"] for entry in told] == [3600, 3600, None]


@pytest.mark.parametrize("name", ["most_duration_s", "gpu_seconds_a_month", "most_memory_mib"])
def test_a_limit_of_nothing_is_refused_by_its_field_and_by_the_database(name: str, world: World) -> None:
    with pytest.raises(Invalid) as refused:
        limit(world, "vision", **{name: 0})
    with pytest.raises(IntegrityError), transaction.atomic():
        Quota.objects.filter(team__slug="vision").update(**{name: 0})

    assert set(refused.value.fields) == {name}


@pytest.fixture
def november(db: None) -> World:
    """The small installation in the middle of a month."""
    return build_world(MID)


def refusal(world: World, who: str, **more: Any) -> str:
    """Return with which sentence a request is refused."""
    with pytest.raises(BudgetExceeded) as refused:
        world.submit(who, "h100", **more)
    return str(refused.value)


def test_hours_used_held_and_waited_for_count_and_a_parent_binds_its_subtree(november: World) -> None:
    world = november
    limit(world, "vision", gpu_seconds_a_month=5 * 3600)
    world.ended("bob", "h100", seconds=1800)
    meter_all(now=world.now)
    world.active("bob", "h100", at=world.now - HOUR, duration_s=2 * 3600)
    world.submit("bob", "h100", duration_s=3600)

    said = refusal(world, "alice", duration_s=2 * 3600)

    assert said == (
        "Vision has 1.5 of its 5 GPU-hours of November 2026 left, and this would take 2. Ask for less, wait"
        " until 1 Dec, or ask whoever sets that quota for more."
    )
    uses = quota_uses([Quota.objects.get(team__slug="vision")], now=world.now)
    assert uses[world.team("vision").pk].gpu_seconds == 2.5 * 3600
    world.submit("alice", "h100", duration_s=5400)
    world.submit("charlie", "h100", duration_s=8 * 3600)  # language is not below vision


def test_hours_are_shares_and_more_than_a_month_allows_never_fits(november: World) -> None:
    limit(november, "perception", gpu_seconds_a_month=3600)

    november.submit("bob", "h100-1g-10gb", count=2, duration_s=4 * 3600)  # an eighth each

    said = refusal(november, "bob", duration_s=2 * 3600)
    assert said.startswith(
        "The quota of Perception allows 1 GPU-hours in November 2026, and this would take 2."
    )


def test_hours_of_each_month_that_a_lease_touches_count_in_the_organisations_zone(db: None) -> None:
    midnight = datetime(2026, 11, 30, 16, tzinfo=UTC)  # 1 December in Shanghai
    world = build_world(midnight - HOUR)
    lay_down("Asia/Shanghai")
    limit(world, "vision", gpu_seconds_a_month=2 * 3600)

    world.active("bob", "h100", duration_s=2 * 3600)
    world.submit("bob", "h100", starts_at=midnight - HOUR / 2, duration_s=3600)
    said = refusal(world, "bob", starts_at=midnight - HOUR / 2, duration_s=2 * 3600)

    assert said.startswith(
        "Vision has 0.5 of its 2 GPU-hours of December 2026 left, and this would take 1.5."
    )
    world.submit("bob", "h100", starts_at=midnight + HOUR, duration_s=1800)
    world.submit("bob", "h100", starts_at=midnight - HOUR / 2, duration_s=1800)  # what is left of November


def test_what_waited_does_not_start_past_a_limit_and_keeps_no_place(november: World) -> None:
    world = november
    first, second = world.submit("bob", "h100"), world.submit("bob", "h100")
    other = world.submit("charlie", "h100")
    limit(world, "vision", gpu_seconds_a_month=3600)

    made = world.turn()
    seen, kept = turn_budgets.hold_back(snapshot.take(now=world.now), now=world.now)

    assert {lease.request_id for lease in made} == {first.pk, other.pk}
    assert [wait.claim_id for wait in kept] == [second.pk]
    reason = kept[0].reasons[0]
    assert (reason.code, reason.detail["basis"], reason.detail["left_gpu_s"]) == (
        "budget_reached",
        "hours",
        0,
    )
    assert seen.queue == ()


def test_an_extension_takes_hours_and_no_memory(november: World) -> None:
    lease = november.active("bob", "h100", duration_s=3600)
    limit(november, "vision", gpu_seconds_a_month=2 * 3600, most_memory_mib=1024)

    with pytest.raises(BudgetExceeded, match=r"would take 1\.25"):
        extend_lease(lease=lease, actor=november.user("bob"), extra_s=4500, now=november.now)
    extend_lease(lease=lease, actor=november.user("bob"), extra_s=3600, now=november.now)

    lease.refresh_from_db()
    assert lease.not_after == november.now + 2 * HOUR


def test_memory_above_the_limit_is_refused_and_what_fits_later_waits(november: World) -> None:
    world, each = november, november.flavors["h100"].memory_mib
    limit(world, "vision", most_memory_mib=2 * each)
    said = refusal(world, "bob", count=3)
    lease = world.active("bob", "h100", count=1)
    both = world.submit("bob", "h100", count=2)
    one = world.submit("bob", "h100", count=1)

    _seen, kept = turn_budgets.hold_back(snapshot.take(now=world.now), now=world.now)
    made = world.turn()
    world.ready(*made)
    lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=world.now + HOUR / 2)
    world.gone(lease, at=world.now + HOUR / 2)
    lifecycle.release_lease(lease=made[0], actor=world.user("bob"), now=world.now + HOUR / 2)
    world.gone(made[0], at=world.now + HOUR / 2)
    Node.objects.update(last_seen_at=world.now + HOUR / 2)
    after = world.turn(world.now + HOUR / 2)

    assert said.startswith("The quota of Vision allows")
    assert [wait.claim_id for wait in kept] == [both.pk]
    assert "It starts when enough is freed" in sentence(
        {"code": "budget_reached", **kept[0].reasons[0].detail}
    )
    assert [made_one.request_id for made_one in made] == [one.pk]
    assert [made_one.request_id for made_one in after] == [both.pk]


def test_a_booking_waits_for_memory_when_its_hour_comes(november: World) -> None:
    world, each = november, november.flavors["h100"].memory_mib
    limit(world, "vision", most_memory_mib=each)
    world.submit("bob", "h100", starts_at=world.now + HOUR, duration_s=3600)
    [booked] = world.turn()
    running = world.active("bob", "h100", duration_s=2 * 3600)

    Node.objects.update(last_seen_at=world.now + HOUR)
    early = bookings.start_booked(now=world.now + HOUR)
    lifecycle.release_lease(lease=running, actor=world.user("bob"), now=world.now + HOUR)
    world.gone(running, at=world.now + HOUR)
    then = bookings.start_booked(now=world.now + HOUR)

    booked.refresh_from_db()
    assert (early, then, booked.state) == (0, 1, "preparing")


def test_growth_takes_hours_and_memory(november: World) -> None:
    world, each = november, november.flavors["h100"].memory_mib
    limit(world, "vision", most_memory_mib=2 * each)
    world.active("alice", "h100", count=1, most_count=4, duration_s=3600)

    grown = world.turn() + world.turn()

    assert sum(lease.count for lease in grown) == 1


@pytest.mark.django_db(transaction=True)
def test_of_two_requests_at_once_only_one_takes_the_rest_of_a_month() -> None:
    world = build_world(MID)
    limit(world, "vision", gpu_seconds_a_month=3600)

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            world.submit("bob", "h100", duration_s=3600)
            other = meanwhile(lambda: world.submit("alice", "h100", duration_s=3600), pool)
            assert not other.done()
        with pytest.raises(BudgetExceeded, match="has 0 of its 1 GPU-hours"):
            other.result(timeout=60)

    assert LeaseRequest.objects.count() == 1


def test_without_limits_nothing_is_locked_and_many_are_judged_with_a_fixed_number_of_queries(
    november: World,
) -> None:
    world = november
    bob = world.team("perception")
    assert (is_limited(bob), hold_budgets([bob]), limited_teams()) == (False, False, frozenset())
    limit(world, "vision", gpu_seconds_a_month=10**6, most_memory_mib=10**6)

    assert (is_limited(bob), is_limited(world.team("language"))) == (True, False)
    assert limited_teams() == {world.team(slug).pk for slug in ("vision", "perception", "segmentation")}
    counts = []
    for many in (1, 20):
        one = Expense(bob, 0, world.now, world.now + HOUR, share_milli=1000, memory_mib=100)
        with CaptureQueriesContext(connection) as seen:
            judge([one] * many, now=world.now, with_waiting=False)
        counts.append(len(seen))
    assert counts[0] == counts[1]


@pytest.mark.django_db(transaction=True)
def test_quota_rows_of_teams_beside_are_locked_with_those_that_limit() -> None:
    world = build_world(MID)
    limit(world, "vision", gpu_seconds_a_month=3600)
    other = world.team("language")

    @transaction.atomic
    def free_later() -> None:
        lock_lineages([other.pk])

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            assert hold_budgets([world.team("perception")], beside=[other])
            waiting = meanwhile(free_later, pool)
            assert not waiting.done()
        waiting.result(timeout=60)
