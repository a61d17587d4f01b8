"""The forms of workshops: what everybody gets and when, and who comes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.catalog.models import Flavor
from portal.common.errors import Invalid
from portal.leases.attendees import LONGEST_LIST
from portal.leases.models import Workshop
from portal.leases.workshops import WorkshopSpec, spec_of_workshop
from portal.teams.models import Team
from portal.web.fields import DurationField, MomentField, text_field
from portal.web.figures import duration_text

FIELD_OF = {"duration_s": "duration", "return_after_s": "return_after"}
WEEK = timedelta(days=7)


def people_field(hint: Any) -> forms.CharField:
    """Return the field into which a list of people is pasted."""
    return forms.CharField(
        label=_("People"),
        max_length=LONGEST_LIST,
        help_text=hint,
        widget=forms.Textarea(
            {"class": "form-control", "rows": 8, "autocomplete": "off", "spellcheck": "false"}
        ),
    )


class WorkshopForm(forms.Form):
    """What everybody gets, when, and who comes."""

    name = text_field(_("Name"), 80, _("Those who come read it."))
    team = forms.ChoiceField(label=_("Team"), widget=forms.Select({"class": "form-select"}))
    flavor = forms.ChoiceField(
        label=_("Flavor"), help_text=_("One for each person."), widget=forms.Select({"class": "form-select"})
    )
    starts_at = MomentField(label=_("Begins"))
    duration = DurationField(
        label=_("For how long"),
        max_length=40,
        initial="2 h",
        widget=forms.TextInput({"class": "form-control", "autocomplete": "off"}),
    )
    return_after = DurationField(
        label=_("Give back unused after"),
        max_length=40,
        initial="15 min",
        help_text=_("From the beginning on. What nobody has started by then is not billed."),
        widget=forms.TextInput({"class": "form-control", "autocomplete": "off"}),
    )
    people = people_field(_("One sign-in name, e-mail address or full name per line."))
    gives_roles = forms.BooleanField(required=False)

    def __init__(self, *args: Any, teams: list[Team], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.teams = {team.slug: team for team in teams}
        flavors = Flavor.objects.filter(is_active=True)
        for name, choices in (
            ("team", [(team.slug, team.name) for team in teams]),
            ("flavor", [(flavor.slug, flavor.shown_name) for flavor in flavors]),
        ):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = choices

    @property
    def team_chosen(self) -> Team:
        """Return the team of a valid form."""
        return self.teams[self.cleaned_data["team"]]

    def spec(self) -> WorkshopSpec:
        """Return what a valid form asks for."""
        data = self.cleaned_data
        return WorkshopSpec(
            name=data["name"],
            flavor=data["flavor"],
            starts_at=data["starts_at"],
            duration_s=data["duration"],
            return_after_s=data["return_after"],
        )

    def refuse(self, error: Invalid) -> None:
        """Mark the fields that a service could not use."""
        for name, sentence in error.fields.items():
            field = FIELD_OF.get(name, name)
            self.add_error(field if field in self.fields else None, str(sentence))


def again(workshop: Workshop, *, now: datetime) -> dict[str, Any]:
    """Return what the form begins with to book a workshop once more: the same hour of the next week to come."""
    spec = spec_of_workshop(workshop)
    weeks = max(1, (now - spec.starts_at) // WEEK + 1)
    names = workshop.seats.order_by("id").values_list("user__username", flat=True)
    return {
        "name": spec.name,
        "team": workshop.team.slug,
        "flavor": spec.flavor,
        "starts_at": spec.starts_at + weeks * WEEK,
        "duration": duration_text(spec.duration_s),
        "return_after": duration_text(spec.return_after_s),
        "people": "\n".join(names),
    }


class AttendeesForm(forms.Form):
    """More people for a workshop."""

    people = people_field(_("One per line. Whoever has a seat already keeps it."))
    gives_roles = forms.BooleanField(
        label=_("Let those who are not in the team be researchers in it until the workshop ends"),
        required=False,
    )
