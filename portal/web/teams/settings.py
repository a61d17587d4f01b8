"""New teams below a team, what an admin above decides about one, and accounts for new people."""

from __future__ import annotations

from decimal import Decimal

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from portal.audit.organisation import (
    ApprovalRules,
    Invitation,
    add_person,
    add_team,
    change_team,
    invite_again,
    may_add_team,
    may_change_team,
)
from portal.common.errors import Forbidden, Invalid
from portal.common.moments import span
from portal.teams.models import Role, Team, TimeOutRule
from portal.teams.selectors import visible_team
from portal.teams.services import roles_to_give
from portal.web.access import done, rights_of
from portal.web.fields import MaybeDuration, text_field

HOUR_S = 3600


class NewTeamForm(forms.Form):
    """A team to be."""

    name = text_field(gettext_lazy("Name of the team"), 80)
    slug = text_field(
        gettext_lazy("Short name"),
        50,
        gettext_lazy(
            "For addresses and the command line: small letters, digits, dashes. Empty: made from the name."
        ),
        required=False,
        autocapitalize="none",
    )
    cost_centre = text_field(gettext_lazy("Cost centre"), 40, required=False)


class SettingsForm(forms.Form):
    """What an admin above decides about a team."""

    name = text_field(gettext_lazy("Name of the team"), 80)
    cost_centre = text_field(gettext_lazy("Cost centre"), 40, required=False)
    approval_above = forms.DecimalField(
        label=gettext_lazy("Approval above"),
        help_text=gettext_lazy(
            "Whoever asks for more waits for an approver. Empty: nobody has to approve anything; 0: everything."
        ),
        required=False,
        min_value=0,
        max_value=Decimal(100_000_000),
        decimal_places=2,
        widget=forms.NumberInput({"class": "form-control", "step": "1", "min": "0", "inputmode": "decimal"}),
    )
    second_approval_above = forms.DecimalField(
        label=gettext_lazy("Second approval above"),
        help_text=gettext_lazy(
            "Two people approve what is larger, one of them in a team above. Empty: one approval is enough."
        ),
        required=False,
        min_value=0,
        max_value=Decimal(100_000_000),
        decimal_places=2,
        widget=forms.NumberInput({"class": "form-control", "step": "1", "min": "0", "inputmode": "decimal"}),
    )
    approval_time_out = MaybeDuration(
        label=gettext_lazy("When nobody decides within"),
        max_length=40,
        required=False,
        help_text=gettext_lazy("For example 2 d or 12 h. Empty: it waits until somebody decides."),
        widget=forms.TextInput({"class": "form-control", "placeholder": "2 d", "autocomplete": "off"}),
    )
    approval_time_out_then = forms.ChoiceField(
        label=gettext_lazy("Then"),
        choices=TimeOutRule.choices,
        required=False,
        help_text=gettext_lazy(
            "What needs a second approval, or an approval because of a budget, is never approved by this rule."
        ),
        widget=forms.Select({"class": "form-select"}),
    )


class PersonForm(forms.Form):
    """Somebody new and their first role."""

    username = text_field(gettext_lazy("Sign-in name"), 150, autocapitalize="none")
    display_name = text_field(gettext_lazy("Name as others see it"), 100, required=False)
    role = forms.ChoiceField(label=gettext_lazy("Role"), widget=forms.Select({"class": "form-select"}))


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest, slug: str) -> HttpResponse:
    """Make a team below another one."""
    rights = rights_of(request)
    parent = visible_team(rights, slug)
    if not may_add_team(rights, parent):
        raise Forbidden(_("Only an admin of the team makes teams below it."))
    form = NewTeamForm(request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        try:
            made = add_team(parent=parent, rights=rights, now=timezone.now(), **form.cleaned_data)
        except Invalid as error:
            _show(form, error)
        else:
            return done(
                request, _("%(name)s is made. Add people to it.") % {"name": made.name}, "web:team", made.slug
            )
    context = {"team": parent, "form": form}
    return render(request, "web/team_new.html", context, status=422 if form.is_bound else 200)


@require_http_methods(["GET", "HEAD", "POST"])
def settings(request: HttpRequest, slug: str) -> HttpResponse:
    """Change a team's name, cost centre and approval threshold."""
    rights = rights_of(request)
    team = visible_team(rights, slug)
    if not may_change_team(rights, team):
        raise Forbidden(_("An admin of a team above decides on this."))
    form = SettingsForm(
        request.POST if request.method == "POST" else None,
        initial={
            "name": team.name,
            "cost_centre": team.cost_centre,
            "approval_above": _hours(team.approval_above_gpu_seconds),
            "second_approval_above": _hours(team.second_approval_above_gpu_seconds),
            "approval_time_out": span(team.approval_time_out_s) if team.approval_time_out_s else "",
            "approval_time_out_then": team.approval_time_out_then,
        },
    )
    if form.is_bound and form.is_valid():
        data = form.cleaned_data
        try:
            change_team(
                team=team,
                name=data["name"],
                cost_centre=data["cost_centre"],
                rules=ApprovalRules(
                    approval_above_gpu_seconds=_seconds(data["approval_above"]),
                    second_approval_above_gpu_seconds=_seconds(data["second_approval_above"]),
                    approval_time_out_s=data["approval_time_out"] or None,
                    approval_time_out_then=data["approval_time_out_then"] or TimeOutRule.REMIND,
                ),
                rights=rights,
                now=timezone.now(),
            )
        except Invalid as error:
            _show(
                form,
                error,
                approval_above_gpu_seconds="approval_above",
                second_approval_above_gpu_seconds="second_approval_above",
                approval_time_out_s="approval_time_out",
            )
        else:
            return done(request, _("The settings of the team are stored."), "web:team", team.slug)
    context = {"team": team, "form": form}
    return render(request, "web/team_settings.html", context, status=422 if form.is_bound else 200)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def person(request: HttpRequest, slug: str) -> HttpResponse:
    """Make an account with a role in the team; the answer shows its link, here and never again."""
    rights = rights_of(request)
    team = visible_team(rights, slug)
    roles = roles_to_give(rights, team)
    if not roles:
        raise Forbidden(_("Only an admin of the team adds people."))
    form = PersonForm(request.POST if request.method == "POST" else None)
    form.fields["role"].choices = [(role, Role(role).label) for role in roles]  # type: ignore[attr-defined]
    if form.is_bound and form.is_valid():
        try:
            made = add_person(team=team, rights=rights, now=timezone.now(), **form.cleaned_data)
        except Invalid as error:
            _show(form, error)
        else:
            return _invitation_page(request, team, made)
    context = {"team": team, "form": form}
    return render(request, "web/person_new.html", context, status=422 if form.is_bound else 200)


@never_cache
@require_POST
def again(request: HttpRequest, slug: str) -> HttpResponse:
    """Make a new link for somebody of the team who lost theirs, or the password."""
    rights = rights_of(request)
    team = visible_team(rights, slug)
    name = request.POST.get("username", "")[:150]
    made = invite_again(username=name, rights=rights, now=timezone.now())
    return _invitation_page(request, team, made)


def _invitation_page(request: HttpRequest, team: Team, made: Invitation) -> HttpResponse:
    context = {
        "team": team,
        "person": made.user,
        "link": request.build_absolute_uri(made.path),
        "expires_at": made.expires_at,
    }
    return render(request, "web/person_link.html", context)


def _show(form: forms.Form, error: Invalid, **called: str) -> None:
    """Show a refusal at the fields it names; ``called`` says how the form calls some of them."""
    for name, sentence in error.fields.items():
        form.add_error(called.get(name, name), str(sentence))


def _seconds(hours: Decimal | None) -> int | None:
    return None if hours is None else int(hours * HOUR_S)


def _hours(gpu_seconds: int | None) -> Decimal | None:
    if gpu_seconds is None:
        return None
    hours = (Decimal(gpu_seconds) / HOUR_S).quantize(Decimal("0.01"))
    return hours.quantize(Decimal(1)) if hours == hours.to_integral_value() else hours
