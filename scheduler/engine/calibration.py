"""How far to trust the next forecast, by what earlier ones said and what came.

A forecast plays the queue forward with what is known and says ``raw_s``, the seconds until a start. What came
is that times a factor, and the record of past forecasts says which: its quantiles are the start that half of
the requests beat (P50) and the one that nine of ten beat (P90). This is split conformal prediction (Vovk et
al., 2005; Lei et al., JASA 2018) with weights: near forecasts count more than far ones (localised: Guan,
Biometrika 2023), recent more than old ones, and those that still wait count as "longer than so far" (Kaplan and
Meier, 1958).

Waits come in bursts that are not alike, so quantiles of the past alone hold too often or too rarely for days. Each
factor is therefore moved by what came of the forecasts shown so far, a step up for one that was missed and a ninth
of it (P50: as much) down for one that was kept: online quantile tracking (Gibbs and Candes, NeurIPS 2021, on the
factor itself instead of the level: Angelopoulos, Candes and Tibshirani, NeurIPS 2023), which keeps the long-run
share for any sequence of waits. An outcome is known late, and by then many forecasts were made alike: its step is
smaller by the root of their number, as online learning under delayed feedback wants it (Joulani, Gyorgy and
Szepesvari, ICML 2013).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.engine.columns import Flags, Floats

LIKELY, LATEST = 0.5, 0.9  # the shares that start before P50 and P90
HALF_LIFE = 400.0  # after so many newer ones a sample counts half
NEAR = 0.5  # a forecast e^0.5 times as long counts 1/e as much
LEAST = 25.0  # so many samples' worth, or what is farther is looked at as well
FLOOR_S = 60.0  # waits below are alike: a turn's pace, not the queue's
# How far one outcome moves the logarithm of a factor, from which number of forecasts made meanwhile on by less, and
# how far all together.
STEP, MEANWHILE, MOST_MOVED = 0.11, 60.0, 2.0
LEAST_APART = 10  # with fewer episodes to learn from, the window is at least as wide as without a record
# What a forecast is worth without a record: half come within it, nine of ten within four times as long and ten
# minutes, less where it is said to be long: from WIDE_LONG_S on sums of many lengths even out.
WIDE, WIDE_S, WIDE_LONG_S = 3.0, 600.0, 7_200.0
MOST_SAMPLES = 4_000
GRID = tuple(float(s) for s in np.geomspace(FLOOR_S, 28 * 86_400, 25))


@dataclass(frozen=True, slots=True)
class Sample:
    """A forecast and what came of it. Seconds.

    ``wait_s`` is how long the wait was, or has been until now where ``is_over`` is false; ``p50_s`` and ``p90_s``
    are what was shown (below 0: nothing). ``made_s`` is when, on any clock.
    """

    raw_s: float
    wait_s: float
    is_over: bool = True
    p50_s: float = -1.0
    p90_s: float = -1.0
    made_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds until a start that half of the requests beat, and that nine of ten beat."""

    p50_s: int
    p90_s: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """Factors by the length of the forecast, at the lengths of GRID; between them is interpolated.

    ``samples`` is how many forecasts it was learned from; 0 means the wide default.
    """

    p50: tuple[float, ...] = ()
    p90: tuple[float, ...] = ()
    samples: int = 0

    def window(self, raw_s: float) -> Window:
        """What to show for a forecast of so many seconds; never less than nothing, and in order."""
        raw = max(raw_s, 0.0)
        base = raw + FLOOR_S
        if not self.samples:
            return Window(int(raw), math.ceil(_wide(raw)))
        at = math.log(base)
        half = math.exp(float(np.interp(at, _GRID_LOG, self.p50))) * base - FLOOR_S
        most = math.exp(float(np.interp(at, _GRID_LOG, self.p90))) * base - FLOOR_S
        p50 = max(int(half), 0)
        return Window(p50, max(math.ceil(most), p50))


_GRID_LOG: Floats = np.log(np.array(GRID))


def calibrated(samples: Sequence[Sample]) -> Calibration:
    """The calibration that this record, oldest first, supports; the wide default with fewer than LEAST samples.

    Looks at the last MOST_SAMPLES. With exchangeable samples nine of ten starts come before P90, and in the long
    run with any.
    """
    seen = samples[-MOST_SAMPLES:]
    over = sum(one.is_over for one in seen)
    if over < LEAST:
        return Calibration()
    columns = np.array([(one.raw_s, one.wait_s, one.p50_s, one.p90_s, one.made_s) for one in seen], float).T
    raw_s, wait_s, p50_s, p90_s, made = columns
    raw = np.log(np.maximum(raw_s, 0.0) + FLOOR_S)
    ratio = np.log(np.maximum(wait_s, 0.0) + FLOOR_S) - raw
    is_over = np.array([one.is_over for one in seen])
    recent = 0.5 ** (np.arange(len(seen) - 1, -1, -1.0) / HALF_LIFE)
    sooner = _moved(p50_s, wait_s, is_over, made, LIKELY)
    later = _moved(p90_s, wait_s, is_over, made, LATEST)
    order = np.lexsort((~is_over, ratio))
    raw, ratio, recent, made, is_over = raw[order], ratio[order], recent[order], made[order], is_over[order]
    p50, p90 = [], []
    for at in _GRID_LOG:
        weight = _weights(raw, recent, float(at))
        p50.append(_quantile(ratio, is_over, weight, LIKELY) + sooner)
        most = _quantile(ratio, is_over, weight, _finite(LATEST, weight))
        if _episodes(weight, made, float(at)) < LEAST_APART:
            most = max(most, math.log(_wide(math.exp(at) - FLOOR_S) + FLOOR_S) - float(at))
        p90.append(most + later)
    return Calibration(tuple(p50), tuple(np.maximum(p90, p50).tolist()), over)


def _wide(raw_s: float) -> float:
    """The P90 of a forecast without a record to learn from."""
    return raw_s + WIDE_S + WIDE * raw_s / (1.0 + raw_s / WIDE_LONG_S)


def _moved(shown_s: Floats, wait_s: Floats, is_over: Flags, made: Floats, share: float) -> float:
    """By how much the logarithm of a factor moves, so that this share of what was shown is kept.

    Outcomes count in the order in which they were known: one that was kept from its start on, one that was missed
    from the instant shown on, whether the wait is over or not.
    """
    known = (shown_s >= 0) & (is_over | (wait_s > shown_s))
    known_at = made[known] + np.minimum(wait_s, shown_s)[known]
    meanwhile = np.searchsorted(np.sort(made), known_at) - np.searchsorted(
        np.sort(made), made[known], side="right"
    )
    is_missed = (wait_s > shown_s)[known]
    steps = STEP * (is_missed - (1.0 - share)) / np.sqrt(1.0 + np.maximum(meanwhile, 0) / MEANWHILE)
    moved = 0.0
    for step in steps[np.argsort(known_at, kind="stable")].tolist():
        moved = min(max(moved + step, -MOST_MOVED), MOST_MOVED)
    return moved


def _weights(raw: Floats, recent: Floats, at: float) -> Floats:
    """How much each sample says about a forecast of that length; wider until enough samples speak."""
    apart = np.abs(raw - at)
    near = NEAR
    for _ in range(6):
        weight: Floats = recent * np.exp(-apart / near)
        if _effective(weight) >= LEAST:
            return weight
        near *= 2.0
    return recent


def _effective(weight: Floats) -> float:
    """How many equal samples these weights are worth (Kish)."""
    total = float(weight.sum())
    return total * total / max(float((weight * weight).sum()), 1e-300)


def _episodes(weight: Floats, made: Floats, at: float) -> int:
    """How many episodes speak: forecasts made within one wait of each other err together, and count as one."""
    speaks = weight > 0.1 * float(weight.max())
    return len(np.unique(made[speaks] // math.exp(at)))


def _finite(level: float, weight: Floats) -> float:
    """The level with the conformal correction for a finite record: (n + 1) / n."""
    count = max(_effective(weight), 1.0)
    return min(level * (count + 1.0) / count, 1.0 - 1e-9)


def _quantile(value: Floats, is_over: Flags, weight: Floats, level: float) -> float:
    """The weighted Kaplan-Meier quantile of sorted values, of which those not over are only known to be larger.

    Where the record does not reach the level, its largest value.
    """
    left = np.cumsum(weight[::-1])[::-1]
    hazard = np.where(is_over, weight / np.maximum(left, 1e-300), 0.0)
    beyond = np.cumprod(1.0 - np.minimum(hazard, 1.0))
    reached = np.flatnonzero(1.0 - beyond >= level - 1e-12)
    return float(value[reached[0]] if len(reached) else value[-1])
