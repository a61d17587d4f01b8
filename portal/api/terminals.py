"""Terminals and SSH in leases over HTTP: the ticket by which a gateway lets a program in."""

from __future__ import annotations

from django.utils.translation import gettext as _
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import ApiToken, Scope
from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Empty, Text
from portal.api.idempotency import once
from portal.api.representations import Row
from portal.api.responses import ResponseShape
from portal.api.responses_leases import TerminalTicketAnswer
from portal.api.wire import instant
from portal.common.clock import db_now
from portal.common.errors import Invalid
from portal.gateway.addresses import SSH_PATH, TERMINAL_PATH, WATCH_PATH, for_browsers
from portal.gateway.models import TerminalShare
from portal.gateway.sharing import members_to_choose, share_terminals, shares_of, unshare_terminals
from portal.gateway.tickets import GOOD_FOR, SSH_APP, WATCH_APP, make_ticket
from portal.leases.selectors import visible_lease


class TerminalTicket(Endpoint):
    """A way into a lease."""

    write_scope = Scope.LEASE_WRITE
    shown_once = ("ticket",)

    @call(
        "Open a terminal", body=Empty, answer=TerminalTicketAnswer, status=201, refusals=(404, 409, 422),
        tag="leases",
    )  # fmt: skip
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Get a ticket for a terminal in an active lease of one's own: good once, for half a minute, at any of
        these gateways. docs/terminal.md says what is spoken there.
        """
        return self._ticket(request, uid)

    def _ticket(self, request: Request, uid: str, *, app: str = "", path: str = TERMINAL_PATH) -> Response:
        self.take(Empty)
        token = request.auth if isinstance(request.auth, ApiToken) else None
        session = "" if token else request.session.session_key or ""
        origin = "" if token else request.headers.get("Origin", "")
        lease = visible_lease(self.rights, uid)
        secret = make_ticket(
            lease,
            self.person,
            session_key=session,
            token_id=token.pk if token else 0,
            origin=origin,
            app=app,
            now=db_now(),
        )
        gateways = for_browsers(request.get_host(), is_secure=request.is_secure(), path=path)
        answer = {"ticket": secret, "good_for_s": int(GOOD_FOR.total_seconds()), "gateways": gateways}
        return Response(answer, status=201)


class SshTicket(TerminalTicket):
    """A way into a lease for ssh."""

    @call(
        "Open an SSH connection", body=Empty, answer=TerminalTicketAnswer, status=201,
        refusals=(404, 409, 422), tag="leases",
    )  # fmt: skip
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Get a ticket for one SSH connection into an active lease of one's own: good once, for half a minute, at
        any of these gateways. docs/ssh.md says what is spoken there; `berth ssh-proxy` speaks it.
        """
        return self._ticket(request, uid, app=SSH_APP, path=SSH_PATH)


class WatchTicket(TerminalTicket):
    """A way to watch the terminals of somebody's lease."""

    @call(
        "Watch a terminal", body=Empty, answer=TerminalTicketAnswer, status=201, refusals=(403, 404, 409, 422),
        tag="leases",
    )  # fmt: skip
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Get a ticket to watch the terminals of a lease whose holder shares them: good once, for half a minute. Ask
        each of these gateways: the one that the holder came by shows them. docs/terminal.md says what is spoken there.
        """
        return self._ticket(request, uid, app=WATCH_APP, path=WATCH_PATH)


class ShareBody(Body):
    """Who may watch."""

    user = Text(most=150, allow_null=True, help_text="A member of the lease's team; null: all of them.")


class ShareAnswer(ResponseShape):
    """Somebody who may watch the terminals of a lease."""

    id = s.IntegerField()
    user = s.CharField(allow_null=True, help_text="null: the whole team.")
    created_at = s.DateTimeField()


class TerminalShares(Endpoint):
    """Who may watch the terminals of a lease of one's own."""

    write_scope = Scope.LEASE_WRITE

    @call(
        "List who may watch a lease's terminals",
        answer=ShareAnswer,
        is_list=True,
        refusals=(404,),
        tag="leases",
    )
    def get(self, request: Request, uid: str) -> Response:
        """List whom the holder lets watch, the earliest first."""
        rows = shares_of(visible_lease(self.rights, uid))
        return Response({"next": None, "results": [share_row(row) for row in rows]})

    @call(
        "Let somebody watch a lease's terminals", body=ShareBody, answer=ShareAnswer, status=201,
        refusals=(403, 404, 409, 422), tag="leases",
    )  # fmt: skip
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Let a member of the team see the terminals of a lease of one's own; they type nothing. Safe to repeat."""
        name = self.take(ShareBody)["user"]
        lease = visible_lease(self.rights, uid)
        user = None
        if name is not None:
            user = members_to_choose(lease).filter(username=name).first()
            if user is None:
                raise Invalid(fields={"user": _("Choose a member of the team of this lease.")})
        made = share_terminals(lease=lease, actor=self.person, user=user, now=db_now())
        return Response(
            share_row(made), status=201, headers={"Location": f"/api/v1/leases/{uid}/terminal/shares/"}
        )


class OneTerminalShare(Endpoint):
    """Somebody who may watch."""

    write_scope = Scope.LEASE_WRITE

    @call("Let somebody watch no more", status=204, refusals=(403, 404), tag="leases")
    def delete(self, request: Request, uid: str, key: int) -> Response:
        """Take it back: what they have open ends within a second."""
        lease = visible_lease(self.rights, uid)
        unshare_terminals(lease=lease, actor=self.person, key=key, now=db_now())
        return Response(status=204)


def share_row(row: TerminalShare) -> Row:
    """Return who may watch; the person must be at hand."""
    user = row.user.username if row.user else None
    return {"id": row.pk, "user": user, "created_at": instant(row.created_at)}
