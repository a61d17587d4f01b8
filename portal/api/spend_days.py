"""A team's month day by day over HTTP, with how it will probably end."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.money import month_of
from portal.api.responses import Money, ResponseShape
from portal.api.wire import money
from portal.billing.daily import month_so_far
from portal.billing.selectors import currency
from portal.teams.models import Team
from portal.teams.selectors import visible_team

TAG = "teams"


class SpendDay(ResponseShape):
    """What was spent on one day of the month."""

    day = s.DateField()
    spend = Money()


class MonthEndAnswer(ResponseShape):
    """How the month will probably end: eight of ten such months between low and high."""

    low = Money()
    likely = Money()
    high = Money()
    days = s.IntegerField(help_text="So many full days it was learned from.")


class SpendDaysAnswer(ResponseShape):
    """The running month of a team and the teams below it; `forecast` is null without a week of full days."""

    month = s.CharField()
    budget = Money(allow_null=True)
    days = SpendDay(many=True)
    forecast = MonthEndAnswer(allow_null=True)


class SpendDaysEndpoint(Endpoint):
    """What a team costs day by day."""

    @call("Read a team's month by day", answer=SpendDaysAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, slug: str) -> Response:
        """Read what a team and the teams below it cost on each day of this month, and how it will probably end."""
        team, now, unit = visible_team(self.rights, slug), timezone.now(), currency()
        below = list(Team.objects.filter(lineage__contains=[team.pk]))
        month = month_so_far(team, below, now=now)
        shown = month.days.totals[: month.days.full_days + 1]
        return Response(
            {
                "month": month_of(month.period),
                "budget": None if month.budget is None else money(month.budget, unit),
                "days": [
                    {"day": (month.days.first + timedelta(days=n)).isoformat(), "spend": money(micro, unit)}
                    for n, micro in enumerate(shown)
                ],
                "forecast": month.end
                and {
                    "low": money(month.end.low, unit),
                    "likely": money(month.end.likely, unit),
                    "high": money(month.end.high, unit),
                    "days": month.end.days,
                },
            }
        )
