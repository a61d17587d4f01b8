"""A node is emptied by a deadline: nothing new comes, leases end there, and all of it can be undone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from portal.audit.models import AuditEntry
from portal.common.errors import Conflict, Invalid
from portal.common.invariants import broken
from portal.fleet.draining import drain_state
from portal.fleet.models import Node
from portal.fleet.services import cordon
from portal.leases import lifecycle
from portal.leases.draining import reached_by_drain, settle_drains
from portal.leases.extending import extend_lease
from portal.leases.maintenance import heed_windows
from portal.leases.models import Lease, LeaseRequest, RequestEvent
from tests.portal.builders import H100, World, make_node
from tests.portal.upkeep import HOUR, assert_cut_in_an_hour, assert_long_again, back, drain, plan

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)


def test_a_drained_node_takes_nothing_new_from_the_first_word_on(world: World) -> None:
    drain(world)

    world.submit("bob", "h100")

    assert world.turn() == []


def test_a_lease_that_would_run_past_the_deadline_ends_there_and_its_holder_is_told_now(world: World) -> None:
    lease = world.active("bob", "h100", duration_s=7200)

    drain(world)

    assert_cut_in_an_hour(world, lease)


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

    assert (node.is_cordoned, node.drain_by, node.cordon_reason) == (False, None, "")
    assert_long_again(world, lease)
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


def test_bookings_before_the_deadline_or_soon_after_are_planned_anew_later_ones_when_they_are_near(
    world: World,
) -> None:
    begins = {"before": HOUR, "soon after": 4 * HOUR, "later": 7 * HOUR}
    asked = {
        name: world.submit("bob", "h100", starts_at=world.now + at, duration_s=1800)
        for name, at in begins.items()
    }
    world.turn()

    drain(world, by=3 * HOUR)

    def state(name: str) -> str:
        return LeaseRequest.objects.get(pk=asked[name].pk).state

    assert {name: state(name) for name in asked} == {
        "before": "queued",
        "soon after": "queued",
        "later": "granted",
    }
    assert heed_windows(now=world.now + 4 * HOUR) == 0, "it begins in three hours"
    assert heed_windows(now=world.now + 5 * HOUR + SECOND) == 1
    assert state("later") == "queued"


def test_a_booking_that_fits_nowhere_else_is_kept_when_the_node_is_back_before_it_comes_near(
    world: World,
) -> None:
    booking = world.submit("bob", "h100", starts_at=world.now + timedelta(days=2))
    world.turn()
    drain(world, by=HOUR)
    heed_windows(now=world.now + timedelta(days=1))
    world.turn()

    back(world)
    world.turn()

    assert LeaseRequest.objects.get(pk=booking.pk).state == "granted"
    assert Lease.objects.get(request=booking).state == "booked"
    assert not world.user("bob").notifications.filter(kind="booking.replanned").exists()


def test_the_preview_counts_the_bookings_that_are_planned_anew_at_once_and_no_others(world: World) -> None:
    world.submit("bob", "h100", starts_at=world.now + 2 * HOUR, duration_s=1800)
    world.submit("alice", "h100", starts_at=world.now + 6 * HOUR, duration_s=1800)
    world.turn()

    found = reached_by_drain(world.nodes["gpu-01"], world.now + HOUR, now=world.now)

    assert [(one.is_booking, one.lease.user.username) for one in found] == [(True, "bob")]


@pytest.mark.parametrize("by", [datetime(2999, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_the_preview_refuses_a_time_that_is_too_far_ahead(world: World, by: datetime) -> None:
    with pytest.raises(Invalid) as refused:
        reached_by_drain(world.nodes["gpu-01"], by, now=world.now)

    assert "90 days" in refused.value.fields["by"]


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
