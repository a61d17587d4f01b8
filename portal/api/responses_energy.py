"""The shapes of answers about energy and carbon."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers as s

from portal.api.representations import Row
from portal.api.responses import Money, ResponseShape
from portal.billing.energy import EnergyBasis, EnergyFigures
from portal.billing.models import EnergyFactorKind


class EnergyUseAnswer(ResponseShape):
    """Energy by the counters of devices; null is unknown, never zero."""

    kwh = s.FloatField(allow_null=True, help_text="What is known, measured and estimated together.")
    basis = s.ChoiceField(EnergyBasis.choices)
    measured_kwh = s.FloatField(help_text="By counters of devices that were held as a whole.")
    estimated_kwh = s.FloatField(help_text="By the share of a device, or by its power.")
    unknown_s = s.IntegerField(help_text="Device-seconds of which nobody knows what they used.")
    carbon_g = s.FloatField(
        allow_null=True,
        help_text="Grams of CO2 equivalent: kWh x PUE x the grid's factor, where both are set.",
    )
    no_factor_kwh = s.FloatField(help_text="Energy that is in no carbon, as a factor of its hour is missing.")


class ElectricityAnswer(ResponseShape):
    """Energy that is charged by a price of electricity, with the PUE of its site, and what it comes to."""

    kwh = s.FloatField()
    amount = Money(help_text="Of a month by the cent; of a lease to the micro-unit, as invoices round lines.")


class LeaseEnergyAnswer(EnergyUseAnswer):
    """What a lease used, and what of it is charged."""

    electricity = ElectricityAnswer(
        allow_null=True, help_text="As far as it is metered; null: no price was in force."
    )


class TeamElectricityAnswer(ElectricityAnswer):
    """The same of a team, by itself alone."""

    team = s.SlugField()
    name = s.CharField()


class EnergyListed(EnergyUseAnswer):
    """The same of one team, person, device model or day."""

    key = s.CharField()
    name = s.CharField()


class MonthEnergyAnswer(ResponseShape):
    """The energy of a month, each team by itself alone."""

    month = s.CharField()
    by = s.CharField()
    rows = EnergyListed(many=True)
    total = EnergyUseAnswer()
    electricity = TeamElectricityAnswer(
        many=True, help_text="What teams in sight are charged for electricity so far; empty: nothing."
    )
    electricity_counted_at = s.DateTimeField(
        allow_null=True, help_text="When it was last counted; null: it is on the books, or there is none."
    )


class EnergyFactorAnswer(ResponseShape):
    """A factor of a site, while it is in force."""

    id = s.IntegerField()
    kind = s.ChoiceField(EnergyFactorKind.choices)
    site = s.CharField(allow_blank=True, help_text="Empty: of every site without its own.")
    value = s.CharField(help_text="Grams of CO2 equivalent per kWh, the PUE, or the price of a MWh.")
    source = s.CharField()  # type: ignore[assignment]
    valid_from = s.DateTimeField()
    valid_until = s.DateTimeField(allow_null=True)


class ImportedFactors(ResponseShape):
    """What a file of factors added, or would add."""

    rows = s.IntegerField()
    is_trial = s.BooleanField()


class RefusedCounterAnswer(ResponseShape):
    """A device whose energy counter or power could not be true in so many seconds."""

    node = s.CharField()
    device = s.IntegerField(help_text="Its index on the node.")
    seconds = s.IntegerField()
    last_at = s.DateTimeField()


def energy_row(figures: EnergyFigures) -> Row:
    """Return figures of energy as answers have them."""
    return {
        "kwh": _rounded(figures.kwh),
        "basis": figures.basis,
        "measured_kwh": _rounded(figures.measured_kwh),
        "estimated_kwh": _rounded(figures.estimated_kwh),
        "unknown_s": figures.unknown_s,
        "carbon_g": _rounded(figures.carbon_g),
        "no_factor_kwh": _rounded(figures.no_factor_kwh),
    }


def _rounded(value: float | None) -> Any:
    return None if value is None else round(value, 6)
