from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.fleet.models import Device, Health, HealthEvent, Layout, Node
from portal.leases import lifecycle
from portal.web.cluster.map import as_json, fleet_view
from portal.web.cluster.rows import capacity_of, table_of
from tests.portal.builders import H100, World, make_node
from tests.web.conftest import SignedIn


def slots_of(world: World, name: str, node: str = "gpu-01", index: int = 0) -> list[tuple[str, int, int]]:
    fleet = fleet_view(world.rights(name), now=world.now, node_name=node)
    return [(s.kind, s.start, s.size) for s in fleet.nodes[0].devices[index].slots]


def map_in(text: str) -> Any:
    found = re.search(r'<script id="map-data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found.group(1))


def test_slots_fill_the_device_from_left_to_right(world: World) -> None:
    world.active("bob", "h100-3g-40gb")
    world.active("bob", "h100-1g-10gb")

    fleet = fleet_view(world.rights("bob"), now=world.now)

    for device in fleet.devices:
        ends = [slot.start + slot.size for slot in device.slots]
        assert [slot.start for slot in device.slots] == [0, *ends[:-1]]
        assert ends[-1] == device.grid


def test_room_that_no_size_fits_is_stranded_not_free(world: World) -> None:
    device = Device.objects.get(node__name="gpu-01", index=0)
    Layout.objects.create(device=device, positions=[["1g.10gb", 0], ["1g.10gb", 1]], created_at=world.now)
    world.active("bob", "h100-1g-10gb")

    slots = slots_of(world, "bob")

    assert [kind for kind, _start, _size in slots] == ["lease", "free", "stranded"]
    assert slots[1] == ("free", 1, 1)


def test_a_slice_is_cleaning_until_the_agent_confirms(world: World) -> None:
    lease = world.active("bob", "h100")
    lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=world.now)

    assert slots_of(world, "bob") == [("cleaning", 0, 8)]

    world.gone(lease)

    assert slots_of(world, "bob") == [("free", 0, 8)]


def test_a_shared_device_shows_shares_and_keeps_the_rest_for_its_team(world: World) -> None:
    world.active("bob", "l40s-quarter")

    own = slots_of(world, "bob", "gpu-03")
    foreign = slots_of(world, "charlie", "gpu-03")

    assert own == [("lease", 0, 250), ("free", 250, 750)]
    assert foreign == [("lease", 0, 250), ("reserved", 250, 750)]


def test_a_faulty_device_is_blocked_and_a_cordoned_node_away(world: World) -> None:
    Device.objects.filter(node__name="gpu-01", index=0).update(
        health=Health.QUARANTINED, health_reason="XID 79"
    )
    Node.objects.filter(name="gpu-03").update(is_cordoned=True, cordon_reason="memory exchange")

    assert slots_of(world, "bob")[0][0] == "blocked"
    assert slots_of(world, "bob", "gpu-03")[0][0] == "away"


def test_another_teams_name_person_and_lease_stay_hidden(world: World, signed_in: SignedIn) -> None:
    lease = world.active("bob")

    text = signed_in("charlie").get("/cluster/").text

    assert lease.uid not in text
    assert "Perception" not in text
    assert "Another team" in text
    taken = [s for d in map_in(text)["nodes"][0]["devices"] for s in d["slots"] if s["kind"] == "lease"]
    assert [(s["lease"], s["url"], s["label"], s["mine"]) for s in taken] == [("", "", "", False)]


def test_own_slices_are_marked_and_lead_to_their_lease(world: World, signed_in: SignedIn) -> None:
    lease = world.active("bob")

    drawn = map_in(signed_in("bob").get("/cluster/").text)
    taken = [s for d in drawn["nodes"][0]["devices"] for s in d["slots"] if s["mine"]]

    assert [(s["lease"], s["url"]) for s in taken] == [(lease.uid, f"/leases/{lease.uid}/")]


def test_operators_see_every_team_but_call_none_their_own(world: World) -> None:
    world.active("bob")
    world.active("charlie")

    fleet = fleet_view(world.rights("operator"), now=world.now)
    taken = [s for device in fleet.devices for s in device.slots if s.kind == "lease"]

    assert {s.team for s in taken} == {"Perception", "Language"}
    assert not any(s.mine for s in taken)
    assert len({s.tone for s in taken}) == 2


def test_capacity_and_table_tell_the_same_as_the_map(world: World) -> None:
    world.active("bob", "h100")
    fleet = fleet_view(world.rights("bob"), now=world.now)

    capacity = capacity_of(fleet)

    assert capacity.devices == 12
    assert [(s.kind, s.devices) for s in capacity.shares] == [("lease", "1"), ("free", "11")]
    assert len(table_of(fleet)) == sum(len(d.slots) for d in fleet.devices)


@pytest.mark.parametrize(
    ("query", "devices"),
    [
        ("", 12),
        ("?model=l40s-48gb", 4),
        ("?only=mine", 1),
        ("?model=l40s-48gb&only=mine", 0),
        ("?model=nonsense&state=%27&only=x", 12),
    ],
)
def test_the_filter_narrows_and_ignores_what_it_does_not_know(
    world: World, signed_in: SignedIn, query: str, devices: int
) -> None:
    world.active("bob")

    answer = signed_in("bob").get("/cluster/" + query)

    assert answer.status_code == 200
    shown = map_in(answer.text)["nodes"] if devices else []
    assert sum(len(node["devices"]) for node in shown) == devices
    assert devices or "Nothing here matches" in answer.text


def test_an_empty_cluster_says_what_to_do_first(world: World, signed_in: SignedIn) -> None:
    HealthEvent.objects.all().delete()
    Device.objects.all().delete()
    Node.objects.all().delete()

    assert "Enrol a node" in signed_in("operator").get("/cluster/").text
    assert "An operator has to enrol" in signed_in("bob").get("/cluster/").text


def test_an_unknown_node_is_missing(world: World, signed_in: SignedIn) -> None:
    assert signed_in("bob").get("/cluster/gpu-99/").status_code == 404


def test_only_operators_see_what_the_agent_was_told(world: World, signed_in: SignedIn) -> None:
    device = Device.objects.get(node__name="gpu-01", index=2)
    HealthEvent.objects.create(
        node=device.node, device=device, code="xid-79", severity="critical",
        detail="fell off the bus", at=world.now,
    )  # fmt: skip

    bob, operator = (signed_in(name).get("/cluster/gpu-01/").text for name in ("bob", "operator"))

    assert "It has fallen off the bus" in bob
    assert "fell off the bus" not in bob
    assert "fell off the bus" in operator
    assert "revision" not in bob
    assert "/operations/" not in bob
    assert "revision" in operator
    assert "/operations/nodes/gpu-01/cordon/" in operator


def test_the_map_takes_a_fixed_number_of_queries(world: World) -> None:
    with CaptureQueriesContext(connection) as few:
        as_json(fleet_view(world.rights("bob"), now=world.now))
    for n in range(5, 8):
        make_node(f"gpu-0{n}", H100, 8, ("exclusive", "mig"), now=world.now)
    for _ in range(4):
        world.active("bob")

    with CaptureQueriesContext(connection) as many:
        as_json(fleet_view(world.rights("bob"), now=world.now))

    assert len(many) <= len(few) <= 12
