from __future__ import annotations

from portal.leases.models import Placement
from portal.leases.states import LeaseState
from tests.portal.builders import World


def test_a_lease_goes_from_request_to_clean_through_the_builders(world: World) -> None:
    lease = world.ended(seconds=600)

    assert lease.state == LeaseState.ENDED
    assert (lease.ended_at - lease.activated_at).total_seconds() == 600
    assert not Placement.objects.filter(is_live=True).exists()


def test_bob_sees_his_lease_and_charlie_does_not(world: World) -> None:
    from portal.leases.selectors import visible_leases

    lease = world.active()

    assert lease in visible_leases(world.rights("bob"))
    assert lease in visible_leases(world.rights("alice"))
    assert not visible_leases(world.rights("charlie")).exists()


def test_a_share_starts_on_the_l40s_node(world: World) -> None:
    lease = world.active("charlie", "l40s-quarter")

    assert lease.node == world.nodes["gpu-03"]
    assert lease.share_milli == 250
