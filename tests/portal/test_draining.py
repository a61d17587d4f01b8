"""A node is emptied by a deadline: nothing new comes, leases end there, and all of it can be undone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from portal.audit.models import AuditEntry
from portal.common.errors import Conflict, Invalid
from portal.common.invariants import broken
from portal.fleet.draining import drain_state, settle_drains
from portal.fleet.models import Node
from portal.fleet.services import cordon
from portal.leases import lifecycle
from portal.leases.draining import bring_back, drain_node, reached_by_drain
from portal.leases.extending import extend_lease
from portal.leases.maintenance import heed_windows
from portal.leases.models import Lease, LeaseRequest, RequestEvent
from tests.portal.builders import H100, World, make_node
from tests.portal.test_maintenance import plan

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


def drain(world: World, by: timedelta = HOUR, node: str = "gpu-01", reason: str = "new memory") -> Node:
    return drain_node(
        node=world.nodes[node],
        by=world.now + by,
        reason=reason,
        actor=world.user("operator"),
        now=world.now,
    )


def back(world: World, node: str = "gpu-01") -> Node:
    return bring_back(node=world.nodes[node], actor=world.user("operator"), now=world.now)


def test_a_drained_node_takes_nothing_new_from_the_first_word_on(world: World) -> None:
    drain(world)

    world.submit("bob", "h100")

    assert world.turn() == []


def test_a_lease_that_would_run_past_the_deadline_ends_there_and_its_holder_is_told_now(world: World) -> None:
    lease = world.active("bob", "h100", duration_s=7200)

    drain(world)

    lease.refresh_from_db()
    assert (lease.not_after, lease.cut_by) == (world.now + HOUR, "maintenance")
    assert lease.wanted_until == world.now + 2 * HOUR
    news = world.user("bob").notifications.get(kind="lease.cut_by_maintenance")
    assert news.facts["reason"] == "new memory"
    assert heed_windows(now=world.now) == 0


def test_at_the_deadline_money_stops_and_the_rest_goes_back_to_the_queue_with_its_own_word(
    world: World,
) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    drain(world)

    lifecycle.expire_due(now=world.now + HOUR)
    world.gone(lease, at=world.now + HOUR + 3 * SECOND)

    lease.refresh_from_db()
    request = LeaseRequest.objects.get(pk=lease.request_id)
    assert (lease.end_reason, lease.ended_at) == ("maintenance", world.now + HOUR)
    assert (request.state, request.remaining_s, request.evictions) == ("queued", 3600, 0)
    last = RequestEvent.objects.filter(request=request).latest("id")
    assert last.reason == "the lease made way for maintenance"
    assert broken() == []


def test_a_lease_that_ends_in_time_is_left_alone(world: World) -> None:
    lease = world.active("bob", "h100", duration_s=1800)

    drain(world)

    lease.refresh_from_db()
    assert (lease.not_after, lease.wanted_until) == (world.now + HOUR / 2, None)
    assert not world.user("bob").notifications.exists()


def test_a_lease_on_a_draining_node_is_not_extended_past_the_deadline(world: World) -> None:
    lease = world.active("bob", "h100", duration_s=1800)
    drain(world)

    with pytest.raises(Conflict, match="new memory"):
        extend_lease(lease=lease, actor=world.user("bob"), extra_s=3600, now=world.now)


def test_brought_back_the_node_takes_work_and_leases_get_their_end_again(world: World) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    drain(world)

    node = back(world)

    lease.refresh_from_db()
    assert (node.is_cordoned, node.drain_by, node.cordon_reason) == (False, None, "")
    assert (lease.not_after, lease.wanted_until, lease.cut_by) == (world.now + 2 * HOUR, None, "")
    assert world.user("bob").notifications.filter(kind="lease.longer_again").exists()
    assert back(world).drain_by is None, "safe to repeat"


def test_what_has_ended_by_then_does_not_come_back(world: World) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    drain(world)
    lifecycle.expire_due(now=world.now + HOUR)

    back(world)

    lease.refresh_from_db()
    assert (lease.state, lease.end_reason) == ("ending", "maintenance")


def test_another_deadline_moves_the_ends_and_the_same_one_changes_nothing(world: World) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    drain(world)
    told = AuditEntry.objects.count()

    drain(world)
    assert AuditEntry.objects.count() == told

    drain(world, by=HOUR / 2)
    lease.refresh_from_db()
    assert lease.not_after == world.now + HOUR / 2
    assert lease.wanted_until == world.now + 2 * HOUR


def test_a_deadline_of_now_ends_what_runs_and_what_is_being_made(world: World) -> None:
    running = world.active("bob", "h100-1g-10gb", duration_s=7200, at=world.now - HOUR)
    world.submit("alice", "h100-1g-10gb")
    (coming,) = world.turn()

    drain(world, by=-HOUR)
    lifecycle.expire_due(now=world.now)

    running.refresh_from_db()
    coming.refresh_from_db()
    assert (running.state, running.ended_at) == ("ending", world.now)
    assert (coming.state, coming.end_reason, coming.activated_at) == ("cleaning", "maintenance", None)


def test_the_earlier_of_a_window_and_a_deadline_counts(world: World) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    drain(world, by=HOUR)
    window_start = HOUR / 2
    plan(world, start=window_start)

    lease.refresh_from_db()
    assert lease.not_after == world.now + window_start

    back(world)
    lease.refresh_from_db()
    assert lease.not_after == world.now + window_start


def test_all_parts_of_a_gang_end_when_the_node_of_one_is_emptied(world: World) -> None:
    world.nodes["gpu-07"] = make_node("gpu-07", H100, 2, ("exclusive",), now=world.now)
    request = world.submit("bob", "h100", nodes=2, duration_s=7200)
    leases = world.turn()
    world.ready(*leases)

    drain(world, node="gpu-07")
    lifecycle.expire_due(now=world.now + HOUR)

    ends = {
        ls.node_id: (ls.state, ls.ended_at, ls.end_reason) for ls in Lease.objects.filter(request=request)
    }
    assert len(ends) == 2
    assert set(ends.values()) == {("ending", world.now + HOUR, "maintenance")}
    world.gone(*leases, at=world.now + HOUR + SECOND)
    request.refresh_from_db()
    assert (request.state, request.remaining_s) == ("queued", 3600)


def test_bookings_of_the_coming_days_are_planned_anew_and_later_ones_wait_until_they_are_near(
    world: World,
) -> None:
    soon = world.submit("bob", "h100", starts_at=world.now + HOUR)
    late = world.submit("alice", "h100", starts_at=world.now + timedelta(days=30))
    world.turn()

    drain(world)

    states = {r.uid: r.state for r in LeaseRequest.objects.filter(pk__in=[soon.pk, late.pk])}
    assert states == {soon.uid: "queued", late.uid: "granted"}
    assert heed_windows(now=world.now + timedelta(days=25)) == 1


def test_the_node_is_drained_when_its_last_lease_is_clean_and_operators_are_told_once(world: World) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    node = drain(world)
    assert drain_state(node, now=world.now) == "draining"

    lifecycle.expire_due(now=world.now + HOUR)
    assert settle_drains(now=world.now + HOUR + SECOND) == 0
    node.refresh_from_db()
    assert drain_state(node, now=world.now + HOUR + SECOND) == "overdue", "a slice is still being cleaned"

    world.gone(lease, at=world.now + HOUR + 2 * SECOND)
    assert settle_drains(now=world.now + HOUR + 3 * SECOND) == 1
    assert settle_drains(now=world.now + HOUR + 4 * SECOND) == 0
    node.refresh_from_db()
    assert drain_state(node, now=world.now + 2 * HOUR) == "drained"
    assert world.user("operator").notifications.get(kind="node.drained").facts["node"] == "gpu-01"


def test_an_empty_node_is_drained_at_once(world: World) -> None:
    assert drain_state(drain(world), now=world.now) == "drained"


def test_a_lease_granted_in_the_same_instant_ends_at_the_deadline_and_takes_the_note_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scheduler import commit

    world.submit("bob", "h100", duration_s=7200)
    store = commit.grants

    def after_the_drain(*args, **kwargs):  # type: ignore[no-untyped-def]
        drain(world)
        return store(*args, **kwargs)

    monkeypatch.setattr(commit, "grants", after_the_drain)
    (lease,) = world.turn()
    assert Node.objects.get(name="gpu-01").drained_at is not None

    settle_drains(now=world.now)
    world.ready(lease)
    heed_windows(now=world.now)

    lease.refresh_from_db()
    node = Node.objects.get(name="gpu-01")
    assert (lease.not_after, lease.cut_by) == (world.now + HOUR, "maintenance")
    assert drain_state(node, now=world.now) == "draining"


def test_the_preview_names_who_loses_how_much_and_changes_nothing(world: World) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    short = world.active("alice", "h100", duration_s=600)

    found = reached_by_drain(world.nodes["gpu-01"], world.now + HOUR, now=world.now)

    assert [(one.lease.pk, one.loses_s) for one in found] == [(lease.pk, 3600)]
    lease.refresh_from_db()
    short.refresh_from_db()
    assert lease.wanted_until is None
    assert not Node.objects.get(name="gpu-01").is_cordoned


@pytest.mark.parametrize(("by", "reason"), [(HOUR, " "), (timedelta(days=91), "new memory")])
def test_without_a_reason_or_too_far_ahead_nothing_changes(world: World, by: timedelta, reason: str) -> None:
    with pytest.raises(Invalid):
        drain(world, by=by, reason=reason)

    assert not Node.objects.get(name="gpu-01").is_cordoned


def test_a_cordoned_node_becomes_a_draining_one_and_a_new_reason_does_not_end_the_drain(world: World) -> None:
    operator = world.user("operator")
    cordon(node=world.nodes["gpu-01"], actor=operator, reason="odd noise", now=world.now)
    drain(world)
    cordon(node=world.nodes["gpu-01"], actor=operator, reason="fan is broken", now=world.now)

    node = Node.objects.get(name="gpu-01")
    assert (node.drain_by, node.cordon_reason) == (world.now + HOUR, "fan is broken")
