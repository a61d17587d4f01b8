"""People: who has an account, and closing that of somebody who leaves. Operators."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django import forms
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy
from django.views.decorators.http import require_POST, require_safe

from portal.accounts.models import User
from portal.common.errors import BerthError
from portal.jobs.departures import close_account, open_work, people, reopen_account
from portal.teams.models import Membership, Role
from portal.web.access import done, person, refused, require_operator, rights_of

PER_PAGE = 50
MOST_ROLES = 3


@dataclass(frozen=True, slots=True)
class HeldRoleRow:
    """A role of somebody, in words."""

    role: str
    team: str
    slug: str
    ends_at: datetime | None


@dataclass(frozen=True, slots=True)
class PersonRow:
    """An account of the list; ``more`` roles are left out."""

    user: User
    roles: list[HeldRoleRow]
    more: int


class PeopleForm(forms.Form):
    """Whom to show."""

    q = forms.CharField(
        label=gettext_lazy("Name or mail address"),
        max_length=80,
        required=False,
        widget=forms.TextInput({"class": "form-control", "type": "search", "autocomplete": "off"}),
    )
    state = forms.ChoiceField(
        label=gettext_lazy("State"),
        choices=[
            ("", gettext_lazy("Any")),
            ("open", pgettext_lazy("account", "Open")),
            ("closed", pgettext_lazy("account", "Closed")),
        ],
        required=False,
        widget=forms.Select({"class": "form-select"}),
    )


class CloseForm(forms.Form):
    """What becomes of what runs."""

    leases = forms.ChoiceField(
        label=gettext_lazy("Leases and jobs that run"),
        choices=[
            ("keep", gettext_lazy("Let them run to their end")),
            ("end", gettext_lazy("End them now")),
        ],
        initial="keep",
        widget=forms.Select({"class": "form-select"}),
    )


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """List accounts by name."""
    form = PeopleForm(request.GET)
    form.is_valid()
    wanted = form.cleaned_data.get("state", "")
    rows = people(
        rights=rights_of(request),
        text=form.cleaned_data.get("q", ""),
        is_closed={"open": False, "closed": True}.get(wanted),
    )
    found = Paginator(rows.order_by("username"), PER_PAGE).get_page(request.GET.get("page"))
    held = _roles([user.pk for user in found])
    shown = [
        PersonRow(user, held.get(user.pk, [])[:MOST_ROLES], max(0, len(held.get(user.pk, [])) - MOST_ROLES))
        for user in found
    ]
    return render(request, "web/people.html", {"form": form, "page": found, "rows": shown})


@require_safe
def person_page(request: HttpRequest, username: str) -> HttpResponse:
    """Show an account, and what closing it would end."""
    user = _user(request, username)
    context = {
        "shown": user,
        "roles": _roles([user.pk]).get(user.pk, []),
        "work": open_work(user),
        "is_self": user.pk == request.user.pk,
        "form": CloseForm(),
    }
    return render(request, "web/person.html", context)


@require_POST
def close(request: HttpRequest, username: str) -> HttpResponse:
    """Close an account; once more, it ends what is left."""
    user, form = _user(request, username), CloseForm(request.POST)
    ends_leases = form.is_valid() and form.cleaned_data["leases"] == "end"
    try:
        close_account(
            user.username, actor=person(request), rights=rights_of(request), ends_leases=ends_leases
        )
    except BerthError as error:
        return refused(request, error, "web:person", user.username)
    return done(
        request, _("The account of %(name)s is closed.") % {"name": user}, "web:person", user.username
    )


@require_POST
def reopen(request: HttpRequest, username: str) -> HttpResponse:
    """Let somebody in again."""
    user = _user(request, username)
    reopen_account(user.username, actor=person(request), rights=rights_of(request), now=timezone.now())
    return done(request, _("%(name)s may sign in again.") % {"name": user}, "web:person", user.username)


def _user(request: HttpRequest, username: str) -> User:
    require_operator(request)
    user = people(rights=rights_of(request)).filter(username=username).first()
    if user is None:
        raise Http404
    return user


def _roles(users: list[int]) -> dict[int, list[HeldRoleRow]]:
    held: dict[int, list[HeldRoleRow]] = {}
    rows = Membership.objects.filter(user__in=users).select_related("team")
    for one in rows.order_by("user_id", "team__parent_id", "team__name", "role"):
        row = HeldRoleRow(str(Role(one.role).label), one.team.name, one.team.slug, one.ends_at)
        held.setdefault(one.user_id, []).append(row)
    return held
