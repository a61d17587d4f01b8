"""The templates of a team: its members start from them, its admins keep them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from portal.catalog.models import Flavor
from portal.common.errors import BerthError, Forbidden, Invalid
from portal.common.moments import span
from portal.leases.models import RequestTemplate
from portal.leases.requests import RequestSpec
from portal.leases.states import Opening
from portal.leases.templates import (
    LONGEST_NAME,
    remove_template,
    save_template,
    spec_of_template,
    visible_template,
    visible_templates,
)
from portal.teams.models import Role, Team
from portal.teams.selectors import visible_team
from portal.web.access import done, person, refused, rights_of
from portal.web.fields import DurationField, text_field
from portal.web.figures import duration_text, what_text
from portal.web.links import form_address

# How the fields of the service are called on the form.
FIELD_OF = {"duration_s": "duration"}


@dataclass(frozen=True)
class TemplateRow:
    """One template; ``url`` fills the form for GPU time with it, and is empty where its flavor is not on offer."""

    uid: str
    name: str
    opens: str
    what: str
    duration: str
    team: str
    is_preemptible: bool
    author: str
    saved_at: datetime
    url: str


class TemplateForm(forms.Form):
    """A name, and what is asked for by it."""

    name = text_field(gettext_lazy("Name"), LONGEST_NAME, placeholder="PyTorch notebook on 20 GB")
    opens = forms.ChoiceField(
        label=gettext_lazy("What it runs"),
        choices=Opening.choices,
        widget=forms.Select({"class": "form-select"}),
    )
    flavor = forms.ChoiceField(label=gettext_lazy("Flavor"), widget=forms.Select({"class": "form-select"}))
    count = forms.IntegerField(
        label=gettext_lazy("How many"),
        min_value=1,
        max_value=1000,
        initial=1,
        widget=forms.NumberInput({"class": "form-control", "inputmode": "numeric"}),
    )
    duration = DurationField(
        label=gettext_lazy("For how long"),
        max_length=40,
        widget=forms.TextInput({"class": "form-control", "placeholder": "6 h", "autocomplete": "off"}),
    )
    is_preemptible = forms.BooleanField(label=gettext_lazy("Preemptible"), required=False)

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        offered = Flavor.objects.filter(is_active=True).select_related("device_model").order_by("name")
        self.fields["flavor"].choices = [(one.slug, one.shown_name) for one in offered]  # type: ignore[attr-defined]

    def spec(self) -> RequestSpec:
        """Return what a valid form asks for."""
        data = self.cleaned_data
        return RequestSpec(
            flavor=data["flavor"],
            duration_s=data["duration"],
            count=data["count"],
            is_preemptible=data["is_preemptible"],
            opens=data["opens"],
        )


def template_row(row: RequestTemplate) -> TemplateRow:
    """Return a template as pages show it; its team, flavor and author must be at hand."""
    return TemplateRow(
        uid=row.uid,
        name=row.name,
        opens=str(Opening(row.opens).label),
        what=what_text(row.flavor.shown_name, row.count),
        duration=span(row.duration_s) or "",
        team=row.team.name,
        is_preemptible=row.is_preemptible,
        author=str(row.author),
        saved_at=row.created_at,
        url=form_address(row.team.slug, spec_of_template(row)) if row.flavor.is_active else "",
    )


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest, slug: str) -> HttpResponse:
    """List the templates of a team to whoever asks for it; a POST of an admin saves one."""
    rights = rights_of(request)
    team = visible_team(rights, slug)
    if not rights.has(team, Role.RESEARCHER, Role.ADMIN):
        raise Forbidden(_("Only who asks for GPU time of this team uses its templates."))
    keeps = rights.has(team, Role.ADMIN)
    form = None
    if request.method == "POST":
        form = TemplateForm(request.POST)
        if form.is_valid() and _saved(request, team, form):
            return done(
                request, _("The template is saved: members find it on the form."), "web:team_templates", slug
            )
    elif keeps:
        given = {name: request.GET[name] for name in TemplateForm.base_fields if name in request.GET}
        form = TemplateForm(initial=given)
    rows = visible_templates(rights).filter(team=team)
    context = {"team": team, "rows": [template_row(row) for row in rows], "form": form, "keeps": keeps}
    return render(request, "web/team_templates.html", context, status=422 if form and form.is_bound else 200)


def _saved(request: HttpRequest, team: Team, form: TemplateForm) -> bool:
    try:
        save_template(
            team=team,
            actor=person(request),
            rights=rights_of(request),
            name=form.cleaned_data["name"],
            spec=form.spec(),
            now=timezone.now(),
        )
    except Invalid as error:
        for field, text in error.fields.items():
            name = FIELD_OF.get(field, field)
            form.add_error(name if name in form.fields else None, str(text))
        return False
    except Forbidden:
        raise
    except BerthError as error:
        form.add_error(None, f"{error.detail} {error.next_step}")
        return False
    return True


@require_POST
def remove(request: HttpRequest, slug: str, uid: str) -> HttpResponse:
    """Forget a template of the team."""
    rights = rights_of(request)
    found = visible_template(rights, uid)
    try:
        remove_template(template=found, actor=person(request), rights=rights, now=timezone.now())
    except BerthError as error:
        return refused(request, error, "web:team_templates", slug)
    return done(
        request, _("The template is removed. What was asked by it stays."), "web:team_templates", slug
    )


def template_fields(spec: RequestSpec) -> dict[str, str]:
    """Return what fills the form for a template from a request."""
    return {
        "opens": spec.opens,
        "flavor": spec.flavor,
        "count": str(spec.count),
        "duration": duration_text(spec.duration_s),
        **({"is_preemptible": "1"} if spec.is_preemptible else {}),
    }
