from __future__ import annotations

import pytest

from nodeagent.protocol.messages import LeaseReport, Report, SlotAccess
from portal.agents.reports import accept_report
from portal.fleet.models import Node
from portal.leases.access import commands_of, scratch_of, way_in, whole_environment
from portal.leases.models import Lease, Placement
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
UNIT = {"runtime": "systemd", "unit": "berth-lease-1.service", "isolated": "yes"}


def granted(world: World) -> Lease:
    request = world.submit()
    world.turn()
    return Lease.objects.get(request=request)


def say_ready(lease: Lease, uuid: str, entrance: dict[str, str], seq: int) -> None:
    slot = Placement.objects.select_related("device").get(lease=lease)
    access = SlotAccess(slot.device.uuid, slot.start, uuid, {"CUDA_VISIBLE_DEVICES": uuid})
    ready = LeaseReport(lease.uid, lease.generation, "ready", access=(access,), entrance=entrance)
    revision = Node.objects.get(pk=lease.node_id).desired_revision
    assert accept_report(lease.node_id, Report(1, "boot-1", seq, revision, (ready,), ()))


def test_how_a_lease_is_entered_is_kept_as_its_agent_told(world: World) -> None:
    lease = granted(world)

    say_ready(lease, "MIG-1", UNIT, 1)

    way = way_in(list(lease.placements.all()))
    assert (way.unit, way.is_isolated) == ("berth-lease-1.service", True)
    assert commands_of(lease, way) == [f"sudo berth-agent enter {lease.uid}"]


def test_an_agent_that_tells_no_entrance_leaves_it_unknown(world: World) -> None:
    lease = granted(world)

    say_ready(lease, "MIG-1", {}, 1)

    way = way_in(list(lease.placements.all()))
    assert (way.unit, way.cdi, way.is_isolated) == ("", "", None)
    assert commands_of(lease, way) == []


def test_a_node_that_was_away_and_made_the_slice_anew_tells_the_new_way_in(world: World) -> None:
    lease = granted(world)
    say_ready(lease, "MIG-1", UNIT, 1)
    Lease.objects.filter(pk=lease.pk).update(state="interrupted")

    say_ready(lease, "MIG-2", {**UNIT, "unit": "berth-lease-2.service"}, 2)

    slot = Placement.objects.get(lease=lease)
    assert slot.partition_uuid == "MIG-2"
    assert way_in([slot]).unit == "berth-lease-2.service"


def test_folders_of_a_lease_are_told_with_the_way_in(world: World) -> None:
    lease = granted(world)
    folders = {"scratch": "/local/scratch/lse-1-1", "scratch_gib": "50", "data": "/data/perception"}

    say_ready(lease, "MIG-1", {**UNIT, **folders}, 1)

    slots = list(lease.placements.all())
    way = way_in(slots)
    assert (way.scratch, way.scratch_gib, way.data_sets) == ("/local/scratch/lse-1-1", 50, "/data/perception")
    assert scratch_of(lease) == "/local/scratch/lse-1-1"
    assert whole_environment(slots, {}) == {
        "CUDA_VISIBLE_DEVICES": "MIG-1",
        "BERTH_SCRATCH": "/local/scratch/lse-1-1",
        "BERTH_DATA_SETS": "/data/perception",
    }


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("scratch", "/x/../etc"),
        ("scratch", "x"),
        ("scratch", "/x;id"),
        ("scratch_gib", "-1"),
        ("scratch_gib", "9e9"),
    ],
)
def test_folders_that_make_no_sense_are_unknown(world: World, word: str, text: str) -> None:
    lease = granted(world)

    say_ready(lease, "MIG-1", {**UNIT, word: text}, 1)

    way = way_in(list(lease.placements.all()))
    assert (way.scratch, way.scratch_gib) == ("", None)


def test_of_a_nodes_words_only_those_that_may_be_used_are_kept(world: World) -> None:
    """A frame that no codec saw: what is stored is checked by itself."""
    lease = granted(world)
    slot = Placement.objects.select_related("device").get(lease=lease)
    env = {"CUDA_VISIBLE_DEVICES": "x; touch PWNED", "LD_PRELOAD": "/tmp/x.so", "BERTH_NOTICE": "/a\nb"}
    access = SlotAccess(slot.device.uuid, slot.start, "MIG-1", env, ("/dev/nvidia0", "/etc/shadow"))
    entrance = {"unit": "a.service; id", "runtime": "systemd", "env_file": "/run/x $(id)", "cdi": "a=b"}
    ready = LeaseReport(lease.uid, lease.generation, "ready", access=(access,), entrance=entrance)

    accept_report(lease.node_id, Report(1, "boot-1", 1, 0, (ready,), ()))

    slot.refresh_from_db()
    assert slot.access["env"] == {"CUDA_VISIBLE_DEVICES": "x; touch PWNED"}
    assert slot.access["nodes"] == ["/dev/nvidia0"]
    assert slot.access["entrance"] == {"runtime": "systemd", "cdi": "a=b"}
