"""Limits of a quota beside devices: they hold for the team and all below it, wherever something is asked for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from portal.audit.models import AuditEntry
from portal.common.errors import Invalid
from portal.jobs.models import Job
from portal.jobs.services import submit_job
from portal.jobs.spec import JobSpec
from portal.leases.attendees import AttendeeList
from portal.leases.extending import extend_lease
from portal.leases.models import LeaseRequest
from portal.leases.next_blocks import block_sentence, latest_end
from portal.leases.reservations import SeriesSpec, create_reservation
from portal.leases.workshops import WorkshopSpec, create_workshop
from portal.quotas.models import Quota
from portal.quotas.selectors import shortest_run_limit
from portal.quotas.services import set_quota
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


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


@pytest.mark.parametrize("name", ["most_duration_s"])
def test_a_limit_of_nothing_is_refused_by_its_field_and_by_the_database(name: str, world: World) -> None:
    with pytest.raises(Invalid) as refused:
        limit(world, "vision", **{name: 0})
    with pytest.raises(IntegrityError), transaction.atomic():
        Quota.objects.filter(team__slug="vision").update(**{name: 0})

    assert set(refused.value.fields) == {name}
