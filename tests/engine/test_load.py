"""Forecasts of demand: the model against the same hour last week, judged on weeks that neither knows."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.engine.learning.load import AHEAD, LEAST_HOURS, WEEK, outlook


def weeks_of(count: int, *, noise: float, level: float = 0.0, seed: int = 3) -> list[float]:
    """Return hours of a working week with noise, and a level that wanders by ``level`` an hour."""
    rng = np.random.default_rng(seed)
    at = np.arange(count)
    busy = np.where(at // 24 % 7 < 5, 1.0, 0.3) * (1.5 + np.sin((at % 24 - 9) / 24 * 2 * np.pi))
    wander = np.cumsum(rng.normal(0, level, count))
    return list(np.maximum(0, 10_000 * busy + 20_000 + rng.normal(0, noise, count) + wander))


def hours_of(count: int) -> list[int]:
    return [n % WEEK for n in range(count + AHEAD)]


def test_where_weeks_are_noisy_the_model_errs_less_and_its_interval_holds() -> None:
    values = weeks_of(9 * WEEK, noise=2000)
    known = values[:-WEEK]

    found = outlook(known, hours_of(len(known)))

    assert all(score.uses_model for score in found.scores)
    came = np.array(values[-WEEK:])
    assert np.abs(came - found.likely).mean() < 0.85 * np.abs(came - found.naive).mean()
    inside = ((came >= found.low) & (came <= found.high)).mean()
    assert 0.7 < inside < 0.92
    assert all(650 < score.inside_milli < 950 for score in found.scores[1:])


def test_a_level_that_moved_is_followed_by_the_model_and_not_by_last_week() -> None:
    known = weeks_of(8 * WEEK, noise=100)
    known[-30:] = [value + 30_000 for value in known[-30:]]

    found = outlook(known, hours_of(len(known)))

    assert found.naive[0] < found.likely[0] - 15_000


def test_where_every_week_is_the_same_but_odd_the_same_hour_last_week_is_used() -> None:
    # One spike of two hours on a Wednesday: no hour of the day of all working days can follow it.
    week = [0.0] * WEEK
    week[60:62] = [50_000.0, 50_000.0]
    known = week * 7

    found = outlook(known, hours_of(len(known)))

    assert [score.uses_model for score in found.scores] == [False] * 3
    assert found.likely == found.naive == week


@pytest.mark.parametrize(
    ("count", "forecast", "judged"),
    [(WEEK - 1, 0, 0), (WEEK, AHEAD, 0), (LEAST_HOURS - 1, AHEAD, 0), (LEAST_HOURS, AHEAD, 3)],
)
def test_little_history_is_not_judged_and_less_than_a_week_not_forecast(
    count: int, forecast: int, judged: int
) -> None:
    found = outlook(weeks_of(count, noise=100), hours_of(count))

    assert (len(found.likely), len(found.scores), len(found.low)) == (
        forecast,
        judged,
        AHEAD if judged else 0,
    )


def test_the_backtest_knows_nothing_of_what_it_forecasts() -> None:
    known = weeks_of(6 * WEEK, noise=500)
    same = outlook(known, hours_of(len(known)))
    changed = [*known[:-1], known[-1] * 50]

    other = outlook(changed, hours_of(len(known)))

    # Only the last of the 168 hours of the newest forecast came otherwise; had a fit seen it, more would differ.
    assert other.scores[0] == same.scores[0]
    assert other.scores[1] == same.scores[1]


def test_nothing_wanted_is_forecast_as_nothing() -> None:
    found = outlook([0.0] * LEAST_HOURS, hours_of(LEAST_HOURS))

    assert set(found.likely) == {0.0}
    assert set(found.high) == {0.0}


def test_hours_of_the_week_must_reach_to_the_end() -> None:
    with pytest.raises(ValueError, match="hours of the week"):
        outlook([1.0] * 10, [0] * 10)
