"""Prices as their page shows them: one timeline per device model, and what each flavor costs by it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from portal.billing.price_effect import PriceEffect
from portal.catalog.models import Flavor, Rate, RateCard
from portal.catalog.pricing import exact_micro
from portal.fleet.models import DeviceModel
from portal.web.figures import money
from portal.web.invoices.rows import micro_text

PAST, IN_FORCE, PLANNED = "past", "in_force", "planned"


@dataclass(frozen=True, slots=True)
class PriceRow:
    """A dated price; ``change`` is its difference to the one before in percent, that of memory aside.

    ``per_gib`` is the price of a GiB of memory and ``minimum`` the minimum charge, None for none.
    """

    key: int
    amount: Decimal | None
    starts_at: datetime | None
    ends_at: datetime | None
    state: str
    change: int | None
    per_gib: Decimal | None
    minimum: Decimal | None


@dataclass(frozen=True, slots=True)
class FlavorPrice:
    """What one unit of a flavor costs an hour."""

    name: str
    share_percent: Decimal
    amount: Decimal


@dataclass(frozen=True, slots=True)
class ModelPrices:
    """A device model with its prices, the newest first."""

    name: str
    slug: str
    current: Decimal | None
    per_gib: Decimal | None
    prices: list[PriceRow]
    flavors: list[FlavorPrice]


@dataclass(frozen=True, slots=True)
class EffectRow:
    """What a team was charged last month and would be by a price tried; the last row, without a slug, is all."""

    slug: str
    name: str
    charged: Decimal | None
    then: Decimal | None
    more: Decimal | None


@dataclass(frozen=True, slots=True)
class EffectShown:
    """A price tried on last month; ``month`` is its first day, None where the books have none before this one."""

    model: str
    price: Decimal | None
    per_gib: Decimal | None
    month: date | None
    rows: list[EffectRow]


def effect_shown(effect: PriceEffect) -> EffectShown:
    """Return a price tried on last month as the page shows it."""
    teams = [*effect.teams, effect.whole] if effect.teams else []
    return EffectShown(
        effect.model.name,
        money(effect.micro_per_hour),
        money(effect.micro_per_gib_hour) if effect.micro_per_gib_hour else None,
        effect.period.month if effect.period else None,
        [
            EffectRow(t.slug, t.name, money(t.charged_micro), money(t.then_micro), money(t.more_micro))
            for t in teams
        ],
    )


def card_currency() -> str:
    """Return the currency of the default rate card, or nothing when there is no card yet."""
    card = RateCard.objects.filter(is_default=True).first()
    return card.currency if card else ""


def model_prices(*, now: datetime) -> list[ModelPrices]:
    """Return every device model with its prices, in three queries."""
    rates: dict[int, list[Rate]] = defaultdict(list)
    for rate in Rate.objects.filter(card__is_default=True).order_by("valid"):
        rates[rate.device_model_id].append(rate)
    flavors: dict[int, list[Flavor]] = defaultdict(list)
    for flavor in Flavor.objects.filter(is_active=True).order_by("share_milli", "position"):
        flavors[flavor.device_model_id].append(flavor)
    return [
        _model(model, rates[model.pk], flavors[model.pk], now)
        for model in DeviceModel.objects.order_by("name")
    ]


def _model(model: DeviceModel, rates: list[Rate], flavors: list[Flavor], now: datetime) -> ModelPrices:
    current = next((rate for rate in rates if _state(rate, now) == IN_FORCE), None)
    prices = [_price(rate, before, now) for rate, before in zip(rates, [None, *rates], strict=False)]
    return ModelPrices(
        name=model.name,
        slug=model.slug,
        current=money(current.micro_per_hour) if current else None,
        per_gib=money(current.micro_per_gib_hour) if current and current.micro_per_gib_hour else None,
        prices=prices[::-1],
        flavors=[_flavor(flavor, current) for flavor in flavors] if current else [],
    )


def _price(rate: Rate, before: Rate | None, now: datetime) -> PriceRow:
    change = None
    if before is not None and before.micro_per_hour:
        change = round((rate.micro_per_hour - before.micro_per_hour) * 100 / before.micro_per_hour)
    return PriceRow(
        rate.pk,
        money(rate.micro_per_hour),
        rate.valid.lower,
        rate.valid.upper,
        _state(rate, now),
        change,
        money(rate.micro_per_gib_hour) if rate.micro_per_gib_hour else None,
        money(rate.minimum_micro) if rate.minimum_micro else None,
    )


def _state(rate: Rate, now: datetime) -> str:
    if rate.valid.upper is not None and rate.valid.upper <= now:
        return PAST
    return PLANNED if rate.valid.lower is not None and rate.valid.lower > now else IN_FORCE


def _flavor(flavor: Flavor, rate: Rate) -> FlavorPrice:
    exact = exact_micro(flavor.share_milli * 3600, rate.price_of(flavor))
    return FlavorPrice(flavor.shown_name, Decimal(flavor.share_milli) / 10, micro_text(exact))
