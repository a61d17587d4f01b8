"""What requests look like, as a placement policy is told: a few forms with their number, and a version.

A decision names the version that it was made with; 0 is the mix of a public trace, used until enough
requests have come to learn from.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from scheduler.engine.place.prices import pieces_of, remember, solve
from scheduler.engine.place.statistics import Form, counted
from scheduler.engine.place.usual import USUAL, USUAL_PRICES

ENOUGH = 200  # requests; on the public traces tables from the first 200 arrivals were as good as from all
MOST = 2_000
UNITS = 1_000  # numbers are brought to this sum, so that equal mixes give equal tables


class Demand(NamedTuple):
    """Forms with their number, and the solved price of each size (see ``place.prices``)."""

    version: int = 0
    forms: tuple[tuple[Form, int], ...] = USUAL
    prices: tuple[tuple[int, float], ...] = USUAL_PRICES

    def counts(self) -> dict[Form, int]:
        """Number by form; from here on its prices need not be solved again in this process."""
        forms: dict[Form, int] = {}
        for form, number in self.forms:
            forms[form] = forms.get(form, 0) + number
        remember(pieces_of(forms), self.prices)
        return forms


USUAL_DEMAND = Demand()


def learned(version: int, forms: Iterable[Form]) -> Demand | None:
    """What these requests look like; None when they are fewer than ENOUGH. Solves a small linear program."""
    numbers = counted(forms)
    everything = numbers.total()
    if everything < ENOUGH:
        return None
    rounded = [(form, max(1, round(number * UNITS / everything))) for form, number in sorted(numbers.items())]
    return Demand(version, tuple(rounded), solve(pieces_of(dict(rounded))))
