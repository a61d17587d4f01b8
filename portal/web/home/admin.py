"""The home of a team admin: how the month's budget runs down, who waits and why, who idles, what is wasted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.billing.daily import MonthSoFar, month_so_far
from portal.billing.selectors import currency
from portal.common.errors import NotFound
from portal.idle.selectors import idle_now
from portal.idle.words import evidence_text
from portal.leases.selectors import decisions_waiting, queue
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights, visible_teams
from portal.telemetry.utilisation import idle_cost_by_person
from portal.web.alerts.rows import alerts_of_team
from portal.web.home.months import (
    amount,
    burn_down,
    invoice_url,
    verdict,
)
from portal.web.home.researcher import team_rooms
from portal.web.leases.rows import lease_rows
from portal.web.requests.rows import request_rows

MOST_WAITING, MOST_IDLE, MOST_PEOPLE = 5, 5, 6


@dataclass(frozen=True, slots=True)
class Waste:
    """What one person's leases held and did not use this month."""

    name: str
    idle: str
    percent: int
    share: int


@dataclass(frozen=True, slots=True)
class IdleLease:
    """A running lease that idles, and what it was judged by; ``per_hour`` None is unknown."""

    title: str
    holder: str
    what: str
    evidence: str
    per_hour: Decimal | None
    url: str


def context(request: HttpRequest, rights: Rights, now: datetime) -> dict[str, Any]:
    """Return what the admin of a team begins the day with. Raises NotFound for a team that is not theirs."""
    mine = list(Team.objects.filter(pk__in=rights.teams_with((Role.ADMIN,))).order_by("name"))
    wanted = request.GET.get("team", "")
    team = next((one for one in mine if one.slug == wanted), None if wanted else mine[0])
    if team is None:
        raise NotFound
    below = list(visible_teams(rights, Role.ADMIN).filter(lineage__contains=[team.pk]))
    ids, unit = [one.pk for one in below], currency()
    month = month_so_far(team, below, now=now)
    waiting = list(
        queue().filter(team__in=ids).select_related("team", "author", "flavor__device_model")[:MOST_WAITING]
    )
    return {
        "headline": _headline(team, month, unit),
        "lead": verdict(month, unit),
        "team": team,
        "choices": [(one.name, f"?home=team&team={one.slug}", one is team) for one in mine]
        if len(mine) > 1
        else [],
        "burn": burn_down(month, unit, url=invoice_url(team.slug, month), link=_("Invoice")),
        "rooms": team_rooms([team, *[one for one in below if one.parent_id == team.pk]])[:4],
        "waiting": request_rows(waiting),
        "n_waiting": _count(ids),
        "alerts": alerts_of_team(rights, team, now=now),
        "idle": _idle(rights, team, now),
        "waste": _waste(ids, month),
        "to_decide": decisions_waiting(rights),
        "unit": unit,
    }


def _headline(team: Team, month: MonthSoFar, unit: str) -> str:
    values = {"team": team.name, "spent": amount(month.days.spent), "currency": unit}
    if month.budget is None:
        return _("%(team)s spent %(spent)s %(currency)s this month") % values
    said = _("%(team)s spent %(spent)s of %(budget)s %(currency)s")
    return said % {**values, "budget": amount(month.budget, places=0)}


def _count(ids: list[int]) -> int:
    return queue().order_by().filter(team__in=ids).count()


def _idle(rights: Rights, team: Team, now: datetime) -> list[IdleLease]:
    found = idle_now(rights, team=team, most=MOST_IDLE)
    rows = lease_rows([one.lease for one in found], now=now)
    return [
        IdleLease(row.title, row.holder, row.what, evidence_text(one), row.per_hour, row.url)
        for one, row in zip(found, rows, strict=True)
    ]


def _waste(ids: list[int], month: MonthSoFar) -> list[Waste]:
    found = idle_cost_by_person(ids, since=month.period.starts_at)
    ranked = sorted(found.items(), key=lambda one: -one[1][0])[:MOST_PEOPLE]
    people = User.objects.in_bulk([pk for pk, _cost in ranked])
    most = max((idle for _pk, (idle, _all) in ranked), default=1) or 1
    return [
        Waste(
            str(people[pk]), amount(idle), round(100 * idle / measured) if measured else 0, 100 * idle // most
        )
        for pk, (idle, measured) in ranked
        if idle
    ]
