"""What a turn decided is stored only as far as it still holds when it is written."""

from __future__ import annotations

import pytest
from django.db import transaction

from portal.fleet.models import Layout
from portal.leases.lifecycle import release_lease
from portal.leases.models import Lease, LeaseRequest
from portal.leases.preempting import ToldLease, tell
from portal.leases.requests import withdraw_request
from portal.policies.selectors import active_policy
from scheduler import commit, snapshot
from scheduler.engine.model import Repartition
from scheduler.engine.plan import plan
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


def test_a_request_withdrawn_after_the_decision_is_not_granted(world: World) -> None:
    request = world.submit()
    seen = snapshot.take(now=world.now)
    decided = plan(seen, active_policy())
    assert len(decided.grants) == 1

    withdraw_request(request=request, actor=world.user("bob"), rights=world.rights("bob"), now=world.now)
    with transaction.atomic():
        made = commit.grants(decided.grants, policy_version=1, now=world.now, snapshot=seen)

    assert made == []
    assert not Lease.objects.exists()


def test_a_board_that_was_taken_after_the_decision_keeps_its_layout(world: World) -> None:
    device = world.active().placements.get().device
    Layout.objects.create(device=device, positions=[["1g.10gb", 0]], created_at=world.now)

    commit.repartitions([Repartition(device.pk, (("3g.40gb", 0),))], now=world.now)

    assert Layout.objects.get(device=device).positions == [["1g.10gb", 0]]


def test_growth_that_its_author_has_stopped_meanwhile_is_not_given(world: World) -> None:
    world.active("bob", "h100", most_count=2)
    seen = snapshot.take(now=world.now)
    decided = plan(seen, active_policy())
    assert len(decided.growth) == 1

    with transaction.atomic():
        assert len(commit.growth(decided.growth, policy_version=1, now=world.now, snapshot=seen)) == 1
        assert commit.growth(decided.growth, policy_version=1, now=world.now, snapshot=seen) == []

    assert LeaseRequest.objects.get().leases.count() == 2


def test_where_one_of_those_that_must_go_has_ended_none_of_them_is_told(world: World) -> None:
    stays, gone, waiting = world.active(), world.active(), world.submit("charlie")
    release_lease(lease=gone, actor=world.user("bob"), now=world.now)

    with transaction.atomic():
        found = [ToldLease(lease.pk, waiting.pk, "priority") for lease in (stays, gone)]
        assert tell(found, grace_s=60, now=world.now) == []

    stays.refresh_from_db()
    assert stays.preempt_at is None
