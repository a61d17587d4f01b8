"""Fair Tree over the teams and, inside a team, its people: who used least of its share goes first.

Slurm's rule (slurm.schedmd.com/fair_tree.html): walk down by falling
level factor, share among the siblings over part of their usage; equal siblings are walked as one, so their
children compete directly, and equal people go by time queued.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import groupby
from operator import itemgetter
from typing import ClassVar

from scheduler.engine.model import Claim, Grant, PolicyRules, Snapshot
from scheduler.engine.order.ranking import tie
from scheduler.engine.order.tree import Branch, TeamTree, used_tree


class FairTree:
    """Fair Tree with decayed usage; a grant counts at once as ``penalty_s`` of use."""

    by_priority: ClassVar[bool] = True
    blocks: ClassVar[bool] = False

    def __init__(self, snapshot: Snapshot, policy: PolicyRules) -> None:
        self._tree = used_tree(snapshot, policy)
        self._penalty_s = policy.penalty_s
        for claim in snapshot.queue:
            self._tree.leaf(claim.team_id, claim.user_id)

    def ranking(self, claims: Sequence[Claim]) -> FairTreeWalk:
        """By Fair Tree rank as of now."""
        return FairTreeWalk(self._tree, claims)

    def note(self, claim: Claim, grant: Grant) -> None:
        """Count the grant as used."""
        self._tree.use(self._tree.leaf(claim.team_id, claim.user_id), grant.cost_milli * self._penalty_s)


class FairTreeWalk:
    """The claims in the order of the tree, walked as far as asked and again from the top after a grant."""

    def __init__(self, tree: TeamTree, claims: Sequence[Claim]) -> None:
        self._root = tree.root
        self._claims: dict[Branch, deque[Claim]] = {}
        self._open: dict[Branch, dict[Branch, None]] = {}  # children with somebody waiting below
        for claim in sorted(claims, key=tie):
            self._claims.setdefault(tree.leaf(claim.team_id, claim.user_id), deque()).append(claim)
        for leaf in self._claims:
            for branch in leaf.climb():
                assert branch.parent is not None
                self._open.setdefault(branch.parent, {})[branch] = None
        self._walk = self._below([self._root])

    def pop(self) -> Claim | None:
        """Take the next claim."""
        return next(self._walk, None)

    def refresh(self) -> None:
        """Usage has changed: walk again."""
        self._walk = self._below([self._root])

    def _below(self, families: Sequence[Branch]) -> Iterator[Claim]:
        """The claims below these branches, whose children are walked as one."""
        rated = [
            (badness(child, family), child) for family in families for child in self._open.get(family, ())
        ]
        rated.sort(key=itemgetter(0))
        for _, equal in groupby(rated, key=itemgetter(0)):
            branches = [branch for _, branch in equal]
            people = [branch for branch in branches if branch in self._claims]
            if people:
                yield from self._of(people)
            inner = [branch for branch in branches if branch.user_id is None]
            if inner:
                yield from self._below(inner)

    def _of(self, people: Sequence[Branch]) -> Iterator[Claim]:
        """The claims of people of equal rank by time queued."""
        heads = [(tie(self._claims[leaf][0]), at) for at, leaf in enumerate(people)]
        heapify(heads)
        while heads:
            at = heads[0][1]
            line = self._claims[people[at]]
            claim = line.popleft()
            if line:
                heapreplace(heads, (tie(line[0]), at))
            else:
                heappop(heads)
                self._close(people[at])
            yield claim

    def _close(self, leaf: Branch) -> None:
        """Nobody waits below this branch any more."""
        del self._claims[leaf]
        for branch in leaf.climb():
            assert branch.parent is not None
            siblings = self._open[branch.parent]
            del siblings[branch]
            if siblings:
                return
            del self._open[branch.parent]


def badness(branch: Branch, family: Branch) -> float:
    """One over the level factor: part of the siblings' usage over share among them, low goes first.

    Divided once, from whole numbers: so equal factors are equal to the last bit.
    """
    if branch.shares <= 0:
        return math.inf
    if branch.usage <= 0:
        return 0.0
    return branch.usage * family.children_shares / (branch.shares * family.usage)
