"""An elastic lease grows while boards idle, and gives back first what it has grown by."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction

from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.common.invariants import broken
from portal.fleet.models import Node
from portal.leases import lifecycle, transitions
from portal.leases.elastic import set_growth
from portal.leases.extending import extend_lease
from portal.leases.models import Lease, LeaseEvent, LeaseRequest, SharedHost
from portal.leases.preempting import preempt_due
from portal.quotas.models import Quota
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


@pytest.fixture
def base(world: World) -> Lease:
    """A lease of one whole board that may grow to four, active for an hour."""
    world.submit("alice", "h100", most_count=4, duration_s=3600)
    (lease,) = world.turn()
    world.ready(lease)
    lease.refresh_from_db()
    return lease


def extras(base: Lease) -> list[Lease]:
    return list(Lease.objects.filter(request=base.request_id, is_extra=True).order_by("part"))


def test_it_grows_to_what_it_may_and_no_further(world: World, base: Lease) -> None:
    first, second = world.turn(), world.turn()

    assert [ls.part for ls in first] == [1, 2, 3]
    assert second == []
    assert all(ls.is_preemptible and ls.not_after == base.not_after for ls in extras(base))
    assert Quota.objects.get(team__slug="vision").used_milli == 4000
    assert broken() == []


def test_a_share_that_grows_counts_on_its_board_until_it_is_gone(world: World) -> None:
    world.submit("alice", "l40s-quarter", most_count=3, duration_s=3600)
    (base,) = world.turn()
    world.ready(base)
    grown = world.turn()

    counted = sum(host.clients for host in SharedHost.objects.all())
    whole = broken()
    for lease in grown:
        world.ready(lease)
    lifecycle.release_lease(lease=base, actor=world.user("alice"), now=world.now)
    for lease in (base, *extras(base)):
        world.gone(lease)

    assert (len(grown), counted, whole) == (2, 3, [])
    assert sum(host.clients for host in SharedHost.objects.all()) == 0
    assert broken() == []


def test_it_does_not_grow_where_somebody_waits_for_such_a_board(world: World, base: Lease) -> None:
    world.submit("charlie", "h100", count=8)

    assert world.turn() == []


def test_it_grows_beside_those_whose_quota_keeps_them_out(world: World, base: Lease) -> None:
    Quota.objects.filter(team__slug="language").update(ceiling_milli=2000, guaranteed_milli=0)
    world.active("charlie", "h100", count=2)
    assert len(extras(base)) == 3

    world.submit("charlie", "h100", count=1)
    lifecycle.release_lease(lease=extras(base)[0], actor=world.user("alice"), now=world.now)
    world.gone(extras(base)[0])

    assert [ls.is_extra for ls in world.turn()] == [True]


def test_its_quota_bounds_it(world: World, base: Lease) -> None:
    Quota.objects.filter(team__slug="vision").update(ceiling_milli=2000, guaranteed_milli=0)

    assert len(world.turn()) == 1


def test_near_its_end_it_grows_no_more(world: World, base: Lease) -> None:
    assert world.turn(at=base.not_after - timedelta(seconds=500)) == []


def test_what_was_grown_ends_with_its_base_whenever_it_became_active(world: World, base: Lease) -> None:
    grown = world.turn()
    world.ready(*grown, at=world.now + timedelta(seconds=30))
    assert {ls.not_after for ls in extras(base)} == {base.not_after}

    lifecycle.release_lease(lease=base, actor=world.user("alice"), now=world.now + timedelta(seconds=60))

    assert {ls.state for ls in extras(base)} == {"ending"}
    assert {ls.ended_at for ls in extras(base)} == {world.now + timedelta(seconds=60)}


def test_the_request_is_fulfilled_when_base_and_extras_are_clean(world: World, base: Lease) -> None:
    grown = world.turn()
    world.ready(*grown)
    lifecycle.release_lease(lease=base, actor=world.user("alice"), now=world.now)

    world.gone(base)
    assert LeaseRequest.objects.get(pk=base.request_id).state == "granted"
    world.gone(*grown)

    assert LeaseRequest.objects.get(pk=base.request_id).state == "fulfilled"


def test_what_was_grown_is_not_extended_by_itself(world: World, base: Lease) -> None:
    grown = world.turn()
    world.ready(*grown)

    with pytest.raises(Conflict):
        extend_lease(lease=grown[0], actor=world.user("alice"), extra_s=600, now=world.now)

    extend_lease(lease=base, actor=world.user("alice"), extra_s=600, now=world.now)
    assert {ls.not_after for ls in extras(base)} == {base.not_after}


def test_giving_one_back_leaves_the_others_and_the_request(world: World, base: Lease) -> None:
    grown = world.turn()
    world.ready(*grown)

    lifecycle.release_lease(lease=grown[1], actor=world.user("alice"), now=world.now)
    world.gone(grown[1])

    base.refresh_from_db()
    assert base.state == "active"
    assert [ls.state for ls in extras(base)] == ["active", "ended", "active"]
    assert LeaseRequest.objects.get(pk=base.request_id).state == "granted"


def test_one_that_is_told_to_stop_keeps_what_it_has_and_grows_no_more(world: World, base: Lease) -> None:
    (first, *_rest) = world.turn()
    world.ready(first)
    set_growth(
        request=base.request,
        most_count=1,
        actor=world.user("alice"),
        rights=world.rights("alice"),
        now=world.now,
    )
    lifecycle.release_lease(lease=first, actor=world.user("alice"), now=world.now)
    world.gone(first)

    assert world.turn() == []
    assert len([ls for ls in extras(base) if ls.state != "ended"]) == 2


def test_how_far_is_for_the_author_and_within_the_flavor(world: World, base: Lease) -> None:
    def ask(who: str, most: int) -> None:
        set_growth(
            request=base.request,
            most_count=most,
            actor=world.user(who),
            rights=world.rights(who),
            now=world.now,
        )

    with pytest.raises(NotFound):
        ask("charlie", 2)
    with pytest.raises(Forbidden):
        ask("approver", 2)
    with pytest.raises(Invalid):
        ask("alice", 9)
    with pytest.raises(Invalid):
        ask("alice", 0)

    assert LeaseRequest.objects.get(pk=base.request_id).most_count == 4


def test_a_request_that_never_could_grow_is_not_told_how_far(world: World) -> None:
    lease = world.active("alice", "h100")

    with pytest.raises(Conflict):
        set_growth(
            request=lease.request,
            most_count=2,
            actor=world.user("alice"),
            rights=world.rights("alice"),
            now=world.now,
        )


def test_a_request_that_is_over_is_not_told_how_far(world: World, base: Lease) -> None:
    LeaseRequest.objects.filter(pk=base.request_id).update(state="fulfilled")

    with pytest.raises(Conflict, match="is over"):
        set_growth(
            request=base.request,
            most_count=2,
            actor=world.user("alice"),
            rights=world.rights("alice"),
            now=world.now,
        )


def test_what_was_grown_goes_first_when_somebody_waits(world: World, base: Lease) -> None:
    world.ready(*world.turn())
    asked = world.submit("charlie", "h100", count=6)

    assert world.turn() == []
    told = Lease.objects.filter(preempted_for=asked)
    assert [ls.is_extra for ls in told] == [True, True]
    up = max(ls.preempt_at for ls in told if ls.preempt_at)
    preempt_due(now=up)
    world.gone(*told, at=up)
    Node.objects.update(last_seen_at=up)

    assert [ls.request_id for ls in world.turn(at=up)] == [asked.pk]
    base.refresh_from_db()
    assert base.state == "active"
    assert LeaseRequest.objects.get(pk=base.request_id).state == "granted"
    assert sorted(ls.state for ls in extras(base)) == ["active", "ended", "ended"]
    assert broken() == []


def test_an_extra_whose_base_has_ended_meanwhile_goes_in_the_next_sweep(world: World, base: Lease) -> None:
    world.turn()
    with_base = transitions.lock_leases([base.pk])
    transitions.move_all(with_base, "ending", at=world.now, ended_at=world.now, end_reason="released")

    assert lifecycle.end_left_behind(now=world.now) == 3

    assert {ls.state for ls in extras(base)} == {"cleaning"}


def test_a_base_and_what_it_grew_by_that_fail_in_one_report_each_take_one_step(
    world: World, base: Lease
) -> None:
    grown = world.turn()
    world.ready(*grown)

    with transaction.atomic():
        locked = transitions.lock_leases([base.pk, *(lease.pk for lease in grown)])
        for lease in locked:  # as accept_report does: the first takes the others with it
            lifecycle.fail_leases([lease], at=world.now, fault="unit_failed: gone")

    for lease in extras(base):
        steps = list(LeaseEvent.objects.filter(lease=lease).order_by("id").values_list("was", "now"))
        assert [was for was, _ in steps[1:]] == [now for _, now in steps[:-1]]
    assert [b for b in broken() if b.invariant.name == "steps_are_a_chain"] == []


def test_a_gang_that_is_gone_in_one_report_each_takes_one_step(world: World, base: Lease) -> None:
    grown = world.turn()
    world.ready(*grown)

    with transaction.atomic():
        locked = transitions.lock_leases([base.pk, *(lease.pk for lease in grown)])
        for lease in locked:
            lifecycle.end_leases([lease], reason="released", at=world.now)
        lifecycle.clean_leases(locked, at=world.now)

    assert {lease.state for lease in Lease.objects.filter(request=base.request_id)} == {"ended"}
    assert broken() == []
