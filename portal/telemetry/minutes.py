"""One-minute sums of what nodes measured: pure, fed by the process that holds the agent's connection."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

LATE_S = 5
ACTIVITY = ("sm", "tensor", "bandwidth", "power_w")
# What a counter rose by over a longer silence is nobody's: who held the device meanwhile may be gone.
LONGEST_GAP_S = 10.0
# Devices pass their limit for moments, and frames arrive a little apart from when they were measured.
TOLERANCE = 1.1


@dataclass(slots=True)
class MinuteSums:
    """One minute of one device or lease; what was never known stays None."""

    samples: int = 0
    util_known: int = 0
    util_sum: float = 0.0
    util_max: float | None = None
    memory_max_mib: int | None = None
    energy_mj: int | None = None
    # Seconds whose counter or power cannot be true: they are in no figure.
    energy_refused: int = 0
    # Of what only some devices tell: name in ``ACTIVITY`` to how often it was known and its sum.
    activity: dict[str, tuple[int, float]] = field(default_factory=dict)

    def add(self, util: float | None, memory_mib: int | None, energy_mj: int | None = None) -> None:
        """Count one second."""
        self.samples += 1
        if util is not None:
            self.util_known += 1
            self.util_sum += util
            self.util_max = max(util, self.util_max or 0.0)
        if memory_mib is not None:
            self.memory_max_mib = max(memory_mib, self.memory_max_mib or 0)
        if energy_mj is not None:
            self.energy_mj = (self.energy_mj or 0) + energy_mj

    def add_activity(self, **values: float | None) -> None:
        """Count what else is known of the second that was just added, by names of ``ACTIVITY``."""
        for name, value in values.items():
            if value is not None:
                known, total = self.activity.get(name, (0, 0.0))
                self.activity[name] = (known + 1, total + value)

    def activity_mean(self, name: str) -> float | None:
        """Return the mean of one of ``ACTIVITY`` over the seconds in which it was known."""
        known, total = self.activity.get(name, (0, 0.0))
        return round(total / known, 2) if known else None

    @property
    def util_mean(self) -> float | None:
        """Return the mean over the seconds that were known."""
        return round(self.util_sum / self.util_known, 2) if self.util_known else None


@dataclass(frozen=True, slots=True)
class CounterReading:
    """Where the energy counter of a device stood; ``credit_mj`` is what it may rise by at once."""

    boot_id: str
    counter_mj: int
    at: float
    credit_mj: float


@dataclass(slots=True)
class Minute:
    """One minute of a node, by row id. ``begins`` is a Unix second."""

    node: str
    begins: int
    devices: dict[int, MinuteSums] = field(default_factory=dict)
    leases: dict[int, MinuteSums] = field(default_factory=dict)


class MinuteBook:
    """The open minute of each node that speaks to this process."""

    def __init__(self) -> None:
        self._open: dict[str, Minute] = {}
        self._energy: dict[int, CounterReading] = {}

    def minute(self, node: str, at: float) -> tuple[Minute, Minute | None]:
        """Return the minute that ``at`` falls into, and the one before it when that is over now."""
        begins = int(at) // 60 * 60
        minute = self._open.get(node)
        if minute is not None and minute.begins == begins:
            return minute, None
        opened = self._open[node] = Minute(node, begins)
        return opened, minute

    def energy_since(
        self, device_id: int, boot_id: str, counter_mj: int | None, *, at: float, limit_w: float
    ) -> tuple[int | None, bool]:
        """Return what a device used since its last sample, and whether its counter cannot be true.

        None at first, after a reboot, after a gap or when unknown. A counter that runs backwards within a boot, or
        rises by more than ``limit_w`` permits, is refused; the next sample is compared with it all the same.
        """
        if counter_mj is None:
            return None, False
        most_mj = limit_w * TOLERANCE * 1000  # in one second
        before = self._energy.get(device_id)
        if before is None or before.boot_id != boot_id:
            self._energy[device_id] = CounterReading(boot_id, counter_mj, at, most_mj)
            return None, False
        elapsed, used = max(0.0, at - before.at), counter_mj - before.counter_mj
        # Frames that were held up come together: time that was not used for counting may be used soon after.
        credit = min(before.credit_mj + most_mj * elapsed, most_mj * LONGEST_GAP_S)
        is_gap = elapsed > LONGEST_GAP_S
        is_refused = used < 0 or (used > credit and not is_gap)
        counts = not is_refused and not is_gap
        self._energy[device_id] = CounterReading(boot_id, counter_mj, at, credit - used if counts else credit)
        return (used if counts else None), is_refused

    def overdue(self, *, now: float) -> list[Minute]:
        """Take out the minutes that are over although their node has not spoken since."""
        over = [minute for minute in self._open.values() if minute.begins + 60 + LATE_S <= now]
        for minute in over:
            del self._open[minute.node]
        return over


def write(minute: Minute) -> str:
    """Return a minute as text."""
    return json.dumps(asdict(minute), separators=(",", ":"), allow_nan=False)


def read(text: str) -> Minute:
    """Return the minute in a text, or raise ValueError, TypeError, KeyError or AttributeError."""
    raw = json.loads(text)
    return Minute(str(raw["node"]), int(raw["begins"]), _sums(raw["devices"]), _sums(raw["leases"]))


def _sums(raw: dict[str, dict[str, Any]]) -> dict[int, MinuteSums]:
    found = {int(key): MinuteSums(**value) for key, value in raw.items()}
    for sums in found.values():
        sums.activity = {name: (int(known), float(total)) for name, (known, total) in sums.activity.items()}
    return found


def texts(minutes: Iterable[Minute]) -> list[str]:
    """Return minutes that hold anything, as texts."""
    return [write(minute) for minute in minutes if minute.devices or minute.leases]
