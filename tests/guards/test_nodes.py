"""A node speaks for its own devices only."""

from __future__ import annotations

import pytest

from nodeagent.protocol.boards import device_facts
from nodeagent.protocol.messages import PartitionFact
from portal.fleet.models import Device, Partition
from portal.fleet.services import learn_devices, see_partitions
from tests.portal.builders import H100, World

pytestmark = pytest.mark.django_db


def test_a_node_cannot_take_another_nodes_devices_by_naming_them(world: World) -> None:
    thief = world.nodes["gpu-03"]
    before = list(Device.objects.filter(node=world.nodes["gpu-01"]).order_by("pk").values())
    own = list(device_facts("gpu-03", "l40s-48gb", 4, ("exclusive",)))
    stolen = device_facts("gpu-01", H100, 2, ("exclusive",))

    refused = learn_devices(thief, [*own, *stolen], now=world.now)

    assert refused == [fact.uuid for fact in stolen]
    assert list(Device.objects.filter(node=world.nodes["gpu-01"]).order_by("pk").values()) == before
    assert thief.devices.count() == 4


def test_a_node_cannot_tell_of_partitions_on_another_nodes_device(world: World) -> None:
    theirs = world.nodes["gpu-01"].devices.earliest("index")
    own = world.nodes["gpu-03"].devices.earliest("index")
    facts = [
        PartitionFact(f"MIG-{n}", device.uuid, "1g.10gb", 0, 1) for n, device in enumerate((theirs, own))
    ]

    see_partitions(world.nodes["gpu-03"], facts, now=world.now)

    assert [row.device for row in Partition.objects.select_related("device")] == [own]
