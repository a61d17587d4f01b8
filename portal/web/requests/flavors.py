"""Flavors to choose from: what one unit is, how many are free and when, its price, and why it cannot be had."""

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
from portal.fleet.models import Device, DeviceModel, Mode
from portal.leases import forecasting
from portal.leases.availability import Availability
from portal.quotas.selectors import smallest_ceiling
from portal.teams.models import Team
from portal.web.figures import gpus, memory, money

MOST_MODELS = 6


@dataclass(frozen=True)
class FlavorChoice:
    """One row of the form's table; ``free`` None is unknown, ``disabled`` says why it cannot be chosen.

    ``speed_percent`` is against the fastest on offer (None: nobody told it). ``free_at`` is from when one unit is free;
    None where that is unknown, or beyond the hours looked at.
    """

    value: str
    title: str
    summary: str
    model: str
    mode: str
    memory: str
    memory_mib: int
    speed: str
    speed_percent: int | None
    quota: str
    is_shared: bool
    free: int | None
    free_at: datetime | None
    price: Decimal | None
    currency: str
    checked: bool
    disabled: str


def flavor_choices(team: Team, *, chosen: str, hours: Availability, now: datetime) -> list[FlavorChoice]:
    """Return every flavor on offer for a team, in the catalogue's order; ``hours`` says when units are free."""
    flavors = list(Flavor.objects.filter(is_active=True).select_related("device_model"))
    rates = rates_now({f.device_model_id for f in flavors}, now=now)
    free, speeds = forecasting.free_units(), speeds_of(flavors)
    offered = _offered()
    ceiling, fastest = smallest_ceiling(team), max((s for s in speeds.values() if s), default=0)
    first = {row.flavor.pk: row.first() for row in hours.rows}
    return [
        _choice(
            flavor,
            rate=rates.get(flavor.device_model_id),
            free=free.get(flavor.pk),
            speed=speeds[flavor.pk],
            fastest=fastest,
            free_at=None if (step := first.get(flavor.pk)) is None else max(hours.starts[step], now),
            refusal=_refusal(flavor, rates, offered, ceiling),
            chosen=chosen,
        )
        for flavor in flavors
    ]


def _offered() -> set[tuple[int, str]]:
    """Return which modes the fleet offers on which device models, healthy or not."""
    # Without their order, which would make each device a row of its own.
    rows = Device.objects.order_by().values_list("model_id", "modes").distinct()
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


def _choice(
    flavor: Flavor,
    *,
    rate: Rate | None,
    free: int | None,
    speed: int | None,
    fastest: int,
    free_at: datetime | None,
    refusal: str,
    chosen: str,
) -> FlavorChoice:
    hourly = int(exact_micro(flavor.share_milli * 3600, rate.price_of(flavor))) if rate else None
    return FlavorChoice(
        value=flavor.slug,
        title=flavor.shown_name,
        summary=flavor.shown_summary,
        model=flavor.device_model.name,
        mode=flavor.mode,
        memory=memory(flavor.memory_mib) or "",
        memory_mib=flavor.memory_mib,
        speed=gpus(None if speed is None else round(speed, -1)) or "",
        speed_percent=None if not speed else max(1, 100 * speed // fastest),
        quota=gpus(cost_milli(flavor, 1)) or "",
        is_shared=flavor.mode in (Mode.MEMLIMIT, Mode.TIMESLICE),
        free=free,
        free_at=free_at,
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
