"""Cohorts: teams that lend each other what they do not use, and who may change them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models import F, Sum
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.fleet.models import Device
from portal.quotas.models import Cohort, Quota
from portal.quotas.selectors import may_set_quota
from portal.teams.models import Team
from portal.teams.selectors import Rights

MOST_NAME = 80


@dataclass(frozen=True, slots=True)
class CohortShare:
    """A team's part in its cohort, in weighted thousandths; ``lending_milli`` None: it lends all it does not use."""

    team: Team
    guaranteed_milli: int
    used_milli: int
    lending_milli: int | None

    @property
    def borrowed_milli(self) -> int:
        """What it uses above its guarantee."""
        return max(0, self.used_milli - self.guaranteed_milli)

    @property
    def lendable_milli(self) -> int:
        """What the others may use of it now: what it does not use itself, up to its limit."""
        idle = max(0, self.guaranteed_milli - self.used_milli)
        return idle if self.lending_milli is None else min(idle, self.lending_milli)


@dataclass(frozen=True, slots=True)
class CohortStanding:
    """A cohort and its teams; what is borrowed never exceeds what is lendable but while somebody takes back."""

    cohort: Cohort
    shares: list[CohortShare]

    @property
    def borrowed_milli(self) -> int:
        """What its teams use above their guarantees."""
        return sum(share.borrowed_milli for share in self.shares)

    @property
    def lendable_milli(self) -> int:
        """What its teams do not use and lend."""
        return sum(share.lendable_milli for share in self.shares)


@dataclass(frozen=True, slots=True)
class Promises:
    """What all guarantees need at once against what the fleet has, in weighted thousandths."""

    guaranteed_milli: int
    capacity_milli: int

    @property
    def is_too_much(self) -> bool:
        """Say whether the guarantees cannot all be kept at once; unknown while there is no device."""
        return bool(self.capacity_milli) and self.guaranteed_milli > self.capacity_milli


def cohorts() -> list[CohortStanding]:
    """Return all cohorts with their teams, by name, in two queries."""
    shares: dict[int | None, list[CohortShare]] = {}
    for row in Quota.objects.exclude(cohort=None).select_related("team").order_by("team__name", "team_id"):
        shares.setdefault(row.cohort_id, []).append(share_of(row))
    return [CohortStanding(cohort, shares.get(cohort.pk, [])) for cohort in Cohort.objects.all()]


def cohort_of(quota: Quota | None) -> CohortStanding | None:
    """Return the cohort of a team's quota with all its teams, None without one."""
    if quota is None or quota.cohort_id is None:
        return None
    return cohort_named(quota.cohort_id)


def cohort_named(cohort_id: int) -> CohortStanding:
    """Return one cohort with its teams, or raise NotFound."""
    cohort = Cohort.objects.filter(pk=cohort_id).first()
    if cohort is None:
        raise NotFound
    rows = Quota.objects.filter(cohort=cohort).select_related("team").order_by("team__name", "team_id")
    return CohortStanding(cohort, [share_of(row) for row in rows])


def share_of(row: Quota) -> CohortShare:
    """Return a quota as a part of its cohort; its team must be at hand."""
    return CohortShare(row.team, row.guaranteed_milli, row.used_milli, row.lending_milli)


def cohorts_for(rights: Rights, team: Team) -> list[Cohort]:
    """Return the cohorts that this person may put the team into.

    Operators: all. Others: those whose every team they decide on, and the one it is in. An empty one belongs
    to nobody yet and is the operators'.
    """
    rows = list(Cohort.objects.prefetch_related("quotas__team"))
    if rights.is_operator:
        return rows
    found = []
    for cohort in rows:
        teams = [quota.team for quota in cohort.quotas.all()]
        if team in teams or (teams and all(may_set_quota(rights, other) for other in teams)):
            found.append(cohort)
    return found


@transaction.atomic
def create_cohort(*, actor: User, rights: Rights, name: str, now: datetime) -> Cohort:
    """Make a cohort without teams. Operators; raises Forbidden and Invalid."""
    _require_operator(rights)
    name = _sound_name(name)
    try:
        with transaction.atomic():
            cohort = Cohort.objects.create(name=name, created_at=now)
    except IntegrityError as error:
        raise Invalid(fields={"name": _("There is a cohort of this name already.")}) from error
    record(actor, "cohort.created", f"cohort {cohort.pk}", at=now, name=name)
    return cohort


@transaction.atomic
def rename_cohort(*, actor: User, rights: Rights, cohort_id: int, name: str, now: datetime) -> Cohort:
    """Give a cohort another name. Operators; raises Forbidden, NotFound and Invalid."""
    _require_operator(rights)
    cohort = _locked(cohort_id)
    before, cohort.name = cohort.name, _sound_name(name)
    try:
        with transaction.atomic():
            cohort.save(update_fields=["name"])
    except IntegrityError as error:
        raise Invalid(fields={"name": _("There is a cohort of this name already.")}) from error
    record(actor, "cohort.renamed", f"cohort {cohort.pk}", at=now, name=cohort.name, before=before)
    return cohort


@transaction.atomic
def delete_cohort(*, actor: User, rights: Rights, cohort_id: int, now: datetime) -> None:
    """Remove a cohort that no team is in. Operators; raises Forbidden, NotFound and Conflict."""
    _require_operator(rights)
    cohort = _locked(cohort_id)
    if Quota.objects.filter(cohort=cohort).exists():
        raise Conflict(_("Teams are in this cohort. Take them out first."))
    record(actor, "cohort.deleted", f"cohort {cohort.pk}", at=now, name=cohort.name)
    cohort.delete()


def promises() -> Promises:
    """Return what all guarantees need at once, and what the devices of the fleet add up to.

    A team's guarantee covers what is below it, so a subtree needs the larger of its own figure and the sum of
    its children's.
    """
    capacity = Device.objects.aggregate(all=Sum(F("model__weight_milli")))["all"] or 0
    parents = dict(Team.objects.values_list("pk", "parent_id"))
    own = dict(Quota.objects.values_list("team_id", "guaranteed_milli"))
    return Promises(sum(_needs(parents, own).get(pk, 0) for pk in parents if parents[pk] is None), capacity)


def too_small_for_those_below(team: Team) -> int | None:
    """Return the sum of the guarantees just below a team where it is more than its own, else None."""
    own = dict(
        Quota.objects.filter(team__lineage__contains=[team.pk]).values_list("team_id", "guaranteed_milli")
    )
    parents = dict(Team.objects.filter(lineage__contains=[team.pk]).values_list("pk", "parent_id"))
    needs = _needs(parents, own)
    below = sum(needs[pk] for pk, parent in parents.items() if parent == team.pk)
    return below if below > own.get(team.pk, 0) else None


def _needs(parents: Mapping[int, int | None], own: Mapping[int, int]) -> dict[int, int]:
    """Return by team what its subtree is guaranteed: the larger of its own figure and its children's sum."""
    children: dict[int | None, list[int]] = {}
    for pk, parent in parents.items():
        children.setdefault(parent, []).append(pk)
    found: dict[int, int] = {}
    for pk in reversed(list(_downwards(parents, children))):
        found[pk] = max(own.get(pk, 0), sum(found[child] for child in children.get(pk, ())))
    return found


def _downwards(parents: Mapping[int, int | None], children: Mapping[int | None, list[int]]) -> Iterable[int]:
    """Yield teams so that each follows the one above it."""
    waiting = [pk for pk, parent in parents.items() if parent not in parents]
    while waiting:
        pk = waiting.pop()
        yield pk
        waiting += children.get(pk, [])


def _require_operator(rights: Rights) -> None:
    if not rights.is_operator:
        raise Forbidden(_("Only operators make and change cohorts."))


def _locked(cohort_id: int) -> Cohort:
    cohort = Cohort.objects.select_for_update().filter(pk=cohort_id).first()
    if cohort is None:
        raise NotFound
    return cohort


def _sound_name(name: str) -> str:
    name = name.strip()
    if not 1 <= len(name) <= MOST_NAME or not name.isprintable():
        raise Invalid(
            fields={"name": _("Give it a name of at most %(most)d characters.") % {"most": MOST_NAME}}
        )
    return name
