"""Deputies: who decides in one's place, and for whom one decides."""

from __future__ import annotations

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from portal.common.errors import Conflict, Invalid
from portal.notifications.delegations import MOST_REASON, end_delegation, name_deputy, visible_delegations
from portal.teams.models import MOST_DELEGATED
from portal.teams.selectors import DECIDES
from portal.web.access import done, refused, rights_of
from portal.web.fields import MomentField, text_field

PAST_SHOWN = 20


class DeputyForm(forms.Form):
    """Who decides in one's place, from when until when, and why."""

    deputy = text_field(gettext_lazy("User name of your deputy"), 150, autocapitalize="none")
    starts_at = MomentField(
        label=gettext_lazy("From"), required=False, hint=gettext_lazy("Left empty: from now on.")
    )
    ends_at = MomentField(label=gettext_lazy("Until"))
    reason = text_field(gettext_lazy("Reason"), MOST_REASON, gettext_lazy("Your deputy reads it."))


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """List one's delegations of both sides; a POST names a deputy."""
    rights, now = rights_of(request), timezone.now()
    form = DeputyForm(request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid() and _named(request, form):
        return done(
            request, _("Your deputy is named. Both of you are told when it begins and ends."), "web:deputies"
        )
    rows = visible_delegations(rights)
    context = {
        "form": form if rights.has_anywhere(*DECIDES) else None,
        "open_rows": rows.filter(ended_at=None, ends_at__gt=now).order_by("starts_at", "pk"),
        "past": rows.exclude(ended_at=None, ends_at__gt=now)[:PAST_SHOWN],
        "now": now,
        "most_days": MOST_DELEGATED.days,
    }
    return render(request, "web/deputies.html", context, status=422 if form.is_bound else 200)


@require_POST
def end(request: HttpRequest, key: int) -> HttpResponse:
    """End a delegation before its time, as either side of it."""
    try:
        end_delegation(pk=key, rights=rights_of(request), now=timezone.now())
    except Conflict as error:
        return refused(request, error, "web:deputies")
    return done(request, _("The delegation is ended."), "web:deputies")


def _named(request: HttpRequest, form: DeputyForm) -> bool:
    """Name the deputy; False when it was refused, with the reasons on the form."""
    try:
        name_deputy(rights=rights_of(request), now=timezone.now(), **form.cleaned_data)
    except Invalid as error:
        for name, sentence in error.fields.items():
            form.add_error(name, str(sentence))
        return False
    except Conflict as error:
        form.add_error(None, str(error.detail))
        return False
    return True
