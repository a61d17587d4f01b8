"""The team tree with its ceilings, its cohorts and what is used: may this team spend that much more?

Ceilings bound a team and everything below it. Beside them, teams of a cohort may use more than their
guarantees as long as the others do not need theirs: what all of them use above their guarantees is at most
what all of them lend, each its unused guarantee up to its limit. A cohort that is beyond that already,
because a guarantee was changed, must not get further beyond. Nothing here ever falls when a team takes more,
so what is refused once in a turn is refused until something ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from scheduler.engine.model import TeamQuota

MOST_COST = 1 << 40


@dataclass(slots=True)
class TeamAccount:
    """One team's counter, in weighted thousandths; ``ceiling`` None bounds nothing, ``lending`` None lends all."""

    team_id: int
    name: str
    ceiling: int | None
    used: int
    guaranteed: int = 0
    lending: int | None = None
    cohort_id: int | None = None

    def borrows(self, more: int = 0) -> int:
        """What is used above the guarantee, with ``more`` taken beside it."""
        return max(0, self.used + more - self.guaranteed)

    def lends(self, more: int = 0) -> int:
        """What of the guarantee others may use, with ``more`` taken beside it."""
        unused = max(0, self.guaranteed - self.used - more)
        return unused if self.lending is None else min(self.lending, unused)

    def strains(self, more: int = 0) -> int:
        """What is borrowed beyond what is lent, by this team alone."""
        return self.borrows(more) - self.lends(more)


@dataclass(slots=True)
class CohortAccounts:
    """The accounts of one cohort; ``strain`` is what they borrow beyond what they lend, within bounds at most 0."""

    cohort_id: int
    members: list[TeamAccount] = field(default_factory=list)
    strain: int = 0


class CohortShort(NamedTuple):
    """A cohort that has too little to lend: whose account it is, its sums now and what is missing."""

    account: TeamAccount
    borrowed: int
    lendable: int
    short: int


class Budget:
    """The quota of all teams. A grant counts for the team and every ancestor."""

    def __init__(self, quotas: Iterable[TeamQuota]) -> None:
        rows = list(quotas)
        self._accounts = {
            q.team_id: TeamAccount(
                q.team_id, q.name, q.ceiling_milli, q.used_milli,
                q.guaranteed_milli, q.lending_milli, q.cohort_id,
            )
            for q in rows
        }  # fmt: skip
        self._parents = {q.team_id: q.parent_id for q in rows}
        self._chains: dict[int, tuple[TeamAccount, ...]] = {}
        self._shared: dict[int, tuple[tuple[CohortAccounts, tuple[TeamAccount, ...]], ...]] = {}
        self._pools: dict[int, CohortAccounts] = {}
        for account in self._accounts.values():
            if account.cohort_id is not None:
                pool = self._pools.setdefault(account.cohort_id, CohortAccounts(account.cohort_id))
                pool.members.append(account)
                pool.strain += account.strains()

    @property
    def has_cohorts(self) -> bool:
        """Whether any team is in a cohort."""
        return bool(self._pools)

    def chain(self, team_id: int) -> tuple[TeamAccount, ...]:
        """The team's account and those of its ancestors, nearest first; empty for an unknown team."""
        known = self._chains.get(team_id)
        if known is None:
            known = self._chains[team_id] = tuple(self._climb(team_id))
        return known

    def _climb(self, team_id: int) -> Iterable[TeamAccount]:
        seen: set[int] = set()
        here: int | None = team_id
        while here is not None and here in self._accounts and here not in seen:
            seen.add(here)
            yield self._accounts[here]
            here = self._parents[here]

    def _pools_of(self, team_id: int) -> tuple[tuple[CohortAccounts, tuple[TeamAccount, ...]], ...]:
        """The cohorts above the team, each with the accounts of the chain that are in it."""
        known = self._shared.get(team_id)
        if known is None:
            accounts: dict[int, list[TeamAccount]] = {}
            for account in self.chain(team_id) if self._pools else ():
                if account.cohort_id is not None:
                    accounts.setdefault(account.cohort_id, []).append(account)
            known = tuple((self._pools[key], tuple(found)) for key, found in accounts.items())
            self._shared[team_id] = known
        return known

    def headroom(self, team_id: int) -> int | None:
        """How much more the team may take now (negative when over a ceiling); None when nothing bounds it."""
        tight = self.tightest(team_id)
        left = None if tight is None or tight.ceiling is None else tight.ceiling - tight.used
        for pool, accounts in self._pools_of(team_id):
            room = _room_in(pool, accounts)
            left = room if left is None else min(left, room)
        return left

    def tightest(self, team_id: int) -> TeamAccount | None:
        """The account in the team's chain with the least room below its ceiling, the nearest one on a tie."""
        bounded = [a for a in self.chain(team_id) if a.ceiling is not None]
        return min(bounded, key=lambda a: (a.ceiling or 0) - a.used, default=None)

    def lowest_ceiling(self, team_id: int) -> tuple[TeamAccount, int] | None:
        """What the team can have at most whatever runs, and the account that says so, the nearest on a tie.

        That is a ceiling, or a guarantee with all that the others of its cohort lend when they use nothing.
        """
        bounds = [(a, a.ceiling) for a in self.chain(team_id) if a.ceiling is not None]
        bounds += [(a[0], _most_in(pool, a)) for pool, a in self._pools_of(team_id)]
        return min(bounds, key=lambda bound: bound[1], default=None)

    def member(self, team_id: int) -> TeamAccount | None:
        """The nearest account in the team's chain that is in a cohort: its guarantee is the team's."""
        return next((a for a in self.chain(team_id) if a.cohort_id is not None), None)

    def cohort(self, cohort_id: int) -> tuple[TeamAccount, ...]:
        """The accounts of a cohort."""
        pool = self._pools.get(cohort_id)
        return () if pool is None else tuple(pool.members)

    def is_guaranteed(self, team_id: int, cost: int) -> bool:
        """Whether ``cost`` more stays inside the guarantee that the team has in its cohort."""
        member = self.member(team_id)
        return member is not None and member.used + cost <= member.guaranteed

    def allows(self, team_id: int, cost: int) -> bool:
        """Whether every ceiling in the chain, and every cohort, admits ``cost`` more."""
        for account in self.chain(team_id):
            if account.ceiling is not None and account.used + cost > account.ceiling:
                return False
        return not self._pools or all(
            _strain_after(pool, accounts, cost) <= max(0, pool.strain)
            for pool, accounts in self._pools_of(team_id)
        )

    def shortfall(self, team_id: int, cost: int) -> int:
        """By how much ``cost`` more breaks ceilings and cohorts in all; 0 when it is allowed."""
        short = sum(max(0, a.used + cost - a.ceiling) for a in self.chain(team_id) if a.ceiling is not None)
        for pool, accounts in self._pools_of(team_id):
            short += max(0, _strain_after(pool, accounts, cost) - max(0, pool.strain))
        return short

    def used(self, team_id: int) -> int:
        """What the team and everything below it use; 0 for an unknown team."""
        account = self._accounts.get(team_id)
        return 0 if account is None else account.used

    def short_in_cohort(self, team_id: int, cost: int) -> CohortShort | None:
        """The cohort that does not admit ``cost`` more; None when all do."""
        for pool, accounts in self._pools_of(team_id):
            short = _strain_after(pool, accounts, cost) - max(0, pool.strain)
            if short > 0:
                borrowed = sum(a.borrows() for a in pool.members)
                return CohortShort(accounts[0], borrowed, sum(a.lends() for a in pool.members), short)
        return None

    def take(self, team_id: int, cost: int) -> None:
        """Count ``cost`` (negative gives back) for the team and its ancestors."""
        for pool, accounts in self._pools_of(team_id):
            pool.strain = _strain_after(pool, accounts, cost)
        for account in self.chain(team_id):
            account.used += cost


def _strain_after(pool: CohortAccounts, accounts: tuple[TeamAccount, ...], cost: int) -> int:
    return pool.strain + sum(a.strains(cost) - a.strains() for a in accounts)


def _room_in(pool: CohortAccounts, accounts: tuple[TeamAccount, ...]) -> int:
    """The most that the cohort admits: strain never falls as cost rises, so halving finds it."""
    bound = max(0, pool.strain)
    low, high = 0, MOST_COST
    while low < high:
        cost = (low + high + 1) // 2
        if _strain_after(pool, accounts, cost) <= bound:
            low = cost
        else:
            high = cost - 1
    return low


def _most_in(pool: CohortAccounts, accounts: tuple[TeamAccount, ...]) -> int:
    """What the cohort would admit if nobody in it used anything."""
    idle = {a.team_id: replace(a, used=0) for a in pool.members}
    unused = CohortAccounts(pool.cohort_id, list(idle.values()), sum(a.strains() for a in idle.values()))
    return _room_in(unused, tuple(idle[a.team_id] for a in accounts))
