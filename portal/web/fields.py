"""Form fields, and a form, that several pages share."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.web.figures import parse_duration


def text_field(
    label: Any, most: int, hint: Any = "", *, required: bool = True, **more: str
) -> forms.CharField:
    """Return a one-line text field; ``more`` are attributes of its input."""
    attributes = {"class": "form-control", "autocomplete": "off", **more}
    return forms.CharField(
        label=label, help_text=hint, max_length=most, required=required, widget=forms.TextInput(attributes)
    )


def password_field(label: Any, kind: str, hint: Any = "") -> forms.CharField:
    """Return a password field; ``kind`` tells password managers what it is for."""
    return forms.CharField(
        label=label,
        help_text=hint,
        max_length=500,
        strip=False,
        widget=forms.PasswordInput({"class": "form-control", "autocomplete": kind}),
    )


class DurationField(forms.CharField):
    """A length of time as people write it ("6 h", "90 min"); cleans to whole seconds."""

    def clean(self, value: Any) -> int:
        """Return the seconds, or refuse text that names no time."""
        seconds = parse_duration(super().clean(value))
        if seconds is None:
            raise forms.ValidationError(_("Write a time such as 6 h, 90 min or 2 d."))
        return seconds


class NoteForm(forms.Form):
    """A decision on somebody's request."""

    decision = forms.ChoiceField(choices=(("approve", _("Approve")), ("reject", _("Reject"))))
    note = forms.CharField(max_length=300, required=False)
