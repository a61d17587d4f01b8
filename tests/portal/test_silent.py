"""A node that falls silent keeps nobody waiting: what was being made there is asked for again elsewhere."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import transaction

from nodeagent.protocol.messages import LeaseReport
from portal.agents.reports import accept_report
from portal.billing.metering import meter_all
from portal.billing.models import UsageRecord
from portal.common.invariants import broken
from portal.fleet.models import Node
from portal.leases import lifecycle, lost_nodes
from portal.leases.failures import UNHEARD
from portal.leases.models import Lease, LeaseEvent, Placement
from portal.leases.states import EndReason
from portal.leases.transitions import lock_leases
from scheduler import tasks
from tests.agents.test_reports import Desk, ready
from tests.portal.builders import H100, World, build_world, make_node
from tests.portal.meanwhile import meanwhile

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def granted(world: World, **more: object) -> Lease:
    request = world.submit("bob", **more)  # type: ignore[arg-type]
    world.turn()
    return Lease.objects.get(request=request)


def fall_silent(world: World, at: timedelta = 6 * MINUTE) -> None:
    """Let the sweeps look after nothing was heard of any node for so long."""
    lost_nodes.fail_unmade(now=world.now + at)
    lost_nodes.requeue_unheard(now=world.now + at)


def test_what_is_being_made_on_a_node_that_falls_silent_waits_again(world: World) -> None:
    lease = granted(world)

    fall_silent(world)

    lease.refresh_from_db()
    assert (lease.state, lease.end_reason, lease.fault) == ("cleaning", "fault", UNHEARD)
    assert (lease.request.state, lease.request.attempts) == ("queued", 1)
    assert lease.request.remaining_s == lease.request.duration_s
    assert Placement.objects.get(lease=lease).is_live
    meter_all(now=world.now + 10 * MINUTE)
    assert not UsageRecord.objects.exists()
    assert world.user("bob").notifications.get().kind == "lease.failed"
    assert broken() == []


def test_a_node_that_was_heard_a_moment_ago_keeps_what_it_makes(world: World) -> None:
    lease = granted(world)

    fall_silent(world, 4 * MINUTE)

    lease.refresh_from_db()
    assert (lease.state, lease.request.state) == ("preparing", "granted")


def test_the_tick_gives_back_what_a_silent_node_was_making(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = granted(world)
    monkeypatch.setattr(tasks, "db_now", lambda: world.now + 6 * MINUTE)

    tasks.tick()

    lease.refresh_from_db()
    assert (lease.state, lease.request.attempts) == ("cleaning", 1)


def elsewhere(world: World, lost: Lease) -> Lease:
    """Grant the request of a lost lease again, on a node that is heard."""
    at = world.now + 6 * MINUTE
    make_node("gpu-02", H100, 1, ("exclusive", "mig"), now=at)
    world.turn(at)
    return Lease.objects.exclude(pk=lost.pk).get(request=lost.request)


def test_it_starts_elsewhere_and_the_late_word_of_the_old_node_moves_nothing(world: World) -> None:
    lost = granted(world)
    fall_silent(world)
    again = elsewhere(world, lost)
    assert (again.node.name, again.generation) == ("gpu-02", 2)
    desk = Desk(world)

    desk.say(ready(lost))

    lost.refresh_from_db()
    assert (lost.state, lost.activated_at) == ("cleaning", None)
    desk.say(LeaseReport(lost.uid, lost.generation, "gone"))
    lost.refresh_from_db()
    again.refresh_from_db()
    assert (lost.state, again.state) == ("ended", "preparing")
    assert (again.request.state, again.request.attempts) == ("granted", 1)
    assert not Placement.objects.get(lease=lost).is_live
    assert broken() == []


def test_what_was_lost_while_it_ran_does_not_wait_for_a_silent_node_either(world: World) -> None:
    lease = world.active(duration_s=3600)
    with transaction.atomic():
        lifecycle.end_leases(lock_leases([lease.pk]), reason=EndReason.PREEMPTED, at=world.now + 5 * MINUTE)

    fall_silent(world)

    lease.refresh_from_db()
    assert (lease.state, lease.request.state, lease.request.remaining_s) == ("ending", "queued", 3300)
    assert broken() == []


def test_what_its_holder_gave_back_is_not_asked_for_again(world: World) -> None:
    lease = granted(world)
    lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=world.now)

    fall_silent(world)

    lease.refresh_from_db()
    assert (lease.state, lease.request.state) == ("cleaning", "granted")


def test_a_gang_waits_again_when_one_of_its_nodes_falls_silent(world: World) -> None:
    other = make_node("gpu-02", H100, 8, ("exclusive",), now=world.now)
    request = world.submit("bob", "h100", nodes=2, count=2)
    world.turn()
    leases = list(Lease.objects.filter(request=request))
    Node.objects.filter(pk=other.pk).update(last_seen_at=world.now + 6 * MINUTE)

    fall_silent(world)

    request.refresh_from_db()
    assert (request.state, request.attempts) == ("queued", 1)
    assert {Lease.objects.get(pk=lease.pk).state for lease in leases} == {"cleaning"}
    for lease in leases:
        world.gone(lease, at=world.now + 7 * MINUTE)
    request.refresh_from_db()
    assert (request.state, request.attempts) == ("queued", 1)
    assert broken() == []


def test_a_request_that_fails_for_the_fifth_time_is_given_up_at_once(world: World) -> None:
    lease = granted(world)
    for number in range(4):
        Lease.objects.create(
            request=lease.request, team=lease.team, user=lease.user, flavor=lease.flavor, node=lease.node,
            state="ended", generation=number + 10, share_milli=1, cost_milli=1, starts_at=world.now,
            not_after=world.now + MINUTE, end_reason="fault",
        )  # fmt: skip

    fall_silent(world)

    lease.request.refresh_from_db()
    assert lease.request.state == "impossible"


@pytest.mark.django_db(transaction=True)
def test_a_report_that_comes_while_the_lease_is_given_back_finds_it_gone() -> None:
    world = build_world()
    lease = granted(world)
    frame = Desk(world).report(ready(lease))

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            assert lost_nodes.fail_unmade(now=world.now + 6 * MINUTE) == 1
            report = meanwhile(lambda: accept_report(lease.node_id, frame), pool)
            assert not report.done()
        assert report.result(timeout=60)

    lease.refresh_from_db()
    assert (lease.state, lease.activated_at) == ("cleaning", None)
    assert not LeaseEvent.objects.filter(lease=lease, now="active").exists()


@pytest.mark.django_db(transaction=True)
def test_a_node_that_cleans_it_just_then_does_not_bring_the_new_lease_to_an_end() -> None:
    world = build_world()
    lease = granted(world)
    lost_nodes.fail_unmade(now=world.now + 6 * MINUTE)
    frame = Desk(world).report(LeaseReport(lease.uid, lease.generation, "gone"))

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            assert lost_nodes.requeue_unheard(now=world.now + 6 * MINUTE) == 1
            report = meanwhile(lambda: accept_report(lease.node_id, frame), pool)
            assert not report.done()
        assert report.result(timeout=60)

    lease.refresh_from_db()
    assert (lease.state, lease.request.state, lease.request.attempts) == ("ended", "queued", 1)
