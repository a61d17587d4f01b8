"""A device that fell off the bus: its leases are over as soon as their programs are, and it comes back empty."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.nvml.mps.servers import PROGRAM
from nodeagent.protocol.messages import DesiredLease, HealthFact
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.steps import read_health
from nodeagent.runtimes.names import unit_of
from nodeagent.simulation.full_host import FullHost
from tests.agent.builder import SimulatedNode, lease
from tests.agent.device_bench import EVERY_MODE
from tests.agent.test_vendor_leases import VendorNode, ascend, cambricon, hygon

MODES = ("mig", "exclusive", "mps", "memlimit", "timeslice")


class LosingNode(SimulatedNode):
    """The driver of real devices and the real runtimes on a simulated host with two devices."""

    def __init__(self, state: Path) -> None:
        self.home: FullHost | None = None
        super().__init__(state, count=2)

    def start(self) -> LosingNode:
        if self.home is None:
            self.home = FullHost(self.name, [self.model] * 2, self.state / "home", self.time)
        self.driver = self.home.driver(offer=EVERY_MODE)  # type: ignore[assignment]
        self.facts = tuple(self.driver.inventory())
        self.runtime = self.home.runtime()
        journal = Journal(self.state / "journal.jsonl")
        self.reconciler = Reconciler(self.name, self.driver, journal, self.time.now, self.runtime)
        return self

    def lose(self) -> None:
        self.home.host.lose(0)
        self.examine()

    def examine(self) -> None:
        self.reconciler.observe_health(read_health(self.driver), self.time.now)
        self.work()

    def lease_of(self, mode: str, name: str = "a", device: int = 0) -> DesiredLease:
        slots = {"mig": self.mig("1g.10gb", 0, device), "exclusive": self.whole(device)}
        slot = slots.get(mode) or self.share(mode, 250, 8_192, device)
        return replace(lease(name, slot, grace_s=2), user="alice", team="vision")


@pytest.fixture
def node(tmp_path: Path) -> LosingNode:
    return LosingNode(tmp_path)


@pytest.mark.parametrize("mode", MODES)
def test_lease_on_a_lost_device_is_over_once_its_programs_are_and_other_devices_go_on(node, mode):
    other = node.lease_of("mig", "b", device=1)
    node.desire(node.lease_of(mode), other)
    unit = node.home.systemd.units[unit_of(("a", 1))]
    work = node.home.world.spawn(unit.cgroup, user="alice", is_stubborn=True).pid
    assert node.phases() == {"a": "ready", "b": "ready"}

    node.lose()
    failed = node.reports()["a"]
    node.desire(other)
    early = node.phases()
    node.pass_time(10)

    assert (failed.phase, failed.code) == ("failed", "gpu_lost")
    assert early == {"a": "draining", "b": "ready"}
    assert work not in node.home.world.processes
    assert node.phases() == {"a": "gone", "b": "ready"}
    assert {fact.device for fact in node.reconciler.observed.partitions()} == {node.device(1)}
    assert node.reconciler.is_settled


@pytest.mark.parametrize("mode", MODES)
def test_device_that_is_reset_without_a_reboot_serves_the_next_lease(node, mode):
    node.desire(node.lease_of(mode))
    node.lose()
    node.desire()
    node.pass_time(10)

    node.home.host.device(0).gpu.is_lost = False  # taken off the bus and found again
    node.home.host.reset(0)
    node.start()
    node.examine()
    node.look()
    back = node.standing()
    node.desire(node.lease_of(mode, "next"))

    assert back == []
    assert node.phases()["next"] == "ready"


def test_mps_daemon_of_a_lost_device_ends_with_its_last_share(node):
    node.desire(node.lease_of("mps"), node.lease_of("mps", "b"))
    node.lose()
    node.desire(node.lease_of("mps", "b"))
    node.pass_time(10)
    one_left = node.driver.mps.daemons()

    node.desire()
    node.pass_time(10)

    assert one_left == [(node.device(), "alice")]
    assert node.driver.mps.daemons() == []
    assert not [p for p in node.home.world.processes.values() if PROGRAM in p.name]


def test_lease_keeps_its_place_while_only_a_call_says_that_the_device_is_lost(make_node, monkeypatch):
    node = make_node()
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    monkeypatch.setattr(node.driver, "detach", _lost)

    node.desire()
    node.pass_time(120)

    assert (node.phases(), node.reports()["a"].code) == ({"a": "draining"}, "gpu_lost")


def test_device_that_answers_again_is_cleared_like_any_other(make_node):
    node = make_node()
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    node.reconciler.observe_health(
        (HealthFact(node.device(), "79", "critical", "it was lost for a while"),), 0
    )

    node.desire()
    node.pass_time(10)

    assert node.phases() == {"a": "gone"}
    assert node.standing() == []


@pytest.mark.parametrize("call", ["processes", "detach", "destroy"])
def test_call_that_fails_once_lets_go_of_nothing_on_a_device_that_answers(make_node, monkeypatch, call):
    node = make_node()
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    node.reconciler.observe_health(
        (HealthFact(node.device(), "79", "critical", "heard once"),), node.time.now
    )
    asked, left = getattr(node.driver, call), iter([True])

    def stumble(*words: object, **more: object) -> object:
        if next(left, False):
            raise NvmlLikeError(errors.UNKNOWN, "not now")
        return asked(*words, **more)

    monkeypatch.setattr(node.driver, call, stumble)
    node.desire()
    node.pass_time(20)

    assert node.phases() == {"a": "gone"}
    assert node.standing() == []


def test_lost_device_whose_calls_fail_anyhow_is_let_go_after_a_minute(make_node, monkeypatch):
    node = make_node(count=2)
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    lost = HealthFact(node.device(), "79", "critical", "heard once")
    monkeypatch.setattr(node.driver, "processes", _unknown)
    node.reconciler.observe_health((lost,), node.time.now)
    node.desire()
    early = node.phases()

    for number in range(14):
        hot = HealthFact(node.device(1), "thermal", "info", f"{number}")
        node.reconciler.observe_health((lost, hot), node.time.now)
        node.desire()
        node.pass_time(5)

    assert early == {"a": "draining"}
    assert node.phases() == {"a": "gone"}


@pytest.mark.parametrize("vendor", [hygon, cambricon, ascend])
def test_what_stood_on_a_lost_device_of_another_vendor_is_forgotten(tmp_path, monkeypatch, vendor):
    node = VendorNode(tmp_path, vendor())
    node.desire(lease("a", node.part()))
    monkeypatch.setattr(node.driver, "processes", _lost)
    fact = HealthFact(node.device(), "device_lost", "critical", "the tool no longer lists the device")
    node.reconciler.observe_health((fact,), node.time.now)

    node.desire()
    node.pass_time(10)
    monkeypatch.undo()

    assert node.phases() == {"a": "gone"}
    assert [fact for fact in node.standing() if fact.lease] == []


def _lost(*words: object, **more: object) -> None:
    raise NvmlLikeError(errors.GPU_IS_LOST, "it is lost")


def _unknown(*words: object, **more: object) -> None:
    raise NvmlLikeError(errors.UNKNOWN, "no answer that means anything")
