"""Where a form or an address asks to go on to: a path of this portal, and nothing else."""

from __future__ import annotations

import re

from django.http import HttpRequest, HttpResponse
from django.utils.encoding import iri_to_uri
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.i18n import set_language

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


def choose_language(request: HttpRequest) -> HttpResponse:
    """Remember the chosen language and go back to the page it was chosen on, or home."""
    answer = set_language(request)
    if "Location" in answer:
        wanted = request.POST.get("next") or request.GET.get("next")
        answer["Location"] = own_path(wanted, default="/")
    return answer
