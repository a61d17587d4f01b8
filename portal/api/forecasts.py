"""How good forecasts are, over HTTP."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.representations import Row
from portal.api.responses import ResponseShape
from portal.api.wire import instant
from portal.leases.forecast_records import ForecastScore, quality
from portal.leases.promises import PromiseScore, promise_record
from portal.leases.published_snapshot import published_calibration
from portal.leases.states import WorkloadKind
from portal.policies.durations import DurationFigures, duration_figures
from portal.policies.selectors import active_policy
from scheduler.engine.calibration import LATEST

TAG = "requests"


class ScoreAnswer(ResponseShape):
    """How good some forecasts were; shares in thousandths, null where there is nothing to judge by."""

    samples = s.IntegerField()
    before_p50_milli = s.IntegerField(allow_null=True)
    before_p90_milli = s.IntegerField(allow_null=True)
    median_width_s = s.IntegerField(allow_null=True)


class WeekAnswer(ScoreAnswer):
    """The forecasts made in a week that begins on this day."""

    week = s.DateField()


class LengthAnswer(ScoreAnswer):
    """The forecasts whose likely wait was between these; null is open."""

    least_s = s.IntegerField()
    most_s = s.IntegerField(allow_null=True)


class OffAnswer(ResponseShape):
    """How far a way of guessing lengths is off, as factors: 2 is twice too long or twice too short."""

    median = s.FloatField()
    mean = s.FloatField()


class DurationsAnswer(ResponseShape):
    """How well the lengths of leases are predicted, on requests that were not learned from."""

    version = s.IntegerField()
    made_at = s.DateTimeField()
    requests = s.IntegerField()
    judged = s.IntegerField()
    predicted = OffAnswer(allow_null=True)
    asked = OffAnswer(allow_null=True)
    team_average = OffAnswer(allow_null=True)


class CalibrationAnswer(ResponseShape):
    """What was shown and what came. `learned_from` 0 means that the times shown are wide guesses."""

    overall = ScoreAnswer()
    weeks = WeekAnswer(many=True)
    lengths = LengthAnswer(many=True)
    learned_from = s.IntegerField()
    aimed_at_milli = s.IntegerField()
    durations = DurationsAnswer(allow_null=True)


class CalibrationEndpoint(Endpoint):
    """How good forecasts are."""

    @call("Read how good forecasts are", answer=CalibrationAnswer, tag=TAG)
    def get(self, request: Request) -> Response:
        """Say how many starts came before the time that was shown, by week and by length of the wait."""
        found, calibration = quality(now=timezone.now()), published_calibration()
        model = duration_figures()
        return Response(
            {
                "overall": _score(found.overall),
                "weeks": [{"week": one.label.isoformat(), **_score(one)} for one in found.weeks],
                "lengths": [
                    {"least_s": one.label[0], "most_s": one.label[1], **_score(one)} for one in found.lengths
                ],
                "learned_from": calibration.samples,
                "aimed_at_milli": round(LATEST * 1000),
                "durations": None if model is None else _durations(model),
            }
        )


class PromiseScoreAnswer(ResponseShape):
    """What came of the starts promised for a month; `work` null is all kinds of work together."""

    month = s.CharField()
    work = s.ChoiceField(WorkloadKind.choices, allow_null=True)
    promised = s.IntegerField()
    kept = s.IntegerField()
    missed = s.IntegerField()
    excused = s.IntegerField(help_text="The team's own limits held them up.")
    withdrawn = s.IntegerField(help_text="The wait ended before, without a start.")
    open = s.IntegerField()
    kept_milli = s.IntegerField(allow_null=True, help_text="Kept of those that were kept or missed.")


class PromisesAnswer(ResponseShape):
    """The record of promised starts, newest month first; `promises_now`: the policy in force promises starts."""

    promises_now = s.BooleanField()
    months = PromiseScoreAnswer(many=True)


class PromisesEndpoint(Endpoint):
    """How promised starts were kept."""

    @call("Read how promised starts were kept", answer=PromisesAnswer, tag=TAG)
    def get(self, request: Request) -> Response:
        """Say what came of promised starts in the last twelve months, by month and kind of work."""
        rows = promise_record(now=timezone.now())
        return Response(
            {"promises_now": active_policy().promise_p90, "months": [_promised(row) for row in rows]}
        )


def _promised(row: PromiseScore) -> Row:
    return {
        "month": f"{row.month:%Y-%m}",
        "work": str(row.work) if row.work else None,
        "promised": row.promised,
        "kept": row.kept,
        "missed": row.missed,
        "excused": row.excused,
        "withdrawn": row.withdrawn,
        "open": row.open,
        "kept_milli": row.kept_milli,
    }


def _score(one: ForecastScore) -> Row:
    return {
        "samples": one.samples,
        "before_p50_milli": one.before_p50_milli,
        "before_p90_milli": one.before_p90_milli,
        "median_width_s": one.width_s,
    }


def _durations(model: DurationFigures) -> Row:
    return {
        "version": model.version,
        "made_at": instant(model.made_at),
        "requests": model.requests,
        "judged": model.judged,
        "predicted": _off(model.predicted),
        "asked": _off(model.asked),
        "team_average": _off(model.team),
    }


def _off(pair: tuple[float, float] | None) -> dict[str, Any] | None:
    return None if pair is None else {"median": round(pair[0], 3), "mean": round(pair[1], 3)}
