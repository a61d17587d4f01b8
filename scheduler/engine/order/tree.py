"""The team tree with its people, what each is entitled to among its siblings, and what each has used.

A team's share among its siblings is its guarantee, or the same for all where nobody has one; a team without
a guarantee beside others that have one counts as a thousandth of a device. People of a team are equal. A
team that has teams below it and people of its own gives those people a branch beside its teams, with what
its guarantee has over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta

from scheduler.engine.model import PolicyRules, Snapshot, TeamQuota

ROOT = 0
SECOND = timedelta(seconds=1)
Leaf = tuple[int, int]


class Branch:
    """A team, the people of a team, or one person (``user_id`` set). Usage is that of all below it."""

    __slots__ = ("children", "children_shares", "parent", "shares", "team_id", "usage", "user_id")

    def __init__(self, team_id: int, shares: int = 1, user_id: int | None = None) -> None:
        self.team_id = team_id
        self.user_id = user_id
        self.shares = shares
        self.usage = 0
        self.parent: Branch | None = None
        self.children: list[Branch] = []
        self.children_shares = 0

    def add(self, child: Branch) -> Branch:
        """Put a branch below this one."""
        child.parent = self
        self.children.append(child)
        self.children_shares += child.shares
        return child

    @property
    def part(self) -> float:
        """What it is entitled to of what its siblings and it are, 0 to 1."""
        return self.shares / self.parent.children_shares if self.parent else 1.0

    def climb(self) -> Iterator[Branch]:
        """The branch and all above it, without the root that holds everything."""
        here = self
        while here.parent is not None:
            yield here
            here = here.parent


class TeamTree:
    """Branches by team and person. ``leaf`` makes a person known; do so before anybody is compared."""

    def __init__(self, quotas: Iterable[TeamQuota]) -> None:
        self.root = Branch(ROOT)
        self._teams: dict[int, Branch] = {}
        self._people_of: dict[int, Branch] = {}
        self._leaves: dict[Leaf, Branch] = {}
        self._grow(list(quotas))

    def _grow(self, rows: list[TeamQuota]) -> None:
        known = {row.team_id for row in rows}
        below: dict[int | None, list[TeamQuota]] = {}
        for row in rows:
            parent = row.parent_id if row.parent_id in known and row.parent_id != row.team_id else None
            below.setdefault(parent, []).append(row)
        waiting: list[tuple[Branch, list[TeamQuota], int]] = [(self.root, below.get(None, []), 0)]
        while waiting:
            above, family, left = waiting.pop()
            guaranteed = any(row.guaranteed_milli for row in family)
            for row in family:
                branch = above.add(Branch(row.team_id, max(row.guaranteed_milli, 1) if guaranteed else 1))
                self._teams[row.team_id] = self._people_of[row.team_id] = branch
                children = below.get(row.team_id)
                if children:
                    waiting.append((branch, children, row.guaranteed_milli))
            if above is not self.root:
                left -= sum(row.guaranteed_milli for row in family)
                own = Branch(above.team_id, max(left, 1) if guaranteed else 1)
                self._people_of[above.team_id] = own
        # Rows whose parents go round in a circle hang from nowhere; they count as teams of the top.
        for row in rows:
            if row.team_id not in self._teams:
                self._teams[row.team_id] = self._people_of[row.team_id] = self.root.add(Branch(row.team_id))

    def team(self, team_id: int) -> Branch:
        """The branch of a team; one that no row names counts as a team of the top."""
        found = self._teams.get(team_id)
        if found is None:
            found = self.root.add(Branch(team_id))
            self._teams[team_id] = self._people_of[team_id] = found
        return found

    def leaf(self, team_id: int, user_id: int) -> Branch:
        """The branch of a person in a team."""
        found = self._leaves.get((team_id, user_id))
        if found is None:
            team = self.team(team_id)
            people = self._people_of[team_id]
            if people is not team and people.parent is None:
                team.add(people)
            found = self._leaves[team_id, user_id] = people.add(Branch(team_id, 1, user_id))
        return found

    def people(self, team_id: int) -> list[Branch]:
        """The people known of a team itself, without the teams below it."""
        return [leaf for (team, _), leaf in self._leaves.items() if team == team_id]

    @staticmethod
    def use(branch: Branch, amount: int) -> None:
        """Count a usage for a branch and everything above it."""
        here: Branch | None = branch
        while here is not None:
            here.usage += amount
            here = here.parent


def used_tree(snapshot: Snapshot, policy: PolicyRules) -> TeamTree:
    """The tree with decayed usage in weighted thousandths times seconds, young leases counted ahead.

    Usage is settled once a minute, so a lease younger than ``penalty_s`` counts as if it had run that
    long: nobody can start a hundred before the first is seen.
    """
    tree = TeamTree(snapshot.quotas)
    for person in snapshot.people:
        tree.use(tree.leaf(person.team_id, person.user_id), person.used_milli_s)
    now, penalty_s = snapshot.taken_at, policy.penalty_s
    young, ahead = now - timedelta(seconds=penalty_s), Counter[Leaf]()
    for lease in snapshot.running:
        if lease.started_at > young:
            age_s = max((now - lease.started_at) // SECOND, 0)
            ahead[lease.team_id, lease.user_id] += lease.cost_milli * (penalty_s - age_s)
    for who, amount in ahead.items():
        tree.use(tree.leaf(*who), amount)
    return tree
