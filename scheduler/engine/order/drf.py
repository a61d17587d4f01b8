"""Dominant-resource fairness over the team tree (Ghodsi et al., NSDI 2011).

A branch's dominant share is the largest part it holds of any resource, over its entitlement among its
siblings. At each level the branch with the smallest goes first, then the same below it; equals go by time
queued. Resources are the memory slices of each device model (a whole board is all of its slices, a share of a
board its part of them), CPU, and host memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from scheduler.engine.model import Claim, Grant, PolicyRules, Snapshot
from scheduler.engine.order.ranking import Heaped
from scheduler.engine.order.tree import Branch, TeamTree

CPU, MEMORY = "cpu", "memory"
Used = Counter[str]


class DominantShare:
    """Who holds least of what it holds most of goes first."""

    by_priority: ClassVar[bool] = True
    blocks: ClassVar[bool] = False

    def __init__(self, snapshot: Snapshot, policy: PolicyRules) -> None:
        self._tree = TeamTree(snapshot.quotas)
        self._grid = {device.id: (f"slices of {device.model}", device.grid) for device in snapshot.devices}
        self._capacity = _capacity(snapshot)
        self._used: dict[Branch, Used] = {}
        self._dominant: dict[Branch, float] = {}
        self._chains: dict[Branch, tuple[Branch, ...]] = {}
        holders = {lease.lease_id: (lease.team_id, lease.user_id) for lease in snapshot.running}
        for claim in snapshot.queue:
            self._tree.leaf(claim.team_id, claim.user_id)
        for held in snapshot.held:
            if held.is_host:
                continue  # its shares are counted one by one
            team_id, user_id = holders.get(held.lease_id or 0, (held.team_id, 0))
            leaf = self._tree.leaf(team_id, user_id)
            self._count(
                leaf,
                self._taken(held.device_id, held.size, held.share_milli),
                held.cpu_milli,
                held.host_memory_mib,
            )

    def ranking(self, claims: Sequence[Claim]) -> Heaped:
        """By dominant share as of now, the largest first levels of the tree before the smaller."""
        leaves = {claim.id: self._tree.leaf(claim.team_id, claim.user_id) for claim in claims}
        self._chains.clear()
        return Heaped(
            claims, lambda claim: leaves[claim.id], lambda claim: 0, lambda leaf, _: self._key(leaf)
        )

    def note(self, claim: Claim, grant: Grant) -> None:
        """Count what the grant holds."""
        leaf = self._tree.leaf(claim.team_id, claim.user_id)
        for slot in grant.slots:
            taken = self._taken(slot.device_id, slot.size, slot.share_milli)
            self._count(leaf, taken, slot.cpu_milli, slot.host_memory_mib)

    def _key(self, leaf: Branch) -> tuple[float, ...]:
        chain = self._chains.get(leaf)
        if chain is None:
            # An only child is in front of everybody with the same figure, so it need not be looked at.
            levels = [branch for branch in leaf.climb() if branch.part < 1.0]
            chain = self._chains[leaf] = tuple(levels[::-1])
        return tuple([self._dominant.get(branch, 0.0) / branch.part for branch in chain])

    def _taken(self, device_id: int, size: int, share_milli: int) -> tuple[str, int]:
        """Which resource, and how many thousandths of a slice of it."""
        name, grid = self._grid.get(device_id, ("", 0))
        return name, size * 1000 if size else share_milli * grid

    def _count(self, leaf: Branch, taken: tuple[str, int], cpu_milli: int, memory_mib: int) -> None:
        name, amount = taken
        for branch in leaf.climb():
            used = self._used.setdefault(branch, Counter())
            for resource, more in ((name, amount), (CPU, cpu_milli), (MEMORY, memory_mib)):
                whole = self._capacity.get(resource, 0)
                if more and whole:
                    used[resource] += more
                    self._dominant[branch] = max(self._dominant.get(branch, 0.0), used[resource] / whole)


def _capacity(snapshot: Snapshot) -> Used:
    """All there is of each resource; what is unknown of a node adds nothing."""
    found: Used = Counter()
    for device in snapshot.devices:
        found[f"slices of {device.model}"] += device.grid * 1000
    for node in snapshot.nodes:
        found[CPU] += node.cpu_milli or 0
        found[MEMORY] += node.memory_mib or 0
    return found
