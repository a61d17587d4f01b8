"""Between a right password and the code that follows it: kept in the browser's session, of nobody yet."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from portal.accounts.models import User
from portal.accounts.selectors import may_enter

KEPT_AS: Final = "_second_step"
LASTS: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class HalfSignedIn:
    """Whose password was right, and where they wanted to go."""

    user: User
    zone: str
    goal: str


def ask_for_code(request: HttpRequest, user: User, *, zone: str, goal: str) -> HttpResponse:
    """Go on to the page that asks for the code, as nobody until it is right."""
    request.session[KEPT_AS] = {
        "user": user.pk,
        # Another password in the meantime ends this.
        "password": user.get_session_auth_hash(),
        "until": (timezone.now() + LASTS).timestamp(),
        "zone": zone,
        "goal": goal,
    }
    request.session.cycle_key()
    return redirect("web:second_step")


def half_signed_in(request: HttpRequest) -> HalfSignedIn | None:
    """Return who is between password and code in this browser; None for nobody, and after ten minutes."""
    kept = request.session.get(KEPT_AS)
    if not kept or kept["until"] <= timezone.now().timestamp():
        return None
    user = User.objects.filter(pk=kept["user"]).first()
    if user is None or not may_enter(user):
        return None
    if not constant_time_compare(kept["password"], user.get_session_auth_hash()):
        return None
    return HalfSignedIn(user, kept["zone"], kept["goal"])
