"""Budgets as finance sets them: made, changed and ended; each change is in the audit list with what was before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.budgets.models import BudgetAction, BudgetForecast, BudgetThreshold, SpendBasis, TeamBudget
from portal.budgets.periods import month_start
from portal.common import outbox
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.common.months import next_month
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights

MOST_MICRO = 10**17
MOST_THRESHOLDS = 12
MOST_MONTHS = 36
_STRICTNESS = {action: n for n, action in enumerate(BudgetAction.values)}


@dataclass(frozen=True, slots=True)
class ThresholdSpec:
    """A threshold as somebody wants it."""

    percent: int
    action: str
    basis: str = SpendBasis.ACTUAL


@dataclass(frozen=True, slots=True)
class BudgetSpec:
    """A budget as somebody wants it; ``starts_on`` and ``ends_before`` are first days of months."""

    amount_micro: int
    starts_on: date
    ends_before: date | None = None
    is_monthly: bool = True
    thresholds: tuple[ThresholdSpec, ...] = ()


def may_set_budget(rights: Rights, team: Team) -> bool:
    """Say whether this person decides on the team's budget: finance of it, or an admin of a team above.

    Nobody raises their own. The organisation has nothing above it: its finance decides.
    """
    above = any(role == Role.ADMIN and team_id in team.lineage[:-1] for team_id, role in rights.held)
    return above or rights.has(team, Role.FINANCE)


def budgets_at(team_ids: Iterable[int], at: datetime) -> dict[int, TeamBudget]:
    """Return by team the budget that is in force at an instant, with its thresholds."""
    month = month_start(at)
    rows = TeamBudget.objects.filter(team__in=list(team_ids), starts_on__lte=month)
    rows = rows.filter(Q(ends_before=None) | Q(ends_before__gt=month)).prefetch_related("thresholds")
    return {row.team_id: row for row in rows}


def running_forecasts(at: datetime) -> list[BudgetForecast]:
    """Return the forecasts of what budgets count together at an instant, with budget and team; one per team. One query.

    A budget that has ended keeps its last forecast, and one whose month is new has none before it is looked at.
    """
    month = month_start(at)
    rows = BudgetForecast.objects.filter(budget__starts_on__lte=month)
    rows = rows.filter(Q(budget__ends_before=None) | Q(budget__ends_before__gt=month))
    rows = rows.filter(Q(budget__is_monthly=False) | Q(since=month))
    return list(rows.select_related("budget__team").order_by("budget__team_id"))


def monthly_amounts(team_ids: Iterable[int], at: datetime) -> dict[int, int]:
    """Return by team what it may spend in an instant's month, in micro-units; teams without such a budget lack."""
    return {pk: row.amount_micro for pk, row in budgets_at(team_ids, at).items() if row.is_monthly}


@transaction.atomic
def make_budget(*, team: Team, actor: User, rights: Rights, spec: BudgetSpec, now: datetime) -> TeamBudget:
    """Give a team a budget from this month or a later one on.

    One without an end that goes on until then ends where the new one begins. Raises Forbidden, and Invalid naming the
    field, also where another budget of the team is in the way.
    """
    _require(rights, team)
    fields = _faults(spec)
    if spec.starts_on < month_start(now):
        fields["starts_on"] = _("A budget begins this month or later.")
    if fields:
        raise Invalid(fields=fields)
    before = TeamBudget.objects.select_for_update().filter(
        team=team, ends_before=None, starts_on__lt=spec.starts_on
    )
    for row in before:
        _end(row, spec.starts_on, actor, now)
    budget = TeamBudget(
        team=team, amount_micro=spec.amount_micro, is_monthly=spec.is_monthly, starts_on=spec.starts_on,
        ends_before=spec.ends_before, made_by=actor, created_at=now,
    )  # fmt: skip
    _store(budget, spec.thresholds)
    record(actor, "budget.made", team.slug, at=now, team_id=team.pk, budget=budget.pk, after=_told(budget))
    _decide_anew(budget, now)
    return budget


@transaction.atomic
def change_budget(
    *,
    team: Team,
    budget_id: int,
    actor: User,
    rights: Rights,
    spec: BudgetSpec,
    version: int,
    now: datetime,
) -> TeamBudget:
    """Change a budget; what it was and became is in the audit list.

    Its first month stays once it has begun, and it does not end before the running month is over. Raises Forbidden,
    NotFound, Conflict when somebody changed it since ``version``, and Invalid naming the field.
    """
    _require(rights, team)
    budget = _locked(team, budget_id)
    if budget.version != version:
        raise Conflict(_("Somebody changed this budget since you opened it."))
    month = month_start(now)
    if budget.ends_before is not None and budget.ends_before <= month:
        raise Conflict(_("This budget is over. Make a new one."))
    fields = _faults(spec)
    if budget.starts_on <= month:
        if spec.starts_on != budget.starts_on:
            fields["starts_on"] = _("It has begun: its first month stays.")
        if spec.is_monthly != budget.is_monthly:
            fields["is_monthly"] = _("It has begun: end it and make a new one instead.")
    elif spec.starts_on < month:
        fields["starts_on"] = _("A budget begins this month or later.")
    if spec.ends_before is not None and spec.ends_before <= month:
        fields["ends_before"] = _("It cannot end before the running month is over.")
    if fields:
        raise Invalid(fields=fields)
    before = _told(budget)
    budget.amount_micro, budget.is_monthly = spec.amount_micro, spec.is_monthly
    budget.starts_on, budget.ends_before = spec.starts_on, spec.ends_before
    budget.version = version + 1
    _store(budget, spec.thresholds)
    record(
        actor, "budget.changed", team.slug, at=now, team_id=team.pk, budget=budget.pk, before=before,
        after=_told(budget),
    )  # fmt: skip
    _decide_anew(budget, now)
    return budget


@transaction.atomic
def end_budget(
    *, team: Team, budget_id: int, actor: User, rights: Rights, now: datetime
) -> TeamBudget | None:
    """End a budget with the running month, or take back one that has not begun: then None is returned.

    Raises Forbidden, NotFound, and Conflict for one that ends by then anyway.
    """
    _require(rights, team)
    budget = _locked(team, budget_id)
    month = month_start(now)
    if budget.starts_on > month:
        record(
            actor,
            "budget.withdrawn",
            team.slug,
            at=now,
            team_id=team.pk,
            budget=budget.pk,
            before=_told(budget),
        )
        budget.delete()
        return None
    if budget.ends_before is not None and budget.ends_before <= next_month(month):
        raise Conflict(_("It ends with this month already, or has ended."))
    _end(budget, next_month(month), actor, now)
    return budget


def _end(budget: TeamBudget, day: date, actor: User, now: datetime) -> None:
    before = _told(budget)
    budget.ends_before, budget.version = day, budget.version + 1
    budget.save(update_fields=["ends_before", "version"])
    record(
        actor, "budget.ended", budget.team.slug, at=now, team_id=budget.team_id, budget=budget.pk, before=before,
        after=_told(budget),
    )  # fmt: skip


def _store(budget: TeamBudget, thresholds: Sequence[ThresholdSpec]) -> None:
    """Write a budget with exactly these thresholds; raises Invalid where another one of the team is in the way."""
    try:
        with transaction.atomic():
            budget.save()
            budget.thresholds.all().delete()
            ordered = sorted(thresholds, key=lambda t: (t.percent, _STRICTNESS[t.action]))
            BudgetThreshold.objects.bulk_create(
                BudgetThreshold(budget=budget, percent=t.percent, basis=t.basis, action=t.action)
                for t in ordered
            )
    except IntegrityError as error:
        raise Invalid(
            fields={"starts_on": _("Another budget of this team covers some of these months.")}
        ) from error


def _locked(team: Team, budget_id: int) -> TeamBudget:
    found = TeamBudget.objects.select_for_update().filter(pk=budget_id, team=team).first()
    if found is None:
        raise NotFound
    return found


def _require(rights: Rights, team: Team) -> None:
    if not may_set_budget(rights, team):
        raise Forbidden(_("Finance or an admin of a team above decides on this budget."))


def _faults(spec: BudgetSpec) -> dict[str, Any]:
    """Return what is wrong with a budget as such, by field."""
    fields: dict[str, Any] = {}
    if not 0 < spec.amount_micro <= MOST_MICRO:
        fields["amount"] = _("A budget is an amount above zero.")
    if spec.starts_on.day != 1:
        fields["starts_on"] = _("A budget begins with the first day of a month.")
    if spec.ends_before is not None and (spec.ends_before.day != 1 or spec.ends_before <= spec.starts_on):
        fields["ends_before"] = _("It ends with the last day of its first month or of a later one.")
    if not spec.is_monthly and spec.ends_before is None:
        fields["ends_before"] = _("An amount for all months together needs a last month.")
    elif not spec.is_monthly and spec.ends_before is not None and _months(spec) > MOST_MONTHS:
        fields["ends_before"] = _("At most %(n)d months together.") % {"n": MOST_MONTHS}
    thresholds = _threshold_fault(spec.thresholds)
    if thresholds:
        fields["thresholds"] = thresholds
    return fields


def _months(spec: BudgetSpec) -> int:
    assert spec.ends_before is not None
    return (spec.ends_before.year - spec.starts_on.year) * 12 + spec.ends_before.month - spec.starts_on.month


def _threshold_fault(thresholds: Sequence[ThresholdSpec]) -> str:
    """Return what is wrong with thresholds as a sentence, "" where they can be used."""
    if len(thresholds) > MOST_THRESHOLDS:
        return _("At most %(n)d thresholds.") % {"n": MOST_THRESHOLDS}
    for one in thresholds:
        if one.action not in BudgetAction.values or one.basis not in SpendBasis.values:
            return _("A threshold has an action and looks at spend or forecast.")
        if not 1 <= one.percent <= 1000:
            return _("A threshold lies between 1 and 1000 percent.")
    if len(set(thresholds)) < len(thresholds):
        return _("A threshold is named twice.")
    acting = [t for t in thresholds if t.action != BudgetAction.NOTIFY]
    for mild in acting:
        for strict in acting:
            is_stricter = _STRICTNESS[strict.action] > _STRICTNESS[mild.action]
            if strict.basis == mild.basis and is_stricter and strict.percent < mild.percent:
                return _(
                    "“%(strict)s” from %(low)d %% on leaves nothing for “%(mild)s” from %(high)d %% on."
                ) % {
                    "strict": BudgetAction(strict.action).label,
                    "low": strict.percent,
                    "mild": BudgetAction(mild.action).label,
                    "high": mild.percent,
                }
    return ""


def _told(budget: TeamBudget) -> dict[str, Any]:
    """Return a budget's figures as the audit list keeps them."""
    return {
        "amount_micro": budget.amount_micro,
        "is_monthly": budget.is_monthly,
        "starts_on": budget.starts_on.isoformat(),
        "ends_before": budget.ends_before and budget.ends_before.isoformat(),
        "thresholds": [str(one) for one in BudgetThreshold.objects.filter(budget=budget)],
    }


def _decide_anew(budget: TeamBudget, now: datetime) -> None:
    """Take a scheduling turn: what a budget kept from starting may start now."""
    outbox.add(outbox.RUN_CYCLE, key=f"budget-{budget.pk}", at=now)
    outbox.nudge_on_commit(outbox.RUN_CYCLE)
