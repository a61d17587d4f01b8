"""The home of those who ask: my leases, my queue, my teams' room, and what happens next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.billing.selectors import currency, period_of, team_spend
from portal.catalog.first_start import progress
from portal.fleet.models import HealthEvent, Node
from portal.fleet.selectors import ONLINE, node_state
from portal.leases.models import Lease, LeaseRequest
from portal.leases.seats import seats_ahead
from portal.leases.selectors import bookings_of, decisions_waiting, live_leases_of, visible_requests
from portal.leases.states import RequestState
from portal.notifications.models import Notification
from portal.quotas.models import Quota
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights, visible_teams
from portal.telemetry.processes import orphans_by_node
from portal.web.availability import strip, usual_sizes
from portal.web.figures import gpus, money, what_text
from portal.web.leases.rows import LeaseRow, lease_rows
from portal.web.notifications.rows import notification_rows
from portal.web.requests.rows import RequestRow, request_rows
from portal.web.setup import runs_organisation
from portal.web.workshops.rows import own_seat_row

MOST_LEASES, MOST_WAITING, MOST_NEWS, MOST_TEAMS, MOST_SIZES = 12, 10, 5, 4, 6
WAITING = (RequestState.QUEUED, RequestState.AWAITING_APPROVAL)


@dataclass(frozen=True)
class TeamRoom:
    """A team's quota as a bar; a team without a ceiling of its own shows the one above that binds."""

    name: str
    slug: str
    used: int
    guaranteed: int
    ceiling: int | None
    used_text: str
    guaranteed_text: str
    ceiling_text: str
    left_text: str | None
    bound_by: str

    @property
    def scale(self) -> int | None:
        """The length of the bar where no ceiling gives it one."""
        return max(self.used, self.guaranteed, 1000) if self.ceiling is None else None


@dataclass(frozen=True)
class NextEvent:
    """Something that will happen by itself."""

    at: datetime
    title: str
    text: str
    icon: str
    url: str


@dataclass(frozen=True)
class FirstStep:
    """Where somebody's work begins: the name of a page and one line about it."""

    name: str
    title: str
    text: str
    icon: str


def context(_request: HttpRequest, rights: Rights, now: datetime) -> dict[str, Any]:
    """Return what this person has, what they wait for and what they could do."""
    leases = lease_rows(live_leases_of(rights.user, most=MOST_LEASES), now=now)
    waiting = request_rows(_my_waiting(rights))
    teams = list(visible_teams(rights, Role.RESEARCHER, Role.ADMIN)[:MOST_TEAMS])
    sizes, when = strip(usual_sizes(rights.user), most=MOST_SIZES, now=now) if teams else (None, "")
    return {
        "sizes": sizes,
        "when": when,
        "leases": leases,
        "seats": [own_seat_row(view) for view in seats_ahead(rights.user, now=now)],
        "waiting": waiting,
        "rooms": team_rooms(teams),
        "spend": _spend(teams, now),
        "currency": currency(),
        "ahead": what_is_next(leases, waiting, bookings_of(rights.user, most=MOST_LEASES)),
        "news": notification_rows(list(Notification.objects.filter(user=rights.user)[:MOST_NEWS])),
        "asks": rights.has_anywhere(Role.RESEARCHER, Role.ADMIN),
        "first_steps": first_steps(rights, now=now),
    }


def _my_waiting(rights: Rights) -> list[LeaseRequest]:
    rows = visible_requests(rights).filter(author=rights.user, state__in=WAITING)
    return list(rows.order_by("-priority", "submitted_at")[:MOST_WAITING])


def _spend(teams: list[Team], now: datetime) -> Decimal | None:
    """Return what the person's teams cost this month, running leases included."""
    if not teams:
        return None
    spent = team_spend([team.pk for team in teams], period_of(now), now=now)
    return money(sum(spent.values()))


def team_rooms(teams: list[Team]) -> list[TeamRoom]:
    """Return the quota bar of each team: what binds it, its own ceiling or one above."""
    owners = {pk for team in teams for pk in team.lineage}
    quotas = {q.team_id: q for q in Quota.objects.filter(team_id__in=owners).select_related("team")}
    rooms = [_room(team, quotas) for team in teams]
    # Teams without a ceiling of their own share the one above: it is shown once.
    return list({room.name: room for room in rooms}.values())


def _room(team: Team, quotas: dict[int, Quota]) -> TeamRoom:
    own = quotas.get(team.pk)
    capped = [quotas[pk] for pk in team.lineage if pk in quotas and quotas[pk].ceiling_milli is not None]
    tightest = min(capped, key=lambda q: (q.ceiling_milli or 0) - q.used_milli, default=None)
    shown = own if own is not None and own.ceiling_milli is not None else tightest or own
    used = shown.used_milli if shown else 0
    guaranteed = shown.guaranteed_milli if shown else 0
    ceiling = shown.ceiling_milli if shown else None
    left = None if tightest is None else (tightest.ceiling_milli or 0) - tightest.used_milli
    return TeamRoom(
        name=shown.team.name if shown else team.name,
        slug=team.slug,
        used=used,
        guaranteed=guaranteed,
        ceiling=ceiling,
        used_text=gpus(used) or "0",
        guaranteed_text=gpus(guaranteed) or "0",
        ceiling_text=gpus(ceiling) or "",
        left_text=gpus(None if left is None else max(0, left)),
        bound_by=tightest.team.name if tightest and tightest.team_id != team.pk else "",
    )


def what_is_next(
    leases: list[LeaseRow], waiting: list[RequestRow], booked: Sequence[Lease]
) -> list[NextEvent]:
    """Return the next ends and starts, the nearest first."""
    begins = [
        NextEvent(
            row.starts_at,
            row.request.name or what_text(row.flavor.shown_name, row.count),
            _("begins, as booked"),
            "calendar",
            reverse("web:lease", args=[row.uid]),
        )
        for row in booked
    ]
    ends = [
        NextEvent(row.ends_at, row.title, _("ends"), "hourglass", row.url)
        for row in leases
        if row.ends_at is not None and row.left_s
    ]
    starts = [
        NextEvent(row.starts_at, row.title, _("should start"), "player-play", row.url)
        for row in waiting
        if row.starts_at is not None
    ]
    return sorted([*ends, *starts, *begins], key=lambda event: event.at)[:5]


def first_steps(rights: Rights, *, now: datetime) -> list[FirstStep]:
    """Return where people of other roles begin their day."""
    steps: list[FirstStep] = []
    if runs_organisation(rights) and not progress().is_ready:
        text = _("What is left before people can ask.")
        steps.append(FirstStep("web:setup", _("Set up Berth"), text, "checkbox"))
    if rights.has_anywhere(Role.APPROVER, Role.ADMIN):
        text = _approvals_text(decisions_waiting(rights))
        steps.append(FirstStep("web:approvals", _("Approvals"), text, "checkbox"))
    if rights.is_finance:
        steps.append(
            FirstStep("web:periods", _("Billing periods"), _("Check and close a billing period."), "calendar")
        )
        steps.append(FirstStep("web:rates", _("Prices"), _("See and plan prices."), "tag"))
    if rights.is_operator:
        steps.append(FirstStep("web:nodes", _("Nodes"), _nodes_text(now), "server-2"))
        steps.append(FirstStep("web:cluster", _("Cluster"), _("Who is where, live."), "layout-grid"))
    return steps


def _approvals_text(count: int) -> str:
    if not count:
        return _("Nothing waits for you.")
    return ngettext("One request waits.", "%(n)d requests wait.", count) % {"n": count}


def _nodes_text(now: datetime) -> str:
    """Return how many nodes are heard, how many health events are open, and what belongs to no lease."""
    nodes = list(Node.objects.all())
    heard = sum(node_state(node, now=now) == ONLINE for node in nodes)
    text = _("%(heard)d of %(all)d online") % {"heard": heard, "all": len(nodes)}
    trouble = HealthEvent.objects.filter(cleared_at=None).count()
    said = [text]
    if trouble:
        said.append(ngettext("one health event", "%(n)d health events", trouble) % {"n": trouble})
    orphans = sum(n or 0 for n in orphans_by_node([node.name for node in nodes], now=now).values())
    if orphans:
        said.append(ngettext("one orphan process", "%(n)d orphan processes", orphans) % {"n": orphans})
    return " · ".join(said)
