"""Nodes that sleep, from rows over the agent's own mind on simulated cards and back."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from nodeagent.protocol.messages import Report
from portal.agents.desired import desired_state
from portal.agents.reports import accept_report
from portal.audit.models import AuditEntry
from portal.common.errors import Conflict, Invalid
from portal.fleet import power
from portal.fleet.models import Node, NodeSleep
from portal.leases.forecasting import free_units
from portal.leases.models import Lease, LeaseRequest
from scheduler import snapshot
from scheduler.cycle import publish_snapshot
from scheduler.engine.policy import PolicyRules, Sleep, SleepTime
from scheduler.engine.sleep import PowerOrders
from scheduler.power import settle
from tests.agent.builder import SimulatedNode
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
ALWAYS = PolicyRules(sleep=Sleep((SleepTime(tuple(range(7)), 0, 1440, awake=0),), after_s=900))


class Agent:
    """The agent of a node of the world: its real reconciler over simulated cards, its frames by hand."""

    def __init__(self, world: World, state: Path) -> None:
        self.world = world
        self.node = world.nodes["gpu-01"]
        self.own = SimulatedNode(state, "h100-80gb", 8, ("exclusive", "mig"))
        self.report()

    def obey(self) -> None:
        """Take the desired state, carry it out and report."""
        self.own.reconciler.accept(desired_state(self.node.pk, now=self.world.now), self.own.time.now)
        self.own.work()
        self.report()

    def report(self, **more: str) -> None:
        reconciler = self.own.reconciler
        leases = tuple(self.own.reports().values())
        fields = {"power": reconciler.power.state, "power_note": reconciler.power.note, **more}
        report = Report(
            1,
            "boot-1",
            self.own.seq,
            reconciler.ledger.revision,
            leases,
            reconciler.observed.partitions(),
            **fields,
        )
        assert accept_report(self.node.pk, report)
        Node.objects.update(last_seen_at=self.world.now)
        self.own.acknowledge()

    def row(self) -> Node:
        return Node.objects.get(pk=self.node.pk)


@pytest.fixture
def agent(world: World, tmp_path: Path) -> Agent:
    return Agent(world, tmp_path)


def later(world: World, minutes: int, policy: PolicyRules = ALWAYS) -> PowerOrders:
    """Let time pass with all nodes heard, and settle."""
    world.now += timedelta(minutes=minutes)
    Node.objects.update(last_seen_at=world.now)
    return settle(now=world.now, policy=policy)


def asleep(world: World, agent: Agent) -> None:
    later(world, 0)
    later(world, 16)
    agent.obey()


def test_an_idle_node_sleeps_a_request_wakes_it_and_its_lease_gets_active(world: World, agent: Agent) -> None:
    later(world, 0)
    later(world, 14)
    before = agent.row()
    later(world, 2)
    agent.obey()
    slept = agent.row()

    request = world.submit()
    world.turn()
    waits = LeaseRequest.objects.get(pk=request.pk)
    later(world, 0)
    woken = agent.row()
    world.turn()  # too early: the node is not awake yet
    early = Lease.objects.count()
    agent.obey()
    world.turn()
    agent.obey()

    assert (before.power_desired, before.power_state) == ("awake", "awake")
    assert (slept.power_desired, slept.power_state, agent.own.driver.power()) == ("asleep", "asleep", "awake")
    assert [reason["code"] for reason in waits.reasons] == ["node_waking"]
    assert (woken.power_desired, woken.power_state, early) == ("awake", "asleep", 0)
    assert Lease.objects.get(request=request).state == "active"
    assert agent.row().wake_s is not None
    sleep = NodeSleep.objects.get()
    assert sleep.why == "policy"
    assert sleep.ended_at is not None
    actions = AuditEntry.objects.filter(target="gpu-01").order_by("pk").values_list("action", "detail__why")
    assert list(actions) == [("node.put_to_sleep", "idle"), ("node.woken", "claim")]


def test_what_sleeps_counts_as_free_to_those_who_choose(world: World, agent: Agent) -> None:
    flavor = world.flavors["h100"].pk
    publish_snapshot(now=world.now)
    before = free_units()[flavor]
    asleep(world, agent)
    publish_snapshot(now=world.now)

    assert agent.row().power_state == "asleep"
    assert free_units()[flavor] == before == 8


def test_a_node_with_a_lease_is_never_put_to_sleep(world: World, agent: Agent) -> None:
    world.submit(duration_s=86_400)
    world.turn()
    agent.obey()
    later(world, 0)

    later(world, 600)

    assert agent.row().power_desired == "awake"
    assert agent.row().idle_since is None


def test_a_lease_that_came_since_the_look_keeps_its_node_awake(
    world: World, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    later(world, 0)
    seen = snapshot.take(now=world.now + timedelta(minutes=16))
    world.submit()
    world.turn()
    monkeypatch.setattr("scheduler.power.snapshot.take", lambda *, now: seen)
    monkeypatch.setattr("scheduler.power.IDLE", "SELECT %s, %s")

    later(world, 16)

    assert agent.row().power_desired == "awake"


def test_a_lease_in_the_desired_state_goes_before_sleep(world: World, agent: Agent) -> None:
    world.submit()
    world.turn()
    Node.objects.filter(name="gpu-01").update(power_desired="asleep")

    assert desired_state(agent.node.pk, now=world.now).power == "awake"


@pytest.mark.parametrize("said", ["", "unsupported"])
def test_a_node_that_has_not_said_that_it_can_sleep_is_never_asked_to(
    world: World, agent: Agent, said: str
) -> None:
    agent.report(power=said)
    later(world, 0)
    later(world, 60)
    row = agent.row()

    assert (row.power_desired, row.power_state) == ("awake", said)
    with pytest.raises(Conflict):
        power.let_sleep(node=row, actor=world.user("operator"), now=world.now)
    Node.objects.filter(pk=row.pk).update(power_desired="asleep")
    assert desired_state(row.pk, now=world.now).power == "awake"


def test_why_a_node_does_not_sleep_is_kept_as_the_agent_says_it(world: World, agent: Agent) -> None:
    agent.report(power="awake", power_note="IN_USE: a process is on a device")

    assert agent.row().power_note == "IN_USE: a process is on a device"


def test_an_operator_sends_a_node_to_sleep_in_the_day_and_wakes_it(world: World, agent: Agent) -> None:
    operator = world.user("operator")
    none = PolicyRules()

    power.let_sleep(node=agent.row(), actor=operator, now=world.now)
    later(world, 0, none)
    agent.obey()
    slept = agent.row().power_state
    later(world, 600, none)
    power.wake(node=agent.row(), actor=operator, now=world.now)
    agent.obey()
    later(world, 30)  # the policy would let it sleep again, but an hour was promised
    within = agent.row()
    later(world, 40)

    assert slept == "asleep"
    assert NodeSleep.objects.get().why == "operator"
    assert (within.power_desired, within.power_state) == ("awake", "awake")
    assert agent.row().power_desired == "asleep"


def test_a_node_that_an_operator_sent_to_sleep_is_woken_by_need_and_then_goes_by_the_policy(
    world: World, agent: Agent
) -> None:
    power.let_sleep(node=agent.row(), actor=world.user("operator"), now=world.now)
    later(world, 0, PolicyRules())
    agent.obey()

    world.submit()
    later(world, 1, PolicyRules())

    assert (agent.row().power_desired, agent.row().power_rule) == ("awake", "")


def test_keeping_awake_ends_by_itself(world: World, agent: Agent) -> None:
    later(world, 0)
    until = world.now + timedelta(hours=5)
    power.wake(node=agent.row(), actor=world.user("operator"), now=world.now, until=until)

    later(world, 299)
    kept = agent.row().power_desired
    later(world, 1)

    assert (kept, agent.row().power_desired) == ("awake", "asleep")


@pytest.mark.parametrize("minutes", [-1, 0, 91 * 1440])
def test_a_time_to_keep_awake_lies_ahead_and_not_too_far(world: World, agent: Agent, minutes: int) -> None:
    with pytest.raises(Invalid) as refused:
        power.wake(
            node=agent.row(),
            actor=world.user("operator"),
            now=world.now,
            until=world.now + timedelta(minutes=minutes),
        )

    assert "until" in refused.value.fields
    assert agent.row().power_rule == ""


def test_a_sleeping_node_that_reboots_awake_ends_its_sleep_and_is_sent_back(
    world: World, agent: Agent
) -> None:
    asleep(world, agent)

    agent.own.driver.set_power(asleep=False)
    agent.own.reconciler.power.state = "awake"
    agent.report()
    ended = NodeSleep.objects.get().ended_at
    later(world, 0)
    agent.obey()

    assert ended is not None
    assert agent.row().power_state == "asleep"


def test_repeating_changes_nothing(world: World, agent: Agent) -> None:
    asleep(world, agent)
    revision = agent.row().desired_revision

    later(world, 1)
    agent.obey()
    agent.report()

    assert agent.row().desired_revision == revision
    assert NodeSleep.objects.count() == 1
