"""Advice about the size of leases: of one that ran, and for somebody who asks for a flavor again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from portal.accounts.models import User
from portal.advice.models import DismissedAdvice
from portal.advice.sizing import PricedSize, SizeAdvice, SizeVerdict, best_size, may_replace, need_of
from portal.billing.metering import rates_by_model
from portal.catalog.discounts import DiscountWanted, discounts_over
from portal.catalog.models import Flavor
from portal.catalog.pricing import Quote, leases_of, paid_milli, quote_at
from portal.catalog.speed import speeds_of
from portal.common.errors import BerthError, Conflict
from portal.leases.models import Lease
from portal.leases.requests import RequestSpec, check_possible, spec_of
from portal.teams.models import Team
from portal.telemetry.runs import MeasuredRun, runs_of

LAG = timedelta(minutes=2)  # minutes are stored a while after they end
LOOK_BACK = timedelta(days=90)
MOST_LEASES, MOST_READ = 10, 100


def advice_for_lease(lease: Lease, *, now: datetime) -> SizeAdvice | None:
    """Return what is said about the size of a lease, read with team, flavor, its model and request.

    None for one that never ran, parts of a gang and what a lease has grown by: their sizes hang together. Priced for
    the seconds that it ran so far, at the prices in force now.
    """
    if lease.activated_at is None or lease.is_extra or lease.request.nodes != 1:
        return None
    until = lease.ended_at or now
    seconds = max(1, int((until - lease.activated_at).total_seconds()))
    measured_until = max(lease.ended_at or now - LAG, lease.activated_at)
    runs = runs_of({lease.pk: (lease.activated_at, measured_until)})
    asked = replace(
        spec_of(lease.request), count=lease.count, duration_s=seconds, starts_at=None, most_count=0
    )
    return _judged(lease.team, lease.flavor, asked, list(runs.values()), now=now)


def advice_for_request(
    user: User, team: Team, flavor: Flavor, spec: RequestSpec, *, now: datetime
) -> SizeAdvice | None:
    """Return what this person's own earlier leases of a flavor for a team say about asking for it again.

    Those of the same name count where there are any, else all of the flavor: the newest ten of the last 90 days with
    as many units. None where there are none, for gangs and where this person dismissed it.
    """
    if spec.nodes != 1 or is_dismissed(user, flavor):
        return None
    found = Lease.objects.filter(
        user=user, team=team, flavor=flavor, count=spec.count, is_extra=False, request__nodes=1,
        activated_at__isnull=False, ended_at__gte=now - LOOK_BACK,
    )  # fmt: skip
    rows = list(
        found.order_by("-ended_at").values_list("pk", "activated_at", "ended_at", "request__name")[:MOST_READ]
    )
    named = [row for row in rows if spec.name and row[3] == spec.name]
    lives = {
        pk: (since, until) for pk, since, until, _name in (named or rows)[:MOST_LEASES] if since and until
    }
    if not lives:
        return None
    runs = list(runs_of(lives).values())
    return _judged(team, flavor, replace(spec, most_count=0), runs, is_same_work=bool(named), now=now)


def is_dismissed(user: User, flavor: Flavor) -> bool:
    """Say whether a person wants no advice about a flavor."""
    return DismissedAdvice.objects.filter(user=user, flavor=flavor).exists()


def _judged(
    team: Team,
    held: Flavor,
    spec: RequestSpec,
    runs: Sequence[MeasuredRun],
    *,
    is_same_work: bool = False,
    now: datetime,
) -> SizeAdvice:
    need, why_not = need_of(runs, is_same_work=is_same_work)
    advice = SizeAdvice(why_not or SizeVerdict.FITS, need, held, spec.count, spec.duration_s, "")
    if why_not is not None or need.activity is None:
        return advice
    flavors = [
        flavor
        for flavor in Flavor.objects.filter(is_active=True, max_count__gte=spec.count).select_related(
            "device_model"
        )
        if may_replace(flavor, held, need)
    ]
    speeds = speeds_of([held, *flavors])
    quotes = _quotes(team, [held, *flavors], spec, now=now)
    price = quotes.get(held.pk)
    if price is None:
        return replace(advice, verdict=SizeVerdict.NO_PRICE)
    own = PricedSize(held, price.amount_micro, speeds[held.pk])
    others = [
        PricedSize(flavor, quotes[flavor.pk].amount_micro, speeds[flavor.pk])
        for flavor in flavors
        if flavor.pk in quotes
    ]

    def may_ask(flavor: Flavor, stretch: float | None) -> bool:
        """Say whether the team may ask for it, for as long as the same work takes."""
        wanted_s = math.ceil(spec.duration_s * (stretch or 1.0))
        if not flavor.min_duration_s <= wanted_s <= flavor.max_duration_s:
            return False
        try:
            check_possible(team, flavor, spec.count)
        except BerthError:
            return False
        return True

    found = best_size(own, others, need.activity, may_ask=may_ask)
    advice = replace(advice, held=own, currency=price.currency)
    if found is None:
        return advice
    return replace(advice, verdict=SizeVerdict.SMALLER, size=found[0], stretch=found[1])


def _quotes(team: Team, flavors: Sequence[Flavor], spec: RequestSpec, *, now: datetime) -> dict[int, Quote]:
    """Return by flavor what the same would cost, where a price is in force: as many queries for many as for one."""
    begin = (spec.starts_at or now).replace(microsecond=0)
    end = begin + timedelta(seconds=spec.duration_s)
    spans = discounts_over([DiscountWanted(team.pk, spec.is_preemptible, begin, end)])[0]
    rates = rates_by_model(flavor.device_model_id for flavor in flavors)
    found = {}
    for flavor in flavors:
        with suppress(Conflict):
            found[flavor.pk] = quote_at(
                rates[flavor.device_model_id],
                flavor,
                count=spec.units,
                duration_s=spec.duration_s,
                starts_at=begin,
                price_milli=paid_milli(flavor, is_preemptible=spec.is_preemptible),
                spans=spans,
                leases=leases_of(spec.nodes, spec.count),
            )
    return found
