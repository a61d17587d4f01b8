"""Signing in and out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import authenticate, login, logout
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render, resolve_url
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, pgettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from portal.accounts.models import User
from portal.accounts.sessions import note_browser
from portal.accounts.sign_in_attempts import Attempt, begin_attempt, give_back
from portal.accounts.zones import adopt_zone
from portal.audit import sign_ins
from portal.catalog.first_start import is_set_up
from portal.common.addresses import client_address
from portal.common.clock import db_now
from portal.common.errors import BerthError, Forbidden
from portal.common.zones import LONGEST_NAME
from portal.leases.seats import claim_at_sign_in
from portal.second_factor.services import has_factor, is_required
from portal.sso.passwords import by_directory
from portal.sso.providers import active_directories, active_providers
from portal.teams.models import Membership, Role
from portal.web.announcements import shown_announcements
from portal.web.own_paths import own_path, remember_language
from portal.web.second_step import ask_for_code

DEMO_PASSWORD = "berth-demo"  # noqa: S105 (printed by `make up`; only offered when BERTH_DEMO is on)
DEMO_PEOPLE = {
    "bob": (_("Asks for GPU time, watches it run, sees what it costs."), "cpu"),
    "alice": (_("Runs a team: members, quotas, approvals, spending."), "users"),
    "charlie": (_("Works in another team: sees nothing of the first one."), "user"),
    "approver": (_("Decides on large requests, with price and headroom at hand."), "checkbox"),
    "finance": (_("Owns prices and billing periods; every line leads to its seconds."), "receipt"),
    "controller": (_("Decides the credit and debit notes that finance proposes."), "pencil"),
    "operator": (_("Runs the nodes: health, enrolment, who is where."), "server-2"),
}


@dataclass(frozen=True)
class DemoPerson:
    """One of the people of the demo, as a card that signs in with one click."""

    username: str
    name: str
    role: str
    text: Any
    icon: str


class SignInForm(forms.Form):
    """Name and password; the sentence of a refusal does not tell which of them was wrong."""

    username = forms.CharField(
        label=pgettext_lazy("sign-in", "Name"),
        max_length=150,
        widget=forms.TextInput(
            {"class": "form-control", "autocomplete": "username", "autocapitalize": "none"}
        ),
    )
    password = forms.CharField(
        label=_("Password"),
        max_length=500,
        strip=False,
        widget=forms.PasswordInput({"class": "form-control", "autocomplete": "current-password"}),
    )


@never_cache
@login_not_required
@sensitive_post_parameters("password")
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    """Sign a person in and go on to where they wanted to be."""
    if request.user.is_authenticated:
        return HttpResponseRedirect(goal_of(request))
    if request.method == "POST":
        return _try(request)
    return _shown(request, SignInForm())


@require_POST
@login_not_required
def sign_out(request: HttpRequest) -> HttpResponse:
    """End the session. Safe to repeat."""
    if isinstance(request.user, User):
        sign_ins.signed_out(request.user, now=timezone.now())
    logout(request)
    return redirect("web:sign_in")


def _try(request: HttpRequest) -> HttpResponse:
    demo = request.POST.get("demo", "")
    is_demo = settings.DEMO and demo in DEMO_PEOPLE
    form = SignInForm({"username": demo, "password": DEMO_PASSWORD} if is_demo else request.POST)
    if not form.is_valid():
        return _shown(request, form, status=422)
    name, address, now = form.cleaned_data["username"], client_address(request), timezone.now()
    attempt = begin_attempt(name, address, now=now)
    if attempt.wait_s:
        if attempt.is_first_refused:
            sign_ins.sign_in_failed(name, address, now=now, why="too many tries")
        return too_many_tries(request, form, attempt)
    user = authenticate(request, **form.cleaned_data)
    if not isinstance(user, User):
        try:
            user = _of_directory(form, address, now)
        except BerthError as error:
            form.add_error(None, str(error.detail))
            return _shown(request, form, status=error.status)
    if not isinstance(user, User):
        sign_ins.sign_in_failed(name, address, now=now, why="refused")
        form.add_error(None, _("Name and password do not fit together. Check both; capitals matter."))
        return _shown(request, form, status=422)
    zone, goal = request.POST.get("zone", "")[:LONGEST_NAME], goal_of(request)
    if has_factor(user) or is_required(user):
        give_back(attempt)
        return ask_for_code(request, user, zone=zone, goal=goal)
    sign_ins.signed_in(user, attempt, address, now=now)
    return enter(request, user, zone=zone, goal=goal)


def _of_directory(form: SignInForm, address: str, now: datetime) -> User | None:
    """Return whom a directory lets in; raises what it refuses them by, which stands in the audit list then."""
    name = form.cleaned_data["username"]
    try:
        found = by_directory(name, form.cleaned_data["password"], now=now)
        if found is not None and found.refusal:
            raise Forbidden(found.refusal)
    except BerthError as error:
        sign_ins.sign_in_failed(name, address, now=now, why=str(error.detail))
        raise
    return None if found is None else found.user


def enter(request: HttpRequest, user: User, *, zone: str, goal: str) -> HttpResponse:
    """Begin the session of somebody who has shown who they are, and go on to ``goal``, a page of this portal."""
    login(request, user)
    note_browser(request)
    adopted = adopt_zone(user=user, name=zone[:LONGEST_NAME])
    if adopted:
        said = _(
            "Times are shown in %(zone)s, the time zone of this browser. Your profile has another, if you like."
        )
        messages.info(request, said % {"zone": adopted})
    for workshop in claim_at_sign_in(user, now=db_now()):
        said = _("%(name)s: your slice starts now, or when it begins.")
        messages.success(request, said % {"name": workshop.name})
    answer = redirect(goal)
    return remember_language(answer, user.language) if user.language else answer


def too_many_tries(request: HttpRequest, form: SignInForm, attempt: Attempt) -> HttpResponse:
    """Say on the sign-in page how long to wait."""
    minutes = math.ceil(attempt.wait_s / 60)
    said = ngettext(
        "Too many tries. Wait %(n)d minute, then try again.",
        "Too many tries. Wait %(n)d minutes, then try again.",
        minutes,
    ) % {"n": minutes}
    if form.is_bound:
        form.add_error(None, said)
    else:
        messages.error(request, said)
    response = _shown(request, form, status=429)
    response["Retry-After"] = str(attempt.wait_s)
    return response


def _shown(request: HttpRequest, form: SignInForm, *, status: int = 200) -> HttpResponse:
    people = demo_people() if settings.DEMO else []
    context = {"form": form, "people": people, "goal": goal_of(request), "is_demo": settings.DEMO}
    context["is_empty"] = not is_set_up()
    context["providers"], context["directories"] = active_providers(), active_directories()
    context["announcements"] = shown_announcements(request)
    return render(request, "web/sign_in.html", context, status=status)


def goal_of(request: HttpRequest) -> str:
    """Return where to go after signing in: a page of this portal, else home."""
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    return own_path(wanted, default=resolve_url(settings.LOGIN_REDIRECT_URL))


def demo_people() -> list[DemoPerson]:
    """Return the demo people that exist, with their leading role and team."""
    users = {
        user.username: user
        for user in User.objects.filter(username__in=DEMO_PEOPLE, is_active=True, is_demo=True)
    }
    rows = Membership.objects.filter(user__in=users.values()).select_related("team").order_by("id")
    roles: dict[int, str] = {}
    for row in rows:
        label, team = Role(row.role).label, row.team.name
        roles[row.user_id] = f"{roles[row.user_id]}, {team}" if row.user_id in roles else f"{label} · {team}"
    return [
        DemoPerson(name, str(users[name]), roles.get(users[name].pk, ""), text, icon)
        for name, (text, icon) in DEMO_PEOPLE.items()
        if name in users
    ]
