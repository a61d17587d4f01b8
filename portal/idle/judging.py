"""Whether a lease idles, judged from what was measured over a window of minutes: pure, no clock, no database.

No signal decides alone. Utilisation says only that some kernel was there, so a kernel of one thread shows 100 %: it
counts as work only where multiprocessors, tensor cores, memory bandwidth or power do not contradict it
(docs/idle.md). Percent, MiB and watts; None is unknown and never makes anything idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Final, NamedTuple

BUSY: Final = "busy"
HELD_IDLE: Final = "held_idle"
EMPTY: Final = "empty"
UNKNOWN: Final = "unknown"
STATES: Final = (BUSY, HELD_IDLE, EMPTY, UNKNOWN)
IDLE_STATES: Final = (HELD_IDLE, EMPTY)

LEAST_MINUTES: Final = 15
# Of the window, so much must be measured before anything is said.
LEAST_KNOWN: Final = 0.9
# A minute in which a part of the device was at work for so many percent of it counts as work.
WORK_PERCENT: Final = 2.5
# Holding memory raises clocks and power without any work: only a good part of the span from idle to limit is work.
WORK_POWER_PART: Final = 0.25
# What 100 % utilisation draws of that span at the very least; less utilisation as much less.
LEAST_POWER_PART: Final = 0.15
# A driver keeps some memory of an unused device to itself.
UNUSED_MEMORY_MIB: Final = 64
LOOP_UTIL: Final = 50.0
# The same small load in every minute, to a tenth of its size, and nothing moved: a kernel that runs by the clock.
# Where nobody tells how much was moved it must be alike to a twentieth.
ALIKE_MOST: Final = 6.0
ALIKE_SPREAD: Final = 0.1
ALIKE_SPREAD_ALONE: Final = 0.05
ALIKE_BANDWIDTH: Final = 1.0


class MinuteSample(NamedTuple):
    """One minute of a lease: means over it, and the most memory held."""

    util: float | None = None
    memory_mib: int | None = None
    sm: float | None = None
    tensor: float | None = None
    bandwidth: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """What is known of a lease over some time, one entry a minute; None where it was not measured.

    ``idle_w`` and ``limit_w`` are what its part of the boards draws unused and at most, ``processes`` how many it has
    on its devices now, ``is_attended`` whether its holder opened or began something in it lately.
    """

    minutes: Sequence[MinuteSample | None]
    idle_w: float | None = None
    limit_w: float | None = None
    processes: int | None = None
    is_attended: bool | None = None


@dataclass(frozen=True, slots=True)
class IdleVerdict:
    """The state of a lease and what it was judged by.

    ``why``: for ``busy`` works or attended; for the idle states nothing, dummy_loop or keep_alive; for ``unknown``
    too_few or stuck. ``worked`` of the ``known`` minutes of ``minutes`` were at work.
    """

    state: str
    why: str
    minutes: int
    known: int
    worked: int = 0
    util: float | None = None
    sm: float | None = None
    power_w: float | None = None
    memory_mib: int | None = None
    processes: int | None = None


def judge(window: MeasuredWindow) -> IdleVerdict:
    """Return whether a lease is busy, holds a device without computing, holds nothing, or cannot be told."""
    known = [minute for minute in window.minutes if minute is not None and _tells_of_work(minute)]
    wanted = len(window.minutes)
    if wanted < LEAST_MINUTES or len(known) < LEAST_KNOWN * wanted:
        return IdleVerdict(UNKNOWN, "too_few", wanted, len(known))

    worked = sum(_is_work(minute, window) for minute in known)
    memory = [minute.memory_mib for minute in known if minute.memory_mib is not None]
    util, sm, power_w = (_mean(known, name) for name in ("util", "sm", "power_w"))

    def verdict(state: str, why: str) -> IdleVerdict:
        return IdleVerdict(
            state, why, wanted, len(known), worked, util, sm, power_w, max(memory, default=None), window.processes
        )  # fmt: skip

    if worked and not _runs_by_the_clock(known):
        # Counters that never move tell nothing, least of all that there is work.
        return verdict(UNKNOWN, "stuck") if _stand_still(known) else verdict(BUSY, "works")
    if window.is_attended:
        return verdict(BUSY, "attended")
    if util is not None and util >= LOOP_UTIL:
        return verdict(HELD_IDLE, "dummy_loop")
    if worked:
        return verdict(HELD_IDLE, "keep_alive")
    # Memory of the last minute: what was held before may have been given back.
    holds = (memory[-1] > UNUSED_MEMORY_MIB) if memory else None
    is_empty = window.processes == 0 or (window.processes is None and holds is False)
    return verdict(EMPTY if is_empty else HELD_IDLE, "nothing")


def _tells_of_work(minute: MinuteSample) -> bool:
    return any(value is not None for value in (minute.util, minute.sm, minute.tensor, minute.bandwidth))


def _is_work(minute: MinuteSample, window: MeasuredWindow) -> bool:
    """Say whether a minute was work, by the best signal that there is."""
    part = _power_part(minute, window)
    if part is not None and part >= WORK_POWER_PART:
        return True
    inside = [value for value in (minute.sm, minute.tensor, minute.bandwidth) if value is not None]
    if inside:
        return max(inside) >= WORK_PERCENT
    assert minute.util is not None
    if minute.util < WORK_PERCENT:
        return False
    return part is None or part >= LEAST_POWER_PART * minute.util / 100


def _power_part(minute: MinuteSample, window: MeasuredWindow) -> float | None:
    """Return where power lies between idle (0) and the limit (1); None is unknown."""
    if minute.power_w is None or window.idle_w is None or window.limit_w is None:
        return None
    span_w = window.limit_w - window.idle_w
    return (minute.power_w - window.idle_w) / span_w if span_w > 0 else None


def _runs_by_the_clock(known: Sequence[MinuteSample]) -> bool:
    """Say whether every minute has the same small load and moves nothing: a keep-alive, which no work looks like."""
    loads = [minute.sm if minute.sm is not None else minute.util for minute in known]
    moved = [minute.bandwidth for minute in known if minute.bandwidth is not None]
    values = [value for value in loads if value is not None]
    if len(values) < len(known) or max(moved, default=0.0) >= ALIKE_BANDWIDTH:
        return False
    mean, spread = fmean(values), ALIKE_SPREAD if len(moved) == len(known) else ALIKE_SPREAD_ALONE
    return 0 < mean <= ALIKE_MOST and pstdev(values) <= spread * mean


def _stand_still(known: Sequence[MinuteSample]) -> bool:
    """Say whether at least two signals are known and none of them, memory aside, has moved in the whole window."""
    columns = [
        [value for value in column if value is not None]
        for column in zip(*((m.util, m.sm, m.tensor, m.bandwidth, m.power_w) for m in known), strict=True)
    ]
    columns = [column for column in columns if column]
    return len(columns) > 1 and all(len(set(column)) == 1 for column in columns)


def _mean(known: Sequence[MinuteSample], name: str) -> float | None:
    values = [value for value in (getattr(minute, name) for minute in known) if value is not None]
    return round(fmean(values), 1) if values else None
