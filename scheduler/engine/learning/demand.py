"""What the last requests say about those to come, and when that is worth a new version.

A table is learned from the forms of the last requests; its prices are solved from what is left of the fleet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from scheduler.engine.columns import WHOLE
from scheduler.engine.demand import MOST_CHURN_MILLI, Demand, Form, FreeCapacity
from scheduler.engine.place.prices import pieces_of
from scheduler.engine.place.shadow_prices import shadow_prices

MOST = (
    10_000  # requests that are looked at; fewer, and those that are rare but large are forgotten in between
)
ENOUGH = 20  # requests; what they look like is worse guessed than learned from so few
UNITS = 10_000  # numbers are brought to this sum, so that equal mixes give equal tables
NEW_FROM = 0.1  # of the requests others, or of the demand over: a new version is worth it
RENEW_EVERY = 0.2  # of the capacity, more or less in use: so are new prices
LOAD = 1.5  # demand to be expected in all, per board of the fleet
LEAST_COMING = 0.02

Seen = Mapping[tuple[Form, bool], int]  # how many of the last requests had this form, and are over or not


def relearned(present: Demand, version: int, requests: Seen, left: FreeCapacity) -> Demand | None:
    """The next demand by the last requests; None: as at present.

    A new one is worth it when the requests look different or are twice as many, more or less of the demand is over,
    or the fleet is fuller or emptier than when the prices were solved. Solves a small linear program then.
    """
    found = seen(version, requests)
    if found is None:
        return None
    # Where much ends, the prices of what is left hardly count.
    moved = abs(left.used_milli - present.used_milli) * (1000 - found.churn_milli) / 1e6
    is_alike = differ(found, present) < NEW_FROM and found.requests < 2 * present.requests
    if present.version and is_alike and moved < RENEW_EVERY:
        return None
    return priced(found, left)


def differ(one: Demand, other: Demand) -> float:
    """How different two demands are, 0..1: the part of the requests that would have to be others, or of the
    demand that would have to be over, whichever is more.
    """
    mixes = one.counts(), other.counts()
    sums = [sum(mix.values()) or 1 for mix in mixes]
    forms = {*mixes[0], *mixes[1]}
    moved = sum(abs(mixes[0].get(f, 0) / sums[0] - mixes[1].get(f, 0) / sums[1]) for f in forms) / 2
    return max(moved, abs(one.churn_milli - other.churn_milli) / 1000)


def seen(version: int, requests: Seen) -> Demand | None:
    """What the last requests look like; None when they are fewer than ENOUGH.

    Its prices are not solved yet (``priced``). Memory of the host is not looked at.
    """
    everything = sum(requests.values())
    if everything < ENOUGH:
        return None
    numbers: Counter[Form] = Counter()
    asked = over = 0
    for (form, is_over), number in requests.items():
        numbers[form._replace(memory=0) if form.memory else form] += number
        asked += form.gpu * number
        over += form.gpu * number * is_over
    rounded = [(form, max(1, round(number * UNITS / everything))) for form, number in sorted(numbers.items())]
    churn = min(over * 1000 // max(asked, 1), MOST_CHURN_MILLI)
    return Demand(version, tuple(rounded), (), churn, requests=everything)


def priced(demand: Demand, left: FreeCapacity) -> Demand:
    """The demand with the price of each size, given what is left and what is still expected to come."""
    pieces = pieces_of(demand.counts())
    coming = max(LOAD * left.capacity - left.used, LEAST_COMING * left.capacity) / WHOLE
    sizes = [size for size, _ in pieces]
    found = shadow_prices(sizes, [number * coming for _, number in pieces], dict(left.free))
    prices = () if found is None else tuple(zip(sizes, found.prices, strict=True))
    return demand._replace(prices=prices, used_milli=left.used_milli)
