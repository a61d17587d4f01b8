"""What a device without a browser calls: OAuth's device authorization grant (RFC 8628). No cookie, no session."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, JsonResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from portal.audit.device_codes import LASTS, DeviceRefused, begin, redeem, shown
from portal.common.addresses import client_address
from portal.common.errors import Invalid, TooManyCalls

CLIENT = "berth-cli"
GRANT = "urn:ietf:params:oauth:grant-type:device_code"
DAYS = 30


@never_cache
@csrf_exempt
@login_not_required
@require_POST
def authorize(request: HttpRequest) -> JsonResponse:
    """Give a device its secret, the code to show and where to type it. ``name`` and ``days`` are ours."""
    if request.POST.get("client_id") != CLIENT:
        return _refused("invalid_client", "Only the command line signs in this way.", status=401)
    days = request.POST.get("days", str(DAYS))
    try:
        made = begin(
            name=request.POST.get("name", "berth command line"),
            days=int(days) if days.isdecimal() and len(days) <= 3 else 0,
            address=client_address(request),
            now=timezone.now(),
        )
    except Invalid as error:
        return _refused("invalid_request", str(error.detail))
    except TooManyCalls as error:
        answer = _refused("temporarily_unavailable", str(error.detail), status=429)
        answer["Retry-After"] = str(error.wait)
        return answer
    page = request.build_absolute_uri(reverse("web:device"))
    return JsonResponse(
        {
            "device_code": made.secret,
            "user_code": shown(made.row.user_code),
            "verification_uri": page,
            "verification_uri_complete": f"{page}?code={shown(made.row.user_code)}",
            "expires_in": int(LASTS.total_seconds()),
            "interval": made.row.interval_s,
        }
    )


@never_cache
@csrf_exempt
@login_not_required
@sensitive_post_parameters("device_code")
@require_POST
def token(request: HttpRequest) -> JsonResponse:
    """Give a device its token once a person has approved its code."""
    if request.POST.get("grant_type") != GRANT:
        return _refused("unsupported_grant_type", "Only device codes are taken here.")
    try:
        secret = redeem(request.POST.get("device_code", "")[:100], now=timezone.now())
    except DeviceRefused as error:
        return _refused(error.code, error.said)
    return JsonResponse({"access_token": secret, "token_type": "Bearer"})


def _refused(code: str, said: str, *, status: int = 400) -> JsonResponse:
    return JsonResponse({"error": code, **({"error_description": said} if said else {})}, status=status)
