"""Terminals and SSH in leases over HTTP: the ticket by which a gateway lets a program in."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import ApiToken, Scope
from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Empty
from portal.api.idempotency import once
from portal.api.responses_leases import TerminalTicketAnswer
from portal.common.clock import db_now
from portal.gateway.addresses import SSH_PATH, TERMINAL_PATH, for_browsers
from portal.gateway.tickets import GOOD_FOR, SSH_APP, make_ticket
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
