"""How well boards suit a kind of want beyond having room: better than needed, or in another zone.

A board's figures are its memory, its bandwidth and its class; a figure nobody knows says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler.engine.board import Board
from scheduler.engine.model import PolicyRules
from scheduler.engine.shape import ShapeKind

ELSEWHERE = 0.5  # of an idle board's worth: what it costs to stand outside the zone one would like


def penalties(kind: ShapeKind, boards: Sequence[Board], keep_better: float) -> list[float]:
    """What it costs to use each of the boards that serve a kind, in parts of an idle board's worth.

    ``keep_better`` times the mean over the figures of 1 - least / own, where ``least`` is the smallest
    of the boards that serve the kind; and ``ELSEWHERE`` outside the zone that was wished for.
    """
    devices = [board.device for board in boards]
    figures = [(d.memory_mib, d.bandwidth_gbps or 0, d.compute_class or 0) for d in devices]
    least = [min((f for f in column if f), default=0) for column in zip(*figures, strict=True)]
    costs = []
    for board, own in zip(boards, figures, strict=True):
        beyond = [1 - low / figure for figure, low in zip(own, least, strict=True) if figure]
        surplus = sum(beyond) / len(beyond) if beyond else 0.0
        is_elsewhere = bool(kind.near_zone) and board.node.zone != kind.near_zone
        costs.append(keep_better * surplus + ELSEWHERE * is_elsewhere)
    return costs


def tiers(
    kind: ShapeKind, groups: Iterable[Sequence[Board]], policy: PolicyRules
) -> list[list[Sequence[Board]]]:
    """Groups of boards, one per node, sorted into those that suit the kind equally well, the best first."""
    nodes = list(groups)
    if not policy.keep_better and not policy.keep_empty and not kind.near_zone:
        return [nodes]
    flat = [board for boards in nodes for board in boards]
    cost = dict(zip(flat, penalties(kind, flat, policy.keep_better), strict=True))
    found: dict[float, list[Sequence[Board]]] = {}
    for boards in nodes:
        wake = 0.0 if any(board.use for board in boards) else policy.keep_empty
        found.setdefault(wake + min(cost[board] for board in boards), []).append(boards)
    return [found[worth] for worth in sorted(found)]
