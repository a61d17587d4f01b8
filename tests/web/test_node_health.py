from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from nodeagent.protocol.messages import HealthFact, ProcessSample
from portal.common.live import redis_client
from portal.fleet.health import see_health
from portal.fleet.models import Device, DeviceModel, HealthEvent, Node
from portal.leases.models import Lease, Placement
from portal.telemetry import processes
from portal.web.nodes.health import refusals_of
from portal.web.nodes.rows import OPEN_EVENTS, node_rows
from tests.portal.builders import World
from tests.web.conftest import SignedIn


@pytest.fixture
def device(world: World) -> Device:
    return Device.objects.get(node__name="gpu-01", index=3)


def listed(world: World, *samples: ProcessSample, node: str = "gpu-01") -> None:
    packed = processes.pack(samples, at=world.now.timestamp())
    redis_client().hset(processes.NEWEST, node, packed.rows)
    redis_client().hset(processes.ORPHANS, node, packed.orphans)


def said(world: World, *facts: HealthFact) -> None:
    see_health(world.nodes["gpu-01"], facts, now=world.now)


def test_an_event_says_what_happened_and_what_to_do_beside_the_agents_own_words(
    world: World, signed_in: SignedIn, device: Device
) -> None:
    said(world, HealthFact(device.uuid, "79", "critical", "seen twice", "reset_gpu"))

    text = signed_in("operator").get("/cluster/gpu-01/").text

    assert "XID 79 on device 3" in text
    assert "It has fallen off the bus." in text
    assert "seen twice" in text
    assert "Reset the GPU once its leases are gone" in text


def test_an_event_that_the_agent_reports_no_more_says_that_it_waits_for_an_operator(
    world: World, signed_in: SignedIn, device: Device
) -> None:
    said(world, HealthFact(device.uuid, "79", "critical", "gone"))
    said(world)

    text = signed_in("operator").get("/cluster/gpu-01/").text

    assert "The agent reports it no more, since" in text
    assert f"/operations/devices/{device.uuid}/clear/" in text


@pytest.mark.parametrize(
    ("starts", "sentence"),
    [
        ((4,), "It hit only the slice that begins at 4."),
        ((4, 0), "It hit only the slices that begin at 0, 4."),
        (None, ""),
    ],
)
def test_an_event_of_slices_says_on_both_pages_which_they_are(
    starts: tuple[int, ...] | None, sentence: str, world: World, signed_in: SignedIn, device: Device
) -> None:
    said(world, HealthFact(device.uuid, "94", "warning", "stopped", "restart_workload", starts))

    for page in ("/cluster/gpu-01/", "/operations/nodes/"):
        text = signed_in("operator").get(page).text
        assert "XID 94" in text
        assert (sentence in text) if sentence else ("It hit only" not in text)


def test_a_code_nobody_has_words_for_is_shown_as_it_is(
    world: World, signed_in: SignedIn, device: Device
) -> None:
    said(world, HealthFact(device.uuid, "xid-9999", "warning", "strange <b>thing</b>", ""))

    text = signed_in("operator").get("/cluster/gpu-01/").text

    assert "XID 9999" in text
    assert "strange &lt;b&gt;thing&lt;/b&gt;" in text


def test_an_event_of_the_node_itself_is_shown_in_both_places_and_can_be_cleared(
    world: World, signed_in: SignedIn
) -> None:
    said(world, HealthFact("", "events_unwatched", "critical", "thread ended", "reboot_node"))
    operator = signed_in("operator")

    page, nodes = operator.get("/cluster/gpu-01/").text, operator.get("/operations/nodes/").text
    operator.post("/operations/nodes/gpu-01/clear/")

    assert "events_unwatched on the node itself" in page
    assert "events_unwatched" in nodes
    assert HealthEvent.objects.get().cleared_by == "operator"


def test_an_operator_puts_a_device_in_quarantine_and_lets_it_work_again(
    world: World, signed_in: SignedIn, device: Device
) -> None:
    operator = signed_in("operator")

    operator.post("/operations/nodes/gpu-01/quarantine/", {"device": device.uuid, "reason": "fan is loud"})
    page = operator.get("/cluster/gpu-01/").text
    device.refresh_from_db()
    was = device.health
    operator.post(f"/operations/devices/{device.uuid}/clear/")

    device.refresh_from_db()
    assert (was, device.health) == ("quarantined", "ok")
    assert "fan is loud" in page
    assert "Quarantine by an operator on device 3" in page


def test_a_quarantine_without_reason_or_of_another_nodes_device_changes_nothing(
    world: World, signed_in: SignedIn, device: Device
) -> None:
    operator = signed_in("operator")

    for values in ({"device": device.uuid, "reason": " "}, {"device": "GPU-x", "reason": "fan"}, {}):
        operator.post("/operations/nodes/gpu-01/quarantine/", values)
    operator.post("/operations/nodes/gpu-03/quarantine/", {"device": device.uuid, "reason": "fan"})

    assert operator.post("/operations/nodes/no-such/quarantine/").status_code == 404
    assert not HealthEvent.objects.exists()


def test_only_operators_act_on_health(world: World, signed_in: SignedIn, device: Device) -> None:
    for who in ("alice", "charlie"):
        for path in (
            "/operations/nodes/gpu-01/quarantine/",
            "/operations/nodes/gpu-01/clear/",
            f"/operations/devices/{device.uuid}/clear/",
        ):
            assert signed_in(who).post(path, {"device": device.uuid, "reason": "x"}).status_code == 403
    assert not HealthEvent.objects.exists()


def test_operators_see_processes_orphans_first_and_leases_linked(
    world: World, signed_in: SignedIn, device: Device
) -> None:
    lease = world.active()
    listed(
        world,
        ProcessSample(4321, device.uuid, "held", lease.uid, "python", 2048),
        ProcessSample(999, device.uuid, "orphan", "", "<miner>", None),
        ProcessSample(5, device.uuid, "held", "lse-of-another-node", "x", 1),
    )

    text = signed_in("operator").get("/cluster/gpu-01/").text

    assert "One process belongs to no lease that may be there" in text
    assert text.index("&lt;miner&gt;") < text.index("PID 4321")
    assert f'<a href="/leases/{lease.uid}/">' in text
    assert "lse-of-another-node" not in text
    assert "2 GiB" in text


def test_nobody_but_operators_sees_a_nodes_processes_or_what_it_cannot_offer(
    world: World, signed_in: SignedIn, device: Device
) -> None:
    listed(world, ProcessSample(999, device.uuid, "orphan", "", "miner"))
    Device.objects.filter(pk=device.pk).update(refusals={"mps": "Start nvidia-cuda-mps-control."})

    text = signed_in("bob").get("/cluster/gpu-01/").text

    assert "miner" not in text
    assert "nvidia-cuda-mps-control" not in text


def test_what_an_agent_says_of_another_teams_work_is_for_operators_alone(
    world: World, signed_in: SignedIn
) -> None:
    lease = world.active("charlie", "h100")
    device = Placement.objects.select_related("device").get(lease=lease).device
    said(
        world,
        HealthFact(
            device.uuid, "orphan_process", "warning", f"pid 4242 train_secret.py, {lease.uid}", "watch"
        ),
        HealthFact(device.uuid, "79", "critical", "while 4243 sweep_secret.py ran", "reboot_node"),
    )

    seen = [
        signed_in(who).get(page).text
        for who in ("bob", "alice")
        for page in ("/cluster/gpu-01/", "/cluster/")
    ]
    told = signed_in("operator").get("/cluster/gpu-01/").text

    for text in seen:
        assert "secret" not in text
        assert lease.uid not in text
    assert "It has fallen off the bus" in seen[0]
    assert "XID 79 on device" in seen[0]
    assert "train_secret.py" in told
    assert "sweep_secret.py" in told


def test_why_an_operator_took_a_device_out_of_work_is_for_operators_alone(
    world: World, signed_in: SignedIn, device: Device
) -> None:
    operator = signed_in("operator")
    operator.post(
        "/operations/nodes/gpu-01/quarantine/", {"device": device.uuid, "reason": "bob mines coins"}
    )

    for page in ("/cluster/gpu-01/", "/cluster/", "/api/v1/map/", "/api/v1/devices/?node=gpu-01"):
        answer = signed_in("bob").get(page)
        assert answer.status_code == 200
        assert "mines coins" not in answer.text
    assert "Quarantine by an operator on device 3" in signed_in("bob").get("/cluster/gpu-01/").text
    assert "mines coins" in operator.get("/cluster/gpu-01/").text


def test_processes_are_unknown_where_no_agent_tells_them(world: World, signed_in: SignedIn) -> None:
    text = signed_in("operator").get("/cluster/gpu-01/").text

    assert "The agent has not listed processes in the last minute" in text


def test_orphans_are_counted_for_operators_on_their_first_page_and_in_the_list_of_nodes(
    world: World, signed_in: SignedIn
) -> None:
    listed(world, ProcessSample(1, "GPU-1", "orphan"), ProcessSample(2, "GPU-1", "orphan"))
    operator = signed_in("operator")

    assert "2 orphan processes" in operator.get("/").text
    assert "2 orphan processes" in operator.get("/operations/nodes/").text


def test_the_list_of_nodes_asks_no_more_queries_for_more_nodes(world: World, signed_in: SignedIn) -> None:
    operator = signed_in("operator")
    operator.get("/operations/nodes/")
    with CaptureQueriesContext(connection) as few:
        operator.get("/operations/nodes/")
    for n in range(20):
        node = Node.objects.create(name=f"more-{n}", created_at=world.now)
        see_health(node, [HealthFact("", "events_unwatched", "warning", "x")], now=world.now)
    with CaptureQueriesContext(connection) as many:
        operator.get("/operations/nodes/")

    assert len(many) == len(few)


def test_the_list_of_nodes_counts_what_stands_there_now_and_never_multiplies_it(
    world: World, device: Device
) -> None:
    node = world.nodes["gpu-01"]
    for _n in range(2):
        world.active("bob", "h100")
    said(world, HealthFact(device.uuid, "63", "warning", "x"), HealthFact("", "share_unread", "warning", "x"))
    over = {"node": node, "device": device, "severity": "info", "detail": "", "at": world.now}
    HealthEvent.objects.bulk_create(
        [HealthEvent(code=f"c{n}", cleared_at=world.now, **over) for n in range(30)]
    )

    rows = {row.name: row for row in node_rows(now=world.now)}

    here = Lease.objects.filter(node=node).count()
    assert here
    assert (rows["gpu-01"].devices, rows["gpu-01"].leases) == (node.devices.count(), here)
    assert rows["gpu-01"].open_events == 2
    assert sum(row.leases for row in rows.values()) == 2
    assert rows["gpu-03"].open_events == 0


def test_the_list_of_nodes_reads_no_event_that_is_over(world: World) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {OPEN_EVENTS}")
        plan = "\n".join(line for (line,) in cursor.fetchall())

    assert "health_event_open" in plan


def test_what_devices_cannot_offer_is_said_once_for_those_with_the_same_reason(
    world: World, signed_in: SignedIn
) -> None:
    same = Device.objects.filter(node__name="gpu-01", index__lt=3)
    same.update(refusals={"memlimit": "Install driver 615 or newer."})
    Device.objects.filter(node__name="gpu-01", index=5).update(refusals={"mps": "Start the daemon."})

    rows = refusals_of(list(Device.objects.filter(node__name="gpu-01")))
    text = signed_in("operator").get("/cluster/gpu-01/").text

    assert [(row.devices, row.why) for row in rows] == [
        ("0, 1, 2", "Install driver 615 or newer."),
        ("5", "Start the daemon."),
    ]
    assert "Install driver 615 or newer." in text


def test_a_holder_sees_the_processes_of_the_own_lease_and_others_do_not(
    world: World, signed_in: SignedIn
) -> None:
    lease = world.active()
    uuid = Placement.objects.select_related("device").get(lease=lease).device.uuid
    listed(
        world,
        ProcessSample(4321, uuid, "held", lease.uid, "train.py", 2048),
        ProcessSample(777, uuid, "held", "lse-other", "secret.py", 1),
    )

    own = signed_in("bob").get(f"/leases/{lease.uid}/").text

    assert "train.py" in own
    assert "secret.py" not in own
    assert signed_in("charlie").get(f"/leases/{lease.uid}/").status_code == 404


def test_a_lease_of_a_node_that_tells_no_processes_says_so_and_looks_again(
    world: World, signed_in: SignedIn
) -> None:
    lease, bob = world.active(), signed_in("bob")

    page, before = bob.get(f"/leases/{lease.uid}/").text, bob.get(f"/leases/{lease.uid}/processes/").text
    uuid = Placement.objects.select_related("device").get(lease=lease).device.uuid
    listed(world, ProcessSample(4321, uuid, "held", lease.uid, "train.py", 2048))
    after = bob.get(f"/leases/{lease.uid}/processes/").text

    for text in (page, before, after):
        assert "Your processes" in text
        assert f'hx-get="/leases/{lease.uid}/processes/"' in text
    assert "Not known" in page
    assert "Not known" in before
    assert "train.py" in after
    assert "<html" not in after


def test_the_list_of_processes_leaves_the_page_when_the_lease_is_over(
    world: World, signed_in: SignedIn
) -> None:
    lease = world.active()
    Lease.objects.filter(pk=lease.pk).update(state="ending", ended_at=world.now)
    bob = signed_in("bob")

    assert bob.get(f"/leases/{lease.uid}/processes/").text == ""
    assert "Your processes" not in bob.get(f"/leases/{lease.uid}/").text


def test_nobody_reads_the_processes_of_a_lease_whose_access_is_not_theirs(
    world: World, signed_in: SignedIn
) -> None:
    lease = world.active()

    assert signed_in("charlie").get(f"/leases/{lease.uid}/processes/").status_code == 404


def enter(lease: Lease, **entrance: str) -> None:
    Placement.objects.filter(lease=lease).update(
        partition_uuid="MIG-1",
        access={"env": {"CUDA_VISIBLE_DEVICES": "MIG-1"}, "nodes": [], "entrance": entrance},
    )


def test_a_lease_in_a_unit_tells_the_command_that_enters_it(world: World, signed_in: SignedIn) -> None:
    lease = world.active()
    enter(lease, runtime="systemd", unit="berth-lease-1.service", isolated="yes")

    text = signed_in("bob").get(f"/leases/{lease.uid}/").text

    assert f"sudo berth-agent enter {lease.uid}" in text
    assert "Kept apart" in text
    assert "does not keep leases apart" not in text


def test_a_lease_for_containers_tells_docker_and_podman(world: World, signed_in: SignedIn) -> None:
    lease = world.active()
    enter(lease, runtime="cdi", cdi=f"berth.local/lease={lease.uid}", isolated="no")

    text = signed_in("bob").get(f"/leases/{lease.uid}/").text

    assert f"docker run --rm -it --device berth.local/lease={lease.uid} IMAGE" in text
    assert f"sudo podman run --rm -it --device berth.local/lease={lease.uid} IMAGE" in text
    assert "This node does not keep leases apart" in text


def test_podman_is_told_where_to_look_where_it_does_not_by_itself(world: World, signed_in: SignedIn) -> None:
    lease = world.active()
    enter(lease, runtime="cdi", cdi=f"berth.local/lease={lease.uid}", isolated="no", cdi_dir="/var/run/cdi")

    text = signed_in("bob").get(f"/leases/{lease.uid}/").text

    assert (
        f"sudo podman --cdi-spec-dir /var/run/cdi run --rm -it --device berth.local/lease={lease.uid}" in text
    )


@pytest.mark.parametrize(
    ("driver", "vendor", "said"),
    [
        ("nvml", "nvidia", "clears memory as it is freed: by its maker"),
        ("ascend", "ascend", "is not known"),
        ("simulated", "nvidia", "has no memory"),
    ],
)
def test_page_says_what_of_the_former_tenant_was_cleared(
    world: World, signed_in: SignedIn, driver: str, vendor: str, said: str
) -> None:
    lease = world.active()
    DeviceModel.objects.update(vendor=vendor)
    Node.objects.update(driver=driver)

    text = signed_in("bob").get(f"/leases/{lease.uid}/").text

    assert "was made anew" in text
    assert said in text


def test_page_of_a_lease_that_has_not_begun_claims_nothing(world: World, signed_in: SignedIn) -> None:
    world.submit("bob")
    (lease,) = world.turn()

    assert "was made anew" not in signed_in("bob").get(f"/leases/{lease.uid}/").text


def test_what_a_shell_would_read_never_gets_into_a_command(world: World, signed_in: SignedIn) -> None:
    lease = world.active()
    enter(lease, runtime="cdi", cdi="x; curl evil", unit="$(reboot)", env_file="/tmp/`id`")

    text = signed_in("bob").get(f"/leases/{lease.uid}/").text

    assert "curl evil" not in text
    assert "berth-agent enter" not in text
    assert "`id`" not in text


def test_an_older_agent_says_nothing_of_isolation_and_the_page_says_so(
    world: World, signed_in: SignedIn
) -> None:
    lease = world.active()
    Placement.objects.filter(lease=lease).update(
        partition_uuid="MIG-1", access={"env": {"CUDA_VISIBLE_DEVICES": "MIG-1"}, "nodes": []}
    )

    text = signed_in("bob").get(f"/leases/{lease.uid}/").text

    assert "it has not said whether it does" in text
    assert "export CUDA_VISIBLE_DEVICES=MIG-1" in text


def test_old_events_leave_the_page_before_open_ones_do(
    world: World, signed_in: SignedIn, device: Device
) -> None:
    said(world, HealthFact(device.uuid, "79", "critical", "the open one"))
    HealthEvent.objects.filter(code="79").update(at=world.now - timedelta(days=9))
    for n in range(30):
        HealthEvent.objects.create(
            node=device.node, device=device, code="63", severity="warning", detail=f"old {n}",
            at=world.now - timedelta(hours=n), cleared_at=world.now, cleared_by="agent",
        )  # fmt: skip

    text = signed_in("operator").get("/cluster/gpu-01/").text

    assert "the open one" in text
    assert "old 0" in text
    assert "old 25" not in text
