"""The time zone of who calls: pages, the API's sentences and everything typed are in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.common.errors import Invalid
from portal.common.zones import zone_named


def zone_of(user: Any) -> ZoneInfo | None:
    """Return a person's time zone; None (the portal's own) where they have chosen none."""
    return zone_named(user.time_zone) if isinstance(user, User) and user.time_zone else None


class OwnTimeZone:
    """Show times in the time zone of who is signed in, for the length of one HTTP request.

    Behind the check that somebody is signed in: who needs nobody (sign-in, health, the catalogue of words) costs
    no query for it.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Pass the request on, and leave no zone behind on this thread."""
        with timezone.override(None):
            return self.get_response(request)

    def process_view(self, request: HttpRequest, view: Any, _args: Any, _kwargs: Any) -> None:
        """Use the person's zone from here on; the API does so itself once it knows who calls."""
        if getattr(view, "login_required", True):
            timezone.activate(zone_of(request.user) or timezone.get_default_timezone())


def set_profile(*, user: User, time_zone: str | None = None, language: str | None = None) -> None:
    """Keep what a person chose; None leaves it. Raises Invalid naming the field. Safe to repeat."""
    chosen = {"time_zone": time_zone, "language": language}
    wrong = {}
    if time_zone and zone_named(time_zone) is None:
        wrong["time_zone"] = _("There is no such time zone. Write a name such as Europe/Berlin.")
    if language and language not in dict(settings.LANGUAGES):
        wrong["language"] = _("Choose one of: %(names)s.") % {"names": ", ".join(dict(settings.LANGUAGES))}
    if wrong:
        raise Invalid(fields=wrong)
    changed = {name: value for name, value in chosen.items() if value is not None}
    if changed:
        User.objects.filter(pk=user.pk).update(**changed)
        for name, value in changed.items():
            setattr(user, name, value)


def adopt_zone(*, user: User, name: str) -> str:
    """Take the browser's time zone for a person who has none yet; return it where it was taken, else ""."""
    if user.time_zone or zone_named(name) is None:
        return ""
    set_profile(user=user, time_zone=name)
    return name
