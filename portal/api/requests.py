"""Requests over HTTP: ask, look, decide, withdraw."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import Scope
from portal.api.describe import AWAITING_ME, call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Empty, Flag, Instant, TagsField, Text, Whole
from portal.api.filters import RequestFilters
from portal.api.idempotency import once
from portal.api.pagination import Pages
from portal.api.representations import Row, event_row, promise_row, request_row, request_rows
from portal.api.responses import EventAnswer
from portal.api.responses_requests import RequestAnswer, RequestDetail, RequestListed
from portal.api.wire import instant
from portal.common.clock import db_now
from portal.common.errors import Invalid
from portal.leases import requests
from portal.leases.approvals import approve_request, needs_second, reject_request, terms_of
from portal.leases.elastic import set_growth
from portal.leases.forecasting import estimates, places
from portal.leases.models import LeaseRequest
from portal.leases.promises import promise_of
from portal.leases.requests import LOAD_PATTERNS, MOST_NODES, PRIORITIES, RequestSpec
from portal.leases.selectors import awaiting_approval, visible_request, visible_requests
from portal.leases.states import Opening, RequestState, WorkloadKind
from portal.leases.visible_reasons import names_in_sight
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights, visible_team

MOST_SECONDS = 366 * 86_400
TAG = "requests"


class RequestBody(Body):
    """What is asked for. ``team`` may be left out by somebody who asks for one team only."""

    flavor = Text(most=50)
    duration_s = Whole(least=1, most=MOST_SECONDS)
    count = Whole(least=1, most=1000, default=1)
    team = Text(most=50, required=False)
    priority = serializers.ChoiceField(tuple(PRIORITIES), default="normal")
    name = Text(most=80, default="", allow_blank=True)
    purpose = Text(most=300, default="", allow_blank=True)
    load_pattern = serializers.ChoiceField(
        tuple(p for p in LOAD_PATTERNS if p), default="", allow_blank=True, help_text="Of simulated nodes."
    )
    work = serializers.ChoiceField(WorkloadKind.choices, default="interactive")
    is_preemptible = Flag(default=False, help_text="It may be preempted after a warning, and costs less.")
    least_duration_s = Whole(
        least=0,
        most=MOST_SECONDS,
        default=0,
        help_text="How short it may be cut to start sooner; 0: not at all.",
    )
    starts_at = Instant(
        default=None,
        allow_null=True,
        help_text="Books a start in the next 90 days; null: as soon as possible.",
    )
    nodes = Whole(
        least=0, most=MOST_NODES, default=1,
        help_text="With n above 1: `count` whole devices on each of n nodes; 0: `count` in all on few nodes.",
    )  # fmt: skip
    most_count = Whole(
        least=0,
        most=1000,
        default=0,
        help_text="What it may grow to while devices idle; 0: it does not grow.",
    )
    opens = serializers.ChoiceField(
        Opening.choices, default="device", help_text="What its page offers first once it is active."
    )
    project = Text(
        most=40, default="", allow_blank=True, help_text="Code of a project of the team; empty: none."
    )
    tags = TagsField(default=dict, help_text="Names with texts, by which reports can be sorted.")


class GrowthBody(Body):
    """Up to how many units, the first ones counted in."""

    most_count = Whole(least=1, most=1000)


class ApprovalBody(Body):
    """A note that the author will read, and how much is let through."""

    note = Text(most=300, default="", allow_blank=True)
    count = Whole(least=1, most=1000, required=False, help_text="So many instead; left out: as asked.")
    duration_s = Whole(
        least=1, most=MOST_SECONDS, required=False, help_text="So long instead; left out: as asked."
    )
    terms = Text(
        most=12, required=False, help_text="`terms` as read: 409 where the request asks for something else."
    )


class NoteBody(Body):
    """A note that the author will read."""

    note = Text(most=300, default="", allow_blank=True)


def team_to_ask_for(rights: Rights, slug: str | None) -> Team:
    """Return the team named, or the only one this person asks for; raises NotFound or Invalid."""
    if slug:
        return visible_team(rights, slug)
    ids = set(rights.teams_with((Role.RESEARCHER, Role.ADMIN)))
    if len(ids) != 1:
        names = ", ".join(Team.objects.filter(pk__in=ids).values_list("slug", flat=True)[:20])
        raise Invalid(fields={"team": _("Name the team you ask for: %(names)s.") % {"names": names or "–"}})
    return Team.objects.get(pk=ids.pop())


def team_to_quote_for(rights: Rights, slug: str | None) -> Team:
    """Return the team to quote for: as for a request, else the one this person asked for last, else the first by name.

    A quote changes nothing and says for which team it is, so that it need not be named; a request, which somebody
    pays, has to.
    """
    ids = rights.teams_with((Role.RESEARCHER, Role.ADMIN))
    if slug or len(ids) < 2:
        return team_to_ask_for(rights, slug)
    teams = Team.objects.filter(pk__in=ids)
    last = LeaseRequest.objects.filter(author=rights.user, team__in=teams).order_by("-id").first()
    return last.team if last else teams.order_by("name")[0]


def spec_of(values: dict[str, Any]) -> RequestSpec:
    """Return what a checked body asks for."""
    return RequestSpec(**{name: value for name, value in values.items() if name != "team"})


class Requests(Endpoint):
    """The requests of one's teams."""

    write_scope = Scope.LEASE_WRITE
    parameters = RequestFilters.names() | {"awaiting_me"}

    @call(
        "List requests",
        answer=RequestListed,
        is_list=True,
        parameters=(*RequestFilters.parameters(), AWAITING_ME),
        tag=TAG,
    )
    def get(self, request: Request) -> Response:
        """List the requests of one's teams, newest first; `awaiting_me=true` those one could decide on."""
        pages = Pages()
        rows = visible_requests(self.rights)
        if self.yes_or_no("awaiting_me"):
            rows = rows.filter(pk__in=awaiting_approval(self.rights).values("pk"))
        found = pages.page(self.narrow(rows, RequestFilters), request)
        return Response(pages.answer(request_rows(self.rights, found)))

    @call(
        "Ask for GPU time", body=RequestBody, answer=RequestAnswer, status=201,
        refusals=(400, 404, 409, 415, 422, 429, 503), tag=TAG,
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Ask for GPU time. 201 means accepted and kept; `state` says whether it waits for approval."""
        values = self.take(RequestBody)
        made = requests.submit_request(
            team=team_to_ask_for(self.rights, values.get("team")),
            actor=self.person,
            rights=self.rights,
            spec=spec_of(values),
            now=db_now(),
        )
        return Response(
            request_row(made, names_in_sight(self.rights, made.reasons)),
            status=201,
            headers={"Location": f"/api/v1/requests/{made.uid}/"},
        )


class OneRequest(Endpoint):
    """One request."""

    @call("Read a request", answer=RequestDetail, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read a request with its reasons, its place in the queue and its estimated start."""
        return Response(detail(self.rights, visible_request(self.rights, uid)))


class RequestEvents(Endpoint):
    """The steps of one request."""

    @call("Read the steps of a request", answer=EventAnswer, is_list=True, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read every step of a request, oldest first."""
        found = visible_request(self.rights, uid)
        return Response({"next": None, "results": [event_row(e) for e in found.events.all()]})


class Withdraw(Endpoint):
    """Take a request back."""

    write_scope = Scope.LEASE_WRITE

    @call("Withdraw a request", body=Empty, answer=RequestDetail, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Withdraw a request that has not started. Safe to repeat."""
        self.take(Empty)
        found = visible_request(self.rights, uid)
        with requests.held(found) as now:
            requests.withdraw_request(request=found, actor=self.person, rights=self.rights, now=now)
        return Response(detail(self.rights, visible_request(self.rights, uid)))


class Growth(Endpoint):
    """How far a request may grow."""

    write_scope = Scope.LEASE_WRITE

    @call(
        "Say how far a request may grow", body=GrowthBody, answer=RequestDetail,
        refusals=(404, 409, 422), tag=TAG,
    )  # fmt: skip
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Say up to how many units an elastic request may grow; its own `count` stops it. Safe to repeat."""
        most = self.take(GrowthBody)["most_count"]
        found = visible_request(self.rights, uid)
        with requests.held(found) as now:
            set_growth(request=found, most_count=most, actor=self.person, rights=self.rights, now=now)
        return Response(detail(self.rights, visible_request(self.rights, uid)))


class Approve(Endpoint):
    """Let a request into the queue."""

    @call("Approve a request", body=ApprovalBody, answer=RequestDetail, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Let a request that awaits approval into the queue, also with less; nobody decides on their own.

        One that needs a second approval goes on waiting for it.
        """
        values = self.take(ApprovalBody)
        found = visible_request(self.rights, uid)
        with requests.held(found) as now:
            approve_request(request=found, actor=self.person, rights=self.rights, now=now, **values)
        return Response(detail(self.rights, visible_request(self.rights, uid)))


class Reject(Endpoint):
    """Turn a request down."""

    @call("Reject a request", body=NoteBody, answer=RequestDetail, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Turn a request down with a note that its author will read."""
        note = self.take(NoteBody)["note"]
        found = visible_request(self.rights, uid)
        with requests.held(found) as now:
            reject_request(request=found, actor=self.person, rights=self.rights, note=note, now=now)
        return Response(detail(self.rights, visible_request(self.rights, uid)))


def detail(rights: Rights, request: LeaseRequest) -> Row:
    """Return a request with place, estimate and leases."""
    waits = request.state == RequestState.QUEUED
    steps = list(request.approval_steps.select_related("approver", "on_behalf_of"))
    is_undecided = request.state == RequestState.AWAITING_APPROVAL
    start = estimates([request]).get(request.pk) if waits else None
    return {
        **request_row(request, names_in_sight(rights, request.reasons)),
        "position": places([request]).get(request.pk),
        "estimated_start": instant(start.likely_at if start else None),
        "estimated_start_by": instant(start.by if start else None),
        "promise": promise_row(promise_of(request)),
        "leases": list(request.leases.order_by("-id").values_list("uid", flat=True)),
        "terms": terms_of(request),
        "approvals_needed": max(1, 1 + needs_second(request) - len(steps)) if is_undecided else 0,
        "approvals": [
            {
                "by": step.approver.username,
                "on_behalf_of": step.on_behalf_of.username if step.on_behalf_of else None,
                "at": instant(step.at),
                "note": step.note,
                "asked_count": step.asked_count,
                "asked_duration_s": step.asked_duration_s,
                "count": step.count,
                "duration_s": step.duration_s,
            }
            for step in steps
        ],
    }
