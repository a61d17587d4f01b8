"""A lease that lost one of its ways in gets it back, and nothing inside the other one is disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.runtimes.names import key_of_end, unit_of
from nodeagent.simulation.full_host import FullHost
from tests.agent.builder import FakeTime, SimulatedNode, lease

KEY = ("a", 1)


class Host:
    """A node whose leases are units and containers of a simulated host, with one lease at work."""

    def __init__(self, folder: Path) -> None:
        self.home = FullHost("gpu-01", ["a100-80gb"], folder / "home", FakeTime())
        self.node = SimulatedNode(folder)
        self.node.runtime = self.home.runtime()
        self.node.start()
        self.node.desire(lease("a", self.node.mig("1g.10gb", 0)))
        self.pid = self.home.world.spawn(self.unit.cgroup, user="bob").pid

    @property
    def unit(self):  # type: ignore[no-untyped-def]
        return self.home.systemd.units[unit_of(KEY)]

    @property
    def specs(self) -> list[Path]:
        return sorted(self.home.specs.glob("*.json"))

    def look(self) -> None:
        self.node.look()
        self.node.work()

    def lose_unit(self) -> None:
        for process in self.home.world.inside(self.unit.cgroup):
            self.home.world.signal(process.pid, kill=True)
        self.home.systemd.tick(self.home.systemd.now)
        assert unit_of(KEY) not in self.home.systemd.units


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_lease_is_open_both_ways_and_a_look_changes_nothing(host):
    changes: list[str] = []
    host.home.hook = changes.append

    host.look()

    assert host.node.runtime.whole() == host.node.runtime.known() == [KEY]
    assert (len(host.specs), changes) == (1, [])


def test_unit_that_is_gone_is_opened_again_beside_the_spec_that_stayed(host):
    host.lose_unit()
    before = host.specs[0].stat()

    assert (host.node.runtime.known(), host.node.runtime.whole()) == ([KEY], [])
    host.look()

    assert host.unit.state == "active"
    after = host.specs[0].stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert host.node.phases() == {"a": "ready"}


def test_spec_that_is_gone_is_written_again_and_the_unit_works_on(host):
    first = host.unit.main_pid
    host.specs[0].unlink()

    host.look()

    assert len(host.specs) == 1
    assert host.unit.main_pid == first
    assert host.pid in host.home.world.processes
    ends = [name for name in host.home.systemd.timers if key_of_end(name)]
    assert len(ends) == 1
    assert host.node.phases() == {"a": "ready"}


def test_spec_that_nobody_remembers_is_a_stray_though_its_unit_is_gone(host):
    host.lose_unit()

    host.node.desire()
    host.look()

    assert (host.specs, host.node.runtime.known()) == ([], [])
