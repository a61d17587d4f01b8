from __future__ import annotations

from django import forms
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from portal.accounts.models import Scope
from portal.accounts.services import MAX_TOKEN_DAYS

DAYS = (1, 7, 30, MAX_TOKEN_DAYS)


def _lengths() -> list[tuple[int, str]]:
    return [(n, ngettext("%(n)d day", "%(n)d days", n) % {"n": n}) for n in DAYS]


class TokenForm(forms.Form):
    """What a new API token is called, may do, and how long it lives."""

    name = forms.CharField(
        label=_("Name"),
        max_length=60,
        help_text=_("Where it will be used, so that you know it again."),
        widget=forms.TextInput(
            {"class": "form-control", "placeholder": _("my laptop"), "autocomplete": "off"}
        ),
    )
    scope = forms.ChoiceField(
        label=_("May"),
        choices=Scope.choices,
        initial=Scope.LEASE_WRITE,
        widget=forms.Select({"class": "form-select"}),
    )
    days = forms.TypedChoiceField(
        label=_("Lives for"),
        coerce=int,
        choices=_lengths,
        initial=30,
        widget=forms.Select({"class": "form-select"}),
    )

    def scopes(self) -> list[str]:
        """Return the scopes of the token: who may write may read."""
        chosen = self.cleaned_data["scope"]
        return [chosen] if chosen == Scope.READ else sorted({Scope.READ.value, chosen})
