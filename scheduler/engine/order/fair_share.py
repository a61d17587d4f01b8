"""Where a team or person stands among its siblings: share, use, and who would go first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.engine.model import DecayedUsage, TeamQuota
from scheduler.engine.order.fair import badness
from scheduler.engine.order.tree import Branch, TeamTree


@dataclass(frozen=True, slots=True)
class FairShare:
    """One branch of the tree among its siblings.

    ``share`` is what it is entitled to, ``part`` its part of what all of them have used (0 to 1), ``ratio`` the
    second over the first: below 1 it has used less than its share. None where nobody has used anything. ``rank``
    is 1 for who goes first by fair share; equals have the same.
    """

    share: float
    used_milli_s: int
    part: float | None
    ratio: float | None
    rank: int
    siblings: int


@dataclass(frozen=True, slots=True)
class TeamFairShares:
    """A team among its siblings, and its people among each other by user id, who goes first first."""

    team: FairShare
    people: tuple[tuple[int, FairShare], ...]


def team_fair_shares(
    quotas: Iterable[TeamQuota], people: Iterable[DecayedUsage], team_id: int
) -> TeamFairShares:
    """Where the team stands by Fair Tree, from usage decayed to the same instant for all."""
    tree = TeamTree(quotas)
    for person in people:
        tree.use(tree.leaf(person.team_id, person.user_id), person.used_milli_s)
    found = [(leaf.user_id or 0, fair_share(leaf)) for leaf in tree.people(team_id)]
    return TeamFairShares(
        fair_share(tree.team(team_id)), tuple(sorted(found, key=lambda row: (row[1].rank, row[0])))
    )


def decayed(usage: float, seconds: float, half_life_s: float) -> float:
    """What is left of a usage after so many seconds."""
    return float(usage * 0.5 ** (seconds / half_life_s))


def fair_share(branch: Branch) -> FairShare:
    """Where a branch stands among its siblings."""
    family = branch.parent
    if family is None:
        return FairShare(1.0, branch.usage, None, None, 1, 1)
    mine = badness(branch, family)
    part = branch.usage / family.usage if family.usage else None
    return FairShare(
        share=branch.part,
        used_milli_s=branch.usage,
        part=part,
        ratio=None if part is None else part / branch.part,
        rank=1 + sum(badness(one, family) < mine for one in family.children),
        siblings=len(family.children),
    )
