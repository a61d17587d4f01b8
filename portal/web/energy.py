"""Energy and carbon: what a month's leases used, by team, person, device model and day; and the factors of sites."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.billing.electricity import electricity_by_team
from portal.billing.energy import KWH_MJ, EnergyBy, energy_lists, refused_counters
from portal.billing.energy_factors import (
    CSV_COLUMNS,
    add_factor,
    end_factor,
    factors,
    import_factors,
    sites,
)
from portal.billing.models import EnergyFactor, EnergyFactorKind
from portal.billing.selectors import currency
from portal.common.csv_rows import MOST_TEXT
from portal.common.errors import BerthError, Forbidden, Invalid
from portal.teams.selectors import Rights
from portal.web.access import done, person, refused, rights_of
from portal.web.energy_figures import ShownEnergy, kwh_text, shown_energy
from portal.web.fields import MomentField, text_field
from portal.web.figures import money
from portal.web.invoices.months import all_months
from portal.web.reports.forms import ReportFilter
from portal.web.reports.page import teams_of_report

MOST_SHOWN = 500
MOST_ROWS = 50  # of a list of energy, and of teams that pay for electricity
LOOK_BACK = timedelta(days=14)  # minutes are kept at least as long


@dataclass(frozen=True, slots=True)
class FactorRow:
    """One factor; ``state`` is planned, in_force or past."""

    key: int
    what: str
    site: str
    value: str
    unit: str
    source: str
    starts_at: datetime
    ends_at: datetime | None
    state: str


class FactorForm(forms.Form):
    """A factor of a site from an instant on."""

    kind = forms.ChoiceField(
        label=gettext_lazy("Kind"),
        choices=EnergyFactorKind.choices,
        widget=forms.Select({"class": "form-select"}),
    )
    value = forms.DecimalField(
        label=gettext_lazy("Value"),
        max_digits=8,
        decimal_places=3,
        widget=forms.TextInput({"class": "form-control", "inputmode": "decimal"}),
    )
    site = forms.CharField(
        label=gettext_lazy("Site"),
        max_length=60,
        required=False,
        help_text=gettext_lazy("Left empty: every site without its own."),
        widget=forms.TextInput({"class": "form-control", "autocomplete": "off"}),
    )
    source = text_field(gettext_lazy("Source"), 200, gettext_lazy("Where the figure is from."))
    starts_at = MomentField(
        label=gettext_lazy("From"),
        required=False,
        hint=gettext_lazy("Left empty: now. It may be past, but for a price."),
    )
    ends_at = MomentField(
        label=gettext_lazy("Until"), required=False, hint=gettext_lazy("Left empty: until another follows.")
    )


class FactorFileForm(forms.Form):
    """Many factors as CSV."""

    csv = forms.CharField(
        label="CSV",
        max_length=MOST_TEXT,
        strip=False,
        widget=forms.Textarea({"class": "form-control", "rows": 6, "spellcheck": "false", "wrap": "off"}),
    )


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show the energy of a month over the teams in sight."""
    now = timezone.now()
    rights = rights_of(request)
    teams = teams_of_report(rights)
    form = ReportFilter(request.GET, all_months(now=now), teams, ())
    del form.fields["by"]
    period, top = form.month(), form.team()
    if top is not None:
        teams = [team for team in teams if top.pk in team.lineage]
    found, figures = energy_lists(period, teams, person=form.person(), now=now)
    lists: list[tuple[str, list[tuple[str, ShownEnergy]], int]] = []
    for by in EnergyBy:
        shown = [(_name(by, row.name), shown_energy(row.figures)) for row in found[by][:MOST_ROWS]]
        lists.append((str(by.label), shown, len(found[by]) - len(shown)))
    charged = electricity_by_team(period, now=now)
    paying = [(team, *charged.by_team[team.pk]) for team in teams if team.pk in charged.by_team]
    paying.sort(key=lambda one: -one[2])
    electricity = [(team, kwh_text(mj / KWH_MJ), money(micro)) for team, mj, micro in paying[:MOST_ROWS]]
    context = {
        "form": form,
        "period": period,
        "lists": lists,
        "whole": shown_energy(figures),
        "team": top,
        "electricity": electricity,
        "electricity_left_out": len(paying) - len(electricity),
        "electricity_whole": money(sum(micro for _team, _mj, micro in paying)),
        "counted_at": charged.counted_at,
        "currency": currency(),
    }
    return render(request, "web/energy.html", context)


def _name(by: EnergyBy, name: str) -> str:
    return date_format(date.fromisoformat(name), "MONTH_DAY_FORMAT") if by == EnergyBy.DAY else name


def may_set_factors(rights: Rights) -> bool:
    """Say whether a person sets factors: finance and operators do."""
    return rights.is_finance or rights.is_operator


@require_http_methods(["GET", "HEAD", "POST"])
def factor_page(request: HttpRequest) -> HttpResponse:
    """Show the factors of sites; a POST by finance or an operator sets one."""
    rights = rights_of(request)
    form = FactorForm(request.POST or None)
    if request.method == "POST":
        _require_setter(rights)
        if form.is_valid() and _added(request, form):
            return done(request, _("The factor is set."), "web:energy_factors")
    return _factors(request, rights, form, FactorFileForm(), status=422 if form.is_bound else 200)


@require_POST
def factor_import(request: HttpRequest) -> HttpResponse:
    """Add all factors of a CSV text, or none; ``trial`` only checks it."""
    rights = rights_of(request)
    _require_setter(rights)
    form = FactorFileForm(request.POST)
    if form.is_valid():
        is_trial = "trial" in request.POST
        try:
            added = import_factors(form.cleaned_data["csv"], actor=person(request), is_trial=is_trial)
        except Invalid as error:
            for place, text in error.fields.items():
                form.add_error("csv", text if place == "csv" else f"{place}: {text}")
        except BerthError as error:
            form.add_error("csv", str(error))
        else:
            if not is_trial:
                said = ngettext("One factor is added.", "%(n)d factors are added.", len(added))
                return done(request, said % {"n": len(added)}, "web:energy_factors")
            said = ngettext(
                "One factor would be added; nothing is wrong with it.",
                "%(n)d factors would be added; nothing is wrong with them.",
                len(added),
            )
            return _factors(request, rights, FactorForm(), form, tried=said % {"n": len(added)})
    return _factors(request, rights, FactorForm(), form, status=422)


@require_POST
def factor_end(request: HttpRequest, key: int) -> HttpResponse:
    """End a factor, or take back one that has not begun."""
    _require_setter(rights_of(request))
    try:
        ended = end_factor(key=key, actor=person(request))
    except BerthError as error:
        return refused(request, error, "web:energy_factors")
    said = _("The planned factor is withdrawn.") if ended is None else _("The factor has ended.")
    return done(request, said, "web:energy_factors")


def _factors(
    request: HttpRequest,
    rights: Rights,
    form: FactorForm,
    file: FactorFileForm,
    *,
    status: int = 200,
    tried: str = "",
) -> HttpResponse:
    now = timezone.now()
    rows, unit = factors(), currency()
    context: dict[str, Any] = {
        "rows": [_row(one, unit, now) for one in rows[:MOST_SHOWN]],
        "left_out": max(0, len(rows) - MOST_SHOWN),
        "form": form,
        "file": file,
        "tried": tried,
        "columns": ",".join(CSV_COLUMNS),
        "sites": sites(),
        "may_set": may_set_factors(rights),
        "refused": refused_counters(since=now - LOOK_BACK) if rights.is_operator else [],
    }
    return render(request, "web/energy_factors.html", context, status=status)


def _row(factor: EnergyFactor, unit_of_books: str, now: datetime) -> FactorRow:
    begin, end = factor.valid.lower, factor.valid.upper
    what, unit = {
        EnergyFactorKind.CARBON: (_("Grid"), _("g CO₂e/kWh")),
        EnergyFactorKind.PUE: (_("PUE"), ""),
        EnergyFactorKind.PRICE: (
            pgettext("price of energy", "Electricity"),
            _("%(currency)s/MWh") % {"currency": unit_of_books},
        ),
    }[EnergyFactorKind(factor.kind)]
    return FactorRow(
        key=factor.pk,
        what=what,
        site=factor.site or _("all other sites"),
        value=number_format(
            (Decimal(factor.value_milli) / 1000).normalize(), use_l10n=True, force_grouping=True
        ),
        unit=unit,
        source=factor.source,
        starts_at=begin,
        ends_at=end,
        state="planned" if begin > now else "past" if end is not None and end <= now else "in_force",
    )


def _added(request: HttpRequest, form: FactorForm) -> bool:
    """Set the factor; False when it was refused, with the reason on the form."""
    given = form.cleaned_data
    try:
        add_factor(
            kind=given["kind"],
            site=given["site"],
            value=given["value"],
            source=given["source"],
            starts_at=given["starts_at"],
            ends_at=given["ends_at"],
            actor=person(request),
        )
    except Invalid as error:
        for field, text in error.fields.items():
            form.add_error(field, text)
        return False
    except BerthError as error:
        form.add_error(None, str(error))
        return False
    return True


def _require_setter(rights: Rights) -> None:
    if not may_set_factors(rights):
        raise Forbidden(_("Only finance and operators set factors of energy."))
