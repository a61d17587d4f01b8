"""Energy and carbon as people read them; what is unknown is said, never zero."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.formats import number_format
from django.utils.translation import gettext as _

from portal.billing.energy import EnergyBasis, EnergyFigures
from portal.common.moments import span

LEAST_UNKNOWN_S = 300  # the last minutes of what runs are not rolled up yet


@dataclass(frozen=True, slots=True)
class ShownEnergy:
    """Energy with its unit and what it is worth; ``notes`` say what is not in it. "" is unknown."""

    energy: str
    carbon: str
    basis: str
    notes: tuple[str, ...]


def shown_energy(figures: EnergyFigures | None) -> ShownEnergy:
    """Return figures as texts in the reader's language."""
    if figures is None or figures.kwh is None:
        return ShownEnergy("", "", str(EnergyBasis.UNKNOWN.label), ())
    notes = []
    if figures.measured_s and figures.estimated_s:
        notes.append(_("of it estimated: %(energy)s") % {"energy": kwh_text(figures.estimated_kwh)})
    if figures.unknown_s >= LEAST_UNKNOWN_S:
        notes.append(_("unknown for %(time)s of a device") % {"time": span(figures.unknown_s)})
    if figures.carbon_g is not None and figures.no_factor_mj:
        notes.append(_("%(energy)s without a factor") % {"energy": kwh_text(figures.no_factor_kwh)})
    carbon = "" if figures.carbon_g is None else carbon_text(figures.carbon_g)
    return ShownEnergy(kwh_text(figures.kwh), carbon, str(figures.basis.label), tuple(notes))


def kwh_text(kwh: float) -> str:
    """Return an energy as "12.3 kWh", below one with three decimals."""
    return _("%(n)s kWh") % {"n": _number(kwh, 1 if kwh >= 100 else 2 if kwh >= 1 else 3)}


def carbon_text(grams: float) -> str:
    """Return a mass of CO2 equivalent in grams, from one kilogram on in kilograms."""
    if grams < 1000:
        return _("%(n)s g CO₂e") % {"n": _number(grams, 0 if grams >= 10 else 1)}
    return _("%(n)s kg CO₂e") % {"n": _number(grams / 1000, 1 if grams >= 10_000 else 2)}


def _number(value: float, places: int) -> str:
    return number_format(round(value, places), places, use_l10n=True, force_grouping=True)
