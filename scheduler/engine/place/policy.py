"""Placement policies by name: what each is made of, and the decider that runs one over a fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np

from scheduler.engine import kernel
from scheduler.engine.columns import Columns, Floats, Ints
from scheduler.engine.demand import Demand
from scheduler.engine.errors import UnknownPolicy
from scheduler.engine.place import (
    best_fit,
    binpack,
    dot_product,
    fgd,
    gpu_packing,
    mig,
    node_ratings,
    prr,
    random,
    slices,
    spread,
)
from scheduler.engine.place.classic import LargestNode
from scheduler.engine.place.fill import Groups, Spot
from scheduler.engine.place.statistics import allowed, typical
from scheduler.engine.shape import Shape

COMPILE_FROM = 200  # nodes; below, plain Python answers before the compiler has started


@dataclass(frozen=True, slots=True)
class PlacePolicy:
    """A placement rule: kernels, how its tables are made from what requests look like, and its rule for MIG.

    ``settle`` lets the tables heed how much of the demand is over.
    ``board_worth`` is what an idle board is worth in its costs: the unit of wishes that come on top.
    """

    name: str
    rate: Callable[..., Any]
    tables: Callable[[Demand, Sequence[str], Columns], Any]
    weigh: Callable[..., Any] | None = None
    note: Callable[..., Any] | None = None
    settle: Callable[[Any, Columns], Any] | None = None
    slices: Callable[[Shape, Groups, mig.HeldPeriod | None], list[Spot] | None] = mig.place_mig
    board_worth: float = 100.0


def _scale(demand: Demand, models: Sequence[str], at: Columns) -> LargestNode:
    return LargestNode(float(at.cpu.max(initial=1)), float(np.maximum(at.free, 0).sum(1).max(initial=1)))


def _typical(demand: Demand, models: Sequence[str], at: Columns) -> fgd.TypicalRequests:
    found = typical(demand.counts())
    shapes = [form for form, _ in found]
    return fgd.TypicalRequests(
        cpu=np.array([f.cpu for f in shapes], np.int64),
        milli=np.array([f.milli for f in shapes], np.int64),
        boards=np.array([f.boards for f in shapes], np.int64),
        allowed=allowed(shapes, models),
        share=np.array([share for _, share in found]),
    )


def _prices(demand: Demand, models: Sequence[str], at: Columns) -> prr.Prices:
    return prr.prices(demand, models, at, prr.Weights())


_PRR = PlacePolicy("prr", prr.rate, _prices, prr.weigh, prr.note, prr.heeding_churn, board_worth=1.0)
POLICIES: dict[str, PlacePolicy] = {
    "best_fit": PlacePolicy("best_fit", best_fit.rate, _scale),
    "binpack": PlacePolicy("binpack", binpack.rate, _scale, slices=slices.pack, board_worth=binpack.OPENED),
    "default": _PRR,
    "dot_product": PlacePolicy("dot_product", dot_product.rate, _scale),
    "fgd": PlacePolicy("fgd", fgd.rate, _typical),
    "gpu_packing": PlacePolicy("gpu_packing", gpu_packing.rate, _scale),
    "prr": _PRR,
    "random": PlacePolicy("random", random.rate, _scale),
    "spread": PlacePolicy("spread", spread.rate, _scale, slices=mig.spread),
}


def policy_named(name: str) -> PlacePolicy:
    """The placement policy of that name, or raise UnknownPolicy."""
    try:
        return POLICIES[name]
    except KeyError:
        raise UnknownPolicy("placement", name, sorted(POLICIES)) from None


def no_weigh(at: Columns, want: Ints, tables: Any, memo: node_ratings.Memo) -> None:
    """Marks cost nothing (kernel)."""


def no_note(at: Columns, node: int, tables: Any, memo: node_ratings.Memo, sign: int) -> None:
    """Nothing to remember (kernel)."""


NO_CHANGE = np.zeros((0, len(node_ratings.CHANGE_FIELDS)), np.int64)
KERNELS = ("cost_on", "catch_up", "choose", "count_all", "fill_in", "decide", "take", "play")


@cache
def kernels_of(policy: PlacePolicy, is_compiled: bool) -> dict[str, Callable[..., Any]]:
    """The index's kernels with the policy's rules put in, compiled or plain."""
    if is_compiled:
        return {name: kernel.compiled(function) for name, function in kernels_of(policy, False).items()}
    made: dict[str, Callable[..., Any]] = {
        "rate": policy.rate,
        "weigh": policy.weigh or no_weigh,
        "note": policy.note or no_note,
    }
    for name in KERNELS:
        made[name] = kernel.specialise(getattr(node_ratings, name), f"{name}_{policy.name}", **made)
    return made


class Decider:
    """A fleet, the wants asked of it, and one policy. Not for several threads at once."""

    def __init__(
        self, policy: PlacePolicy, at: Columns, wants: Ints, tables: Any, *, is_compiled: bool | None = None
    ) -> None:
        if is_compiled is None:
            is_compiled = len(at.cpu) >= COMPILE_FROM and kernel.can_compile()
        self.policy = policy
        self.at = at
        self.wants = wants
        self.index = node_ratings.new_index(len(wants), len(at.cpu))
        self.is_compiled = is_compiled
        self.kernels = kernels_of(policy, is_compiled)
        self.take_tables(tables)

    def twin(self) -> Self:
        """The same fleet, wants and tables, apart from this one from now on."""
        other = copy(self)
        other.at = Columns._make(column.copy() for column in self.at)
        other.wants = self.wants.copy()
        other.index = node_ratings.NodeRatings._make(figures.copy() for figures in self.index)
        other.memo = node_ratings.Memo._make(figures.copy() for figures in self.memo)
        return other

    def take_tables(self, tables: Any) -> None:
        """Go by these tables from now on: everything is counted and rated anew."""
        self.tables = tables
        self.memo = node_ratings.new_memo(len(self.at.cpu))
        self.index.seen[:] = -1
        self.kernels["count_all"](self.at, tables, self.memo)

    def decide(self, row: int, changes: Ints = NO_CHANGE) -> tuple[int, int]:
        """The node that the want of this row gets once ``changes`` are written down (see the kernel ``fill_in``), and
        its boards, one bit each; -1 when none has room.
        """
        found: tuple[int, int] = self.kernels["decide"](
            self.at, self.index, self.wants, row, changes, self.tables, self.memo
        )
        return found

    def costs(self, row: int) -> Floats:
        """What the want of this row, decided just now, costs on each node."""
        found: Floats = self.index.cost[row] + self.memo.price[self.index.pick[row] >> 8]
        return found

    def fill_in(self, changes: Ints) -> None:
        """Write down boards that changed, see the kernel."""
        self.kernels["fill_in"](self.at, self.index, changes, self.tables, self.memo)

    def room_for(self, wants: int) -> None:
        """Make room for so many rows of wants."""
        if wants > len(self.wants):
            self.wants = np.concatenate([self.wants, np.zeros_like(self.wants)])
            self.index = node_ratings.grown(self.index)

    def play(self, rows: Ints, events: Ints) -> tuple[Ints, Ints]:
        """Decide arrivals and departures in order: node (-1 refused) and boards (bits) per request."""
        nodes = np.full(len(rows), node_ratings.NOWHERE, np.int64)
        boards = np.zeros(len(rows), np.int64)
        self.replay(rows, events, nodes, boards)
        return nodes, boards

    def replay(self, rows: Ints, events: Ints, nodes: Ints, boards: Ints) -> None:
        """Decide events, and write down the node and boards of each request."""
        self.kernels["play"](
            self.at, self.index, self.wants, self.tables, self.memo, rows, events, nodes, boards
        )
