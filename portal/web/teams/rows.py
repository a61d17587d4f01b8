"""Teams as pages show them: quota bars, members with where their role comes from, spend against budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import Count
from django.urls import reverse
from django.utils.translation import gettext as _

from portal.billing.selectors import currency
from portal.budgets.services import monthly_amounts
from portal.budgets.words import hours_text
from portal.common.moments import span
from portal.common.units import HOUR_S
from portal.leases.budget_standing import quota_uses
from portal.quotas.models import Quota
from portal.quotas.selectors import may_set_quota
from portal.teams.models import Membership, Team
from portal.teams.selectors import Rights
from portal.teams.services import roles_to_give
from portal.web.figures import gpus, memory, money
from portal.web.quota_bars import QuotaBar, quota_bar

SOON_PERCENT = 80
SHARES = 1000


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A person's role in a team; ``through`` names the team above that it comes from."""

    key: int
    name: str
    username: str
    role: Any
    through: str
    since: datetime
    ends_at: datetime | None
    can_end: bool
    is_me: bool


@dataclass(frozen=True, slots=True)
class SpendRow:
    """What a team and everything below it cost this month, against its budget; ``own`` is what its invoice will say.

    ``own`` is None for a team that has none below it: both are the same.
    """

    amount: Decimal | None
    own: Decimal | None
    budget: Decimal | None
    percent: int | None
    currency: str
    tone: str


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A team as a row: its depth in the tree, quota, spend and size."""

    name: str
    slug: str
    url: str
    depth: int
    bar: QuotaBar | None
    amount: Decimal | None
    own: Decimal | None
    members: int
    cost_centre: str
    can_set_quota: bool


def lineage_quotas(team: Team) -> list[Quota]:
    """Return the quotas of a team and of those above it, from the top down, with teams and cohorts at hand."""
    rows = Quota.objects.filter(team_id__in=team.lineage).select_related("team", "cohort")
    return sorted(rows, key=lambda row: team.lineage.index(row.team_id))


def limits_above(team: Team, quotas: Iterable[Quota]) -> list[QuotaBar]:
    """Return the ceilings of teams above that hold for this one too, of the quotas of its lineage."""
    return [
        quota_bar(row.team.name, row, hint=_("holds for all teams below it"))
        for row in quotas
        if row.team_id != team.pk and row.ceiling_milli is not None
    ]


def limit_lines(quotas: Sequence[Quota], *, now: datetime) -> list[str]:
    """Return what the quotas of a lineage limit beside devices and what of it is used, as sentences."""
    uses, lines = quota_uses(quotas, now=now), []
    for row in quotas:
        use, name = uses[row.team_id], row.team.name
        if row.gpu_seconds_a_month is not None:
            used, limit = hours_text(use.gpu_seconds or 0), hours_text(row.gpu_seconds_a_month)
            said = _("%(team)s: %(used)s of %(limit)s GPU-hours of this month are used or held.")
            lines.append(said % {"team": name, "used": used, "limit": limit})
        if row.most_memory_mib is not None:
            held, most = memory(use.memory_mib), memory(row.most_memory_mib)
            said = _("%(team)s: %(used)s of %(limit)s of device memory are held.")
            lines.append(said % {"team": name, "used": held, "limit": most})
        if row.most_duration_s is not None:
            said = _("%(team)s: a lease runs for at most %(time)s.")
            lines.append(said % {"team": name, "time": span(row.most_duration_s)})
    return lines


def members_of(team: Team, rights: Rights) -> list[MemberRow]:
    """Return the team's members, then those whose role reaches here from above."""
    rows = Membership.objects.filter(team_id__in=team.lineage).select_related("user", "team")
    give = set(roles_to_give(rights, team))
    ordered = sorted(
        rows, key=lambda row: (-team.lineage.index(row.team_id), str(row.user).lower(), row.role)
    )
    return [
        MemberRow(
            key=row.pk,
            name=str(row.user),
            username=row.user.username,
            role=row.get_role_display(),
            through="" if row.team_id == team.pk else row.team.name,
            since=row.created_at,
            ends_at=row.ends_at,
            can_end=row.team_id == team.pk and row.role in give,
            is_me=row.user_id == rights.user.pk,
        )
        for row in ordered
    ]


def spend_of(team: Team, spent: Mapping[int, int], *, now: datetime) -> SpendRow:
    """Return what the subtree cost this month; ``spent`` is by team of the subtree, as ``team_spend`` returns it."""
    micro, own = sum(spent.values()), money(spent[team.pk]) if len(spent) > 1 else None
    budget = monthly_amounts([team.pk], now).get(team.pk)
    percent = None if not budget else micro * 100 // budget
    tone = "accent" if percent is None or percent < SOON_PERCENT else "warn" if percent < 100 else "bad"
    return SpendRow(money(micro), own, money(budget), percent, currency(), tone)


def approval_hours(team: Team) -> str | None:
    """Return above how many GPU-hours a request needs an approval; None for never."""
    above = team.approval_above_gpu_seconds
    return None if above is None else gpus(above * SHARES // HOUR_S)


def team_rows(teams: Iterable[Team], rights: Rights, spent: Mapping[int, int]) -> list[TreeRow]:
    """Return teams as a tree in reading order, in a fixed number of queries.

    ``spent`` is what each of them cost this month, as ``team_spend`` returns it.
    """
    found = {team.pk: team for team in teams}
    below = dict.fromkeys(found, 0)
    for team in found.values():
        for pk in team.lineage:
            if pk in below:
                below[pk] += spent[team.pk]
    quotas = {row.team_id: row for row in Quota.objects.filter(team_id__in=found)}
    sizes = dict(
        Membership.objects.filter(team_id__in=found)
        .values_list("team_id")
        .annotate(n=Count("user", distinct=True))
    )
    return [
        TreeRow(
            name=team.name,
            slug=team.slug,
            url=reverse("web:team", args=[team.slug]),
            depth=sum(1 for pk in team.lineage[:-1] if pk in found),
            bar=quota_bar(team.name, quotas[team.pk]) if team.pk in quotas else None,
            amount=money(below[team.pk]),
            own=money(spent[team.pk]) if below[team.pk] != spent[team.pk] else None,
            members=sizes.get(team.pk, 0),
            cost_centre=team.cost_centre,
            can_set_quota=may_set_quota(rights, team),
        )
        for team in in_tree_order(list(found.values()))
    ]


def in_tree_order(teams: Sequence[Team]) -> list[Team]:
    """Return teams so that each follows the one above it, siblings by name."""
    names = {team.pk: team.name.lower() for team in teams}
    return sorted(teams, key=lambda team: [(names.get(pk, ""), pk) for pk in team.lineage])
