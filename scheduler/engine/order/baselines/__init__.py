"""Orders to measure against: published rules and those that know the future. No policy offers them."""

from __future__ import annotations

from scheduler.engine.order.baselines.attained import Attained, TwoLevel
from scheduler.engine.order.baselines.known import (
    AgedShortestLeft,
    BlockingFifo,
    ShortestFirst,
    ShortestLeft,
)
from scheduler.engine.order.ranking import Order

YARDSTICKS: dict[str, type[Order]] = {
    "blocking_fifo": BlockingFifo,
    "sjf": ShortestFirst,
    "srtf": ShortestLeft,
    "srtf_aged": AgedShortestLeft,
    "two_level": TwoLevel,
    "attained": Attained,
}
