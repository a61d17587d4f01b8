"""The chargeback report of a month: who used what, what it came to, and what the month before had."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from portal.billing.charges import Accrual, Charge, accruals_of, charges_of, costs_until, exact_by_day
from portal.billing.label_shares import exact_by_day_and_label, split_by_label
from portal.billing.models import BillingPeriod, PeriodState
from portal.billing.selectors import currency
from portal.catalog.pricing import apportion
from portal.common.months import next_month
from portal.common.sql import fetch
from portal.teams.models import Team

_SEEN_AGAIN = """
WITH several AS (
  SELECT period_id, team_id, user_id, flavor_id FROM billing_usagetotal WHERE id = ANY(%s)
   GROUP BY 1, 2, 3, 4 HAVING count(*) > 1),
seen AS (
  SELECT DISTINCT t.id, u.lease_id FROM several JOIN billing_usagetotal t USING (period_id, team_id, user_id, flavor_id)
    JOIN billing_usagerecord u ON u.period_id = t.period_id AND u.team_id = t.team_id
     AND u.micro_per_hour = t.micro_per_hour AND u.currency = t.currency
     AND u.late_for_id IS NOT DISTINCT FROM t.late_for_id
    JOIN leases_lease l ON l.id = u.lease_id AND l.user_id = t.user_id AND l.flavor_id = t.flavor_id)
SELECT id, count(*) FROM (
  SELECT id, row_number() OVER (PARTITION BY lease_id ORDER BY id) AS time FROM seen) x WHERE time > 1 GROUP BY 1
"""


class GroupBy(models.TextChoices):
    """What the rows of a report are."""

    TEAM = "team", _("Team")
    COST_CENTRE = "cost_centre", _("Cost centre")
    PERSON = "person", _("Person")
    FLAVOR = "flavor", _("Flavor")
    DEVICE_MODEL = "device_model", pgettext_lazy("report", "Device model")
    PROJECT = "project", _("Project")
    TAG = "tag", _("Tag")


BY_LABEL = (GroupBy.COST_CENTRE, GroupBy.PROJECT, GroupBy.TAG)  # lines are split for these


@dataclass(slots=True)
class ChargebackRow:
    """One row: micro-units, ``accruing`` of what still runs, ``before`` the same part of the month before.

    A team's row holds all teams below it too; ``own_micro`` is its own part. ``before_micro`` is None where the books
    have no month before.
    """

    key: str
    name: str
    parent: str
    depth: int
    leases: int
    share_milli_seconds: int
    amount_micro: int
    accruing_micro: int
    own_micro: int
    before_micro: int | None
    cost_centre: str = ""

    @property
    def cost_micro(self) -> int:
        """Return what the month has come to: on lines and accruing."""
        return self.amount_micro + self.accruing_micro


@dataclass(frozen=True, slots=True)
class ChargebackReport:
    """A month of some teams, or of one person in them.

    ``exact_by_day`` is by day and key of the row, in micro-units times SHARE_HOUR: whole numbers, nothing rounded.

    So many leases as ``unpriced`` ran while no price was in force: they are in no amount. ``tag`` is the name of the
    tag by whose values rows are made.
    """

    period: BillingPeriod
    by: GroupBy
    currency: str
    is_closed: bool
    until: datetime
    before: BillingPeriod | None
    groups: list[ChargebackRow]
    whole: ChargebackRow
    exact_by_day: dict[date, dict[str, int]]
    charges: list[Charge]
    unpriced: int
    tag: str = ""

    @property
    def is_running(self) -> bool:
        """Say whether the month is not over."""
        return self.until < self.period.ends_at


def report_of(
    period: BillingPeriod,
    teams: Sequence[Team],
    *,
    by: GroupBy = GroupBy.TEAM,
    tag: str = "",
    username: str = "",
    now: datetime,
) -> ChargebackReport:
    """Return the report of a month over these teams, of one person where ``username`` is given.

    By ``GroupBy.TAG`` rows are the values of the tag named ``tag``.
    """
    until = min(now, period.ends_at)
    charges = [c for c in charges_of(period, teams) if username in ("", c.username)]
    is_closed = period.state == PeriodState.CLOSED
    running, bare = accruals_of(period, [] if is_closed else teams, now=now)
    running = [a for a in running if username in ("", a.user.username)]
    before = BillingPeriod.objects.filter(ends_at=period.starts_at).first()
    old = [c for c in charges_of(before, teams) if username in ("", c.username)] if before else []
    old_amounts = [c.amount_micro for c in old]
    if before is not None and until < period.ends_at:
        # Months differ in length: what the shorter one lacks counts as over.
        old_amounts = costs_until(
            old, before, min(before.starts_at + (until - period.starts_at), before.ends_at)
        )
    rows = _Rows(by, tag, has_before=before is not None)
    again = _counted_again(charges)
    parts, old_parts = charges, list(zip(old, old_amounts, strict=True))
    if by in BY_LABEL:
        parts, again = split_by_label(period, charges, again=again), {}
        if before is not None:
            # What a line had come to by then is split as the whole line is: parts are not kept by day.
            upto = [replace(c, amount_micro=amount) for c, amount in old_parts]
            old_parts = [(c, c.amount_micro) for c in split_by_label(before, upto)]
    for charge in parts:
        rows.add(rows.key(charge), charge.amount_micro, charge, charge.leases - again.get(charge.total_id, 0))
    for accrual, cents in zip(running, apportion([a.micro for a in running]), strict=True):
        rows.accrue(rows.key(accrual), cents, accrual)
    for charge, amount in old_parts:
        rows.had(rows.key(charge), amount, charge)
    groups = rows.in_tree(teams) if by == GroupBy.TEAM else rows.flat()
    whole = _sum("", list(rows.found.values()), has_before=before is not None)
    return ChargebackReport(
        period, by, currency(), is_closed, until, before, groups, whole,
        _exact_by_day(period, charges, running, rows), charges,
        sum(username in ("", lease.user.username) for lease in bare), tag,
    )  # fmt: skip


def _exact_by_day(
    period: BillingPeriod, charges: Sequence[Charge], running: Sequence[Accrual], rows: _Rows
) -> dict[date, dict[str, int]]:
    found: dict[date, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    if rows.by in BY_LABEL:
        lines = {charge.total_id: charge for charge in charges if charge.is_usage}
        for total, labels, day, exact in exact_by_day_and_label(period, charges):
            line = lines[total]
            part = replace(line, labels=labels, cost_centre=labels.cost_centre or line.cost_centre)
            found[day][rows.key(part)] += exact
    else:
        for key, day, exact in exact_by_day(charges, rows.key):
            found[day][key] += exact
    for accrual in running:
        for day, exact in accrual.exact_by_day.items():
            found[day][rows.key(accrual)] += exact
    return {day: dict(found[day]) for day in sorted(found)}


def _counted_again(charges: Sequence[Charge]) -> dict[int, int]:
    """Return by total how many of its leases another line of the month counts already: each has a line for each price.

    Only where a person has more than one line for a flavor is usage looked at.
    """
    used = [charge for charge in charges if charge.is_usage]
    lines = Counter((charge.team.pk, charge.username, charge.flavor_id) for charge in used)
    several = [c.total_id for c in used if lines[c.team.pk, c.username, c.flavor_id] > 1]
    return dict(fetch(_SEEN_AGAIN, [several])) if several else {}


class _Rows:
    """Rows under way: each by its key."""

    def __init__(self, by: GroupBy, tag: str, *, has_before: bool) -> None:
        self.by, self.tag, self.found = by, tag, dict[str, ChargebackRow]()
        self._none = 0 if has_before else None

    def key(self, one: Charge | Accrual) -> str:
        """Return what row a charge belongs to: slugs and user names, which stay when names change."""
        if self.by == GroupBy.TEAM:
            return one.team.slug
        if self.by == GroupBy.PERSON:
            return one.username if isinstance(one, Charge) else one.user.username
        if self.by == GroupBy.COST_CENTRE:
            if isinstance(one, Charge):
                return one.cost_centre
            return one.labels.cost_centre or one.team.cost_centre
        if self.by == GroupBy.PROJECT:
            return one.labels.project
        if self.by == GroupBy.TAG:
            return one.labels.tag(self.tag)
        if self.by == GroupBy.FLAVOR:
            return one.flavor if isinstance(one, Charge) else one.flavor.name
        return one.device_model if isinstance(one, Charge) else one.flavor.device_model.name

    def _row(self, key: str, one: Charge | Accrual) -> ChargebackRow:
        if key not in self.found:
            name = {GroupBy.TEAM: one.team.name, GroupBy.PERSON: str(one.user or "")}.get(self.by, key)
            self.found[key] = ChargebackRow(key, name, "", 0, 0, 0, 0, 0, 0, self._none)
        return self.found[key]

    def add(self, key: str, amount: int, charge: Charge, leases: int) -> None:
        row = self._row(key, charge)
        row.leases += leases
        row.share_milli_seconds += charge.share_milli_seconds
        row.amount_micro += amount
        row.own_micro += amount

    def accrue(self, key: str, cents: int, accrual: Accrual) -> None:
        row = self._row(key, accrual)
        row.accruing_micro += cents
        row.own_micro += cents

    def had(self, key: str, amount: int, charge: Charge) -> None:
        row = self._row(key, charge)
        row.before_micro = (row.before_micro or 0) + amount

    def flat(self) -> list[ChargebackRow]:
        return sorted(self.found.values(), key=lambda row: (-row.cost_micro, row.name.lower()))

    def in_tree(self, teams: Sequence[Team]) -> list[ChargebackRow]:
        """Return the teams that have anything, or have a team below that has, each with those below it added up."""
        slugs = {team.pk: team.slug for team in teams}
        below: dict[int, list[ChargebackRow]] = defaultdict(list)
        for team in teams:
            if team.slug in self.found:
                for pk in team.lineage:
                    below[pk].append(self.found[team.slug])
        rows = []
        for team in teams:
            if below[team.pk]:
                above = [pk for pk in team.lineage[:-1] if pk in slugs]
                rows.append(
                    replace(
                        _sum(team.slug, below[team.pk], has_before=self._none is not None),
                        name=team.name,
                        cost_centre=team.cost_centre,
                        parent=slugs[above[-1]] if above else "",
                        depth=len(above),
                        own_micro=self.found[team.slug].own_micro if team.slug in self.found else 0,
                    )
                )
        return sorted_tree(rows, key=lambda row: (-row.cost_micro, row.name.lower()))


def sorted_tree(
    rows: Iterable[ChargebackRow], key: Callable[[ChargebackRow], Any], *, is_reversed: bool = False
) -> list[ChargebackRow]:
    """Return rows sorted, each followed by those below it, sorted likewise."""
    children: dict[str, list[ChargebackRow]] = defaultdict(list)
    for row in sorted(rows, key=key, reverse=is_reversed):
        children[row.parent].append(row)
    found: list[ChargebackRow] = []
    waiting = children[""][::-1]
    while waiting:
        row = waiting.pop()
        found.append(row)
        waiting += children[row.key][::-1] if row.key else []
    return found


def _sum(key: str, rows: Sequence[ChargebackRow], *, has_before: bool) -> ChargebackRow:
    return ChargebackRow(
        key=key,
        name="",
        parent="",
        depth=0,
        leases=sum(row.leases for row in rows),
        share_milli_seconds=sum(row.share_milli_seconds for row in rows),
        amount_micro=sum(row.amount_micro for row in rows),
        accruing_micro=sum(row.accruing_micro for row in rows),
        own_micro=sum(row.own_micro for row in rows),
        before_micro=sum(row.before_micro or 0 for row in rows) if has_before else None,
    )


def days_of(period: BillingPeriod) -> list[date]:
    """Return the days of a month."""
    count = (next_month(period.month) - period.month).days
    return [period.month + timedelta(days=n) for n in range(count)]
