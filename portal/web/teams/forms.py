from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.accounts.models import User
from portal.common.units import HOUR_S
from portal.quotas.models import Quota
from portal.teams.models import Role
from portal.web.fields import MaybeDuration, MomentField
from portal.web.figures import duration_text

MOST_DEVICES = Decimal(1_000_000)
SHARES = 1000
MIB_PER_GIB = 1024


class MemberForm(forms.Form):
    """Who joins, in what role; only roles that may be given are offered."""

    username = forms.CharField(
        label=_("Sign-in name"),
        max_length=150,
        widget=forms.TextInput({"class": "form-control", "autocomplete": "off"}),
    )
    role = forms.ChoiceField(label=_("Role"), widget=forms.Select({"class": "form-select"}))
    until = MomentField(
        label=_("Until"), required=False, hint=_("Empty: no end. A role that somebody has gets this end.")
    )

    def __init__(self, data: Mapping[str, Any] | None = None, *, roles: Iterable[str] = ()) -> None:
        super().__init__(data)
        self.fields["role"].choices = [(role, Role(role).label) for role in roles]  # type: ignore[attr-defined]

    def clean_username(self) -> User:
        """Return the person of that name."""
        found = User.objects.filter(username=self.cleaned_data["username"], is_active=True).first()
        if found is None:
            raise forms.ValidationError(_("Nobody signs in under this name."))
        return found


def _devices_field(label: Any, help_text: Any, *, required: bool = False) -> forms.DecimalField:
    return forms.DecimalField(
        label=label,
        required=required,
        min_value=0,
        max_value=MOST_DEVICES,
        decimal_places=3,
        help_text=help_text,
        widget=forms.NumberInput({"class": "form-control", "step": "0.125", "min": "0"}),
    )


class QuotaForm(forms.Form):
    """A team's quota in reference GPUs; ``version`` guards against a change in between, ``cohorts`` are on offer."""

    guaranteed = _devices_field(
        _("Guaranteed"),
        _("The team can always have this much, once others give back what they borrowed."),
        required=True,
    )
    ceiling = _devices_field(
        _("Ceiling"), _("The team never has more than this. Empty: only the teams above limit it.")
    )
    lending = _devices_field(
        _("Lends at most"), _("Of what it does not use of its guarantee. Empty: all of it.")
    )
    cohort = forms.ChoiceField(
        label=_("Cohort"),
        required=False,
        help_text=_("Teams of a cohort use what the others do not need, above their own guarantee."),
        widget=forms.Select({"class": "form-select"}),
    )
    most_duration = MaybeDuration(
        label=_("Longest run time"),
        max_length=40,
        required=False,
        help_text=_("Of one lease, extensions counted in, such as 3 d. Empty: as long as its flavor allows."),
        widget=forms.TextInput({"class": "form-control", "placeholder": "3 d", "autocomplete": "off"}),
    )
    month_hours = forms.DecimalField(
        label=_("GPU-hours a month"),
        required=False,
        min_value=Decimal("0.01"),
        max_value=Decimal(100_000_000),
        decimal_places=2,
        help_text=_(
            "What may be used, held and waited for in a month: shares of devices times hours. Empty: no limit."
        ),
        widget=forms.NumberInput(
            {"class": "form-control", "step": "any", "min": "0", "inputmode": "decimal"}
        ),
    )
    most_memory = forms.DecimalField(
        label=_("Device memory at once"),
        required=False,
        min_value=Decimal("0.01"),
        max_value=Decimal(100_000_000),
        decimal_places=2,
        help_text=_("What leases hold at the same time; what is more waits. Empty: no limit."),
        widget=forms.NumberInput(
            {"class": "form-control", "step": "any", "min": "0", "inputmode": "decimal"}
        ),
    )
    version = forms.IntegerField(min_value=1, max_value=2**31 - 1, widget=forms.HiddenInput())

    def __init__(self, *args: Any, cohorts: Iterable[tuple[int, str]] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [("", _("None: it neither borrows nor lends")), *((str(pk), name) for pk, name in cohorts)]
        self.fields["cohort"].choices = choices  # type: ignore[attr-defined]

    @classmethod
    def of(cls, quota: Quota | None, *, cohorts: Iterable[tuple[int, str]] = ()) -> QuotaForm:
        """Return the form filled with what holds now."""
        if quota is None:
            return cls(initial={"guaranteed": 0, "ceiling": None, "version": 1}, cohorts=cohorts)
        return cls(
            cohorts=cohorts,
            initial={
                "guaranteed": devices(quota.guaranteed_milli),
                "ceiling": devices(quota.ceiling_milli),
                "lending": devices(quota.lending_milli),
                "cohort": quota.cohort_id or "",
                "month_hours": _short(quota.gpu_seconds_a_month, HOUR_S),
                "most_memory": _short(quota.most_memory_mib, MIB_PER_GIB),
                "most_duration": duration_text(quota.most_duration_s) if quota.most_duration_s else "",
                "version": quota.version,
            },
        )

    def cohort_id(self) -> int | None:
        """Return the key of the chosen cohort."""
        chosen = self.cleaned_data["cohort"]
        return int(chosen) if chosen else None

    def limits(self) -> dict[str, int | None]:
        """Return the limits as the service takes them: seconds, device seconds and MiB, None for no limit."""
        data = self.cleaned_data
        hours, memory = data["month_hours"], data["most_memory"]
        return {
            "most_duration_s": data["most_duration"] or None,
            "gpu_seconds_a_month": None if hours is None else int(hours * HOUR_S),
            "most_memory_mib": None if memory is None else int(memory * MIB_PER_GIB),
        }

    def milli(self, name: str) -> int | None:
        """Return a field in thousandths of a device."""
        value = self.cleaned_data[name]
        return None if value is None else int(value * SHARES)


def devices(milli: int | None) -> Decimal | None:
    """Return thousandths of a device as a short decimal for a form field."""
    return _short(milli, SHARES)


def _short(amount: int | None, unit: int) -> Decimal | None:
    """Return an amount in a larger unit without zeros at its end, None for none."""
    if amount is None:
        return None
    whole = Decimal(amount) / unit
    return whole.quantize(Decimal(1)) if whole == whole.to_integral_value() else round(whole, 3).normalize()
