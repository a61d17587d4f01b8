from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from django.db.models import Q

from portal.common.sql import fetch
from portal.quotas.models import Quota
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights
from scheduler.engine.model import TeamQuota
from scheduler.engine.quota import Budget

# Plain SQL: every request that comes in asks this.
BOUNDS = (
    "SELECT team_id, ceiling_milli, used_milli, '', guaranteed_milli, lending_milli, cohort_id FROM quotas_quota"
    " WHERE team_id = ANY(%s) OR cohort_id IN"
    " (SELECT cohort_id FROM quotas_quota WHERE team_id = ANY(%s) AND cohort_id IS NOT NULL)"
)


@dataclass(frozen=True, slots=True)
class Headroom:
    """What a team could still be granted now, and which team of its lineage binds.

    Weighted thousandths; ``left_milli`` None means nothing bounds it. In a cohort ``borrowed_milli`` is what
    the team uses above its guarantee, ``lendable_milli`` what is left to borrow in
    the whole cohort; None without a cohort.
    """

    used_milli: int
    guaranteed_milli: int
    ceiling_milli: int | None
    left_milli: int | None
    bound_by: str
    borrowed_milli: int | None = None
    lendable_milli: int | None = None
    cohort: str = ""


def headroom(team: Team) -> Headroom:
    """Return the smallest room left in the team's lineage and in the cohorts above it."""
    rows = _rows(team)
    own = rows.get(team.pk)
    budget = _budget(team, rows)
    left = budget.headroom(team.pk)
    tight = budget.tightest(team.pk)
    member = budget.member(team.pk)
    ceiling_left = None if tight is None or tight.ceiling is None else tight.ceiling - tight.used
    binds = tight if tight is not None and ceiling_left == left else member
    cohort = None if member is None else rows[member.team_id].cohort
    pool = () if cohort is None else budget.cohort(cohort.pk)
    return Headroom(
        used_milli=own.used_milli if own else 0,
        guaranteed_milli=own.guaranteed_milli if own else 0,
        ceiling_milli=own.ceiling_milli if own else None,
        left_milli=left,
        bound_by="" if binds is None or left is None else binds.name,
        borrowed_milli=None if member is None else member.borrows(),
        lendable_milli=None if member is None else max(0, -sum(a.strains() for a in pool)),
        cohort=cohort.name if cohort else "",
    )


def smallest_ceiling(team: Team) -> int | None:
    """Return the lowest bound of the lineage, ceiling or cohort: more than this is never granted to the team."""
    parents = dict(pairwise(reversed(team.lineage)))
    known = {row[0]: row for row in fetch(BOUNDS, [team.lineage, team.lineage])}
    unknown = (TeamQuota(pk, parents.get(pk), None, 0) for pk in team.lineage if pk not in known)
    quotas = (TeamQuota(pk, parents.get(pk), *row) for pk, *row in known.values())
    bound = Budget((*unknown, *quotas)).lowest_ceiling(team.pk)
    return None if bound is None else bound[1]


# Quotas that limit GPU-hours or memory; every request that comes in asks this.
LIMITED = (
    "SELECT team_id FROM quotas_quota WHERE team_id = ANY(%s)"
    " AND (gpu_seconds_a_month IS NOT NULL OR most_memory_mib IS NOT NULL)"
)


@dataclass(frozen=True, slots=True)
class UseLimit:
    """How many device seconds a month and how much device memory at once a team's quota lets it and those below use."""

    team_id: int
    team: str
    gpu_seconds: int | None
    memory_mib: int | None


def use_limits(team_ids: Iterable[int]) -> dict[int, UseLimit]:
    """Return by team id which of these teams' quotas limit GPU-hours or memory; one query."""
    rows = fetch(
        "SELECT q.team_id, t.name, q.gpu_seconds_a_month, q.most_memory_mib FROM quotas_quota q"  # noqa: S608 (our own text)
        f" JOIN teams_team t ON t.id = q.team_id WHERE q.team_id IN ({LIMITED})",
        [sorted(set(team_ids))],
    )
    return {row[0]: UseLimit(*row) for row in rows}


@dataclass(frozen=True, slots=True)
class RunLimit:
    """How long one lease may run, extensions counted in, and the team whose quota says so."""

    most_s: int
    team: str


def shortest_run_limit(team: Team) -> RunLimit | None:
    """Return the shortest longest run time of the team's lineage, None where no quota bounds it; one look."""
    rows = fetch(
        "SELECT q.most_duration_s, t.name FROM quotas_quota q JOIN teams_team t ON t.id = q.team_id"
        " WHERE q.team_id = ANY(%s) AND q.most_duration_s IS NOT NULL ORDER BY 1, q.team_id LIMIT 1",
        [team.lineage],
    )
    return RunLimit(*rows[0]) if rows else None


def _rows(team: Team) -> dict[int, Quota]:
    """Return the quotas of the lineage and of all who share a cohort with any of it, by team."""
    near = Quota.objects.filter(team_id__in=team.lineage)
    rows = Quota.objects.filter(
        Q(team_id__in=team.lineage) | Q(cohort__isnull=False, cohort__in=near.values("cohort"))
    )
    return {row.team_id: row for row in rows.select_related("team", "cohort")}


def _budget(team: Team, rows: Mapping[int, Quota]) -> Budget:
    """Return the engine's budget of these rows; only the team's own lineage is linked."""
    parents = dict(pairwise(reversed(team.lineage)))
    return Budget(
        TeamQuota(
            team_id=pk,
            parent_id=parents.get(pk),
            ceiling_milli=rows[pk].ceiling_milli if pk in rows else None,
            used_milli=rows[pk].used_milli if pk in rows else 0,
            name=rows[pk].team.name if pk in rows else "",
            guaranteed_milli=rows[pk].guaranteed_milli if pk in rows else 0,
            lending_milli=rows[pk].lending_milli if pk in rows else None,
            cohort_id=rows[pk].cohort_id if pk in rows else None,
        )
        for pk in {*team.lineage, *rows}
    )


def may_set_quota(rights: Rights, team: Team) -> bool:
    """Say whether this person decides on the team's quota: an admin of a team above, or an operator."""
    above = any(role == Role.ADMIN and team_id in team.lineage[:-1] for team_id, role in rights.held)
    return above or rights.has(team, Role.OPERATOR)
