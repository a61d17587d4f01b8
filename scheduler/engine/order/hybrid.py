"""The default hybrid: short and small first by what was learned, the longer the wait the better, softly fair.

The index of a claim is

    length x size^0.8 / (1 + waited / ageing_s)^(2 / (1 + 3 x pressure)) x ratio^0.5

Length is the Gittins index of what was learned of the team and size, and of what is predicted of the request, at
the age it has run to; never more than it may still run. As long as nothing was learned the time asked for counts
as a prediction. Pressure is what the queue asks over what the fleet has: in overload, where somebody must wait
anyway, ageing weakens (docs/queue.md). The ratio is the geometric mean of the team's and the person's part of all
usage over their part of all shares, each at least 0.05.

What runs has the same index, so that it can be compared with what waits (``scheduler.engine.victims``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from datetime import datetime
from typing import Any, ClassVar

import numpy as np

from scheduler.engine.columns import Flags, Floats, Ints
from scheduler.engine.learning.lengths import curves_of
from scheduler.engine.model import Claim, Grant, PolicyRules, Snapshot, TeamQuota
from scheduler.engine.order.burden import UNSTOPPABLE_AGEING, aged, burden, overload, power_at, waited_s
from scheduler.engine.order.costs import Costs, units_of
from scheduler.engine.order.ranking import Heaped, LeaseColumns
from scheduler.engine.order.tree import Branch, used_tree
from scheduler.engine.policy import heeds_scores

LEAST_RATIO = 0.05
FAIRNESS_POWER = 0.5


class Hybrid:
    """Learned length, size, wait and a soft fair share."""

    by_priority: ClassVar[bool] = True
    blocks: ClassVar[bool] = False

    def __init__(self, snapshot: Snapshot, policy: PolicyRules) -> None:
        self._tree = used_tree(snapshot, policy)
        self._penalty_s = policy.penalty_s
        self._now = snapshot.taken_at.timestamp()
        self._ageing_s = max(policy.ageing_s, 1)
        self._curves = curves_of(snapshot.learned)
        self._is_new = not snapshot.learned.version
        self._entitled: dict[Branch, tuple[tuple[Branch, float], ...]] = {}
        self._weights: dict[tuple[int, int], float] = {}
        self.costs = Costs(snapshot)
        asked = sum(self.costs.of(claim) for claim in snapshot.queue)
        self._power = power_at(asked, self.costs.capacity)
        self.overload = overload(asked, self.costs.capacity)
        for claim in snapshot.queue:
            self._tree.leaf(claim.team_id, claim.user_id)
        if policy.preempting.by_score:
            for who in {(lease.team_id, lease.user_id): None for lease in snapshot.running}:
                self._tree.leaf(*who)
        self._preempting = policy.preempting
        self._worths: dict[int, float] = {}
        self._burdens: dict[int, float] = {}
        self._expected: dict[int, float] = {}
        self._rate(snapshot.queue)

    def ranking(self, claims: Sequence[Claim]) -> Heaped:
        """By index as of now."""
        leaves = {claim.id: self._tree.leaf(claim.team_id, claim.user_id) for claim in claims}
        self._entitled.clear()
        self._rate([claim for claim in claims if claim.id not in self._worths])
        return Heaped(
            claims, lambda claim: leaves[claim.id], self.worth, lambda leaf, worth: worth * self.weight(leaf)
        )

    def note(self, claim: Claim, grant: Grant) -> None:
        """Count the grant as ``penalty_s`` of use at once."""
        self._tree.use(self.leaf(claim), grant.cost_milli * self._penalty_s)
        self._weights.clear()

    def leaf(self, claim: Claim) -> Branch:
        """Whose claim it is."""
        return self._tree.leaf(claim.team_id, claim.user_id)

    def worth(self, claim: Claim) -> float:
        """The index but for fairness, low goes first."""
        return self._worths[claim.id]

    def score(self, claim: Claim) -> float:
        """The index of a claim as it is now, low goes first."""
        return self.worth(claim) * self._weight_of(claim.team_id, claim.user_id)

    def later(self, now: datetime, claims: Sequence[Claim]) -> Hybrid:
        """The same at a later instant, with the pressure and the use of now."""
        found = copy(self)
        found._now, found._worths, found._burdens, found._expected = now.timestamp(), {}, {}, {}
        found._rate(claims)
        return found

    def burden(self, claim: Claim) -> float:
        """Expected seconds x size^0.8, whatever the claim has waited."""
        return self._burdens[claim.id]

    def length(self, claim: Claim) -> float | None:
        """Expected seconds of a claim that was ranked, whatever it has waited; None of another."""
        return self._expected.get(claim.id)

    def lengths_of(self, lives: LeaseColumns) -> Floats:
        """Seconds that leases which cannot be stopped were expected to run as they began, by what is known now."""
        at = lives.columns
        forms = np.array([self._curves.form(*sort) for sort in lives.sorts], np.int64)
        sorts, left = at[LeaseColumns.sort].astype(np.int64), at[LeaseColumns.until] - at[LeaseColumns.began]
        may_stop = np.zeros(len(left), np.bool_)
        return self._lengths(
            forms[sorts], at[LeaseColumns.ran_s], left, at[LeaseColumns.predicted_s], may_stop
        )

    def scores_of(self, lives: LeaseColumns) -> Floats:
        """The indices of leases that live, as if they could choose again."""
        at = lives.columns
        ages = at[LeaseColumns.ran_s] + np.maximum(self._now - at[LeaseColumns.began], 0.0)
        left = np.maximum(at[LeaseColumns.until] - self._now, 1.0)
        forms = np.array([self._curves.form(*sort) for sort in lives.sorts], np.int64)
        weights = np.array([self._weight_of(*who) for who in lives.people])
        may_stop = np.ones(len(ages), np.bool_)
        lengths = self._lengths(
            forms[at[LeaseColumns.sort].astype(np.int64)], ages, left, at[LeaseColumns.predicted_s], may_stop
        )
        ageing_s = self._ageing_of(may_stop)
        found = burden(lengths, at[LeaseColumns.cost_milli]) / aged(
            at[LeaseColumns.waited_s], ageing_s, self._power
        )
        scores: Floats = found * weights[at[LeaseColumns.who].astype(np.int64)]
        return scores

    def _rate(self, claims: Sequence[Claim]) -> None:
        """Reckon the indices of claims, but for fairness."""
        if not claims:
            return
        now, form, cost = self._now, self._curves.form, self.costs.of
        rows = [
            (
                form(claim.team_id, units_of(claim)),
                claim.ran_s,
                claim.duration_s,
                claim.predicted_s,
                cost(claim),
                waited_s(now, claim.queued_at.timestamp(), claim.ran_s),
                heeds_scores(claim, self._preempting),
            )
            for claim in claims
        ]
        forms, ran, left, predicted, costs, waited, may_stop = np.array(rows, float).T
        lengths = self._lengths(forms.astype(np.int64), ran, left, predicted, may_stop > 0)
        burdens = burden(lengths, costs)
        found = burdens / aged(waited, self._ageing_of(may_stop > 0), self._power)
        ids = [claim.id for claim in claims]
        self._expected.update(zip(ids, lengths.tolist(), strict=True))
        self._burdens.update(zip(ids, burdens.tolist(), strict=True))
        self._worths.update(zip(ids, found.tolist(), strict=True))

    def _lengths(self, forms: Ints, ages: Floats, left: Floats, predicted: Floats, may_stop: Flags) -> Floats:
        """Seconds that count for what has run so long and may run for so much longer."""
        if self._is_new:
            predicted = np.where(predicted > 0, predicted, ages + left)
        return np.minimum(self._curves.ranks(forms, ages, predicted, may_stop), left)

    def _ageing_of(self, may_stop: Flags) -> Floats:
        return self._ageing_s * np.where(may_stop, 1.0, UNSTOPPABLE_AGEING)

    def _weight_of(self, team_id: int, user_id: int) -> float:
        found = self._weights.get((team_id, user_id))
        if found is None:
            found = self._weights[team_id, user_id] = self.weight(self._tree.leaf(team_id, user_id))
        return found

    def weight(self, leaf: Branch) -> float:
        """The index is multiplied by this; a grant can only raise it.

        Everybody's is multiplied by the same power of all usage, so that one grant need not change all.
        """
        rows = self._entitled.get(leaf)
        if rows is None:
            rows = self._entitled[leaf] = tuple((branch, _of_all(branch)) for branch in (leaf, *_team(leaf)))
        least = LEAST_RATIO * max(self._tree.root.usage, 1)
        product = 1.0
        for branch, part in rows:
            product *= max(branch.usage / part, least)
        return float(product ** (FAIRNESS_POWER / len(rows)))


class GuaranteesFirst(Hybrid):
    """Claims that keep their team inside its guarantee go first, then as ``Hybrid``.

    What counts is the nearest team with a guarantee, the claim's own or one above, and all it uses.
    """

    def __init__(self, snapshot: Snapshot, policy: PolicyRules) -> None:
        super().__init__(snapshot, policy)
        self._quotas = {row.team_id: row for row in snapshot.quotas}
        self._used = {row.team_id: row.used_milli for row in snapshot.quotas}
        self._guarantees: dict[int, TeamQuota | None] = {}

    def ranking(self, claims: Sequence[Claim]) -> Heaped:
        """By guarantee, then by index as of now."""
        leaves = {claim.id: (self.leaf(claim), self.costs.of(claim)) for claim in claims}
        self._entitled.clear()
        self._rate([claim for claim in claims if claim.id not in self._worths])
        return Heaped(claims, lambda claim: leaves[claim.id], self.worth, self._key)

    def note(self, claim: Claim, grant: Grant) -> None:
        """Count the grant against the guarantees too."""
        super().note(claim, grant)
        for row in self._lineage(claim.team_id):
            self._used[row.team_id] += grant.cost_milli

    def _key(self, of: Any, worth: float) -> tuple[bool, float]:
        leaf, cost = of
        guarantee = self._guarantee(leaf.team_id)
        is_over = guarantee is None or self._used[guarantee.team_id] + cost > guarantee.guaranteed_milli
        return is_over, worth * self.weight(leaf)

    def _guarantee(self, team_id: int) -> TeamQuota | None:
        """The nearest guarantee that the team's use counts against."""
        if team_id not in self._guarantees:
            rows = (row for row in self._lineage(team_id) if row.guaranteed_milli)
            self._guarantees[team_id] = next(rows, None)
        return self._guarantees[team_id]

    def _lineage(self, team_id: int) -> Iterable[TeamQuota]:
        seen: set[int] = set()
        here = self._quotas.get(team_id)
        while here is not None and here.team_id not in seen:
            seen.add(here.team_id)
            yield here
            here = self._quotas.get(here.parent_id or 0)


def _team(leaf: Branch) -> tuple[Branch, ...]:
    return (leaf.parent,) if leaf.parent is not None and leaf.parent.parent is not None else ()


def _of_all(branch: Branch) -> float:
    """What a branch is entitled to of everything, 0 to 1."""
    part = 1.0
    for one in branch.climb():
        part *= one.part
    return part
