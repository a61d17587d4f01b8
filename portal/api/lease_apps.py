"""Apps in leases over HTTP: which there are, and the address that opens one."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import ApiToken, Scope
from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Empty
from portal.api.idempotency import once
from portal.api.responses_apps import AppAddressAnswer, AppsAnswer
from portal.common.clock import db_now
from portal.common.errors import NotFound
from portal.gateway.catalogue import app_of, apps
from portal.gateway.tickets import GOOD_FOR, enter_address, why_no_app
from portal.leases.selectors import visible_lease


class LeaseApps(Endpoint):
    """What can be opened in a lease."""

    @call("List the apps of a lease", answer=AppsAnswer, refusals=(404,), tag="leases")
    def get(self, request: Request, uid: str) -> Response:
        """List the apps that this installation knows; ``port-`` and a number opens a program of your own as well.

        ``refusal`` says why none opens in this lease now, "" where they do.
        """
        lease = visible_lease(self.rights, uid)
        refusal = why_no_app(lease, self.person, host=request.get_host())
        found = [{"name": app.name, "title": app.title, "needs": list(app.needs)} for app in apps()]
        return Response({"apps": found, "refusal": str(refusal.detail) if refusal else ""})


class AppEntrance(Endpoint):
    """A way into an app."""

    write_scope = Scope.LEASE_WRITE
    shown_once = ("address",)

    @call(
        "Open an app",
        body=Empty,
        answer=AppAddressAnswer,
        status=201,
        refusals=(403, 404, 409, 422),
        tag="leases",
    )
    @once
    def post(self, request: Request, uid: str, name: str) -> Response:
        """Get the address that opens an app of an active lease of one's own in a browser: good once, for half a
        minute. docs/apps.md says what happens there.
        """
        self.take(Empty)
        if app_of(name) is None:
            raise NotFound
        token = request.auth if isinstance(request.auth, ApiToken) else None
        address = enter_address(
            visible_lease(self.rights, uid),
            self.person,
            app=name,
            session_key="" if token else request.session.session_key or "",
            token_id=token.pk if token else 0,
            origin=f"{request.scheme}://{request.get_host()}",
            is_secure=request.is_secure(),
            now=db_now(),
        )
        return Response({"address": address, "good_for_s": int(GOOD_FOR.total_seconds())}, status=201)
