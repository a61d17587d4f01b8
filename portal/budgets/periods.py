"""The months that a budget counts together: whole months in UTC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from portal.budgets.models import TeamBudget


@dataclass(frozen=True, slots=True)
class BudgetStretch:
    """A stretch of whole months, ``since`` included and ``until`` not."""

    since: date
    until: date

    @property
    def starts_at(self) -> datetime:
        """Return its first instant."""
        return datetime.combine(self.since, time(), tzinfo=UTC)

    @property
    def ends_at(self) -> datetime:
        """Return the first instant after it."""
        return datetime.combine(self.until, time(), tzinfo=UTC)


def next_month(first: date) -> date:
    """Return the first day of the month after that of ``first``."""
    return date(first.year + first.month // 12, first.month % 12 + 1, 1)


def month_start(at: datetime) -> date:
    """Return the first day of an instant's month in UTC."""
    return at.astimezone(UTC).date().replace(day=1)


def stretch_at(budget: TeamBudget, at: datetime) -> BudgetStretch | None:
    """Return what a budget counts together at an instant: that month, or all of its time; None outside of it."""
    month = month_start(at)
    if month < budget.starts_on or (budget.ends_before is not None and month >= budget.ends_before):
        return None
    if budget.is_monthly:
        return BudgetStretch(month, next_month(month))
    assert budget.ends_before is not None
    return BudgetStretch(budget.starts_on, budget.ends_before)


def stretches_between(budget: TeamBudget, since: datetime, until: datetime) -> Iterator[BudgetStretch]:
    """Yield what a budget counts together of the time from ``since`` to ``until``, the first stretch first."""
    month, seen = month_start(since), None
    while datetime.combine(month, time(), tzinfo=UTC) < until:
        found = stretch_at(budget, datetime.combine(month, time(), tzinfo=UTC))
        if found is not None and found != seen:
            yield found
            seen = found
        month = next_month(month)
