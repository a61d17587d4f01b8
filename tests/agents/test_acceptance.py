"""New and changed devices serve nobody before an operator has accepted them, unless the policy accepts by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.db import IntegrityError

from nodeagent.protocol.boards import device_facts
from nodeagent.protocol.messages import DeviceFact
from portal.agents.acceptance import accept_node, waiting_of
from portal.agents.admission import admit
from portal.audit.models import AuditEntry
from portal.common.clock import db_now
from portal.common.errors import Conflict
from portal.fleet.models import Device, Node
from portal.fleet.selectors import device_blocked_why
from portal.leases.models import Lease
from portal.notifications.models import Notification
from tests.agents.test_enrolment import NONCE, Key, token
from tests.portal.builders import H100, World

pytestmark = pytest.mark.django_db
FACTS = device_facts("gpu-09", "l40s-48gb", 2)


@pytest.fixture(autouse=True)
def operators_decide(world: World, settings: Any) -> None:
    settings.ACCEPT_NODES = "operator"


class Host:
    """A host that says hello with these devices."""

    def __init__(self, world: World) -> None:
        self.world, self.key = world, Key()

    def greets(self, devices: tuple[DeviceFact, ...], *, is_new: bool = False, version: str = "1") -> Node:
        hello = self.key.hello(token=token(self.world) if is_new else "", last_epoch=0 if is_new else 1)
        told = replace(hello, devices=devices, driver_version=version)
        admit(told, nonce=NONCE, now=self.world.now)
        return Node.objects.get(name="gpu-09")


@pytest.fixture
def host(world: World) -> Host:
    return Host(world)


def waits(node: Node) -> list[str]:
    return [one.uuid for one in waiting_of(node).devices]


def blocked(node: Node) -> set[str]:
    return {device_blocked_why(device) for device in Device.objects.filter(node=node)}


def accept(world: World, node: Node, seen: str = "") -> Node:
    return accept_node(node=node, actor=world.user("operator"), now=world.now, seen=seen)


def test_a_fresh_node_serves_nobody_before_an_operator_accepted_it(world: World, host: Host) -> None:
    node = host.greets(FACTS, is_new=True)

    assert waits(node) == [fact.uuid for fact in FACTS]
    assert blocked(node) == {"unaccepted"}
    told = Notification.objects.get(kind="node.waits")
    assert (told.user.username, told.facts) == ("operator", {"node": "gpu-09", "count": 2})

    accept(world, node, waiting_of(node).seen)

    assert (waits(node), blocked(node)) == ([], {""})
    entry = AuditEntry.objects.get(action="node.accepted")
    assert (entry.actor_id, entry.target) == (world.user("operator").pk, "gpu-09")
    assert waits(host.greets(FACTS)) == []
    assert Notification.objects.filter(kind="node.waits").count() == 1


def test_a_scheduling_turn_places_nothing_on_what_waits(world: World, host: Host) -> None:
    node = host.greets(device_facts("gpu-09", H100, 8, ("exclusive",)), is_new=True)
    Node.objects.filter(pk=node.pk).update(last_seen_at=world.now)
    Node.objects.exclude(pk=node.pk).update(is_cordoned=True)
    request = world.submit("bob", "h100")

    assert world.turn() == []
    accept(world, node)
    assert [lease.request_id for lease in world.turn()] == [request.pk]


def test_an_added_and_a_changed_device_wait_and_the_others_go_on(world: World, host: Host) -> None:
    accept(world, host.greets(FACTS, is_new=True))
    added = device_facts("gpu-09", "l40s-48gb", 3)[2]
    other = replace(FACTS[1], model="A100 80GB", memory_mib=81_920)

    node = host.greets((FACTS[0], other, added))

    new = {one.uuid: one for one in waiting_of(node).devices}
    assert new.keys() == {other.uuid, added.uuid}
    assert (new[other.uuid].model, new[other.uuid].was_model) == ("A100 80GB", FACTS[1].model)
    assert new[added.uuid].was_model is None
    assert Device.objects.get(uuid=FACTS[0].uuid).is_accepted

    accept(world, node)
    assert Device.objects.get(uuid=other.uuid).model.name == "A100 80GB"


def test_another_driver_that_counts_memory_a_little_differently_changes_nothing(
    world: World, host: Host
) -> None:
    accept(world, host.greets(FACTS, is_new=True))
    a_little = tuple(replace(fact, memory_mib=fact.memory_mib - fact.memory_mib // 11) for fact in FACTS)
    half = tuple(replace(fact, memory_mib=fact.memory_mib // 2) for fact in FACTS)

    assert waits(host.greets(a_little, version="999")) == []
    assert len(waits(host.greets(half, version="999"))) == 2
    assert waits(host.greets(FACTS)) == [], "it is what was accepted again"


def test_a_node_that_was_enrolled_again_with_another_key_waits(world: World, host: Host) -> None:
    accept(world, host.greets(FACTS, is_new=True))
    assert waits(host.greets(FACTS, is_new=True)) == [], "the same key"

    host.key = Key()
    assert len(waits(host.greets(FACTS, is_new=True))) == 2


def test_only_what_was_looked_at_is_accepted(world: World, host: Host) -> None:
    seen = waiting_of(host.greets(FACTS[:1], is_new=True)).seen
    node = host.greets(FACTS)

    with pytest.raises(Conflict, match="changed meanwhile"):
        accept(world, node, seen)
    assert len(waits(node)) == 2


def test_what_became_another_model_under_a_lease_is_accepted_once_it_is_empty(
    world: World, host: Host
) -> None:
    lease = world.active("bob", "h100")
    device = lease.placements.get().device
    Device.objects.filter(pk=device.pk).update(
        said={"model": "L40S 48GB", "memory_mib": 49_152}, is_accepted=False
    )

    with pytest.raises(Conflict, match="still holds leases"):
        accept(world, lease.node)


def test_the_policy_of_a_demo_accepts_by_itself(world: World, host: Host, settings: Any) -> None:
    settings.ACCEPT_NODES = "auto"

    assert waits(host.greets(FACTS, is_new=True)) == []
    assert not Notification.objects.filter(kind="node.waits").exists()


def test_devices_from_before_acceptance_was_asked_go_on_serving(world: World, host: Host) -> None:
    accept(world, host.greets(FACTS, is_new=True))
    Device.objects.filter(node__name="gpu-09").update(accepted={}, said={})

    assert waits(host.greets(FACTS)) == []
    assert Device.objects.get(uuid=FACTS[0].uuid).accepted == {
        "model": FACTS[0].model,
        "memory_mib": FACTS[0].memory_mib,
    }


def test_the_database_refuses_a_device_that_is_accepted_as_nothing(world: World) -> None:
    with pytest.raises(IntegrityError, match="device_accepted_as_something"):
        Device.objects.update(accepted=None)


def test_leases_on_a_device_that_changed_go_on(world: World, host: Host) -> None:
    lease = world.active("bob", "h100")
    Device.objects.filter(node=lease.node).update(is_accepted=False)

    world.turn(db_now())

    assert Lease.objects.get(pk=lease.pk).state == "active"
