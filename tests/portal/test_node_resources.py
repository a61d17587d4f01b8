"""CPU and memory beside the devices, from the flavor to the turn that takes them."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from nodeagent.protocol.boards import device_facts
from portal.audit.models import AuditEntry
from portal.catalog.models import Flavor
from portal.common.clock import db_now
from portal.fleet.models import DeviceModel, Node
from portal.fleet.services import learn_devices
from portal.leases.models import LeaseRequest
from portal.leases.states import RequestState
from scheduler import cycle, snapshot
from tests.portal.builders import World


@pytest.fixture
def hungry(world: World) -> World:
    """Whole H100s set 12 cores and 100 GiB aside; their node has 36 cores and unknown memory."""
    Flavor.objects.filter(slug="h100").update(cpu_milli=12_000, host_memory_mib=102_400)
    Node.objects.filter(pk=world.active("bob", "h100").node_id).update(cpu_milli=36_000)
    return world


def test_a_lease_takes_its_cpu_of_the_node_once_however_many_devices_it_has(hungry: World) -> None:
    hungry.active("bob", "h100", count=2)

    taken = [(h.lease_id, h.cpu_milli, h.host_memory_mib) for h in snapshot.take(now=db_now()).held]

    assert [row[1:] for row in taken] == [(12_000, 102_400), (24_000, 204_800), (0, 0)]
    assert taken[1][0] == taken[2][0]


def test_what_the_node_has_no_cpu_for_waits_and_is_told(hungry: World) -> None:
    first = hungry.submit("bob", "h100")
    second = hungry.submit("bob", "h100", count=2)

    cycle.run()

    first.refresh_from_db()
    second.refresh_from_db()
    assert first.state == RequestState.GRANTED
    assert second.state == RequestState.QUEUED
    assert told(second)["free_cpu_milli"] == 12_000


def told(request: LeaseRequest) -> dict[str, int]:
    return next(r for r in request.reasons if r["code"] == "node_resources_short")


def test_the_picture_says_what_boards_can_do_and_where_they_sit(world: World) -> None:
    Node.objects.filter(name="gpu-01").update(site="Hall A", rack="A-03")

    seen = snapshot.take(now=db_now())

    node = next(n for n in seen.nodes if n.name == "gpu-01")
    devices = [d for d in seen.devices if d.node_id == node.id]
    assert (node.zone, node.rack) == ("Hall A", "A-03")
    assert {(d.bandwidth_gbps, d.compute_class) for d in devices} == {(2000, 4)}
    assert [(d.switch, d.numa) for d in devices[:5:2]] == [("pcie-0", 0), ("pcie-1", 0), ("pcie-2", 1)]


def test_a_model_known_before_its_figures_gets_them_when_it_is_seen_again(world: World) -> None:
    DeviceModel.objects.filter(slug="h100-80gb").update(bandwidth_gbps=None, compute_class=None)

    learn_devices(Node.objects.get(name="gpu-01"), device_facts("gpu-01", "h100-80gb", 1), now=world.now)

    assert DeviceModel.objects.get(slug="h100-80gb").compute_class == 4


def test_an_operator_sets_cpu_and_memory_aside_for_a_flavor(world: World) -> None:
    call_command("set_aside", "h100", "--cpu-cores", "12.5", "--memory-gib", "96", stdout=StringIO())

    flavor = Flavor.objects.get(slug="h100")
    assert (flavor.cpu_milli, flavor.host_memory_mib) == (12_500, 98_304)
    assert AuditEntry.objects.get(action="flavor.set_aside").detail["cpu_milli"] == 12_500


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing"], "Known: h100"),
        (["h100", "--cpu-cores", "-1"], "between 0"),
        (["h100", "--memory-gib", "nan"], "between 0"),
    ],
)
def test_amounts_that_make_no_sense_change_nothing(world: World, words: list[str], sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        call_command("set_aside", *words)

    assert not Flavor.objects.exclude(cpu_milli=0, host_memory_mib=0).exists()
