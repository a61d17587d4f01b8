"""Long random walks of the NVIDIA driver, beside somebody with nvidia-smi, refusals and crashes."""

from __future__ import annotations

import random
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.base import PartitionShape
from nodeagent.drivers.errors import NvmlLikeError
from tests.agent.device_bench import Bench, Crash
from tests.deep import deep_after

CHANGES = (
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)
STEPS = 150


class Walk:
    """One agent and one stranger on the same device.

    ``mine`` are the places that the agent has made and nobody took away again, ``loose`` those where a refusal or a
    crash cut it short.
    """

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench, self.dice = bench, random.Random(seed)
        self.device = bench.switch_on()
        self.gpu = bench.host.devices[0].gpu
        self.profiles = bench.driver.inventory()[0].profiles
        self.mine: set[tuple[str, int]] = set()
        self.loose: set[tuple[str, int]] = set()
        self.foreign: set[tuple[str, int]] = set()

    def step(self) -> None:
        verb = self.dice.choice(
            (self.make, self.make, self.clear, self.clear, self.stranger, self.fault, self.anew)
        )
        with suppress(NvmlLikeError, Crash):
            verb()
        self.check()

    def place(self) -> tuple[str, int]:
        profile = self.dice.choice(self.profiles)
        return profile.name, self.dice.choice(profile.starts)

    def make(self) -> None:
        name, start = self.place()
        if (name, start) not in self.there():
            self.loose.add((name, start))
        made = self.bench.driver.create(self.device, PartitionShape("mig", name), start, "a.1.0")
        assert (made.profile, made.start) == (name, start)
        self.mine.add((name, start))
        self.loose.discard((name, start))

    def clear(self) -> None:
        if not self.mine | self.loose:
            return
        place = self.dice.choice(sorted(self.mine | self.loose))
        self.mine.discard(place)
        self.loose.add(place)
        for fact in self.bench.driver.observe(self.device):
            if (fact.profile, fact.start) == place and place not in self.foreign:
                self.bench.driver.destroy(fact.uuid)
        assert place in self.foreign or place not in self.there()
        self.loose.discard(place)

    def stranger(self) -> None:
        name, start = self.place()
        self.bench.host.add_foreign(0, name, start, is_half=self.dice.random() < 0.3)
        self.foreign.add((name, start))

    def fault(self) -> None:
        change = self.dice.choice(CHANGES)
        if self.dice.random() < 0.5:
            self.bench.host.faults.refusals[change] = deque([errors.IN_USE])
        else:
            self.bench.crash_at = f"{change}.{self.dice.choice(('before', 'after'))}"

    def anew(self) -> None:
        self.bench.agent()

    def there(self) -> dict[tuple[str, int], bool]:
        """What the device really has: places, and whether they can be used."""
        return {(i.profile.name, i.start): bool(i.compute) for i in self.gpu.instances.values()}

    def check(self) -> None:
        there = self.there()
        seen = {(f.profile, f.start): "/gi" not in f.uuid for f in self.bench.driver.observe(self.device)}
        assert seen == there
        assert self.foreign <= set(there) <= self.foreign | self.mine | self.loose
        assert all(there[place] for place in self.mine)


@pytest.mark.parametrize("seed", deep_after(2, range(6)))
def test_what_is_told_is_what_stands_and_nothing_of_others_is_ever_touched(tmp_path: Path, seed: int) -> None:
    walk = Walk(Bench(tmp_path), seed)

    for _ in range(STEPS):
        walk.step()

    assert walk.mine or walk.foreign


def test_devices_are_worked_on_side_by_side(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "h100-80gb", "h100-80gb", "a100-40gb")
    driver = bench.driver
    for fact in driver.inventory():
        driver.set_mig_mode(fact.uuid, True)

    def work(number: int) -> int:
        fact = driver.inventory()[number]
        for turn in range(15):
            made = driver.create(
                fact.uuid, PartitionShape("mig", fact.profiles[0].name), turn % 7, f"{number}.1.0"
            )
            assert driver.processes(made.uuid) == []
            driver.metrics()
            driver.destroy(made.uuid)
        return len(driver.observe(fact.uuid))

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(work, range(3))) == [0, 0, 0]
