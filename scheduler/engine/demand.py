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
USUAL_CHURN_MILLI = 900
MOST_CHURN_MILLI = 999
UNITS = 1_000  # numbers are brought to this sum, so that equal mixes give equal tables


class Demand(NamedTuple):
    """Forms with their number, the solved price of each size (see ``place.prices``), and the churn.

    ``churn_milli`` is the part of the demand that came and is over, in thousandths: where much ends, the
    present cut of a board says little about the next one.
    """

    version: int = 0
    forms: tuple[tuple[Form, int], ...] = USUAL
    prices: tuple[tuple[int, float], ...] = USUAL_PRICES
    churn_milli: int = USUAL_CHURN_MILLI

    def counts(self) -> dict[Form, int]:
        """Number by form; from here on its prices need not be solved again in this process."""
        forms: dict[Form, int] = {}
        for form, number in self.forms:
            forms[form] = forms.get(form, 0) + number
        remember(pieces_of(forms), self.prices)
        return forms


USUAL_DEMAND = Demand()


def differ(one: Demand, other: Demand) -> float:
    """How different two demands are, 0..1: the part of the requests that would have to be others, or of the
    demand that would have to be over, whichever is more.
    """
    mixes = one.counts(), other.counts()
    sums = [sum(mix.values()) or 1 for mix in mixes]
    forms = {*mixes[0], *mixes[1]}
    moved = sum(abs(mixes[0].get(f, 0) / sums[0] - mixes[1].get(f, 0) / sums[1]) for f in forms) / 2
    return max(moved, abs(one.churn_milli - other.churn_milli) / 1000)


def seen(version: int, forms: Iterable[tuple[Form, bool]]) -> Demand | None:
    """What requests look like, from each one's form and whether it is over; None when fewer than ENOUGH.

    Its prices are not solved yet (``priced``).
    """
    known = list(forms)
    numbers = counted(form for form, _ in known)
    everything = numbers.total()
    if everything < ENOUGH:
        return None
    rounded = [(form, max(1, round(number * UNITS / everything))) for form, number in sorted(numbers.items())]
    asked = sum(form.gpu for form, _ in known) or 1
    churn = sum(form.gpu for form, is_over in known if is_over) * 1000 // asked
    return Demand(version, tuple(rounded), (), min(churn, MOST_CHURN_MILLI))


def priced(demand: Demand) -> Demand:
    """The demand with the price of each size; solves a small linear program."""
    return demand._replace(prices=solve(pieces_of(dict(demand.forms))))
