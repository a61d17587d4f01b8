"""Announcements: the page of operators, and what every page shows of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.common.errors import BerthError, Forbidden, Invalid
from portal.notifications.announcements import (
    MOST_TEXT,
    announce_to_people,
    announcements_for,
    announcements_to_come,
    dismiss_announcement,
    past_announcements,
    withdraw_announcement,
)
from portal.notifications.models import Announcement, AnnouncementLevel
from portal.teams.models import Team
from portal.web.access import done, refused, rights_of
from portal.web.fields import MomentField, text_field
from portal.web.own_paths import own_path

PAST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class AnnouncementStrip:
    """What a page shows, and in how many seconds that changes by itself ("" where it does not)."""

    rows: list[Announcement]
    changes_in_s: int | str


class AnnouncementForm(forms.Form):
    """What to say, to whom and for how long."""

    text_en = text_field(gettext_lazy("Text in English"), MOST_TEXT)
    text_zh = text_field(
        gettext_lazy("Text in Chinese"),
        MOST_TEXT,
        gettext_lazy("Left empty: the English one."),
        required=False,
    )
    level = forms.ChoiceField(
        label=gettext_lazy("Level"),
        choices=AnnouncementLevel.choices,
        widget=forms.Select({"class": "form-select"}),
    )
    team = forms.ModelChoiceField(
        label=pgettext_lazy("audience", "For"),
        queryset=Team.objects.order_by("name"),
        to_field_name="slug",
        required=False,
        empty_label=gettext_lazy("Everybody, on the sign-in page too"),
        help_text=gettext_lazy("A team: those with a role in it or in a team below it."),
        widget=forms.Select({"class": "form-select"}),
    )
    starts_at = MomentField(
        label=gettext_lazy("From"), required=False, hint=gettext_lazy("Left empty: from now on.")
    )
    ends_at = MomentField(
        label=gettext_lazy("Until"), required=False, hint=gettext_lazy("Left empty: until you withdraw it.")
    )


def shown_announcements(request: HttpRequest) -> AnnouncementStrip:
    """Return what a page shows to whoever asked for it."""
    now = timezone.now()
    found = announcements_for(rights_of(request) if request.user.is_authenticated else None, now=now)
    left = math.ceil((found.changes_at - now).total_seconds()) if found.changes_at else ""
    return AnnouncementStrip(found.rows, left)


@require_safe
def current(request: HttpRequest) -> HttpResponse:
    """Return the strip by itself, for a page that is open."""
    return render(request, "includes/announcements.html")


@require_POST
def dismiss(request: HttpRequest, uid: str) -> HttpResponse:
    """Show an announcement to this person no more."""
    dismiss_announcement(uid=uid, rights=rights_of(request), now=timezone.now())
    if request.headers.get("HX-Request") == "true":
        return render(request, "includes/announcements.html")
    return HttpResponseRedirect(own_path(request.POST.get("next"), default="/"))


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """List what is said and was said; a POST says something new. Operators."""
    if not rights_of(request).is_operator:
        raise Forbidden(_("Only operators announce something."))
    form = AnnouncementForm(request.POST or None)
    if request.method == "POST" and form.is_valid() and _stored(request, form):
        return done(request, _("It is announced. Open pages show it at once."), "web:announcements")
    now = timezone.now()
    context: dict[str, Any] = {
        "form": form,
        "rows": [(row, row.starts_at <= now) for row in announcements_to_come(now=now)],
        "past": past_announcements(now=now)[:PAST_SHOWN],
    }
    return render(request, "web/announcements.html", context, status=422 if form.is_bound else 200)


@require_POST
def withdraw(request: HttpRequest, uid: str) -> HttpResponse:
    """Take an announcement off every page."""
    try:
        withdraw_announcement(uid=uid, rights=rights_of(request), now=timezone.now())
    except BerthError as error:
        if error.status in (403, 404):
            raise
        return refused(request, error, "web:announcements")
    return done(request, _("It is shown no more."), "web:announcements")


def _stored(request: HttpRequest, form: AnnouncementForm) -> bool:
    """Announce it; False when it was refused, with the reasons on the form."""
    try:
        announce_to_people(**form.cleaned_data, rights=rights_of(request), now=timezone.now())
    except Invalid as error:
        for field, text in error.fields.items():
            form.add_error(field, text)
        return False
    return True
