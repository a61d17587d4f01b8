"""Which lines of a month hold leases that came to their minimum charge, and what that is."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Max

from portal.billing.models import BillingPeriod, UsageRecord, UsageTotal

# Team, person, flavor, price, and the month that it adjusts as "2026-10", "" for none.
LineOf = tuple[int, int, int, int, str]


def minimums(period: BillingPeriod, team_ids: Iterable[int]) -> dict[LineOf, int]:
    """Return the minimum charge of a lease in micro-units by what makes a line; one query, by an index of its own."""
    rows = (
        UsageRecord.objects.filter(period=period, team__in=list(team_ids), minimum_micro__isnull=False)
        .values_list("team_id", "lease__user_id", "lease__flavor_id", "micro_per_hour", "late_for__month")
        .annotate(minimum=Max("minimum_micro"))
        .order_by()
    )
    return {
        (team, user, flavor, price, f"{late:%Y-%m}" if late else ""): minimum
        for team, user, flavor, price, late, minimum in rows
    }


def line_of(total: UsageTotal) -> LineOf:
    """Return what makes the line of a total."""
    return (total.team_id, total.user_id, total.flavor_id, total.micro_per_hour, str(total.late_for or ""))
