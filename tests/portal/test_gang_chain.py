"""A gang from request to clean boards over two real agents with simulated cards."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from nodeagent.protocol.messages import Report
from portal.agents.desired import desired_state
from portal.agents.reports import accept_report
from portal.common.clock import db_now
from portal.common.invariants import broken
from portal.fleet.models import Node
from portal.leases import lifecycle
from portal.leases.models import Lease, LeaseRequest, Placement
from portal.quotas.models import Quota
from tests.agent.builder import SimulatedNode
from tests.portal.builders import H100, World, make_node

pytestmark = pytest.mark.django_db
MODES = ("exclusive", "mig")


class Agent:
    """The agent of one node: its real reconciler over simulated cards, its frames by hand."""

    def __init__(self, node: Node, state: Path) -> None:
        state.mkdir()
        self.node = node
        self.own = SimulatedNode(state, H100, 8, MODES, node.name)

    def obey(self) -> None:
        """Take the desired state, carry it out and report."""
        self.own.reconciler.accept(desired_state(self.node.pk, now=db_now()), self.own.time.now)
        self.own.work()
        self.report()

    def report(self) -> None:
        """Say what is on the node now."""
        reconciler = self.own.reconciler
        leases = tuple(self.own.reports().values())
        seen = Report(
            1, "boot-1", self.own.seq, reconciler.ledger.revision, leases, reconciler.observed.partitions()
        )
        assert accept_report(self.node.pk, seen)
        self.own.acknowledge()


@pytest.fixture
def agents(world: World, tmp_path: Path) -> list[Agent]:
    world.nodes["gpu-02"] = make_node("gpu-02", H100, 8, MODES, now=world.now)
    return [Agent(world.nodes[name], tmp_path / name) for name in ("gpu-01", "gpu-02")]


def states() -> list[str]:
    return [str(state) for state in Lease.objects.order_by("pk").values_list("state", flat=True)]


def started(world: World, agents: list[Agent]) -> LeaseRequest:
    request = world.submit("alice", "h100", nodes=2, count=4)
    world.turn()
    for agent in agents:
        agent.obey()
    return request


def test_a_gang_runs_on_two_nodes_and_leaves_both_clean(world: World, agents: list[Agent]) -> None:
    request = started(world, agents)

    assert states() == ["active", "active"]
    assert Placement.objects.filter(is_live=True).exclude(partition_uuid="").count() == 8
    lifecycle.release_lease(lease=Lease.objects.first(), actor=world.user("alice"), now=db_now())  # type: ignore[arg-type]
    assert states() == ["ending", "ending"]
    for agent in agents:
        agent.obey()

    assert states() == ["ended", "ended"]
    assert LeaseRequest.objects.get(pk=request.pk).state == "fulfilled"
    assert not any(Quota.objects.values_list("used_milli", flat=True))
    assert broken() == []


def test_a_node_that_lost_its_part_sends_the_whole_gang_back_to_the_queue(
    world: World, agents: list[Agent]
) -> None:
    request = started(world, agents)
    first, second = agents
    second.own.reboot()

    second.obey()
    assert "active" not in states()
    first.obey()
    second.obey()

    assert states()[:2] == ["ended", "ended"]
    again = LeaseRequest.objects.get(pk=request.pk)
    assert (again.state, again.attempts) == ("queued", 1)
    assert again.duration_s - 60 <= again.remaining_s <= again.duration_s
    Node.objects.update(last_seen_at=world.now + timedelta(seconds=30))
    assert [lease.part for lease in world.turn(at=world.now + timedelta(seconds=30))] == [0, 1]
