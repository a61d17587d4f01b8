"""The answer beside the form: price, earliest start, room left, why not now and what could be had instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.advice.selectors import advice_for_request
from portal.billing.electricity import expected_electricity
from portal.budgets.wallets import paying_wallets
from portal.budgets.words import reached_sentence
from portal.catalog.models import Flavor
from portal.catalog.pricing import Quote
from portal.catalog.services import cost_milli
from portal.common.errors import Impossible
from portal.common.moments import span
from portal.leases import forecasting
from portal.leases.budget_gate import asking_approval, stopping
from portal.leases.requests import (
    RequestSpec,
    budget_says,
    check_possible,
    check_spec,
    needs_approval,
    quote_of,
)
from portal.leases.visible_reasons import all_as_seen
from portal.quotas.selectors import headroom
from portal.teams.models import Team
from portal.teams.selectors import Rights
from portal.web.advice import AdviceCard, advice_card
from portal.web.discounts import discount_label
from portal.web.energy_figures import kwh_text
from portal.web.fields import LOCAL_TIME
from portal.web.figures import duration_text, gpus, money, what_text
from portal.web.requests.options import wish_facts

FILLS = "[name=flavor], #id_count, #id_duration, [name=is_preemptible], [name=starts_at]"


@dataclass(frozen=True)
class OfferView:
    """Something else to ask for; ``value`` fills the form's fields named by ``fills``."""

    title: str
    text: str
    starts_at: datetime | None
    is_now: bool
    price: Decimal | None
    currency: str
    url: str
    value: str
    fills: str = FILLS
    by: datetime | None = None
    is_booked: bool = False
    is_other: bool = False


@dataclass(frozen=True)
class HeadroomChange:
    """The team's headroom before and after, in GPUs; None where nothing above has a ceiling."""

    before: str | None
    after: str | None
    owner: str
    short: str | None


@dataclass(frozen=True)
class FreeTime:
    """A start near the one that cannot be had; ``value`` is as the field for the start takes it."""

    at: datetime
    value: str


@dataclass(frozen=True)
class WalletCover:
    """The balance that pays, and what of it would be held."""

    balance: Decimal | None
    hold: Decimal | None
    currency: str


@dataclass(frozen=True)
class QuoteView:
    """What the form would get; ``starts_at`` and ``is_now`` are None when nobody knows.

    ``usual`` is the price without what makes it cheaper, ``facts`` what was chosen beside the usual.
    """

    what: str
    duration: str
    total: Decimal | None
    per_hour: Decimal | None
    currency: str
    is_now: bool | None
    starts_at: datetime | None
    position: int | None
    reasons: list[str]
    refusal: str
    approval: bool
    room: HeadroomChange
    offers: list[OfferView]
    by: datetime | None = None
    usual: Decimal | None = None
    facts: list[tuple[str, str, datetime | None]] = field(default_factory=list)
    is_taken: bool = False
    free_times: list[FreeTime] = field(default_factory=list)
    budget: str = ""
    is_stopped: bool = False
    wallet: WalletCover | None = None
    discounts: str = ""
    undiscounted: Decimal | None = None
    minimum: Decimal | None = None
    electricity: Decimal | None = None
    electricity_kwh: str = ""
    is_most_electricity: bool = False
    advice: AdviceCard | None = None


def quote_view(rights: Rights, team: Team, spec: RequestSpec, *, now: datetime) -> QuoteView:
    """Return price, start and alternatives as this person may see them; raises as ``check_spec`` does."""
    flavor = check_spec(team, spec, now=now)
    price = quote_of(team, flavor, spec, now=now)
    reached = budget_says(team, flavor, spec, price, now=now)
    stop = stopping(reached, spec.is_preemptible)
    rule = stop or asking_approval(reached)
    seen = forecasting.preview(team=team, flavor=flavor, spec=spec, user_id=rights.user.pk, now=now)
    power = expected_electricity(
        flavor,
        count=spec.units,
        duration_s=spec.duration_s,
        starts_at=spec.starts_at or seen.starts_at or now,
        now=now,
    )
    refusal, nearest = _impossible(team, flavor, spec)
    reasons = [] if refusal else all_as_seen(rights, seen.reasons)
    return QuoteView(
        what=what_text(flavor.shown_name, spec.count, spec.nodes),
        duration=span(spec.duration_s) or "",
        total=money(price.amount_micro),
        per_hour=money(price.hourly_micro),
        currency=price.currency,
        is_now=None if refusal else seen.is_now,
        starts_at=None if refusal else seen.starts_at,
        position=seen.position,
        reasons=[forecasting.sentence(reason) for reason in reasons],
        refusal=refusal,
        approval=needs_approval(
            team, flavor, count=max(spec.units, spec.most_count), duration_s=spec.duration_s
        ),
        budget="" if rule is None else reached_sentence(rule.figures()),
        is_stopped=stop is not None,
        wallet=_wallet(team, price),
        room=_room(team, cost_milli(flavor, spec.units)),
        offers=[
            *_nearest(team, flavor, spec, nearest, now),
            *offer_views(team, seen.offers, spec=spec),
        ],
        by=None if refusal else seen.by,
        usual=_usual(team, flavor, spec, price, now=now),
        discounts=", ".join(discount_label(one) for one in price.discounts),
        undiscounted=money(price.usual_micro) if price.discounts else None,
        minimum=money(price.minimum_micro) if price.minimum_micro else None,
        electricity=money(power.amount_micro) if power else None,
        electricity_kwh=kwh_text(power.watt_hours / 1000) if power else "",
        is_most_electricity=power is not None and power.is_most,
        facts=wish_facts(spec),
        is_taken=spec.starts_at is not None and bool(seen.reasons) and seen.starts_at is None,
        free_times=free_times(seen.reasons),
        advice=_advice(rights, team, flavor, spec, now=now),
    )


def _advice(
    rights: Rights, team: Team, flavor: Flavor, spec: RequestSpec, *, now: datetime
) -> AdviceCard | None:
    """Return what this person's earlier leases say about the size, where another would do for less."""
    found = advice_for_request(rights.user, team, flavor, spec, now=now)
    return None if found is None or found.size is None else advice_card(found)


def _wallet(team: Team, price: Quote) -> WalletCover | None:
    payer = paying_wallets([team]).get(team.pk)
    if payer is None:
        return None
    return WalletCover(money(payer.balance_micro), money(price.hold_micro), payer.currency)


def free_times(reasons: Sequence[dict[str, Any]]) -> list[FreeTime]:
    """Return the starts that reasons name as free near a wanted one."""
    # What is nearest to a request that can never run is a size, not a time.
    wanted = [reason for reason in reasons if "starts_at" in reason]
    found = [datetime.fromisoformat(at) for reason in wanted for at in reason.get("nearest") or ()]
    return [FreeTime(at, f"{timezone.localtime(at):{LOCAL_TIME}}") for at in found]


def _usual(team: Team, flavor: Flavor, spec: RequestSpec, price: Quote, *, now: datetime) -> Decimal | None:
    """Return what it would cost if it were not lent for less; None where it costs the same."""
    if not spec.is_preemptible or flavor.preemptible_milli == 1000:
        return None
    usual = quote_of(team, flavor, replace(spec, is_preemptible=False), now=now)
    return money(usual.amount_micro) if usual.amount_micro > price.amount_micro else None


def offer_views(
    team: Team, offers: list[forecasting.Offer], *, spec: RequestSpec, instead_of: str = ""
) -> list[OfferView]:
    """Return counter-offers as buttons: what differs, when it starts, what it costs."""
    more = {name: value for name, value in (("instead_of", instead_of), ("opens", spec.opens)) if value}
    return [_offer(team, o, title=_difference(o, spec), **more) for o in offers]


def _impossible(team: Team, flavor: Flavor, spec: RequestSpec) -> tuple[str, int]:
    """Return why this could never start and the nearest count that could; ("", 0) when it can."""
    try:
        check_possible(team, flavor, spec.count, spec.nodes)
    except Impossible as error:
        return str(error.detail), int(error.facts.get("nearest_count", 0))
    return "", 0


def _nearest(team: Team, flavor: Flavor, spec: RequestSpec, count: int, now: datetime) -> list[OfferView]:
    """Return the largest count that could ever start, when that is less than was asked."""
    if not 1 <= count < spec.count:
        return []
    price = quote_of(team, flavor, replace(spec, count=count), now=now)
    offer = forecasting.Offer("fewer", flavor, count, spec.duration_s, now, False, price)
    shown = _offer(team, offer, title=_difference(offer, spec), opens=spec.opens)
    return [replace(shown, starts_at=None)]


def _room(team: Team, cost: int) -> HeadroomChange:
    found = headroom(team)
    left = found.left_milli
    after = None if left is None else left - cost
    return HeadroomChange(
        before=gpus(None if left is None else max(0, left)),
        after=gpus(None if after is None else max(0, after)),
        owner=found.bound_by or team.name,
        short=gpus(-after) if after is not None and after < 0 else None,
    )


def _difference(offer: forecasting.Offer, spec: RequestSpec) -> str:
    if offer.kind == "fewer":
        return _("%(count)d instead of %(asked)d") % {"count": offer.count, "asked": spec.count}
    if offer.kind == "shorter":
        return _("%(time)s instead of %(asked)s") % {
            "time": span(offer.duration_s),
            "asked": span(spec.duration_s),
        }
    if offer.kind == "later":
        return _("The same, booked for a fixed time")
    if offer.kind == "preemptible":
        return _("The same for less, if it is preemptible")
    return what_text(offer.flavor.shown_name, offer.count)


def _offer(team: Team, offer: forecasting.Offer, *, title: str, **more: str) -> OfferView:
    duration = duration_text(offer.duration_s)
    fields = {
        "team": team.slug, "flavor": offer.flavor.slug, "count": str(offer.count), "duration": duration,
    }  # fmt: skip
    if offer.is_preemptible:
        fields["is_preemptible"] = "1"
    if offer.booked_at:
        fields["starts_at"] = f"{timezone.localtime(offer.booked_at):%Y-%m-%dT%H:%M}"
    fields |= more
    what = what_text(offer.flavor.shown_name, offer.count)
    return OfferView(
        title=title,
        text=(_("for %(time)s") if what == title else _("%(what)s for %(time)s"))
        % {"what": what, "time": span(offer.duration_s)},
        starts_at=offer.starts_at,
        is_now=offer.is_now,
        price=money(offer.quote.amount_micro),
        currency=offer.quote.currency,
        url=f"{reverse('web:request_new')}?{urlencode(fields)}",
        value="|".join(
            (
                offer.flavor.slug,
                str(offer.count),
                duration,
                fields.get("is_preemptible", ""),
                fields.get("starts_at", ""),
            )
        ),
        by=offer.by,
        is_booked=offer.booked_at is not None,
        is_other=offer.kind in ("later", "preemptible"),
    )
