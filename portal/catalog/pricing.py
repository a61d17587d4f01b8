"""What something costs: exact integers, one formula for quote, meter and invoice.

amount in micro-units = share_milli_seconds x micro_per_hour / (1000 x 3600), where
``micro_per_hour`` is the price of a whole device for an hour (docs/billing.md), with that of its memory where the
rate has one (``Rate.price_of``). Where less than the whole price is paid (``price_milli`` thousandths of it), the
hourly price is lowered first, down to a whole micro-unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction

from portal.catalog.discounts import DiscountSpan, DiscountWanted, discounts_over
from portal.catalog.models import Discount, Flavor, Rate
from portal.common.errors import Conflict
from portal.common.rows import Rows

SHARE_HOUR = 1000 * 3600
MINOR_MICRO = 10_000  # one cent
_RATES = Rows(Rate, "card")


@dataclass(frozen=True, slots=True)
class Quote:
    """A price before asking, in micro-units, rounded to the cent; ``hourly_micro`` at the first rate.

    ``hold_micro`` is the same rounded up: what a wallet holds, so that the price is always covered.
    ``usual_micro`` is what it would be without ``discounts``, in the order in which they begin to apply.
    ``minimum_micro`` is the minimum charge that it comes to, 0 where it costs more than that anyway.
    """

    amount_micro: int
    hold_micro: int
    hourly_micro: int
    currency: str
    rates: tuple[int, ...]
    usual_micro: int
    discounts: tuple[Discount, ...] = ()
    minimum_micro: int = 0


@dataclass(frozen=True, slots=True)
class RateInterval:
    """Part of an interval under one rate and discount: whole seconds ``[starts_at, ends_at)``."""

    rate: Rate
    starts_at: datetime
    ends_at: datetime
    discount: Discount | None = None

    @property
    def seconds(self) -> int:
        """Return the length in whole seconds."""
        return int((self.ends_at - self.starts_at).total_seconds())

    def price(self, flavor: Flavor, price_milli: int) -> int:
        """Return what is paid of the hourly price of a whole device that is lent as a flavor, in micro-units."""
        return discounted_price(lowered(self.rate.price_of(flavor), price_milli), self.discount)


def exact_micro(share_milli_seconds: int, micro_per_hour: int) -> Fraction:
    """Return the unrounded price in micro-units."""
    return Fraction(share_milli_seconds * micro_per_hour, SHARE_HOUR)


def lowered(micro_per_hour: int, price_milli: int) -> int:
    """Return what so many thousandths of an hourly price are, rounded down to a micro-unit."""
    return micro_per_hour * price_milli // 1000


def discounted_price(micro_per_hour: int, discount: Discount | None) -> int:
    """Return an hourly price less a discount, rounded down to a micro-unit."""
    return micro_per_hour if discount is None else lowered(micro_per_hour, 1000 - discount.off_milli)


def to_minor(amount: Fraction) -> int:
    """Round an exact amount in micro-units half up to whole cents, in micro-units."""
    return int((amount / MINOR_MICRO + Fraction(1, 2)) // 1) * MINOR_MICRO


def apportion(parts: Sequence[Fraction]) -> list[int]:
    """Round parts to whole cents so that they add up to their rounded sum (largest remainder)."""
    common = math.lcm(*(part.denominator for part in parts))
    return apportion_over([part.numerator * (common // part.denominator) for part in parts], common)


def apportion_over(wholes: Sequence[int], common: int) -> list[int]:
    """Do the same for parts that are ``wholes`` over one denominator: thousands of fractions take seconds to add."""
    floors = [whole // (common * MINOR_MICRO) for whole in wholes]
    short = to_minor(Fraction(sum(wholes), common)) // MINOR_MICRO - sum(floors)
    by_remainder = sorted(range(len(wholes)), key=lambda i: (-(wholes[i] % (common * MINOR_MICRO)), i))
    for index in by_remainder[:short]:
        floors[index] += 1
    return [cents * MINOR_MICRO for cents in floors]


def stretches(device_model_id: int, starts_at: datetime, ends_at: datetime) -> list[RateInterval]:
    """Cut an interval of whole seconds where the rate changes; raises Conflict where no rate is in force."""
    rates = _RATES.where(
        '"card".is_default AND it.device_model_id = %s AND it.valid && tstzrange(%s, %s) ORDER BY it.valid',
        [device_model_id, starts_at, ends_at],
    )
    return cut(rates, starts_at, ends_at)


def cut(rates: Sequence[Rate], starts_at: datetime, ends_at: datetime) -> list[RateInterval]:
    """Cut an interval along rates sorted by time; raises Conflict when they leave a gap."""
    found = cut_known(rates, starts_at, ends_at)
    at = found[-1].ends_at if found else starts_at
    if at < ends_at:
        raise Conflict(f"No rate is in force for this device from {at:%Y-%m-%d %H:%M}. Finance must add one.")
    return found


def cut_known(rates: Sequence[Rate], starts_at: datetime, ends_at: datetime) -> list[RateInterval]:
    """Cut an interval along rates sorted by time up to the first gap that they leave."""
    found: list[RateInterval] = []
    at = starts_at
    for rate in rates:
        upper = rate.valid.upper
        until = ends_at if upper is None else min(upper, ends_at)
        if at < until and (rate.valid.lower is None or rate.valid.lower <= at):
            found.append(RateInterval(rate, at, until))
            at = until
    return found


def discounted(parts: Sequence[RateInterval], spans: Sequence[DiscountSpan]) -> list[RateInterval]:
    """Cut parts where discounts begin and end; ``spans`` are in order and cover them, none where there are none."""
    if not spans:
        return list(parts)
    return [
        RateInterval(
            part.rate, max(part.starts_at, span.starts_at), min(part.ends_at, span.ends_at), span.discount
        )
        for part in parts
        for span in spans
        if span.starts_at < part.ends_at and part.starts_at < span.ends_at
    ]


def quote(
    flavor: Flavor,
    *,
    team_id: int,
    count: int,
    duration_s: int,
    starts_at: datetime,
    price_milli: int = 1000,
    is_preemptible: bool = False,
    leases: tuple[int, int] = (0, 0),
) -> Quote:
    """Return what ``count`` units for ``duration_s`` seconds from ``starts_at`` would cost a team.

    ``price_milli`` is what is paid of the price, in thousandths (see ``paid_milli``). ``leases`` is as how many leases
    they begin, at least and at most: each comes to the minimum charge. None begins where a lease is extended.
    """
    begin = starts_at.replace(microsecond=0)
    end = begin + timedelta(seconds=duration_s)
    spans = discounts_over([DiscountWanted(team_id, is_preemptible, begin, end)])[0]
    parts = discounted(stretches(flavor.device_model_id, begin, end), spans)
    return _quote(parts, flavor, count, price_milli, leases)


def leases_of(nodes: int, count: int) -> tuple[int, int]:
    """Return as how many leases a request begins, at least and at most: one on each of its nodes (0: as few as fit)."""
    return (nodes, nodes) if nodes else (1, count)


def paid_milli(flavor: Flavor, *, is_preemptible: bool) -> int:
    """Return what is paid of the price, in thousandths: less where the lease may be preempted."""
    return flavor.preemptible_milli if is_preemptible else 1000


def quote_at(
    rates: Sequence[Rate],
    flavor: Flavor,
    *,
    count: int,
    duration_s: int,
    starts_at: datetime,
    price_milli: int = 1000,
    spans: Sequence[DiscountSpan] = (),
    leases: tuple[int, int] = (0, 0),
) -> Quote:
    """Return the same from rates at hand, sorted by time, and the discounts of all of that time."""
    begin = starts_at.replace(microsecond=0)
    parts = cut(rates, begin, begin + timedelta(seconds=duration_s))
    return _quote(discounted(parts, spans), flavor, count, price_milli, leases)


def _quote(
    parts: Sequence[RateInterval], flavor: Flavor, count: int, price_milli: int, leases: tuple[int, int]
) -> Quote:
    share = flavor.share_milli * count
    amount = sum((exact_micro(share * p.seconds, p.price(flavor, price_milli)) for p in parts), Fraction(0))
    usual = sum(
        (exact_micro(share * p.seconds, lowered(p.rate.price_of(flavor), price_milli)) for p in parts),
        Fraction(0),
    )
    # What is free stays free. The more leases the units are split into, the more of them may come to their minimum.
    least = parts[0].rate.minimum_micro if amount else 0
    minimum = least * leases[0] if amount < least * leases[0] else 0
    hold = max(amount, Fraction(least * leases[1]))
    amount, usual = max(amount, Fraction(minimum)), max(usual, Fraction(minimum))
    return Quote(
        amount_micro=to_minor(amount),
        hold_micro=-(-hold // MINOR_MICRO) * MINOR_MICRO,
        hourly_micro=int(exact_micro(share * 3600, parts[0].price(flavor, price_milli))),
        currency=parts[0].rate.card.currency,
        rates=tuple(dict.fromkeys(p.rate.pk for p in parts)),
        usual_micro=to_minor(usual),
        discounts=tuple(dict.fromkeys(p.discount for p in parts if p.discount is not None)),
        minimum_micro=minimum,
    )
