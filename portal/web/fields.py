"""Form fields that several pages share."""

from __future__ import annotations

from typing import Any

from django import forms


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
