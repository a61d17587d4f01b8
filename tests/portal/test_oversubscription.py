from __future__ import annotations

from datetime import timedelta

from portal.leases.models import SharedHost
from portal.policies.models import Policy
from portal.policies.selectors import active_policy
from tests.portal.builders import World


def test_a_policy_may_promise_shares_more_memory_than_the_board_has(world: World) -> None:
    Policy.objects.update(is_active=False)
    body = {"place": "default", "memory_factors": {"l40s-48gb": 1500}}
    Policy.objects.create(name="dense", version=99, body=body, is_active=True, created_at=world.now)
    world.submit("bob", "l40s-quarter", duration_s=3600)

    [lease] = world.turn()

    host = SharedHost.objects.get()
    board = lease.placements.get().device.model.memory_mib
    assert active_policy().memory_factors == (("l40s-48gb", 1500),)
    assert host.memory_mib == board * 3 // 2

    world.submit("bob", "l40s-quarter", duration_s=3600, at=world.now + timedelta(seconds=1))
    world.turn(world.now + timedelta(seconds=2))
    assert SharedHost.objects.get().clients == 2
