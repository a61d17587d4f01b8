from __future__ import annotations

from django import forms
from django.utils.translation import gettext_lazy as _


class CordonForm(forms.Form):
    """Why a node takes no new work."""

    reason = forms.CharField(
        label=_("Reason"),
        max_length=200,
        help_text=_("People who wait for this node read it."),
        error_messages={"required": _("Say why, so that waiting people can be told.")},
        widget=forms.TextInput({"class": "form-control", "placeholder": _("memory is being exchanged")}),
    )


class EnrolForm(forms.Form):
    """The name a new node will have."""

    name = forms.SlugField(
        label=_("Name of the node"),
        max_length=60,
        help_text=_("Letters, digits and dashes; usually its host name."),
        error_messages={"invalid": _("Use letters, digits and dashes only.")},
        widget=forms.TextInput({"class": "form-control", "placeholder": "gpu-05", "autocomplete": "off"}),
    )
