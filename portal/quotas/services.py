from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common import outbox
from portal.common.errors import Conflict, Invalid, QuotaExceeded
from portal.common.sql import Row, execute, fetch
from portal.quotas.cohorts import cohorts_for
from portal.quotas.models import Quota
from portal.quotas.selectors import LIMITED
from portal.teams.models import Team
from portal.teams.selectors import Rights
from scheduler.engine.quota import TeamAccount


def reserve(costs: Iterable[tuple[Team, int]]) -> None:
    """Count live use for teams and everything above them, or raise QuotaExceeded.

    Call inside the granting transaction, before devices and leases are touched. Locks the quota
    rows, and those of every team in a cohort with them, in id order. ``costs`` in weighted thousandths. What
    a cohort admits is the engine's rule (``scheduler.engine.quota``), asked of the locked rows.
    """
    total = _by_team(costs)
    if not total:
        return
    rows = _locked(list(total))
    for team_id, ceiling, used, *_more in rows:
        if ceiling is not None and team_id in total and used + total[team_id] > ceiling:
            raise QuotaExceeded(team_id=team_id, wanted=total[team_id], headroom=max(0, ceiling - used))
    _check_cohorts([row for row in rows if row[5] is not None], total)
    _count(total, sign=1)


def lock_limited(team_ids: Collection[int], beside: Collection[int] = ()) -> bool:
    """Lock all that ``reserve`` would lock for these teams and return True, where a quota limits GPU-hours or memory.

    ``team_ids`` are whole lineages, ``beside`` those of teams whose rows the transaction takes later. Only the rows
    that limit would break the order of ids, as a grant goes on to take lower ones. Call inside a transaction, after
    budgets and wallets and before leases.
    """
    if not fetch(f"{LIMITED} LIMIT 1", [list(team_ids)]):
        return False
    _locked([*team_ids, *beside])
    return True


class _Joined(Exception):
    """A team joined a cohort while its rows were waited for."""


def _locked(team_ids: list[int]) -> list[Row]:
    """Lock the quota rows of these teams and their cohorts in id order, and return them.

    Who joins while we wait for a row is not among what the statement found, and may have taken what is lent by
    then. So it is looked at again with all locks held; where somebody is missing the locks are let go, with
    their savepoint, and taken anew. Who joins later counts for the next one, which waits for these rows.
    """
    concerned = (
        " FROM quotas_quota WHERE team_id = ANY(%s) OR cohort_id IN"
        " (SELECT cohort_id FROM quotas_quota WHERE team_id = ANY(%s) AND cohort_id IS NOT NULL)"
    )
    columns = "team_id, ceiling_milli, used_milli, guaranteed_milli, lending_milli, cohort_id"
    while True:
        try:
            with transaction.atomic():
                rows = fetch(f"SELECT {columns}{concerned} ORDER BY id FOR UPDATE", [team_ids, team_ids])
                if all(row[5] is None for row in rows):
                    return rows
                now = fetch(f"SELECT team_id{concerned}", [team_ids, team_ids])
                if {team_id for (team_id,) in now} <= {row[0] for row in rows}:
                    return rows
                raise _Joined
        except _Joined:
            continue


def _check_cohorts(rows: Iterable[Row], total: Counter[int]) -> None:
    """Raise QuotaExceeded where a cohort lends too little for all of it together."""
    accounts: dict[int, list[TeamAccount]] = defaultdict(list)
    for team_id, ceiling, used, guaranteed, lending, cohort_id in rows:
        accounts[cohort_id].append(TeamAccount(team_id, "", ceiling, used, guaranteed, lending, cohort_id))
    for members in accounts.values():
        now = sum(a.strains() for a in members)
        then = sum(a.strains(total[a.team_id]) for a in members)
        taking = [a for a in members if total[a.team_id]]
        if taking and then > max(0, now):
            first = taking[0]
            raise QuotaExceeded(team_id=first.team_id, wanted=total[first.team_id], headroom=max(0, -now))


def free(costs: Iterable[tuple[Team, int]]) -> None:
    """Give back what was reserved. Call inside the transaction that ends the placements."""
    _count(_by_team(costs), sign=-1)


def _by_team(costs: Iterable[tuple[Team, int]]) -> Counter[int]:
    """Return what is to be counted by team id, for each team and everything above it."""
    total: Counter[int] = Counter()
    for team, cost in costs:
        for team_id in team.lineage:
            total[team_id] += cost
    return total


def _count(total: Counter[int], *, sign: int) -> None:
    """Change the use of these teams' quotas, their rows locked in id order."""
    if total:
        execute(
            "WITH held AS (SELECT id, team_id FROM quotas_quota WHERE team_id = ANY(%s) ORDER BY id FOR UPDATE)"
            " UPDATE quotas_quota q SET used_milli = q.used_milli + c.cost"
            " FROM held JOIN unnest(%s::bigint[], %s::bigint[]) AS c(team_id, cost) USING (team_id)"
            " WHERE q.id = held.id",
            [list(total), list(total), [sign * cost for cost in total.values()]],
        )


class Unchanged:
    """Stands for "as it is" where None means something of its own."""


KEEP = Unchanged()


@transaction.atomic
def set_quota(
    *,
    team: Team,
    actor: User,
    guaranteed_milli: int,
    ceiling_milli: int | None,
    version: int,
    now: datetime,
    lending_milli: int | Unchanged | None = KEEP,
    cohort_id: int | Unchanged | None = KEEP,
    most_duration_s: int | Unchanged | None = KEEP,
    gpu_seconds_a_month: int | Unchanged | None = KEEP,
    most_memory_mib: int | Unchanged | None = KEEP,
    rights: Rights | None = None,
) -> Quota:
    """Set a team's quota; raises Invalid, or Conflict when somebody changed it since ``version``.

    ``rights`` are needed to put the team into a cohort: only one of those in ``cohorts_for``. A lending limit
    that is kept shrinks with the guarantee. Limits hold for what is asked for from now on: what runs keeps its end.
    """
    if guaranteed_milli < 0 or (ceiling_milli is not None and ceiling_milli < guaranteed_milli):
        raise Invalid(
            fields={"ceiling": _("The ceiling cannot be below the guarantee, and neither below zero.")}
        )
    quota, _created = Quota.objects.select_for_update().get_or_create(team=team)
    if quota.version != version:
        raise Conflict(_("Somebody changed this quota since you opened it."))
    if ceiling_milli is not None and ceiling_milli < quota.used_milli:
        raise Invalid(fields={"ceiling": _("The team uses more than this now; release leases first.")})
    before = _told(quota)
    quota.lending_milli = _lending(quota, guaranteed_milli, lending_milli)
    quota.cohort_id = _cohort(quota, team, cohort_id, rights)
    quota.guaranteed_milli, quota.ceiling_milli, quota.version = guaranteed_milli, ceiling_milli, version + 1
    fields = ["guaranteed_milli", "ceiling_milli", "lending_milli", "cohort_id", "version"]
    limits = {
        "most_duration_s": most_duration_s,
        "gpu_seconds_a_month": gpu_seconds_a_month,
        "most_memory_mib": most_memory_mib,
    }
    for name, wanted in limits.items():
        if isinstance(wanted, Unchanged):
            continue
        if wanted is not None and wanted < 1:
            raise Invalid(fields={name: _("Name more than nothing, or leave it empty for no limit.")})
        setattr(quota, name, wanted)
        fields.append(name)
    try:
        with transaction.atomic():
            quota.save(update_fields=fields)
    except IntegrityError as error:
        raise Invalid(fields={"ceiling": _("These figures contradict each other.")}) from error
    record(actor, "quota.changed", team.slug, at=now, team_id=team.pk, before=before, after=_told(quota))
    outbox.add(outbox.RUN_CYCLE, key=f"quota-{quota.pk}", at=now)
    outbox.nudge_on_commit(outbox.RUN_CYCLE)
    return quota


def planned_quota(**terms: Any) -> Quota:
    """Return the quota as ``set_quota`` would leave it with these terms, or raise as it does; changes nothing."""
    with transaction.atomic():
        quota = set_quota(**terms)
        transaction.set_rollback(True)
    return quota


def _told(quota: Quota) -> dict[str, int | None]:
    """Return a quota's figures as the audit list keeps them."""
    return {
        "guaranteed": quota.guaranteed_milli,
        "ceiling": quota.ceiling_milli,
        "lending": quota.lending_milli,
        "cohort": quota.cohort_id,
        "most_duration_s": quota.most_duration_s,
        "gpu_seconds_a_month": quota.gpu_seconds_a_month,
        "most_memory_mib": quota.most_memory_mib,
    }


def _lending(quota: Quota, guaranteed_milli: int, wanted: int | Unchanged | None) -> int | None:
    """Return the new lending limit, or raise Invalid: nobody lends more than its guarantee."""
    if isinstance(wanted, Unchanged):
        return None if quota.lending_milli is None else min(quota.lending_milli, guaranteed_milli)
    if wanted is not None and not 0 <= wanted <= guaranteed_milli:
        raise Invalid(
            fields={"lending": _("A team lends at most what it is guaranteed, and not below zero.")}
        )
    return wanted


def _cohort(quota: Quota, team: Team, wanted: int | Unchanged | None, rights: Rights | None) -> int | None:
    """Return the new cohort, held until the commit, or raise Invalid for one not to be chosen.

    That is one that this person may not put the team into, and one that somebody removes just now: the key is
    checked at the commit only, so without the lock both would succeed up to there.
    """
    if isinstance(wanted, Unchanged) or wanted == quota.cohort_id:
        return quota.cohort_id
    if wanted is not None and (
        rights is None or wanted not in {cohort.pk for cohort in cohorts_for(rights, team)}
    ):
        raise Invalid(fields={"cohort": _("Choose one of the cohorts on offer.")})
    if wanted is not None and not fetch("SELECT 1 FROM quotas_cohort WHERE id = %s FOR KEY SHARE", [wanted]):
        raise Invalid(fields={"cohort": _("This cohort has just been removed. Choose another one.")})
    return wanted


def lock_lineages(team_ids: Iterable[int]) -> None:
    """Lock the quota rows of these teams and everything above them, in id order.

    First lock of a transaction that will free placements, so that every path takes quota rows
    before leases.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM quotas_quota WHERE team_id IN"
            " (SELECT unnest(lineage) FROM teams_team WHERE id = ANY(%s)) ORDER BY id FOR UPDATE",
            [sorted(set(team_ids))],
        )
