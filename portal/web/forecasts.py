"""How good our forecasts are: what was shown, what came, and how well lengths are predicted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.common.moments import span
from portal.leases.forecast_records import WEEKS, ForecastScore, quality
from portal.leases.promises import PromiseScore, promise_record
from portal.leases.published_snapshot import published_calibration
from portal.policies.durations import DurationFigures, duration_figures
from portal.policies.selectors import active_policy

AIM_PERCENT = 90


@dataclass(frozen=True)
class ScoreRow:
    """How good some forecasts were, in whole percent; None where there are none to judge by."""

    label: str
    samples: int
    before_p50: int | None
    before_p90: int | None
    width: str | None
    is_kept: bool


@dataclass(frozen=True)
class ErrorRow:
    """How far a way of guessing lengths is off: factors, "1.8" is too long or too short by that factor."""

    label: str
    median: str | None
    mean: str | None


@dataclass(frozen=True)
class PromiseRow:
    """What came of the starts promised for a month, all together (``work`` "") or of a kind of work."""

    month: date
    work: str
    promised: int
    kept: int
    missed: int
    excused: int
    withdrawn: int
    open: int
    kept_percent: int | None
    is_good: bool


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show the figures; there are no names in them, so everybody may see them."""
    now = timezone.now()
    found, model = quality(now=now), duration_figures()
    context: dict[str, Any] = {
        "overall": _row(found.overall, _("All")),
        "weeks": [_row(score, _week(score)) for score in found.weeks],
        "lengths": [_row(score, _length(score)) for score in found.lengths],
        "week_count": WEEKS,
        "is_wide": published_calibration().samples == 0,
        "promises": [_promised(score) for score in promise_record(now=now)],
        "promises_now": active_policy().promise_p90,
        "model": model,
        "errors": _errors(model) if model else [],
    }
    return render(request, "web/forecasts.html", context)


def _row(score: ForecastScore, label: str) -> ScoreRow:
    before_p90 = _percent(score.before_p90_milli)
    return ScoreRow(
        label=label,
        samples=score.samples,
        before_p50=_percent(score.before_p50_milli),
        before_p90=before_p90,
        width=span(score.width_s),
        is_kept=before_p90 is None or before_p90 >= AIM_PERCENT,
    )


def _promised(score: PromiseScore) -> PromiseRow:
    percent = _percent(score.kept_milli)
    return PromiseRow(
        month=score.month,
        work=str(score.work.label) if score.work else "",
        promised=score.promised,
        kept=score.kept,
        missed=score.missed,
        excused=score.excused,
        withdrawn=score.withdrawn,
        open=score.open,
        kept_percent=percent,
        is_good=percent is None or percent >= AIM_PERCENT,
    )


def _percent(milli: int | None) -> int | None:
    return None if milli is None else milli // 10


def _week(score: ForecastScore) -> str:
    return _("week of %(day)s") % {"day": date_format(score.label, "MONTH_DAY_FORMAT")}


def _length(score: ForecastScore) -> str:
    least, most = score.label
    if most is None:
        return _("longer than %(most)s") % {"most": span(least)}
    if not least:
        return _("less than %(least)s") % {"least": span(most)}
    return _("%(least)s to %(most)s") % {"least": span(least), "most": span(most)}


def _errors(model: DurationFigures) -> list[ErrorRow]:
    return [
        ErrorRow(_("Our prediction"), *_factors(model.predicted)),
        ErrorRow(_("The time people ask for"), *_factors(model.asked)),
        ErrorRow(_("The team's average"), *_factors(model.team)),
    ]


def _factors(pair: tuple[float, float] | None) -> tuple[str | None, str | None]:
    return (None, None) if pair is None else (f"× {pair[0]:.2f}", f"× {pair[1]:.2f}")
