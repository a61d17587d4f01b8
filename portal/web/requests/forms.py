"""The form for GPU time: reads what people type; whether it may be asked is decided by the services."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.conf import settings
from django.utils.translation import gettext_lazy as _

from portal.common.errors import Invalid
from portal.leases.labels import open_projects
from portal.leases.requests import RequestSpec
from portal.leases.states import Opening
from portal.teams.models import Team
from portal.web.fields import DurationField
from portal.web.labels import WrittenTagsField, project_choices
from portal.web.requests.options import WishesForm

FIRST_DURATION = "1 h"
PRESETS = ("30 min", "1 h", "4 h", "8 h", "1 d", "3 d")
PRIORITY_CHOICES = (("normal", _("Normal")), ("low", _("Low: let others go first")), ("high", _("High")))
PATTERN_CHOICES = (
    ("", _("None")),
    ("steady", _("Steady")),
    ("bursty", _("Bursty")),
    ("idle", _("Idle")),
    ("dummy_loop", _("Full load")),
)
# How the fields of the service are called on the form.
FIELD_OF = {"duration_s": "duration", "extra_s": "extra", "least_duration_s": "least"}


def _text(placeholder: Any = "", **attrs: Any) -> forms.TextInput:
    return forms.TextInput(
        {"class": "form-control", "placeholder": placeholder, "autocomplete": "off", **attrs}
    )


class RequestForm(WishesForm):
    """What is asked for. Used for the form, for the live quote and for offers in an address."""

    team = forms.ChoiceField(label=_("Team"), widget=forms.Select({"class": "form-select"}))
    flavor = forms.CharField(
        label=_("Flavor"), max_length=50, error_messages={"required": _("Choose a flavor first.")}
    )
    count = forms.IntegerField(
        label=_("How many"),
        min_value=1,
        max_value=1000,
        initial=1,
        help_text=_("They start together, on one node unless you choose more nodes below."),
        widget=forms.NumberInput({"class": "form-control", "inputmode": "numeric"}),
    )
    duration = DurationField(
        label=_("For how long"),
        max_length=40,
        initial=FIRST_DURATION,
        help_text=_("For example 6 h, 90 min or 2 d. You can release it early and pay only what you used."),
        widget=_text("6 h"),
    )
    name = forms.CharField(
        label=_("Name"), max_length=80, required=False, widget=_text(_("segmentation run 12"))
    )
    purpose = forms.CharField(
        label=_("What it is for"),
        max_length=300,
        required=False,
        widget=forms.Textarea({"class": "form-control", "rows": 2}),
    )
    project = forms.ChoiceField(
        label=_("Project"), required=False, widget=forms.Select({"class": "form-select"})
    )
    tags = WrittenTagsField()
    priority = forms.ChoiceField(
        label=_("Priority"),
        choices=PRIORITY_CHOICES,
        initial="normal",
        required=False,
        widget=forms.Select({"class": "form-select"}),
    )
    load_pattern = forms.ChoiceField(
        label=_("Simulated load"),
        choices=PATTERN_CHOICES,
        required=False,
        initial="bursty",
        help_text=_("Only in the demo: what the made-up workload does, so that charts move."),
        widget=forms.Select({"class": "form-select"}),
    )
    opens = forms.ChoiceField(choices=Opening.choices, required=False)
    instead_of = forms.CharField(max_length=24, required=False, widget=forms.HiddenInput)
    ticket = forms.CharField(max_length=40, required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, teams: Sequence[Team], may_go_first: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.teams = {team.slug: team for team in teams}
        field = self.fields["team"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(team.slug, team.name) for team in teams]
        field.initial = teams[0].slug if teams else None
        projects = open_projects(teams)
        named = self.fields["project"]
        assert isinstance(named, forms.ChoiceField)
        named.choices = project_choices(projects)
        if not projects:
            del self.fields["project"]
        if not may_go_first:
            priority = self.fields["priority"]
            assert isinstance(priority, forms.ChoiceField)
            priority.choices = [choice for choice in PRIORITY_CHOICES if choice[0] != "high"]
        if not settings.DEMO:
            del self.fields["load_pattern"]

    @property
    def chosen_team(self) -> Team:
        """Return the team of a valid form, else the first one on offer."""
        slug = (
            self.cleaned_data.get("team", "") if self.is_bound and self.is_valid() else self["team"].value()
        )
        return self.teams.get(str(slug)) or next(iter(self.teams.values()))

    def spec(self) -> RequestSpec:
        """Return what a valid form asks for."""
        data = self.cleaned_data
        return RequestSpec(
            flavor=data["flavor"],
            duration_s=data["duration"],
            count=data["count"],
            priority=data.get("priority") or "normal",
            name=data.get("name", ""),
            purpose=data.get("purpose", ""),
            load_pattern=data.get("load_pattern", ""),
            opens=data.get("opens") or Opening.DEVICE.value,
            project=data.get("project", ""),
            tags=data.get("tags") or {},
            **self.wishes(),
        )

    def refuse(self, error: Invalid) -> None:
        """Mark the fields that a service could not use."""
        for name, sentence in error.fields.items():
            field = FIELD_OF.get(name, name)
            self.add_error(field if field in self.fields else None, str(sentence))
