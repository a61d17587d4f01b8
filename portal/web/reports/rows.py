"""A report as its page shows it: rows with bars, and a chart of days in stacked parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.billing.report import ChargebackReport, ChargebackRow, GroupBy, days_of, sorted_tree
from portal.catalog.pricing import SHARE_HOUR, to_minor
from portal.catalog.selectors import shown_names
from portal.common.units import amount_places, rounded
from portal.web.figures import money
from portal.web.invoices.rows import gpu_hours

MOST_PARTS = 5  # of a day; what is smaller is one part
TALL, WIDE, GAP = 100, 10, 2  # of the chart and of a day in it, in units of its own
RISES_MUCH = 25  # percent
ORDER: dict[str, Callable[[ChargebackRow], Any]] = {
    "name": lambda row: row.name.lower(),
    "leases": lambda row: row.leases,
    "hours": lambda row: row.share_milli_seconds,
    "cost": lambda row: row.cost_micro,
    "before": lambda row: row.before_micro or 0,
    "change": lambda row: change_of(row) if change_of(row) is not None else -1000,
}


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One row; ``own`` is a team's own part where teams are below it, ``part`` names its colour in the chart."""

    name: str
    depth: int
    note: str
    leases: int
    gpu_hours: Decimal
    cost: Decimal | None
    accruing: Decimal | None
    own: Decimal | None
    before: Decimal | None
    change: int | None
    rises_much: bool
    bar: int
    part: int
    url: str


@dataclass(frozen=True, slots=True)
class ChartPart:
    """A part of a day, from below: its place in units of the chart, and what it says."""

    x: int
    y: float
    height: float
    part: int
    title: str


@dataclass(frozen=True, slots=True)
class DayChart:
    """Days as stacked parts; ``marks`` are the figures beside it, from above, and the days below it."""

    parts: list[ChartPart]
    width: int
    marks: list[Decimal]
    days: list[str]
    key: list[tuple[int, str]]
    highest: str


def change_of(row: ChargebackRow) -> int | None:
    """Return by how many percent a row differs from the month before; None where that had nothing."""
    if not row.before_micro:
        return None
    return round((row.cost_micro - row.before_micro) * 100 / row.before_micro)


def without(report: ChargebackReport) -> str:
    """Return how the row of what has no cost centre, no project or no such tag is called."""
    if report.by == GroupBy.PROJECT:
        return _("No project")
    if report.by == GroupBy.PERSON:
        return _("Nobody in particular")
    return _("Without this tag") if report.by == GroupBy.TAG else _("No cost centre")


def unpriced_text(count: int) -> str:
    """Return that so many leases are in no amount as no price was in force; "" for none."""
    if not count:
        return ""
    return ngettext(
        "One lease ran while no price was in force: it is in no amount.",
        "%(n)d leases ran while no price was in force: they are in no amount.",
        count,
    ) % {"n": count}


def report_rows(report: ChargebackReport, *, ordering: str, person: str) -> list[ReportRow]:
    """Return the rows in an order of ``ORDER``, "-" before it for the other way round; teams stay a tree."""
    field = ordering.removeprefix("-")
    is_reversed = ordering.startswith("-")
    groups = sorted_tree(report.groups, ORDER[field], is_reversed=is_reversed)
    hours = gpu_hours([row.share_milli_seconds for row in groups])
    most = max((row.cost_micro for row in groups), default=0)
    colours = {key: n for n, key in enumerate(_leading(_charted(report)), start=1)}
    words = shown_names(row.name for row in groups) if report.by == GroupBy.FLAVOR else {}
    above = {row.parent for row in groups if row.parent}
    return [
        ReportRow(
            name=words.get(row.name, row.name) or without(report),
            depth=min(row.depth, 4),
            note=row.cost_centre,
            leases=row.leases,
            gpu_hours=spent,
            cost=money(row.cost_micro),
            accruing=money(row.accruing_micro) if row.accruing_micro else None,
            own=money(row.own_micro) if row.key in above else None,
            before=money(row.before_micro),
            change=change_of(row),
            rises_much=(change_of(row) or 0) >= RISES_MUCH,
            bar=row.cost_micro * 100 // most if most else 0,
            part=colours.get(row.key, 0),
            url=_narrower(report, row, person),
        )
        for row, spent in zip(groups, hours, strict=True)
    ]


def _narrower(report: ChargebackReport, row: ChargebackRow, person: str) -> str:
    """Return the address that says more about a row; "" where nothing does."""
    month = {"month": str(report.period)}
    if report.by == GroupBy.TEAM:
        given = month | {"team": row.key, "by": GroupBy.PERSON} | ({"person": person} if person else {})
        return f"{reverse('web:reports')}?{urlencode(given)}"
    if report.by == GroupBy.PERSON:
        return f"{reverse('web:reports')}?{urlencode(month | {'person': row.key, 'by': GroupBy.FLAVOR})}"
    return ""


def _charted(report: ChargebackReport) -> dict[date, dict[str, int]]:
    """Return what the days came to by the rows that the chart may show.

    Of a few teams each is one; of many, each counts for the team below the top that holds it, or nearly all of a day
    would be other teams.
    """
    by_day = report.exact_by_day
    spending = {key for parts in by_day.values() for key in parts}
    if report.by != GroupBy.TEAM or len(spending) <= MOST_PARTS + 1:
        return by_day
    rows = {row.key: row for row in report.groups}
    charted: dict[date, dict[str, int]] = {}
    for day, parts in by_day.items():
        sums: dict[str, int] = defaultdict(int)
        for key, exact in parts.items():
            shown = key
            while shown in rows and rows[shown].depth > 1:  # a day's key without a row stands for itself
                shown = rows[shown].parent
            sums[shown] += exact
        charted[day] = sums
    return charted


def _leading(by_day: dict[date, dict[str, int]]) -> list[str]:
    """Return the keys of the rows that have a colour of their own: those that cost most."""
    totals: dict[str, int] = defaultdict(int)
    for parts in by_day.values():
        for key, exact in parts.items():
            totals[key] += exact
    ranked = sorted(totals, key=lambda key: (-totals[key], key))
    return ranked if len(ranked) <= MOST_PARTS + 1 else ranked[:MOST_PARTS]


def day_chart(report: ChargebackReport) -> DayChart | None:
    """Return what each day of the month came to, in stacked parts; None for a month without usage."""
    by_day = _charted(report)
    sums = {day: sum(parts.values()) for day, parts in by_day.items()}
    highest = max(sums.values(), default=0)
    if not highest:
        return None
    top = _round_up(Fraction(highest, SHARE_HOUR))
    tall = Fraction(TALL, top * SHARE_HOUR)
    leading = _leading(by_day)
    names = {row.key: row.name for row in report.groups}
    names |= {key: name or without(report) for key, name in names.items()}
    words = shown_names(names.values()) if report.by == GroupBy.FLAVOR else {}
    shown = [names.get(key, key) for key in leading]
    parts: list[ChartPart] = []
    days = days_of(report.period)
    for n, day in enumerate(days):
        here = by_day.get(day, {})
        stack = [(number, key, here[key]) for number, key in enumerate(leading, start=1) if here.get(key)]
        rest = sum(here.values()) - sum(here.get(key, 0) for key in leading)
        stack += [(0, "", rest)] if rest else []
        below = 0
        for part, _key, exact in stack:
            name = words.get(shown[part - 1], shown[part - 1]) if part else _("all others")
            parts.append(
                ChartPart(
                    x=n * WIDE,
                    y=round(float(TALL - (below + exact) * tall), 3),
                    height=round(float(exact * tall), 3),
                    part=part,
                    title=f"{_day(day)} · {name} · {_amount(exact)} {report.currency}",
                )
            )
            below += exact
    legend = [(n, words.get(name, name)) for n, name in enumerate(shown, start=1)]
    if len({k for day in by_day.values() for k in day}) > len(leading):
        legend.append((0, _("all others")))
    dearest = max(sums, key=lambda day: sums[day])
    return DayChart(
        parts=parts,
        width=len(days) * WIDE - GAP,
        marks=[Decimal(top * n) / 2_000_000 for n in (2, 1, 0)],
        days=[str(day.day) if day.day % 7 == 1 else "" for day in days],
        key=legend,
        highest=_("Highest on %(day)s: %(amount)s %(currency)s")
        % {"day": _day(dearest), "amount": _amount(sums[dearest]), "currency": report.currency},
    )


def _day(day: date) -> str:
    return date_format(day, "MONTH_DAY_FORMAT")


def _amount(exact: int) -> str:
    value = Decimal(to_minor(Fraction(exact, SHARE_HOUR))) / 1_000_000
    return f"{rounded(value, amount_places(value)):,}"


def _round_up(micro: Fraction) -> int:
    """Return the next amount in micro-units that begins with 1, 2, 4, 5 or 8 and ends in zeros."""
    size = 10_000
    while True:
        for first in (1, 2, 4, 5, 8):
            if first * size >= micro:
                return first * size
        size *= 10
