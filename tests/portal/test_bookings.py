"""Bookings: kept by the database, begun at their time, planned anew when something is in the way."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import transaction

from portal.common.errors import Conflict, NotFound
from portal.common.invariants import broken
from portal.fleet.models import Device
from portal.leases import bookings, lifecycle
from portal.leases.extending import extend_lease
from portal.leases.models import Lease, LeaseEvent, LeaseRequest, Placement, SharedHost
from portal.leases.next_blocks import latest_end
from portal.leases.requests import withdraw_request
from portal.quotas.models import Quota
from scheduler import commit, snapshot
from scheduler.engine.model import Grant, GrantedSlot
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def board(index: int = 0, node: str = "gpu-01") -> Device:
    return Device.objects.get(node__name=node, index=index)


@transaction.atomic
def book(
    world: World,
    request: LeaseRequest,
    *,
    device: Device | None = None,
    start: int = 0,
    now: datetime | None = None,
) -> Lease | None:
    """Commit a booking of a request for one slice or board, as a turn would."""
    device = device or board()
    flavor, now = request.flavor, now or world.now
    size = {"exclusive": device.model.grid, "mig": 1}.get(flavor.mode, 0)
    slot = GrantedSlot(
        device.pk, flavor.mode, start, size, flavor.share_milli, flavor.memory_mib, flavor.profile,
        board_memory_mib=device.model.memory_mib if size == 0 else 0,
    )  # fmt: skip
    grant = Grant(
        request.pk, request.team_id, device.node_id, (slot,), request.cost_milli, request.remaining_s,
        starts_at=request.starts_at,
    )  # fmt: skip
    made = commit.grants([grant], policy_version=1, now=now, snapshot=snapshot.take(now=now))
    return made[0] if made else None


def booked(
    world: World, name: str = "bob", flavor: str = "h100", *, after: timedelta = HOUR, **more: object
) -> Lease:
    request = world.submit(name, flavor, starts_at=world.now + after, **more)
    lease = book(world, request)
    assert lease is not None
    return lease


def used(slug: str = "perception") -> int:
    return Quota.objects.get(team__slug=slug).used_milli


def heard(world: World, at: datetime) -> None:
    """Let every node be heard at an instant."""
    for node in world.nodes.values():
        node.last_seen_at = at
        node.save(update_fields=["last_seen_at"])


def start(world: World, at: datetime) -> int:
    heard(world, at)
    return bookings.start_booked(now=at)


def test_a_booking_holds_its_place_and_time_but_no_quota_yet(world: World) -> None:
    lease = booked(world)

    assert (lease.state, lease.request.state) == ("booked", "granted")
    assert Placement.objects.get(lease=lease).period.lower == world.now + HOUR
    assert used() == 0
    assert broken() == []


def test_a_booking_begins_at_its_time_and_takes_its_quota_then(world: World) -> None:
    lease = booked(world, duration_s=3600)

    assert start(world, world.now + HOUR - timedelta(seconds=1)) == 0
    assert start(world, world.now + HOUR) == 1

    world.ready(lease, at=world.now + HOUR + timedelta(seconds=20))
    lease.refresh_from_db()
    assert (lease.state, lease.not_after) == ("active", world.now + 2 * HOUR)
    assert used() == lease.cost_milli
    steps = LeaseEvent.objects.filter(lease=lease).values_list("now", flat=True)
    assert list(steps) == ["booked", "preparing", "active"]
    assert broken() == []


def test_two_bookings_of_one_place_and_time_cannot_both_be_stored(world: World) -> None:
    booked(world)
    other = world.submit("charlie", "h100", starts_at=world.now + HOUR + timedelta(minutes=30))

    assert book(world, other) is None

    other.refresh_from_db()
    assert other.state == "queued"


def test_what_is_granted_now_ends_before_the_booking_behind_it(world: World) -> None:
    booked(world, after=HOUR)
    before = world.submit("charlie", "h100", duration_s=3600)
    lease = book(world, before)
    assert lease is not None

    world.ready(lease, at=world.now + timedelta(seconds=30))

    lease.refresh_from_db()
    assert lease.not_after == world.now + HOUR
    assert Placement.objects.get(lease=lease).period.upper == world.now + HOUR


def test_ending_a_lease_right_before_a_booking_holds_it_no_further_than_that(world: World) -> None:
    lease = world.active("charlie", "h100", duration_s=3600)
    device = Placement.objects.get(lease=lease).device
    request = world.submit("bob", "h100", starts_at=world.now + HOUR)
    later = book(world, request, device=device)
    assert later is not None

    lifecycle.expire_due(now=world.now + HOUR)
    lifecycle.prolong_holds(now=world.now + HOUR)

    assert Placement.objects.get(lease=lease).period.upper == world.now + HOUR
    assert broken() == []


def test_a_booking_waits_for_a_slice_to_be_clean_and_then_begins(world: World) -> None:
    lease = world.active("charlie", "h100", duration_s=3600)
    request = world.submit("bob", "h100", starts_at=world.now + HOUR)
    later = book(world, request, device=Placement.objects.get(lease=lease).device)
    assert later is not None
    lifecycle.expire_due(now=world.now + HOUR)

    assert start(world, world.now + HOUR) == 0
    world.gone(lease, at=world.now + HOUR + timedelta(seconds=5))
    assert start(world, world.now + HOUR + timedelta(seconds=6)) == 1


def test_a_booking_begins_no_earlier_than_its_place_was_given_back(world: World) -> None:
    running = world.active("charlie", "h100", duration_s=3600)
    request = world.submit("bob", "h100", starts_at=world.now + HOUR)
    later = book(world, request, device=Placement.objects.get(lease=running).device)
    assert later is not None
    lifecycle.expire_due(now=world.now + HOUR)
    clean_at = world.now + HOUR + timedelta(milliseconds=1500)
    world.gone(running, at=clean_at)

    # The sweep took its instant before the node's report came.
    assert start(world, world.now + HOUR + timedelta(milliseconds=1200)) == 1

    assert LeaseEvent.objects.get(lease=later, now="preparing").at == clean_at


@pytest.mark.parametrize("why", ["held", "cordoned", "device", "quota"])
def test_a_booking_that_cannot_begin_is_planned_anew_and_its_author_is_told_why(
    world: World, why: str
) -> None:
    running = world.active("charlie", "h100", duration_s=3600)
    request = world.submit("bob", "h100", starts_at=world.now + HOUR)
    lease = book(world, request, device=Placement.objects.get(lease=running).device)
    assert lease is not None
    at = world.now + HOUR
    if why != "held":
        lifecycle.expire_due(now=at)
        world.gone(running, at=at)
    if why == "cordoned":
        world.nodes["gpu-01"].is_cordoned = True
        world.nodes["gpu-01"].save(update_fields=["is_cordoned"])
    elif why == "device":
        Device.objects.filter(placements__lease=lease).update(health="quarantined")
    elif why == "quota":
        Quota.objects.filter(team__slug="vision").update(ceiling_milli=1, guaranteed_milli=0)

    assert start(world, at) == start(world, at + timedelta(seconds=121)) == 0

    lease.refresh_from_db()
    request.refresh_from_db()
    assert (lease.state, lease.end_reason, request.state) == ("ended", "replanned", "queued")
    assert not Placement.objects.get(lease=lease).is_live
    news = world.user("bob").notifications.get(kind="booking.replanned")
    assert news.facts["why"] == why
    assert broken() == []


def test_a_booking_is_given_up_free_of_charge_and_its_place_is_free_again(world: World) -> None:
    lease = booked(world)

    withdraw_request(
        request=lease.request, actor=world.user("bob"), rights=world.rights("bob"), now=world.now
    )

    lease.refresh_from_db()
    assert (lease.state, LeaseRequest.objects.get(pk=lease.request_id).state) == ("ended", "withdrawn")
    assert book(world, world.submit("charlie", "h100", starts_at=world.now + HOUR)) is not None
    assert used() == 0
    assert broken() == []


def test_releasing_a_booking_gives_it_up_too(world: World) -> None:
    lease = booked(world)

    lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=world.now)
    lifecycle.release_lease(lease=Lease.objects.get(pk=lease.pk), actor=world.user("bob"), now=world.now)

    assert LeaseRequest.objects.get(pk=lease.request_id).state == "withdrawn"


def test_charlie_cannot_give_up_a_booking_of_another_team(world: World) -> None:
    lease = booked(world)

    with pytest.raises(NotFound):
        withdraw_request(
            request=lease.request, actor=world.user("charlie"), rights=world.rights("charlie"), now=world.now
        )

    assert Lease.objects.get(pk=lease.pk).state == "booked"


def test_a_holder_is_reminded_once_before_the_start_and_warned_again_before_the_end(world: World) -> None:
    lease = booked(world, after=HOUR, duration_s=7200)
    near = world.now + HOUR - timedelta(minutes=10)

    assert bookings.remind_due(now=world.now) == 0
    assert bookings.remind_due(now=near) == 1
    assert bookings.remind_due(now=near) == 0
    start(world, world.now + HOUR)

    assert world.user("bob").notifications.get().kind == "booking.soon"
    lease.refresh_from_db()
    assert lease.warned_at is None


def test_a_booked_share_shares_its_board_and_leaves_nothing_behind(world: World) -> None:
    device = board(node="gpu-03")
    first = world.submit("bob", "l40s-quarter", starts_at=world.now + HOUR)
    second = world.submit("bob", "l40s-quarter", starts_at=world.now + HOUR)
    leases = [book(world, request, device=device) for request in (first, second)]

    assert SharedHost.objects.get().clients == 0  # they count from their start on
    for lease in leases:
        assert lease is not None
        lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=world.now)

    assert not Placement.objects.filter(is_live=True).exists()
    assert broken() == []


def test_a_booked_share_begins_no_earlier_than_room_was_made_for_it_on_its_board(world: World) -> None:
    shares = [world.active("bob", "l40s-quarter", duration_s=3600) for _ in range(4)]
    host = Placement.objects.get(lease=shares[0]).host
    assert host is not None
    later = book(
        world, world.submit("bob", "l40s-quarter", starts_at=world.now + HOUR), device=board(node="gpu-03")
    )
    assert later is not None
    lifecycle.expire_due(now=world.now + HOUR)
    clean_at = world.now + HOUR + timedelta(milliseconds=1500)
    for share in shares:
        world.gone(share, at=clean_at)

    assert start(world, world.now + HOUR + timedelta(milliseconds=1200)) == 1

    assert LeaseEvent.objects.get(lease=later, now="preparing").at == clean_at


def test_a_host_that_waited_for_a_booking_held_nothing_when_that_is_planned_anew(world: World) -> None:
    """Its board belonged to what was late to leave, until that was clean."""
    device, soon = board(node="gpu-03"), timedelta(minutes=20)
    share = world.active("bob", "l40s-quarter", duration_s=1800)
    host = Placement.objects.get(lease=share).host
    assert host is not None
    assert host.device == device
    booked_share = book(world, world.submit("bob", "l40s-quarter", starts_at=world.now + soon), device=device)
    assert booked_share is not None
    assert Placement.objects.get(lease=booked_share).host_id == host.pk
    lifecycle.release_lease(lease=share, actor=world.user("bob"), now=world.now)
    world.gone(share, at=world.now)

    withdraw_request(
        request=booked_share.request, actor=world.user("bob"), rights=world.rights("bob"),
        now=world.now + soon + timedelta(seconds=1),
    )  # fmt: skip

    host.refresh_from_db()
    assert not host.is_live
    assert host.period.isempty


def test_extending_stops_at_a_booking_and_says_until_when(world: World) -> None:
    lease = world.active("charlie", "h100", duration_s=3600)
    request = world.submit("bob", "h100", starts_at=world.now + 2 * HOUR)
    book(world, request, device=Placement.objects.get(lease=lease).device)

    with pytest.raises(Conflict) as refused:
        extend_lease(lease=lease, actor=world.user("charlie"), extra_s=3601, now=world.now)
    assert refused.value.facts["latest_end"] == (world.now + 2 * HOUR).isoformat()
    end = latest_end(lease, now=world.now)
    assert end is not None
    assert (end.why, end.at) == ("booking", world.now + 2 * HOUR)
    extend_lease(lease=lease, actor=world.user("charlie"), extra_s=3600, now=world.now)

    lease.refresh_from_db()
    assert lease.not_after == world.now + 2 * HOUR
