"""Refusals of the HTTP layer itself; together with ``portal.common.errors`` the whole catalogue of codes."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from portal.common.errors import BerthError


class NotAuthenticated(BerthError):
    """No token and no session."""

    code = "not_authenticated"
    status = 401
    title = _("Sign in first")
    next_step = _(
        "Send a token as “Authorization: Bearer …”. Make one under API tokens or with “berth login”."
    )


class TokenRefused(BerthError):
    """The token is unknown, expired or revoked."""

    code = "token_refused"
    status = 401
    title = _("This token is not accepted")
    next_step = _("It is unknown, expired or revoked. Make a new one under API tokens or with “berth login”.")


class ScopeMissing(BerthError):
    """The token is alive but was made for less."""

    code = "scope_missing"
    status = 403
    title = _("This token may not do that")
    next_step = _("Make a token with the scope named here.")


class CsrfRefused(BerthError):
    """A browser session sent a change without its CSRF token."""

    code = "csrf_refused"
    status = 403
    title = _("The browser's proof is missing")
    next_step = _("Reload the page and try again, or use an API token.")


class MethodNotAllowed(BerthError):
    """The address exists; the method does not."""

    code = "method_not_allowed"
    status = 405
    title = _("This address does not take that method")
    next_step = _("The Allow header names the methods it takes.")


class UnsupportedMedia(BerthError):
    """The body is not JSON."""

    code = "unsupported_media"
    status = 415
    title = _("Send JSON")
    next_step = _("Set “Content-Type: application/json”.")


class UnknownCharset(BerthError):
    """Text in anything but UTF-8."""

    code = "unknown_charset"
    status = 415
    title = _("Unknown character set")
    next_step = _("Send text as UTF-8.")


class UncleanText(BerthError):
    """NUL or an unpaired surrogate in an address."""

    code = "unclean_text"
    status = 400
    title = _("The address holds a character that cannot be used")
    next_step = _("Remove NUL and broken characters.")


class MalformedBody(BerthError):
    """The body cannot be decoded."""

    code = "malformed_body"
    status = 400
    title = _("The body is not JSON that can be used")
    next_step = _("Send one JSON object without duplicate keys, NaN or NUL, at most 32 levels deep.")


class BodyTooLarge(BerthError):
    """The body is larger than any call here needs."""

    code = "body_too_large"
    status = 413
    title = _("The body is too large")
    next_step = _("Send less: at most 1 MiB, or 3 MiB where a file is imported.")


class LengthRequired(BerthError):
    """A body in chunks: the web server cannot hand it on."""

    code = "length_required"
    status = 411
    title = _("Say how long the body is")
    next_step = _("Send a Content-Length header instead of a chunked body.")


class PreconditionRequired(BerthError):
    """An edit without saying which version it edits."""

    code = "precondition_required"
    status = 428
    title = _("Say which version you edit")
    next_step = _("Read the object and send its ETag as If-Match.")


class PreconditionFailed(BerthError):
    """Somebody changed the object meanwhile."""

    code = "precondition_failed"
    status = 412
    title = _("Somebody changed this since you read it")
    next_step = _("Read it again, and send your change with the new ETag.")


class IdempotencyMismatch(BerthError):
    """The key was used for another call."""

    code = "idempotency_mismatch"
    status = 422
    title = _("This Idempotency-Key belongs to another call")
    next_step = _("Use a fresh key for each new call; repeat a call only with the same body.")


class IdempotencyRunning(BerthError):
    """The first call with this key has not finished."""

    code = "idempotency_running"
    status = 409
    title = _("The first call with this key is still running")
    next_step = _("Try again in a second: you will get its answer.")


class InternalError(BerthError):
    """A fault of Berth; the request id leads an operator to the log line."""

    code = "internal_error"
    status = 500
    title = _("Something went wrong in Berth")
    next_step = _("Try again; if it stays, give the request id to an operator.")
