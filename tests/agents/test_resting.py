"""A device on which a lease could not be set up rests, so that the next try is made elsewhere."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from nodeagent.protocol.messages import HealthFact, LeaseReport
from portal.agents.reports import accept_report
from portal.common.models import OutboxItem
from portal.fleet.health import clear_health
from portal.fleet.models import Device, HealthEvent
from portal.leases import device_cooldown
from portal.leases.models import Lease, LeaseRequest, Placement
from portal.notifications.models import Notification
from tests.agents.test_reports import Desk, ready
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
MINUTES = timedelta(minutes=1)


@pytest.fixture
def desk(world: World) -> Desk:
    return Desk(world)


def lease_of(request: LeaseRequest) -> Lease:
    return Lease.objects.filter(request=request).latest("pk")


def granted(world: World, flavor: str = "h100-1g-10gb", count: int = 1) -> Lease:
    request = world.submit("bob", flavor, count=count)
    world.turn()
    return lease_of(request)


def several(world: World, desk: Desk) -> Lease:
    """A lease of three devices; the desk speaks for its node."""
    lease = granted(world, "h100", count=3)
    desk.node = lease.node
    return lease


def devices(lease: Lease) -> list[Device]:
    return [
        slot.device for slot in Placement.objects.filter(lease=lease).select_related("device").order_by("pk")
    ]


def fail(
    desk: Desk, lease: Lease, code: str = "in_use", detail: str = "still running: 4711", **more: object
) -> None:
    said = LeaseReport(lease.uid, lease.generation, "failed", code=code, detail=detail)
    desk.say(said, **more)


def fail_and_go(desk: Desk, lease: Lease, **more: str) -> None:
    fail(desk, lease, **more)
    desk.say(LeaseReport(lease.uid, lease.generation, "gone"))


def the_rest() -> HealthEvent:
    return HealthEvent.objects.get(code="setup_failed", cleared_at=None)


def over(rest: HealthEvent) -> datetime:
    assert rest.until is not None
    return rest.until


def test_the_next_try_is_made_on_another_device_and_the_first_takes_work_again_in_time(
    world: World, desk: Desk
) -> None:
    lease = granted(world)
    (device,) = devices(lease)

    fail_and_go(desk, lease)
    rest = the_rest()
    world.turn()

    device.refresh_from_db()
    assert (device.health, device.health_reason) == ("quarantined", "in_use: still running: 4711")
    assert rest.until == rest.at + 10 * MINUTES
    (other,) = devices(lease_of(lease.request))
    assert other.pk != device.pk

    assert device_cooldown.end_rests(now=rest.at + 9 * MINUTES) == 0
    assert device_cooldown.end_rests(now=rest.at + 10 * MINUTES) == 1
    assert device_cooldown.end_rests(now=rest.at + 10 * MINUTES) == 0
    device.refresh_from_db()
    rest.refresh_from_db()
    assert (device.health, device.health_reason) == ("ok", "")
    assert (rest.cleared_by, rest.is_cleared_by_hand) == ("portal", False)
    assert OutboxItem.objects.filter(topic="scheduler.tasks.run_cycle", key="rest").count() == 1


def test_without_another_device_the_request_waits_and_does_not_fail_five_times(
    world: World, desk: Desk
) -> None:
    Device.objects.filter(node=desk.node, index__gt=0).update(health="quarantined")
    for name in set(world.nodes) - {"gpu-01"}:
        Device.objects.filter(node=world.nodes[name]).update(health="quarantined")
    lease = granted(world)

    fail_and_go(desk, lease)
    world.turn()

    request = LeaseRequest.objects.get(pk=lease.request_id)
    assert (request.state, Lease.objects.filter(request=request).count()) == ("queued", 1)
    device_cooldown.end_rests(now=over(the_rest()))
    world.turn()
    assert Lease.objects.filter(request=request).count() == 2


def test_each_rest_within_a_day_is_twice_as_long_until_an_operator_clears_one(
    world: World, desk: Desk
) -> None:
    Device.objects.filter(node=desk.node, index__gt=0).update(health="quarantined")
    lengths: list[timedelta] = []
    for turn in range(8):
        lease = granted(world)
        assert devices(lease)[0].index == 0
        fail_and_go(desk, lease)
        LeaseRequest.objects.filter(pk=lease.request_id).update(state="withdrawn")
        rest = the_rest()
        lengths.append(over(rest) - rest.at)
        if turn == 6:
            clear_health(device=devices(lease)[0], actor=world.user("operator"), now=rest.at)
        else:
            device_cooldown.end_rests(now=over(rest))
            HealthEvent.objects.filter(pk=rest.pk).update(cleared_at=rest.at)  # so that a day does not pass

    assert [length / MINUTES for length in lengths] == [10, 20, 40, 80, 160, 240, 240, 10]


@pytest.mark.parametrize("code", ["conflict", "no_systemd", "no_account", "gpu_lost", "rebooted"])
def test_what_is_not_the_devices_doing_lets_none_rest(world: World, desk: Desk, code: str) -> None:
    fail(desk, granted(world), code=code)

    assert not HealthEvent.objects.exists()
    assert not Device.objects.exclude(health="ok").exists()


def test_a_lease_that_ran_says_nothing_about_setting_up(world: World, desk: Desk) -> None:
    lease = granted(world)
    desk.say(ready(lease))

    fail(desk, lease)

    assert not HealthEvent.objects.exists()


def test_of_several_devices_only_the_one_rests_that_the_node_names(world: World, desk: Desk) -> None:
    lease = several(world, desk)
    named = devices(lease)[1]

    fail(desk, lease, code="mig_mode_refused", detail=f"{named.uuid} is kept open by nvidia-persistenced")

    assert [pk for (pk,) in Device.objects.exclude(health="ok").values_list("pk")] == [named.pk]


def test_where_the_node_names_none_of_several_devices_none_rests(world: World, desk: Desk) -> None:
    lease = several(world, desk)

    fail(desk, lease)

    lease.refresh_from_db()
    assert lease.fault == "in_use: still running: 4711"
    assert not HealthEvent.objects.exists()


def test_a_request_whose_third_try_fails_takes_no_third_device_out_of_work(world: World, desk: Desk) -> None:
    request = world.submit("bob", "h100-1g-10gb")
    for _time in range(3):
        world.turn()
        fail_and_go(desk, lease_of(request), code="refused_by_driver")

    failed_on = [devices(lease)[0].pk for lease in Lease.objects.filter(request=request).order_by("pk")]
    assert len(set(failed_on)) == 3
    assert set(HealthEvent.objects.values_list("device_id", flat=True)) == set(failed_on[:2])


def test_growth_that_fails_on_device_after_device_takes_two_out_of_work_at_most(
    world: World, desk: Desk
) -> None:
    request = world.submit("bob", "h100-1g-10gb", most_count=2)
    world.turn()
    base = lease_of(request)
    desk.node = base.node
    desk.say(ready(base))
    for _time in range(5):
        world.turn()
        extra = Lease.objects.get(request=request, is_extra=True, state="preparing")
        desk.say(
            ready(base),
            LeaseReport(extra.uid, extra.generation, "failed", code="driver_error", detail="full"),
        )
        desk.say(ready(base), LeaseReport(extra.uid, extra.generation, "gone"))

    assert Device.objects.filter(health="quarantined").count() == 2
    assert Lease.objects.get(pk=base.pk).state == "active"


def test_a_device_with_another_fault_stays_out_of_work_for_that_when_its_rest_is_over(
    world: World, desk: Desk
) -> None:
    lease = granted(world)
    (device,) = devices(lease)
    broken = HealthFact(device.uuid, "48", "critical", "double-bit error", "reset_gpu")

    fail(desk, lease, health=(broken,))
    device_cooldown.end_rests(now=over(the_rest()))

    device.refresh_from_db()
    assert (device.health, device.health_reason) == ("quarantined", "double-bit error")
    clear_health(device=device, actor=world.user("operator"), now=world.now)
    device.refresh_from_db()
    assert device.health == "ok"


def test_no_agent_says_or_ends_a_rest(world: World, desk: Desk) -> None:
    lease = granted(world)
    (device,) = devices(lease)
    desk.say(health=(HealthFact(device.uuid, "setup_failed", "critical", "says the agent"),))
    assert not HealthEvent.objects.exists()

    fail(desk, lease)
    desk.say()
    desk.say(health=(HealthFact(device.uuid, "setup_failed", "info", "over"),))

    rest = the_rest()
    assert (rest.severity, rest.unreported_at) == ("critical", None)


def test_operators_are_told_and_holders_of_other_slices_are_not(world: World, desk: Desk) -> None:
    neighbour, lease = granted(world), granted(world)
    assert devices(neighbour) == devices(lease)
    desk.say(ready(neighbour))

    fail(desk, lease)

    told = Notification.objects.filter(kind__in=("fleet.health", "lease.health"))
    assert [(news.user.username, news.kind) for news in told] == [("operator", "fleet.health")]
    assert Lease.objects.get(pk=neighbour.pk).state == "active"


def test_a_failure_told_again_changes_nothing(world: World, desk: Desk) -> None:
    lease = granted(world)
    frame = desk.report(LeaseReport(lease.uid, lease.generation, "failed", code="in_use", detail="x"))
    accept_report(desk.node.pk, frame)
    fail(desk, lease, detail="y")

    assert the_rest().detail == "in_use: x"
