"""What a fault of the drill is: drawn as a step, done to the stack, seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tools.drill.fleet import BOARDS
from tools.drill.stack import DrillStack

NODES = tuple(BOARDS)


class NotObserved(Exception):
    """The fault was ordered and nobody saw it: this counts as a failure of the drill."""


@dataclass(frozen=True)
class Step:
    """One fault of a schedule, with everything that was drawn for it."""

    number: int
    fault: str
    node: str
    seconds: float
    rest_s: float

    def __str__(self) -> str:
        return (
            f"{self.number:3} {self.fault:22} {self.node:9} {self.seconds:5.1f} s, then {self.rest_s:.1f} s"
        )


@dataclass(frozen=True)
class FaultOutcome:
    """What was seen of a fault, and since when the stack may recover (monotonic)."""

    seen: str
    since: float
    node: str = ""


Inject = Callable[[DrillStack, Step], FaultOutcome]


@dataclass(frozen=True)
class DrillFault:
    """A kind of fault: what it does in one sentence, how it is done, how often it is drawn."""

    does: str
    inject: Inject
    weight: int = 2
    least_s: float = 0.0
    most_s: float = 0.0
    needs_disk: bool = False
    is_short: bool = True
    needs: str = ""
    rows: tuple[int, ...] = field(default=())
