from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _


class WakeForm(forms.Form):
    """How long a node stays awake, whatever the policy says."""

    hours = forms.TypedChoiceField(
        label=_("Keep it awake for"),
        coerce=int,
        initial=1,
        error_messages={
            "required": _("Choose how long it stays awake."),
            "invalid_choice": _("Choose how long it stays awake."),
        },
        choices=[
            (1, _("an hour")),
            (4, _("4 hours")),
            (12, _("12 hours")),
            (24, _("a day")),
            (72, _("3 days")),
            (168, _("a week")),
        ],
        widget=forms.Select({"class": "form-select"}),
    )

    def time(self) -> timedelta:
        """Return the chosen time; call once it is valid."""
        values: dict[str, Any] = self.cleaned_data
        return timedelta(hours=values["hours"])
