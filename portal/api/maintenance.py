"""Maintenance windows over HTTP: everybody may look, operators plan."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Empty, Instant, Text
from portal.api.idempotency import once
from portal.api.representations import Row
from portal.api.rescheduling import then_heed
from portal.api.responses_calendar import AffectedAnswer, WindowAnswer
from portal.api.wire import instant
from portal.common.clock import db_now
from portal.fleet import maintenance as windows
from portal.fleet.models import MaintenanceWindow
from portal.leases.maintenance import AffectedLease, affected

TAG = "calendar"


class TimesBody(Body):
    """From when to when."""

    starts_at = Instant()
    ends_at = Instant()


class WindowBody(TimesBody):
    """Which nodes are away from when to when, and why: those whose leases it reaches are told."""

    nodes = serializers.ListField(
        child=Text(most=60), min_length=1, max_length=windows.MOST_NODES, help_text="Names of nodes."
    )
    reason = Text(most=200)


class Windows(Endpoint):
    """The windows that are on or to come."""

    @call("List maintenance", answer=WindowAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List the maintenance windows that are on or to come, the next first."""
        rows = windows.windows_to_come(now=timezone.now())[:1000]
        return Response({"next": None, "results": [window_row(window) for window in rows]})

    @call("Plan maintenance", body=WindowBody, answer=WindowAnswer, status=201, refusals=(400, 422), tag=TAG)
    @then_heed
    @once
    def post(self, request: Request) -> Response:
        """Plan maintenance: leases end before it and their holders are told now, bookings are moved. Operators."""
        self.require_operator()
        values = self.take(WindowBody)
        made = windows.make_window(
            nodes=windows.nodes_named(values["nodes"]),
            starts_at=values["starts_at"],
            ends_at=values["ends_at"],
            reason=values["reason"],
            actor=self.person,
            now=db_now(),
        )
        at = f"/api/v1/maintenance/{made.uid}/"
        return Response(window_row(windows.window_named(made.uid)), status=201, headers={"Location": at})


class PreviewEndpoint(Endpoint):
    """Whom a window would reach."""

    http_method_names = ["post"]

    @call(
        "Preview maintenance",
        body=WindowBody,
        answer=AffectedAnswer,
        is_list=True,
        refusals=(400, 422),
        tag=TAG,
    )
    @once
    def post(self, request: Request) -> Response:
        """Say whom a window would reach and how much time they would lose. Changes nothing. Operators."""
        self.require_operator()
        values, now = self.take(WindowBody), timezone.now()
        windows.check_window(values["starts_at"], values["ends_at"], values["reason"], now=now)
        nodes = windows.nodes_named(values["nodes"])
        found = affected([node.pk for node in nodes], values["starts_at"], values["ends_at"], now=now)
        return Response({"next": None, "results": [affected_row(row) for row in found]})


class OneWindow(Endpoint):
    """One window."""

    @call("Read a maintenance window", answer=WindowAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read one maintenance window."""
        return Response(window_row(windows.window_named(uid)))


class ChangeWindow(Endpoint):
    """Give a window another time."""

    @call(
        "Change a maintenance window",
        body=TimesBody,
        answer=WindowAnswer,
        refusals=(400, 404, 409, 422),
        tag=TAG,
    )
    @then_heed
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Give a window another time; ends of leases follow, and holders are told. Operators."""
        self.require_operator()
        window, values = windows.window_named(uid), self.take(TimesBody)
        windows.change_window(window=window, actor=self.person, now=db_now(), **values)
        return Response(window_row(windows.window_named(uid)))


class CancelWindow(Endpoint):
    """Take a window back."""

    @call("Cancel a maintenance window", body=Empty, answer=WindowAnswer, refusals=(404, 409, 422), tag=TAG)
    @then_heed
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Take a window back: its nodes take work again, leases get their ends back. Operators. Safe to repeat."""
        self.require_operator()
        window = windows.window_named(uid)
        self.take(Empty)
        windows.cancel_window(window=window, actor=self.person, now=db_now())
        return Response(window_row(windows.window_named(uid)))


def window_row(window: MaintenanceWindow) -> Row:
    """Return a window; its nodes must be at hand."""
    return {
        "id": window.uid,
        "nodes": [node.name for node in window.nodes.all()],
        "starts_at": instant(window.starts_at),
        "ends_at": instant(window.ends_at),
        "reason": window.reason,
        "made_by": window.made_by.username if window.made_by else None,
        "created_at": instant(window.created_at),
        "cancelled_at": instant(window.cancelled_at),
    }


def affected_row(row: AffectedLease) -> dict[str, Any]:
    """Return a lease or booking that a window reaches."""
    lease = row.lease
    return {
        "lease": lease.uid,
        "request": lease.request.uid,
        "team": lease.team.slug,
        "user": lease.user.username,
        "node": lease.node.name,
        "flavor": lease.flavor.slug,
        "state": str(lease.state),
        "is_booking": row.is_booking,
        "starts_at": instant(lease.starts_at),
        "ends_at": instant(lease.wanted_until or lease.not_after),
        "loses_s": row.loses_s,
    }
