"""Deputies over HTTP: name one, list, end."""

from __future__ import annotations

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Instant, Text
from portal.api.idempotency import once
from portal.api.pagination import Pages
from portal.api.representations import Row
from portal.api.responses_setup import DelegationAnswer
from portal.api.wire import instant
from portal.notifications.delegations import MOST_REASON, end_delegation, name_deputy, visible_delegations
from portal.teams.models import Delegation

TAG = "teams"


class DelegationBody(Body):
    """Who decides in one's place, from when until when (at most 90 days), and why."""

    deputy = Text(most=150, help_text="A user name.")
    starts_at = Instant(required=False, allow_null=True, default=None, help_text="Null: now.")
    ends_at = Instant()
    reason = Text(most=MOST_REASON)


class Delegations(Endpoint):
    """The delegations of which one is a side."""

    @call("List deputies", answer=DelegationAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List who decides in one's place and for whom one decides, past ones too, the newest first."""
        pages = Pages()
        found = pages.page(visible_delegations(self.rights), request)
        return Response(pages.answer([delegation_row(row) for row in found]))

    @call(
        "Name a deputy", body=DelegationBody, answer=DelegationAnswer, status=201, refusals=(409, 422), tag=TAG
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Let somebody decide on requests in one's place for a time. Approvers and team admins."""
        made = name_deputy(rights=self.rights, now=timezone.now(), **self.take(DelegationBody))
        return Response(delegation_row(made), status=201, headers={"Location": "/api/v1/delegations/"})


class OneDelegation(Endpoint):
    """One delegation."""

    @call("End a delegation", status=204, refusals=(404, 409), tag=TAG)
    def delete(self, request: Request, key: int) -> Response:
        """End a delegation before its time, as either side of it. Safe to repeat."""
        end_delegation(pk=key, rights=self.rights, now=timezone.now())
        return Response(status=204)


def delegation_row(row: Delegation) -> Row:
    """Return a delegation; both people must be at hand."""
    return {
        "id": row.pk,
        "delegator": row.delegator.username,
        "deputy": row.deputy.username,
        "reason": row.reason,
        "starts_at": instant(row.starts_at),
        "ends_at": instant(row.ends_at),
        "ended_at": instant(row.ended_at),
        "ended_by": row.ended_by.username if row.ended_by else None,
    }
