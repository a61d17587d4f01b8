from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.engine.calibration import FLOOR_S, LEAST, MOST_MOVED, Calibration, Sample, calibrated


def record(count: int, seed: int, spread: float = 1.0) -> list[Sample]:
    """Forecasts of all lengths and waits around them, all drawn alike."""
    draw = np.random.default_rng(seed)
    raw = draw.lognormal(7, 1.5, count)
    wait = raw * draw.lognormal(0, spread, count)
    return [told(day, float(r), float(w)) for day, (r, w) in enumerate(zip(raw, wait, strict=True))]


def told(day: int, raw_s: float, wait_s: float) -> Sample:
    """One forecast a day and what came of it."""
    return Sample(raw_s, float(wait_s), made_s=day * 86_400.0)


def test_without_a_record_the_window_is_wide() -> None:
    window = Calibration().window(3600)

    assert window.p50_s == 3600
    assert window.p90_s >= 2 * 3600
    assert calibrated(record(int(LEAST) - 1, 0)) == Calibration()


@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0])
def test_nine_of_ten_starts_come_before_p90_and_half_before_p50(spread: float) -> None:
    known, coming = record(1500, 1, spread), record(4000, 2, spread)
    found = calibrated(known)
    windows = [found.window(one.raw_s) for one in coming]

    before = np.mean([one.wait_s <= w.p90_s for one, w in zip(coming, windows, strict=True)])
    half = np.mean([one.wait_s <= w.p50_s for one, w in zip(coming, windows, strict=True)])

    assert 0.88 <= before <= 0.92
    assert 0.44 <= half <= 0.56


def test_short_and_long_waits_have_windows_of_their_own() -> None:
    draw = np.random.default_rng(3)
    short = [told(at, 100.0, 100 * f) for at, f in enumerate(draw.uniform(0.9, 1.1, 300))]
    long = [told(at, 86_400.0, 86_400 * f) for at, f in enumerate(draw.uniform(0.1, 5.0, 300))]
    found = calibrated([one for pair in zip(short, long, strict=True) for one in pair])

    assert found.window(100).p90_s < 130
    assert found.window(86_400).p90_s > 3 * 86_400


def test_one_burst_is_one_experience() -> None:
    burst = [Sample(1000, 100.0, made_s=float(at)) for at in range(300)]
    spread = [Sample(1000, 100.0, made_s=at * 1e5) for at in range(300)]

    assert calibrated(spread).window(1000).p90_s == 100
    assert calibrated(burst).window(1000).p90_s == Calibration().window(1000).p90_s


def test_those_that_still_wait_make_the_window_longer() -> None:
    known = record(400, 4)
    still = [replace(one, wait_s=one.raw_s * 20, is_over=False) for one in record(100, 5)]

    assert calibrated(known + still).window(3600).p90_s > 2 * calibrated(known).window(3600).p90_s


def test_a_change_is_followed() -> None:
    before = [told(at, 3600, 1800.0) for at in range(1500)]
    after = [told(at, 3600, 7200.0) for at in range(1500, 2000)]

    assert calibrated(before).window(3600).p90_s <= 1800
    assert calibrated(before + after).window(3600).p90_s >= 7199


def shown(known: list[Sample], part: float) -> list[Sample]:
    """The record of forecasts that said this part of what came, for P50 and P90 alike."""
    return [replace(one, p50_s=one.wait_s * part, p90_s=one.wait_s * part) for one in known]


@pytest.mark.parametrize("quantile", ["p50_s", "p90_s"])
def test_what_was_missed_makes_the_next_later_and_what_was_kept_sooner(quantile: str) -> None:
    known = record(300, 6)
    missed, plain, kept = (
        getattr(calibrated(one).window(3600), quantile)
        for one in (shown(known, 0.5), known, shown(known, 1.1))
    )

    assert kept < plain < missed


def test_what_waits_beyond_the_shown_p90_has_missed_it_already() -> None:
    known = [replace(one, p90_s=one.wait_s + 1) for one in record(200, 7)]
    # They have all waited two hours; some were told one hour, the others two and a half.
    late, early = (
        [*known, *[Sample(3600, 7200, False, p90_s=p90_s, made_s=200 * 86_400.0)] * 20]
        for p90_s in (3600.0, 9000.0)
    )

    assert calibrated(late).window(3600).p90_s > calibrated(early).window(3600).p90_s


def test_many_outcomes_known_at_once_move_less_than_as_many_one_after_another() -> None:
    known = [
        replace(one, p90_s=one.wait_s / 2 if number < 15 else -1.0)
        for number, one in enumerate(record(26, 8))
    ]
    apart = [replace(one, made_s=number * 1e7) for number, one in enumerate(known)]
    at_once = [replace(one, made_s=1.0 + number / 1e3) for number, one in enumerate(known)]
    plain = [replace(one, p90_s=-1.0) for one in at_once]

    first, last, without = (calibrated(one).p90[12] for one in (apart, at_once, plain))

    assert first > last > without


def kept_online(factors: list[float], delay_s: float, seed: int) -> tuple[float, float]:
    """The shares before P50 and P90 where bursts of waits lie around these factors of their forecasts."""
    draw = np.random.default_rng(seed)
    made: list[Sample] = []
    found = calibrated(made)
    for factor in factors:
        for _ in range(int(draw.integers(60, 140))):
            at = len(made) * 600.0
            if len(made) % 20 == 0:
                over = [one.made_s + one.wait_s * delay_s <= at for one in made]
                found = calibrated(
                    [
                        one if is_over else replace(one, is_over=False, wait_s=(at - one.made_s) / delay_s)
                        for one, is_over in zip(made, over, strict=True)
                    ]
                )
            raw = float(draw.lognormal(7, 1))
            window = found.window(raw)
            wait = raw * factor * float(draw.lognormal(0, 0.5))
            made.append(Sample(raw, wait, True, window.p50_s, window.p90_s, at))
    return (
        float(np.mean([one.wait_s <= one.p50_s for one in made])),
        float(np.mean([one.wait_s <= one.p90_s for one in made])),
    )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("delay_s", [0.01, 1.0, 5.0])
def test_the_shares_hold_whatever_bursts_come(seed: int, delay_s: float) -> None:
    draw = np.random.default_rng(seed)
    factors = np.exp(draw.uniform(-1.5, 1.5, 16)).tolist()

    half, most = kept_online(factors, delay_s, seed)

    assert 0.45 <= half <= 0.57
    assert 0.88 <= most <= 0.92


# Whoever was told nothing and waited for hours makes a long factor.
@example([*[Sample(0, 0, False)] * 12, *[Sample(0, 0)] * 24, Sample(0, 19_937)], 5_400_751.0)
@given(
    st.lists(
        st.builds(
            Sample,
            st.floats(0, 1e7),
            st.floats(0, 1e7),
            st.booleans(),
            st.floats(-1, 1e7),
            st.floats(-1, 1e7),
            st.floats(0, 1e9),
        ),
        max_size=120,
    ),
    st.floats(0, 1e7),
)
def test_any_record_gives_a_window_in_order(samples: list[Sample], raw: float) -> None:
    window = calibrated(samples).window(raw)

    assert 0 <= window.p50_s <= window.p90_s
    # No factor is longer than the longest in the record, or than the eleven without one, but for what it moved.
    factors = [(one.wait_s + FLOOR_S) / (one.raw_s + FLOOR_S) for one in samples]
    assert window.p90_s <= (raw + FLOOR_S) * max([*factors, 11.0]) * math.exp(MOST_MOVED) * (1 + 1e-9) + 1
