"""Pools from a policy row to the sentence of a request that waits."""

from __future__ import annotations

from portal.leases.reasons import sentence
from portal.leases.states import RequestState
from portal.policies.models import Policy
from tests.portal.builders import World


def test_who_waits_for_its_pool_reads_part_and_use(world: World) -> None:
    body = {"pools": {"parts": {"interactive": 1, "training": 1}}}
    Policy.objects.update(is_active=False)
    Policy.objects.create(name="pools", version=77, body=body, is_active=True, created_at=world.now)
    for name, count in (("bob", 4), ("alice", 4)):
        world.submit(name, "h100", count=count, work="training")
    calm = world.submit("charlie", "h100", count=4)

    granted = world.turn()

    (waits,) = type(calm).objects.filter(state=RequestState.QUEUED)
    assert sorted(lease.user.username for lease in granted) == ["bob", "charlie"]
    assert waits.author == world.user("alice")
    assert sentence(waits.reasons[-1]) == (
        "Pool “Training” uses 4 GPU of the 6 that are its part now, and this needs 4; "
        "work that stays within its pool goes first."
    )
