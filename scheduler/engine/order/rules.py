"""Queue policies by name: an index kernel, how it learns, and its guards. One line each; copy a neighbour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from scheduler.engine import kernel
from scheduler.engine.errors import UnknownPolicy
from scheduler.engine.order import at_start, attained, fifo, learned, remaining, shortest, turn, two_level
from scheduler.engine.order.turn import Care
from scheduler.engine.preempt import Guard

_CARE, _GUARD = Care(), Guard()
NO_FAIRNESS, TREE, GUARANTEES = range(3)


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Order and guards of a queue.

    ``rate`` is the index; scores are index x GPUs^``size_power``. ``curve`` names what is learned ("" =
    nothing), with ``smoothing``. ``changes``: scores move with time, so a pass every minute pays.
    ``knows`` says that it is a yardstick that needs true durations.
    """

    name: str
    rate: Callable[..., Any]
    care: Care = _CARE
    guard: Guard = _GUARD
    size_power: float = 0.0
    curve: str = ""
    smoothing: float = 5.0
    changes: bool = True
    fairness: int = NO_FAIRNESS
    half_life_s: float = 86_400.0
    hysteresis: float = 1.5
    knows: bool = False


_STRICT = Guard(factor=1.0, least_run_s=0.0)
_BLOCKING = Care(blocks=True, preempts=False)
_DEFAULT = QueuePolicy(
    "default",
    learned.rate,
    Care(ageing_s=300.0, ageing_power=2.0, relief=3.0),
    Guard(most_evictions=20),
    size_power=0.8,
    curve="gittins",
    smoothing=10.0,
)
_NO_PREEMPTION = QueuePolicy(
    "default_no_preemption",
    at_start.rate,
    Care(preempts=False, long_from=14_400.0, long_spare=0.047, huge_from=230_400.0, huge_spare=0.11),
    size_power=0.8,
    curve="mean",
    smoothing=3.0,
)
POLICIES: dict[str, QueuePolicy] = {
    "fifo": QueuePolicy("fifo", fifo.rate, _BLOCKING, changes=False),
    "sjf": QueuePolicy("sjf", shortest.rate, _BLOCKING, curve="mean", changes=False, knows=True),
    "srtf": QueuePolicy("srtf", remaining.rate, Care(), _STRICT, curve="mean", knows=True),
    "two_level": QueuePolicy("two_level", two_level.rate, Care(), _STRICT),
    "attained": QueuePolicy(
        "attained", attained.rate, Care(), Guard(factor=2.0, least_run_s=60.0), size_power=1.0
    ),
    "default": _DEFAULT,
    "default_no_preemption": _NO_PREEMPTION,
    "fair_tree": replace(_DEFAULT, name="fair_tree", fairness=TREE),
    "guarantees_first": replace(_DEFAULT, name="guarantees_first", fairness=GUARANTEES),
}


def policy_named(name: str) -> QueuePolicy:
    """The queue policy of that name, or raise UnknownPolicy."""
    try:
        return POLICIES[name]
    except KeyError:
        raise UnknownPolicy("queue", name, sorted(POLICIES)) from None


@cache
def take_turn_of(rate: Callable[..., Any], is_compiled: bool) -> Callable[..., Any]:
    """The pass with the policy's index put in, compiled or plain."""
    name = rate.__module__.rpartition(".")[2]
    made: dict[str, Callable[..., Any]] = {"rate": rate}
    for part in ("score", "score_running", "take_turn"):
        made[part] = kernel.specialise(getattr(turn, part), f"{part}_{name}", **made)
    return kernel.compiled(made["take_turn"]) if is_compiled else made["take_turn"]
