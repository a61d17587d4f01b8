"""What is asked about a lease: how much longer it should run."""

from __future__ import annotations

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.web.fields import DurationField


class ExtendForm(forms.Form):
    """How much longer a lease should run."""

    extra = DurationField(label=_("How much longer"), max_length=40)
