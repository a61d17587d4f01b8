"""A person's passkeys: make one in the browser, name it, remove it. The challenge waits in the browser's session."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from portal.common.errors import Conflict, Invalid
from portal.second_factor.passkeys import (
    LONGEST_ANSWER,
    MOST_NAME,
    PasskeyQuestion,
    add_passkey,
    ask_to_make,
    remove_passkey,
)
from portal.web.access import done, person, refused
from portal.web.second_factor.forms import PasskeyForm
from portal.web.second_factor.page import proven

KEPT_AS: Final = "_passkey_question"
LASTS: Final = timedelta(minutes=5)


@never_cache
@sensitive_post_parameters("password")
@require_POST
def begin(request: HttpRequest) -> HttpResponse:
    """Ask the browser for a passkey, once the person's password is right."""

    def ask(_now: object) -> HttpResponse:
        question = ask_to_make(person(request))
        name = request.POST.get("name", "").strip()[:MOST_NAME]
        keep(request, question, name=name)
        return render(request, "web/second_factor_passkey.html", {"question": question, "name": name})

    return proven(request, ask, PasskeyForm(request.POST, auto_id="passkey-%s"))


@never_cache
@require_POST
def add(request: HttpRequest) -> HttpResponse:
    """Keep the passkey that the browser has made."""
    kept = taken(request)
    try:
        add_passkey(
            person(request), name=kept.get("name", ""), answer=request.POST.get("answer", "")[:LONGEST_ANSWER],
            challenge=kept.get("challenge", ""), now=timezone.now(),
        )  # fmt: skip
    except (Conflict, Invalid) as error:
        return refused(request, error, "web:second_factor")
    return done(request, _("The passkey is kept. It is asked for after your password."), "web:second_factor")


@never_cache
@sensitive_post_parameters("password")
@require_POST
def remove(request: HttpRequest, key: int) -> HttpResponse:
    """Forget a passkey, once the person's password is right."""

    def forget(_now: object) -> HttpResponse:
        remove_passkey(person(request), key, now=timezone.now())
        return done(request, _("The passkey is removed."), "web:second_factor")

    return proven(request, forget)


def keep(request: HttpRequest, question: PasskeyQuestion, **more: str) -> None:
    """Keep what was asked in the browser's session, for one answer within five minutes."""
    until = (timezone.now() + LASTS).timestamp()
    request.session[KEPT_AS] = {"challenge": question.challenge, "until": until, **more}


def taken(request: HttpRequest) -> dict[str, str]:
    """Return what was asked, once; empty where nothing was, or too long ago."""
    kept = request.session.pop(KEPT_AS, None)
    return kept if kept and kept["until"] > timezone.now().timestamp() else {}
