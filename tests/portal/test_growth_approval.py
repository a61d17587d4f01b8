"""How far a request may grow is approved with it: nobody passes the approval by growing later."""

from __future__ import annotations

import pytest

from portal.common.errors import Invalid
from portal.leases.elastic import set_growth
from portal.leases.models import LeaseRequest
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


def grow(world: World, request: LeaseRequest, most: int) -> LeaseRequest:
    return set_growth(
        request=request, most_count=most, actor=world.user("bob"), rights=world.rights("bob"), now=world.now
    )


def test_growing_further_than_may_start_without_an_approval_is_refused(world: World) -> None:
    team = world.team("perception")
    team.approval_above_gpu_seconds = 2 * 3600
    team.save()
    request = world.submit("bob", "h100", duration_s=3600, most_count=2)
    assert request.state == "queued"

    with pytest.raises(Invalid) as refused:
        grow(world, request, 3)

    assert set(refused.value.fields) == {"most_count"}
    request.refresh_from_db()
    assert request.most_count == 2
    assert grow(world, request, 1).most_count == 1
    assert grow(world, request, 2).most_count == 2


def test_what_waits_for_its_approval_does_not_become_more(world: World) -> None:
    team = world.team("perception")
    team.approval_above_gpu_seconds = 10
    team.save()
    request = world.submit("bob", "h100", duration_s=3600, most_count=2)
    assert request.state == "awaiting_approval"

    with pytest.raises(Invalid):
        grow(world, request, 3)
