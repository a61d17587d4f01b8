"""What teams spent day by day, and how the month will probably end."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from itertools import accumulate
from statistics import fmean, stdev

from portal.billing.external_lines import external_sums
from portal.billing.models import BillingPeriod
from portal.billing.notes import note_sums
from portal.billing.periods import by_day, day_starts, period_of
from portal.billing.selectors import open_pieces
from portal.budgets.services import monthly_amounts
from portal.catalog.pricing import SHARE_HOUR
from portal.common.sql import fetch
from portal.teams.models import Team

DAY = timedelta(days=1)
LEAST_DAYS = 7  # fewer full days say nothing about the spread of the next ones
MOST_DAYS = 28
TENTH = 1.2816  # so many standard deviations from the middle lie one tenth and nine tenths
# Usage that was written after its own month had closed is billed in this one: it stands on its first day.
_DAYS = """
SELECT t.team_id, greatest(d.day, %s), sum(d.share_milli_seconds * t.micro_per_hour)
  FROM billing_usagetotal t JOIN billing_usageday d ON d.total_id = t.id
 WHERE t.period_id = %s AND t.team_id = ANY(%s) GROUP BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class MonthDays:
    """A month day by day in its zone: ``by_team`` holds, by team id, micro-units per day from the first to the last.

    ``full_days`` are over; the day after them is the running one, what follows is zero because it has not come.
    ``notes`` are credit and debit notes by team: they are billed in the month and used on none of its days.
    """

    first: date
    n_days: int
    full_days: int
    by_team: dict[int, list[int]]
    notes: dict[int, int] = field(default_factory=dict)

    @property
    def totals(self) -> list[int]:
        """All teams together by day."""
        return [sum(days[n] for days in self.by_team.values()) for n in range(self.n_days)]

    @property
    def sums(self) -> list[int]:
        """All teams together up to the end of each day; notes count from the first day on."""
        noted = sum(self.notes.values())
        return [noted + value for value in accumulate(self.totals)]

    @property
    def spent(self) -> int:
        """All teams together so far."""
        return sum(map(sum, self.by_team.values())) + sum(self.notes.values())


@dataclass(frozen=True, slots=True)
class MonthEnd:
    """What the month will probably cost in micro-units: eight of ten such months end between low and high.

    Honest only as far as the days to come are like the ``days`` full ones before them, each by itself.
    """

    low: int
    likely: int
    high: int
    days: int


def month_days(team_ids: Sequence[int], period: BillingPeriod, *, now: datetime) -> MonthDays:
    """Return what teams spent on each day of a month, running leases included; five queries at most.

    Each day is rounded down to a micro-unit, so that the days of a month may miss a few micro-units of its total.
    """
    first, starts = period.month, day_starts(period)
    n_days = len(starts) - 1
    exact: dict[int, list[int]] = {pk: [0] * n_days for pk in team_ids}
    for team_id, day, amount in fetch(_DAYS, [first, period.pk, list(team_ids)]):
        exact[team_id][(day - first).days] += int(amount)
    if team_ids and period.starts_at <= now:
        for lease, parts in open_pieces(team_ids, period, now=now):
            for part in parts:
                price = part.price(lease) * lease.share_milli
                stretch = part.stretch
                for day, seconds in by_day(period, starts, stretch.starts_at, stretch.ends_at):
                    exact[lease.team_id][(day - first).days] += seconds * price
    full = min(max(bisect_right(starts, now) - 1, 0), n_days)
    by_team = {pk: [amount // SHARE_HOUR for amount in days] for pk, days in exact.items()}
    notes = {team_id: amount for (_period, team_id), amount in note_sums([period], team_ids).items()}
    for (_period, team_id), amount in external_sums([period], team_ids).items():
        notes[team_id] = notes.get(team_id, 0) + amount
    return MonthDays(first, n_days, full, by_team, notes)


def month_end(days: Sequence[int], *, spent: int, left: float, least: int = LEAST_DAYS) -> MonthEnd | None:
    """Return how a month will end that has cost ``spent`` and has ``left`` days to go, None with too few full days.

    ``days`` are full days, the oldest first; the last four weeks of them count. The spread is that of a sum of
    as many independent days, with that of their mean, which is only estimated.
    """
    seen = list(days)[-MOST_DAYS:]
    if len(seen) < least:
        return None
    middle, spread = fmean(seen), stdev(seen)
    half = TENTH * spread * math.sqrt(left + left * left / len(seen))
    likely = spent + middle * left
    return MonthEnd(max(spent, round(likely - half)), round(likely), round(likely + half), len(seen))


@dataclass(frozen=True)
class MonthSoFar:
    """The running month of some teams, with the one before and how it will probably end (None: cannot be said).

    ``before`` is None where the books have no month before.
    """

    period: BillingPeriod
    days: MonthDays
    before: MonthDays | None
    end: MonthEnd | None
    budget: int | None
    now: datetime

    @property
    def per_day(self) -> float:
        """What a day cost on average so far, the running one by its part; in the first day what it cost at all."""
        return self.days.spent / max((self.now - self.period.starts_at) / DAY, 1)

    @property
    def same_days_before(self) -> dict[int, int]:
        """Return by team what the same full days of the month before cost."""
        before = self.before.by_team if self.before else {}
        return {pk: sum(days[: self.days.full_days]) for pk, days in before.items()}


def month_so_far(team: Team, below: Sequence[Team], *, now: datetime) -> MonthSoFar:
    """Return the running month of a team with those below it; ``below`` holds the team itself, too."""
    team_ids = [one.pk for one in below]
    period = period_of(now)
    earlier = BillingPeriod.objects.filter(ends_at=period.starts_at).first()
    days = month_days(team_ids, period, now=now)
    before = month_days(team_ids, earlier, now=now) if earlier else None
    full = [*(before.totals if before else []), *days.totals[: days.full_days]]
    # Days before the first use of all are no days to learn from.
    while full and not full[0]:
        full.pop(0)
    left = (period.ends_at - now) / DAY
    end = month_end(full, spent=days.spent, left=left)
    return MonthSoFar(period, days, before, end, _budget_of(team, below, days.by_team, now=now), now)


def _budget_of(
    team: Team, below: Sequence[Team], spent: dict[int, list[int]], *, now: datetime
) -> int | None:
    """Return a team's budget of the month, else the sum of those directly below it.

    None where nobody has one, and where the team itself or one below it without a budget spends: that sum is less
    than what its spend may come to.
    """
    children = [one.pk for one in below if one.parent_id == team.pk]
    budgets = monthly_amounts([team.pk, *children], now)
    if team.pk in budgets:
        return budgets[team.pk]
    spends = [one for one in below if any(spent[one.pk])]
    is_whole = all(any(pk in budgets for pk in one.lineage) for one in spends)
    return sum(budgets.values()) if budgets and is_whole else None
