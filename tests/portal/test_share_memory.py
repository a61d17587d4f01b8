from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from portal.agents.desired import desired_state
from portal.catalog.models import Flavor
from portal.leases.models import Lease, SharedHost
from portal.telemetry.roster import read_roster
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
GUARANTEED_MIB, MOST_MIB = 11_000, 20_000


def granted_share(world: World, most_mib: int) -> Lease:
    Flavor.objects.filter(slug="l40s-quarter").update(max_memory_mib=most_mib)
    world.submit("bob", "l40s-quarter")
    [lease] = world.turn()
    return lease


def memory_on_the_wire(world: World, lease: Lease) -> int:
    [wanted] = desired_state(lease.node_id, now=world.now).leases
    [slot] = wanted.slots
    return slot.memory_mib


def test_a_share_is_counted_as_guaranteed_and_limited_to_its_maximum(world: World) -> None:
    lease = granted_share(world, MOST_MIB)

    placement = lease.placements.get()
    [place] = read_roster().leases[lease.uid].places.values()
    assert (placement.memory_mib, placement.max_memory_mib) == (GUARANTEED_MIB, MOST_MIB)
    assert SharedHost.objects.get().used_memory_mib == GUARANTEED_MIB
    assert memory_on_the_wire(world, lease) == place.memory_mib == MOST_MIB


def test_a_maximum_above_the_board_becomes_the_boards_memory(world: World) -> None:
    lease = granted_share(world, 1_000_000)

    assert memory_on_the_wire(world, lease) == lease.placements.get().device.model.memory_mib


def test_a_share_without_a_maximum_is_limited_to_what_is_guaranteed(world: World) -> None:
    lease = granted_share(world, 0)

    assert memory_on_the_wire(world, lease) == GUARANTEED_MIB


@pytest.mark.parametrize(
    ("slug", "most_mib"), [("l40s-quarter", GUARANTEED_MIB - 1), ("h100-1g-10gb", 80_000), ("h100", 90_000)]
)
def test_the_database_refuses_a_maximum_below_the_guarantee_or_where_nothing_is_shared(
    world: World, slug: str, most_mib: int
) -> None:
    with pytest.raises(IntegrityError, match="flavor_max_memory_sane"), transaction.atomic():
        Flavor.objects.filter(slug=slug).update(max_memory_mib=most_mib)
