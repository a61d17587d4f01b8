"""A gang over nodes is one request with one lease per node; all of them live, or none does."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction

from portal.common.errors import Impossible, Invalid
from portal.common.invariants import broken
from portal.fleet.models import Node
from portal.leases import lifecycle, transitions
from portal.leases.bookings import start_booked
from portal.leases.extending import extend_lease
from portal.leases.models import Lease, LeaseRequest
from portal.quotas.models import Quota
from tests.portal.builders import H100, World, make_node

pytestmark = pytest.mark.django_db


@pytest.fixture
def wide(world: World) -> World:
    """The small installation with a second node of 8 x H100."""
    world.nodes["gpu-02"] = make_node("gpu-02", H100, 8, ("exclusive", "mig"), now=world.now)
    return world


def parts_of(request: LeaseRequest) -> list[Lease]:
    return list(Lease.objects.filter(request=request).select_related("node").order_by("generation", "part"))


def gang(world: World, **more: object) -> LeaseRequest:
    asked: dict[str, object] = {"nodes": 2, "count": 3, "duration_s": 3600, **more}
    request = world.submit("alice", "h100", **asked)  # type: ignore[arg-type]
    world.turn()
    return request


def running(world: World) -> tuple[LeaseRequest, list[Lease]]:
    request = gang(world)
    leases = parts_of(request)
    world.ready(*leases)
    return request, parts_of(request)


def states(request: LeaseRequest) -> list[str]:
    return [str(lease.state) for lease in parts_of(request)]


def test_a_gang_of_two_nodes_gets_a_lease_on_each(wide: World) -> None:
    request = gang(wide)

    leases = parts_of(request)
    assert [(ls.part, ls.node.name, ls.count, ls.share_milli) for ls in leases] == [
        (0, "gpu-01", 3, 3000),
        (1, "gpu-02", 3, 3000),
    ]
    assert sum(ls.cost_milli for ls in leases) == request.cost_milli
    assert Quota.objects.get(team__slug="vision").used_milli == request.cost_milli
    request.refresh_from_db()
    assert request.state == "granted"


def test_a_gang_waits_when_one_of_its_nodes_is_full(wide: World) -> None:
    for name in ("alice", "charlie"):
        wide.active(name, "h100", count=8)

    request = gang(wide)

    request.refresh_from_db()
    assert (request.state, states(request)) == ("queued", [])


def test_as_few_nodes_as_possible_takes_a_second_only_when_one_is_too_small(wide: World) -> None:
    Quota.objects.update(ceiling_milli=None)
    small, large = gang(wide, nodes=0, count=2), gang(wide, nodes=0, count=10)

    assert [ls.count for ls in parts_of(small)] == [2]
    assert sorted(ls.count for ls in parts_of(large)) in ([2, 8], [4, 6])


def test_the_money_of_all_parts_starts_and_ends_together(wide: World) -> None:
    request, (first, second) = running(wide)

    lifecycle.release_lease(lease=second, actor=wide.user("alice"), now=wide.now + timedelta(minutes=9))

    assert states(request) == ["ending", "ending"]
    ends = {ls.ended_at for ls in parts_of(request)}
    assert ends == {wide.now + timedelta(minutes=9)}
    wide.gone(first)
    request.refresh_from_db()
    assert request.state == "granted"
    wide.gone(second)
    request.refresh_from_db()
    assert request.state == "fulfilled"


def test_parts_that_become_ready_one_after_another_end_at_the_same_time(wide: World) -> None:
    request = gang(wide)
    first, second = parts_of(request)

    wide.ready(first)
    wide.ready(second, at=wide.now + timedelta(seconds=40))

    assert {ls.not_after for ls in parts_of(request)} == {wide.now + timedelta(seconds=3640)}


def test_when_one_part_fails_all_end_and_the_request_waits_for_what_is_left(wide: World) -> None:
    request, (first, second) = running(wide)
    lost = wide.now + timedelta(seconds=600)

    with transaction.atomic():
        lifecycle.fail_leases(transitions.lock_leases([first.pk]), at=lost, fault="gpu_lost: XID 79")

    assert states(request) == ["cleaning", "ending"]
    wide.gone(second, at=lost)
    assert LeaseRequest.objects.get(pk=request.pk).state == "granted"
    wide.gone(first, at=lost)
    request.refresh_from_db()
    assert (request.state, request.remaining_s, request.attempts) == ("queued", 3000, 1)


def test_a_gang_that_was_lost_starts_again_on_all_nodes(wide: World) -> None:
    request, leases = running(wide)
    with transaction.atomic():
        lifecycle.fail_leases(transitions.lock_leases([leases[0].pk]), at=wide.now, fault="gpu_lost")
    wide.gone(*leases)

    wide.turn()

    again = [ls for ls in parts_of(request) if ls.generation == 2]
    assert [ls.part for ls in again] == [0, 1]


def test_a_part_whose_failure_the_others_missed_takes_them_along_in_the_next_sweep(wide: World) -> None:
    request, (first, _second) = running(wide)
    with transaction.atomic():
        transitions.move_all(
            transitions.lock_leases([first.pk]),
            "failed",
            at=wide.now,
            ended_at=wide.now,
            end_reason="fault",
        )

    assert lifecycle.end_left_behind(now=wide.now) == 1
    assert lifecycle.end_left_behind(now=wide.now) == 0

    assert states(request) == ["failed", "ending"]
    assert parts_of(request)[1].end_reason == "fault"


def test_while_one_node_is_silent_nobody_pays_for_the_gang(wide: World) -> None:
    request, (first, _second) = running(wide)
    Node.objects.filter(name="gpu-01").update(last_seen_at=wide.now + timedelta(seconds=100))
    Node.objects.filter(name="gpu-02").update(last_seen_at=wide.now + timedelta(seconds=500))

    lifecycle.interrupt_lost(now=wide.now + timedelta(seconds=500))
    assert states(request) == ["interrupted", "interrupted"]
    with transaction.atomic():
        second = [ls for ls in transitions.lock_leases([ls.pk for ls in parts_of(request)]) if ls.part]
        lifecycle.resume_leases(second, at=wide.now + timedelta(seconds=501))
    assert states(request) == ["interrupted", "interrupted"]

    with transaction.atomic():
        lifecycle.resume_leases(transitions.lock_leases([first.pk]), at=wide.now + timedelta(seconds=510))

    assert states(request) == ["active", "active"]


def test_a_gang_does_not_go_on_when_the_time_of_another_part_is_up(wide: World) -> None:
    request, (first, second) = running(wide)
    Node.objects.update(last_seen_at=wide.now + timedelta(seconds=100))
    lifecycle.interrupt_lost(now=wide.now + timedelta(seconds=500))
    end = wide.now + timedelta(seconds=600)
    Lease.objects.filter(pk=second.pk).update(not_after=end, cut_by="booking")
    Node.objects.update(last_seen_at=wide.now + timedelta(seconds=601))

    with transaction.atomic():
        lifecycle.resume_leases(transitions.lock_leases([first.pk]), at=wide.now + timedelta(seconds=601))

    assert states(request) == ["cleaning", "cleaning"]
    assert [(ls.ended_at, ls.end_reason) for ls in parts_of(request)] == [(end, "expired")] * 2


def test_time_that_is_up_ends_all_parts_at_that_instant(wide: World) -> None:
    request, _leases = running(wide)

    lifecycle.expire_due(now=wide.now + timedelta(seconds=3605))

    assert states(request) == ["ending", "ending"]
    assert {ls.ended_at for ls in parts_of(request)} == {wide.now + timedelta(seconds=3600)}


def test_extending_one_part_extends_all(wide: World) -> None:
    request, (_first, second) = running(wide)

    extend_lease(lease=second, actor=wide.user("alice"), extra_s=1800, now=wide.now)

    assert {ls.not_after for ls in parts_of(request)} == {wide.now + timedelta(seconds=5400)}


def test_the_holder_of_a_gang_is_warned_once(wide: World) -> None:
    running(wide)

    lifecycle.warn_due(now=wide.now + timedelta(seconds=3100))

    assert [n.kind for n in wide.user("alice").notifications.all()] == ["lease.ends_soon"]


def test_a_booked_gang_begins_on_all_its_nodes_and_ends_when_it_was_booked_to(wide: World) -> None:
    begins = wide.now + timedelta(hours=2)
    request = gang(wide, starts_at=begins)
    assert states(request) == ["booked", "booked"]
    assert Quota.objects.get(team__slug="vision").used_milli == 0

    Node.objects.update(last_seen_at=begins)
    start_booked(now=begins)
    leases = parts_of(request)
    wide.ready(*leases, at=begins + timedelta(seconds=20))

    assert states(request) == ["active", "active"]
    assert {ls.not_after for ls in parts_of(request)} == {begins + timedelta(hours=1)}
    assert broken() == []


def test_more_nodes_than_there_are_is_refused_with_how_many_could(wide: World) -> None:
    with pytest.raises(Impossible) as refused:
        wide.submit("alice", "h100", nodes=3, count=2)

    assert refused.value.facts["nearest_nodes"] == 2
    assert "Only 2 nodes have 2 of " in str(refused.value.detail)
    assert not LeaseRequest.objects.exists()


def test_a_single_node_that_could_is_spoken_of_as_one(world: World) -> None:
    with pytest.raises(Impossible) as refused:
        world.submit("alice", "h100", nodes=2, count=2)

    assert refused.value.facts["nearest_nodes"] == 1
    assert "Only 1 node has 2 of " in str(refused.value.detail)


@pytest.mark.parametrize(
    ("flavor", "wish", "field"),
    [
        ("h100-1g-10gb", {"nodes": 2}, "nodes"),
        ("h100", {"nodes": -1}, "nodes"),
        ("h100", {"nodes": 2, "most_count": 4}, "most_count"),
        ("h100", {"count": 3, "most_count": 2}, "most_count"),
        ("h100", {"most_count": 99}, "most_count"),
        ("h100", {"work": "play"}, "work"),
        ("h100", {"least_duration_s": 7200}, "least_duration_s"),
        ("h100", {"starts_at": timedelta(0)}, "starts_at"),
        ("h100", {"starts_at": timedelta(days=91)}, "starts_at"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_field_named(
    world: World, flavor: str, wish: dict[str, object], field: str
) -> None:
    if isinstance(wish.get("starts_at"), timedelta):
        wish = {"starts_at": world.now + wish["starts_at"]}  # type: ignore[operator]

    with pytest.raises(Invalid) as refused:
        world.submit("bob", flavor, **wish)

    assert list(refused.value.fields) == [field]
