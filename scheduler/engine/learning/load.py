"""How much of a fleet will be wanted by hour: a regression on the hours of the week beside the same hour last week.

Whatever is forecast is judged on the past: from many instants of the last weeks both ways forecast the week that
followed, knowing nothing of it. A way is used for a span of hours ahead only where it erred less there. All values are
of one unit, whichever (docs/demand.md); pure functions of their arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

DAY, WEEK = 24, 168
AHEAD: Final = WEEK
LEAST_HOURS: Final = 4 * WEEK  # two weeks to learn from, one to look ahead, one of instants to judge by
MOST_HOURS: Final = 10 * WEEK
MOST_JUDGED: Final = 4 * WEEK  # of instants to judge from, the newest
LEAST_FIT: Final = 2 * WEEK
MOST_FIT: Final = 8 * WEEK
EVERY: Final = (
    11  # hours between two instants to judge from: no divisor of a day, so that each hour has its turn
)
HALF_LIFE: Final = 3 * WEEK  # of the weight of an hour
RIDGE: Final = 0.1  # pulls every season towards none, as that many hours of nothing would
INSIDE: Final = 0.8  # of what comes should lie in the interval
# Spans of hours ahead that are judged each by itself: the next hour, the next day, the rest of the week.
SPANS: Final = ((1, 1), (2, 24), (25, AHEAD))
# So many hours ahead it is learned what is left of a difference; between them it is interpolated.
KNOTS: Final = np.array([1, 2, 3, 6, 12, 24, 48, 96, AHEAD])

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SpanScore:
    """How both ways did ``first`` to ``last`` hours ahead, from ``instants`` instants.

    ``model`` and ``naive`` are mean absolute errors; ``inside_milli`` is how many thousandths of what came lay in
    intervals as wide as the earlier half of the errors says, judged on the later half.
    """

    first: int
    last: int
    instants: int
    model: float
    naive: float
    inside_milli: int

    @property
    def uses_model(self) -> bool:
        """Say whether the regression is used: it erred less."""
        return self.model < self.naive


@dataclass(frozen=True, slots=True)
class LoadOutlook:
    """The hours after the last known one. ``low`` and ``high`` are empty, and so is ``scores``, where nothing could
    be judged yet; ``likely`` is empty with less than a week of hours.
    """

    likely: list[float]
    naive: list[float]
    low: list[float]
    high: list[float]
    scores: list[SpanScore]


def outlook(values: Sequence[float], week_hours: Sequence[int]) -> LoadOutlook:
    """Return the next ``AHEAD`` hours after ``values``, the oldest first.

    ``week_hours`` is the hour of the week of each value and of the ``AHEAD`` hours that follow, 0 to 167 from Monday
    midnight of the local time; a holiday has those of a Sunday. Raises ValueError where it has another length.
    """
    if len(week_hours) != len(values) + AHEAD:
        raise ValueError(f"{len(values)} hours need {len(values) + AHEAD} hours of the week")
    past = np.asarray(values, dtype=np.float64)[-MOST_HOURS:]
    hours = np.asarray(week_hours, dtype=np.int64)[-len(past) - AHEAD :]
    n = len(past)
    if n < WEEK:
        return LoadOutlook([], [], [], [], [])
    naive = past[n - WEEK :]
    if n < LEAST_HOURS:
        return LoadOutlook(_listed(naive), _listed(naive), [], [], [])
    last_instant = n - AHEAD
    instants = range(max(LEAST_FIT, last_instant - MOST_JUDGED), last_instant + 1, EVERY)
    came = np.stack([past[at : at + AHEAD] for at in instants])
    by_naive = np.stack([past[at - WEEK : at] for at in instants])
    by_model = np.stack([regressed(past[:at], hours[: at + AHEAD]) for at in instants])
    model = regressed(past, hours)
    likely, half, scores = naive.copy(), np.zeros(AHEAD), []
    for first, last in SPANS:
        span = slice(first - 1, last)
        errors_model, errors_naive = (np.abs(came - by)[:, span] for by in (by_model, by_naive))
        uses_model = errors_model.mean() < errors_naive.mean()
        errors = errors_model if uses_model else errors_naive
        earlier, later = errors[: len(errors) // 2], errors[len(errors) // 2 :]
        inside = float((later <= np.quantile(earlier, INSIDE)).mean())
        scores.append(
            SpanScore(
                first, last, len(errors), float(errors_model.mean()), float(errors_naive.mean()),
                round(1000 * inside),
            )
        )  # fmt: skip
        likely[span] = (model if uses_model else naive)[span]
        half[span] = np.quantile(errors, INSIDE)
    return LoadOutlook(
        _listed(likely), _listed(naive), _listed(np.maximum(likely - half, 0)), _listed(likely + half), scores
    )


def regressed(past: Numbers, week_hours: NDArray[np.int64]) -> Numbers:
    """Return the next ``AHEAD`` hours by regression: seasons and a trend, and how far the last hours were off it.

    Seasons are an hour of the day on working days, Saturdays and Sundays and the day of the week, fitted by ridge
    regression with weights that halve every three weeks. How much of the last hour's, day's and week's difference is
    left after so many hours is learned from the differences themselves.
    """
    fit = past[-MOST_FIT:]
    n = len(fit)
    design = _design(week_hours[-n - AHEAD :], n)
    weights = 0.5 ** ((n - 1 - np.arange(n)) / HALF_LIFE)
    level = float(np.average(fit, weights=weights))
    known = design[:n] * weights[:, None]
    gram = known.T @ design[:n]
    gram[np.diag_indices_from(gram)] += RIDGE
    season = level + design @ np.linalg.solve(gram, known.T @ (fit - level))
    off = fit - season[:n]
    sums = np.concatenate(([0.0], np.cumsum(off)))
    at = np.arange(WEEK, n + 1)
    # Of each hour from the end of the first week on: the difference then, and its mean over a day and a week.
    recent = np.stack(
        [off[at - 1], (sums[at] - sums[at - DAY]) / DAY, (sums[at] - sums[at - WEEK]) / WEEK], axis=1
    )
    ridge = np.eye(3) * (RIDGE * float(np.mean(recent**2)) + 1e-9)
    left = []
    for h in KNOTS:
        # With the least to learn from there is no pair a week apart: nothing is left of a difference then.
        seen, came = recent[: len(recent) - h], off[WEEK + h - 1 :]
        left.append(float(recent[-1] @ np.linalg.solve(seen.T @ seen + ridge, seen.T @ came)))
    ahead = season[n:] + np.interp(np.arange(1, AHEAD + 1), KNOTS, left)
    result: Numbers = np.maximum(ahead, 0.0)
    return result


def _design(week_hours: NDArray[np.int64], n: int) -> Numbers:
    """Return a row for each hour: the hour of its kind of day, the weekday, and a trend that ends at ``n``."""
    rows = np.arange(len(week_hours))
    day = week_hours // DAY
    kind = np.clip(day - 4, 0, 2)
    design = np.zeros((len(week_hours), 3 * DAY + 7 + 1))
    design[rows, kind * DAY + week_hours % DAY] = 1.0
    design[rows, 3 * DAY + day] = 1.0
    # A trend goes on for none of the hours ahead: it says where the level is now, not where it will be.
    design[:, -1] = np.minimum(rows - (n - 1), 0) / WEEK
    return design


def _listed(values: Numbers) -> list[float]:
    return [round(float(value), 3) for value in values]
