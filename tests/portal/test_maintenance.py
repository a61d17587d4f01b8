"""Maintenance windows: who is reached, when leases end, what becomes of bookings, and what is given back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from portal.common.errors import Conflict, Invalid, NotFound
from portal.common.invariants import broken
from portal.fleet.maintenance import nodes_in_maintenance, nodes_named, window_named
from portal.fleet.models import MaintenanceWindow, Node
from portal.leases import lifecycle
from portal.leases.extending import extend_lease
from portal.leases.maintenance import affected, cancel_window, change_window
from portal.leases.models import Lease, LeaseRequest
from tests.portal.builders import World
from tests.portal.upkeep import HOUR, assert_cut_in_an_hour, assert_long_again, plan

pytestmark = pytest.mark.django_db


def test_a_lease_that_runs_into_a_window_ends_before_it_and_its_holder_is_told_now(world: World) -> None:
    lease = world.active("bob", "h100", duration_s=7200)

    plan(world)

    assert_cut_in_an_hour(world, lease)


def test_at_its_start_the_lease_ends_for_maintenance_and_the_rest_goes_back_to_the_queue(
    world: World,
) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    plan(world)

    lifecycle.expire_due(now=world.now + HOUR)
    world.gone(lease, at=world.now + HOUR + timedelta(seconds=3))

    lease.refresh_from_db()
    request = LeaseRequest.objects.get(pk=lease.request_id)
    assert (lease.end_reason, lease.ended_at) == ("maintenance", world.now + HOUR)
    assert (request.state, request.remaining_s) == ("queued", 3600)
    assert broken() == []


def test_a_lease_that_ends_in_time_is_left_alone(world: World) -> None:
    lease = world.active("bob", "h100", duration_s=3600)

    plan(world, start=HOUR)

    lease.refresh_from_db()
    assert (lease.not_after, lease.wanted_until) == (world.now + HOUR, None)
    assert not world.user("bob").notifications.exists()


def test_a_window_that_is_taken_back_gives_leases_their_end_again(world: World) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    window = plan(world)

    cancel_window(window=window, actor=world.user("operator"), now=world.now)

    assert_long_again(world, lease)


def test_a_window_that_moves_moves_the_ends_of_leases_with_it(world: World) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    window = plan(world)

    change_window(
        window=window,
        starts_at=world.now + HOUR / 2,
        ends_at=world.now + HOUR,
        actor=world.user("operator"),
        now=world.now,
    )

    lease.refresh_from_db()
    assert lease.not_after == world.now + HOUR / 2
    assert lease.wanted_until == world.now + 2 * HOUR


def test_bookings_inside_a_window_are_planned_anew_elsewhere_or_refused_with_a_word(world: World) -> None:
    request = world.submit("bob", "h100", starts_at=world.now + HOUR)
    world.turn()
    lease = Lease.objects.get(request=request)

    plan(world)
    world.turn()

    request.refresh_from_db()
    lease.refresh_from_db()
    assert (lease.state, lease.end_reason) == ("ended", "replanned")
    assert request.state == "impossible"
    kinds = set(world.user("bob").notifications.values_list("kind", flat=True))
    assert kinds == {"booking.replanned", "booking.taken"}


def test_nothing_is_placed_on_a_node_while_its_window_is_on_and_everything_after(world: World) -> None:
    plan(world, start=timedelta(), length=HOUR)
    request = world.submit("bob", "h100")

    assert nodes_in_maintenance(now=world.now) == {world.nodes["gpu-01"].pk}
    assert world.turn() == []
    request.refresh_from_db()
    assert request.reasons
    Node.objects.update(last_seen_at=world.now + HOUR)
    assert len(world.turn(at=world.now + HOUR)) == 1


def test_a_lease_that_is_still_being_made_when_a_window_begins_is_stopped_free_of_charge(
    world: World,
) -> None:
    request = world.submit("bob", "h100", duration_s=7200)
    world.turn()

    plan(world, start=timedelta())

    lease = Lease.objects.get(request=request)
    assert (lease.state, lease.end_reason, lease.activated_at) == ("cleaning", "maintenance", None)


def test_the_preview_names_who_loses_how_much_and_changes_nothing(world: World) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    booking = world.submit("charlie", "h100", duration_s=1800, starts_at=world.now + HOUR)
    world.turn()

    found = affected([world.nodes["gpu-01"].pk], world.now + HOUR, world.now + 2 * HOUR, now=world.now)

    assert [(row.lease.request_id, row.loses_s, row.is_booking) for row in found] == [
        (lease.request_id, 3600, False),
        (booking.pk, 1800, True),
    ]
    lease.refresh_from_db()
    assert lease.wanted_until is None


def test_extending_into_a_window_is_refused_with_the_latest_end(world: World) -> None:
    lease = world.active("bob", "h100", duration_s=1800)
    plan(world)

    with pytest.raises(Conflict) as refused:
        extend_lease(lease=lease, actor=world.user("bob"), extra_s=3600, now=world.now)

    assert "new memory" in str(refused.value.detail)
    assert refused.value.facts["latest_end"] == (world.now + HOUR).isoformat()


@pytest.mark.parametrize(
    ("start", "length", "field"),
    [(HOUR, -HOUR, "ends_at"), (-2 * HOUR, HOUR, "ends_at"), (HOUR, timedelta(days=91), "ends_at"),
     (timedelta(days=400), HOUR, "starts_at")],
)  # fmt: skip
def test_times_that_make_no_sense_are_refused_and_nothing_is_stored(
    world: World, start: timedelta, length: timedelta, field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        plan(world, start=start, length=length)

    assert field in refused.value.fields
    assert not MaintenanceWindow.objects.exists()


def test_a_window_needs_nodes_that_exist(world: World) -> None:
    for names in ([], ["gpu-01", "gpu-77"]):
        with pytest.raises(Invalid):
            nodes_named(names)


def test_a_window_that_is_over_cannot_be_changed_and_an_unknown_one_is_missing(world: World) -> None:
    window = plan(world, start=timedelta(), length=HOUR)

    with pytest.raises(Conflict):
        cancel_window(window=window, actor=world.user("operator"), now=world.now + 2 * HOUR)
    with pytest.raises(NotFound):
        window_named("mnt-0000000000000000")
