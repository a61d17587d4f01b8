"""Search: every page and object by a few letters, from anywhere."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.web.access import rights_of
from portal.web.context import ASKS, navigation
from portal.web.search.find import LONGEST, find

MOST_PAGES = 6
ICONS = {
    "lease": "list-details", "request": "circle-plus", "job": "player-play", "team": "users", "node": "server-2",
}  # fmt: skip


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show what fits the letters: as a page of its own, or its list alone for the dialog that asks by script."""
    text = request.GET.get("q", "")[:LONGEST].strip()
    context = {
        "text": text,
        "pages": _pages(request, text),
        "matches": [{"row": row, "icon": ICONS[row.kind]} for row in find(rights_of(request), text)],
    }
    is_part = request.headers.get("HX-Request") == "true"
    return render(request, "web/parts/search_results.html" if is_part else "web/search.html", context)


def _pages(request: HttpRequest, text: str) -> list[dict[str, Any]]:
    """Return the pages this person may open whose names have all of the words."""
    words = text.casefold().split()
    found = [
        entry
        for entry in [*navigation(request), *_others(request)]
        if all(word in str(entry["label"]).casefold() for word in words)
    ]
    return found[:MOST_PAGES] if words else found


def _others(request: HttpRequest) -> list[dict[str, Any]]:
    entries = [
        ("requests", _("Requests"), "circle-plus"),
        ("reservations", _("Reservations"), "calendar"),
        ("workshops", _("Workshops"), "users"),
        ("contact_points", _("Contact points"), "bell"),
        ("profile", _("Profile"), "user"),
        ("tokens", _("API tokens"), "key"),
        ("ssh_keys", _("SSH keys"), "key"),
        ("sessions", _("Sessions and password"), "lock"),
    ]
    if rights_of(request).has_anywhere(*ASKS):
        entries.insert(0, ("jobs", _("Jobs"), "player-play"))
    return [{"label": label, "icon": icon, "url": reverse(f"web:{name}")} for name, label, icon in entries]
