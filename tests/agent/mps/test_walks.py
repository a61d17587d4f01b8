"""Leases of two users come and go at random on one device, the agent dies and the host reboots: limits always hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.drivers.nvml.mps.daemon import MpsShare
from nodeagent.simulation.faults import SimulatedCrash
from nodeagent.simulation.programs.mps_state import Limits
from tests.agent.mps_bench import CARD, UIDS, Bench, share

STEPS = 40


class Walk:
    """The shares that a node should have now, and an agent that brings them about, dying now and then."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.dice = random.Random(seed)
        self.live: dict[str, MpsShare] = {}
        self.made = 0
        self.deaths = 0

    def step(self) -> None:
        roll = self.dice.random()
        if roll < 0.05:
            self.bench.world.reboot()
            self.bench.devices.modes[CARD] = 0
            for each in self.live.values():
                self.until_done(lambda each=each: self.bench.mps.open(each, self.of(each.user)))
        elif roll < 0.6 or not self.live:
            self.made += 1
            user = self.dice.choice(sorted(UIDS))
            new = share(f"{self.made}", self.dice.randrange(10, 1001), self.dice.randrange(1, 80_000), user)
            self.live[new.partition] = new
            self.until_done(lambda: self.bench.mps.open(new, self.of(user)))
        else:
            old = self.live.pop(self.dice.choice(sorted(self.live)))
            self.until_done(lambda: self.bench.mps.release(old, self.of(old.user)))

    def of(self, user: str) -> list[MpsShare]:
        return [each for each in self.live.values() if each.user == user]

    def until_done(self, act: Callable[[], None]) -> None:
        dies_at = self.dice.randrange(1, 12)
        seen = 0

        def hook(name: str) -> None:
            nonlocal seen
            seen += 1
            if seen == dies_at:
                raise SimulatedCrash(name)

        self.bench.watch(hook)
        try:
            act()
        except SimulatedCrash:
            self.deaths += 1
            self.bench.agent()
            act()
        self.bench.watch(lambda name: None)

    def check(self) -> None:
        users = sorted({each.user for each in self.live.values()})
        assert self.bench.mps.daemons() == [(CARD, user) for user in users]
        assert self.bench.devices.modes[CARD] == (3 if len(users) == 1 else 0)
        for each in self.live.values():
            process = self.bench.run(each)
            assert self.bench.program.limits(process.pid) == Limits(each.percent, each.memory_mib)
            self.bench.world.signal(process.pid, kill=True)
        names = sorted(process.name for process in self.bench.world.processes.values())
        assert names == ["nvidia-cuda-mps-control"] * len(users) + ["nvidia-cuda-mps-server"] * len(users)


@pytest.mark.parametrize("newest", [2, 3], ids=["classic", "named"])
@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_each_lease_has_its_own_limits_and_nothing_is_left_over(
    tmp_path: Path, seed: int, newest: int
) -> None:
    walk = Walk(Bench(tmp_path, newest), seed)

    for _ in range(STEPS):
        walk.step()
        walk.check()
    while walk.live:
        old = walk.live.pop(next(iter(walk.live)))
        walk.bench.mps.release(old, walk.of(old.user))

    assert walk.deaths > 3
    assert walk.bench.world.processes == {}
    assert walk.bench.devices.modes[CARD] == 0
    assert list((walk.bench.run_dir / "mps").iterdir()) == []
