"""Flavors as cards: what one unit is, how many are free, what an hour costs, and why one cannot be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from portal.catalog.models import Flavor, Rate
from portal.catalog.pricing import exact_micro
from portal.catalog.selectors import rates_now
from portal.catalog.services import cost_milli
from portal.catalog.speed import speeds_of
from portal.fleet.models import Device, DeviceModel, Mode, Profile
from portal.leases import forecasting
from portal.quotas.selectors import smallest_ceiling
from portal.teams.models import Team
from portal.web.figures import gpus, memory, money

MOST_MODELS = 6


@dataclass(frozen=True)
class FlavorCard:
    """One choice of the form; ``free`` None is unknown, ``disabled`` says why it cannot be chosen."""

    value: str
    title: str
    summary: str
    model: str
    mode: str
    memory: str
    speed: str
    quota: str
    is_shared: bool
    grid: int
    size: int
    free: int | None
    price: Decimal | None
    currency: str
    checked: bool
    disabled: str


def flavor_cards(team: Team, *, chosen: str, now: datetime) -> list[FlavorCard]:
    """Return every flavor on offer for a team, in the catalogue's order."""
    flavors = list(Flavor.objects.filter(is_active=True).select_related("device_model"))
    rates = rates_now({f.device_model_id for f in flavors}, now=now)
    slices = {
        (p.device_model_id, p.name): p.slices
        for p in Profile.objects.filter(device_model__in={f.device_model_id for f in flavors})
    }
    free, speeds = forecasting.free_units(), speeds_of(flavors)
    offered = _offered()
    ceiling = smallest_ceiling(team)
    return [
        _card(
            flavor,
            rate=rates.get(flavor.device_model_id),
            slices=slices.get((flavor.device_model_id, flavor.profile), 1),
            free=free.get(flavor.pk),
            speed=speeds[flavor.pk],
            refusal=_refusal(flavor, rates, offered, ceiling),
            chosen=chosen,
        )
        for flavor in flavors
    ]


def _offered() -> set[tuple[int, str]]:
    """Return which modes the fleet offers on which device models, healthy or not."""
    rows = Device.objects.values_list("model_id", "modes").distinct()
    return {(model, mode) for model, modes in rows for mode in modes}


def _refusal(
    flavor: Flavor, rates: dict[int, Rate], offered: set[tuple[int, str]], ceiling: int | None
) -> str:
    if (flavor.device_model_id, flavor.mode) not in offered:
        return _("no device offers it")
    if flavor.device_model_id not in rates:
        return _("no price set yet")
    if ceiling is not None and cost_milli(flavor, 1) > ceiling:
        return _("above your team's ceiling")
    return ""


def _card(
    flavor: Flavor,
    *,
    rate: Rate | None,
    slices: int,
    free: int | None,
    speed: int | None,
    refusal: str,
    chosen: str,
) -> FlavorCard:
    grid, size = _scale(flavor, slices)
    hourly = int(exact_micro(flavor.share_milli * 3600, rate.micro_per_hour)) if rate else None
    return FlavorCard(
        value=flavor.slug,
        title=flavor.shown_name,
        summary=flavor.shown_summary,
        model=flavor.device_model.name,
        mode=flavor.mode,
        memory=memory(flavor.memory_mib) or "",
        speed=gpus(None if speed is None else round(speed, -1)) or "",
        quota=gpus(cost_milli(flavor, 1)) or "",
        is_shared=flavor.mode in (Mode.MEMLIMIT, Mode.TIMESLICE),
        grid=grid,
        size=size,
        free=free,
        price=money(hourly),
        currency=rate.card.currency if rate else "",
        checked=flavor.slug == chosen and not refusal,
        disabled=refusal,
    )


def reference_sentence() -> str:
    """Return what a reference GPU is, by what whole devices of the fleet's models count."""
    models = DeviceModel.objects.filter(devices__isnull=False).distinct().order_by("weight_milli", "name")
    whole = pgettext("list", ", ").join(
        _("a whole %(model)s counts %(n)s") % {"model": model.name, "n": gpus(model.weight_milli)}
        for model in models[:MOST_MODELS]
    )
    return _("Speed and quota are counted in reference GPUs: %(whole)s.") % {"whole": whole} if whole else ""


def _scale(flavor: Flavor, slices: int) -> tuple[int, int]:
    """Return the device's grid and what the unit takes of it, for the drawing."""
    if flavor.mode == Mode.MIG:
        return flavor.device_model.grid, slices
    return 1000, flavor.share_milli
