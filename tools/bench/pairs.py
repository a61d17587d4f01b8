"""What two programs cost each other on one real device, by turns: 12 programs alone and each beside each.

BENCH_PAIR_S is how long each is measured (20 s). Nothing of the device is set. Speeds are steps per second against
those alone; what a program does alone is read as the agent reads it. The model of sharing in a policy is held against
it: speed = 1 ÷ (1 + a × u × v), u and v being the activity of both alone.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from itertools import combinations_with_replacement
from typing import Any

from nodeagent.drivers.base import Driver
from nodeagent.drivers.errors import DriverUnavailableError
from nodeagent.drivers.registry import open_nvml
from nodeagent.protocol.messages import DeviceSample
from tools.bench.pair_programs import PROGRAMS

MODELS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
SIGNALS = ("util_percent", "sm_percent", "bandwidth_percent")


class DeviceProgram:
    """A program that waits to be told to run."""

    def __init__(self, name: str, device: str) -> None:
        words = [sys.executable, "-m", "tools.bench.pair_programs", name]
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "text": True,
            "bufsize": 1,
        }
        self.name = name
        self._child = subprocess.Popen(words, env={**os.environ, "CUDA_VISIBLE_DEVICES": device}, **pipes)

    def told(self, seconds: float) -> None:
        """Begin to run."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{seconds}\n")

    def answer(self) -> str:
        """Return what it says next; raises RuntimeError where it has ended."""
        assert self._child.stdout is not None
        if not (said := self._child.stdout.readline().strip()):
            raise RuntimeError(f"{self.name} has ended, with status {self._child.wait()}")
        return said

    def end(self) -> None:
        """End it."""
        self._child.kill()
        self._child.communicate()


def measure() -> dict[str, Any]:
    """Return speeds alone and in pairs; "skipped" says why there are none."""
    try:
        driver = open_nvml(looks_only=True)
    except DriverUnavailableError as no:
        return {"skipped": str(no)}
    seconds = float(os.environ.get("BENCH_PAIR_S", "20"))
    device = driver.inventory()[0].uuid
    # The second of each runs only beside the first.
    programs = {name: (DeviceProgram(name, device), DeviceProgram(name, device)) for name in PROGRAMS}
    try:
        for program in (one for both in programs.values() for one in both):
            program.answer()
        alone = {name: _alone(driver, both[0], seconds) for name, both in programs.items()}
        pairs = {
            (a, b): _beside(programs[a][0], programs[b][1], seconds)
            for a, b in combinations_with_replacement(programs, 2)
        }
    except RuntimeError as no:
        return {"skipped": f"it takes PyTorch with CUDA on a device with room for all: {no}"}
    finally:
        for program in (one for both in programs.values() for one in both):
            program.end()
        driver.close()
    return figures_of(alone, pairs)


def _alone(driver: Driver, program: DeviceProgram, seconds: float) -> dict[str, float | None]:
    """Return steps per second and, in percent, what the device was seen to do meanwhile."""
    driver.metrics()  # figures of GPM lie between two readings
    program.told(seconds)
    time.sleep(seconds * 0.75)
    sample: DeviceSample = driver.metrics().devices[0]
    return {"steps": float(program.answer())} | {name: getattr(sample, name) for name in SIGNALS}


def _beside(one: DeviceProgram, other: DeviceProgram, seconds: float) -> tuple[float, float]:
    one.told(seconds)
    other.told(seconds)
    return float(one.answer()), float(other.answer())


def figures_of(
    alone: dict[str, dict[str, float | None]], pairs: dict[tuple[str, str], tuple[float, float]]
) -> dict[str, Any]:
    """Return what is printed of steps per second, alone and (of both) in pairs."""
    speeds = {
        (a, b): (both[0] / (alone[a]["steps"] or 1), both[1] / (alone[b]["steps"] or 1))
        for (a, b), both in pairs.items()
    }
    sums = [x + y for x, y in speeds.values()]
    figures: dict[str, Any] = {f"alone: {name}": row for name, row in alone.items()}
    figures |= {
        f"{a} + {b}": {"first": round(x, 2), "second": round(y, 2), "together": round(x + y, 2)}
        for (a, b), (x, y) in speeds.items()
    }
    figures[f"together, of {len(sums)} pairs"] = {
        "least": round(min(sums), 2), "median": round(statistics.median(sums), 2), "most": round(max(sums), 2),
        "above 1.4": sum(total > 1.4 for total in sums), "below 1": sum(total < 1 for total in sums),
    }  # fmt: skip
    for signal in SIGNALS:
        if all(row[signal] is not None for row in alone.values()):
            figures[f"model by {signal}: mean error of a speed by a"] = {
                str(a): round(_error(a, signal, alone, speeds.items()), 3) for a in MODELS
            }
    return figures


def _error(
    a: float,
    signal: str,
    alone: dict[str, dict[str, float | None]],
    speeds: Iterable[tuple[tuple[str, str], tuple[float, float]]],
) -> float:
    """Return by how much the model is off on average, as a part of the speed alone."""
    errors = []
    for (first, second), (x, y) in speeds:
        guess = 1 / (1 + a * (alone[first][signal] or 0) * (alone[second][signal] or 0) / 10_000)
        errors += [abs(guess - x), abs(guess - y)]
    return statistics.mean(errors)
