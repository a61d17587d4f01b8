"""How a budget runs down as a picture: spend, forecast, the budget and its thresholds."""

from __future__ import annotations

from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from portal.billing.budgets import BudgetCourse
from portal.billing.periods import zone_at
from portal.budgets.models import BudgetAction
from portal.web.charts import DrawnPart, Plot, axis_lines, axis_ticks, band_path, grounds, line_path, nice_top
from portal.web.home.months import MICRO, amount, day_text, forecast_band

MOST_MARKS = 6


def budget_picture(course: BudgetCourse, unit: str, *, url: str, link: str) -> Plot:
    """Return the running period as lines: spent up to each day, the forecast, the budget and its thresholds."""
    days, n, budget = course.days, course.days.n_days, course.budget
    running = min(days.full_days, n - 1)
    spent = [value / MICRO for value in days.sums]
    shown: list[float | None] = [value if at <= running else None for at, value in enumerate(spent)]
    low, high = forecast_band(days, course.end, running)
    levels = sorted({t.percent for t in budget.thresholds.all()} | {100})
    drawn = [percent for percent in levels if percent <= max(150, course.percent)]
    known = [v for v in (*shown, *high) if v is not None]
    known += [budget.amount_micro * percent / 100 / MICRO for percent in drawn]
    top, parts = nice_top(max(known, default=1.0) * 1.02)
    curves = [DrawnPart(_("Spent"), "plot-used", line_path(shown, top), "", amount(days.spent))]
    for percent in drawn:
        micro = budget.amount_micro * percent // 100
        flat: list[float | None] = [micro / MICRO] * n
        css = "plot-budget is-dashed" if percent == 100 else f"{_tone(course, percent)} is-dotted"
        name = _("Budget") if percent == 100 else f"{percent} %"
        curves.append(DrawnPart(name, css, line_path(flat, top), "", amount(micro, places=0)))
    if course.end is not None:
        curves.append(DrawnPart(_("Forecast"), "plot-forecast", "", "", ""))
    heads = [_("Spent"), _("Forecast from"), _("Forecast to")]
    rows = [[_cell(shown[at]), _cell(low[at]), _cell(high[at])] for at in range(n)]
    step = max(5, -(-n // MOST_MARKS))
    return Plot(
        title=_("How the budget runs down"),
        summary=course_text(course, unit),
        layers=[],
        curves=curves,
        columns=grounds([day_text(days.first, at) for at in range(n)], rows, heads),
        heads=heads,
        ticks=axis_ticks(top, parts),
        lines=axis_lines(parts),
        marks=[day_text(days.first, at) for at in range(0, n, step)][:MOST_MARKS],
        unit=_("%(currency)s since %(day)s; days in %(zone)s")
        % {"currency": unit, "day": day_text(days.first, 0), "zone": zone_at(days.first)},
        url=url,
        link=link,
        band=band_path(low, high, top),
    )


def course_text(course: BudgetCourse, unit: str) -> str:
    """Return how the period will probably end and when the budget is used up, in two sentences."""
    if course.runs_out_on is not None and course.standing.spent >= course.budget.amount_micro:
        used_up = _("It is used up since %(day)s.") % {"day": _date(course.runs_out_on)}
    elif course.runs_out_on is not None:
        used_up = _("It will probably be used up on %(day)s, on %(early)s at the earliest.") % {
            "day": _date(course.runs_out_on), "early": _date(course.earliest_on or course.runs_out_on),
        }  # fmt: skip
    elif course.earliest_on is not None:
        used_up = _("It will probably last; it may be used up on %(early)s.") % {
            "early": _date(course.earliest_on)
        }
    else:
        used_up = _("By the forecast it lasts.")
    if course.end is None:
        said = _("No forecast yet: it needs a week of full days.")
        return _both(said, used_up) if course.runs_out_on else said
    said = _("At the end it will probably be %(low)s to %(high)s %(currency)s, in eight of ten cases.") % {
        "low": amount(course.end.low, places=0),
        "high": amount(course.end.high, places=0),
        "currency": unit,
    }
    return _both(said, used_up)


def _both(first: str, second: str) -> str:
    return pgettext("sentences", "%(first)s %(second)s") % {"first": first, "second": second}


def _tone(course: BudgetCourse, percent: int) -> str:
    """Return how a threshold is drawn: what stops everything is red."""
    actions = {t.action for t in course.budget.thresholds.all() if t.percent == percent}
    return "plot-block" if BudgetAction.BLOCK in actions else "plot-mark"


def _date(day: object) -> str:
    return date_format(day, pgettext("format of a day", "j M"))  # type: ignore[arg-type]


def _cell(value: float | None) -> str:
    return "–" if value is None else amount(value * MICRO)
