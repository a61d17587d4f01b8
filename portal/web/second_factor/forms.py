"""Forms about second factors, and what they say of a refusal."""

from __future__ import annotations

import math

from django import forms
from django.utils.translation import gettext_lazy, ngettext

from portal.common.errors import BerthError, Invalid, TooManyCalls
from portal.second_factor.passkeys import MOST_NAME
from portal.second_factor.services import LONGEST_CODE
from portal.teams.models import Role
from portal.web.fields import password_field, text_field


class CodeForm(forms.Form):
    """A code of the app, or a recovery code."""

    code = text_field(
        gettext_lazy("Code"),
        LONGEST_CODE,
        autocomplete="one-time-code",
        autocapitalize="none",
        spellcheck="false",
    )


class ProofForm(forms.Form):
    """The password again, before a factor is changed."""

    password = password_field(gettext_lazy("Present password"), "current-password")


class PasskeyForm(forms.Form):
    """What a new passkey is called, and the password again."""

    name = text_field(gettext_lazy("Name"), MOST_NAME, gettext_lazy("For instance: laptop, key on the ring."))
    password = password_field(gettext_lazy("Present password"), "current-password")


class RolesForm(forms.Form):
    """Which roles need a second factor."""

    roles = forms.MultipleChoiceField(
        label=gettext_lazy("Roles"), choices=Role.choices, required=False, widget=forms.CheckboxSelectMultiple
    )


class NameForm(forms.Form):
    """Whose factor is reset."""

    username = text_field(gettext_lazy("Sign-in name"), 150, autocapitalize="none")


def mark(form: forms.Form, error: BerthError) -> int:
    """Write a refusal onto a form; returns the status of the answer."""
    if isinstance(error, TooManyCalls):
        minutes = math.ceil(error.wait / 60)
        said = ngettext(
            "Too many tries. Wait %(n)d minute, then try again.",
            "Too many tries. Wait %(n)d minutes, then try again.",
            minutes,
        )
        form.add_error(None, said % {"n": minutes})
    elif isinstance(error, Invalid) and error.fields:
        for name, sentence in error.fields.items():
            form.add_error(name, str(sentence))
    else:
        form.add_error(None, str(error.detail))
    return error.status
