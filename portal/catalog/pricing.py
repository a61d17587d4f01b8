"""What something costs: exact integers, one formula for quote, meter and invoice.

amount in micro-units = share_milli_seconds x micro_per_hour / (1000 x 3600), where
``micro_per_hour`` is the price of a whole device for an hour (docs/billing.md). Where less than the whole
price is paid (``price_milli`` thousandths of it), the hourly price is lowered first, down to a whole micro-unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction

from portal.catalog.models import Flavor, Rate
from portal.common.errors import Conflict
from portal.common.rows import Rows

SHARE_HOUR = 1000 * 3600
MINOR_MICRO = 10_000  # one cent
_RATES = Rows(Rate, "card")


@dataclass(frozen=True, slots=True)
class Quote:
    """A price before asking, in micro-units, rounded to the cent; ``hourly_micro`` at the first rate.

    ``hold_micro`` is the same rounded up: what a wallet holds, so that the price is always covered.
    """

    amount_micro: int
    hold_micro: int
    hourly_micro: int
    currency: str
    rates: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RateInterval:
    """Part of an interval under one rate: whole seconds ``[starts_at, ends_at)``."""

    rate: Rate
    starts_at: datetime
    ends_at: datetime

    @property
    def seconds(self) -> int:
        """Return the length in whole seconds."""
        return int((self.ends_at - self.starts_at).total_seconds())


def exact_micro(share_milli_seconds: int, micro_per_hour: int) -> Fraction:
    """Return the unrounded price in micro-units."""
    return Fraction(share_milli_seconds * micro_per_hour, SHARE_HOUR)


def lowered(micro_per_hour: int, price_milli: int) -> int:
    """Return what so many thousandths of an hourly price are, rounded down to a micro-unit."""
    return micro_per_hour * price_milli // 1000


def to_minor(amount: Fraction) -> int:
    """Round an exact amount in micro-units half up to whole cents, in micro-units."""
    return int((amount / MINOR_MICRO + Fraction(1, 2)) // 1) * MINOR_MICRO


def apportion(parts: Sequence[Fraction]) -> list[int]:
    """Round parts to whole cents so that they add up to their rounded sum (largest remainder)."""
    # Whole numbers over one denominator: thousands of fractions take seconds to add and to sort.
    common = math.lcm(*(part.denominator for part in parts))
    wholes = [part.numerator * (common // part.denominator) for part in parts]
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


def quote(
    flavor: Flavor, *, count: int, duration_s: int, starts_at: datetime, price_milli: int = 1000
) -> Quote:
    """Return what ``count`` units for ``duration_s`` seconds from ``starts_at`` would cost.

    ``price_milli`` is what is paid of the price, in thousandths (see ``paid_milli``).
    """
    begin = starts_at.replace(microsecond=0)
    return _quote(
        stretches(flavor.device_model_id, begin, begin + timedelta(seconds=duration_s)),
        flavor.share_milli * count,
        price_milli,
    )


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
) -> Quote:
    """Return the same from rates at hand, sorted by time."""
    begin = starts_at.replace(microsecond=0)
    parts = cut(rates, begin, begin + timedelta(seconds=duration_s))
    return _quote(parts, flavor.share_milli * count, price_milli)


def _quote(parts: Sequence[RateInterval], share: int, price_milli: int) -> Quote:
    prices = [lowered(p.rate.micro_per_hour, price_milli) for p in parts]
    amount = sum(
        (exact_micro(share * p.seconds, price) for p, price in zip(parts, prices, strict=True)), Fraction(0)
    )
    return Quote(
        amount_micro=to_minor(amount),
        hold_micro=-(-amount // MINOR_MICRO) * MINOR_MICRO,
        hourly_micro=int(exact_micro(share * 3600, prices[0])),
        currency=parts[0].rate.card.currency,
        rates=tuple(p.rate.pk for p in parts),
    )
