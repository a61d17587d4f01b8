"""What a page knows about the person before it: their rights, and the way back after an action."""

from __future__ import annotations

from typing import cast

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.common.errors import BerthError, Forbidden, Invalid
from portal.teams.selectors import Rights


def person(request: HttpRequest) -> User:
    """Return the signed-in person; pages that need one are never reached without."""
    return cast(User, request.user)


def rights_of(request: HttpRequest) -> Rights:
    """Return the person's rights, read once per HTTP request."""
    found: Rights | None = getattr(request, "berth_rights", None)
    if found is None:
        found = Rights(person(request), is_seen=hasattr(request, "impersonation"))
        request.berth_rights = found  # type: ignore[attr-defined]
    return found


def done(request: HttpRequest, sentence: str, to: str, *args: str) -> HttpResponse:
    """Say what was done and go on to a page; a reload of that page repeats nothing."""
    messages.success(request, sentence)
    return redirect(to, *args)


def refused(request: HttpRequest, error: BerthError, to: str, *args: str) -> HttpResponse:
    """Say why nothing was done, and what to do next, on the page the person came from."""
    said = [str(text) for text in error.fields.values()] if isinstance(error, Invalid) else []
    messages.error(request, " ".join(said or [str(error.detail), str(error.next_step)]))
    return redirect(to, *args)


def require_operator(request: HttpRequest) -> None:
    """Raise Forbidden for everybody but operators."""
    if not rights_of(request).is_operator:
        raise Forbidden(_("Only operators work on nodes."))
