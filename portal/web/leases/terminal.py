"""A terminal in a lease: its page, and the tickets that the page asks for."""

from __future__ import annotations

import json

from csp.constants import NONCE
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from portal.common.clock import db_now
from portal.common.errors import BerthError, Invalid
from portal.gateway.addresses import WATCH_PATH, for_browsers, origins
from portal.gateway.sharing import members_to_choose, share_terminals, shares_of, unshare_terminals
from portal.gateway.tickets import WATCH_APP, make_ticket, why_no_terminal, why_not_watched
from portal.leases.selectors import visible_lease
from portal.web.access import done, person, refused, rights_of
from portal.web.leases.rows import lease_rows

# What the form says in the place of a name; no name has a star.
WHOLE_TEAM = "*"


@require_safe
def terminal(request: HttpRequest, uid: str) -> HttpResponse:
    """Show the terminal of a lease to its holder; anybody else of its team is told why not."""
    lease = visible_lease(rights_of(request), uid)
    refusal = why_no_terminal(lease, person(request))
    if refusal is not None:
        return refused(request, refusal, "web:lease", uid)
    (row,) = lease_rows([lease], now=timezone.now())
    gateways = for_browsers(request.get_host(), is_secure=request.is_secure())
    context = {
        "lease": lease,
        "row": row,
        "gateways": json.dumps(gateways),
        "shares": shares_of(lease),
        "watch_url": request.build_absolute_uri(reverse("web:lease_watch", args=[uid])),
        "members": members_to_choose(lease),
    }
    return _with_xterm(render(request, "web/terminal.html", context), gateways)


def _with_xterm(response: HttpResponse, gateways: list[str]) -> HttpResponse:
    # The terminal writes style sheets of its own, each with this answer's nonce (static/js/style-nonce.js).
    response._csp_update = {"style-src": [NONCE], "connect-src": origins(gateways)}  # type: ignore[attr-defined]
    return response


@require_POST
def ticket(request: HttpRequest, uid: str) -> HttpResponse:
    """Give the page a ticket, good once and for this page alone."""
    return _ticket(request, uid)


def _ticket(request: HttpRequest, uid: str, *, app: str = "") -> HttpResponse:
    try:
        lease = visible_lease(rights_of(request), uid)
        secret = make_ticket(
            lease,
            person(request),
            session_key=request.session.session_key or "",
            origin=request.headers.get("Origin", ""),
            app=app,
            now=db_now(),
        )
    except BerthError as error:
        said = {"code": error.code, "detail": str(error.detail), "next": str(error.next_step)}
        return JsonResponse(said, status=error.status)
    return JsonResponse({"ticket": secret})


@require_safe
def watch(request: HttpRequest, uid: str) -> HttpResponse:
    """Show the terminals of somebody's lease to whom its holder lets watch."""
    lease = visible_lease(rights_of(request), uid)
    refusal = why_not_watched(lease, person(request))
    if refusal is not None:
        return refused(request, refusal, "web:lease", uid)
    (row,) = lease_rows([lease], now=timezone.now())
    gateways = for_browsers(request.get_host(), is_secure=request.is_secure(), path=WATCH_PATH)
    context = {"lease": lease, "row": row, "gateways": json.dumps(gateways)}
    return _with_xterm(render(request, "web/terminal_watch.html", context), gateways)


@require_POST
def watch_ticket(request: HttpRequest, uid: str) -> HttpResponse:
    """Give the page of somebody who watches a ticket, good once and for this page alone."""
    return _ticket(request, uid, app=WATCH_APP)


@require_POST
def share(request: HttpRequest, uid: str) -> HttpResponse:
    """Let a member of the team, or all of them, watch; the page's shells live on over the reload."""
    lease, chosen = visible_lease(rights_of(request), uid), request.POST.get("user", "")
    try:
        user = members_to_choose(lease).filter(username=chosen).first()
        if user is None and chosen != WHOLE_TEAM:
            raise Invalid(fields={"user": _("Choose a member of the team of this lease.")})
        share_terminals(lease=lease, actor=person(request), user=user, now=db_now())
    except BerthError as error:
        return refused(request, error, "web:lease_terminal", uid)
    whom = str(user) if user else _("The team")
    said = _("%(whom)s can watch now, at the address below, and types nothing.") % {"whom": whom}
    return done(request, said, "web:lease_terminal", uid)


@require_POST
def unshare(request: HttpRequest, uid: str, key: int) -> HttpResponse:
    """Let somebody watch no more."""
    lease = visible_lease(rights_of(request), uid)
    try:
        unshare_terminals(lease=lease, actor=person(request), key=key, now=db_now())
    except BerthError as error:
        return refused(request, error, "web:lease_terminal", uid)
    return done(request, _("Taken back: they see no more."), "web:lease_terminal", uid)
