"""The agent dies before or after each change of units and timers: the next one ends in the same state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.simulation.faults import SimulatedCrash
from tests.agent.systemd_bench import GRANT, Host

POINTS = [f"{what}.{side}" for what in ("timer.start", "unit.start") for side in ("before", "after")]


CHANGES = [
    f"{what}.{side}" for what in ("timer.start", "timer.stop", "unit.set") for side in ("before", "after")
]


ENDS = [
    f"{what}.{side}" for what in ("cgroup.kill", "unit.stop", "timer.stop") for side in ("before", "after")
]


def die_at(host: Host, point: str) -> None:
    def crash(name: str) -> None:
        if name == point:
            host.systemd.on_change = lambda _: None
            raise SimulatedCrash(point)

    host.systemd.on_change = crash


@pytest.mark.parametrize("point", POINTS)
def test_an_agent_that_dies_while_opening_ends_in_the_same_state(host, point):
    whole = Host()
    whole.agent().open(GRANT)
    die_at(host, point)

    with pytest.raises(SimulatedCrash):
        host.agent().open(GRANT)
    assert host.ends() or not host.systemd.units, "a unit without an end would outlive its lease"
    host.agent().open(GRANT)

    assert host.state() == whole.state()


@pytest.mark.parametrize("point", CHANGES)
def test_an_agent_that_dies_while_changing_ends_in_the_same_state(host, point):
    changed = replace(GRANT, ends_in_s=3600, memory_mib=4096)
    whole = Host()
    for one in (host, whole):
        one.agent().open(GRANT)
    whole.agent().open(changed)
    die_at(host, point)

    with pytest.raises(SimulatedCrash):
        host.agent().open(changed)
    assert host.ends(), "the lease must keep an end at every moment"
    host.agent().open(changed)

    assert host.state() == whole.state()


@pytest.mark.parametrize("point", ENDS)
def test_an_agent_that_dies_while_closing_ends_in_the_same_state(host, point):
    host.agent().open(GRANT)
    host.work(stubborn=True)
    kill = point.startswith("cgroup")
    die_at(host, point)

    with pytest.raises(SimulatedCrash):
        host.agent().close(GRANT.key, kill=kill)
    host.agent().close(GRANT.key, kill=True)

    assert host.state() == {"unit": None, "inside": 0, "ends": []}
