from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from portal.billing.models import BillingPeriod
from portal.billing.report import GroupBy
from portal.teams.labels import TAG_NAME
from portal.teams.models import Team
from portal.web.invoices.forms import month_name

BY_TAG = "tag:"  # before the name of a tag by whose values rows are made


def grouping(text: str) -> tuple[GroupBy, str] | None:
    """Return what rows are made by, with the name of a tag for "tag:paper"; None for text that says nothing known."""
    if text.startswith(BY_TAG) and TAG_NAME.fullmatch(text.removeprefix(BY_TAG)):
        return GroupBy.TAG, text.removeprefix(BY_TAG)
    return (GroupBy(text), "") if text in GroupBy.values and text != GroupBy.TAG else None


class ReportFilter(forms.Form):
    """Which month, of whom, and what its rows are."""

    def __init__(
        self,
        data: Mapping[str, Any],
        months: Sequence[BillingPeriod],
        teams: Sequence[Team],
        tags: Sequence[str],
    ) -> None:
        super().__init__(data)
        select = forms.Select({"class": "form-select"})
        self._months = {str(row): row for row in months}
        self._teams = {team.slug: team for team in teams}
        named = [(key, month_name(row)) for key, row in self._months.items()]
        indented = [(team.slug, "\u2003" * (len(team.lineage) - 1) + team.name) for team in teams]
        self.fields["month"] = forms.ChoiceField(
            label=_("Month"), required=False, choices=named, widget=select
        )
        kinds: list[tuple[str, Any]] = [(key, text) for key, text in GroupBy.choices if key != GroupBy.TAG]
        kinds += [(f"{BY_TAG}{name}", _("Tag %(name)s") % {"name": name}) for name in tags]
        self.fields["by"] = forms.ChoiceField(
            label=pgettext_lazy("report", "By"), required=False, choices=kinds, widget=select
        )
        self.fields["team"] = forms.ChoiceField(
            label=_("Team"), required=False, choices=[("", _("Every team")), *indented], widget=select
        )
        self.fields["person"] = forms.CharField(
            label=_("User name"),
            required=False,
            max_length=150,
            widget=forms.TextInput({"class": "form-control", "type": "search", "autocomplete": "off"}),
        )
        self.is_valid()

    def _text(self, name: str) -> str:
        return str(self.cleaned_data.get(name) or "")

    def month(self) -> BillingPeriod:
        """Return the month asked for, else the newest one."""
        return self._months.get(self._text("month")) or next(iter(self._months.values()))

    def by(self) -> tuple[GroupBy, str]:
        """Return what the rows are and, of a tag, its name: teams where nothing else is asked for."""
        return grouping(self._text("by")) or (GroupBy.TEAM, "")

    def team(self) -> Team | None:
        """Return the team whose subtree is asked for."""
        return self._teams.get(self._text("team"))

    def person(self) -> str:
        """Return the user name asked for."""
        return self._text("person").strip()
