"""What a month would have come to at another price: worked out from its usage records, nothing is written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from django.db.models import Sum

from portal.billing.metering import events_by_lease, pays_minimum
from portal.billing.models import BillingPeriod, RefundRule, UsageRecord
from portal.billing.periods import month_bounds
from portal.billing.refunds import refunded_price
from portal.catalog.models import Discount, Rate
from portal.catalog.pricing import discounted_price, exact_micro, lowered, to_minor
from portal.fleet.models import DeviceModel
from portal.leases.models import Lease


@dataclass(frozen=True, slots=True)
class TeamAtNewPrice:
    """A team's usage of a device model in a month: what it was charged and what it would be, in micro-units.

    Both are rounded to the cent on their own; an invoice rounds its lines together and may differ by a cent.
    """

    slug: str
    name: str
    charged_micro: int
    then_micro: int

    @property
    def more_micro(self) -> int:
        """Return what the team would pay more, negative where it would pay less."""
        return self.then_micro - self.charged_micro


@dataclass(frozen=True, slots=True)
class PriceEffect:
    """A month at another price of a device model, by team, the most affected first, and all together.

    ``period`` is None where the books have no month before this one.
    """

    model: DeviceModel
    period: BillingPeriod | None
    micro_per_hour: int
    micro_per_gib_hour: int
    teams: list[TeamAtNewPrice]
    whole: TeamAtNewPrice


def effect_of_price(
    *,
    model: DeviceModel,
    micro_per_hour: int,
    micro_per_gib_hour: int = 0,
    minimum_micro: int = 0,
    now: datetime,
) -> PriceEffect:
    """Return what the last whole month would have come to with other prices of a whole device and of its memory.

    Preemptible leases, discounts and refunds lower the new price as they lowered the old one; leases that began and
    ended in the month come to ``minimum_micro`` at least, where they would pay it. Adjustments to earlier months and
    notes are left out, and nobody is assumed to use more or less because of the price.
    """
    period = BillingPeriod.objects.filter(ends_at=month_bounds(now)[0]).first()
    used = (
        UsageRecord.objects.filter(period=period, late_for=None, lease__flavor__device_model=model)
        .values_list(
            "team__slug",
            "team__name",
            "micro_per_hour",
            "lease__flavor_id",
            "lease__price_milli",
            "discount_id",
            "refund_id",
            *(["lease_id"] if minimum_micro else []),
        )
        .annotate(Sum("share_milli_seconds"))
        .order_by()
    )
    tried = Rate(micro_per_hour=micro_per_hour, micro_per_gib_hour=micro_per_gib_hour)
    prices = {flavor.pk: tried.price_of(flavor) for flavor in model.flavors.all()}
    discounts, refunds = Discount.objects.in_bulk(), RefundRule.objects.in_bulk()
    sums: dict[tuple[str, str], list[Fraction]] = defaultdict(lambda: [Fraction(0), Fraction(0)])
    by_lease: dict[int, Fraction] = defaultdict(Fraction)
    team_of: dict[int, tuple[str, str]] = {}
    for slug, name, charged, flavor, price_milli, discount, refund, *lease, quantity in used:
        then = discounted_price(lowered(prices[flavor], price_milli), discounts.get(discount))
        of = sums[slug, name]
        of[0] += exact_micro(quantity, charged)
        of[1] += exact_micro(quantity, refunded_price(then, refunds.get(refund)))
        for key in lease:
            by_lease[key] += exact_micro(quantity, refunded_price(then, refunds.get(refund)))
            team_of[key] = (slug, name)
    for key, less in _below(by_lease, minimum_micro, period).items():
        sums[team_of[key]][1] += less
    teams = [TeamAtNewPrice(*of, to_minor(charged), to_minor(then)) for of, (charged, then) in sums.items()]
    teams.sort(key=lambda team: (-abs(team.more_micro), team.name.lower()))
    whole = TeamAtNewPrice("", "", sum(t.charged_micro for t in teams), sum(t.then_micro for t in teams))
    return PriceEffect(model, period, micro_per_hour, micro_per_gib_hour, teams, whole)


def _below(
    costs: Mapping[int, Fraction], minimum_micro: int, period: BillingPeriod | None
) -> dict[int, Fraction]:
    """Return by lease what it lacks to a minimum charge that it would pay, in micro-units; at most three queries."""
    wanted = [key for key, cost in costs.items() if 0 < cost < minimum_micro]
    if not wanted or period is None:
        return {}
    refunded = UsageRecord.objects.filter(lease__in=wanted, refund__isnull=False).values("lease")
    leases = list(
        Lease.objects.filter(
            pk__in=wanted, activated_at__gte=period.starts_at, ended_at__lte=period.ends_at
        ).exclude(pk__in=refunded)
    )
    events = events_by_lease(leases)
    return {ls.pk: minimum_micro - costs[ls.pk] for ls in leases if pays_minimum(ls, events[ls.pk])}
