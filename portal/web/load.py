"""What will be wanted: two weeks of demand, the forecast of the next one, and how good such forecasts were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext
from django.views.decorators.http import require_safe

from portal.common.clock import db_now
from portal.fleet.models import DeviceModel
from portal.load.access import LoadScope, scope_in_sight, sees_fleet
from portal.load.forecasts import forecast_of, peak_within, scores_of, series_of
from portal.load.hours import HOUR, full_hour
from portal.load.models import LoadForecast
from portal.teams.selectors import visible_teams
from portal.web.access import rights_of
from portal.web.charts import (
    DrawnPart,
    Plot,
    axis_lines,
    axis_ticks,
    band_path,
    clock,
    grounds,
    line_path,
    nice_top,
)
from scheduler.engine.learning.load import AHEAD, DAY, LEAST_HOURS, WEEK, SpanScore

PAST = 2 * WEEK
STEP = 3  # hours of one point of the picture


@dataclass(frozen=True)
class SpanRow:
    """One span of hours ahead: errors in devices, and which way is used."""

    label: str
    model: str
    naive: str
    inside: str
    instants: int
    uses_model: bool


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show the demand of the fleet, of a pool or of a team."""
    rights, now = rights_of(request), db_now()
    scope = scope_in_sight(rights, pool=request.GET.get("pool", ""), team=request.GET.get("team", ""))
    row = stored_forecast(scope)
    scores = scores_of(row) if row else []
    context: dict[str, Any] = {
        "scope": scope,
        "name": scope_name(scope),
        "pools": list(DeviceModel.objects.order_by("name")) if sees_fleet(rights) else [],
        "teams": list(visible_teams(rights).order_by("name", "pk")),
        "sees_fleet": sees_fleet(rights),
        "picture": demand_picture(scope, row, now=now),
        "forecast": row,
        "scores": [_score(score) for score in scores],
        "verdict": verdict(row),
    }
    return render(request, "web/load.html", context)


def stored_forecast(scope: LoadScope) -> LoadForecast | None:
    """Return the forecast of a scope, None where none was made yet."""
    return forecast_of(
        model=scope.pool.pk if scope.pool else None, team=scope.team.pk if scope.team else None
    )


def scope_name(scope: LoadScope) -> str:
    """Return of what demand is told."""
    if scope.pool is not None:
        return scope.pool.name
    return scope.team.name if scope.team is not None else _("Whole fleet")


def verdict(row: LoadForecast | None) -> str:
    """Return in one sentence which forecast is used, and why."""
    if row is None:
        return _("Nothing was wanted yet. A forecast needs a week of hours, and four weeks to be judged.")
    scores = scores_of(row)
    if not scores:
        days = -(-(LEAST_HOURS - row.hours) // DAY)
        missing = ngettext("%(n)d more day", "%(n)d more days", days) % {"n": days}
        if not row.likely:
            return _(
                "Too little history: a forecast needs a week. To learn and to judge it needs %(missing)s."
            ) % {"missing": missing}
        return _(
            "The forecast is the same hour last week: to learn and to judge more it needs %(missing)s of history."
        ) % {"missing": missing}
    better = [span_text(score) for score in scores if score.uses_model]
    if len(better) == len(scores):
        return _("The model erred less than the same hour last week, so it is used for all of the week.")
    if not better:
        return _("The model erred no less than the same hour last week, so that is used.")
    return _(
        "The model is used for %(spans)s: there it erred less. For the rest it is the same hour last week."
    ) % {"spans": pgettext("between spans of time", ", ").join(better)}


def next_day_text(*, now: datetime) -> str:
    """Return when in the next 24 hours most of the fleet will be wanted, "" where nothing can be forecast."""
    row = forecast_of()
    begin = full_hour(now)
    peak = peak_within(row, [begin + n * HOUR for n in range(DAY)]) if row is not None else None
    if row is None or peak is None:
        return ""
    at, most = peak
    ahead = (at - row.until) // HOUR + 1
    is_model = any(score.uses_model and score.first <= ahead <= score.last for score in scores_of(row))
    values = {"n": devices(most), "time": clock(at)}
    if is_model:
        return _("Most demand is expected at %(time)s: %(n)s devices, by the model.") % values
    return _("Most demand is expected at %(time)s: %(n)s devices, as in the same hour last week.") % values


def span_text(score: SpanScore) -> str:
    """Return a span of hours ahead in words."""
    if score.last == 1:
        return _("the next hour")
    if score.last <= DAY:
        return _("the next day")
    return _("days 2 to 7")


def demand_picture(scope: LoadScope, row: LoadForecast | None, *, now: datetime) -> Plot:
    """Return two weeks past and the forecast week as lines, each point the mean of three hours."""
    until = row.until if row else full_hour(now)
    past = series_of(
        scope.pool.pk if scope.pool else None,
        scope.team.pk if scope.team else None,
        since=until - PAST * HOUR,
        until=until,
    )
    held, wanted = _means([one for one, _w in past]), _means([one + waited for one, waited in past])
    if row is not None and row.hours < PAST:
        # Before the first hour of all nothing is known.
        unknown = (PAST - row.hours) // STEP
        held[:unknown], wanted[:unknown] = [None] * unknown, [None] * unknown
    n_past, n_ahead = len(held), AHEAD // STEP
    none: list[float | None] = [None] * n_past
    likely, naive, low, high = (
        none + (_means(values) or [None] * n_ahead)
        for values in ((row.likely, row.naive, row.low, row.high) if row else ([], [], [], []))
    )
    held, wanted = held + [None] * n_ahead, wanted + [None] * n_ahead
    top, parts = nice_top(
        max((v for v in (*wanted, *likely, *naive, *high) if v is not None), default=0.0) * 1.02
    )
    curves = [
        DrawnPart(pgettext("devices", "Held"), "plot-past", line_path(held, top), "", ""),
        DrawnPart(_("Held or waited for"), "plot-used", line_path(wanted, top), "", ""),
    ]
    if row is not None and row.likely:
        curves.append(
            DrawnPart(_("Same hour last week"), "plot-budget is-dotted", line_path(naive, top), "", "")
        )
        curves.append(DrawnPart(_("Forecast"), "plot-mark", line_path(likely, top), "", ""))
    heads = [
        pgettext("devices", "Held"), _("Held or waited for"), _("Forecast"), _("Forecast from"), _("Forecast to"),
        _("Same hour last week"),
    ]  # fmt: skip
    labels = [_moment(until + (STEP * n - PAST) * HOUR) for n in range(n_past + n_ahead)]
    rows = [[_cell(v) for v in cells] for cells in zip(held, wanted, likely, low, high, naive, strict=True)]
    return Plot(
        title=_("Two weeks past, one to come"),
        summary=verdict(row),
        layers=[],
        curves=curves,
        columns=grounds(labels, rows, heads),
        heads=heads,
        ticks=axis_ticks(top, parts),
        lines=axis_lines(parts),
        marks=[
            date_format(timezone.localtime(until + timedelta(days=days)), "MONTH_DAY_FORMAT")
            for days in range(-14, 7, 7)
        ],
        unit=_("Devices on average over three hours; slices count by their share"),
        url=scope_url(scope),
        link="",
        band=band_path(low, high, top),
        is_empty=not any(v for v in wanted if v) and not (row and any(row.likely)),
    )


def scope_url(scope: LoadScope) -> str:
    """Return the address of the page about a scope."""
    named = {"pool": scope.pool.slug} if scope.pool else {"team": scope.team.slug} if scope.team else {}
    return reverse("web:load") + (f"?{urlencode(named)}" if named else "")


def devices(milli: float) -> str:
    """Return thousandths of a device as devices."""
    return number_format(milli / 1000, decimal_pos=1, use_l10n=True, force_grouping=True)


def _score(score: SpanScore) -> SpanRow:
    return SpanRow(
        span_text(score),
        number_format(score.model / 1000, decimal_pos=2, use_l10n=True),
        number_format(score.naive / 1000, decimal_pos=2, use_l10n=True),
        f"{score.inside_milli // 10} %",
        score.instants,
        score.uses_model,
    )


def _means(values: Sequence[float]) -> list[float | None]:
    """Return devices on average over each ``STEP`` hours of thousandths by hour."""
    return [sum(values[n : n + STEP]) / STEP / 1000 for n in range(0, len(values), STEP)]


def _moment(at: datetime) -> str:
    return date_format(timezone.localtime(at), "D j H:i")


def _cell(value: float | None) -> str:
    return "–" if value is None else number_format(value, decimal_pos=1, use_l10n=True)
