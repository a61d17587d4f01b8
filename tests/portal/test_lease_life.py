from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from portal.common.errors import Conflict, Forbidden, Impossible, Invalid, NotFound
from portal.common.states import IllegalMove
from portal.fleet.models import Node
from portal.leases import lifecycle, transitions
from portal.leases.approvals import approve_request, reject_request
from portal.leases.extending import extend_lease
from portal.leases.models import Lease, LeaseEvent, LeaseRequest, Placement, SharedHost
from portal.leases.requests import withdraw_request
from portal.quotas.models import Quota
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


def used(slug: str) -> int:
    return Quota.objects.get(team__slug=slug).used_milli


def test_a_request_becomes_an_active_lease_and_a_fulfilled_request(world: World) -> None:
    lease = world.ended(seconds=600)

    steps = list(LeaseEvent.objects.filter(lease=lease).values_list("now", flat=True))
    assert steps == ["preparing", "active", "ending", "cleaning", "ended"]
    assert (
        lease.request.state == "fulfilled"
        or LeaseRequest.objects.get(pk=lease.request_id).state == "fulfilled"
    )
    assert (lease.ended_at - lease.activated_at).total_seconds() == 600


def test_a_slice_and_its_quota_stay_held_until_the_agent_says_clean(world: World) -> None:
    lease = world.active()

    lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=world.now + timedelta(minutes=1))

    assert Placement.objects.get(lease=lease).is_live
    assert used("perception") > 0
    world.gone(lease, at=world.now + timedelta(minutes=2))
    assert not Placement.objects.get(lease=lease).is_live
    assert used("perception") == used("northwind") == 0


def test_the_holder_gets_the_whole_time_from_activation_on(world: World) -> None:
    request = world.submit(duration_s=3600)
    world.turn()
    lease = Lease.objects.get(request=request)

    world.ready(lease, at=world.now + timedelta(seconds=30))

    lease.refresh_from_db()
    assert lease.not_after == world.now + timedelta(seconds=3630)
    assert Placement.objects.get(lease=lease).period.upper == lease.not_after


def test_a_lease_whose_time_is_up_ends_at_that_instant_however_late_we_look(world: World) -> None:
    lease = world.active(duration_s=60)

    lifecycle.expire_due(now=world.now + timedelta(seconds=95))

    lease.refresh_from_db()
    assert (lease.state, lease.end_reason) == ("ending", "expired")
    assert lease.ended_at == world.now + timedelta(seconds=60)


def test_a_long_lease_is_warned_about_once(world: World) -> None:
    world.active(duration_s=3600)
    near_end = world.now + timedelta(seconds=3100)

    assert lifecycle.warn_due(now=near_end) == 1
    assert lifecycle.warn_due(now=near_end) == 0
    assert world.user("bob").notifications.get().kind == "lease.ends_soon"


def test_extending_moves_the_end_and_what_is_held(world: World) -> None:
    lease = world.active(duration_s=3600)

    extend_lease(lease=lease, actor=world.user("bob"), extra_s=1800, now=world.now)

    lease.refresh_from_db()
    assert lease.not_after == world.now + timedelta(seconds=5400)
    assert Placement.objects.get(lease=lease).period.upper == lease.not_after


def test_extending_past_the_longest_time_is_refused_and_changes_nothing(world: World) -> None:
    lease = world.active(duration_s=3600)

    with pytest.raises(Invalid) as refused:
        extend_lease(lease=lease, actor=world.user("bob"), extra_s=8 * 86_400, now=world.now)

    assert "extra_s" in refused.value.fields
    lease.refresh_from_db()
    assert lease.not_after == world.now + timedelta(seconds=3600)


def test_an_ended_lease_cannot_be_extended(world: World) -> None:
    lease = world.ended(seconds=60)

    with pytest.raises(Conflict):
        extend_lease(lease=lease, actor=world.user("bob"), extra_s=60, now=world.now)


def test_releasing_twice_stops_the_money_clock_once(world: World) -> None:
    lease = world.active()
    first = world.now + timedelta(seconds=10)

    lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=first)
    lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=first + timedelta(seconds=50))

    lease.refresh_from_db()
    assert lease.ended_at == first
    assert LeaseEvent.objects.filter(lease=lease, now="ending").count() == 1


def test_a_lost_lease_puts_its_request_back_with_the_time_left(world: World) -> None:
    lease = world.active(duration_s=3600)
    lost = world.now + timedelta(seconds=600)

    with transaction.atomic():
        lifecycle.fail_leases(transitions.lock_leases([lease.pk]), at=lost, fault="gpu_lost: XID 79")
    world.gone(lease, at=lost)

    request = LeaseRequest.objects.get(pk=lease.request_id)
    assert (request.state, request.remaining_s, request.attempts) == ("queued", 3000, 1)
    assert world.user("bob").notifications.get().kind == "lease.failed"


def test_a_silent_node_stops_the_money_at_its_last_word(world: World) -> None:
    lease = world.active(duration_s=3600)
    Node.objects.update(last_seen_at=world.now + timedelta(seconds=100))

    lifecycle.interrupt_lost(now=world.now + timedelta(seconds=500))

    lease.refresh_from_db()
    event = LeaseEvent.objects.get(lease=lease, now="interrupted")
    assert lease.state == "interrupted"
    assert event.at == world.now + timedelta(seconds=100)


def test_shares_of_one_board_are_summed_and_freed(world: World) -> None:
    leases = [world.active("bob", "l40s-quarter") for _ in range(3)]

    host = SharedHost.objects.get()
    assert (host.clients, host.used_share_milli) == (3, 3 * leases[0].share_milli)

    for lease in leases:
        lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=world.now)
        world.gone(lease)
    host.refresh_from_db()
    assert (host.clients, host.used_share_milli, host.used_memory_mib) == (0, 0, 0)
    assert not Placement.objects.get(pk=host.pk).is_live


def test_the_database_refuses_a_share_too_many(world: World) -> None:
    world.active("bob", "l40s-quarter")

    with pytest.raises(IntegrityError, match="host_share_fits"), transaction.atomic():
        SharedHost.objects.update(used_share_milli=1001)


@pytest.mark.parametrize(("was", "now"), [("active", "ended"), ("ended", "active"), ("cleaning", "active")])
def test_the_database_refuses_a_step_the_table_does_not_have(world: World, was: str, now: str) -> None:
    lease = world.active() if was == "active" else world.ended(seconds=1)
    if was == "cleaning":
        lease = world.active()
        lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=world.now)
        with transaction.atomic():
            transitions.move_all(transitions.lock_leases([lease.pk]), "cleaning", at=world.now)

    with (
        pytest.raises(IntegrityError, match="cannot follow"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute("UPDATE leases_lease SET state = %s WHERE id = %s", [now, lease.pk])


def test_code_that_tries_an_illegal_step_is_told_so(world: World) -> None:
    lease = world.active()

    with pytest.raises(IllegalMove), transaction.atomic():
        transitions.move_all(transitions.lock_leases([lease.pk]), "ended", at=world.now)


def test_events_cannot_be_rewritten(world: World) -> None:
    world.active()

    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        LeaseEvent.objects.update(at=world.now - timedelta(days=1))


def test_a_request_above_the_teams_threshold_waits_for_somebody_else_to_approve(world: World) -> None:
    team = world.team("perception")
    team.approval_above_gpu_seconds = 1800
    team.save()
    request = world.submit("bob", "h100", duration_s=7200)
    assert request.state == "awaiting_approval"

    with pytest.raises(Forbidden):
        approve_request(
            request=request, actor=world.user("bob"), rights=world.rights("bob"), note="", now=world.now
        )
    approve_request(
        request=request,
        actor=world.user("approver"),
        rights=world.rights("approver"),
        note="ok",
        now=world.now,
    )

    request.refresh_from_db()
    assert (request.state, request.decided_by) == ("queued", world.user("approver"))


def test_a_rejection_needs_a_reason_and_reaches_the_author(world: World) -> None:
    team = world.team("perception")
    team.approval_above_gpu_seconds = 1
    team.save()
    request = world.submit("bob", "h100")
    decide = {
        "request": request,
        "actor": world.user("alice"),
        "rights": world.rights("alice"),
        "now": world.now,
    }

    with pytest.raises(Invalid):
        reject_request(**decide, note=" ")
    reject_request(**decide, note="Use a slice first.")

    assert world.user("bob").notifications.get().kind == "request.rejected"


def test_only_the_author_or_an_admin_withdraws_and_strangers_see_nothing(world: World) -> None:
    request = world.submit("bob")

    with pytest.raises(NotFound):
        withdraw_request(
            request=request, actor=world.user("charlie"), rights=world.rights("charlie"), now=world.now
        )
    withdraw_request(request=request, actor=world.user("alice"), rights=world.rights("alice"), now=world.now)

    request.refresh_from_db()
    assert request.state == "withdrawn"


def test_what_no_node_could_ever_hold_is_refused_at_once_with_the_nearest(world: World) -> None:
    world.flavors["h100"].max_count = 20
    world.flavors["h100"].save()

    with pytest.raises(Impossible) as refused:
        world.submit("alice", "h100", count=9)

    assert refused.value.facts["nearest_count"] == 8
    assert not LeaseRequest.objects.exists()


def test_charlie_cannot_ask_for_a_team_that_is_not_his(world: World) -> None:
    with pytest.raises(NotFound):
        world.submit("charlie", team="perception")
