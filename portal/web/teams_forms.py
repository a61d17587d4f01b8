from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.accounts.models import User
from portal.quotas.models import Quota
from portal.teams.models import Role

MOST_DEVICES = Decimal(1_000_000)
SHARES = 1000


class MemberForm(forms.Form):
    """Who joins, in what role; only roles that may be given are offered."""

    username = forms.CharField(
        label=_("Sign-in name"),
        max_length=150,
        widget=forms.TextInput({"class": "form-control", "autocomplete": "off"}),
    )
    role = forms.ChoiceField(label=_("Role"), widget=forms.Select({"class": "form-select"}))

    def __init__(self, data: Mapping[str, Any] | None = None, *, roles: Iterable[str] = ()) -> None:
        super().__init__(data)
        self.fields["role"].choices = [(role, Role(role).label) for role in roles]  # type: ignore[attr-defined]

    def clean_username(self) -> User:
        """Return the person of that name."""
        found = User.objects.filter(username=self.cleaned_data["username"], is_active=True).first()
        if found is None:
            raise forms.ValidationError(_("Nobody signs in under this name."))
        return found


class QuotaForm(forms.Form):
    """A team's guarantee and ceiling in devices; ``version`` guards against a change in between."""

    guaranteed = forms.DecimalField(
        label=_("Guaranteed"),
        min_value=0,
        max_value=MOST_DEVICES,
        decimal_places=3,
        help_text=_("The team can always have this much, once others give back what they borrowed."),
        widget=forms.NumberInput({"class": "form-control", "step": "0.125", "min": "0"}),
    )
    ceiling = forms.DecimalField(
        label=_("Ceiling"),
        required=False,
        min_value=0,
        max_value=MOST_DEVICES,
        decimal_places=3,
        help_text=_("The team never has more than this. Empty: only the teams above limit it."),
        widget=forms.NumberInput({"class": "form-control", "step": "0.125", "min": "0"}),
    )
    version = forms.IntegerField(min_value=1, max_value=2**31 - 1, widget=forms.HiddenInput())

    @classmethod
    def of(cls, quota: Quota | None) -> QuotaForm:
        """Return the form filled with what holds now."""
        if quota is None:
            return cls(initial={"guaranteed": 0, "ceiling": None, "version": 1})
        return cls(
            initial={
                "guaranteed": devices(quota.guaranteed_milli),
                "ceiling": devices(quota.ceiling_milli),
                "version": quota.version,
            }
        )

    def milli(self, name: str) -> int | None:
        """Return a field in thousandths of a device."""
        value = self.cleaned_data[name]
        return None if value is None else int(value * SHARES)


def devices(milli: int | None) -> Decimal | None:
    """Return thousandths of a device as a short decimal for a form field."""
    if milli is None:
        return None
    whole = Decimal(milli) / SHARES
    return whole.quantize(Decimal(1)) if whole == whole.to_integral_value() else whole.normalize()
