"""Slices that others make where ours was refused, removed or cleared: never ours, whoever dies in between."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.runtimes.names import unit_of
from tests.agent.builder import SimulatedNode, lease
from tests.agent.test_lost_device import LosingNode

CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


def plain(state: Path) -> SimulatedNode:
    return SimulatedNode(state, count=2)


@pytest.fixture(params=[plain, LosingNode], ids=["simulated", "nvml"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> SimulatedNode:
    return request.param(tmp_path)


def refuse_making(node: SimulatedNode, times: int) -> None:
    if isinstance(node, LosingNode):
        node.home.host.faults.refusals[CREATE] = deque([errors.IN_USE] * times)
    else:
        node.faults.refusals["create"] = deque([errors.IN_USE] * times)


def add_foreign(node: SimulatedNode, profile: str, start: int) -> None:
    if isinstance(node, LosingNode):
        node.home.host.switch_mig(0)
        node.home.host.add_foreign(0, profile, start)
    else:
        node.driver.add_foreign(node.device(), profile, start)


def remove_by_hand(node: SimulatedNode, start: int) -> None:
    if isinstance(node, LosingNode):
        node.home.host.remove_foreign(0, start)
        return
    partition = next(part.uuid for part in node.standing() if part.start == start)
    node.driver.detach(partition, kill=True)
    node.driver.processes(partition)  # a look at them finds them gone
    node.driver.destroy(partition)


def hold(node: SimulatedNode, name: str) -> None:
    """Let what runs in a lease ignore that it is asked to stop."""
    if isinstance(node, LosingNode):
        unit = node.home.systemd.units[unit_of((name, 1))]
        node.home.world.spawn(unit.cgroup, user="alice", is_stubborn=True)
    else:
        node.faults.stubborn[node.reports()[name].access[0].partition] = 99


def places(node: SimulatedNode) -> list[tuple[str, int]]:
    return [(part.profile, part.start) for part in node.standing()]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_slice_made_where_ours_was_refused_is_not_ours_in_the_next_life_either(node, is_restarted):
    kept = replace(lease("b", node.mig("1g.10gb", 6)), user="alice")
    node.desire(kept)
    refuse_making(node, 3)
    node.desire(kept, replace(lease("a", node.mig("1g.10gb", 0)), user="alice"))
    waiting = node.phases()
    add_foreign(node, "1g.10gb", 0)
    if is_restarted:
        node.start()
    node.pass_time(20)
    told = node.reports()["a"]

    node.desire(kept)
    node.pass_time(20)

    assert waiting == {"a": "preparing", "b": "ready"}
    assert (told.phase, told.code) == ("failed", "conflict")
    assert node.phases() == {"a": "gone", "b": "ready"}
    assert sorted(places(node)) == [("1g.10gb", 0), ("1g.10gb", 6)]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_slice_made_where_a_lease_was_cleared_is_foreign_though_its_other_device_is_in_use(
    tmp_path, monkeypatch, is_restarted
):
    node = plain(tmp_path)
    node.desire(lease("a", node.mig("1g.10gb", 0), node.mig("1g.10gb", 0, device=1)))
    listed, busy = node.driver.processes, node.standing(1)[0].uuid

    def one_is_busy(partition: str):
        if partition == busy:
            raise NvmlLikeError(errors.IN_USE, "still running: 1")
        return listed(partition)

    monkeypatch.setattr(node.driver, "processes", one_is_busy)
    node.desire()
    node.pass_time(10)
    add_foreign(node, "1g.10gb", 0)
    node.look()
    told = {(part.device, part.lease) for part in node.reconciler.observed.partitions()}
    node.accept(lease("b", node.mig("1g.10gb", 0)))
    node.reconciler.next_step(node.device(), node.time.now)  # dies on the way to the device
    if is_restarted:
        node.start()
    node.work()
    refused = node.reports()["b"]
    node.desire()
    node.pass_time(20)

    assert told == {(node.device(0), ""), (node.device(1), "a")}
    assert (refused.phase, refused.code) == ("failed", "conflict")
    assert places(node) == [("1g.10gb", 0)]


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_slice_made_where_that_of_an_ending_lease_was_seen_to_be_gone_stays(tmp_path, is_reset, is_restarted):
    node = LosingNode(tmp_path)
    node.desire(replace(node.lease_of("mig"), grace_s=120))
    unit = node.home.systemd.units[unit_of(("a", 1))]
    node.home.world.spawn(unit.cgroup, user="alice", is_stubborn=True)
    node.desire()
    node.pass_time(10)
    if is_reset:
        node.lose()
        node.home.host.device(0).gpu.is_lost = False
        node.home.host.reset(0)
        node.examine()
    else:
        remove_by_hand(node, 0)
    node.look()
    node.reconciler.ledger.save()
    add_foreign(node, "1g.10gb", 0)
    if is_restarted:
        node.start()
    node.look()
    told, phases = node.partitions(), node.phases()

    node.pass_time(200)

    assert phases == {"a": "draining"}
    assert told == {("1g.10gb", 0, "")}
    assert node.phases() == {"a": "gone"}
    assert places(node) == [("1g.10gb", 0)]


def test_slice_that_is_removed_before_its_lease_is_ready_fails_it_and_the_next_one_there_stays(node):
    on_one = replace(lease("b", node.mig("1g.10gb", 0, device=1)), user="alice", grace_s=600)
    node.desire(on_one)
    two = replace(lease("a", node.mig("1g.10gb", 0), node.mig("1g.10gb", 0, device=1)), user="alice")
    hold(node, "b")
    node.desire(two)  # its second place waits for what ends there
    waiting, made = node.phases(), places(node)
    remove_by_hand(node, 0)
    node.look()
    told = node.reports()["a"]
    add_foreign(node, "1g.10gb", 0)
    node.look()
    seen = node.partitions()

    node.desire()
    node.pass_time(700)

    assert (waiting, made) == ({"a": "preparing", "b": "draining"}, [("1g.10gb", 0)])
    assert (told.phase, told.code) == ("failed", "partition_lost")
    assert ("1g.10gb", 0, "") in seen
    assert node.phases() == {"a": "gone", "b": "gone"}
    assert places(node) == [("1g.10gb", 0)]


def test_what_was_seen_to_be_gone_during_another_step_is_not_ours(node):
    ends, goes_on = (replace(lease(n, node.mig("1g.10gb", s)), user="alice") for n, s in (("a", 0), ("b", 1)))
    node.desire(ends, goes_on)
    remove_by_hand(node, 0)
    newer = replace(lease("c", node.mig("1g.10gb", 2)), user="alice")
    node.desire(ends, goes_on, newer)  # nobody looks for the sake of a, but c is made on the same device
    failed = node.reports()["a"]
    add_foreign(node, "1g.10gb", 0)

    node.desire(goes_on, newer)
    node.pass_time(20)

    assert (failed.phase, failed.code) == ("failed", "partition_lost")
    assert node.phases() == {"a": "gone", "b": "ready", "c": "ready"}
    assert sorted(places(node)) == [("1g.10gb", 0), ("1g.10gb", 1), ("1g.10gb", 2)]
