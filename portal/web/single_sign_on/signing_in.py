"""Signing in at an identity provider: out to it, and back with its word."""

from __future__ import annotations

import logging
import secrets
from datetime import timedelta
from typing import Any, Final

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from portal.accounts import sign_in_attempts
from portal.accounts.models import User
from portal.audit import sign_ins
from portal.common.addresses import client_address
from portal.common.errors import BerthError
from portal.sso.models import IdentityProvider
from portal.sso.openid import Flow, ProviderFault, authorization_url, discover, redeem
from portal.sso.people import Person
from portal.sso.providers import active_provider, client_at
from portal.sso.signing_in import admit, connect, disconnect, person_of
from portal.web.access import done, person, refused
from portal.web.auth import SignInForm, enter, goal_of, too_many_tries

log = logging.getLogger(__name__)
FLOWS: Final = "sso_flows"
# Several tabs may be on their way at once; whoever needs longer begins again.
MOST_FLOWS: Final = 5
FLOW_LASTS: Final = timedelta(minutes=10)


@never_cache
@login_not_required
@require_POST
def begin(request: HttpRequest, slug: str) -> HttpResponse:
    """Send the browser to a provider, from a page of our own.

    A redirect would be an answer to a form, which the Content-Security-Policy keeps inside the portal, along all the
    addresses a provider may send it on to.
    """
    provider = active_provider(slug)
    if "connect" in request.POST and not request.user.is_authenticated:
        messages.info(request, _("Your session has ended. Sign in, then connect your account."))
        return redirect("web:sign_in")
    if not request.user.is_authenticated:
        address, now = client_address(request), timezone.now()
        attempt = sign_in_attempts.begin_at_provider(address, now=now)
        if attempt.wait_s:
            if attempt.is_first_refused:
                sign_ins.provider_failed(provider.slug, address, now=now, why="too many tries")
            return too_many_tries(request, SignInForm(), attempt)
    flow = Flow(*(secrets.token_urlsafe(32) for _part in range(3)))
    try:
        client = client_at(provider, _callback(request, provider))
        target = authorization_url(client, discover(provider.issuer), flow)
    except ProviderFault as fault:
        return _failed(request, provider, str(fault), connecting=request.user.is_authenticated)
    flows = _live_flows(request)
    flows[flow.state] = {
        "provider": provider.pk,
        "nonce": flow.nonce,
        "verifier": flow.verifier,
        "until": (timezone.now() + FLOW_LASTS).timestamp(),
        "goal": goal_of(request),
        "zone": request.POST.get("zone", "")[:64],
        "user": request.user.pk if request.user.is_authenticated else None,
    }
    request.session[FLOWS] = dict(list(flows.items())[-MOST_FLOWS:])
    return render(request, "web/sso_leaving.html", {"target": target, "provider": provider})


@never_cache
@login_not_required
@require_safe
def back(request: HttpRequest, slug: str) -> HttpResponse:
    """Take the provider's word for who it is: sign them in, or connect the account that began this."""
    provider = active_provider(slug)
    begun = _taken(request, provider)
    if begun is None:
        messages.error(request, _("That sign-in took too long, or began in another browser. Try again."))
        return redirect("web:sign_in")
    connecting = begun["user"] is not None
    if "code" not in request.GET:
        why = request.GET.get("error", "")[:100]
        if why == "access_denied":
            messages.info(request, _("You did not sign in at %(name)s.") % {"name": provider.name})
            return redirect("web:sessions" if connecting else "web:sign_in")
        return _failed(request, provider, f"it answered {why!r}", connecting=connecting)
    flow = Flow(request.GET.get("state", ""), begun["nonce"], begun["verifier"])
    try:
        client = client_at(provider, _callback(request, provider))
        claims = redeem(client, discover(provider.issuer), flow, request.GET["code"][:4096])
    except ProviderFault as fault:
        return _failed(request, provider, str(fault), connecting=connecting)
    known = person_of(claims, provider.groups_claim)
    return (
        _connected(request, provider, known, begun)
        if connecting
        else _entered(request, provider, known, begun)
    )


@require_POST
def leave(request: HttpRequest, slug: str) -> HttpResponse:
    """Disconnect the person's account from a provider."""
    provider = active_provider(slug)
    try:
        disconnect(provider, person(request), now=timezone.now())
    except BerthError as error:
        return refused(request, error, "web:sessions")
    return done(request, _("%(name)s no longer signs you in.") % {"name": provider.name}, "web:sessions")


def _entered(
    request: HttpRequest, provider: IdentityProvider, known: Person, begun: dict[str, Any]
) -> HttpResponse:
    now, address = timezone.now(), client_address(request)
    try:
        admitted = admit(provider, known, now=now)
    except BerthError as error:
        refusal = str(error.detail)
    else:
        refusal = admitted.refusal
    if refusal:
        sign_ins.provider_failed(
            provider.slug, address, now=now, why=f"{known.username or known.subject}: {refusal}"
        )
        messages.error(request, refusal)
        return redirect("web:sign_in")
    sign_in_attempts.give_back_at_provider(address)
    sign_ins.signed_in_by(admitted.user, provider.slug, address, now=now)
    answer = enter(request, admitted.user, zone=begun["zone"], goal=begun["goal"])
    if known.groups is None:
        messages.info(request, _("%(name)s did not say in which groups you are: your roles stay as they were.") % {
            "name": provider.name
        })  # fmt: skip
    elif not admitted.user.memberships.exists():
        messages.info(request, _("You are in no team yet. A team admin or an operator adds you to one."))
    return answer


def _connected(
    request: HttpRequest, provider: IdentityProvider, known: Person, begun: dict[str, Any]
) -> HttpResponse:
    if not isinstance(request.user, User) or request.user.pk != begun["user"]:
        messages.error(request, _("That sign-in took too long, or began in another browser. Try again."))
        return redirect("web:sign_in")
    try:
        connect(provider, known, request.user, now=timezone.now())
    except BerthError as error:
        return refused(request, error, "web:sessions")
    return done(request, _("%(name)s signs you in from now on.") % {"name": provider.name}, "web:sessions")


def _failed(request: HttpRequest, provider: IdentityProvider, why: str, *, connecting: bool) -> HttpResponse:
    """Say that a provider could not be asked; why, only operators learn: from the log and the audit list."""
    log.warning("identity provider %s: %s", provider.slug, why)
    sign_ins.provider_failed(provider.slug, client_address(request), now=timezone.now(), why=why)
    sentence = _("%(name)s could not be asked who you are. Try again; if it stays so, tell an operator.")
    messages.error(request, sentence % {"name": provider.name})
    return redirect("web:sessions" if connecting else "web:sign_in")


def _callback(request: HttpRequest, provider: IdentityProvider) -> str:
    return request.build_absolute_uri(reverse("web:sso_back", args=[provider.slug]))


def _live_flows(request: HttpRequest) -> dict[str, Any]:
    now = timezone.now().timestamp()
    stored = request.session.get(FLOWS, {})
    return {state: flow for state, flow in stored.items() if flow["until"] > now}


def _taken(request: HttpRequest, provider: IdentityProvider) -> dict[str, Any] | None:
    """Return what was begun under the state that came back, and forget it: each counts once."""
    flows = _live_flows(request)
    begun: dict[str, Any] | None = flows.pop(request.GET.get("state", ""), None)
    if begun is None or begun["provider"] != provider.pk:
        return None
    request.session[FLOWS] = flows
    return begun
