"""From a plan's word to the holder's warning, the end of the lease, and the way back into the queue."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone

from portal.agents.desired import desired_state
from portal.audit.models import AuditEntry
from portal.billing.metering import meter_all
from portal.common.invariants import broken
from portal.fleet.models import Node
from portal.leases import lifecycle, preempting
from portal.leases.models import Lease, LeaseEvent, LeaseRequest
from portal.leases.requests import withdraw_request
from portal.policies.models import Policy
from portal.quotas.models import Cohort, Quota
from scheduler import snapshot, snapshot_rows
from tests.portal.builders import World

pytestmark = pytest.mark.django_db

GRACE = timedelta(seconds=120)


def full(world: World, **fields: object) -> list[Lease]:
    """Eight leases of bob's on all eight H100, running for an hour."""
    began = world.now - timedelta(hours=1)
    Quota.objects.update(ceiling_milli=None, guaranteed_milli=0)
    leases = []
    for _ in range(8):
        request = world.submit("bob", "h100", duration_s=5 * 3600, at=began)
        LeaseRequest.objects.filter(pk=request.pk).update(**fields)
        world.turn(began)
        lease = Lease.objects.get(request=request)
        world.ready(lease, at=began)
        lease.refresh_from_db()
        leases.append(lease)
    return leases


def turn(world: World, at: datetime) -> None:
    """Take a turn at a later time, with all nodes heard."""
    Node.objects.update(last_seen_at=at)
    world.turn(at)


def told(world: World) -> tuple[LeaseRequest, Lease]:
    """A request of charlie's for which one of bob's leases was told to go."""
    full(world, is_preemptible=True)
    request = world.submit("charlie", "h100")
    world.turn()
    return request, Lease.objects.get(preempted_for=request)


def test_a_lease_is_told_with_a_time_and_its_holder_its_node_and_the_log_hear_it(world: World) -> None:
    before = Node.objects.get(name="gpu-01").desired_revision
    request, lease = told(world)

    assert lease.preempt_at == world.now + GRACE
    assert lease.not_after > lease.preempt_at  # its own end stays what it was
    note = world.user("bob").notifications.get(kind="lease.preempted_soon")
    assert (note.target, note.facts["why"]) == (lease.uid, "priority")
    assert AuditEntry.objects.filter(action="lease.told_to_go", target=lease.uid).exists()
    assert Node.objects.get(name="gpu-01").desired_revision > before
    request.refresh_from_db()
    assert request.reasons[0]["code"] == "room_is_made"
    assert request.reasons[0]["leases"] == [lease.pk]


def test_it_is_told_once_and_others_do_not_get_its_place(world: World) -> None:
    _request, _lease = told(world)

    turn(world, world.now + timedelta(seconds=5))

    assert Lease.objects.filter(preempt_at__isnull=False).count() == 1
    assert world.user("bob").notifications.filter(kind="lease.preempted_soon").count() == 1


def test_it_ends_at_the_time_it_was_told_and_comes_back_with_what_is_left(world: World) -> None:
    request, lease = told(world)
    later = world.now + timedelta(seconds=125)

    assert preempting.preempt_due(now=world.now + timedelta(seconds=119)) == 0
    assert preempting.preempt_due(now=later) == 1
    assert preempting.preempt_due(now=later) == 0
    lease.refresh_from_db()
    assert (lease.state, lease.end_reason, lease.ended_at) == ("ending", "preempted", lease.preempt_at)
    world.gone(lease, at=later)

    back = LeaseRequest.objects.get(pk=lease.request_id)
    assert (back.state, back.evictions, back.attempts) == ("queued", 1, 1)
    assert back.remaining_s == 5 * 3600 - 3600 - 120
    turn(world, later)
    assert Lease.objects.get(request=request).state == "preparing"
    back.refresh_from_db()
    assert back.state == "queued"
    assert broken() == []


def test_a_higher_request_does_not_slip_into_the_place_while_it_is_cleaned(world: World) -> None:
    request, lease = told(world)
    later = world.now + timedelta(seconds=125)
    preempting.preempt_due(now=later)
    urgent = world.submit("alice", "h100", priority="high", at=later)
    turn(world, later)
    world.gone(lease, at=later)
    turn(world, later)

    assert Lease.objects.get(request=request).state == "preparing"
    assert not Lease.objects.filter(request=urgent).exists()


def test_the_money_clock_stops_at_the_time_that_was_told(world: World) -> None:
    _request, lease = told(world)
    later = world.now + timedelta(minutes=5)
    preempting.preempt_due(now=later)
    world.gone(lease, at=later)
    meter_all(now=later)

    assert sum(lease.usage.values_list("seconds", flat=True)) == 3600 + 120


def test_a_holder_who_releases_earlier_ends_earlier(world: World) -> None:
    request, lease = told(world)
    at = world.now + timedelta(seconds=30)
    lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=at)
    world.gone(lease, at=at)
    turn(world, at)

    lease.refresh_from_db()
    assert (lease.end_reason, lease.request.state) == ("released", "fulfilled")
    assert Lease.objects.get(request=request).state == "preparing"


def test_a_withdrawn_request_spares_the_lease_and_its_holder_hears_it(world: World) -> None:
    request, lease = told(world)
    withdraw_request(
        request=request, actor=world.user("charlie"), rights=world.rights("charlie"), now=world.now
    )

    assert preempting.spare_idle(now=world.now + timedelta(seconds=5)) == 1
    assert preempting.spare_idle(now=world.now + timedelta(seconds=5)) == 0
    assert preempting.preempt_due(now=world.now + timedelta(minutes=5)) == 0
    lease.refresh_from_db()
    assert (lease.state, lease.preempt_at, lease.preempted_for) == ("active", None, None)
    assert world.user("bob").notifications.filter(kind="lease.spared", target=lease.uid).exists()


def test_a_request_that_starts_elsewhere_spares_the_lease(world: World) -> None:
    request, lease = told(world)
    other = Lease.objects.filter(preempt_at=None).first()
    assert other is not None
    at = world.now + timedelta(seconds=20)
    lifecycle.release_lease(lease=other, actor=world.user("bob"), now=at)
    world.gone(other, at=at)
    turn(world, at)

    assert Lease.objects.get(request=request).state == "preparing"
    preempting.spare_idle(now=at)
    lease.refresh_from_db()
    assert lease.preempt_at is None


def test_being_preempted_is_no_failure_however_often(world: World) -> None:
    _request, lease = told(world)
    LeaseRequest.objects.filter(pk=lease.request_id).update(attempts=9, evictions=9)
    Lease.objects.filter(pk=lease.pk).update(generation=10)
    preempting.preempt_due(now=world.now + GRACE)
    world.gone(lease, at=world.now + GRACE)

    back = LeaseRequest.objects.get(pk=lease.request_id)
    assert (back.state, back.evictions) == ("queued", 10)


def test_the_agent_gets_the_new_end_and_the_notice_once_it_understands_it(world: World) -> None:
    _request, lease = told(world)
    node = Node.objects.get(name="gpu-01")

    def sent() -> object:
        wanted = desired_state(node.pk, now=world.now + timedelta(seconds=20))
        return next(one for one in wanted.leases if one.lease == lease.uid)

    Node.objects.update(power_state="")
    assert (sent().remaining_s, sent().notice) == (105, None)  # type: ignore[attr-defined]
    Node.objects.update(power_state="unsupported")
    notice = sent().notice  # type: ignore[attr-defined]
    assert (notice.why, notice.in_s) == ("priority", 100)


def test_a_lease_that_is_interrupted_goes_too(world: World) -> None:
    _request, lease = told(world)
    Node.objects.update(last_seen_at=world.now - timedelta(hours=1))
    lifecycle.interrupt_lost(now=world.now)

    assert preempting.preempt_due(now=world.now + GRACE) == 1
    lease.refresh_from_db()
    assert (lease.state, lease.end_reason) == ("cleaning", "preempted")


def test_guarantees_are_taken_back_from_leases_that_never_agreed(world: World) -> None:
    cohort = Cohort.objects.create(name="Labs", created_at=timezone.now())
    leases = full(world)
    Quota.objects.filter(team__slug="vision").update(cohort=cohort, guaranteed_milli=6000)
    Quota.objects.filter(team__slug="language").update(cohort=cohort, guaranteed_milli=2000)
    request = world.submit("charlie", "h100", count=2)
    world.turn()

    went = list(Lease.objects.filter(preempted_for=request).values_list("pk", flat=True))
    assert len(went) == 2
    assert set(went) < {lease.pk for lease in leases}
    later = world.now + GRACE
    preempting.preempt_due(now=later)
    for lease in Lease.objects.filter(pk__in=went):
        world.gone(lease, at=later)
    turn(world, later)
    assert Lease.objects.get(request=request).count == 2
    turn(world, later + timedelta(hours=1))
    assert not Lease.objects.filter(preempt_at__gt=later).exists()  # nobody takes it back from them


def test_rows_tell_the_engine_who_is_owed_and_who_yields(world: World) -> None:
    request, lease = told(world)
    later = world.now + GRACE
    preempting.preempt_due(now=later)
    assert lease.pk in {one.lease_id for one in snapshot.take(now=later).running}  # it still has its place
    world.gone(lease, at=later)

    claims = {claim.id: claim for claim in snapshot.take(now=later).queue}

    assert claims[request.pk].is_owed
    assert claims[lease.request_id].yields_to == frozenset({request.pk})
    assert claims[lease.request_id].evictions == 1
    claims = {claim.id: claim for claim in snapshot.take(now=later + timedelta(minutes=6)).queue}
    assert not claims[request.pk].is_owed


def test_a_grant_of_steps_raises_leases_as_it_raises_requests(world: World) -> None:
    leases = full(world)
    world.team("perception").priority_grants.create(
        steps=7, starts_at=world.now, ends_at=world.now + timedelta(days=1), reason="x", created_at=world.now
    )
    snapshot_rows.forget()

    running = {one.lease_id: one.priority for one in snapshot.take(now=world.now).running}

    assert set(running.values()) == {7}
    assert len(running) == len(leases)


def test_a_policy_that_takes_nothing_back_is_obeyed(world: World) -> None:
    body = {"order": "priority_fifo", "place": "default", "preempting": {"preemptible": False}}
    Policy.objects.create(version=1, name="firm", is_active=True, created_at=world.now, body=body)
    full(world, is_preemptible=True)
    request = world.submit("charlie", "h100")
    world.turn()

    assert not Lease.objects.filter(preempted_for=request).exists()


def test_states_and_events_agree_after_all_of_it(world: World) -> None:
    _request, lease = told(world)
    preempting.preempt_due(now=world.now + GRACE)
    world.gone(lease, at=world.now + GRACE)

    steps = list(LeaseEvent.objects.filter(lease=lease).values_list("now", "reason"))
    assert ("ending", "preempted") in steps
    assert broken() == []


def test_the_sweep_looks_at_told_leases_by_index(world: World) -> None:
    with connection.cursor() as cursor:
        # In a table without rows each partial index costs the same: those that would only be read through go.
        cursor.execute("DROP INDEX one_wanted_lease_per_part, one_live_lease_per_part")
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(
            "EXPLAIN SELECT id FROM leases_lease WHERE preempted_for_id IS NOT NULL AND clean_at IS NULL"
            " AND preempt_at <= now() AND state IN ('preparing', 'active', 'interrupted')"
        )
        shown = "\n".join(row[0] for row in cursor.fetchall())

    assert "lease_makes_room" in shown
