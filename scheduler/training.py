"""``python -m scheduler.training``: learn how long requests run, in a process of its own.

scikit-learn takes some 60 MB and two seconds to import; here it lives as long as one training and neither
web nor workers ever load it. Ended requests come in on standard input as JSON, the model goes out on standard
output as plain numbers (``scheduler.engine.learning``).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from scheduler.engine.columns import Floats
from scheduler.engine.learning.durations import HALF, Durations
from scheduler.engine.learning.habits import FEATURES, EndedRequest, Habits, Known, SubmittedRequest, walked
from scheduler.engine.learning.trees import Forest, Tree

P50, P90 = 0.5, 0.9
JUDGED = 0.2  # the last fifth is kept back to judge by
SEED = 7


def fit(rows: Floats, logs: Floats, quantile: float) -> Forest:
    """Boosted trees with quantile loss (pinball; Koenker and Bassett, 1978) for what logarithms are off."""
    model = HistGradientBoostingRegressor(
        loss="quantile",
        quantile=quantile,
        max_iter=60,
        learning_rate=0.08,
        max_leaf_nodes=15,
        min_samples_leaf=30,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=SEED,
    )
    model.fit(rows, logs)
    return exported(model)


def exported(model: HistGradientBoostingRegressor) -> Forest:
    """The fitted trees as plain numbers; a test holds it to what scikit-learn itself predicts."""
    trees = []
    for (predictor,) in model._predictors:
        nodes = predictor.nodes
        is_leaf = nodes["is_leaf"].astype(bool)
        trees.append(
            Tree(
                np.where(is_leaf, -1, nodes["feature_idx"]).astype(np.int64),
                np.where(is_leaf, 0.0, nodes["num_threshold"]),
                nodes["left"].astype(np.int64),
                nodes["right"].astype(np.int64),
                np.where(is_leaf, nodes["value"], 0.0),
            )
        )
    return Forest(float(np.ravel(model._baseline_prediction)[0]), tuple(trees))


def learn(past: Sequence[EndedRequest]) -> tuple[Durations, dict[str, Any]]:
    """The model of all these requests, and how well one of the first four fifths did on the last fifth."""
    habits = Habits()
    known = walked(past, habits)
    cut = max(int(len(known) * (1.0 - JUDGED)), 1)
    before, later = TrainingTable(known[:cut]), TrainingTable(known[cut:])
    p50 = later.habit + HALF * fit(before.rows, before.off, P50).predict(later.rows)
    p90 = later.habit + fit(before.rows, before.off, P90).predict(later.rows)
    # Split conformal: what the ninth decile missed on the last fifth is added to it.
    missed = float(np.quantile(later.log - p90, P90)) if len(later.log) else 0.0
    every = TrainingTable(known)
    most = fit(every.rows, every.off, P90)
    return (
        Durations(habits, fit(every.rows, every.off, P50), replace(most, base=most.base + missed)),
        judged(known[cut:], p50, p90 + missed),
    )


class TrainingTable:
    """Requests as columns: features, habits, logarithms of what they ran, and how far these are from the habits."""

    def __init__(self, known: Sequence[Known]) -> None:
        self.rows: Floats = np.array([one.row for one in known], float).reshape(len(known), FEATURES)
        self.habit: Floats = np.array([one.habit for one in known], float)
        self.log: Floats = np.log(np.maximum([one.past.ran_s for one in known], 1.0))
        self.off: Floats = self.log - self.habit


def judged(later: Sequence[Known], p50: Floats, p90: Floats, *, is_bound: bool = True) -> dict[str, Any]:
    """How far guesses were off on later requests, as absolute logarithms: ours, the time asked, team average.

    ``is_bound``: nothing runs longer than asked, and no guess says so.
    """
    errors: dict[str, list[float]] = {"predicted": [], "asked": [], "team": []}
    below = 0
    for one, half, most in zip(later, p50, p90, strict=True):
        ran = math.log(max(one.past.ran_s, 1.0))
        asked = math.log(one.past.kind.asked_s) if one.past.kind.asked_s > 0 else None
        bound = asked if asked is not None and is_bound else math.inf
        errors["predicted"].append(abs(min(float(half), bound) - ran))
        if asked is not None:
            errors["asked"].append(abs(asked - ran))
        if one.team_s is not None:
            errors["team"].append(abs(math.log(one.team_s) - ran))
        below += ran <= min(float(most), bound) + 1e-9
    return {
        "judged": len(later),
        "below_p90": round(below / len(later), 4) if later else None,
        **{name: _figures(off) for name, off in errors.items()},
    }


def _figures(off: Sequence[float]) -> dict[str, float] | None:
    if not off:
        return None
    return {"median": round(float(np.median(off)), 4), "mean": round(float(np.mean(off)), 4)}


def main() -> None:
    """Learn from standard input, answer on standard output."""
    past = [EndedRequest(SubmittedRequest(*kind), *rest) for kind, *rest in json.load(sys.stdin)]
    model, figures = learn(past)
    json.dump({"model": model.body(), "figures": figures}, sys.stdout, separators=(",", ":"))


if __name__ == "__main__":
    main()
