"""A labelled, simulated set of runs: what each held in device memory and did, second by second, and what it needs.

Every run is made from a seed and boiled down to minutes as the portal stores them. ``needs_mib`` is the most that the
same work takes when it runs once more, with other data: up to 4 % more than this time. Devices differ in what they
tell, frames are lost in bursts, and runs may be only seconds long.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from portal.telemetry.runs import LEAST_SAMPLES, SM, UTIL, MeasuredRun

KINDS = (
    "training",
    "growing",
    "validation_peak",
    "late_phase",
    "inference",
    "notebook",
    "short",
    "forgotten",
)
TELLS = ("sm", "util", "memory", "activity")
LOST_MINUTE, CONTEXT_MIB = 0.002, 480
JITTER = 0.04


@dataclass(frozen=True, slots=True)
class LabelledRun:
    """A run on a device of ``held_mib``: what was measured, what it needs, and how busy it was (0 to 1)."""

    kind: str
    tells: str
    held_mib: int
    run: MeasuredRun
    needs_mib: int
    activity: float


def labelled_runs(*, seed: int, each: int, held_mib: int) -> Iterator[LabelledRun]:
    """Yield ``each`` runs of every kind on every kind of device."""
    chance = random.Random(seed)
    for kind in KINDS:
        for tells in TELLS:
            for _n in range(each):
                yield _run(kind, tells, held_mib, chance)


def labelled_habits(*, seed: int, each: int, held_mib: int) -> Iterator[tuple[list[LabelledRun], int]]:
    """Yield the same work run three to ten times on a bad network, with what it needs the next time."""
    chance = random.Random(seed)
    for kind in KINDS:
        for _n in range(each):
            top = _top(held_mib, chance)
            tops = [round(top * (1 + chance.uniform(0, JITTER))) for _run in range(chance.randint(4, 11))]
            *runs, _next = (_run(kind, "sm", held_mib, chance, top=one, lost=0.02) for one in tops)
            yield runs, min(tops[-1], held_mib)


def _top(held_mib: int, chance: random.Random) -> int:
    """Return a peak: the work grows and shrinks over the sizes that are on offer, the limit itself included."""
    return CONTEXT_MIB + round(chance.uniform(0.01, 1.0) ** 1.5 * (held_mib - CONTEXT_MIB))


def _run(
    kind: str, tells: str, held_mib: int, chance: random.Random, *, top: int = 0, lost: float = LOST_MINUTE
) -> LabelledRun:
    minutes = chance.randint(1, 14) if kind == "short" else chance.randint(15, 120)
    top = top or _top(held_mib, chance)
    busy = chance.uniform(0.0, 0.01) if kind == "forgotten" else chance.uniform(0.05, 1.0)
    level = _memory(kind, minutes * 60, top, chance)
    known, peak, total, counted = 0, None, 0.0, 0
    for minute in range(minutes):
        if chance.random() < lost:
            continue
        heard = level[minute * 60 : minute * 60 + 60]
        if chance.random() < 0.05:  # a burst of frames that never came
            begin = chance.randrange(60)
            del heard[begin : begin + chance.randint(1, 15)]
        used = max(heard)
        if tells != "activity":
            peak = max(used, peak or 0)
        if tells != "memory":
            total, counted = total + busy, counted + 1
        known += len(heard) >= LEAST_SAMPLES and tells in ("sm", "util")
    # Utilisation counts a kernel of any size as work: never less than what is busy inside the device.
    shown = None if not counted else total / counted
    if shown is not None and tells == "util":
        shown = min(1.0, shown * chance.uniform(1.0, 2.0))
    signal = "" if shown is None else SM if tells == "sm" else UTIL
    needs = round(max(level) * (1 + chance.uniform(0, JITTER)))
    run = MeasuredRun(minutes, known, peak, shown, signal)
    return LabelledRun(kind, tells, held_mib, run, min(needs, held_mib), busy)


def _memory(kind: str, seconds: int, top: int, chance: random.Random) -> list[int]:
    """Return what a run holds each second; its peak is ``top``, for half a minute at least in runs of minutes."""
    if kind == "growing":
        return [
            CONTEXT_MIB + (top - CONTEXT_MIB) * second // max(1, seconds - 60) for second in range(seconds)
        ]
    if kind == "validation_peak":
        base, begin = round(top * chance.uniform(0.3, 0.8)), chance.randrange(max(1, seconds - 30))
        return [top if begin <= second < begin + 30 else base for second in range(seconds)]
    if kind == "late_phase":
        base = round(top * chance.uniform(0.2, 0.6))
        return [top if second >= seconds * 0.9 else base for second in range(seconds)]
    if kind in ("inference", "notebook"):
        calm = [round(top * chance.uniform(0.4, 1.0)) for _n in range(seconds // 60 + 1)]
        calm[chance.randrange(len(calm) - 1) if len(calm) > 1 else 0] = top
        return [calm[second // 60] for second in range(seconds)]
    return [min(top, CONTEXT_MIB + top * second // 20) for second in range(seconds)]
