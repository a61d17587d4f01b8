"""Where a form or an address asks to go on to: a path of this portal, and nothing else."""

from __future__ import annotations

import re

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.encoding import iri_to_uri
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import check_for_language
from django.views.i18n import set_language

from portal.accounts.models import User
from portal.accounts.zones import set_profile

# One slash, then no second one and no backslash, which browsers read as one; nothing that does not print.
_PATH = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f-\x9f]*")
LONGEST = 2000  # characters in the Location header; no page of this portal needs as many


def own_path(wanted: str | None, *, default: str) -> str:
    """Return the wanted path ready for a Location header, or the default where it is not a path of this portal."""
    if not wanted or len(wanted) > LONGEST or not _PATH.fullmatch(wanted):
        return default
    path = iri_to_uri(wanted)
    is_own = len(path) <= LONGEST and url_has_allowed_host_and_scheme(path, allowed_hosts=None)
    return path if is_own else default


def remember_language(answer: HttpResponse, language: str) -> HttpResponse:
    """Let a browser ask for pages in a language from now on, as the switch of languages does."""
    answer.set_cookie(
        settings.LANGUAGE_COOKIE_NAME,
        language,
        max_age=settings.LANGUAGE_COOKIE_AGE,
        path=settings.LANGUAGE_COOKIE_PATH,
        domain=settings.LANGUAGE_COOKIE_DOMAIN,
        secure=settings.LANGUAGE_COOKIE_SECURE,
        httponly=settings.LANGUAGE_COOKIE_HTTPONLY,
        samesite=settings.LANGUAGE_COOKIE_SAMESITE,
    )
    return answer


def choose_language(request: HttpRequest) -> HttpResponse:
    """Remember the chosen language and go back to the page it was chosen on, or home."""
    answer = set_language(request)
    if isinstance(request.user, User) and check_for_language(request.POST.get("language", "")):
        set_profile(user=request.user, language=request.POST["language"])
    if "Location" in answer:
        wanted = request.POST.get("next") or request.GET.get("next")
        answer["Location"] = own_path(wanted, default="/")
    return answer
