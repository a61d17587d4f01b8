"""Policies over HTTP: versions of the rules, what differs, and what another body would change. Operators."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import PAGING, call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Flag, Text, Whole
from portal.api.idempotency import once
from portal.api.pagination import PARAMETERS, Pages
from portal.api.representations import Row
from portal.api.responses_policies import PolicyAnswer, PolicyChange, PolicyChecked
from portal.api.responses_policies import PolicyRow as PolicyRowAnswer
from portal.api.wire import instant
from portal.common.errors import Conflict, NotFound
from portal.policies.changes import RuleChange, changes
from portal.policies.faults import sentence
from portal.policies.models import Policy
from portal.policies.selectors import in_force, policy_of
from portal.policies.services import MOST_NAME, MOST_NOTE, activate, check_body, roll_back, save_policy
from portal.web.policies.preview import MovedRequest, PolicyTrial, try_body
from scheduler.engine.policy_body import BadPolicy, body_of

TAG = "policies"
MOST_VERSION = 2**31 - 1


class PolicyBody(Body):
    """Rules to save; a rule that is left out has its default. `based_on` is the version active now, 0: none."""

    name = Text(most=MOST_NAME)
    body = serializers.JSONField()
    based_on = Whole(least=0, most=MOST_VERSION)
    note = Text(most=MOST_NOTE, required=False, default="", allow_blank=True)
    is_active = Flag(default=True, help_text="False: keep it as a draft.")


class BasedOnBody(Body):
    """The version that is active now (0: none is stored), so that nobody acts on what has changed."""

    based_on = Whole(least=0, most=MOST_VERSION)
    note = Text(most=MOST_NOTE, required=False, default="", allow_blank=True)


class CheckBody(Body):
    """Rules to check; with `preview` one cycle is played with them on the last published snapshot."""

    body = serializers.JSONField()
    preview = Flag(default=False)


class Policies(Endpoint):
    """Versions of the rules."""

    parameters = PARAMETERS

    @call("List policies", answer=PolicyRowAnswer, is_list=True, parameters=PAGING, tag=TAG)
    def get(self, request: Request) -> Response:
        """List the versions of the rules, newest first. Operators."""
        self.require_operator()
        pages = Pages()
        rows = pages.page(Policy.objects.select_related("made_by"), request)
        return Response(pages.answer([policy_row(row) for row in rows]))

    @call("Save a policy", body=PolicyBody, answer=PolicyAnswer, status=201, refusals=(409, 422), tag=TAG)
    @once
    def post(self, request: Request) -> Response:
        """Save rules as a new version and activate it, unless it is a draft. Operators."""
        self.require_operator()
        values = self.take(PolicyBody)
        row = save_policy(actor=self.person, rights=self.rights, now=timezone.now(), **values)
        at = f"/api/v1/policies/{row.version}/"
        return Response(policy_detail(row), status=201, headers={"Location": at})


class OnePolicy(Endpoint):
    """One version of the rules."""

    @call("Read a policy", answer=PolicyAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, version: int) -> Response:
        """Read a version with all its rules. Operators."""
        self.require_operator()
        return Response(policy_detail(_version(version)))


class Activate(Endpoint):
    """Activate a stored version."""

    @call("Activate a policy", body=BasedOnBody, answer=PolicyAnswer, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, version: int) -> Response:
        """Activate a stored version, for instance a draft. Operators."""
        self.require_operator()
        values = self.take(BasedOnBody)
        row = activate(
            actor=self.person, rights=self.rights, version=version, based_on=values["based_on"], now=timezone.now()
        )  # fmt: skip
        return Response(policy_detail(row))


class RollBack(Endpoint):
    """Go back to the rules of an old version."""

    @call(
        "Roll a policy back", body=BasedOnBody, answer=PolicyAnswer, status=201, refusals=(404, 409, 422), tag=TAG
    )  # fmt: skip
    @once
    def post(self, request: Request, version: int) -> Response:
        """Make a new version with the rules of an old one and activate it. Operators."""
        self.require_operator()
        values = self.take(BasedOnBody)
        row = roll_back(actor=self.person, rights=self.rights, to=version, now=timezone.now(), **values)
        at = f"/api/v1/policies/{row.version}/"
        return Response(policy_detail(row), status=201, headers={"Location": at})


class Diff(Endpoint):
    """What differs between two versions."""

    @call("Compare policies", answer=PolicyChange, is_list=True, refusals=(404, 409), tag=TAG)
    def get(self, request: Request, version: int, other: int) -> Response:
        """List the rules in which two versions differ, in words. Operators."""
        self.require_operator()
        old, new = (_whole_body(_version(number)) for number in (version, other))
        return Response({"next": None, "results": [change_row(change) for change in changes(old, new)]})


class Check(Endpoint):
    """Check rules without saving them."""

    @call("Check a policy", body=CheckBody, answer=PolicyChecked, refusals=(422,), tag=TAG)
    @once
    def post(self, request: Request) -> Response:
        """Say what is wrong with a body, or what it would change. Saves nothing. Operators."""
        self.require_operator()
        values = self.take(CheckBody)
        whole = check_body(values["body"])
        tried = try_body(whole) if values["preview"] else None
        return Response(
            {
                "body": whole,
                "changes": [change_row(change) for change in changes(body_of(in_force().policy), whole)],
                "preview": tried_row(tried) if tried else None,
            }
        )


def policy_row(row: Policy) -> Row:
    """Return a version without its rules; its maker must be at hand."""
    return {
        "version": row.version,
        "name": row.name,
        "is_active": row.is_active,
        "note": row.note,
        "made_by": row.made_by.username if row.made_by else None,
        "based_on": row.based_on,
        "created_at": instant(row.created_at),
        "activated_at": instant(row.activated_at),
    }


def policy_detail(row: Policy) -> Row:
    """Return a version with its rules; one that cannot decide any more as it is stored, with its faults."""
    body: Any = row.body
    faults: list[Row] = []
    try:
        body = body_of(policy_of(row))
    except BadPolicy as error:
        faults = [{"field": f.field, "code": f.code, "detail": sentence(f)} for f in error.faults]
    return {**policy_row(row), "body": body, "faults": faults}


def change_row(change: RuleChange) -> Row:
    """Return a rule that differs."""
    return {"rule": change.rule.key, "name": str(change.rule.label), "was": change.was, "now": change.now}


def tried_row(tried: PolicyTrial) -> Row:
    """Return what a trial found."""
    return {
        "taken_at": instant(tried.taken_at),
        "waiting": tried.waiting,
        "looked_at": tried.looked_at,
        "would_start": [_moved(row) for row in tried.starts],
        "would_not_start": [_moved(row) for row in tried.stays],
        "sooner": [_moved(row) for row in tried.sooner],
        "later": [_moved(row) for row in tried.later],
        "blocked": [_moved(row) for row in tried.blocked],
        "counts": {
            "blocked": tried.counts["blocked"],
            "would_start": tried.counts["starts"],
            "would_not_start": tried.counts["stays"],
            "sooner": tried.counts["sooner"],
            "later": tried.counts["later"],
        },
        "teams": [
            {
                "team": effect.team,
                "would_start": effect.starts,
                "would_not_start": effect.stays,
                "sooner": effect.sooner,
                "later": effect.later,
                "blocked": effect.blocked,
            }
            for effect in tried.teams
        ],
        "would_preempt": [{"lease": row.uid, "name": row.name, "team": row.team} for row in tried.preempted],
        "preemptions_was": tried.preempted_was,
        "preemptions_now": tried.preempted_now,
    }


def _moved(row: MovedRequest) -> Row:
    return {
        "request": row.uid,
        "name": row.name,
        "team": row.team,
        "position_was": row.was,
        "position_now": row.now,
    }


def _version(number: int) -> Policy:
    row = Policy.objects.select_related("made_by").filter(version=number).first()
    if row is None:
        raise NotFound
    return row


def _whole_body(row: Policy) -> dict[str, Any]:
    try:
        return body_of(policy_of(row))
    except BadPolicy as error:
        raise Conflict(
            _("Version %(version)d cannot decide any more, so it cannot be compared.")
            % {"version": row.version}
        ) from error
