"""MIG slices where they break up the least room: whole blocks left over, for as long as it lasts.

A board is worth its free blocks: how many singles, pairs, halves and whole boards still fit, one point
each (``Geometry.worth``). A slice costs the points its board loses. Knowing from when until when the
slice stays, and when its neighbours end at the latest, the cost is the loss added up over that time:
blocks that a neighbour would have kept broken anyway cost nothing. Of equal boards the fullest is taken,
then the first. ``docs/mig.md`` has what was measured, and what else was tried.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from scheduler.engine.board import Board
from scheduler.engine.geometry import Geometry
from scheduler.engine.place.fill import Groups, Spot
from scheduler.engine.shape import Shape

# With durations every board with room is looked at up to this number; of more, the cheapest by masks alone.
LOOKED_AT = 64
OPEN = ("", "mig")
# Over time each slice that is free beside the new one costs such a part of a block: fuller boards win ties.
FULLER = 1000

Rule = Callable[[Geometry, int, int], int]
Ends = Sequence[tuple[float, int]]


class HeldPeriod(NamedTuple):
    """From when until when a slice is held at the latest, in seconds since 1970."""

    begins: float
    ends: float


class BestStart(NamedTuple):
    """The best start of a profile beside one mask, its bits and what it costs."""

    cost: int
    start: int
    bits: int


class BestStarts(dict[int, BestStart | None]):
    """The best start of one profile for every mask that was asked; None where it does not fit."""

    def __init__(self, geometry: Geometry, profile: str, rule: Rule) -> None:
        super().__init__()
        self._geometry = geometry
        self._profile = profile
        self._rule = rule

    def __missing__(self, mask: int) -> BestStart | None:
        geometry, profile = self._geometry, self._profile
        units = geometry.units(profile, mask)
        choices = [
            (self._rule(geometry, mask, span.bits), -geometry.future(mask | span.bits), span)
            for span in geometry.spans[profile]
            # One unit fewer, not two: several units of one claim must all find their place.
            if not span.bits & mask and geometry.units(profile, mask | span.bits) == units - 1
        ]
        move = None
        if choices:
            cost, _, span = min(choices, key=lambda one: (one[0], one[1], one[2].start))
            move = BestStart(cost, span.start, span.bits)
        self[mask] = move
        return move

    @cached_property
    def least(self) -> float:
        """The least cost beside any mask."""
        moves = [self[mask] for mask in range(self._geometry.full + 1)]
        return min((move.cost for move in moves if move is not None), default=math.inf)


@lru_cache(maxsize=2048)
def moves_of(geometry: Geometry, profile: str, rule: Rule) -> BestStarts:
    """The shared table of best starts for a profile on one kind of board under a rule."""
    return BestStarts(geometry, profile, rule)


def blocks_lost(geometry: Geometry, mask: int, bits: int) -> int:
    """The blocks a slice costs its board, the fullest board first among equals."""
    lost = geometry.worth[mask] - geometry.worth[mask | bits]
    return lost * (geometry.grid + 1) - mask.bit_count()


def positions_lost(geometry: Geometry, mask: int, bits: int) -> int:
    """The legal positions of all profiles that a slice takes away: the published "least loss" rule."""
    return geometry.future(mask) - geometry.future(mask | bits)


def slices_taken(geometry: Geometry, mask: int, bits: int) -> int:
    """How full the board is: the emptiest board first."""
    return mask.bit_count()


def place_mig(shape: Shape, groups: Groups, term: HeldPeriod | None = None) -> list[Spot] | None:
    """The placement of all units on one node that breaks up the least, or None when no node has room.

    ``term`` says how long the units stay; without it only what is taken now counts.
    """
    if term is None or shape.wanted != 1:
        return _place(shape, groups, blocks_lost)
    return _place_for(shape.kind.profile, groups, term)


def least_loss(shape: Shape, groups: Groups, term: HeldPeriod | None = None) -> list[Spot] | None:
    """The placement that leaves the most legal positions, for comparison; the term is not used."""
    return _place(shape, groups, positions_lost)


def spread(shape: Shape, groups: Groups, term: HeldPeriod | None = None) -> list[Spot] | None:
    """The placement on the emptiest boards, for comparison; the term is not used."""
    return _place(shape, groups, slices_taken)


def _place(shape: Shape, groups: Groups, rule: Rule) -> list[Spot] | None:
    if shape.wanted == 1:
        best = min(_rated(shape.kind.profile, groups, rule, enough=1), key=_cost, default=None)
        return None if best is None else [(best[1], best[0].start)]
    found: list[Spot] | None = None
    least = 0
    for boards in groups:
        tried = _on_node(boards, shape, rule)
        if tried is not None and (found is None or tried[0] < least):
            least, found = tried
    return found


def _cost(rated: tuple[BestStart, Board]) -> int:
    return rated[0].cost


def _rated(profile: str, groups: Groups, rule: Rule, enough: int) -> Iterator[tuple[BestStart, Board]]:
    """The boards with room for one unit, each with its best start, in the order of the boards.

    Of many boards no more are looked at once ``enough`` were found that no board could better.
    """
    geometry: Geometry | None = None
    is_many = sum([len(boards) for boards in groups]) > LOOKED_AT
    for boards in groups:
        for board in boards:
            if board.geometry is not geometry:
                geometry = board.geometry
                moves = moves_of(geometry, profile, rule)
                perfect = moves.least if is_many else -math.inf
            move = moves[board.mask]
            if move is not None and board.use in OPEN and geometry.most(profile, board.counts):
                yield move, board
                if move.cost <= perfect:
                    enough -= 1
                    if not enough:
                        return


def _on_node(boards: Sequence[Board], shape: Shape, rule: Rule) -> tuple[int, list[Spot]] | None:
    """Unit after unit where it costs least on one node, and the sum of the costs; None without room."""
    profile = shape.kind.profile
    masks = [board.mask for board in boards]
    left = [board.geometry.most(profile, board.counts) if board.use in OPEN else 0 for board in boards]
    tables = [moves_of(board.geometry, profile, rule) for board in boards]
    spots: list[Spot] = []
    total = 0
    for _ in range(shape.wanted):
        best: tuple[int, int, BestStart] | None = None
        for at, mask in enumerate(masks):
            move = tables[at][mask] if left[at] else None
            if move is not None and (best is None or move.cost < best[0]):
                best = (move.cost, at, move)
        if best is None:
            return None
        cost, at, move = best
        total += cost
        masks[at] |= move.bits
        left[at] -= 1
        spots.append((boards[at], move.start))
    return total, spots


class FreeStarts(dict[int, tuple[tuple[int, list[float]], ...]]):
    """The free starts of a profile for every mask that was asked, each with the blocks it costs.

    A start comes with a list: at each mask, the blocks lost there. The start that blocks the least on an
    empty board comes first, so that it wins where all cost the same.
    """

    def __init__(self, geometry: Geometry, profile: str) -> None:
        super().__init__()
        spans = sorted(geometry.spans[profile], key=lambda span: (-geometry.future(span.bits), span.start))
        self._all = [
            (span, [_lost(geometry, mask, span.bits) for mask in range(geometry.full + 1)]) for span in spans
        ]

    def __missing__(self, mask: int) -> tuple[tuple[int, list[float]], ...]:
        free = tuple((span.start, lost) for span, lost in self._all if not span.bits & mask)
        self[mask] = free
        return free


def _lost(geometry: Geometry, mask: int, bits: int) -> float:
    """Never below zero, so that adding up may stop at the least cost found before."""
    lost = geometry.worth[mask] - geometry.worth[mask | bits]
    return lost + (geometry.grid - mask.bit_count()) / FULLER


@lru_cache(maxsize=512)
def choices_of(geometry: Geometry, profile: str) -> FreeStarts:
    """The shared table of free starts for a profile on one kind of board."""
    return FreeStarts(geometry, profile)


def _place_for(profile: str, groups: Groups, term: HeldPeriod) -> list[Spot] | None:
    """One unit where it breaks up the least room over its term."""
    best: Spot | None = None
    least = math.inf
    geometry: Geometry | None = None
    for boards in _short_list(profile, groups):
        for board in boards:
            if board.geometry is not geometry:
                geometry = board.geometry
                choices = choices_of(geometry, profile)
            free = choices[board.mask]
            if not free or board.use not in OPEN:
                continue
            periods = _periods(board.mask, board.ends, term)
            for start, lost in free:
                cost = 0.0
                for seconds, mask in periods:
                    cost += seconds * lost[mask]
                    if cost >= least:
                        break
                else:
                    if geometry.most(profile, board.counts):
                        best, least = (board, start), cost
    return None if best is None else [best]


def _short_list(profile: str, groups: Groups) -> Groups:
    """All boards where they are few; of many, those that cost the least by masks alone."""
    if sum([len(boards) for boards in groups]) <= LOOKED_AT:
        return groups
    nearest = heapq.nsmallest(LOOKED_AT, _rated(profile, groups, blocks_lost, LOOKED_AT), key=_cost)
    return [[board for _, board in nearest]]


def _periods(mask: int, ends: Ends, term: HeldPeriod) -> list[tuple[float, int]]:
    """What is taken during a term when nothing new comes: (seconds, mask) one after the other.

    A slice that should have ended already counts as gone.
    """
    periods = []
    now, until = term
    for end, bits in ends:
        if end > now:
            if end >= until:
                break
            periods.append((end - now, mask))
            now = end
        mask &= ~bits
    periods.append((until - now, mask))
    return periods
