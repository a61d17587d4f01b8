"""Whom to refuse although there is room: a class of its own, compared with nothing that may not refuse.

A request is worth its own amount. Where the room that it takes would earn more with the requests still
expected (``outlook`` without the rule that nobody is refused), it is turned away.
"""

from __future__ import annotations

import numpy as np

from scheduler.engine.columns import COUNT, MILLI, WHOLE, Ints
from scheduler.engine.place import prr
from scheduler.engine.place.index import NOWHERE
from scheduler.engine.place.policy import Decider

EXPECTED = 1.4  # demand in all, per board of the fleet: who expects too little refuses too little
LOOK_EVERY = 0.05  # of the fleet's capacity in demand


def play_admitting(decider: Decider, rows: Ints, events: Ints) -> tuple[Ints, Ints]:
    """Like ``Decider.play`` with a ``prr`` decider, but arrivals may be refused: node and boards of each.

    Prices are looked up again with every twentieth of the capacity that was asked for.
    """
    nodes, boards = np.full(len(rows), NOWHERE, np.int64), np.zeros(len(rows), np.int64)
    requests = np.where(events < 0, -events - 1, events)
    wants = decider.wants[rows[requests]]
    asked, capacity = wants[:, MILLI] * wants[:, COUNT], max(int(decider.at.totals[1]), 1)
    came = np.cumsum(np.where(events < 0, 0, asked))
    looks = np.flatnonzero(np.diff(np.floor(came / (LOOK_EVERY * capacity))) > 0) + 1
    for part, amounts in zip(np.split(events, looks), np.split(asked, looks), strict=True):
        refused = unwelcome(decider)[rows[np.where(part < 0, -part - 1, part)]] & (part >= 0)
        decider.replay(rows, part[~refused], nodes, boards)
        decider.at.totals[0] += int(amounts[refused].sum())
    return nodes, boards


def unwelcome(decider: Decider) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which wants are refused now, after renewing the decider's tables. Several boards count as whole ones."""
    found = prr.prospect(decider.tables, decider.at, EXPECTED, may_refuse=True)
    decider.take_tables(prr.repriced(decider.tables, decider.at, found))
    size = np.where(decider.wants[:, COUNT] > 1, WHOLE, decider.wants[:, MILLI])
    if found is None:
        return np.zeros(len(size), np.bool_)
    price = np.zeros(WHOLE + 1)
    price[decider.tables.sizes] = found.prices
    return price[size] > size + 0.5
