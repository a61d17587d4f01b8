"""A pool of a cluster as its portal sees it: units that others hold, and the job of a lease."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.protocol.boards import device_facts
from nodeagent.protocol.messages import POOL, HealthFact, LeaseReport, PartitionFact, Report, SlotAccess
from portal.agents.reports import accept_report
from portal.fleet.models import Device, Health, HealthEvent, Node
from portal.fleet.pools import TAKEN
from portal.fleet.services import learn_devices
from portal.leases.access import commands_of, way_in
from portal.leases.failures import failure_text
from portal.leases.models import Lease, LeaseRequest, Placement
from tests.portal.builders import World, make_flavor
from tests.web.conftest import SignedIn

pytestmark = pytest.mark.django_db


class Pool:
    """The agent of a pool: the node of the world that has whole devices, as one."""

    def __init__(self, world: World) -> None:
        self.world, self.node, self.seq = world, world.nodes["gpu-01"], 0
        Node.objects.filter(pk=self.node.pk).update(features=[POOL], runtime="slurm", driver="slurm")
        Device.objects.filter(node=self.node).update(modes=["exclusive"])
        model = self.node.devices.select_related("model")[0].model
        self.flavor = make_flavor("pool-h100", "Whole H100", model.slug, "exclusive")
        self.uuids = list(self.node.devices.order_by("index").values_list("uuid", flat=True))

    def ask(self) -> LeaseRequest:
        request = self.world.submit(flavor=self.flavor.slug)
        self.world.turn()
        request.refresh_from_db()
        return request

    def say(
        self, *leases: LeaseReport, taken: tuple[str, ...] = (), health: tuple[HealthFact, ...] = ()
    ) -> None:
        self.seq += 1
        revision = Node.objects.get(pk=self.node.pk).desired_revision
        foreign = tuple(PartitionFact(f"{uuid}/taken", uuid, "", 0, 1) for uuid in taken)
        assert accept_report(self.node.pk, Report(1, "boot-1", self.seq, revision, leases, foreign, health))

    def health(self) -> list[str]:
        return list(self.node.devices.order_by("index").values_list("health", flat=True))


@pytest.fixture
def pool(world: World) -> Pool:
    return Pool(world)


def test_units_that_others_hold_take_no_work_until_they_are_given_back(pool: Pool) -> None:
    pool.say(taken=tuple(pool.uuids))
    request = pool.ask()
    waits = request.state, pool.health()

    pool.say()
    pool.world.turn()

    assert waits == ("queued", ["missing"] * len(pool.uuids))
    assert pool.health() == ["ok"] * len(pool.uuids)
    request.refresh_from_db()
    assert request.state == "granted"


def test_what_an_operator_took_out_stays_out_whatever_others_hold(pool: Pool) -> None:
    Device.objects.filter(uuid=pool.uuids[0]).update(health=Health.QUARANTINED, health_reason="smells")

    pool.say(taken=tuple(pool.uuids[:1]))
    pool.say()

    assert pool.health()[0] == "quarantined"


def test_unit_that_others_hold_stays_out_when_its_agent_connects_anew(pool: Pool) -> None:
    pool.say(taken=tuple(pool.uuids[:1]))
    device = Device.objects.select_related("model").get(uuid=pool.uuids[0])
    listed = device_facts("gpu-01", device.model.slug, len(pool.uuids), ("exclusive",))
    facts = [replace(fact, uuid=uuid) for fact, uuid in zip(listed, pool.uuids, strict=True)]
    learn_devices(pool.node, facts, now=pool.world.now, accepts=True)

    device.refresh_from_db()
    assert (device.health, device.health_reason) == ("missing", TAKEN)


def test_foreign_slices_of_a_host_of_its_own_take_nothing_out(world: World) -> None:
    node = world.nodes["gpu-01"]
    uuid = node.devices.first().uuid

    accept_report(
        node.pk, Report(1, "boot-1", 1, 0, (), (PartitionFact("GPU-1/gi1", uuid, "1g.10gb", 0, 1),))
    )

    assert node.devices.get(uuid=uuid).health == "ok"


def test_lease_tells_its_job_and_the_clusters_reason_and_then_how_to_get_in(
    pool: Pool, signed_in: SignedIn
) -> None:
    lease = Lease.objects.get(request=pool.ask())
    slot = Placement.objects.select_related("device").get(lease=lease)
    said = {"runtime": "slurm", "job": "17", "reason": "Resources"}
    pool.say(LeaseReport(lease.uid, lease.generation, "preparing", entrance=said))
    waiting = way_in([Placement.objects.get(lease=lease)])
    page = signed_in("bob").get(f"/leases/{lease.uid}/").content.decode()
    node = signed_in("bob").get("/cluster/gpu-01/").content.decode()
    access = SlotAccess(slot.device.uuid, 0, "slurm:n1/gpu0", {"BERTH_LEASE": lease.uid})
    inside = {"runtime": "slurm", "job": "17", "host": "n1"}

    pool.say(LeaseReport(lease.uid, lease.generation, "ready", access=(access,), entrance=inside))

    assert (waiting.job, waiting.reason, waiting.host) == ("17", "Resources", "")
    assert "Job 17 waits in the cluster." in page
    assert "Resources" in page
    assert "A pool of a cluster" in node
    way = way_in([Placement.objects.get(lease=lease)])
    assert (way.job, way.host, way.reason) == ("17", "n1", "")
    assert commands_of(lease, way) == ["srun --jobid=17 --overlap --pty bash"]


def test_lease_in_kubernetes_is_entered_by_its_job(pool: Pool, signed_in: SignedIn) -> None:
    lease = Lease.objects.get(request=pool.ask())
    slot = Placement.objects.select_related("device").get(lease=lease)
    access = SlotAccess(slot.device.uuid, 0, "kubernetes:n1/GPU-1", {"BERTH_LEASE": lease.uid})
    said = {"runtime": "kubernetes", "job": f"berth-vision/berth-{lease.uid}-g1", "host": "n1"}

    pool.say(LeaseReport(lease.uid, lease.generation, "ready", access=(access,), entrance=said))

    way = way_in([Placement.objects.get(lease=lease)])
    line = f"kubectl -n berth-vision exec -it job/berth-{lease.uid}-g1 -- sh"
    assert commands_of(lease, way) == [line]
    page = signed_in("bob").get(f"/leases/{lease.uid}/").content.decode()
    assert line in page
    assert "Type this where kubectl reaches the cluster." in page
    assert "login host" not in page


def test_job_that_waited_too_long_costs_nothing_and_its_request_queues_again(pool: Pool) -> None:
    request = pool.ask()
    lease = Lease.objects.get(request=request)
    pool.say(
        LeaseReport(
            lease.uid, lease.generation, "failed", code="cluster_busy", detail="Resources", active_ms=0
        )
    )
    pool.say(LeaseReport(lease.uid, lease.generation, "gone", active_ms=0, reason="withdrawn"))

    request.refresh_from_db()
    lease.refresh_from_db()
    assert (lease.state, lease.activated_at, request.state) == ("ended", None, "queued")
    assert failure_text(lease.fault) == "The cluster did not start its job in time."


def test_request_that_the_cluster_has_no_room_for_is_not_given_up_and_one_that_fails_is(pool: Pool) -> None:
    request = pool.ask()
    for code in ("cluster_busy",) * 6 + ("host_lost",) * 5:
        states = [request.state]
        lease = Lease.objects.get(request=request, state="preparing")
        pool.say(LeaseReport(lease.uid, lease.generation, "failed", code=code, detail="no", active_ms=0))
        pool.say(LeaseReport(lease.uid, lease.generation, "gone", active_ms=0, reason="withdrawn"))
        pool.world.turn()
        request.refresh_from_db()
        states.append(request.state)

    assert states == ["granted", "impossible"]
    assert request.leases.count() == 11


def test_silent_cluster_is_an_event_of_the_node_that_goes_by_itself(pool: Pool) -> None:
    pool.say(health=(HealthFact("", "cluster_away", "warning", "it does not answer"),))
    told = HealthEvent.objects.get(code="cluster_away")
    pool.say()

    told_later = HealthEvent.objects.get(pk=told.pk)
    assert (told.cleared_at, told_later.cleared_at is None) == (None, False)
