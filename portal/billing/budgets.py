"""How budgets run down: spend by day, how the period will probably end, when it is used up, and who is told."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import accumulate
from statistics import fmean, stdev

from django.db import transaction

from portal.accounts.models import User
from portal.billing.daily import DAY, MOST_DAYS, TENTH, MonthDays, MonthEnd, month_days, month_end
from portal.billing.models import BillingPeriod
from portal.billing.periods import period_of
from portal.budgets.models import BudgetCrossing, BudgetForecast, BudgetThreshold, SpendBasis, TeamBudget
from portal.budgets.periods import BudgetStretch, stretch_at
from portal.budgets.services import budgets_at
from portal.common.months import Months, next_month
from portal.leases.budget_standing import BudgetStanding, standings
from portal.notifications.services import notify
from portal.teams.models import Membership, Role, Team


@dataclass(frozen=True)
class BudgetCourse:
    """A budget's running period: ``days`` of the whole subtree together, what counts now, and how it will end.

    ``end`` is None while too few full days are known; ``runs_out_on`` and ``earliest_on`` as in ``BudgetForecast``.
    """

    budget: TeamBudget
    months: BudgetStretch
    days: MonthDays
    standing: BudgetStanding
    end: MonthEnd | None
    runs_out_on: date | None
    earliest_on: date | None

    @property
    def percent(self) -> int:
        """Return how much of the budget is spent, in whole percent rounded down."""
        return 100 * self.standing.spent // self.budget.amount_micro


class SpendByDay:
    """What teams spent day by day, each month read once for all of them."""

    def __init__(self, team_ids: Sequence[int], *, now: datetime) -> None:
        self._ids, self._now, self._calendar = list(team_ids), now, Months()
        self._months: dict[date, MonthDays | None] = {}

    def of(self, subtree: Iterable[int], since: date, until: date) -> MonthDays:
        """Return the days of the months from ``since`` to before ``until`` for teams together, under the id 0."""
        ids, days, notes, full = list(subtree), list[int](), 0, 0
        first, running = since, self._calendar.of(self._now)
        while first < until:
            month = self._month(first)
            n_days = (next_month(first) - first).days
            days += (
                [0] * n_days
                if month is None
                else [sum(month.by_team[pk][n] for pk in ids) for n in range(n_days)]
            )
            notes += 0 if month is None else sum(month.notes.get(pk, 0) for pk in ids)
            full += n_days if first < running else month.full_days if month is not None else 0
            first = next_month(first)
        return MonthDays(since, len(days), full, {0: days}, {0: notes})

    def _month(self, first: date) -> MonthDays | None:
        """Return a month of the books, None where they have none: nothing was used in it."""
        if first not in self._months:
            is_running = first == self._calendar.of(self._now)
            period = period_of(self._now) if is_running else BillingPeriod.objects.filter(month=first).first()
            self._months[first] = None if period is None else month_days(self._ids, period, now=self._now)
        return self._months[first]


def budget_course(team: Team, budget: TeamBudget, *, now: datetime) -> BudgetCourse | None:
    """Return how a budget of a team runs down now, None for one that is not in force."""
    months = stretch_at(budget, now, Months())
    if months is None:
        return None
    below = list(Team.objects.filter(lineage__contains=[team.pk]).values_list("pk", flat=True))
    (standing,) = standings([(team.pk, months)], now=now)
    return _course(budget, months, below, standing, SpendByDay(below, now=now), now)


def watch_budgets(*, now: datetime) -> int:
    """Look at every budget in force: keep its forecast, and tell people of thresholds reached, once each.

    Returns how many were reached since the last look. Safe to repeat; a transaction for each budget.
    """
    lineages = dict(Team.objects.values_list("pk", "lineage"))
    calendar = Months()
    budgets = [
        (b, s) for b in budgets_at(lineages, now).values() if (s := stretch_at(b, now, calendar)) is not None
    ]
    found = standings([(budget.team_id, months) for budget, months in budgets], now=now)
    spend, reached = SpendByDay(list(lineages), now=now), 0
    for (budget, months), standing in zip(budgets, found, strict=True):
        below = [pk for pk, lineage in lineages.items() if budget.team_id in lineage]
        reached += _keep(_course(budget, months, below, standing, spend, now), now)
    return reached


def _course(
    budget: TeamBudget,
    months: BudgetStretch,
    below: Sequence[int],
    standing: BudgetStanding,
    spend: SpendByDay,
    now: datetime,
) -> BudgetCourse:
    days = spend.of(below, months.since, months.until)
    # The month before tells most about the next days where the period itself has just begun.
    earlier = spend.of(below, (months.since - DAY).replace(day=1), months.since)
    full = [*earlier.totals, *days.totals[: days.full_days]]
    # Days before the first use of all are no days to learn from.
    while full and not full[0]:
        full.pop(0)
    end = month_end(full, spent=standing.spent, left=(months.ends_at - now) / DAY)
    likely, earliest = _runs_out(budget, months, days, standing.spent, full if end else [], now)
    return BudgetCourse(budget, months, days, standing, end, likely, earliest)


def _runs_out(
    budget: TeamBudget,
    months: BudgetStretch,
    days: MonthDays,
    spent: int,
    full: Sequence[int],
    now: datetime,
) -> tuple[date | None, date | None]:
    """Return on which day a budget is used up, by the middle of the forecast and by its upper end."""
    if spent >= budget.amount_micro:
        sums = list(accumulate(days.totals))
        over = next((n for n, total in enumerate(sums) if total >= budget.amount_micro), len(sums) - 1)
        day = months.since + timedelta(days=over)
        return day, day
    seen = list(full)[-MOST_DAYS:]
    if not seen:
        return None, None
    rest, middle, spread = budget.amount_micro - spent, fmean(seen), stdev(seen)

    def first_day(half: float) -> date | None:
        for n in range(math.ceil((months.ends_at - now) / DAY)):
            left = min(n + 1, (months.ends_at - now) / DAY)
            if middle * left + half * spread * math.sqrt(left + left * left / len(seen)) >= rest:
                return days.first + timedelta(days=days.full_days + n)
        return None

    return first_day(0), first_day(TENTH)


@transaction.atomic
def _keep(course: BudgetCourse, now: datetime) -> int:
    """Store the forecast of a budget and what thresholds it has reached; tells people of new ones."""
    end, budget = course.end, course.budget
    BudgetForecast.objects.update_or_create(
        budget=budget,
        defaults={
            "since": course.months.since,
            "made_at": now,
            "spent_micro": course.standing.spent,
            "low_micro": end.low if end else None,
            "likely_micro": end.likely if end else None,
            "high_micro": end.high if end else None,
            "days": end.days if end else 0,
            "runs_out_on": course.runs_out_on,
            "earliest_on": course.earliest_on,
        },
    )
    known = set(
        BudgetCrossing.objects.filter(budget=budget, since=course.months.since).values_list(
            "basis", "percent", "action"
        )
    )
    new = [
        (threshold, figure)
        for threshold in budget.thresholds.all()
        if (threshold.basis, threshold.percent, threshold.action) not in known
        and (figure := figure_of(course, threshold)) is not None
        and figure * 100 >= budget.amount_micro * threshold.percent
    ]
    for threshold, figure in new:
        crossing = BudgetCrossing(
            budget=budget, since=course.months.since, percent=threshold.percent, basis=threshold.basis,
            action=threshold.action, amount_micro=budget.amount_micro, figure_micro=figure, at=now,
        )  # fmt: skip
        made = BudgetCrossing.objects.bulk_create([crossing], ignore_conflicts=True)
        _tell(budget, made[0], now)
    return len(new)


def figure_of(course: BudgetCourse, threshold: BudgetThreshold) -> int | None:
    """Return what a threshold looks at: the spend, or how the period will probably end (None: not known yet)."""
    if threshold.basis == SpendBasis.FORECAST:
        return None if course.end is None else course.end.likely
    return course.standing.spent


def _tell(budget: TeamBudget, crossing: BudgetCrossing, now: datetime) -> None:
    """Tell the admins of the team itself, and finance of it and of the teams above."""
    team = Team.objects.get(pk=budget.team_id)
    rows = Membership.objects.filter(team=team, role=Role.ADMIN) | Membership.objects.filter(
        team__in=team.lineage, role=Role.FINANCE
    )
    people = User.objects.filter(pk__in=rows.values("user"), is_active=True)
    notify(
        people,
        "budget.reached",
        target=f"bud-{budget.pk}#{crossing.since:%Y%m}-{crossing.basis[0]}{crossing.percent}-{crossing.action[0]}",
        at=now,
        team=team.slug,
        name=team.name,
        percent=crossing.percent,
        basis=crossing.basis,
        action=crossing.action,
        is_percent=100 * crossing.figure_micro // crossing.amount_micro,
    )
