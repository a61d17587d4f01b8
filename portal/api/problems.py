"""Every refusal as problem+json (RFC 9457) with a stable code and what to do next."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import DataError
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from portal.api import errors
from portal.common.errors import BerthError, Conflict, Forbidden, Invalid, NotFound
from portal.common.logs import request_id
from portal.common.retry import unavailable
from portal.common.states import IllegalMove
from portal.common.trigger_errors import refused_by_guard

log = logging.getLogger(__name__)
CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_S = {429: "10", 503: "3"}
_KINDS: tuple[tuple[type[Exception], type[BerthError]], ...] = (
    (exceptions.AuthenticationFailed, errors.TokenRefused),
    (exceptions.NotAuthenticated, errors.NotAuthenticated),
    (exceptions.MethodNotAllowed, errors.MethodNotAllowed),
    (exceptions.UnsupportedMediaType, errors.UnsupportedMedia),
    (exceptions.ParseError, errors.MalformedBody),
    (exceptions.NotFound, NotFound),
    (Http404, NotFound),
    (RequestDataTooBig, errors.BodyTooLarge),
    (IllegalMove, Conflict),
)
_KEEP_DETAIL = (exceptions.ParseError,)


def handle(error: Exception, context: dict[str, Any]) -> Response:
    """Return the answer for any exception of a view; an unknown one is logged and becomes a 500."""
    set_rollback()
    known = known_error(error)
    if isinstance(known, errors.InternalError):
        log.error("unexpected error in %s", context["view"].__class__.__name__, exc_info=error)
    response = Response(body(known, context["request"].path), status=known.status, content_type=CONTENT_TYPE)
    if known.status in RETRY_AFTER_S:
        response["Retry-After"] = RETRY_AFTER_S[known.status]
    for name, value in _headers(error).items():
        response[name] = value
    return response


def known_error(error: Exception) -> BerthError:
    """Return the refusal an exception stands for."""
    if isinstance(error, BerthError):
        return error
    if isinstance(error, exceptions.ValidationError):
        return Invalid(fields=dict(_flat(error.detail, "")))
    if isinstance(error, (exceptions.PermissionDenied, PermissionDenied)):
        is_csrf = "CSRF" in str(error)
        return errors.CsrfRefused() if is_csrf else Forbidden()
    for kind, mapped in _KINDS:
        if isinstance(error, kind):
            return mapped(str(error)) if isinstance(error, _KEEP_DETAIL) else mapped()
    return _from_below(error)


def _from_below(error: Exception) -> BerthError:
    """Return what an error of the database or of Python itself means for the caller."""
    refusal = unavailable(error)
    if refusal is not None:
        return refusal
    if isinstance(error, (DataError, OverflowError, RecursionError, UnicodeError)):
        return Invalid("A value is too large or not in a form that can be stored.")
    return refused_by_guard(error) or errors.InternalError()


def body(error: BerthError, path: str) -> dict[str, Any]:
    """Return the members of the problem: RFC 9457's, then code, next step and request id."""
    found: dict[str, Any] = {
        "type": f"/docs/errors#{error.code}",
        "title": str(error.title),
        "status": error.status,
        "code": error.code,
        "detail": str(error.detail),
        "next": str(error.next_step),
        "instance": path,
        "request_id": request_id.get(),
    }
    if isinstance(error, Invalid) and error.fields:
        found["errors"] = [entry for name, value in error.fields.items() for entry in _entries(name, value)]
    facts = {k: v for k, v in error.facts.items() if not k.endswith("_id") and isinstance(v, (int, str))}
    if facts:
        found["facts"] = facts
    return found


def _entries(name: str, value: Any) -> Iterable[dict[str, str]]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            yield {"field": name, "code": str(item["code"]), "detail": str(item["detail"])}
        else:
            yield {"field": name, "code": "invalid", "detail": str(item)}


def _flat(detail: Any, at: str) -> Iterable[tuple[str, list[dict[str, str]]]]:
    """Yield (field, entries) of DRF's nested error detail, fields joined by dots."""
    if isinstance(detail, dict):
        for name, inner in detail.items():
            part = "" if name == "non_field_errors" else str(name)
            yield from _flat(inner, f"{at}.{part}".strip("."))
        return
    items = detail if isinstance(detail, list) else [detail]
    plain = [
        {"code": str(getattr(i, "code", "invalid")), "detail": str(i)} for i in items if isinstance(i, str)
    ]
    if plain:
        yield at, plain
    for index, inner in enumerate(items):
        if not isinstance(inner, str):
            yield from _flat(inner, f"{at}.{index}".strip("."))


def _headers(error: Exception) -> dict[str, str]:
    headers = {}
    if getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = str(error.auth_header)  # type: ignore[attr-defined]
    if getattr(error, "wait", None):
        headers["Retry-After"] = str(error.wait)  # type: ignore[attr-defined]
    return headers
