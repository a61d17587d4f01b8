"""Flavors as operators see them: what each device model is offered as, and on what terms."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django import forms
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_http_methods, require_POST

from portal.catalog.models import Flavor
from portal.catalog.services import MOST_CORES, MOST_COUNT, MOST_GIB, change_flavor, create_flavor, set_aside
from portal.catalog.standard import make_standard_flavors, standard_offers
from portal.common.errors import Forbidden, Invalid, NotFound
from portal.fleet.models import DeviceModel, Mode
from portal.web.access import done, person, rights_of
from portal.web.fields import text_field

HOUR_S, GIB = 3600, 1024


def _number(label: Any, least: float, most: float, hint: Any = "", *, places: int = 0) -> forms.DecimalField:
    step = "1" if not places else "any"
    return forms.DecimalField(
        label=label,
        help_text=hint,
        required=False,
        min_value=Decimal(str(least)),
        max_value=Decimal(str(most)),
        decimal_places=places,
        widget=forms.NumberInput({"class": "form-control", "step": step, "inputmode": "decimal"}),
    )


class TermsForm(forms.Form):
    """What may change of a flavor."""

    name = text_field(gettext_lazy("Name of the flavor"), 60)
    name_zh = text_field(gettext_lazy("Name in Chinese"), 60, required=False)
    summary = text_field(gettext_lazy("What it is good for"), 160, required=False)
    summary_zh = text_field(gettext_lazy("What it is good for, in Chinese"), 160, required=False)
    max_count = _number(gettext_lazy("At most per request"), 1, MOST_COUNT)
    max_hours = _number(gettext_lazy("Longest time"), 0.01, 8784, places=2)
    preemptible_percent = _number(
        gettext_lazy("Price when preemptible"),
        0,
        100,
        gettext_lazy("What those pay who let others preempt them; 100: no discount."),
        places=1,
    )
    cpu_cores = _number(gettext_lazy("CPU set aside per unit"), 0, MOST_CORES, places=3)
    memory_gib = _number(gettext_lazy("Main memory set aside per unit"), 0, MOST_GIB, places=3)
    is_active = forms.BooleanField(
        label=gettext_lazy("Can be asked for"), required=False, widget=forms.CheckboxInput()
    )

    def terms(self) -> dict[str, Any]:
        """Return the terms as the service takes them; what was left empty stays as it is."""
        given = self.cleaned_data
        found = {name: given[name] for name in ("name", "name_zh", "summary", "summary_zh")}
        if "is_active" in self.fields:
            found["is_active"] = given["is_active"]
        if given["max_count"] is not None:
            found["max_count"] = int(given["max_count"])
        if given["max_hours"] is not None:
            found["max_duration_s"] = int(given["max_hours"] * HOUR_S)
        if given["preemptible_percent"] is not None:
            found["preemptible_milli"] = int(given["preemptible_percent"] * 10)
        return found

    def refuse(self, error: Invalid) -> None:
        """Show a refusal at the fields it names."""
        called = {
            "max_duration_s": "max_hours",
            "min_duration_s": "max_hours",
            "preemptible_milli": "preemptible_percent",
            "memory_mib": "share_gib",
            "share_milli": "share_percent",
        }
        for name, sentence in error.fields.items():
            field = called.get(name, name)
            self.add_error(field if field in self.fields else None, str(sentence))


class FlavorForm(TermsForm):
    """A new flavor: what it takes of a device, and its terms."""

    model = forms.ModelChoiceField(
        label=gettext_lazy("Device model"),
        queryset=DeviceModel.objects.all(),
        to_field_name="slug",
        empty_label=None,
        widget=forms.Select({"class": "form-select"}),
    )
    mode = forms.ChoiceField(
        label=gettext_lazy("Sharing mode"),
        choices=Mode.choices,
        widget=forms.Select({"class": "form-select"}),
    )
    profile = text_field(
        gettext_lazy("MIG profile"), 30, gettext_lazy("For MIG slices only, such as 3g.40gb."), required=False
    )
    share_gib = _number(
        gettext_lazy("Memory of a share"),
        0.001,
        4096,
        gettext_lazy("For MPS, memory limit and time slice."),
        places=3,
    )
    share_percent = _number(
        gettext_lazy("Share of the compute"),
        0.1,
        100,
        gettext_lazy("The larger of memory and compute is what a share costs."),
        places=1,
    )
    slug = text_field(
        gettext_lazy("Short name"),
        50,
        gettext_lazy("For addresses and the command line, such as h100-half."),
        autocapitalize="none",
    )
    field_order = ("model", "mode", "profile", "share_gib", "share_percent", "name", "slug")

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        for name in ("name_zh", "summary", "summary_zh", "cpu_cores", "memory_gib", "is_active"):
            del self.fields[name]

    def terms(self) -> dict[str, Any]:
        """Return the terms that a new flavor has from its form."""
        self.cleaned_data |= dict.fromkeys(("name_zh", "summary", "summary_zh"), "")
        return super().terms()


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A device model with its flavors and how many standard ones it lacks."""

    name: str
    slug: str
    flavors: list[Flavor]
    missing: int


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """List the flavors of every device model; a POST makes one."""
    _require_operator(request)
    cards = model_cards()
    form = FlavorForm(
        request.POST if request.method == "POST" else None,
        initial={"max_count": 4, "max_hours": 168, "preemptible_percent": 100},
    )
    if form.is_bound and form.is_valid():
        given = form.cleaned_data
        terms = form.terms()
        try:
            made = create_flavor(
                model=given["model"],
                slug=given["slug"],
                name=terms.pop("name"),
                mode=given["mode"],
                profile=given["profile"],
                share_milli=int((given["share_percent"] or 0) * 10),
                memory_mib=int((given["share_gib"] or 0) * GIB),
                terms=terms,
                actor=person(request),
                now=timezone.now(),
            )
        except Invalid as error:
            form.refuse(error)
        else:
            return done(request, _("%(name)s can be asked for now.") % {"name": made.name}, "web:flavors")
    context = {"cards": cards, "form": form}
    return render(request, "web/flavors.html", context, status=422 if form.is_bound else 200)


@require_POST
def standard(request: HttpRequest, slug: str) -> HttpResponse:
    """Offer the standard flavors that a device model lacks. Safe to repeat."""
    _require_operator(request)
    model = DeviceModel.objects.filter(slug=slug).first()
    if model is None:
        raise NotFound
    n = len(make_standard_flavors(model, actor=person(request), now=timezone.now()))
    said = ngettext("%(n)d flavor is offered now.", "%(n)d flavors are offered now.", n) % {"n": n}
    return done(request, said if n else _("All standard flavors are there already."), "web:flavors")


@require_http_methods(["GET", "HEAD", "POST"])
def flavor(request: HttpRequest, slug: str) -> HttpResponse:
    """Change the words and terms of one flavor, or switch it off."""
    _require_operator(request)
    found = Flavor.objects.filter(slug=slug).select_related("device_model").first()
    if found is None:
        raise NotFound
    form = TermsForm(
        request.POST if request.method == "POST" else None,
        initial={
            "name": found.name,
            "name_zh": found.name_zh,
            "summary": found.summary,
            "summary_zh": found.summary_zh,
            "max_count": found.max_count,
            "max_hours": _short(Decimal(found.max_duration_s) / HOUR_S),
            "preemptible_percent": _short(Decimal(found.preemptible_milli) / 10),
            "cpu_cores": _short(Decimal(found.cpu_milli) / 1000),
            "memory_gib": _short(Decimal(found.host_memory_mib) / GIB),
            "is_active": found.is_active,
        },
    )
    if form.is_bound and form.is_valid():
        now = timezone.now()
        cores, memory = (float(form.cleaned_data[name] or 0) for name in ("cpu_cores", "memory_gib"))
        try:
            with transaction.atomic():
                changed = change_flavor(flavor=found, terms=form.terms(), actor=person(request), now=now)
                if (changed.cpu_milli, changed.host_memory_mib) != (round(cores * 1000), round(memory * GIB)):
                    set_aside(
                        flavor=changed, cpu_cores=cores, memory_gib=memory, actor=person(request), now=now
                    )
        except Invalid as error:
            form.refuse(error)
        else:
            return done(request, _("The flavor is stored."), "web:flavors")
    context = {"flavor": found, "form": form}
    return render(request, "web/flavor.html", context, status=422 if form.is_bound else 200)


def model_cards() -> list[ModelCard]:
    """Return every device model with its flavors, also those that are switched off."""
    cards = []
    for model in DeviceModel.objects.prefetch_related("flavors"):
        there = {row.slug for row in model.flavors.all()}
        missing = sum(offer.slug[:50] not in there for offer in standard_offers(model))
        cards.append(ModelCard(model.name, model.slug, list(model.flavors.all()), missing))
    return cards


def _require_operator(request: HttpRequest) -> None:
    if not rights_of(request).is_operator:
        raise Forbidden(_("Only operators work on flavors."))


def _short(number: Decimal) -> Decimal:
    """Return a number without zeros behind its point."""
    return number.quantize(Decimal(1)) if number == number.to_integral_value() else number.normalize()
