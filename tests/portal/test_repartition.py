from __future__ import annotations

from portal.audit.models import AuditEntry
from portal.common.clock import db_now
from portal.fleet.models import Device, Layout
from portal.leases.models import Lease
from portal.policies.models import Policy
from scheduler import cycle
from tests.portal.builders import World

HALVES = [["3g.40gb", 0], ["3g.40gb", 4]]


def pin(world: World, **body: object) -> None:
    """Pin every H100 to two halves under a policy of these rules."""
    Policy.objects.update(is_active=False)
    Policy.objects.create(name="cut", version=77, body=body, is_active=True, created_at=world.now)
    for device in Device.objects.filter(model__slug="h100-80gb"):
        Layout.objects.create(device=device, positions=HALVES, created_at=world.now)


def test_an_idle_board_changes_its_layout_for_a_slice_in_the_same_turn(world: World) -> None:
    pin(world, repartition=True)
    world.submit("bob", "h100-1g-10gb", at=db_now())

    assert cycle.run().granted == 1

    slot = Lease.objects.get().placements.get()
    layout = Layout.objects.get(device=slot.device)
    assert ["1g.10gb", slot.start] in layout.positions
    assert Layout.objects.filter(positions=HALVES).count() == Layout.objects.count() - 1
    told = AuditEntry.objects.get(action="device.repartitioned")
    assert told.detail["was"] == HALVES
    assert told.detail["now"] == layout.positions


def test_without_the_policys_leave_layouts_stay(world: World) -> None:
    pin(world)
    world.submit("bob", "h100-1g-10gb", at=db_now())

    assert cycle.run().granted == 0

    assert not Layout.objects.exclude(positions=HALVES).exists()
