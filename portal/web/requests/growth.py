"""How far an elastic request may grow: the field on its page."""

from __future__ import annotations

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from portal.common.errors import Conflict, Forbidden, Invalid
from portal.leases.elastic import set_growth
from portal.leases.models import LeaseRequest
from portal.leases.requests import held
from portal.leases.selectors import visible_request
from portal.leases.states import RequestState
from portal.teams.models import Role
from portal.teams.selectors import Rights
from portal.web.access import done, person, refused, rights_of

OPEN = (RequestState.AWAITING_APPROVAL, RequestState.QUEUED, RequestState.GRANTED)


class GrowthForm(forms.Form):
    """Up to how many units it may grow."""

    most_count = forms.IntegerField(
        label=gettext_lazy("It may grow to"),
        min_value=1,
        max_value=1000,
        widget=forms.NumberInput({"class": "form-control", "inputmode": "numeric"}),
    )


@require_POST
def growth(request: HttpRequest, uid: str) -> HttpResponse:
    """Say how far a request may grow from now on; its own number stops it. Safe to repeat."""
    rights = rights_of(request)
    found = visible_request(rights, uid)
    form = GrowthForm(request.POST)
    try:
        if not form.is_valid():
            raise Invalid(fields={name: str(errors[0]) for name, errors in form.errors.items()})
        most = form.cleaned_data["most_count"]
        with held(found) as now:
            set_growth(request=found, most_count=most, actor=person(request), rights=rights, now=now)
    except (Conflict, Forbidden, Invalid) as error:
        return refused(request, error, "web:request", uid)
    said = _("It grows no more. What it has stays until you give it back.")
    if most > found.count:
        said = _("It may grow to %(n)d while devices idle.") % {"n": most}
    return done(request, said, "web:request", uid)


def growth_form(rights: Rights, found: LeaseRequest) -> GrowthForm | None:
    """Return the field for this person, or None where there is nothing to say."""
    is_theirs = found.author_id == rights.user.pk or rights.has(found.team, Role.ADMIN, Role.OPERATOR)
    if not is_theirs or not found.most_count or found.state not in OPEN:
        return None
    return GrowthForm(initial={"most_count": found.most_count})
