"""How far to trust the next forecast, by what earlier ones said and what came.

A forecast plays the queue forward with what is known and says ``raw_s``, the seconds until a start. What came
is that times a factor, and the record of past forecasts says which: its quantiles are the start that half of
the requests beat (P50) and the one that nine of ten beat (P90). This is split conformal prediction (Vovk et
al., 2005; Lei et al., JASA 2018) with weights: near forecasts count more than far ones (localised: Guan,
Biometrika 2023), recent more than old ones, those that still wait count as "longer than so far" (Kaplan and
Meier, 1958), and the level itself follows the share that was reached lately (Gibbs and Candès, NeurIPS 2021).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.engine.columns import Flags, Floats

LEVEL = 0.905  # aimed at, so that nine of ten are reached where the record is short
HALF_LIFE = 400.0  # after so many newer ones a sample counts half
NEAR = 0.5  # a forecast e^0.5 times as long counts 1/e as much
LEAST = 25.0  # so many samples' worth, or what is farther is looked at as well
FLOOR_S = 60.0  # waits below are alike: a turn's pace, not the queue's
GAIN, LEAST_LEVEL, MOST_LEVEL = 3.0, 0.8, 0.985
LEAST_APART = 10  # with fewer episodes to learn from, the window is at least as wide as without a record
LATELY = 300  # samples that say whether the level was reached
# What a forecast is worth without a record: half come within it, nine of ten within four times as long and ten
# minutes, less where it is said to be long: from WIDE_LONG_S on sums of many lengths even out.
WIDE, WIDE_S, WIDE_LONG_S = 3.0, 600.0, 7_200.0
MOST_SAMPLES = 4_000
GRID = tuple(float(s) for s in np.geomspace(FLOOR_S, 28 * 86_400, 25))


@dataclass(frozen=True, slots=True)
class Sample:
    """A forecast and what came of it. Seconds.

    ``wait_s`` is how long the wait was, or has been until now where ``is_over`` is false; ``shown_s`` is the P90
    that was shown (0: none). ``made_s`` is when, on any clock.
    """

    raw_s: float
    wait_s: float
    is_over: bool = True
    shown_s: float = 0.0
    made_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds until a start that half of the requests beat, and that nine of ten beat."""

    p50_s: int
    p90_s: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """Factors by the length of the forecast, at the lengths of GRID; between them is interpolated.

    ``samples`` is how many forecasts it was learned from; 0 means the wide default. ``level`` is the share that
    the longer factor was chosen for.
    """

    p50: tuple[float, ...] = ()
    p90: tuple[float, ...] = ()
    samples: int = 0
    level: float = LEVEL

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

    Looks at the last MOST_SAMPLES. With exchangeable samples nine of ten starts come before P90.
    """
    seen = samples[-MOST_SAMPLES:]
    over = sum(one.is_over for one in seen)
    if over < LEAST:
        return Calibration()
    raw = np.log(np.array([max(one.raw_s, 0.0) for one in seen]) + FLOOR_S)
    ratio = np.log(np.array([max(one.wait_s, 0.0) for one in seen]) + FLOOR_S) - raw
    is_over = np.array([one.is_over for one in seen])
    made = np.array([one.made_s for one in seen])
    age = np.arange(len(seen) - 1, -1, -1.0)
    recent = 0.5 ** (age / HALF_LIFE)
    level = _level(seen)
    order = np.lexsort((~is_over, ratio))
    raw, ratio, recent, made, is_over = raw[order], ratio[order], recent[order], made[order], is_over[order]
    p50, p90 = [], []
    for at in _GRID_LOG:
        weight = _weights(raw, recent, float(at))
        p50.append(_quantile(ratio, is_over, weight, 0.5))
        most = _quantile(ratio, is_over, weight, _finite(level, weight))
        if _episodes(weight, made, float(at)) < LEAST_APART:
            most = max(most, math.log(_wide(math.exp(at) - FLOOR_S) + FLOOR_S) - float(at))
        p90.append(most)
    return Calibration(tuple(p50), tuple(np.maximum(p90, p50).tolist()), over, level)


def _wide(raw_s: float) -> float:
    """The P90 of a forecast without a record to learn from."""
    return raw_s + WIDE_S + WIDE * raw_s / (1.0 + raw_s / WIDE_LONG_S)


def _level(seen: Sequence[Sample]) -> float:
    """The level to choose the factor for: higher when fewer came before the shown P90 lately than should."""
    told = [one for one in seen if one.shown_s > 0 and (one.is_over or one.wait_s > one.shown_s)][-LATELY:]
    if len(told) < LEAST:
        return LEVEL
    kept = sum(one.is_over and one.wait_s <= one.shown_s for one in told) / len(told)
    return min(max(LEVEL + GAIN * (LEVEL - kept), LEAST_LEVEL), MOST_LEVEL)


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
