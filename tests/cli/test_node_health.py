from __future__ import annotations

import json
from typing import Any

from nodeagent.protocol.messages import HealthFact, ProcessSample
from portal.common.live import redis_client
from portal.fleet.health import see_health
from portal.fleet.models import Device, HealthEvent
from portal.leases.models import Placement
from portal.telemetry import processes
from tests.portal.builders import World


def test_an_operator_reads_what_ails_a_node_and_what_it_cannot_offer(world: World, berth: Any) -> None:
    device = Device.objects.get(node__name="gpu-01", index=3)
    facts = (
        HealthFact(device.uuid, "79", "critical", "gone", "reset_gpu"),
        HealthFact("", "events_unwatched", "warning", "thread ended"),
    )
    see_health(world.nodes["gpu-01"], facts, now=world.now)
    see_health(world.nodes["gpu-01"], facts[1:], now=world.now)
    Device.objects.filter(pk=device.pk).update(refusals={"mps": "Start the daemon."})

    told = berth("node", "health", "gpu-01", who="operator")
    raw = json.loads(berth("node", "health", "gpu-01", "--json", who="operator").stdout)

    assert "reported no more" in told.output
    assert "Reset the GPU" in told.output
    assert "cannot offer mps: Start the daemon." in told.output
    assert [(e["device"], e["code"], e["action"]) for e in raw["events"]] == [
        (None, "events_unwatched", ""),
        (3, "79", "reset_gpu"),
    ]


def test_a_fault_of_slices_names_where_they_begin_beside_their_device(world: World, berth: Any) -> None:
    device = Device.objects.get(node__name="gpu-01", index=3)
    fact = HealthFact(device.uuid, "94", "warning", "stopped", "restart_workload", (4, 0))
    see_health(world.nodes["gpu-01"], [fact], now=world.now)

    told = berth("node", "health", "gpu-01", who="operator").stdout
    raw = json.loads(berth("node", "health", "gpu-01", "--json", who="operator").stdout)

    assert "3 @0,4" in told
    assert raw["events"][0]["starts"] == [0, 4]


def test_quarantine_and_clear_name_a_device_by_its_number(world: World, berth: Any) -> None:
    device = Device.objects.get(node__name="gpu-01", index=3)

    taken = berth("node", "quarantine", "gpu-01", "3", "--reason", "fan", who="operator")
    device.refresh_from_db()
    was = device.health
    back = berth("node", "clear", "gpu-01", device.uuid, who="operator")

    device.refresh_from_db()
    assert (was, device.health) == ("quarantined", "ok")
    assert "fan" in taken.stdout
    assert "ok" in back.stdout


def test_events_of_the_node_itself_are_cleared_without_a_device(world: World, berth: Any) -> None:
    see_health(world.nodes["gpu-01"], [HealthFact("", "x", "critical", "y")], now=world.now)

    assert berth("node", "clear", "gpu-01", who="operator").exit_code == 0

    assert HealthEvent.objects.get().cleared_by == "operator"


def test_a_device_that_is_not_there_is_answered_with_those_that_are(world: World, berth: Any) -> None:
    answer = berth("node", "quarantine", "gpu-01", "77", "--reason", "fan", who="operator")

    assert answer.exit_code == 2
    assert "0, 1, 2" in answer.output


def test_only_operators_are_served(world: World, berth: Any) -> None:
    calls = (
        ("processes", "gpu-01"),
        ("quarantine", "gpu-01", "3", "--reason", "x"),
        ("clear", "gpu-01", "3"),
        ("clear", "gpu-01"),
    )
    assert [berth("node", *call, who="bob").exit_code for call in calls] == [1, 1, 1, 1]
    assert not HealthEvent.objects.exists()


def test_processes_are_listed_orphans_first_and_unknown_is_said(world: World, berth: Any) -> None:
    uuid = Device.objects.get(node__name="gpu-01", index=2).uuid
    unknown = berth("node", "processes", "gpu-01", who="operator")
    packed = processes.pack(
        [
            ProcessSample(7, uuid, "held", "lse-1", "python", 2048),
            ProcessSample(8, uuid, "orphan", "", "", None),
        ],
        at=world.now.timestamp(),
    )
    redis_client().hset(processes.NEWEST, "gpu-01", packed.rows)

    told = berth("node", "processes", "gpu-01", who="operator").stdout
    raw = json.loads(berth("node", "processes", "gpu-01", "--json", who="operator").stdout)

    assert "Not known" in unknown.output
    assert told.index("orphan") < told.index("held")
    assert "unknown" in told
    assert (raw["orphans"], raw["processes"][1]["memory_mib"]) == (1, None)


def test_processes_name_a_lease_only_where_the_node_has_it(world: World, berth: Any) -> None:
    here, elsewhere = world.active("bob", "h100"), world.active("charlie", "l40s-quarter")
    node, uuid = here.node.name, Device.objects.filter(node=here.node).earliest("index").uuid
    assert elsewhere.node.name != node
    listed = [
        ProcessSample(pid, uuid, "held", lease, "python", 1)
        for pid, lease in enumerate((here.uid, elsewhere.uid, "lse-invented"), start=1)
    ]
    packed = processes.pack(listed, at=world.now.timestamp())
    redis_client().hset(processes.NEWEST, node, packed.rows)

    raw = json.loads(berth("node", "processes", node, "--json", who="operator").stdout)

    assert {row["pid"]: row["lease"] for row in raw["processes"]} == {1: here.uid, 2: "", 3: ""}


def test_show_tells_the_command_that_enters_a_lease(world: World, berth: Any) -> None:
    lease = world.active()
    entrance = {"runtime": "systemd", "unit": "berth-lease-1.service", "isolated": "yes"}
    Placement.objects.filter(lease=lease).update(
        partition_uuid="MIG-1", access={"env": {}, "nodes": [], "entrance": entrance}
    )

    told = berth("show", lease.uid).stdout
    raw = json.loads(berth("show", lease.uid, "--json").stdout)

    assert f"sudo berth-agent enter {lease.uid}" in told
    assert raw["access"]["entrance"]["is_isolated"] is True


def test_show_warns_where_leases_are_not_kept_apart(world: World, berth: Any) -> None:
    lease = world.active()
    entrance = {"runtime": "plain", "isolated": "no", "env_file": "/run/berth/lse.env"}
    Placement.objects.filter(lease=lease).update(
        partition_uuid="MIG-1", access={"env": {}, "nodes": [], "entrance": entrance}
    )

    told = berth("show", lease.uid).output

    assert "does not keep leases apart" in told
    assert ". /run/berth/lse.env" in told
