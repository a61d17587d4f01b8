"""Who goes first. One file per policy, one line in ``ORDERS``; copy ``priority_fifo`` for a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scheduler.engine.errors import UnknownPolicy
from scheduler.engine.model import Claim
from scheduler.engine.order.priority_fifo import priority_fifo

Order = Callable[[Iterable[Claim]], list[Claim]]

ORDERS: dict[str, Order] = {
    "priority_fifo": priority_fifo,
}


def order_named(name: str) -> Order:
    """The order policy of that name, or raise UnknownPolicy."""
    try:
        return ORDERS[name]
    except KeyError:
        raise UnknownPolicy("order", name, sorted(ORDERS)) from None
