"""Who chooses next: pools below their part first, then priority, then the order policy.

A lineup belongs to one turn. It hears of each grant, so orders that weigh use stay right within the turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from scheduler.engine.model import Claim, Grant, Policy, Reason, Snapshot
from scheduler.engine.order import order_named
from scheduler.engine.order.live.costs import capacity_of
from scheduler.engine.order.live.ranking import Order, Ranking
from scheduler.engine.pools import Entitlements


class Lineup:
    """The claims of a turn, each handed out once, the next one first.

    Same snapshot, policy and grants give the same order: equal claims go by time queued, then id, what-ifs
    (negative ids) behind real ones. ``served`` is the order in which claims were handed out. Raises
    UnknownPolicy when the policy names an order that does not exist. Not for several threads at once.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._order = order_named(policy.order)
        self._pools = Entitlements(policy.pools, snapshot, capacity_of(snapshot))
        self._claims = {claim.id: claim for claim in snapshot.queue}
        self._left = dict(self._claims)
        self._classes: list[list[Claim]] | None = None
        self._ranking: Ranking | None = None
        self._has_owed = any(not self._pools.is_over(work) for work in {c.work for c in snapshot.queue})
        self.served: list[Claim] = []

    def __iter__(self) -> Iterator[Claim]:
        """The claims one by one, until nobody is left."""
        while (claim := self.next()) is not None:
            yield claim

    def ordered(self, claims: Iterable[Claim]) -> list[Claim]:
        """These claims, of the queue or not, in the order they would have without any grant."""
        start = Lineup(self._snapshot, self._policy)
        start._left = {claim.id: claim for claim in claims}
        return list(start)

    @cached_property
    def _rules(self) -> Order:
        return self._order(self._snapshot, self._policy)

    def next(self) -> Claim | None:
        """Hand out the claim that chooses next; None when nobody is left."""
        while True:
            if self._ranking is None:
                if self._classes is None:
                    self._classes = self._sort(self._left.values())
                if not self._classes:
                    return None
                self._ranking = self._rules.ranking(self._classes.pop())
            claim = self._ranking.pop()
            if claim is not None:
                del self._left[claim.id]
                self.served.append(claim)
                return claim
            self._ranking = None

    def note(self, grant: Grant) -> None:
        """Count a grant of a claim of the queue; what comes next may change."""
        claim = self._claims[grant.claim_id]
        self._rules.note(claim, grant)
        if self._pools.take(claim.work, grant.cost_milli):
            self._classes = self._ranking = None
        elif self._ranking is not None:
            self._ranking.refresh()

    def reasons(self, claim: Claim) -> tuple[Reason, ...]:
        """Why others went before, beyond the order: the claim's pool is over its part, and others' were not."""
        if not self._has_owed or not self._pools.is_over(claim.work):
            return ()
        part = int(self._pools.parts[claim.work] * self._pools.capacity)
        figures = {"work": claim.work, "part_milli": part, "used_milli": self._pools.used[claim.work]}
        return (Reason("pool_full", figures),)

    def _sort(self, claims: Iterable[Claim]) -> list[list[Claim]]:
        """The claims by class, the class that is served first at the end."""
        found: dict[tuple[bool, int], list[Claim]] = {}
        for claim in claims:
            priority = -claim.priority if self._order.by_priority else 0
            found.setdefault((self._pools.is_over(claim.work), priority), []).append(claim)
        return [found[key] for key in sorted(found, reverse=True)]
