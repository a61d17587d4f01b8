"""Demand and its forecast, over HTTP."""

from __future__ import annotations

from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call, query
from portal.api.endpoint import Endpoint
from portal.api.representations import Row
from portal.api.responses import ResponseShape
from portal.api.wire import instant
from portal.common.clock import db_now
from portal.load.access import scope_in_sight
from portal.load.forecasts import scores_of, series_of
from portal.load.hours import HOUR, full_hour
from portal.web.load import PAST, stored_forecast, verdict
from scheduler.engine.learning.load import LEAST_HOURS


class DemandHour(ResponseShape):
    """An hour of the past, thousandths of a device on average."""

    at = s.DateTimeField()
    held_milli = s.IntegerField()
    waited_milli = s.IntegerField()


class ForecastHour(ResponseShape):
    """An hour to come, thousandths of a device on average; bounds are null where none can be told yet."""

    at = s.DateTimeField()
    likely_milli = s.IntegerField()
    naive_milli = s.IntegerField(help_text="The same hour last week.")
    low_milli = s.IntegerField(allow_null=True)
    high_milli = s.IntegerField(allow_null=True)


class SpanScoreAnswer(ResponseShape):
    """How both ways did for a span of hours ahead: mean absolute errors in thousandths of a device."""

    first = s.IntegerField()
    last = s.IntegerField()
    instants = s.IntegerField()
    model_milli = s.IntegerField()
    naive_milli = s.IntegerField()
    inside_milli = s.IntegerField(help_text="Thousandths of what came that lay in the interval; aim: 800.")
    uses_model = s.BooleanField()


class DemandAnswer(ResponseShape):
    """Two weeks of demand and the week to come; `version` and `made_at` are null where nothing was forecast yet."""

    pool = s.CharField(allow_null=True)
    team = s.CharField(allow_null=True)
    version = s.IntegerField(allow_null=True)
    made_at = s.DateTimeField(allow_null=True)
    hours = s.IntegerField(help_text="Hours of history that are known, at most ten weeks.")
    hours_needed = s.IntegerField(help_text="To learn and to judge the model.")
    verdict = s.CharField()
    past = DemandHour(many=True)
    ahead = ForecastHour(many=True)
    scores = SpanScoreAnswer(many=True)


class DemandEndpoint(Endpoint):
    """Demand and its forecast."""

    parameters = frozenset({"pool", "team"})

    @call(
        "Read demand and its forecast", answer=DemandAnswer, refusals=(404,), tag="requests",
        parameters=[
            query("pool", "Slug of a device model. For operators and finance."),
            query("team", "Slug of a team: it and all teams below it."),
        ],
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """Read what was held and waited for by hour, what to expect, and how good such forecasts were.

        With neither pool nor team it is the whole fleet for operators and finance, for others their first team.
        """
        asked = request.query_params
        scope = scope_in_sight(self.rights, pool=asked.get("pool", ""), team=asked.get("team", ""))
        row, now = stored_forecast(scope), db_now()
        until = row.until if row else full_hour(now)
        known = min(PAST, row.hours) if row else 0
        past = series_of(
            scope.pool.pk if scope.pool else None,
            scope.team.pk if scope.team else None,
            since=until - known * HOUR,
            until=until,
        )
        ahead: list[Row] = []
        if row is not None:
            none: list[float | None] = [None] * len(row.likely)
            low, high = [*row.low] or none, [*row.high] or none
            ahead = [
                {
                    "at": instant(until + n * HOUR),
                    "likely_milli": round(likely),
                    "naive_milli": round(naive),
                    "low_milli": None if least is None else round(least),
                    "high_milli": None if most is None else round(most),
                }
                for n, (likely, naive, least, most) in enumerate(
                    zip(row.likely, row.naive, low, high, strict=True)
                )
            ]
        return Response(
            {
                "pool": scope.pool.slug if scope.pool else None,
                "team": scope.team.slug if scope.team else None,
                "version": row.version if row else None,
                "made_at": instant(row.made_at) if row else None,
                "hours": row.hours if row else 0,
                "hours_needed": LEAST_HOURS,
                "verdict": verdict(row),
                "past": [
                    {
                        "at": instant(until + (n - known) * HOUR),
                        "held_milli": round(held),
                        "waited_milli": round(waited),
                    }
                    for n, (held, waited) in enumerate(past)
                ],
                "ahead": ahead,
                "scores": [
                    {
                        "first": score.first,
                        "last": score.last,
                        "instants": score.instants,
                        "model_milli": round(score.model),
                        "naive_milli": round(score.naive),
                        "inside_milli": score.inside_milli,
                        "uses_model": score.uses_model,
                    }
                    for score in (scores_of(row) if row else [])
                ],
            }
        )
