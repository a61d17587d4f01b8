"""Whose processes are on devices: the driver of real devices and the look at processes, on a simulated host."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.drivers.base import PartitionShape
from nodeagent.processes.attribution import Holding, ProcessScanner, Scan
from nodeagent.processes.policy import decide
from nodeagent.protocol.messages import PartitionFact
from tests.agent.device_bench import ROOT, Bench


class Host:
    """A bench with leases; a lease's unit is a cgroup of its name."""

    def __init__(self, folder: Path) -> None:
        self.bench = Bench(folder)
        self.holdings: list[Holding] = []
        self.scanner = ProcessScanner(self.bench.driver, self, self.bench.host.read)

    def lease_of(self, pid: int) -> tuple[str, int] | None:
        path = self.bench.host.read(f"/proc/{pid}/cgroup").strip().removeprefix("0::")
        head, _, name = path.removeprefix("/").partition("/")
        return (name, 1) if head == "berth.slice" else None

    def hold(self, lease: str, made: PartitionFact, mode: str) -> PartitionFact:
        self.holdings.append(Holding(lease, 1, self.bench.device, made.uuid, mode))
        return made

    def run(self, lease: str = "", **facts: object) -> int:
        cgroup = f"{ROOT}/berth.slice/{lease}" if lease else f"{ROOT}/user.slice"
        return self.bench.host.world.spawn(cgroup, gpu=self.bench.device, memory_mib=100, **facts).pid

    def look(self) -> Scan:
        partitions = [fact.uuid for fact in self.bench.driver.observe(self.bench.device)]
        return self.scanner.scan([self.bench.device], {self.bench.device: partitions}, self.holdings)

    def states(self) -> dict[int, tuple[str, str]]:
        return {one.pid: (one.state, one.lease) for one in self.look().seen}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_processes_of_slices_are_told_apart_by_slice_and_unit(host):
    host.bench.switch_on()
    for lease, start in (("a", 0), ("b", 1)):
        host.hold(lease, host.bench.slice("1g.10gb", start), "mig")
    first, second = (
        s.id for s in sorted(host.bench.host.devices[0].gpu.instances.values(), key=lambda one: one.start)
    )
    mine, strayed, nobodys = host.run("a", gi=first), host.run("a", gi=second), host.run(gi=second)

    assert host.states() == {mine: ("held", "a"), strayed: ("orphan", "a"), nobodys: ("orphan", "")}


def test_whole_device_shows_orphans_and_services_beside_its_lease(host):
    made = host.bench.driver.create(host.bench.device, PartitionShape("exclusive"), 0, "a.1.0")
    host.hold("a", made, "exclusive")
    mine, display, nobodys = host.run("a"), host.run(name="Xorg"), host.run()

    assert host.states() == {mine: ("held", "a"), display: ("system", ""), nobodys: ("orphan", "")}


def test_process_that_outlives_its_lease_is_an_orphan_from_then_on(host):
    made = host.bench.driver.create(host.bench.device, PartitionShape("exclusive"), 0, "a.1.0")
    host.hold("a", made, "exclusive")
    pid = host.run("a")
    while_it_lives = host.states()
    host.holdings.clear()

    first, second = host.look(), host.look()

    assert while_it_lives == {pid: ("held", "a")}
    assert [one.state for one in first.seen] == ["orphan"]
    assert [(fact.code, fact.device) for fact in second.facts] == [("orphan_process", host.bench.device)]
    assert f"pid {pid} python, lease a" in second.facts[0].detail


def test_client_of_an_mps_share_that_goes_past_mps_is_told(host):
    made = PartitionFact("MPS-a", host.bench.device, "mps", 0, 0)
    host.hold("a", made, "mps")
    host.run("a", is_mps=True)
    past = host.run("a")

    host.look()

    (fact,) = host.look().facts
    assert fact.code == "outside_mps"
    assert f"pid {past}" in fact.detail


def test_lost_device_is_unread_and_nobody_is_harmed(host):
    host.run()
    host.look()
    host.bench.host.lose(0)

    scan = host.scanner.scan([host.bench.device], {}, host.holdings)

    assert list(scan.unread) == [host.bench.device]
    assert decide("kill", scan.seen) == []
