"""What lists can be narrowed by; each filter is bounded and shows up in the schema."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import django_filters as f
from django.core.exceptions import ValidationError
from django.db.models import QuerySet, Subquery
from django.utils.translation import gettext_lazy as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter

from portal.api.describe import PAGING, query
from portal.api.pagination import PARAMETERS
from portal.audit.models import AuditEntry
from portal.billing.models import UsageRecord
from portal.fleet.models import Device, Health
from portal.jobs.models import Job
from portal.jobs.states import JobState
from portal.leases.models import Lease, LeaseEvent, LeaseRequest
from portal.leases.states import EndReason, LeaseState, RequestState
from portal.teams.models import Team


class Filters(f.FilterSet):
    """A set of filters that also describes itself."""

    @classmethod
    def names(cls) -> frozenset[str]:
        """Return every parameter a list with these filters takes."""
        return PARAMETERS | frozenset(cls.base_filters)

    @classmethod
    def parameters(cls) -> Sequence[OpenApiParameter]:
        """Return the parameters for the schema."""
        return (*PAGING, *(_parameter(name, found) for name, found in cls.base_filters.items()))


def text(field: str, label: str, *, most: int = 60, lookup: str = "exact") -> f.CharFilter:
    """Return a filter by text."""
    return f.CharFilter(field_name=field, lookup_expr=lookup, label=label, max_length=most)


def of_team(label: str) -> f.CharFilter:
    """Return a filter by a team's slug that is read from an index of the team's own rows, in order."""

    def narrowed(rows: QuerySet[Any], _name: str, slug: str) -> QuerySet[Any]:
        return rows.filter(team=Subquery(Team.objects.filter(slug=slug).order_by().values("pk")[:1]))

    return f.CharFilter(method=narrowed, label=label, max_length=60)


def moment(field: str, lookup: str, label: str) -> f.IsoDateTimeFilter:
    """Return a filter by an instant (RFC 3339)."""
    return f.IsoDateTimeFilter(field_name=field, lookup_expr=lookup, label=label, validators=[_in_our_time])


def _in_our_time(at: datetime) -> None:
    """Raise ValidationError for years that databases and calendars disagree about."""
    if not 2000 <= at.year <= 2999:
        raise ValidationError(_("Give a time between the years 2000 and 2999."))


def choice(field: str, choices: Any, label: str) -> f.MultipleChoiceFilter:
    """Return a filter that takes one of the choices, repeated for several."""
    # Of a column of the row itself: nothing can come twice, and sorting all rows to see so takes long.
    return f.MultipleChoiceFilter(field_name=field, choices=choices, label=label, distinct=False)


class RequestFilters(Filters):
    """Requests by state, team, author, flavor and time."""

    state = choice("state", RequestState.choices, "State; repeat for several.")
    team = of_team("Slug of the team.")
    author = text("author__username", "Who asked.", most=150)
    flavor = text("flavor__slug", "Slug of the flavor.")
    submitted_after = moment("submitted_at", "gte", "Asked at or after this instant.")
    submitted_before = moment("submitted_at", "lt", "Asked before this instant.")

    class Meta:
        model = LeaseRequest
        fields: list[str] = []


class JobFilters(Filters):
    """Jobs by state, team, person, array and time."""

    state = choice("state", JobState.choices, "State; repeat for several.")
    team = text("team__slug", "Slug of the team.")
    user = text("user__username", "Whose it is.", most=150)
    array = text("array__uid", "Name of the array.")
    submitted_after = moment("submitted_at", "gte", "Handed in at or after this instant.")
    submitted_before = moment("submitted_at", "lt", "Handed in before this instant.")

    class Meta:
        model = Job
        fields: list[str] = []


class LeaseFilters(Filters):
    """Leases by state, team, holder, flavor, node, request and time."""

    state = choice("state", LeaseState.choices, "State; repeat for several.")
    end_reason = choice("end_reason", [c for c in EndReason.choices if c[0]], "Why it ended.")
    team = of_team("Slug of the team.")
    user = text("user__username", "Who holds it.", most=150)
    flavor = text("flavor__slug", "Slug of the flavor.")
    node = text("node__name", "Name of the node.")
    request = text("request__uid", "Id of its request.", most=40)
    ended_after = moment("ended_at", "gte", "Ended at or after this instant.")
    ended_before = moment("ended_at", "lt", "Ended before this instant.")

    class Meta:
        model = Lease
        fields: list[str] = []


class LeaseEventFilters(Filters):
    """Steps of leases by lease and time."""

    lease = text("lease__uid", "Id of the lease.", most=40)
    since = moment("at", "gte", "At or after this instant.")

    class Meta:
        model = LeaseEvent
        fields: list[str] = []


class UsageFilters(Filters):
    """Usage records by team, lease and month."""

    team = of_team("Slug of the team.")
    lease = text("lease__uid", "Id of the lease.", most=40)
    user = text("lease__user__username", "Who held it.", most=150)
    recorded_after = moment("recorded_at", "gte", "Written at or after this instant.")

    class Meta:
        model = UsageRecord
        fields: list[str] = []


class DeviceFilters(Filters):
    """Devices by node, model and health."""

    node = text("node__name", "Name of the node.")
    model = text("model__slug", "Slug of the device model.")
    health = choice("health", Health.choices, "Health; repeat for several.")

    class Meta:
        model = Device
        fields: list[str] = []


class AuditFilters(Filters):
    """Audit entries by actor, action, target and time."""

    actor = text("actor__username", "Who did it.", most=150)
    action = text("action", "What was done, e.g. lease.released.")
    target = text("target", "On what.", most=80)
    since = moment("at", "gte", "At or after this instant.")

    class Meta:
        model = AuditEntry
        fields: list[str] = []


class AccountingFilters(Filters):
    """Ended leases by when they were clean."""

    since = moment("clean_at", "gte", "Clean at or after this instant.")

    class Meta:
        model = Lease
        fields: list[str] = []


def _parameter(name: str, found: f.Filter) -> OpenApiParameter:
    label = str(found.extra.get("label") or found.label or name)
    if isinstance(found, f.IsoDateTimeFilter):
        return query(name, label, OpenApiTypes.DATETIME)
    if isinstance(found, f.MultipleChoiceFilter):
        return OpenApiParameter(
            name, str, OpenApiParameter.QUERY, many=True, description=label,
            enum=[value for value, _label in found.extra["choices"]],
        )  # fmt: skip
    return query(name, label)
