"""What does not answer holds up nothing else: a lost device whose calls hang, and a manager of units that is slow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.host.notices import VARIABLE
from nodeagent.protocol.messages import HealthFact, Notice
from nodeagent.reconcile.steps import carry_out
from nodeagent.runtimes.base import RuntimeRefusedError
from tests.agent.builder import RecordingRuntime, SimulatedNode, lease


@pytest.fixture
def runtime() -> RecordingRuntime:
    return RecordingRuntime()


@pytest.fixture
def node(tmp_path: Path, runtime: RecordingRuntime) -> SimulatedNode:
    node = SimulatedNode(tmp_path, count=2)
    node.runtime = runtime
    return node.start()


def work_on(node: SimulatedNode, lanes: Iterable[str]) -> None:
    """Do all steps of these lanes; on the others a call hangs."""
    lanes = list(lanes)
    is_moving = True
    while is_moving:
        is_moving = False
        for lane in lanes:
            while (step := node.reconciler.next_step(lane, node.time.now)) is not None:
                node.reconciler.settle(step, carry_out(node.driver, step, node.runtime), node.time.now)
                is_moving = True


def hang(node: SimulatedNode, *indexes: int) -> list[str]:
    """Lose devices of which one call never comes back; returns the lanes that go on."""
    lost = [node.device(index) for index in indexes]
    facts = [HealthFact(device, "79", "critical", "fallen off the bus") for device in lost]
    node.reconciler.observe_health(tuple(facts), node.time.now)
    node.reconciler.busy.update(lost)
    return [lane for lane in node.reconciler.lanes if lane not in lost]


def test_lost_device_that_hangs_keeps_neither_the_unit_nor_the_slices_of_other_devices(node, runtime):
    node.desire(lease("a", node.mig("1g.10gb", 0), node.mig("1g.10gb", 0, device=1), grace_s=1))
    lanes = hang(node, 0)
    node.accept()
    wake = node.reconciler.next_wake()
    work_on(node, lanes)
    asked = list(runtime.open_leases)
    node.time.advance(2)
    work_on(node, lanes)

    places = node.reconciler.lease_records["a", 1].places
    assert wake <= node.time.now
    assert asked == []
    assert [place.is_cleared for place in places] == [False, True]
    assert node.standing(1) == []


def test_unit_of_a_lease_all_of_whose_devices_hang_is_closed(node, runtime):
    runtime.stubborn.add("a")
    node.desire(lease("a", node.mig("1g.10gb", 0), grace_s=5), lease("b", node.mig("1g.10gb", 0, device=1)))
    lanes = hang(node, 0)
    node.accept(lease("b", node.mig("1g.10gb", 0, device=1)))
    work_on(node, lanes)
    in_grace = list(runtime.open_leases)
    while (wake := node.reconciler.next_wake()) is not None and wake < node.time.now + 10**10:
        node.time.now = max(node.time.now + 1, wake)
        work_on(node, lanes)

    assert sorted(in_grace) == [("a", 1), ("b", 1)]
    assert ("kill", ("a", 1)) in runtime.calls
    assert list(runtime.open_leases) == [("b", 1)]
    assert node.phases() == {"a": "draining", "b": "ready"}


def test_lease_is_over_once_the_device_answers_again(node, runtime):
    node.desire(lease("a", node.mig("1g.10gb", 0), node.mig("1g.10gb", 0, device=1), grace_s=1))
    work_on(node, hang(node, 0))
    node.accept()
    node.reconciler.busy.clear()

    node.pass_time(10)

    assert node.phases() == {"a": "gone"}
    assert runtime.open_leases == {}


def test_manager_of_units_that_is_slow_at_the_start_stops_no_agent_and_ends_no_lease(
    node, runtime, monkeypatch
):
    slow = RuntimeRefusedError("systemd", "systemctl did not answer within 10 s", is_passing=True)

    def refuse(*words: object) -> list:
        raise slow

    wanted = lease("a", node.mig("1g.10gb", 0))
    node.desire(wanted)
    with monkeypatch.context() as busy:
        busy.setattr(runtime, "known", refuse)
        busy.setattr(runtime, "open", refuse)
        node.start()
        node.desire(wanted)
        node.pass_time(200)
        meanwhile = node.phases()
    node.pass_time(10)
    node.look()

    assert meanwhile == {"a": "ready"}
    assert node.phases() == {"a": "ready"}
    assert list(runtime.open_leases) == [("a", 1)]


def test_open_lease_that_the_portal_names_without_a_place_is_closed(node, runtime):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    (node.state / "journal.jsonl").unlink()
    node.start()
    node.desire(lease("a"))

    node.desire()
    node.look()
    node.work()
    node.start()
    node.work()

    assert node.phases() == {"a": "gone"}
    assert runtime.open_leases == {}


def test_notice_of_a_newer_generation_stays_when_the_older_one_is_forgotten(node):
    told = Notice("maintenance", 600)
    older = replace(lease("a", node.mig("1g.10gb", 0)), notice=told)
    newer = replace(lease("a", node.mig("1g.10gb", 1), generation=2), notice=told)
    node.desire(older)
    node.desire(newer)
    node.pass_time(3)
    node.reports()
    node.acknowledge()

    before = list(node.reconciler.lease_records)
    notice = Path(node.reports()["a"].access[0].env[VARIABLE])
    is_there = notice.exists()
    node.desire()
    node.pass_time(30)
    node.reports()
    node.acknowledge()

    assert before == [("a", 2)]
    assert is_there
    assert not notice.exists()
