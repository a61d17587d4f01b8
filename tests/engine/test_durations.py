from __future__ import annotations

import json
import math
import subprocess
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from scheduler.engine.learning.durations import Durations, durations_from
from scheduler.engine.learning.habits import (
    FEATURES,
    EndedRequest,
    Habits,
    SubmittedRequest,
    habits_from,
    walked,
)
from scheduler.engine.learning.trees import forest_from
from scheduler.training import exported, learn

HOUR = 3600.0


def history(count: int = 600) -> list[EndedRequest]:
    """Person 1 runs ten minutes, person 2 ten hours, everybody asks for a day; starts an hour apart."""
    draw = np.random.default_rng(5)
    found = []
    for at in range(count):
        person = 1 + at % 2
        ran = float((600 if person == 1 else 36_000) * draw.lognormal(0, 0.2))
        kind = SubmittedRequest(7, person, 3, f"run {at}", asked_s=86_400, hour=at % 24)
        found.append(EndedRequest(kind, at * HOUR, at * HOUR + ran, ran, 10_000 if person == 1 else None))
    return found


@cache
def learned() -> tuple[Durations, dict[str, Any]]:
    """What that history teaches; learned once, because nothing that asks it changes it."""
    return learn(history())


def test_what_is_exported_predicts_what_the_library_predicts() -> None:
    draw = np.random.default_rng(1)
    rows, wanted = draw.normal(size=(800, 6)), draw.normal(size=800)
    model = HistGradientBoostingRegressor(loss="quantile", quantile=0.9, max_iter=20).fit(rows, wanted)

    plain = forest_from(json.loads(json.dumps(exported(model).body())))

    np.testing.assert_allclose(plain.predict(rows), model.predict(rows), rtol=0, atol=1e-12)


def test_people_are_known_by_their_habits() -> None:
    model, figures = learned()

    short, long = model.guess(
        [
            SubmittedRequest(7, 1, 3, "run 900", asked_s=86_400),
            SubmittedRequest(7, 2, 3, "run 901", asked_s=86_400),
        ]
    )

    assert 480 < short.likely_s < 750
    assert 28_000 < long.likely_s < 45_000
    assert short.likely_s <= short.most_s < 1200
    assert figures["predicted"]["median"] < figures["team"]["median"] < figures["asked"]["median"]


def test_nine_of_ten_stay_below_the_ninth_decile() -> None:
    past = history(900)
    model, _ = learn(past[:700])

    later = past[700:]
    guesses = model.guess([one.kind for one in later])

    below = np.mean([one.ran_s <= g.most_s for one, g in zip(later, guesses, strict=True)])
    assert 0.82 <= below <= 0.98


def test_nothing_is_guessed_to_run_longer_than_it_asks() -> None:
    model, _ = learned()

    (one,) = model.guess([SubmittedRequest(7, 2, 3, "run", asked_s=900)])

    assert (one.likely_s, one.most_s) == (900, 900)


def test_memory_is_known_where_it_was_measured_and_unknown_elsewhere() -> None:
    model, _ = learned()

    measured, never = model.guess([SubmittedRequest(7, 1, 3, "run 9"), SubmittedRequest(7, 2, 3, "run 9")])

    assert (measured.memory_mib, never.memory_mib) == (10_000, None)


def test_a_model_survives_being_written_down() -> None:
    model, _ = learned()
    kinds = [SubmittedRequest(7, 1, 3, "x", asked_s=5000), SubmittedRequest(8, 9, 1, "y")]

    again = durations_from(json.loads(json.dumps(model.body())))

    assert again.guess(kinds) == model.guess(kinds)


def test_only_what_had_ended_by_then_is_known() -> None:
    kind = SubmittedRequest(1, 1, 1, "a")
    past = [EndedRequest(kind, 0, 100, 100), EndedRequest(kind, 50, 60, 10), EndedRequest(kind, 101, 110, 9)]

    known = walked(past, Habits())

    assert [one.team_s for one in known] == [None, None, pytest.approx(math.sqrt(1000))]
    assert all(len(one.row) == FEATURES for one in known)


def test_who_is_unknown_has_the_habits_of_the_team() -> None:
    habits = Habits()
    for _ in range(50):
        habits.note(SubmittedRequest(1, 5, 1, "a"), 100)

    habit, row = habits_from(habits.body()).features(SubmittedRequest(1))

    assert habit == pytest.approx(math.log(100), abs=0.5)
    assert not any(math.isnan(value) for value in row)


@pytest.mark.parametrize("module", ["scheduler.engine", "scheduler.engine.learning.durations"])
def test_neither_web_nor_workers_load_the_training_library(module: str) -> None:
    code = f"import sys, {module}; sys.exit('sklearn' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
