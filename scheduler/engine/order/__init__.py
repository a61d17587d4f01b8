"""Who goes first: each order hears of every grant, so what it weighs stays right within the turn.

One class per policy, one line in ``ORDERS``; copy a neighbour for a new one.
"""

from __future__ import annotations

from scheduler.engine.errors import UnknownPolicy
from scheduler.engine.order.baselines import YARDSTICKS
from scheduler.engine.order.drf import DominantShare
from scheduler.engine.order.fair import FairTree
from scheduler.engine.order.fixed import Fifo, PriorityFifo, Shortest
from scheduler.engine.order.hybrid import GuaranteesFirst, Hybrid
from scheduler.engine.order.ranking import Order

ORDERS: dict[str, type[Order]] = {
    "fifo": Fifo,
    "priority_fifo": PriorityFifo,
    "fair_tree": FairTree,
    "drf": DominantShare,
    "shortest": Shortest,
    "default": Hybrid,
    "guarantees_first": GuaranteesFirst,
}


def order_named(name: str) -> type[Order]:
    """The order policy or yardstick of that name, or raise UnknownPolicy."""
    found = ORDERS.get(name) or YARDSTICKS.get(name)
    if found is None:
        raise UnknownPolicy("order", name, sorted(ORDERS))
    return found
