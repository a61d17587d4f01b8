from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from nodeagent.protocol.images import MOST_REFERENCE
from portal.catalog.models import Flavor
from portal.fleet.images import images_here
from portal.leases.labels import open_projects
from portal.teams.models import Role
from portal.teams.selectors import Rights, visible_teams
from portal.web.figures import parse_duration
from portal.web.labels import WrittenTagsField, project_choices


class JobForm(forms.Form):
    """A job as far as most need it; files and the command line say the rest."""

    command = forms.CharField(
        label=_("Commands"),
        max_length=32_768,
        help_text=_("Run by bash; the first that fails ends the job."),
        widget=forms.Textarea({"class": "form-control", "rows": 5, "spellcheck": "false"}),
    )
    gpu = forms.ChoiceField(label=_("Flavor"), widget=forms.Select({"class": "form-select"}))
    team = forms.ChoiceField(label=_("Team"), widget=forms.Select({"class": "form-select"}))
    time = forms.CharField(
        label=_("Time limit"),
        max_length=20,
        initial="1:00:00",
        help_text=_("Like 6:00:00, 1-12:00:00, 90m or 2h."),
        widget=forms.TextInput({"class": "form-control"}),
    )
    name = forms.CharField(
        label=_("Name"), max_length=80, required=False, widget=forms.TextInput({"class": "form-control"})
    )
    array = forms.CharField(
        label=_("Array"),
        max_length=200,
        required=False,
        help_text=_("Like 1-20%4: one job for each number, four at once."),
        widget=forms.TextInput({"class": "form-control"}),
    )
    env = forms.CharField(
        label=_("Variables"),
        max_length=32_768,
        required=False,
        help_text=_("One in each line, like LR=1e-4."),
        widget=forms.Textarea({"class": "form-control", "rows": 2, "spellcheck": "false"}),
    )
    artifacts = forms.CharField(
        label=_("Files to keep"),
        max_length=2000,
        required=False,
        help_text=_("Like out/**, *.ckpt: below the working directory, brought here at the end."),
        widget=forms.TextInput({"class": "form-control"}),
    )

    image = forms.CharField(
        label=_("Image"),
        max_length=MOST_REFERENCE,
        required=False,
        help_text=_("A container to run it in, like oci:pytorch:2.9. Empty: the node's own programs."),
        widget=forms.TextInput(
            {
                "class": "form-control",
                "spellcheck": "false",
                "autocapitalize": "none",
                "autocomplete": "off",
                "list": "images-here",
            }
        ),
    )

    project = forms.ChoiceField(
        label=_("Project"), required=False, widget=forms.Select({"class": "form-select"})
    )
    tags = WrittenTagsField()

    def __init__(self, *args: Any, rights: Rights, **more: Any) -> None:
        super().__init__(*args, **more)
        self.images = images_here(rights.user)
        offered = Flavor.objects.filter(is_active=True).order_by("name")
        teams = visible_teams(rights, Role.RESEARCHER, Role.ADMIN).order_by("name")
        self.fields["gpu"].choices = [(one.slug, one.name) for one in offered]  # type: ignore[attr-defined]
        self.fields["team"].choices = [(one.slug, one.name) for one in teams]  # type: ignore[attr-defined]
        projects = open_projects(list(teams))
        self.fields["project"].choices = project_choices(projects)  # type: ignore[attr-defined]
        if not projects:
            del self.fields["project"]

    def clean_env(self) -> dict[str, str]:
        """Return the variables by name, or refuse a line that sets none."""
        lines = [line.strip() for line in self.cleaned_data["env"].splitlines() if line.strip()]
        if any("=" not in line for line in lines):
            raise forms.ValidationError(_("Write one variable in each line, like LR=1e-4."))
        return {name.strip(): value for name, _equals, value in (line.partition("=") for line in lines)}

    def raw(self) -> dict[str, Any]:
        """Return what was filled in, as a job is written."""
        values = self.cleaned_data
        return {
            "command": values["command"].replace("\r\n", "\n"),
            "resources": {"gpu": values["gpu"]},
            "time": values["time"],
            "name": values["name"],
            "array": values["array"],
            "env": values["env"],
            "artifacts": [one.strip() for one in values["artifacts"].split(",") if one.strip()],
            "image": values["image"],
            "project": values.get("project", ""),
            "tags": values["tags"],
        }


def brought_along(given: Mapping[str, str]) -> dict[str, str]:
    """Return what whoever comes from the form for GPU time has chosen there already, by the fields of a job."""
    found = {"gpu": given.get("flavor", ""), "team": given.get("team", "")}
    seconds = parse_duration(given.get("duration", ""))
    if seconds:
        found["time"] = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return {name: value for name, value in found.items() if value}
