from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from nodeagent.protocol.messages import HealthFact, LeaseReport, PartitionFact, Report, SlotAccess
from portal.agents.desired import desired_state
from portal.agents.errors import AgentRefused
from portal.agents.lost_nodes import heard
from portal.agents.reports import accept_report
from portal.common.clock import db_now
from portal.fleet.models import Device, Node, Partition
from portal.leases import lifecycle
from portal.leases.draining import drain_node
from portal.leases.failures import failure_detail, public_fault
from portal.leases.models import Lease, LeaseRequest, Placement
from portal.quotas.models import Quota
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


class Desk:
    """An agent's desk: it writes reports with rising numbers."""

    def __init__(self, world: World) -> None:
        self.node = world.nodes["gpu-01"]
        self.seq = 0

    def report(self, *leases: LeaseReport, **more: object) -> Report:
        self.seq += 1
        revision = Node.objects.get(pk=self.node.pk).desired_revision
        fields = {"epoch": 1, "boot_id": "boot-1", "seq": self.seq, "revision": revision, "partitions": ()}
        return Report(leases=leases, **{**fields, **more})

    def say(self, *leases: LeaseReport, **more: object) -> bool:
        return accept_report(self.node.pk, self.report(*leases, **more))


@pytest.fixture
def desk(world: World) -> Desk:
    return Desk(world)


def granted(world: World) -> Lease:
    request = world.submit()
    world.turn()
    return Lease.objects.get(request=request)


def ready(lease: Lease, uuid: str = "MIG-1") -> LeaseReport:
    slot = Placement.objects.select_related("device").get(lease=lease)
    access = SlotAccess(slot.device.uuid, slot.start, uuid, {"CUDA_VISIBLE_DEVICES": uuid})
    return LeaseReport(lease.uid, lease.generation, "ready", access=(access,))


def test_the_desired_state_names_each_slice_at_its_exact_place(world: World) -> None:
    lease = granted(world)

    desired = desired_state(lease.node_id, now=world.now)

    slot = Placement.objects.get(lease=lease)
    assert desired.revision == 1
    assert [(s.mode, s.profile, s.start, s.size) for s in desired.leases[0].slots] == [
        ("mig", "1g.10gb", slot.start, 1)
    ]
    assert desired.leases[0].remaining_s >= 3600


def test_ready_starts_the_money_clock_and_stores_how_to_reach_the_slice(world: World, desk: Desk) -> None:
    lease = granted(world)

    desk.say(ready(lease))

    lease.refresh_from_db()
    slot = Placement.objects.get(lease=lease)
    assert lease.state == "active"
    assert lease.activated_at is not None
    assert (slot.partition_uuid, slot.access["env"]) == ("MIG-1", {"CUDA_VISIBLE_DEVICES": "MIG-1"})


def test_a_frame_seen_before_changes_nothing(world: World, desk: Desk) -> None:
    lease = granted(world)
    frame = desk.report(ready(lease))
    assert accept_report(desk.node.pk, frame)
    first = Lease.objects.get(pk=lease.pk).activated_at

    assert not accept_report(desk.node.pk, frame)
    assert Lease.objects.get(pk=lease.pk).activated_at == first


def test_the_last_word_of_a_node_never_goes_back(world: World, desk: Desk) -> None:
    # A heartbeat that was stored while this report waited for a lease.
    later = db_now() + timedelta(minutes=1)
    heard(desk.node.pk, now=later)

    desk.say(ready(granted(world)))
    heard(desk.node.pk, now=later - timedelta(seconds=5))

    assert Node.objects.get(pk=desk.node.pk).last_seen_at == later


def test_a_frame_of_an_older_enrolment_is_refused(world: World, desk: Desk) -> None:
    lease = granted(world)

    with pytest.raises(AgentRefused, match="stale_epoch"):
        desk.say(ready(lease), epoch=0)

    assert Lease.objects.get(pk=lease.pk).state == "preparing"


def test_word_of_an_earlier_generation_says_nothing_about_this_one(world: World, desk: Desk) -> None:
    lease = granted(world)

    desk.say(replace(ready(lease), generation=lease.generation - 1))
    desk.say(replace(ready(lease), generation=lease.generation + 1))

    assert Lease.objects.get(pk=lease.pk).state == "preparing"


def test_another_nodes_lease_cannot_be_touched(world: World) -> None:
    lease = granted(world)

    accept_report(
        world.nodes["gpu-03"].pk,
        Report(1, "boot-1", 1, 0, (ready(lease),), ()),
    )

    assert Lease.objects.get(pk=lease.pk).state == "preparing"


def test_gone_after_a_release_frees_slice_and_quota_and_keeps_the_agents_clock(
    world: World, desk: Desk
) -> None:
    lease = granted(world)
    desk.say(ready(lease))
    lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=timezone.now() + timedelta(seconds=1))

    desk.say(LeaseReport(lease.uid, lease.generation, "gone", active_ms=1004))

    lease.refresh_from_db()
    assert (lease.state, lease.agent_active_ms) == ("ended", 1004)
    assert Quota.objects.get(team__slug="perception").used_milli == 0
    assert LeaseRequest.objects.get(pk=lease.request_id).state == "fulfilled"


def test_an_agent_that_forgot_an_ended_lease_does_not_hold_its_slice_for_ever(
    world: World, desk: Desk
) -> None:
    lease = granted(world)
    desk.say(ready(lease))
    lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=timezone.now() + timedelta(seconds=1))

    desk.say()

    assert Lease.objects.get(pk=lease.pk).state == "ended"


def test_silence_about_a_running_lease_does_not_end_it(world: World, desk: Desk) -> None:
    lease = granted(world)
    desk.say(ready(lease))

    desk.say()

    assert Lease.objects.get(pk=lease.pk).state == "active"


def test_a_slice_that_cannot_be_made_fails_the_lease_and_the_request_waits_again(
    world: World, desk: Desk
) -> None:
    lease = granted(world)

    desk.say(
        LeaseReport(lease.uid, lease.generation, "failed", code="in_use", detail="another client holds it")
    )
    desk.say(LeaseReport(lease.uid, lease.generation, "gone"))

    lease.refresh_from_db()
    assert (lease.state, lease.fault) == ("ended", "in_use: another client holds it")
    assert LeaseRequest.objects.get(pk=lease.request_id).state == "queued"


def test_partitions_seen_replace_those_seen_before(world: World, desk: Desk) -> None:
    device = Device.objects.filter(node=desk.node).first()
    foreign = PartitionFact("MIG-x", device.uuid, "1g.10gb", 3, 1)

    desk.say(partitions=(foreign,))
    assert Partition.objects.get().lease_uid == ""
    desk.say(partitions=())

    assert not Partition.objects.exists()


def test_a_critical_fault_quarantines_the_device_and_not_the_node(world: World, desk: Desk) -> None:
    device = Device.objects.filter(node=desk.node).first()

    desk.say(health=(HealthFact(device.uuid, "xid-79", "critical", "GPU has fallen off the bus"),))
    desk.say(health=(HealthFact(device.uuid, "xid-79", "critical", "GPU has fallen off the bus"),))

    device.refresh_from_db()
    assert device.health == "quarantined"
    assert device.health_events.count() == 1
    assert Device.objects.filter(node=desk.node, health="ok").count() == 7


@pytest.mark.parametrize(("early_s", "reason"), [(0, "expired"), (6, "released")])
def test_a_lease_that_the_agent_ends_at_a_drains_deadline_made_way_and_its_rest_waits(
    world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch, early_s: int, reason: str
) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    by = world.now + timedelta(hours=1)
    drain_node(node=desk.node, by=by, reason="fans", actor=world.user("operator"), now=world.now)

    monkeypatch.setattr("portal.agents.reports.db_now", lambda: by - timedelta(seconds=early_s))
    desk.say(LeaseReport(lease.uid, 1, "gone", reason=reason))

    lease.refresh_from_db()
    request = LeaseRequest.objects.get(pk=lease.request_id)
    assert (lease.state, lease.end_reason) == ("ended", "maintenance")
    assert (request.state, request.remaining_s) == ("queued", 3600 + early_s)


@pytest.mark.parametrize("state", ["active", "interrupted"])
def test_lease_that_fills_its_scratch_folder_ends_for_that_and_is_billed_till_then(
    world: World, desk: Desk, state: str
) -> None:
    lease = granted(world)
    desk.say(ready(lease))
    Lease.objects.filter(pk=lease.pk).update(state=state)

    desk.say(LeaseReport(lease.uid, lease.generation, "gone", reason="scratch_full"))

    lease.refresh_from_db()
    request = LeaseRequest.objects.get(pk=lease.request_id)
    assert (lease.state, lease.end_reason, lease.fault) == ("ended", "scratch_full", "")
    assert lease.ended_at is not None
    assert request.state == "fulfilled"  # asked for again it would fill up again


def test_what_a_node_says_without_a_code_is_taken_for_none(world: World, desk: Desk) -> None:
    lease = granted(world)
    desk.say(ready(lease))

    desk.say(LeaseReport(lease.uid, lease.generation, "gone", detail="alice: was here"))

    lease.refresh_from_db()
    assert (lease.end_reason, public_fault(lease.fault), failure_detail(lease.fault)) == (
        "fault",
        "",
        "alice: was here",
    )
