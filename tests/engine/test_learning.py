from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine.learning.bins import BINS, HIGH, LOW, MIDDLE, bin_of
from scheduler.engine.learning.curves import gittins
from scheduler.engine.learning.estimates import EstimateErrors
from scheduler.engine.learning.hazards import hazards, probabilities


@given(st.floats(0, 1e12))
def test_a_duration_lies_inside_its_bin(seconds: float) -> None:
    found = bin_of(seconds)

    assert seconds >= LOW[found] * (1 - 1e-9)
    assert found == BINS - 1 or seconds <= HIGH[found] * (1 + 1e-9)


def random_p(seed: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).dirichlet(np.full(BINS, 0.2))


@pytest.mark.parametrize("seed", range(5))
def test_the_index_equals_its_definition(seed: int) -> None:
    p = random_p(seed)

    index = gittins(p)

    for i in range(BINS):
        ratios = []
        for k in range(i, BINS):
            done = sum(p[b] for b in range(i, k + 1))
            work = sum(p[b] * (MIDDLE[b] - LOW[i]) for b in range(i, k + 1))
            work += (HIGH[k] - LOW[i]) * sum(p[b] for b in range(k + 1, BINS))
            ratios.append(work / done if done > 0 else np.inf)
        if p[i:].sum() > 1e-250:
            assert index[i] == pytest.approx(min(ratios), rel=1e-6)


def test_hazards_of_one_big_class_are_its_own_frequencies() -> None:
    ended = np.zeros((1, BINS))
    ended[0, 10], ended[0, 20] = 7_000, 3_000
    at_risk = np.cumsum(ended[:, ::-1], axis=1)[:, ::-1]

    p = probabilities(hazards(ended, at_risk, np.array([0]), 1e-6))

    assert p[0, 10] == pytest.approx(0.7, abs=1e-3)
    assert p[0, 20] == pytest.approx(0.3, abs=1e-3)
    assert p.sum() == pytest.approx(1.0)


def test_a_class_nobody_knows_behaves_like_its_team() -> None:
    ended = np.zeros((8, BINS))
    ended[0, 5], ended[4, 25] = 500, 500
    at_risk = np.cumsum(ended[:, ::-1], axis=1)[:, ::-1]

    p = probabilities(hazards(ended, at_risk, np.repeat([0, 1], 4), 5.0))

    assert p[1, 5] > 0.9
    assert p[5, 25] > 0.5


def test_estimates_count_for_more_once_they_have_proved_right() -> None:
    errors = EstimateErrors()
    before = errors.likelihood(20)[20]

    for _ in range(200):
        errors.note(15, 15)

    assert errors.likelihood(20)[20] > 3 * before
    assert errors.likelihood(20)[30] < 0.02
