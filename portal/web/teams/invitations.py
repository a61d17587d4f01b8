"""Invitations into a team: the page of its admins, and the page behind the link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from portal.accounts.models import User
from portal.audit.invitations import (
    GONE,
    MOST_DAYS,
    accept_team_invitation,
    invitation_of,
    invite,
    join_by_invitation,
    open_invitations,
    revoke_invitation,
)
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.notifications.contact_points import has_mail
from portal.notifications.invitations import check_mailbox, mail_invitation
from portal.teams.models import Role, Team, TeamInvitation
from portal.teams.selectors import visible_team
from portal.teams.services import roles_to_give
from portal.web.access import done, person, refused, rights_of
from portal.web.fields import MomentField, text_field
from portal.web.invitation import NewPasswordForm

DAYS = (1, 7, 14, MOST_DAYS)


def _lengths() -> list[tuple[int, str]]:
    return [(n, ngettext("%(n)d day", "%(n)d days", n) % {"n": n}) for n in DAYS]


class InvitationForm(forms.Form):
    """Which role somebody is invited to, for how long, and where the link goes."""

    role = forms.ChoiceField(label=gettext_lazy("Role"), widget=forms.Select({"class": "form-select"}))
    role_ends_at = MomentField(
        label=gettext_lazy("Role until"),
        required=False,
        hint=gettext_lazy("Left empty: until it is taken away."),
    )
    days = forms.TypedChoiceField(
        label=gettext_lazy("The link works for"),
        coerce=int,
        choices=_lengths,
        initial=7,
        widget=forms.Select({"class": "form-select"}),
    )
    email = forms.EmailField(
        label=gettext_lazy("Send it to"),
        required=False,
        max_length=254,
        help_text=gettext_lazy("Left empty: you hand the link over yourself."),
        widget=forms.EmailInput({"class": "form-control", "autocomplete": "off"}),
    )


class JoiningForm(NewPasswordForm):
    """An account for somebody who was invited and has none."""

    username = text_field(gettext_lazy("Your sign-in name"), 150, autocapitalize="none")
    display_name = text_field(gettext_lazy("Your name"), 100, required=False)
    field_order = ("username", "display_name", "password", "again")


@dataclass(frozen=True, slots=True)
class MadeInvitation:
    """A link that was just made, and what became of its mail."""

    link: str
    row: TeamInvitation
    mail_fault: str


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest, slug: str) -> HttpResponse:
    """List a team's open invitations; a POST makes one and shows its link, here and never again."""
    rights, now = rights_of(request), timezone.now()
    team = visible_team(rights, slug)
    roles = roles_to_give(rights, team)
    if not roles:
        raise Forbidden(_("Only an admin of the team adds people."))
    form = InvitationForm(request.POST if request.method == "POST" else None)
    form.fields["role"].choices = [(role, Role(role).label) for role in roles]  # type: ignore[attr-defined]
    made = _made(request, team, form) if form.is_bound and form.is_valid() else None
    context: dict[str, Any] = {
        "team": team,
        "form": form,
        "made": made,
        "rows": open_invitations(team, now=now),
        "has_mail": has_mail(),
    }
    status = 422 if form.is_bound and made is None else 200
    return render(request, "web/team_invitations.html", context, status=status)


def _made(request: HttpRequest, team: Team, form: InvitationForm) -> MadeInvitation | None:
    try:
        check_mailbox(form.cleaned_data["email"])
        made = invite(team=team, rights=rights_of(request), now=timezone.now(), **form.cleaned_data)
    except Invalid as error:
        for name, sentence in error.fields.items():
            form.add_error(name, str(sentence))
        return None
    except Conflict as error:
        form.add_error(None, str(error.detail))
        return None
    link = request.build_absolute_uri(made.path)
    return MadeInvitation(link, made.row, mail_invitation(made.row, link) if made.row.email else "")


@require_POST
def revoke(request: HttpRequest, slug: str, key: int) -> HttpResponse:
    """Close an invitation that nobody has used."""
    rights = rights_of(request)
    team = visible_team(rights, slug)
    try:
        revoke_invitation(team=team, key=key, rights=rights, now=timezone.now())
    except Conflict as error:
        return refused(request, error, "web:team_invitations", slug)
    return done(
        request,
        _("The invitation is revoked: its link does not work any more."),
        "web:team_invitations",
        slug,
    )


@never_cache
@login_not_required
@sensitive_post_parameters("password", "again")
@require_http_methods(["GET", "HEAD", "POST"])
def answer(request: HttpRequest, secret: str) -> HttpResponse:
    """Let who has the link join: as who they are signed in, or with a new account."""
    row = invitation_of(secret, now=timezone.now())
    if row is None:
        raise NotFound(str(GONE))
    user = person(request) if isinstance(request.user, User) else None
    form = JoiningForm(request.POST if request.method == "POST" and user is None else None)
    if user is not None and request.method == "POST":
        try:
            accept_team_invitation(secret, user=user, now=timezone.now())
        except Conflict as error:
            return refused(request, error, "web:team", row.team.slug)
        said = _("Welcome to %(team)s: you are %(role)s there now.")
        facts = {"team": row.team.name, "role": Role(row.role).label}
        return done(request, said % facts, "web:team", row.team.slug)
    if form.is_bound and form.is_valid():
        names = ("username", "display_name", "password")
        try:
            made = join_by_invitation(
                secret, now=timezone.now(), **{name: form.cleaned_data[name] for name in names}
            )
        except Invalid as error:
            form.take(error)
        else:
            said = _("Your account is ready. Sign in as %(name)s.") % {"name": made.username}
            messages.success(request, said)
            return redirect("web:sign_in")
    context = {
        "row": row,
        "role": Role(row.role).label,
        "form": form,
        "who": user,
        "sign_in_url": f"{reverse('web:sign_in')}?next={request.path}",
    }
    return render(request, "web/invitation.html", context, status=422 if form.is_bound else 200)
