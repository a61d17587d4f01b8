"""Budgets of teams over HTTP."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import IF_MATCH, call
from portal.api.endpoint import Endpoint
from portal.api.errors import PreconditionFailed, PreconditionRequired
from portal.api.fields import AmountField, Body, Flag, Text, Whole
from portal.api.idempotency import once
from portal.api.pagination import MAX_FEED_SIZE
from portal.api.representations import Row
from portal.api.responses import Money, ResponseShape
from portal.api.spend_days import MonthEndAnswer
from portal.api.wire import instant, money
from portal.billing.budgets import BudgetCourse, budget_course
from portal.billing.selectors import currency
from portal.budgets.models import BudgetAction, BudgetCrossing, SpendBasis, TeamBudget
from portal.budgets.periods import month_start
from portal.budgets.services import (
    MOST_THRESHOLDS,
    BudgetSpec,
    ThresholdSpec,
    change_budget,
    end_budget,
    make_budget,
    may_set_budget,
)
from portal.common.clock import db_now
from portal.common.errors import Forbidden, Invalid, NotFound
from portal.common.months import next_month
from portal.teams.models import Team
from portal.teams.selectors import Rights, visible_team

TAG = "teams"


@extend_schema_field({"type": "string", "pattern": r"^(\d{4}-\d{2}|this)$", "examples": ["2026-11"]})
class MonthField(s.Field):  # type: ignore[type-arg]
    """A month, written as 2026-11, or the running one as ``this``; its value is the first day."""

    default_error_messages = {"invalid": _("Write the month like 2026-11.")}

    def to_internal_value(self, data: Any) -> date:
        """Return the first day of the month; ``this`` is the running one."""
        if data == "this":
            return month_start(db_now())
        try:
            found = date.fromisoformat(f"{data}-01") if isinstance(data, str) and len(data) == 7 else None
        except ValueError:
            found = None
        if found is None or not 2000 <= found.year <= 2999:
            self.fail("invalid")
        return found

    def to_representation(self, value: Any) -> Any:
        """Return the value as it is: answers are shaped elsewhere."""
        return value


class ThresholdBody(Body):
    """From how many percent on what happens, by spend or by forecast."""

    percent = Whole(least=1, most=1000)
    action = Text(most=12)
    basis = Text(most=8, required=False, default=str(SpendBasis.ACTUAL))


class BudgetBody(Body):
    """An amount for each month from the first to the last, or for all of them together."""

    amount = AmountField()
    is_monthly = Flag(required=False, default=True)
    first_month = MonthField()
    last_month = MonthField(required=False, default=None, allow_null=True)
    thresholds = s.ListField(child=ThresholdBody(), required=False, default=list, max_length=MOST_THRESHOLDS)


class ThresholdAnswer(ResponseShape):
    """A threshold of a budget; ``reached_at`` is when it was reached in the running period."""

    percent = s.IntegerField()
    basis = s.ChoiceField(SpendBasis.choices)
    action = s.ChoiceField(BudgetAction.choices)
    reached_at = s.DateTimeField(allow_null=True)


class BudgetNow(ResponseShape):
    """How the running period of a budget stands: with the teams below, running leases included."""

    first_month = s.CharField()
    last_month = s.CharField()
    spent = Money()
    held = Money(help_text="What live leases would cost from now to their end.")
    waiting = Money(help_text="The quotes of what waits.")
    percent = s.IntegerField(help_text="Spent, in whole percent of the amount.")
    forecast = MonthEndAnswer(allow_null=True, help_text="How the period will probably end.")
    runs_out_on = s.DateField(allow_null=True, help_text="Null: it lasts, or nobody knows yet.")
    earliest_on = s.DateField(allow_null=True, help_text="The same at the upper end of the forecast.")


class BudgetAnswer(ResponseShape):
    """What a team and those below it may spend."""

    id = s.IntegerField()
    team = s.SlugField()
    amount = Money()
    is_monthly = s.BooleanField()
    first_month = s.CharField()
    last_month = s.CharField(allow_null=True)
    thresholds = ThresholdAnswer(many=True)
    version = s.IntegerField()
    now = BudgetNow(allow_null=True, help_text="Null where it is not in force.")


class Budgets(Endpoint):
    """The budgets of a team."""

    @call("List budgets", answer=BudgetAnswer, is_list=True, refusals=(404,), tag=TAG)
    def get(self, request: Request, slug: str) -> Response:
        """List the budgets of a team, the latest first; the one in force says how it stands."""
        team, now = visible_team(self.rights, slug), db_now()
        rows = TeamBudget.objects.filter(team=team).prefetch_related("thresholds")[:MAX_FEED_SIZE]
        return Response({"next": None, "results": [budget_row(row, team, now=now) for row in rows]})

    @call("Make a budget", body=BudgetBody, answer=BudgetAnswer, status=201, refusals=(404, 422), tag=TAG)
    @once
    def post(self, request: Request, slug: str) -> Response:
        """Give a team a budget from this month or a later one on: finance, or an admin of a team above."""
        team, now = _team_to_decide_on(self.rights, slug), db_now()
        spec = _spec(self.take(BudgetBody))
        try:
            made = make_budget(team=team, actor=self.person, rights=self.rights, spec=spec, now=now)
        except Invalid as error:
            raise _renamed(error) from error
        at = f"/api/v1/teams/{team.slug}/budgets/{made.pk}/"
        return Response(budget_row(made, team, now=now), status=201, headers={"Location": at})


class OneBudget(Endpoint):
    """One budget of a team."""

    @call("Read a budget", answer=BudgetAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, slug: str, key: int) -> Response:
        """Read a budget; its ETag is what an edit must send back."""
        return _answer(_budget(visible_team(self.rights, slug), key))

    @call(
        "Change a budget", body=BudgetBody, answer=BudgetAnswer, parameters=[IF_MATCH],
        refusals=(400, 404, 409, 412, 415, 422, 428), tag=TAG,
    )  # fmt: skip
    def put(self, request: Request, slug: str, key: int) -> Response:
        """Change amount, months and thresholds; what has begun keeps its first month. Finance, or an admin above."""
        team = _team_to_decide_on(self.rights, slug)
        tag, spec = request.headers.get("If-Match"), _spec(self.take(BudgetBody))
        if tag is None:
            raise PreconditionRequired
        row = _budget(team, key)
        if tag.strip() != f'"{row.version}"':
            raise PreconditionFailed
        try:
            change_budget(
                team=team, budget_id=key, actor=self.person, rights=self.rights, spec=spec,
                version=row.version, now=db_now(),
            )  # fmt: skip
        except Invalid as error:
            raise _renamed(error) from error
        return _answer(_budget(team, key))

    @call("End a budget", status=204, refusals=(404, 409), tag=TAG)
    def delete(self, request: Request, slug: str, key: int) -> Response:
        """End a budget with the running month; one that has not begun is taken back. Finance, or an admin above."""
        team = _team_to_decide_on(self.rights, slug)
        end_budget(team=team, budget_id=key, actor=self.person, rights=self.rights, now=db_now())
        return Response(status=204)


def _team_to_decide_on(rights: Rights, slug: str) -> Team:
    team = visible_team(rights, slug)
    if not may_set_budget(rights, team):
        raise Forbidden(_("Finance or an admin of a team above decides on this budget."))
    return team


def _budget(team: Team, key: int) -> TeamBudget:
    row = TeamBudget.objects.filter(team=team, pk=key).prefetch_related("thresholds").first()
    if row is None:
        raise NotFound
    row.team = team
    return row


def _answer(row: TeamBudget) -> Response:
    return Response(budget_row(row, row.team, now=db_now()), headers={"ETag": f'"{row.version}"'})


def _spec(values: dict[str, Any]) -> BudgetSpec:
    last = values["last_month"]
    return BudgetSpec(
        amount_micro=values["amount"],
        starts_on=values["first_month"],
        ends_before=last and next_month(last),
        is_monthly=values["is_monthly"],
        thresholds=tuple(ThresholdSpec(t["percent"], t["action"], t["basis"]) for t in values["thresholds"]),
    )


def _renamed(error: Invalid) -> Invalid:
    """Return a refusal with the fields as the API calls them."""
    names = {"starts_on": "first_month", "ends_before": "last_month"}
    return Invalid(fields={names.get(name, name): text for name, text in error.fields.items()})


def budget_row(row: TeamBudget, team: Team, *, now: datetime) -> Row:
    """Return a budget with how it stands where it is in force; its thresholds should be at hand."""
    unit, course = currency(), budget_course(team, row, now=now)
    crossings = BudgetCrossing.objects.filter(budget=row, since=course.months.since) if course else []
    reached = {(c.basis, c.percent, c.action): c.at for c in crossings}
    return {
        "id": row.pk,
        "team": team.slug,
        "amount": money(row.amount_micro, unit),
        "is_monthly": row.is_monthly,
        "first_month": f"{row.starts_on:%Y-%m}",
        "last_month": row.ends_before and f"{row.ends_before - timedelta(days=1):%Y-%m}",
        "thresholds": [
            {
                "percent": one.percent,
                "basis": one.basis,
                "action": one.action,
                "reached_at": instant(reached.get((one.basis, one.percent, one.action))),
            }
            for one in row.thresholds.all()
        ],
        "version": row.version,
        "now": course and _course_row(course, unit),
    }


def _course_row(course: BudgetCourse, unit: str) -> Row:
    end = course.end
    return {
        "first_month": f"{course.months.since:%Y-%m}",
        "last_month": f"{course.months.until - timedelta(days=1):%Y-%m}",
        "spent": money(course.standing.spent, unit),
        "held": money(course.standing.held, unit),
        "waiting": money(course.standing.waiting, unit),
        "percent": course.percent,
        "forecast": end
        and {
            "low": money(end.low, unit),
            "likely": money(end.likely, unit),
            "high": money(end.high, unit),
            "days": end.days,
        },
        "runs_out_on": course.runs_out_on and course.runs_out_on.isoformat(),
        "earliest_on": course.earliest_on and course.earliest_on.isoformat(),
    }
