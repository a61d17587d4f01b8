from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from portal.billing.models import BillingPeriod
from portal.billing.report import GroupBy
from portal.teams.models import Team
from portal.web.invoices.forms import month_name


class ReportFilter(forms.Form):
    """Which month, of whom, and what its rows are."""

    def __init__(
        self, data: Mapping[str, Any], months: Sequence[BillingPeriod], teams: Sequence[Team]
    ) -> None:
        super().__init__(data)
        select = forms.Select({"class": "form-select"})
        self._months = {f"{row.starts_at:%Y-%m}": row for row in months}
        self._teams = {team.slug: team for team in teams}
        named = [(key, month_name(row)) for key, row in self._months.items()]
        indented = [(team.slug, "\u2003" * (len(team.lineage) - 1) + team.name) for team in teams]
        self.fields["month"] = forms.ChoiceField(
            label=_("Month"), required=False, choices=named, widget=select
        )
        self.fields["by"] = forms.ChoiceField(
            label=pgettext_lazy("report", "By"), required=False, choices=GroupBy.choices, widget=select
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

    def by(self) -> GroupBy:
        """Return what the rows are: teams where nothing else is asked for."""
        text = self._text("by")
        return GroupBy(text) if text in GroupBy.values else GroupBy.TEAM

    def team(self) -> Team | None:
        """Return the team whose subtree is asked for."""
        return self._teams.get(self._text("team"))

    def person(self) -> str:
        """Return the user name asked for."""
        return self._text("person").strip()
