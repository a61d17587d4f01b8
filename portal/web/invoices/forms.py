from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.utils.formats import date_format
from django.utils.translation import gettext_lazy as _

from portal.billing.models import BillingPeriod
from portal.common.zones import LONGEST_NAME
from portal.web.fields import MonthInput, text_field


def month_name(period: BillingPeriod) -> str:
    """Return e.g. "November 2026" in the language of the page."""
    return date_format(period.month, "YEAR_MONTH_FORMAT")


class InvoiceFilter(forms.Form):
    """Which month, and which teams of it."""

    def __init__(self, data: Mapping[str, Any], months: Sequence[BillingPeriod]) -> None:
        super().__init__(data)
        self._months = {str(row): row for row in months}
        self.fields["month"] = forms.ChoiceField(
            label=_("Month"),
            required=False,
            choices=[(key, month_name(row)) for key, row in self._months.items()],
            widget=forms.Select({"class": "form-select"}),
        )
        self.fields["team"] = forms.CharField(
            label=_("Team"),
            required=False,
            max_length=80,
            widget=forms.TextInput({"class": "form-control", "type": "search", "autocomplete": "off"}),
        )
        self.is_valid()

    def month(self) -> BillingPeriod | None:
        """Return the month asked for, or None for none or one that the books do not have."""
        return self._months.get(self.cleaned_data.get("month") or "")

    def team(self) -> str:
        """Return the part of a team's name to look for."""
        return str(self.cleaned_data.get("team") or "")


class ZoneForm(forms.Form):
    """In which time zone months begin, from which month on."""

    zone = text_field(_("Time zone"), LONGEST_NAME, placeholder="Europe/Berlin", list="zones")
    since = MonthInput(label=_("First month in it"))
