"""Nodes that sleep: the agent's side, on simulated devices and on a library that knows power limits."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from pathlib import Path

import pytest

from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError
from nodeagent.drivers.nvml.driver import NvmlDriver
from nodeagent.drivers.nvml.settings import NvmlSettings
from nodeagent.reconcile.power import change_power
from nodeagent.reconcile.worker import Worker
from tests.agent.builder import SimulatedNode, lease
from tests.agent.test_nvml import FakeError, FakeLibrary


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    return SimulatedNode(tmp_path)


def power_w(node: SimulatedNode) -> float:
    (sample,) = node.driver.metrics().devices
    assert sample.power_w is not None
    return sample.power_w


def test_an_idle_node_sleeps_when_told_and_draws_less(node):
    awake_w = power_w(node)

    node.desire(power="asleep")

    assert (node.reconciler.power.state, node.reconciler.changed) == ("asleep", True)
    assert power_w(node) < awake_w / 2


async def test_a_device_that_is_slow_to_sleep_is_told_once_and_keeps_nobody_waiting(tmp_path, monkeypatch):
    node = SimulatedNode(tmp_path)
    node.faults.latency_s["observe"] = 1e-6  # calls off the loop
    node.start()
    told, free = [], threading.Event()
    set_power = node.driver.set_power

    def slow(*, asleep: bool) -> None:
        told.append(asleep)
        free.wait(20)
        set_power(asleep=asleep)

    monkeypatch.setattr(node.driver, "set_power", slow)
    worker = Worker(node.reconciler, node.driver, node.time)
    try:
        node.accept(power="asleep")
        worker.drive()
        worker.drive()
        assert node.reconciler.power.state == "awake"
        free.set()
        async with asyncio.timeout(10):
            while node.reconciler.power.state != "asleep":
                await worker.changed.wait()
                worker.changed.clear()
    finally:
        free.set()
        worker.close()

    assert told == [True]


def test_a_node_that_holds_a_lease_refuses_to_sleep_until_the_lease_is_gone(node):
    node.desire(lease("a", node.whole()))

    node.desire(lease("a", node.whole()), power="asleep")
    held = node.reconciler.power.state
    node.desire(power="asleep")
    node.pass_time(60)

    assert held == "awake"
    assert node.phases() == {"a": "gone"}
    assert node.reconciler.power.state == "asleep"


def test_a_lease_wakes_its_node_first_even_if_the_portal_still_says_asleep(node):
    node.desire(power="asleep")

    node.desire(lease("a", node.whole()), power="asleep")

    assert node.reconciler.power.state == "awake"
    assert node.phases() == {"a": "ready"}


def test_a_lease_waits_while_its_node_does_not_wake_and_starts_when_it_does(node):
    node.desire(power="asleep")
    node.faults.refusals["wake"] = deque([19])

    node.desire(lease("a", node.whole()))
    stuck = node.phases(), node.reconciler.power.state, node.reconciler.power.note
    node.pass_time(30)

    assert stuck[:2] == ({"a": "preparing"}, "asleep")
    assert "planned fault" in stuck[2]
    assert (node.phases(), node.reconciler.power.state, node.reconciler.power.note) == (
        {"a": "ready"},
        "awake",
        "",
    )


def test_a_sleep_that_is_refused_is_told_and_tried_again_without_haste(node):
    node.faults.refusals["sleep"] = deque([19])

    node.desire(power="asleep")
    told = node.reconciler.power.note
    refused_at, due = node.time.now, node.reconciler.next_wake()
    node.pass_time(30)

    assert "IN_USE" in told
    assert due == refused_at + 10 * 10**9
    assert node.reconciler.power.state == "asleep"
    assert node.reconciler.next_wake() is None


def test_sleep_outlives_the_agent_and_a_silent_portal_but_not_a_reboot(node):
    node.desire(power="asleep")

    node.start()
    node.pass_time(3600)
    after_restart = node.reconciler.power.state
    node.reboot()

    assert (after_restart, node.reconciler.power.state) == ("asleep", "awake")


def test_a_restarted_agent_wakes_its_node_for_a_lease_it_knows(node):
    node.desire(lease("a", node.whole(), remaining_s=36_000))
    node.driver._is_asleep = True  # somebody put it to sleep behind the agent's back

    node.start()
    node.work()

    assert node.reconciler.power.state == "awake"


def test_who_is_woken_by_somebody_else_is_told_and_sent_back_to_sleep(node):
    node.desire(power="asleep")
    node.driver.set_power(asleep=False)
    node.reports()

    node.look()
    told = node.reconciler.power.state, node.reconciler.changed
    node.work()

    assert told == ("awake", True)
    assert node.reconciler.power.state == "asleep"


def test_a_node_with_foreign_partitions_stays_awake(node):
    node.driver.add_foreign(node.device(), "1g.10gb", 0)
    node.look()

    node.desire(power="asleep")

    assert node.reconciler.power.state == "awake"


class LimitLibrary(FakeLibrary):
    """Two devices whose limits can be set."""

    def __init__(self, **answers: object) -> None:
        self.limits = {"device-0": 700_000, "device-1": 650_000}
        self.refuses: set[str] = set()
        super().__init__(nvmlDeviceGetCount=2, **answers)
        self.nvmlDeviceGetHandleByIndex = lambda index: f"device-{index}"
        self.nvmlDeviceGetUUID = lambda handle: f"GPU-{handle}"
        self.nvmlDeviceGetPowerManagementLimitConstraints = lambda _handle: [200_000, 700_000]
        self.nvmlDeviceGetPowerManagementDefaultLimit = lambda _handle: 700_000
        self.nvmlDeviceGetPowerManagementLimit = self.limits.__getitem__
        self.nvmlDeviceSetPowerManagementLimit = self._set

    def _set(self, handle: str, limit: int) -> None:
        if handle in self.refuses:
            raise FakeError(4)
        self.limits[handle] = limit


IDLE = {"nvmlDeviceGetComputeRunningProcesses": []}


def test_real_devices_get_their_lowest_limit_and_afterwards_the_one_they_had():
    library = LimitLibrary(**IDLE)
    driver = NvmlDriver("boot", library, settings=NvmlSettings(may_limit_power=True))
    before = driver.power()

    driver.set_power(asleep=True)
    asleep = driver.power(), dict(library.limits)
    driver.set_power(asleep=False)

    assert before == "awake"
    assert asleep == ("asleep", {"device-0": 200_000, "device-1": 200_000})
    assert (driver.power(), library.limits) == ("awake", {"device-0": 700_000, "device-1": 650_000})


def test_after_a_restart_of_the_agent_devices_wake_to_their_default_limit():
    library = LimitLibrary(**IDLE)
    NvmlDriver("boot", library, settings=NvmlSettings(may_limit_power=True)).set_power(asleep=True)

    NvmlDriver("boot", library, settings=NvmlSettings(may_limit_power=True)).set_power(asleep=False)

    assert library.limits == {"device-0": 700_000, "device-1": 700_000}


def test_limits_are_left_alone_unless_the_operator_allowed_them():
    library = LimitLibrary(**IDLE)
    driver = NvmlDriver("boot", library)

    with pytest.raises(NotOfferedError, match="--power-saving"):
        driver.set_power(asleep=True)

    assert driver.power() == "unsupported"
    assert library.limits == {"device-0": 700_000, "device-1": 650_000}


@pytest.mark.parametrize("running", [[object()], FakeError(3)])
def test_devices_with_a_process_or_that_do_not_tell_are_not_limited(running):
    library = LimitLibrary(nvmlDeviceGetComputeRunningProcesses=running)

    with pytest.raises(NvmlLikeError):
        NvmlDriver("boot", library, settings=NvmlSettings(may_limit_power=True)).set_power(asleep=True)

    assert library.limits == {"device-0": 700_000, "device-1": 650_000}


def test_a_device_that_refuses_leaves_the_others_as_they_were():
    library = LimitLibrary(**IDLE)
    library.refuses = {"device-1"}
    driver = NvmlDriver("boot", library, settings=NvmlSettings(may_limit_power=True))

    outcome = change_power(driver, "asleep")

    assert outcome.state == "awake"
    assert "NO_PERMISSION" in outcome.note
    assert library.limits == {"device-0": 700_000, "device-1": 650_000}


def test_devices_without_limits_cannot_sleep_and_say_so():
    driver = NvmlDriver("boot", FakeLibrary(), settings=NvmlSettings(may_limit_power=True))

    assert driver.power() == "unsupported"
