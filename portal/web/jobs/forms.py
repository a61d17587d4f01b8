from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.catalog.models import Flavor
from portal.teams.models import Role
from portal.teams.selectors import Rights, visible_teams


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

    def __init__(self, *args: Any, rights: Rights, **more: Any) -> None:
        super().__init__(*args, **more)
        offered = Flavor.objects.filter(is_active=True).order_by("name")
        teams = visible_teams(rights, Role.RESEARCHER, Role.ADMIN).order_by("name")
        self.fields["gpu"].choices = [(one.slug, one.name) for one in offered]  # type: ignore[attr-defined]
        self.fields["team"].choices = [(one.slug, one.name) for one in teams]  # type: ignore[attr-defined]

    def raw(self) -> dict[str, Any]:
        """Return what was filled in, as a job is written."""
        values = self.cleaned_data
        return {
            "command": values["command"].replace("\r\n", "\n"),
            "resources": {"gpu": values["gpu"]},
            "time": values["time"],
            "name": values["name"],
            "array": values["array"],
        }
