"""What was learned about how long requests run: the newest model, and how well it predicts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from portal.policies.models import DurationModel


@dataclass(frozen=True, slots=True)
class DurationFigures:
    """How far each way of guessing is off on later requests, as factors (median, mean); None is unknown.

    2.0 means twice as long or half as long. ``requests`` were learned from, ``judged`` were later than these.
    """

    version: int
    made_at: datetime
    requests: int
    judged: int
    predicted: tuple[float, float] | None
    asked: tuple[float, float] | None
    team: tuple[float, float] | None
    below_p90: float | None


def current_model() -> DurationModel | None:
    """Return the newest model, or None as long as there was too little to learn from."""
    return DurationModel.objects.first()


def duration_figures() -> DurationFigures | None:
    """Return how well lengths are predicted, or None as long as nothing was learned."""
    row = current_model()
    if row is None:
        return None
    figures = row.figures
    return DurationFigures(
        version=row.version,
        made_at=row.made_at,
        requests=row.requests,
        judged=int(figures.get("judged", 0)),
        predicted=_factors(figures.get("predicted")),
        asked=_factors(figures.get("asked")),
        team=_factors(figures.get("team")),
        below_p90=figures.get("below_p90"),
    )


def _factors(pair: Any) -> tuple[float, float] | None:
    """Return mean and median absolute logarithms as factors."""
    return None if not pair else (math.exp(pair["median"]), math.exp(pair["mean"]))
