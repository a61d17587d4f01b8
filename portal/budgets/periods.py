"""The months that a budget counts together: whole months, as invoices have them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime

from portal.budgets.models import TeamBudget
from portal.common.months import Months, next_month


@dataclass(frozen=True, slots=True)
class BudgetStretch:
    """A stretch of whole months, ``since`` included and ``until`` not, with its first instant and the one after it."""

    since: date
    until: date
    starts_at: datetime
    ends_at: datetime


def stretch_of(since: date, until: date, months: Months) -> BudgetStretch:
    """Return the months from the one that begins on ``since`` to the one before ``until``."""
    return BudgetStretch(since, until, months.start(since), months.start(until))


def months_between(since: datetime, until: datetime, months: Months) -> list[BudgetStretch]:
    """Return each month that the time from ``since`` to ``until`` touches, that of ``since`` at least."""
    month = months.of(since)
    found = [stretch_of(month, next_month(month), months)]
    while found[-1].ends_at < until:
        found.append(stretch_of(found[-1].until, next_month(found[-1].until), months))
    return found


def month_start(at: datetime) -> date:
    """Return the first day of an instant's month."""
    return Months().of(at)


def stretch_at(budget: TeamBudget, at: datetime, months: Months) -> BudgetStretch | None:
    """Return what a budget counts together at an instant: that month, or all of its time; None outside of it."""
    return _stretch_in(budget, months.of(at), months)


def _stretch_in(budget: TeamBudget, month: date, months: Months) -> BudgetStretch | None:
    if month < budget.starts_on or (budget.ends_before is not None and month >= budget.ends_before):
        return None
    if budget.is_monthly:
        return stretch_of(month, next_month(month), months)
    assert budget.ends_before is not None
    return stretch_of(budget.starts_on, budget.ends_before, months)


def stretches_between(
    budget: TeamBudget, since: datetime, until: datetime, months: Months
) -> Iterator[BudgetStretch]:
    """Yield what a budget counts together of the time from ``since`` to ``until``, the first stretch first."""
    month, seen = months.of(since), None
    while months.start(month) < until:
        found = _stretch_in(budget, month, months)
        if found is not None and found != seen:
            yield found
            seen = found
        month = next_month(month)
