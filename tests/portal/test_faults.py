"""Five faults and a request is given up; what else sends it back to the queue is no fault of anybody."""

from __future__ import annotations

from datetime import timedelta

import pytest

from portal.fleet.models import Node
from portal.leases import lifecycle, transitions
from portal.leases.models import Lease, LeaseRequest
from portal.leases.states import LIVE_LEASES
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


def again(world: World, request: LeaseRequest, *reasons: str) -> LeaseRequest:
    """Let the request start once more for each reason, and end for it after ten seconds."""
    for why in reasons:
        world.now += timedelta(seconds=60)
        Node.objects.update(last_seen_at=world.now)
        world.turn()
        lease = Lease.objects.get(request=request, state__in=LIVE_LEASES)
        world.ready(lease)
        world.now += timedelta(seconds=10)
        locked = transitions.lock_leases([lease.pk])
        if why == "fault":
            lifecycle.fail_leases(locked, at=world.now, fault="gpu_lost")
        else:
            lifecycle.end_leases(locked, reason=why, at=world.now)
        world.gone(lease, at=world.now)
    return LeaseRequest.objects.get(pk=request.pk)


def test_the_fifth_fault_is_the_last(world: World) -> None:
    request = world.submit("bob", "h100", duration_s=7200)

    back = again(world, request, *["fault"] * 4)
    assert (back.state, back.attempts) == ("queued", 4)

    assert again(world, request, "fault").state == "impossible"


@pytest.mark.parametrize("why", ["maintenance", "preempted"])
def test_only_faults_count_however_often_it_went_back_otherwise(world: World, why: str) -> None:
    request = world.submit("bob", "h100", duration_s=7200)

    back = again(world, request, *[why] * 6, *["fault"] * 4, why)
    assert (back.state, back.attempts) == ("queued", 11)

    assert again(world, request, "fault").state == "impossible"
