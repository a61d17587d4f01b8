"""Boosted trees as plain numbers: what a training process found, applied without its library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from scheduler.engine.columns import Floats, Ints


@dataclass(frozen=True, slots=True)
class Tree:
    """One tree by node: a feature and the threshold up to which one goes left, or (feature -1) a value."""

    feature: Ints
    threshold: Floats
    left: Ints
    right: Ints
    value: Floats


@dataclass(frozen=True, slots=True)
class Forest:
    """A sum of trees above a base."""

    base: float
    trees: tuple[Tree, ...]

    def predict(self, rows: Floats) -> Floats:
        """One number per row of features; there must be no NaN in them."""
        found = np.full(len(rows), self.base)
        every = np.arange(len(rows))
        for tree in self.trees:
            node = np.zeros(len(rows), np.int64)
            while True:
                feature = tree.feature[node]
                inner = feature >= 0
                if not inner.any():
                    break
                goes_left = rows[every, np.maximum(feature, 0)] <= tree.threshold[node]
                node = np.where(inner, np.where(goes_left, tree.left[node], tree.right[node]), node)
            found += tree.value[node]
        return found

    def body(self) -> dict[str, Any]:
        """The forest as plain values."""
        return {
            "base": self.base,
            "trees": [
                [
                    t.feature.tolist(),
                    t.threshold.tolist(),
                    t.left.tolist(),
                    t.right.tolist(),
                    t.value.tolist(),
                ]
                for t in self.trees
            ],
        }


def forest_from(body: dict[str, Any]) -> Forest:
    """The forest that ``body`` gave."""
    return Forest(
        float(body["base"]),
        tuple(
            Tree(
                np.array(feature, np.int64),
                np.array(threshold, float),
                np.array(left, np.int64),
                np.array(right, np.int64),
                np.array(value, float),
            )
            for feature, threshold, left, right, value in body["trees"]
        ),
    )
