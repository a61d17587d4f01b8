"""What money is filed under: projects, and cost centre and tags of teams and requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from portal.billing.labels import (
    add_project,
    change_project,
    label_request,
    label_team,
    may_label_request,
    may_label_team,
    may_set_cost_centre,
    may_set_projects,
    request_labels,
    visible_project,
    visible_projects,
)
from portal.common.errors import Forbidden, Invalid
from portal.leases.labels import open_projects, requests_labels
from portal.leases.selectors import visible_request
from portal.teams.labels import tags_of, tags_text
from portal.teams.models import Project, Team
from portal.teams.selectors import Rights, visible_team, visible_teams
from portal.web.access import done, rights_of
from portal.web.fields import text_field
from portal.web.teams.rows import in_tree_order

TAGS_HINT = gettext_lazy("Such as paper=iclr, grant=EU-4711. Reports and exports can be sorted by them.")


class WrittenTagsField(forms.CharField):
    """Tags as people write them ("paper=iclr, grant=EU-4711"); cleans to a dict."""

    def __init__(self, **more: Any) -> None:
        widget = forms.TextInput({"class": "form-control", "autocomplete": "off", "spellcheck": "false"})
        super().__init__(
            label=gettext_lazy("Tags"),
            required=False,
            max_length=1300,
            help_text=TAGS_HINT,
            widget=widget,
            **more,
        )

    def clean(self, value: Any) -> dict[str, str]:
        """Return the tags, or refuse text that names none."""
        try:
            return tags_of(super().clean(value))
        except Invalid as error:
            raise forms.ValidationError(str(error.fields["tags"])) from error


def project_choices(projects: Sequence[Project]) -> list[tuple[str, Any]]:
    """Return projects to choose from, none of them first."""
    named = [(project.code, f"{project.code} · {project.name}") for project in projects]
    return [("", gettext_lazy("No project")), *named]


class LabelsForm(forms.Form):
    """Cost centre and tags of a team."""

    cost_centre = text_field(gettext_lazy("Cost centre"), 40, required=False)
    tags = WrittenTagsField()


class ProjectForm(forms.Form):
    """A project, as it is changed."""

    name = text_field(gettext_lazy("Name of the project"), 80)
    cost_centre = text_field(
        gettext_lazy("Cost centre"),
        40,
        gettext_lazy("In place of the team's. Empty: that one."),
        required=False,
    )
    tags = WrittenTagsField()
    is_ended = forms.BooleanField(
        label=gettext_lazy("Ended: new requests cannot name it"), required=False, widget=forms.CheckboxInput()
    )


class NewProjectForm(ProjectForm):
    """A project to be."""

    code = text_field(
        gettext_lazy("Code"), 40, gettext_lazy("As finance knows it, such as EU-4711. It never changes.")
    )
    team = forms.ChoiceField(
        label=gettext_lazy("Team"),
        help_text=gettext_lazy("Requests of this team and of those below it can name it."),
        widget=forms.Select({"class": "form-select"}),
    )
    field_order = ("code", "name", "team", "cost_centre", "tags")

    def __init__(self, data: Mapping[str, Any] | None, teams: Sequence[Team], **more: Any) -> None:
        super().__init__(data, **more)
        del self.fields["is_ended"]
        choice = self.fields["team"]
        assert isinstance(choice, forms.ChoiceField)
        choice.choices = [(team.slug, team.name) for team in teams]


class RequestLabelsForm(forms.Form):
    """What a request is filed under."""

    project = forms.ChoiceField(
        label=gettext_lazy("Project"), required=False, widget=forms.Select({"class": "form-select"})
    )
    cost_centre = text_field(
        gettext_lazy("Cost centre"),
        40,
        gettext_lazy("In place of those of project and team. Empty: those."),
        required=False,
    )
    tags = WrittenTagsField()

    def __init__(
        self, data: Mapping[str, Any] | None, projects: Sequence[Project], *, sets_centre: bool, **more: Any
    ) -> None:
        super().__init__(data, **more)
        choice = self.fields["project"]
        assert isinstance(choice, forms.ChoiceField)
        choice.choices = project_choices(projects)
        if not sets_centre:
            del self.fields["cost_centre"]


def _refuse(form: forms.Form, error: Invalid) -> None:
    for field, text in error.fields.items():
        form.add_error(field if field in form.fields else None, str(text))


def _teams_with_projects(rights: Rights) -> list[Team]:
    """Return the teams whose projects this person makes."""
    teams = in_tree_order(list(visible_teams(rights)))
    return [team for team in teams if may_set_projects(rights, team)]


@require_http_methods(["GET", "HEAD", "POST"])
def projects(request: HttpRequest) -> HttpResponse:
    """Show the projects in sight; a POST by an admin or finance of a team adds one."""
    rights = rights_of(request)
    teams = _teams_with_projects(rights)
    if request.method == "POST" and not teams:
        raise Forbidden(_("An admin or finance of the team makes its projects."))
    form = NewProjectForm(request.POST or None, teams, initial={"team": request.GET.get("team", "")})
    if form.is_bound and form.is_valid():
        values = dict(form.cleaned_data)
        try:
            made = add_project(
                **(values | {"team": visible_team(rights, values["team"])}), rights=rights, now=timezone.now()
            )
        except Invalid as error:
            _refuse(form, error)
        else:
            return done(request, _("The project %(code)s is made.") % {"code": made.code}, "web:projects")
    rows = [
        {"project": one, "tags": tags_text(one.tags), "may_change": one.team in teams}
        for one in visible_projects(rights)
    ]
    context = {"rows": rows, "form": form if teams else None}
    return render(request, "web/projects.html", context, status=422 if form.is_bound else 200)


@require_http_methods(["GET", "HEAD", "POST"])
def project(request: HttpRequest, code: str) -> HttpResponse:
    """Change a project, or end it."""
    rights = rights_of(request)
    found = visible_project(rights, code)
    if not may_set_projects(rights, found.team):
        raise Forbidden(_("An admin or finance of the team makes its projects."))
    initial = {
        "name": found.name, "cost_centre": found.cost_centre, "tags": tags_text(found.tags),
        "is_ended": found.is_ended,
    }  # fmt: skip
    form = ProjectForm(request.POST if request.method == "POST" else None, initial=initial)
    if form.is_bound and form.is_valid():
        try:
            change_project(project=found, rights=rights, now=timezone.now(), **form.cleaned_data)
        except Invalid as error:
            _refuse(form, error)
        else:
            return done(request, _("The project is stored."), "web:projects")
    return render(
        request, "web/project.html", {"project": found, "form": form}, status=422 if form.is_bound else 200
    )


@require_http_methods(["GET", "HEAD", "POST"])
def team(request: HttpRequest, slug: str) -> HttpResponse:
    """Set cost centre and tags of a team."""
    rights = rights_of(request)
    found = visible_team(rights, slug)
    if not may_label_team(rights, found):
        raise Forbidden(_("Finance of the team or an admin of a team above decides on this."))
    initial = {"cost_centre": found.cost_centre, "tags": tags_text(found.tags)}
    form = LabelsForm(request.POST if request.method == "POST" else None, initial=initial)
    if form.is_bound and form.is_valid():
        try:
            label_team(team=found, rights=rights, now=timezone.now(), **form.cleaned_data)
        except Invalid as error:
            _refuse(form, error)
        else:
            return done(request, _("Cost centre and tags are stored."), "web:team", found.slug)
    return render(
        request, "web/team_labels.html", {"team": found, "form": form}, status=422 if form.is_bound else 200
    )


@require_http_methods(["GET", "HEAD", "POST"])
def asked(request: HttpRequest, uid: str) -> HttpResponse:
    """File a request under a project and tags."""
    rights = rights_of(request)
    found = visible_request(rights, uid)
    if not may_label_request(rights, found):
        raise Forbidden(_("Whoever asked for it files it, or an admin or finance of the team."))
    own = requests_labels([found.pk]).get(found.pk)
    choices = open_projects([found.team])
    if own is not None and own.project is not None and own.project not in choices:
        choices.append(own.project)
    initial = {
        "project": own.project.code if own and own.project else "",
        "cost_centre": own.cost_centre if own else "",
        "tags": tags_text(own.tags) if own else "",
    }
    sets_centre = may_set_cost_centre(rights, found)
    data = request.POST if request.method == "POST" else None
    form = RequestLabelsForm(data, choices, sets_centre=sets_centre, initial=initial)
    if form.is_bound and form.is_valid():
        try:
            label_request(
                request=found,
                project=form.cleaned_data["project"],
                cost_centre=form.cleaned_data.get("cost_centre"),
                tags=form.cleaned_data["tags"],
                rights=rights,
                now=timezone.now(),
            )
        except Invalid as error:
            _refuse(form, error)
        else:
            return done(request, _("Project and tags are stored."), "web:request", found.uid)
    context = {"asked": found, "form": form, "labels": request_labels(found)}
    return render(request, "web/request_labels.html", context, status=422 if form.is_bound else 200)
