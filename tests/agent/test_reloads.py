"""Slices went with a driver, a boot or a device: what stands at their places afterwards is somebody else's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.reconcile.steps import carry_out
from nodeagent.runtimes.names import unit_of
from nodeagent.simulation.devices.driver import SimulatedDriver
from tests.agent.builder import SimulatedNode, lease
from tests.agent.test_lost_device import LosingNode
from tests.agent.test_strangers import add_foreign, places


@pytest.fixture
def devices(tmp_path: Path) -> LosingNode:
    return LosingNode(tmp_path)


def load_driver(node: LosingNode, version: str) -> None:
    """Load another driver while no agent runs: every device begins anew."""
    node.home.host.driver_version = version
    for device in node.home.host.devices:
        device.reset(reboot=True)


def begin(node: LosingNode) -> None:
    """Go on until the journal calls the place ours; the agent dies on the way to the device."""
    while (step := node.reconciler.next_step(node.device(), node.time.now)).kind != "make":
        node.reconciler.settle(step, carry_out(node.driver, step, node.runtime), node.time.now)


@pytest.mark.parametrize("phase", ["ready", "draining", "preparing"])
def test_slice_that_stands_after_another_driver_was_loaded_is_foreign(devices, phase):
    kept = replace(devices.lease_of("mig"), grace_s=60)
    devices.accept(kept)
    if phase == "preparing":
        begin(devices)
    if phase != "preparing":
        devices.work()
    if phase == "draining":
        unit = devices.home.systemd.units[unit_of(("a", 1))]
        devices.home.world.spawn(unit.cgroup, user="alice", is_stubborn=True)
        devices.desire()
    before = devices.phases()

    load_driver(devices, "620.1")
    add_foreign(devices, "1g.10gb", 0)
    devices.start()
    told = devices.partitions()
    devices.work()
    report = devices.reports()["a"]
    devices.desire()
    devices.pass_time(100)

    assert before == {"a": phase}
    assert told == {("1g.10gb", 0, "")}
    assert (report.phase, report.code) in {
        "ready": [("failed", "partition_lost")],
        "draining": [("draining", "in_use"), ("draining", "")],
        "preparing": [("failed", "conflict")],
    }[phase]
    assert devices.phases() == {"a": "gone"}
    assert places(devices) == [("1g.10gb", 0)]


def test_what_was_made_with_the_new_driver_is_ours_in_the_next_life(devices):
    devices.desire()
    devices.reconciler.ledger.save()
    load_driver(devices, "620.1")
    devices.start()
    devices.desire(devices.lease_of("mig"))

    devices.start()
    devices.work()

    assert devices.phases() == {"a": "ready"}
    assert devices.partitions() == {("1g.10gb", 0, "a")}


def test_agent_that_dies_before_it_noted_the_new_driver_finds_it_again(devices, monkeypatch):
    devices.desire(devices.lease_of("mig"))
    load_driver(devices, "620.1")
    add_foreign(devices, "1g.10gb", 0)
    with monkeypatch.context() as dying:
        dying.setattr("nodeagent.reconcile.ledger.Ledger.trust_driver", lambda self: None)
        devices.start()

    devices.start()
    told = devices.reports()["a"]
    devices.desire()
    devices.pass_time(20)

    assert (told.phase, told.code) == ("failed", "partition_lost")
    assert "620.1" in told.detail
    assert places(devices) == [("1g.10gb", 0)]


@pytest.mark.parametrize("mode", ["exclusive", "timeslice"])
def test_lease_that_the_agents_own_books_name_outlives_another_driver(devices, mode):
    devices.desire(devices.lease_of(mode))

    devices.home.host.driver_version = "620.1"
    devices.start()
    devices.work()

    assert devices.phases() == {"a": "ready"}


def test_driver_that_does_not_tell_its_version_proves_nothing(tmp_path, monkeypatch):
    node = SimulatedNode(tmp_path)
    kept = lease("a", node.mig("1g.10gb", 0))
    node.desire(kept)
    told = []
    for version in ("unknown", SimulatedDriver.version, "unknown version", "simulated-2"):
        monkeypatch.setattr(SimulatedDriver, "version", version)
        node.start()
        told.append(node.phases()["a"])

    assert told == ["ready", "ready", "ready", "failed"]


def test_slice_that_somebody_made_after_a_reboot_is_not_called_that_of_a_lease(devices):
    devices.desire(devices.lease_of("mig"))

    devices.home.reboot()
    add_foreign(devices, "1g.10gb", 0)
    devices.start()
    told, report = devices.partitions(), devices.reports()["a"]
    devices.desire()
    devices.pass_time(20)

    assert told == {("1g.10gb", 0, "")}
    assert (report.phase, report.code) == ("failed", "rebooted")
    assert places(devices) == [("1g.10gb", 0)]


def test_slice_that_stands_on_a_device_that_came_back_is_foreign_before_the_first_look(devices):
    devices.desire(replace(devices.lease_of("mig"), grace_s=60))
    unit = devices.home.systemd.units[unit_of(("a", 1))]
    devices.home.world.spawn(unit.cgroup, user="alice", is_stubborn=True)
    devices.lose()
    devices.desire()

    devices.home.host.device(0).gpu.is_lost = False
    devices.home.host.reset(0)
    add_foreign(devices, "1g.10gb", 0)
    devices.examine()
    devices.look()
    told = devices.partitions()
    devices.pass_time(100)

    assert told == {("1g.10gb", 0, "")}
    assert devices.phases() == {"a": "gone"}
    assert places(devices) == [("1g.10gb", 0)]


def test_lease_of_which_nothing_was_ever_made_ends_on_a_device_that_does_not_answer(tmp_path, monkeypatch):
    def refuse(*words: object) -> None:
        raise NvmlLikeError(errors.NOT_FOUND, "it is not read")

    node = SimulatedNode(tmp_path)
    monkeypatch.setattr(node.driver, "observe", refuse)
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    waiting = node.phases()

    node.desire()

    assert waiting["a"] in ("preparing", "failed")
    assert node.phases() == {"a": "gone"}
