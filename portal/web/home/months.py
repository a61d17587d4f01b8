"""A month in pictures: what was spent by day, and how what is left of the budget runs down."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal

from django.urls import reverse
from django.utils.formats import date_format, number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from portal.billing.daily import MonthDays, MonthEnd, MonthSoFar
from portal.web.charts import (
    DrawnPart,
    Plot,
    PlotLayer,
    axis_lines,
    axis_ticks,
    band_path,
    grounds,
    line_path,
    nice_top,
    stacked,
    tick_text,
)

MICRO = 1_000_000
MOST_TEAMS = 5


def amount(micro: float | None, *, places: int = 2) -> str:
    """Return micro-units as an amount in the reader's way of writing, without currency."""
    if micro is None:
        return _("unknown")
    exact = (Decimal(round(micro)) / MICRO).quantize(Decimal(1).scaleb(-places))
    return number_format(exact, decimal_pos=places, use_l10n=True, force_grouping=True)


def forecast_text(month: MonthSoFar, unit: str) -> str:
    """Return how the month will probably end, in one sentence that says how sure that is."""
    if month.end is None:
        return _("No forecast yet: it needs a week of full days.")
    low, high = amount(month.end.low, places=0), amount(month.end.high, places=0)
    values = {"low": low, "high": high, "currency": unit, "n": month.end.days}
    said = _(
        "Forecast for the end of the month: %(low)s to %(high)s %(currency)s, in eight of ten cases if it goes on as "
        "in the last %(n)d days."
    )
    return said % values


def verdict(month: MonthSoFar, unit: str) -> str:
    """Return what the forecast means for the budget, in one sentence; without either what a day costs."""
    if month.end is None or month.budget is None:
        return _("About %(n)s %(currency)s a day so far.") % {
            "n": amount(month.per_day, places=0),
            "currency": unit,
        }
    low, high = month.end.low - month.budget, month.end.high - month.budget
    if high <= 0:
        return _("By the forecast the budget lasts.")
    if low <= 0:
        return _("By the forecast the budget may be exceeded, by at most %(n)s %(currency)s.") % {
            "n": amount(high, places=0), "currency": unit,
        }  # fmt: skip
    return _("By the forecast the budget is exceeded by %(low)s to %(high)s %(currency)s.") % {
        "low": amount(low, places=0), "high": amount(high, places=0), "currency": unit,
    }  # fmt: skip


def burn_down(month: MonthSoFar, unit: str, *, url: str, link: str) -> Plot:
    """Return the month as lines: what was spent up to each day, the budget, the month before, and the forecast."""
    days, n = month.days, month.days.n_days
    spent = [value / MICRO for value in days.sums]
    running = min(days.full_days, n - 1)
    shown: list[float | None] = [value if at <= running else None for at, value in enumerate(spent)]
    past = [value / MICRO for value in (month.before.sums if month.before else [])][:n]
    earlier: list[float | None] = [*past, *[None] * (n - len(past))]
    budget = None if month.budget is None else month.budget / MICRO
    low, high = forecast_band(month.days, month.end, running)
    known = [v for v in (*shown, *earlier, *high, budget) if v is not None]
    top, parts = nice_top(max(known, default=1.0) * 1.02)
    curves = [DrawnPart(_("Spent"), "plot-used", line_path(shown, top), "", amount(days.spent))]
    if any(earlier):
        curves.append(DrawnPart(_("Month before"), "plot-past is-dotted", line_path(earlier, top), "", ""))
    if budget is not None:
        flat: list[float | None] = [budget] * n
        text = amount(month.budget, places=0)
        curves.append(DrawnPart(_("Budget"), "plot-budget is-dashed", line_path(flat, top), "", text))
    if month.end is not None:
        curves.append(DrawnPart(_("Forecast"), "plot-forecast", "", "", ""))
    heads = [_("Spent"), _("Month before"), _("Forecast from"), _("Forecast to")]
    rows = [[_cell(shown[at]), _cell(earlier[at]), _cell(low[at]), _cell(high[at])] for at in range(n)]
    return Plot(
        title=_("How the budget runs down") if budget is not None else _("The month so far"),
        summary=forecast_text(month, unit),
        layers=[],
        curves=curves,
        columns=grounds([day_text(days.first, at) for at in range(n)], rows, heads),
        heads=heads,
        ticks=axis_ticks(top, parts),
        lines=axis_lines(parts),
        marks=[day_text(days.first, at) for at in range(0, n, 5)][:6],
        unit=_("%(currency)s since the first of the month; days in %(zone)s")
        % {"currency": unit, "zone": month.period.zone},
        url=url,
        link=link,
        band=band_path(low, high, top),
        is_empty=not days.spent and not any(earlier),
    )


def forecast_band(
    days: MonthDays, end: MonthEnd | None, running: int
) -> tuple[list[float | None], list[float | None]]:
    """Return the bounds of the forecast by day: from what is spent now to the end of the time."""
    n = days.n_days
    low: list[float | None] = [None] * n
    high: list[float | None] = [None] * n
    if end is None or running >= n - 1:
        return low, high
    spent = days.spent / MICRO
    for at in range(running, n):
        part = (at - running) / (n - 1 - running)
        # Around the likely path the spread grows with the root of the days, as that of a sum does.
        likely = spent + (end.likely / MICRO - spent) * part
        low[at] = max(spent, likely - (end.likely - end.low) / MICRO * part**0.5)
        high[at] = likely + (end.high - end.likely) / MICRO * part**0.5
    return low, high


def by_day(month: MonthSoFar, names: dict[int, str], unit: str, *, url: str, link: str) -> Plot:
    """Return the month as columns: each day's spend, the top teams on each other and the rest above them."""
    days, n = month.days, month.days.n_days
    ranked = top_teams(month)
    shown = range(min(days.full_days + 1, n))

    def values(amounts: Sequence[int]) -> list[float | None]:
        return [amounts[at] / MICRO if at in shown else None for at in range(n)]

    layers = [
        PlotLayer(
            names[pk],
            f"plot-{number}",
            values(days.by_team[pk]),
            text=amount(sum(days.by_team[pk]), places=0),
        )
        for number, pk in enumerate(ranked, start=1)
    ]
    others = [pk for pk in days.by_team if pk not in ranked and any(days.by_team[pk])]
    if others:
        rest = [sum(days.by_team[pk][at] for pk in others) for at in range(n)]
        name = ngettext("One other team", "%(n)d other teams", len(others)) % {"n": len(others)}
        layers.append(PlotLayer(name, "plot-rest", values(rest), text=amount(sum(rest), places=0)))
    top, parts = nice_top(max(days.totals, default=0) / MICRO)
    heads = [layer.name for layer in layers]
    rows = [[_cell(layer.values[at]) for layer in layers] for at in range(n)]
    return Plot(
        title=_("Spent by day"),
        summary=_("About %(n)s %(currency)s a day so far.")
        % {"n": tick_text(round(month.per_day / MICRO)), "currency": unit},
        layers=stacked(layers, top),
        curves=[],
        columns=grounds([day_text(days.first, at) for at in range(n)], rows, heads),
        heads=heads,
        ticks=axis_ticks(top, parts),
        lines=axis_lines(parts),
        marks=[day_text(days.first, at) for at in range(0, n, 5)][:6],
        unit=_("%(currency)s; days in %(zone)s, the last one still runs")
        % {"currency": unit, "zone": month.period.zone},
        url=url,
        link=link,
        is_empty=not days.spent,
    )


def top_teams(month: MonthSoFar, most: int = MOST_TEAMS) -> list[int]:
    """Return the ids of the teams that spent most, the first first."""
    spent = {pk: sum(days) for pk, days in month.days.by_team.items()}
    return [pk for pk in sorted(spent, key=lambda pk: (-spent[pk], pk)) if spent[pk]][:most]


def name_of(month: MonthSoFar) -> str:
    """Return the month as people write it: "November 2026"."""
    return date_format(month.days.first, pgettext("format of a month", "F Y"))


def invoice_url(slug: str, month: MonthSoFar) -> str:
    """Return the address of a team's invoice of the month, as it stands now."""
    return reverse("web:invoice", args=[slug, f"{month.days.first:%Y-%m}"])


def day_text(first: date, number: int) -> str:
    """Return the day so many days after the first one: "4 Nov"."""
    return date_format(first + timedelta(days=number), pgettext("format of a day", "j M"))


def _cell(value: float | None) -> str:
    return "–" if value is None else amount(value * MICRO)
