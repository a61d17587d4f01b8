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
from typing import Any, ClassVar

from scheduler.engine.learning.lengths import curves_of
from scheduler.engine.model import Claim, Grant, Policy, Snapshot, TeamQuota
from scheduler.engine.order.live.costs import Costs, units_of
from scheduler.engine.order.live.index import AGEING_POWER, RELIEF, index, waited_s
from scheduler.engine.order.live.ranking import Heaped, Life
from scheduler.engine.order.live.tree import Branch, used_tree

LEAST_RATIO = 0.05
FAIRNESS_POWER = 0.5


class Hybrid:
    """Learned length, size, wait and a soft fair share."""

    by_priority: ClassVar[bool] = True
    blocks: ClassVar[bool] = False

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
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
        self._power = AGEING_POWER / (1.0 + RELIEF * asked / max(self.costs.capacity, 1))
        for claim in snapshot.queue:
            self._tree.leaf(claim.team_id, claim.user_id)
        if policy.preempting.by_score:
            for lease in snapshot.running:
                self._tree.leaf(lease.team_id, lease.user_id)

    def ranking(self, claims: Sequence[Claim]) -> Heaped:
        """By index as of now."""
        leaves = {claim.id: self._tree.leaf(claim.team_id, claim.user_id) for claim in claims}
        self._entitled.clear()
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
        predicted = claim.predicted_s or (claim.ran_s + claim.duration_s if self._is_new else 0)
        length = self._curves.rank(claim.team_id, units_of(claim), claim.ran_s, predicted)
        length = min(length, claim.duration_s)
        waited = waited_s(self._now, claim.queued_at.timestamp(), claim.ran_s)
        return index(length, self.costs.of(claim), waited, self._ageing_s, self._power)

    def score(self, claim: Claim) -> float:
        """The index of a claim as it is now, low goes first."""
        return self.worth(claim) * self.weight(self.leaf(claim))

    def score_of(self, life: Life) -> float:
        """The index of leases that live, as if they could choose again."""
        age, left = life.ran_s + max(self._now - life.began, 0.0), max(life.until - self._now, 1.0)
        predicted = life.predicted_s or (age + left if self._is_new else 0)
        length = min(self._curves.rank(life.team_id, life.units, age, predicted), left)
        worth = index(length, life.cost_milli, life.waited_s, self._ageing_s, self._power)
        return worth * self._weight_of(life.team_id, life.user_id)

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

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        super().__init__(snapshot, policy)
        self._quotas = {row.team_id: row for row in snapshot.quotas}
        self._used = {row.team_id: row.used_milli for row in snapshot.quotas}
        self._guarantees: dict[int, TeamQuota | None] = {}

    def ranking(self, claims: Sequence[Claim]) -> Heaped:
        """By guarantee, then by index as of now."""
        leaves = {claim.id: (self.leaf(claim), self.costs.of(claim)) for claim in claims}
        self._entitled.clear()
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
