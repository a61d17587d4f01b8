from __future__ import annotations

from datetime import timedelta

from portal.common.clock import db_now
from portal.fleet.models import Device, DeviceModel, Layout, Profile
from portal.leases.models import Lease, LeaseRequest
from scheduler import snapshot, snapshot_rows
from scheduler.engine.model import Snapshot
from tests.portal.builders import World


def taken() -> tuple[Snapshot, Snapshot]:
    """The picture by what is kept, and the picture by reading everything anew."""
    now = db_now()
    kept = snapshot.take(now=now)
    snapshot_rows.forget()
    return kept, snapshot.take(now=now)


def test_rows_that_did_not_change_are_the_same_objects(world: World) -> None:
    world.active("bob", "h100", count=2)
    world.submit("bob", "h100")

    one, other = snapshot.take(now=db_now()), snapshot.take(now=db_now())

    assert one.devices is other.devices
    assert [id(held) for held in one.held] == [id(held) for held in other.held]
    assert [id(claim) for claim in one.queue] == [id(claim) for claim in other.queue]


def test_every_change_of_a_row_is_seen_in_the_next_picture(world: World) -> None:
    lease = world.active("bob", "h100-1g-10gb")
    request = world.submit("bob", "h100", count=2)
    device = Device.objects.filter(model__slug="h100-80gb").first()
    assert device is not None
    changes = (
        lambda: LeaseRequest.objects.filter(pk=request.pk).update(remaining_s=60),
        lambda: LeaseRequest.objects.filter(pk=request.pk).update(remaining_s=61),
        lambda: Lease.objects.filter(pk=lease.pk).update(not_after=lease.not_after + timedelta(hours=1)),
        lambda: Device.objects.filter(pk=device.pk).update(health="quarantined"),
        lambda: Layout.objects.create(device=device, positions=[["3g.40gb", 0]], created_at=db_now()),
        lambda: DeviceModel.objects.filter(slug="h100-80gb").update(weight_milli=1200),
        lambda: Device.objects.filter(pk=device.pk).update(profiles=device.profiles[:1]),
        lambda: Profile.objects.filter(device_model__slug="h100-80gb", name="1g.10gb").update(size="3g.40gb"),
        lambda: type(lease.flavor).objects.filter(slug="h100").update(cpu_milli=4000),
        lambda: world.gone(lease, at=db_now()),
        lambda: LeaseRequest.objects.filter(pk=request.pk).update(state="withdrawn"),
    )

    for change in changes:
        change()
        kept, anew = taken()

        assert kept == anew


def test_cpu_of_a_lease_counts_once_however_many_boards_it_holds(world: World) -> None:
    type(world.active("bob", "h100", count=3).flavor).objects.filter(slug="h100").update(cpu_milli=2000)

    held = snapshot.take(now=db_now()).held

    assert sorted(one.cpu_milli for one in held) == [0, 0, 6000]
