"""The home of finance: the month so far against budget and month before, top teams, exceptions before the close."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.billing.daily import MonthSoFar, month_so_far
from portal.billing.models import BillingPeriod, PeriodState, UsageTotal
from portal.billing.selectors import currency
from portal.budgets.services import monthly_amounts
from portal.common.sql import fetch
from portal.leases.states import LeaseState
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights, visible_teams
from portal.web.home.months import (
    amount,
    burn_down,
    by_day,
    invoice_url,
    name_of,
    top_teams,
    verdict,
)
from portal.web.home.troubles import Trouble

# Leases that have ended and wait for their usage, and models that are offered without a price now.
_OPEN_BOOKS = f"""
SELECT (SELECT count(*) FROM leases_lease WHERE NOT is_metered AND activated_at IS NOT NULL
           AND state = '{LeaseState.ENDED}' AND clean_at < %(late)s::timestamptz - interval '10 minutes'),
       (SELECT string_agg(DISTINCT m.name, ', ') FROM fleet_devicemodel m
          JOIN catalog_flavor f ON f.device_model_id = m.id
         WHERE f.is_active AND NOT EXISTS (SELECT 1 FROM catalog_rate r JOIN catalog_ratecard c ON c.id = r.card_id
               WHERE c.is_default AND r.device_model_id = m.id AND r.valid @> %(late)s::timestamptz))
"""  # noqa: S608 (our own SQL)


@dataclass(frozen=True, slots=True)
class TeamSpend:
    """A team in the ranking; ``change`` against the same full days of the month before, "" where there is none."""

    name: str
    css: str
    spent: str
    share: int
    change: str
    is_more: bool
    url: str


def context(_request: HttpRequest, rights: Rights, now: datetime) -> dict[str, Any]:
    """Return the running month of the organisation as finance looks at it."""
    teams = list(visible_teams(rights, Role.FINANCE))
    root = next((team for team in teams if team.parent_id is None), teams[0])
    month = month_so_far(root, teams, now=now)
    unit, names = currency(), {team.pk: team.name for team in teams}
    period_url = reverse("web:period", args=[f"{month.days.first:%Y-%m}"])
    return {
        "headline": _headline(month, unit),
        "lead": verdict(month, unit),
        "burn": burn_down(month, unit, url=period_url, link=_("The month's invoices")),
        "by_day": by_day(month, names, unit, url=reverse("web:teams"), link=_("Teams")),
        "ranking": _ranking(month, teams),
        "total": amount(month.days.spent),
        "total_change": _change(
            sum(sum(days[: month.days.full_days]) for days in month.days.by_team.values()),
            sum(month.same_days_before.values()),
        ),
        "unit": unit,
        "exceptions": list(_exceptions(month, teams, now)),
        "period_url": period_url,
        "month_name": name_of(month),
    }


def _headline(month: MonthSoFar, unit: str) -> str:
    values = {"month": name_of(month), "spent": amount(month.days.spent), "currency": unit}
    if month.budget is None:
        return _("%(month)s so far: %(spent)s %(currency)s") % values
    said = _("%(month)s so far: %(spent)s of %(budget)s %(currency)s")
    return said % {**values, "budget": amount(month.budget, places=0)}


def _change(now: int, before: int) -> str:
    """Return a change in whole percent with its sign, "" where nothing was there before."""
    if before <= 0:
        return ""
    percent = round(100 * (now - before) / before)
    return f"{'+' if percent > 0 else '−' if percent < 0 else '±'}{abs(percent)} %"


def _ranking(month: MonthSoFar, teams: list[Team]) -> list[TeamSpend]:
    by_pk, before = {team.pk: team for team in teams}, month.same_days_before
    ranked = top_teams(month, most=8)
    most = sum(month.days.by_team[ranked[0]]) if ranked else 1
    rows = []
    for number, pk in enumerate(ranked, start=1):
        spent = sum(month.days.by_team[pk])
        change = _change(sum(month.days.by_team[pk][: month.days.full_days]), before.get(pk, 0))
        rows.append(
            TeamSpend(
                name=by_pk[pk].name,
                css=f"plot-{number}" if number <= 5 else "plot-rest",
                spent=amount(spent),
                share=100 * spent // most,
                change=change,
                is_more=change.startswith("+"),
                url=invoice_url(by_pk[pk].slug, month),
            )
        )
    return rows


def _exceptions(month: MonthSoFar, teams: list[Team], now: datetime) -> Iterator[Trouble]:
    """Yield what finance has to look at before a month can be closed; the full check is on the month's page."""
    due = (
        BillingPeriod.objects.exclude(state=PeriodState.CLOSED).filter(ends_at__lte=now).order_by("starts_at")
    )
    for period in due[:3]:
        name = str(period)
        yield Trouble(
            _("%(month)s is over and not closed") % {"month": name},
            _("Look at its checklist, then close it."),
            "bad", "calendar", reverse("web:period", args=[name]), _("Check"), period.ends_at,
        )  # fmt: skip
    ((unmetered, unpriced),) = fetch(_OPEN_BOOKS, {"late": now})
    if unmetered:
        yield Trouble(
            ngettext("One lease that ended has no usage yet", "%(n)d leases that ended have no usage yet", unmetered)
            % {"n": unmetered},
            _("The month's page says which and why."),
            "bad", "gauge", reverse("web:period", args=[f"{month.days.first:%Y-%m}"]), _("Check"),
        )  # fmt: skip
    if unpriced:
        yield Trouble(
            _("No price is in force for %(models)s") % {"models": unpriced},
            _("Their leases are held and cannot be billed."),
            "bad", "tag", reverse("web:rates"), _("Set a price"),
        )  # fmt: skip
    below = dict.fromkeys(month.days.by_team, 0)
    for team in teams:
        spent = sum(month.days.by_team[team.pk])
        for pk in team.lineage:
            if pk in below:
                below[pk] += spent
    bare = [team for team in teams if not team.cost_centre and any(month.days.by_team[team.pk])]
    if bare:
        yield Trouble(
            ngettext("One team that spends has no cost centre", "%(n)d teams that spend have no cost centre", len(bare))
            % {"n": len(bare)},
            ", ".join(team.name for team in bare[:4]),
            "warn", "building", reverse("web:team", args=[bare[0].slug]), _("Open"),
        )  # fmt: skip
    yield from _used_up(teams, below, now)
    late = UsageTotal.objects.filter(period=month.period).exclude(late_for=None).count()
    if late:
        yield Trouble(
            ngettext("One line adjusts an earlier month", "%(n)d lines adjust earlier months", late) % {"n": late},
            _("Their usage became known after that month had closed."),
            "warn", "history", reverse("web:period", args=[f"{month.days.first:%Y-%m}"]), _("Open"),
        )  # fmt: skip


def _used_up(teams: list[Team], below: dict[int, int], now: datetime) -> Iterator[Trouble]:
    """Yield the budgets of which more than nine tenths are spent; ``below``: by team, those below it included."""
    budgets = monthly_amounts(below, now)
    parents = {team.parent_id for team in teams}
    for team in teams:
        budget = budgets.get(team.pk)
        if budget and below[team.pk] * 10 > budget * 9:
            percent = 100 * below[team.pk] // budget
            yield Trouble(
                (
                    _("%(team)s, its teams included, has used %(n)d %% of its budget")
                    if team.pk in parents
                    else _("%(team)s has used %(n)d %% of its budget")
                )
                % {"team": team.name, "n": percent},
                _("%(spent)s of %(budget)s") % {
                    "spent": amount(below[team.pk]), "budget": amount(budget, places=0),
                },
                "bad" if percent >= 100 else "warn", "coin", reverse("web:team_budget", args=[team.slug]), _("Open"),
            )  # fmt: skip
