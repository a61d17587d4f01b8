"""Reports that are sent to people by themselves: which, when, to whom, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from portal.billing.mailings import (
    FORMATS,
    MailingWish,
    deliveries_of,
    mailing_of,
    mailings_of,
    may_mail,
    remove_mailing,
    send_report,
    set_mailing,
)
from portal.billing.models import ReportMailing
from portal.billing.models_mailings import LAST_DAY
from portal.common.errors import BerthError, Forbidden, Invalid
from portal.teams.models import Team
from portal.teams.selectors import visible_team, visible_teams
from portal.web.access import done, rights_of
from portal.web.invoices.months import all_months, named
from portal.web.teams.rows import in_tree_order

SHOWN = 50
FORMAT_NAMES = [(name, name.upper()) for name in FORMATS]


class MailingForm(forms.Form):
    """What is sent to whom, when."""

    team = forms.ChoiceField(
        label=gettext_lazy("Team"),
        help_text=gettext_lazy("With the teams below it, as far as each reader sees them."),
        widget=forms.Select({"class": "form-select"}),
    )
    day = forms.TypedChoiceField(
        label=gettext_lazy("When"),
        coerce=int,
        empty_value=None,
        required=False,
        widget=forms.Select({"class": "form-select"}),
    )
    recipients = forms.CharField(
        label=gettext_lazy("To"),
        max_length=4000,
        help_text=gettext_lazy("User names, with commas. Each is told at their own contact points."),
        widget=forms.TextInput({"class": "form-control", "autocomplete": "off", "spellcheck": "false"}),
    )
    formats = forms.MultipleChoiceField(
        label=gettext_lazy("Files"), choices=FORMAT_NAMES, widget=forms.CheckboxSelectMultiple
    )
    language = forms.ChoiceField(
        label=gettext_lazy("Language of the files"),
        choices=settings.LANGUAGES,
        widget=forms.Select({"class": "form-select"}),
    )
    is_on = forms.BooleanField(
        label=gettext_lazy("Switched on"), required=False, widget=forms.CheckboxInput()
    )

    def __init__(self, data: Mapping[str, Any] | None, teams: Sequence[Team], **more: Any) -> None:
        super().__init__(data, **more)
        team, day = self.fields["team"], self.fields["day"]
        assert isinstance(team, forms.ChoiceField)
        assert isinstance(day, forms.ChoiceField)
        team.choices = [(one.slug, one.name) for one in teams]
        days = [(n, _("On day %(n)d, for the month before") % {"n": n}) for n in range(1, LAST_DAY + 1)]
        day.choices = [("", _("After each close")), *days]

    def wish(self) -> MailingWish:
        """Return what a valid form asks for."""
        data = self.cleaned_data
        names = [name.strip() for name in data["recipients"].split(",") if name.strip()]
        return MailingWish(data["day"], data["formats"], data["language"], names, data["is_on"])


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Show the mailings that this person may change; a POST adds one."""
    rights = rights_of(request)
    teams = [team for team in in_tree_order(list(visible_teams(rights))) if may_mail(rights, team)]
    if not teams:
        raise Forbidden(_("An admin or finance of the team has its report sent."))
    first = {"formats": ["pdf", "xlsx"], "language": request.LANGUAGE_CODE, "is_on": True}
    form = MailingForm(request.POST if request.method == "POST" else None, teams, initial=first)
    if form.is_bound and form.is_valid():
        try:
            set_mailing(
                team=visible_team(rights, form.cleaned_data["team"]), wish=form.wish(), rights=rights,
                now=timezone.now(),
            )  # fmt: skip
        except BerthError as error:
            _refuse(form, error)
        else:
            return done(request, _("The report will be sent."), "web:mailings")
    context = {"rows": [_row(one) for one in mailings_of(rights)], "form": form}
    return render(request, "web/mailings.html", context, status=422 if form.is_bound else 200)


@require_http_methods(["GET", "HEAD", "POST"])
def mailing(request: HttpRequest, key: int) -> HttpResponse:
    """Show a mailing with what it sent; a POST changes it."""
    rights = rights_of(request)
    found = mailing_of(rights, key)
    initial = {
        "team": found.team.slug, "day": found.day, "formats": found.formats, "language": found.language,
        "recipients": ", ".join(sorted(user.username for user in found.recipients.all())), "is_on": found.is_on,
    }  # fmt: skip
    form = MailingForm(request.POST if request.method == "POST" else None, [found.team], initial=initial)
    if form.is_bound and form.is_valid():
        try:
            set_mailing(team=found.team, wish=form.wish(), rights=rights, now=timezone.now(), mailing=found)
        except BerthError as error:
            _refuse(form, error)
        else:
            return done(request, _("The mailing is stored."), "web:mailings")
    context = {
        "mailing": found,
        "row": _row(found),
        "form": form,
        "months": all_months(now=timezone.now())[:24],
        "deliveries": deliveries_of(found, most=SHOWN),
    }
    return render(request, "web/mailing.html", context, status=422 if form.is_bound else 200)


@require_POST
def remove(request: HttpRequest, key: int) -> HttpResponse:
    """Send nothing more by a mailing."""
    rights = rights_of(request)
    remove_mailing(mailing=mailing_of(rights, key), rights=rights, now=timezone.now())
    return done(request, _("The mailing is removed."), "web:mailings")


@require_POST
def send(request: HttpRequest, key: int) -> HttpResponse:
    """Send a month now."""
    rights = rights_of(request)
    found, month = mailing_of(rights, key), request.POST.get("month", "")
    send_report(mailing=found, period=named(month), rights=rights, now=timezone.now())
    return done(request, _("%(month)s is on its way.") % {"month": month}, "web:mailing", str(key))


def _row(found: ReportMailing) -> dict[str, Any]:
    return {
        "mailing": found,
        "when": _("after each close") if found.day is None else _("on day %(n)d") % {"n": found.day},
        "formats": ", ".join(name.upper() for name in found.formats),
        "recipients": ", ".join(sorted(str(user) for user in found.recipients.all())),
        "language": dict(settings.LANGUAGES).get(found.language, found.language),
    }


def _refuse(form: forms.Form, error: BerthError) -> None:
    fields = error.fields if isinstance(error, Invalid) else {}
    for field, text in fields.items():
        form.add_error(field if field in form.fields else None, str(text))
    if not fields:
        form.add_error(None, str(error.detail))
