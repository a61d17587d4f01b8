"""A terminal in a lease: its page, and the tickets that the page asks for."""

from __future__ import annotations

import json

from csp.constants import NONCE
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from portal.common.clock import db_now
from portal.common.errors import BerthError
from portal.gateway.addresses import for_browsers, origins
from portal.gateway.tickets import make_ticket, why_no_terminal
from portal.leases.selectors import visible_lease
from portal.web.access import person, refused, rights_of
from portal.web.leases.rows import lease_rows


@require_safe
def terminal(request: HttpRequest, uid: str) -> HttpResponse:
    """Show the terminal of a lease to its holder; anybody else of its team is told why not."""
    lease = visible_lease(rights_of(request), uid)
    refusal = why_no_terminal(lease, person(request))
    if refusal is not None:
        return refused(request, refusal, "web:lease", uid)
    (row,) = lease_rows([lease], now=timezone.now())
    gateways = for_browsers(request.get_host(), is_secure=request.is_secure())
    context = {"lease": lease, "row": row, "gateways": json.dumps(gateways)}
    response = render(request, "web/terminal.html", context)
    # The terminal writes style sheets of its own, each with this answer's nonce (static/js/style-nonce.js).
    response._csp_update = {"style-src": [NONCE], "connect-src": origins(gateways)}  # type: ignore[attr-defined]
    return response


@require_POST
def ticket(request: HttpRequest, uid: str) -> HttpResponse:
    """Give the page a ticket, good once and for this page alone."""
    try:
        lease = visible_lease(rights_of(request), uid)
        secret = make_ticket(
            lease,
            person(request),
            session_key=request.session.session_key or "",
            origin=request.headers.get("Origin", ""),
            now=db_now(),
        )
    except BerthError as error:
        said = {"code": error.code, "detail": str(error.detail), "next": str(error.next_step)}
        return JsonResponse(said, status=error.status)
    return JsonResponse({"ticket": secret})
