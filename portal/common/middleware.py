"""What every HTTP request passes: an id, clean text, and errors for people."""

from __future__ import annotations

import logging
import re
import secrets
import sys
from collections.abc import Callable

from django.core.exceptions import BadRequest
from django.db import DataError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string

from portal.common.errors import BerthError, Invalid
from portal.common.logs import about, ids_in
from portal.common.logs import request_id as current_id
from portal.common.retry import unavailable
from portal.common.trigger_errors import refused_by_guard

log = logging.getLogger(__name__)
Handler = Callable[[HttpRequest], HttpResponse]
_UNCLEAN = re.compile("[\x00\ud800-\udfff]")
MOST_PATH = 300  # of an address that is looked at for names
CLEAN = "Send the address as percent-encoded UTF-8 without control characters."
_CHARSETS = {"", "utf-8", "utf8", "us-ascii", "ascii"}


def request_id(get_response: Handler) -> Handler:
    """Give each request an id: in logs, in errors and in the ``X-Request-Id`` header."""

    def middleware(request: HttpRequest) -> HttpResponse:
        token = current_id.set(secrets.token_hex(8))
        try:
            with about(**ids_in(request.path[:MOST_PATH])):
                response = get_response(request)
            response["X-Request-Id"] = current_id.get()
            return response
        finally:
            current_id.reset(token)

    return middleware


# Berth asks a browser for none of these; a page that was made to ask is refused by the browser.
SENSORS = (
    "accelerometer", "autoplay", "camera", "display-capture", "encrypted-media", "geolocation",
    "gyroscope", "hid", "idle-detection", "local-fonts", "magnetometer", "microphone", "midi", "payment",
    "screen-wake-lock", "serial", "usb", "xr-spatial-tracking",
)  # fmt: skip
PERMISSIONS = ", ".join([*(f"{name}=()" for name in SENSORS), "publickey-credentials-get=(self)"])


def allow_no_sensors(get_response: Handler) -> Handler:
    """Send the headers that Django has no setting for: no sensors, and no use of our answers by other sites."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers.setdefault("Permissions-Policy", PERMISSIONS)
        response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        return response

    return middleware


def refuse_unclean_input(get_response: Handler) -> Handler:
    """Refuse NUL and unpaired surrogates in path and query, and unknown charsets, with 400."""

    def middleware(request: HttpRequest) -> HttpResponse:
        query = request.META.get("QUERY_STRING", "")
        if "%00" in query or _UNCLEAN.search(request.path) or "%00" in request.path:
            return problem(
                request, 400, "unclean_text", "The address holds a NUL or broken character.", next_step=CLEAN
            )
        charset = str(request.content_params.get("charset", "") if request.content_params else "").lower()
        if charset not in _CHARSETS:
            return problem(
                request,
                415,
                "unknown_charset",
                "This charset is not spoken here.",
                next_step="Send text as UTF-8.",
            )
        try:
            surrogate = any(_UNCLEAN.search(value) for pair in request.GET.lists() for value in pair[1])
        except UnicodeError:
            surrogate = True
        if surrogate:
            return problem(
                request, 400, "unclean_text", "The address holds a broken character.", next_step=CLEAN
            )
        return get_response(request)

    return middleware


class ErrorsForPeople:
    """Turn an error that a view let through into a page or problem+json; never a bare 500 for bad input."""

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Pass the request on."""
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Return the answer for the errors we know; None leaves the rest to Django."""
        error = unavailable(error) or refused_by_guard(error) or error
        if isinstance(error, (DataError, OverflowError, RecursionError, UnicodeError, BadRequest)):
            error = Invalid("A value is too large or not in a form that can be stored.")
        if not isinstance(error, BerthError):
            return None
        return page_or_problem(request, error)


def page_or_problem(request: HttpRequest, error: BerthError) -> HttpResponse:
    """Answer with problem+json under ``/api/``, else with a page that says what to do next."""
    if request.path.startswith("/api/"):
        response = problem(
            request, error.status, error.code, str(error.detail), next_step=str(error.next_step)
        )
    elif error.status == 503:
        # Without the context of pages: who is signed in and what waits for them would ask the database again.
        context = {"error": error, "request": request, "request_id": current_id.get()}
        response = HttpResponse(render_to_string("refused.html", context), status=error.status)
    else:
        response = render(request, "refused.html", {"error": error}, status=error.status)
    if error.status == 503:
        response["Retry-After"] = "3"
    return response


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer for what failed outside of a view too, such as reading the session: Django's ``handler500``."""
    refusal = unavailable(sys.exc_info()[1] or Exception())
    if refusal is not None:
        return page_or_problem(request, refusal)
    if request.path.startswith("/api/"):
        return problem(
            request, 500, "internal_error", "Something went wrong in Berth.",
            next_step="Try again; if it stays, give the request id to an operator.",
        )  # fmt: skip
    return HttpResponse(render_to_string("500.html", {"request_id": current_id.get()}), status=500)


def problem(
    request: HttpRequest, status: int, code: str, detail: str, *, next_step: str = ""
) -> HttpResponse:
    """Return an RFC 9457 answer (also for pages that cannot be rendered yet)."""
    body = {
        "type": f"/docs/errors#{code}",
        "title": code.replace("_", " "),
        "status": status,
        "code": code,
        "detail": detail,
        "next": next_step,
        "instance": request.path,
        "request_id": current_id.get(),
    }
    return JsonResponse(body, status=status, content_type="application/problem+json")
