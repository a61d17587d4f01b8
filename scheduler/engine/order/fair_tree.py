"""Fair Tree: every person of a better-served-so-far branch stands behind every person of a worse one.

Slurm's rule (slurm.schedmd.com/fair_tree.html): at each level a branch's factor is its share among its
siblings over its part of their decayed usage; walk down in falling order of factors. Equal siblings are
walked as one, so their children compete directly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Branch:
    """A team or person: its shares (any unit, among siblings) and, for leaves, decayed usage."""

    name: str
    shares: float
    usage: float = 0.0
    children: tuple[Branch, ...] = ()

    def total(self) -> float:
        """Decayed usage of the branch and all below it."""
        return self.usage + sum(child.total() for child in self.children)


def decayed(usage: float, seconds: float, half_life_s: float) -> float:
    """What is left of a usage after so many seconds."""
    return float(usage * 0.5 ** (seconds / half_life_s))


def level_factors(siblings: Sequence[Branch]) -> list[float]:
    """Share over part of usage of each sibling; infinite where nothing was used, 0 without shares."""
    shares, usage = sum(s.shares for s in siblings), sum(s.total() for s in siblings)
    found = []
    for one in siblings:
        if one.shares <= 0:
            found.append(0.0)
        elif one.total() <= 0:
            found.append(math.inf)
        else:
            found.append(one.shares / shares / (one.total() / usage))
    return found


def fair_ranks(tree: Sequence[Branch]) -> Mapping[str, int]:
    """Rank of every leaf by name, 0 first; equal leaves share the rank of the first of them."""
    ranks: dict[str, int] = {}
    _walk([list(tree)], ranks)
    return ranks


def _walk(families: Sequence[Sequence[Branch]], ranks: dict[str, int]) -> None:
    """Rank the leaves below these families of siblings, which are walked as one."""
    rated = [pair for family in families for pair in zip(level_factors(family), family, strict=True)]
    for factor in sorted({factor for factor, _ in rated}, reverse=True):
        equal = [branch for found, branch in rated if found == factor]
        first = len(ranks)
        leaves = [branch for branch in equal if not branch.children]
        ranks.update({leaf.name: first for leaf in leaves})
        inner = [branch.children for branch in equal if branch.children]
        if inner:
            _walk(inner, ranks)
