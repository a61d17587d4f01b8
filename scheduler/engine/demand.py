"""What requests look like, as a placement policy is told: a few forms with their number, and a version.

A decision names the version that it was made with; 0 is an installation that has not learned anything yet.
"""

from __future__ import annotations

from typing import NamedTuple

MOST_CHURN_MILLI = 999


class Form(NamedTuple):
    """What one request asks of a node: milli-CPU, MiB, thousandths per board, boards."""

    cpu: int
    memory: int
    milli: int
    boards: int
    models: str  # A|B|C, empty for any

    @property
    def gpu(self) -> int:
        """Thousandths of boards asked for in all."""
        return self.milli * self.boards


class Demand(NamedTuple):
    """Forms with their number, the solved price of each size (see ``place.shadow_prices``), and the churn.

    ``churn_milli`` is the part of the demand that came and is over, in thousandths: where much ends, the
    present cut of a board says little about the next one. ``used_milli`` is how much of the fleet was in use
    when the prices were solved. ``requests`` is how many were counted; 0: the numbers are all there will be.
    """

    version: int = 0
    forms: tuple[tuple[Form, int], ...] = ()
    prices: tuple[tuple[int, float], ...] = ()
    churn_milli: int = 0
    used_milli: int = 0
    requests: int = 0

    @property
    def one(self) -> float:
        """What one request counts among the numbers of the forms; 0 where these are all there will be.

        Before anything was counted one of each size is still to be expected.
        """
        if not self.forms:
            return 1.0
        return sum(number for _, number in self.forms) / self.requests if self.requests else 0.0

    def counts(self) -> dict[Form, int]:
        """Number by form."""
        forms: dict[Form, int] = {}
        for form, number in self.forms:
            forms[form] = forms.get(form, 0) + number
        return forms


class FreeCapacity(NamedTuple):
    """What is left of a fleet: how many boards have each free amount, and what is used of what there is.

    Thousandths of boards.
    """

    free: tuple[tuple[int, int], ...]
    used: int
    capacity: int

    @property
    def used_milli(self) -> int:
        """The part of the fleet that is in use, in thousandths."""
        return min(self.used * 1000 // max(self.capacity, 1), 1000)


UNKNOWN_DEMAND = Demand()
