"""Who chooses next: work within its pool's part first, then priority, then the order policy.

A lineup belongs to one turn. It hears of each grant, so orders that weigh use stay right within the turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from scheduler.engine.model import Claim, Grant, PolicyRules, Reason, Snapshot
from scheduler.engine.order import order_named
from scheduler.engine.order.costs import Costs
from scheduler.engine.order.ranking import Burdened, Order, Ranking, Scored
from scheduler.engine.pools import WITHIN, Entitlements

OF_QUOTA = frozenset({"quota_ceiling", "cohort_exhausted"})
Class = tuple[int, int]  # where a claim stands in its pool, and its priority; the smaller goes first


class Lineup:
    """The claims of a turn, each handed out once, the next one first.

    Same snapshot, policy and grants give the same order: equal claims go by time queued, then id, what-ifs
    (negative ids) behind real ones. ``served`` is the order in which claims were handed out. Raises
    UnknownPolicy when the policy names an order that does not exist. Not for several threads at once.
    """

    def __init__(self, snapshot: Snapshot, policy: PolicyRules) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._order = order_named(policy.order)
        self._pools = Entitlements(policy.pools, snapshot)
        self._claims = {claim.id: claim for claim in snapshot.queue}
        self._queue: Iterable[Claim] = snapshot.queue
        self._ranking: Ranking | None = None
        self._class: Class = (WITHIN, 0)
        self.served: list[Claim] = []

    def __iter__(self) -> Iterator[Claim]:
        """The claims one by one, until nobody is left."""
        while (claim := self.next()) is not None:
            yield claim

    def ordered(self, claims: Iterable[Claim]) -> list[Claim]:
        """These claims, of the queue or not, in the order they would have without any grant."""
        start = Lineup(self._snapshot, self._policy)
        start._queue = claims
        return list(start)

    def next(self) -> Claim | None:
        """Hand out the claim that chooses next; None when nobody is left."""
        while True:
            if self._ranking is None:
                if not self._classes:
                    return None
                self._class = min(self._classes)
                self._ranking = self._rules.ranking(self._classes.pop(self._class))
            claim = self._ranking.pop()
            if claim is None:
                self._ranking = None
            elif (now := self._class_of(claim)) != self._class:
                # Its pool has come closer to its part since; pools only fill within a turn.
                self._classes.setdefault(now, []).append(claim)
            else:
                self.served.append(claim)
                return claim

    def note(self, grant: Grant) -> None:
        """Count a grant of a claim of the queue; what comes next may change."""
        claim = self._claims[grant.claim_id]
        self._rules.note(claim, grant)
        self._pools.take(claim.work, grant.cost_milli)
        if self._ranking is not None:
            self._ranking.refresh()

    @property
    def blocks(self) -> bool:
        """Whether nobody may overtake who waits for room."""
        return self._order.blocks

    @property
    def scored(self) -> Scored | None:
        """The order's scores, where it has any."""
        rules = self._rules
        return rules if isinstance(rules, Scored) else None

    @property
    def burdened(self) -> Burdened | None:
        """How long and large the order thinks that claims are, where it does."""
        rules = self._rules
        return rules if isinstance(rules, Burdened) else None

    def explain(self, claim: Claim, reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
        """The reasons, and ``pool_full`` where other kinds of work went first because they are within their part.

        Whom only a quota keeps out would wait in any pool.
        """
        is_room_short = any(reason.code not in OF_QUOTA for reason in reasons)
        if not self._pools.parts or not is_room_short or not self._owed - {claim.work}:
            return reasons
        if self._class_of(claim)[0] == WITHIN:
            return reasons
        figures = {
            "work": claim.work,
            "part_milli": self._pools.part_milli(claim.work),
            "used_milli": self._pools.used[claim.work],
            "wanted_milli": self._costs.of(claim),
        }
        return (*reasons, Reason("pool_full", figures))

    @cached_property
    def _rules(self) -> Order:
        return self._order(self._snapshot, self._policy)

    @cached_property
    def _costs(self) -> Costs:
        return Costs(self._snapshot)

    @cached_property
    def _classes(self) -> dict[Class, list[Claim]]:
        found: dict[Class, list[Claim]] = {}
        for claim in self._queue:
            found.setdefault(self._class_of(claim), []).append(claim)
        return found

    @cached_property
    def _owed(self) -> set[str]:
        """The kinds of work that had claims within their part as the turn began."""
        start = Entitlements(self._policy.pools, self._snapshot)
        claims = self._claims.values()
        return {claim.work for claim in claims if start.place(claim.work, self._costs.of(claim)) == WITHIN}

    def _class_of(self, claim: Claim) -> Class:
        place = self._pools.place(claim.work, self._costs.of(claim)) if self._pools.parts else WITHIN
        return place, -claim.priority if self._order.by_priority else 0
