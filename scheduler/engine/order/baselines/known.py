"""By arrival or by the time asked for, which tells the future where people ask for just what they need."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from datetime import datetime
from typing import ClassVar

import numpy as np

from scheduler.engine.columns import Floats
from scheduler.engine.model import Claim, PolicyRules, Snapshot
from scheduler.engine.order.burden import aged, power_at, waited_s
from scheduler.engine.order.costs import Costs
from scheduler.engine.order.fixed import Fifo
from scheduler.engine.order.ranking import LeaseColumns, Sorted, tie


class BlockingFifo(Fifo):
    """First come, first served, and nobody overtakes."""

    blocks: ClassVar[bool] = True


class ShortestFirst(Fifo):
    """The shortest goes first, and nobody overtakes."""

    blocks: ClassVar[bool] = True

    def ranking(self, claims: Sequence[Claim]) -> Sorted:
        """By the time asked for."""
        return Sorted(claims, lambda claim: (claim.duration_s, tie(claim)))


class ShortestLeft(Fifo):
    """The shortest remaining time goes first, and takes from those that have more left."""

    def __init__(self, snapshot: Snapshot, policy: PolicyRules) -> None:
        self._now = snapshot.taken_at.timestamp()

    def ranking(self, claims: Sequence[Claim]) -> Sorted:
        """By the time left of what was asked for."""
        return Sorted(claims, lambda claim: (claim.duration_s, tie(claim)))

    def score(self, claim: Claim) -> float:
        """Seconds left."""
        return float(claim.duration_s)

    def scores_of(self, lives: LeaseColumns) -> Floats:
        """Seconds left."""
        found: Floats = np.maximum(lives.columns[LeaseColumns.until] - self._now, 1.0)
        return found

    def later(self, now: datetime, claims: Sequence[Claim]) -> ShortestLeft:
        """The same at a later instant."""
        found = copy(self)
        found._now = now.timestamp()
        return found


class AgedShortestLeft(ShortestLeft):
    """The shortest remaining time over the default order's ageing goes first."""

    def __init__(self, snapshot: Snapshot, policy: PolicyRules) -> None:
        super().__init__(snapshot, policy)
        costs = Costs(snapshot)
        self._power = power_at(sum(costs.of(claim) for claim in snapshot.queue), costs.capacity)
        self._ageing_s = max(policy.ageing_s, 1)
        self._scores: dict[int, float] = {}

    def later(self, now: datetime, claims: Sequence[Claim]) -> AgedShortestLeft:
        """The same at a later instant, with the pressure of now."""
        found = copy(self)
        found._now = now.timestamp()
        found.ranking(claims)
        return found

    def ranking(self, claims: Sequence[Claim]) -> Sorted:
        """By the time left, less the longer it waited."""
        left = np.array([claim.duration_s for claim in claims], float)
        waited = [waited_s(self._now, claim.queued_at.timestamp(), claim.ran_s) for claim in claims]
        found = (left / aged(waited, self._ageing_s, self._power)).tolist()
        self._scores = {claim.id: score for claim, score in zip(claims, found, strict=True)}
        return Sorted(claims, lambda claim: (self._scores[claim.id], tie(claim)))

    def score(self, claim: Claim) -> float:
        """Seconds left over what waiting counts."""
        return self._scores[claim.id]

    def scores_of(self, lives: LeaseColumns) -> Floats:
        """Seconds left over what waiting counted."""
        return super().scores_of(lives) / aged(
            lives.columns[LeaseColumns.waited_s], self._ageing_s, self._power
        )
