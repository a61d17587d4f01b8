"""The team tree with its ceilings and what is used: may this team spend that much more?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.engine.model import TeamQuota


@dataclass(slots=True)
class Account:
    """One team's counter, in weighted thousandths; ``ceiling`` None bounds nothing."""

    team_id: int
    name: str
    ceiling: int | None
    used: int


class Budget:
    """The quota of all teams. A grant counts for the team and every ancestor."""

    def __init__(self, quotas: Iterable[TeamQuota]) -> None:
        rows = list(quotas)
        self._accounts = {q.team_id: Account(q.team_id, q.name, q.ceiling_milli, q.used_milli) for q in rows}
        self._parents = {q.team_id: q.parent_id for q in rows}
        self._chains: dict[int, tuple[Account, ...]] = {}

    def chain(self, team_id: int) -> tuple[Account, ...]:
        """The team's account and those of its ancestors, nearest first; empty for an unknown team."""
        known = self._chains.get(team_id)
        if known is None:
            known = self._chains[team_id] = tuple(self._climb(team_id))
        return known

    def _climb(self, team_id: int) -> Iterable[Account]:
        seen: set[int] = set()
        here: int | None = team_id
        while here is not None and here in self._accounts and here not in seen:
            seen.add(here)
            yield self._accounts[here]
            here = self._parents[here]

    def headroom(self, team_id: int) -> int | None:
        """How much more the team may take now (negative when over); None when nothing bounds it."""
        tight = self.tightest(team_id)
        return None if tight is None or tight.ceiling is None else tight.ceiling - tight.used

    def tightest(self, team_id: int) -> Account | None:
        """The account in the team's chain with the least room, the nearest one on a tie."""
        bounded = [a for a in self.chain(team_id) if a.ceiling is not None]
        return min(bounded, key=lambda a: (a.ceiling or 0) - a.used, default=None)

    def lowest_ceiling(self, team_id: int) -> Account | None:
        """The account in the team's chain with the lowest ceiling, the nearest one on a tie."""
        bounded = [a for a in self.chain(team_id) if a.ceiling is not None]
        return min(bounded, key=lambda a: a.ceiling or 0, default=None)

    def allows(self, team_id: int, cost: int) -> bool:
        """Whether every ceiling in the chain admits ``cost`` more."""
        return all(a.ceiling is None or a.used + cost <= a.ceiling for a in self.chain(team_id))

    def take(self, team_id: int, cost: int) -> None:
        """Count ``cost`` (negative gives back) for the team and its ancestors."""
        for account in self.chain(team_id):
            account.used += cost
