"""Berth's figures for Prometheus, and who may read them."""

from __future__ import annotations

import ipaddress
import secrets
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from portal.accounts.models import User
from portal.accounts.selectors import live_token
from portal.accounts.sign_in_attempts import bad_tokens
from portal.api.device_metrics import DeviceMetrics
from portal.api.metric_families import PortalMetrics
from portal.common.addresses import client_address
from portal.common.middleware import problem
from portal.teams.selectors import Rights


@login_not_required
@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer with the figures of the installation: to this host itself, to the scraper's token, to an operator."""
    return _refusal(request) or _answer(PortalMetrics(timezone.now()))


@login_not_required
@require_safe
@never_cache
def device_metrics(request: HttpRequest) -> HttpResponse:
    """Answer with each device and slice under DCGM's names, to the same."""
    return _refusal(request) or _answer(DeviceMetrics(timezone.now()))


def _answer(collector: Any) -> HttpResponse:
    registry = CollectorRegistry()
    registry.register(collector)
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def _refusal(request: HttpRequest) -> HttpResponse | None:
    """Return why somebody may not read figures, None for whoever may."""
    secret = _bearer(request)
    if _is_local(request) or _is_scraper(secret) or _is_operator(request, secret):
        return None
    wait_s = _refused_for(request, secret)
    if wait_s:
        refused = problem(request, 429, "too_many_calls", "Too many calls with tokens that are not accepted.")
        refused["Retry-After"] = str(wait_s)
        return refused
    return problem(
        request, 403, "forbidden", "These figures are for this host and for operators.",
        next_step="Send the token of BERTH_METRICS_TOKEN, or an operator's, as “Authorization: Bearer …”.",
    )  # fmt: skip


def _is_local(request: HttpRequest) -> bool:
    """Say whether the call comes from this host itself; one that a proxy passed on does not."""
    if "HTTP_X_FORWARDED_FOR" in request.META or "HTTP_FORWARDED" in request.META:
        return False
    try:
        return ipaddress.ip_address(request.META.get("REMOTE_ADDR", "")).is_loopback
    except ValueError:
        return False


def _is_scraper(secret: str | None) -> bool:
    """Say whether this is the token that the settings name; compared in constant time."""
    known = settings.METRICS_TOKEN
    return bool(known) and secret is not None and secrets.compare_digest(secret.encode(), known.encode())


def _is_operator(request: HttpRequest, secret: str | None) -> bool:
    if secret is not None:
        token = live_token(secret, now=timezone.now())
        return token is not None and Rights(token.user).is_operator
    return isinstance(request.user, User) and Rights(request.user).is_operator


def _refused_for(request: HttpRequest, secret: str | None) -> int:
    """Count a call with a token that is not accepted; returns for how many seconds its place is refused."""
    now = timezone.now()
    if secret is None or live_token(secret, now=now) is not None:
        return 0
    return bad_tokens.refused_for(client_address(request), now=now)


def _bearer(request: HttpRequest) -> str | None:
    """Return the token that came along, None where there is none."""
    kind, _space, secret = request.headers.get("Authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else None
