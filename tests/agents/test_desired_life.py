"""What a node is told of a lease depends on what its agent understands."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from nodeagent.protocol.boards import device_facts
from nodeagent.protocol.messages import DesiredLease, Notice
from portal.agents.desired import desired_state
from portal.catalog.models import Flavor
from portal.fleet.models import Node
from portal.fleet.services import learn_devices
from portal.leases.draining import bring_back, drain_node
from tests.portal.builders import H100, World

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def told(world: World, *features: str) -> DesiredLease:
    Node.objects.filter(name="gpu-01").update(power_state="awake")
    (lease,) = desired_state(world.nodes["gpu-01"].pk, now=world.now, features=features).leases
    return lease


def test_what_a_flavor_sets_aside_of_the_host_is_sent_for_all_units_of_a_lease(world: World) -> None:
    Flavor.objects.filter(slug="h100").update(cpu_milli=4000, host_memory_mib=65_536)
    world.active("bob", "h100", count=2)

    lease = told(world, "host_limits")

    assert (lease.cpu_milli, lease.host_memory_mib) == (8000, 131_072)


def test_nothing_set_aside_is_no_limit(world: World) -> None:
    world.active("bob", "h100")

    lease = told(world, "host_limits")

    assert (lease.cpu_milli, lease.host_memory_mib) == (None, None)


def test_an_older_agent_is_sent_no_field_that_it_refuses(world: World) -> None:
    Flavor.objects.filter(slug="h100").update(cpu_milli=4000, host_memory_mib=65_536)
    world.active("bob", "h100", duration_s=7200)
    drain_node(
        node=world.nodes["gpu-01"], by=world.now + HOUR, reason="fan", actor=world.user("operator"),
        now=world.now,
    )  # fmt: skip

    lease = told(world)

    assert (lease.cpu_milli, lease.host_memory_mib, lease.notice) == (None, None, None)
    assert lease.remaining_s == 3605, "it ends in time all the same"


def test_a_lease_that_a_drain_cuts_short_is_told_so_until_it_is_withdrawn(world: World) -> None:
    world.active("bob", "h100", duration_s=7200)
    operator = world.user("operator")
    drain_node(node=world.nodes["gpu-01"], by=world.now + HOUR, reason="fan", actor=operator, now=world.now)

    assert told(world, "maintenance").notice == Notice("maintenance", 3600)

    bring_back(node=world.nodes["gpu-01"], actor=operator, now=world.now)
    assert told(world, "maintenance").notice is None


def test_modes_and_refusals_of_a_device_follow_what_its_agent_says_last(world: World) -> None:
    node = world.nodes["gpu-01"]
    facts = device_facts("gpu-01", H100, 2, ("exclusive",))
    lacking = [replace(fact, refusals={"mps": "Install nvidia-cuda-mps-control."}) for fact in facts]

    learn_devices(node, lacking, now=world.now)
    device = node.devices.get(index=0)
    assert (device.modes, device.refusals) == (["exclusive"], {"mps": "Install nvidia-cuda-mps-control."})

    learn_devices(node, device_facts("gpu-01", H100, 2, ("exclusive", "mps")), now=world.now)
    device.refresh_from_db()
    assert (device.modes, device.refusals) == (["exclusive", "mps"], {})


def test_modes_that_an_operator_chose_stay_chosen_when_the_agent_says_hello(world: World) -> None:
    node = world.nodes["gpu-01"]
    facts = device_facts("gpu-01", H100, 2, ("mig", "exclusive"))
    learn_devices(node, facts, now=world.now)
    node.devices.filter(index=0).update(modes=["mig"])

    learn_devices(node, facts, now=world.now)
    chosen = [list(device.modes) for device in node.devices.order_by("index")[:2]]
    learn_devices(node, device_facts("gpu-01", H100, 2, ("exclusive",)), now=world.now)
    left = [list(device.modes) for device in node.devices.order_by("index")[:2]]

    assert chosen == [["mig"], ["mig", "exclusive"]]
    assert left == [[], ["exclusive"]]
