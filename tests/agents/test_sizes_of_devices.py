"""MIG sizes stay with the device whose driver told them: two drivers may name one slice differently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.models import F

from nodeagent.protocol.boards import device_facts
from nodeagent.protocol.messages import DesiredSlot, DeviceFact
from portal.agents.acceptance import accept_node
from portal.agents.desired import desired_state
from portal.catalog.models import Flavor
from portal.catalog.standard import make_standard_flavors
from portal.common.invariants import broken
from portal.fleet.models import Device, DeviceModel, Layout, Node, Profile
from portal.fleet.services import learn_devices
from portal.leases import bookings, forecasting
from portal.leases.models import Lease, Placement
from portal.web.cluster.map import fleet_view
from scheduler import snapshot
from tests.portal.builders import EPOCH, H100, World, make_node
from tests.portal.test_bookings import book

pytestmark = pytest.mark.django_db
OTHER = {"1g.10gb": ("1g.11gb", 128), "3g.40gb": ("3g.41gb", 64)}


def renamed(facts: Sequence[DeviceFact], names: dict[str, tuple[str, int]] = OTHER) -> list[DeviceFact]:
    """Return the same boards as another driver tells of them: other names, a few MiB more."""

    def sizes(fact: DeviceFact) -> Any:
        for p in fact.profiles:
            name, more = names.get(p.name, (p.name, 0))
            yield replace(p, name=name, memory_mib=p.memory_mib + more)

    return [replace(fact, profiles=tuple(sizes(fact))) for fact in facts]


def facts_of(node: str, count: int = 8) -> tuple[DeviceFact, ...]:
    return device_facts(node, H100, count, ("exclusive", "mig"))


def names_on(node: str) -> set[str]:
    return {row["name"] for device in Device.objects.filter(node__name=node) for row in device.profiles}


@pytest.fixture
def newer(world: World) -> Node:
    """A second node of the model of gpu-01, with another driver."""
    node = make_node("gpu-11", "l40s-48gb", 0, ("exclusive",), now=world.now)
    learn_devices(node, renamed(facts_of("gpu-11")), now=world.now)
    return node


def on_the_wire(world: World, node: Node) -> list[DesiredSlot]:
    return [slot for lease in desired_state(node.pk, now=world.now).leases for slot in lease.slots]


def leave_open(*nodes: str) -> None:
    """Take all other nodes out."""
    Node.objects.update(is_cordoned=True)
    Node.objects.filter(name__in=nodes).update(is_cordoned=False)


@pytest.mark.parametrize("flavor", ["h100-1g-10gb", "newer"])
def test_one_flavor_is_served_by_two_drivers_each_by_its_own_name(
    world: World, newer: Node, flavor: str
) -> None:
    known = Flavor.objects.get(slug="h100-1g-10gb")
    Flavor.objects.create(
        slug="newer", name="By the other name", device_model=known.device_model, mode="mig", profile="1g.11gb",
        share_milli=known.share_milli, memory_mib=known.memory_mib,
    )  # fmt: skip

    for node in ("gpu-01", "gpu-11"):
        leave_open(node)
        lease = world.active("bob", flavor)
        assert lease.node.name == node

    (old,) = on_the_wire(world, world.nodes["gpu-01"])
    (new,) = on_the_wire(world, newer)
    assert (old.profile, new.profile) == ("1g.10gb", "1g.11gb")
    assert new.memory_mib == old.memory_mib + 128
    assert set(Placement.objects.values_list("profile", flat=True)) == {"1g.10gb", "1g.11gb"}
    assert broken() == []


def test_a_full_node_of_one_driver_leaves_room_on_the_other_and_both_count(world: World, newer: Node) -> None:
    leave_open("gpu-01", "gpu-11")
    Device.objects.filter(index__gte=1).update(health="quarantined")

    requests = [world.submit("bob", "h100-3g-40gb") for _ in range(5)]
    made = world.turn()

    assert len(made) == 4
    assert sorted(Placement.objects.values_list("profile", flat=True)) == ["3g.40gb"] * 2 + ["3g.41gb"] * 2
    requests[-1].refresh_from_db()
    assert requests[-1].reasons[0]["code"] != "impossible"
    assert broken() == []


def test_whoever_reports_last_changes_nothing_on_the_other_node(world: World, newer: Node) -> None:
    before = list(Device.objects.filter(node__name="gpu-01").values_list("profiles", flat=True))

    learn_devices(newer, renamed(facts_of("gpu-11")), now=world.now)

    assert list(Device.objects.filter(node__name="gpu-01").values_list("profiles", flat=True)) == before
    assert {"1g.10gb", "3g.40gb"} <= names_on("gpu-01")
    assert not {"1g.11gb", "3g.41gb"} & names_on("gpu-01")
    assert {"1g.11gb", "3g.41gb"} <= names_on("gpu-11")
    learn_devices(world.nodes["gpu-01"], facts_of("gpu-01"), now=world.now)
    assert {"1g.11gb", "3g.41gb"} <= names_on("gpu-11")
    assert not {"1g.10gb", "3g.40gb"} & names_on("gpu-11")


def test_a_driver_upgrade_changes_the_devices_of_its_node_only(world: World) -> None:
    second = make_node("gpu-11", H100, 8, ("exclusive", "mig"), now=world.now)

    learn_devices(second, renamed(facts_of("gpu-11")), now=world.now)
    leave_open("gpu-11")
    world.active("bob", "h100-1g-10gb")

    assert [slot.profile for slot in on_the_wire(world, second)] == ["1g.11gb"]
    assert "1g.11gb" not in names_on("gpu-01")
    assert broken() == []


def test_a_lease_that_has_begun_keeps_its_name_and_place_over_a_driver_upgrade(world: World) -> None:
    world.active("bob", "h100-3g-40gb")
    Device.objects.filter(index__gte=1).update(health="quarantined")

    learn_devices(world.nodes["gpu-01"], renamed(facts_of("gpu-01")), now=world.now)

    (held,) = snapshot.take(now=world.now).held
    assert held.profile == "3g.40gb"
    assert [slot.profile for slot in on_the_wire(world, world.nodes["gpu-01"])] == ["3g.40gb"]
    world.submit("bob", "h100-3g-40gb", count=2)
    assert world.turn() == []  # one more fits beside it, not two
    assert broken() == []


def test_a_booking_takes_the_name_that_its_device_has_when_it_begins(world: World) -> None:
    later = world.now + timedelta(hours=1)
    request = world.submit("bob", "h100-1g-10gb", starts_at=later)
    lease = book(world, request)
    assert lease is not None
    learn_devices(world.nodes["gpu-01"], renamed(facts_of("gpu-01")), now=later)
    Node.objects.update(last_seen_at=lease.starts_at)

    bookings.start_booked(now=lease.starts_at)

    lease.refresh_from_db()
    assert (lease.state, lease.placements.get().profile) == ("preparing", "1g.11gb")
    assert broken() == []


def test_a_slice_costs_what_its_own_device_makes_of_it(world: World, newer: Node) -> None:
    facts = [
        replace(f, profiles=tuple(replace(p, sm_count=17) if p.slices == 1 else p for p in f.profiles))
        for f in renamed(facts_of("gpu-11"))
    ]
    learn_devices(newer, facts, now=world.now)

    leave_open("gpu-11")
    dearer = world.active("bob", "h100-1g-10gb")
    leave_open("gpu-01")
    usual = world.active("bob", "h100-1g-10gb")

    assert (usual.share_milli, dearer.share_milli) == (125, -(-17_000 // 132))
    assert dearer.placements.get().share_milli == dearer.share_milli
    assert broken() == []


def test_a_size_that_contradicts_its_name_is_not_given_to_anybody(world: World, newer: Node) -> None:
    def liar(fact: DeviceFact) -> DeviceFact:
        big = tuple(replace(p, sm_count=132) if p.name == "1g.11gb" else p for p in fact.profiles)
        return replace(fact, profiles=big)

    learn_devices(newer, [liar(fact) for fact in renamed(facts_of("gpu-11"))], now=world.now)
    leave_open("gpu-11")
    world.submit("bob", "h100-1g-10gb")

    assert world.turn() == []
    assert "1g.11gb" not in names_on("gpu-11")
    assert "3g.41gb" in names_on("gpu-11")


@pytest.mark.parametrize(
    ("name", "more", "is_same"),
    [("1g.11gb", 128, True), ("1g.12gb", 2000, False), ("1g.11gb+me", 128, False), ("2g.11gb", 128, False)],
)
def test_one_slice_under_two_names_is_told_from_another_slice(
    world: World, name: str, more: int, is_same: bool
) -> None:
    node = make_node("gpu-11", "l40s-48gb", 0, ("exclusive",), now=world.now)

    learn_devices(node, renamed(facts_of("gpu-11", 1), {"1g.10gb": (name, more)}), now=world.now)

    row = Profile.objects.get(device_model__slug=H100, name=name)
    assert (row.size == "1g.10gb") is is_same


def test_a_device_that_lists_no_sizes_for_once_keeps_those_it_listed(world: World) -> None:
    before = names_on("gpu-01")

    learn_devices(world.nodes["gpu-01"], device_facts("gpu-01", H100, 8, ("exclusive",)), now=world.now)

    assert names_on("gpu-01") == before != set()


def test_sizes_of_a_device_wait_with_it_for_an_operator(world: World, settings: Any) -> None:
    settings.ACCEPT_NODES = "operator"
    node = make_node("gpu-11", "l40s-48gb", 0, ("exclusive",), now=world.now)
    learn_devices(node, renamed(facts_of("gpu-11", 1)), now=world.now)
    assert names_on("gpu-11") == set()
    assert not Profile.objects.filter(name="1g.11gb").exists()

    accept_node(node=node, actor=world.user("operator"), now=world.now)

    assert {"1g.11gb", "3g.41gb"} <= names_on("gpu-11")
    assert "profiles" not in Device.objects.get(node=node).said


def test_a_layout_may_name_a_size_by_any_of_its_names(world: World, newer: Node) -> None:
    leave_open("gpu-11")
    device = Device.objects.get(node=newer, index=0)
    Device.objects.filter(node=newer, index__gte=1).update(health="quarantined")
    Layout.objects.create(device=device, positions=[["1g.10gb", 3], ["3g.41gb", 4]], created_at=EPOCH)

    lease = world.active("bob", "h100-1g-10gb")

    assert [(p.profile, p.start) for p in lease.placements.all()] == [("1g.11gb", 3)]
    view = fleet_view(world.rights("operator"), now=world.now, node_name="gpu-11")
    held = [s for s in view.nodes[0].devices[0].slots if s.kind == "lease"]
    assert [(s.start, s.size) for s in held] == [(3, 1)]
    assert "1g.11gb" in held[0].title


def test_free_units_of_a_flavor_are_those_of_both_drivers(
    world: World, newer: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Flavor.objects.get(slug="h100-1g-10gb")
    Flavor.objects.filter(pk=known.pk).update(profile="1g.11gb")
    seen = snapshot.take(now=world.now)
    monkeypatch.setattr(forecasting, "published_snapshot", lambda: seen)

    free = forecasting.free_units()[known.pk]

    assert free == 2 * 8 * 7


def test_standard_flavors_offer_a_slice_once(world: World, newer: Node) -> None:
    made = make_standard_flavors(DeviceModel.objects.get(slug=H100))

    assert "1g.10gb" in {flavor.profile for flavor in made}
    assert "1g.11gb" not in {flavor.profile for flavor in made}


def test_sizes_known_per_model_become_those_of_its_devices(world: World, newer: Node) -> None:
    before = {device.pk: device.profiles for device in Device.objects.filter(node__name="gpu-01")}
    Device.objects.update(profiles=[])
    Profile.objects.update(size="")
    migration = MigrationLoader(connection).graph.nodes["fleet", "0014_sizes_of_devices"]

    with connection.cursor() as cursor:
        for step in migration.operations[2:]:
            cursor.execute(step.sql)

    assert set(Profile.objects.exclude(size=F("name")).values_list("name", "size")) == {
        ("1g.11gb", "1g.10gb"),
        ("3g.41gb", "3g.40gb"),
    }
    for device in Device.objects.filter(pk__in=before):
        told = sorted(before[device.pk], key=lambda row: row["name"])
        assert sorted(device.profiles, key=lambda row: row["name"]) == told
    assert Lease.objects.count() == 0
