from __future__ import annotations

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.fleet.models import DeviceModel
from portal.web.fields import MomentField, text_field
from portal.web.figures import MICRO


class CurrencyForm(forms.Form):
    """The currency of all prices."""

    currency = text_field(_("Currency of prices"), 3, _("It cannot change once a price is set."))


class RateForm(forms.Form):
    """A new price of a device model from a date on."""

    model = forms.ModelChoiceField(
        label=_("Device model"),
        queryset=DeviceModel.objects.all(),
        to_field_name="slug",
        empty_label=None,
        widget=forms.Select({"class": "form-select"}),
    )
    price = forms.DecimalField(
        label=_("Price of a whole device"),
        min_value=0,
        max_value=1_000_000,
        decimal_places=6,
        widget=forms.NumberInput(
            {"class": "form-control", "step": "0.01", "min": "0", "inputmode": "decimal"}
        ),
    )
    per_gib = forms.DecimalField(
        label=_("Price of a GiB of device memory"),
        required=False,
        min_value=0,
        max_value=1000,
        decimal_places=6,
        help_text=_("For an hour, beside the price of the device. Empty: memory has no price of its own."),
        widget=forms.NumberInput(
            {"class": "form-control", "step": "0.001", "min": "0", "inputmode": "decimal"}
        ),
    )
    minimum = forms.DecimalField(
        label=_("Minimum charge of a lease"),
        required=False,
        min_value=0,
        max_value=10_000,
        decimal_places=6,
        help_text=_("A lease that costs less by its time comes to this. Empty: no minimum."),
        widget=forms.NumberInput(
            {"class": "form-control", "step": "0.01", "min": "0", "inputmode": "decimal"}
        ),
    )
    starts_at = MomentField(
        label=_("From"),
        hint=_("A model's first price may begin now or in the past, a later one must lie ahead."),
    )

    def micro_per_hour(self) -> int:
        """Return the price in micro-units."""
        return int(self.cleaned_data["price"] * MICRO)

    def micro_per_gib_hour(self) -> int:
        """Return the price of a GiB of device memory for an hour in micro-units, 0 for none."""
        return int((self.cleaned_data["per_gib"] or 0) * MICRO)

    def minimum_micro(self) -> int:
        """Return the minimum charge in micro-units, 0 for none."""
        return int((self.cleaned_data["minimum"] or 0) * MICRO)
