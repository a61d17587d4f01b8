"""Flavors, quotes and prices over HTTP."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import Scope
from portal.advice.selectors import advice_for_request
from portal.api.advice import advice_row
from portal.api.describe import call, query
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Empty, Flag, Instant, PriceField, Text, Whole
from portal.api.idempotency import once
from portal.api.representations import Row, reason_row
from portal.api.requests import RequestBody, spec_of, team_to_quote_for
from portal.api.responses import FlavorAnswer
from portal.api.responses_money import RateAnswer, RatePreviewAnswer
from portal.api.responses_requests import QuoteAnswer
from portal.api.responses_setup import CurrencyAnswer, NamesAnswer
from portal.api.wire import instant, money
from portal.billing.electricity import expected_electricity
from portal.billing.price_effect import TeamAtNewPrice, effect_of_price
from portal.billing.selectors import currency
from portal.budgets.wallets import paying_wallets
from portal.budgets.words import reached_sentence
from portal.catalog import pricing
from portal.catalog.models import Flavor, Rate, RateCard
from portal.catalog.services import (
    MOST_COUNT,
    MOST_DURATION_S,
    change_flavor,
    cost_milli,
    create_flavor,
    move_rate,
    set_currency,
    set_rate,
    withdraw_rate,
)
from portal.catalog.speed import speeds_of
from portal.catalog.standard import make_standard_flavors
from portal.common.clock import db_now
from portal.common.errors import Invalid, NotFound
from portal.fleet.models import DeviceModel, Mode
from portal.leases.budget_gate import asking_approval, stopping
from portal.leases.forecasting import Offer, free_units, preview
from portal.leases.requests import budget_says, check_may_ask, check_possible, check_spec, quote_of
from portal.leases.visible_reasons import all_as_seen

TAG = "catalogue"


class RateBody(Body):
    """A price of a whole device for an hour, from an instant on."""

    device_model = Text(most=40)
    price_per_hour = PriceField()
    price_per_gib_hour = PriceField(
        required=False,
        help_text="Of a GiB of device memory, beside the price of the device; left out: nothing.",
    )
    minimum = PriceField(required=False, help_text="What a lease comes to at least; left out: nothing.")
    starts_at = Instant()


class CurrencyBody(Body):
    """The currency of all prices, as its three letters."""

    currency = Text(most=3)


class TermsBody(Body):
    """What may change of a flavor; what is left out stays as it is."""

    name = Text(most=60, required=False)
    name_zh = Text(most=60, allow_blank=True, required=False)
    summary = Text(most=160, allow_blank=True, required=False)
    summary_zh = Text(most=160, allow_blank=True, required=False)
    max_count = Whole(least=1, most=MOST_COUNT, required=False)
    min_duration_s = Whole(least=1, most=MOST_DURATION_S, required=False)
    max_duration_s = Whole(least=1, most=MOST_DURATION_S, required=False)
    preemptible_milli = Whole(least=0, most=1000, required=False)
    position = Whole(least=0, most=32_767, required=False)
    is_active = Flag(required=False)


class NewFlavorBody(TermsBody):
    """What a new flavor takes of a device, and its terms."""

    device_model = Text(most=40)
    slug = Text(most=50)
    name = Text(most=60)
    mode = serializers.ChoiceField(Mode.choices)
    profile = Text(most=30, allow_blank=True, default="", help_text="For MIG slices only.")
    share_milli = Whole(least=0, most=1000, default=0, help_text="For shares: thousandths of the compute.")
    memory_mib = Whole(least=0, most=2**31 - 1, default=0, help_text="For shares.")


class Flavors(Endpoint):
    """What can be asked for."""

    parameters = frozenset({"include"})

    @call(
        "List flavors", answer=FlavorAnswer, is_list=True,
        parameters=[query("include", "`inactive`: also those that are switched off.", enum=("inactive",))], tag=TAG,
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """List what can be asked for, with price per hour and how many could start now."""
        rows = Flavor.objects.select_related("device_model")
        include = request.query_params.get("include")
        if include not in (None, "inactive"):
            raise Invalid(fields={"include": _("Only “inactive” can be included.")})
        rows = rows if include else rows.filter(is_active=True)
        prices, free, speeds = prices_now(timezone.now()), free_units(), speeds_of(rows)
        return Response(
            {"next": None, "results": [flavor_row(f, prices, free.get(f.pk), speeds[f.pk]) for f in rows]}
        )

    @call("Offer a flavor", body=NewFlavorBody, answer=FlavorAnswer, status=201, refusals=(422,), tag=TAG)
    @once
    def post(self, request: Request) -> Response:
        """Offer one unit of a device model in a sharing mode. Operators."""
        self.require_operator()
        values = self.take(NewFlavorBody)
        given = {
            name: values.pop(name)
            for name in ("slug", "name", "mode", "profile", "share_milli", "memory_mib")
        }
        made = create_flavor(
            model=_model(values.pop("device_model")),
            terms=values,
            actor=self.person,
            now=timezone.now(),
            **given,
        )
        row = _one(made)
        return Response(row, status=201, headers={"Location": f"/api/v1/flavors/{made.slug}/"})


class StandardFlavors(Endpoint):
    """What a device model is usually offered as."""

    @call("Offer standard flavors", body=Empty, answer=NamesAnswer, refusals=(404, 422), tag=TAG)
    @once
    def post(self, request: Request, slug: str) -> Response:
        """Offer the whole device, its MIG profiles and halves and quarters, as far as missing. Operators."""
        self.require_operator()
        self.take(Empty)
        model = DeviceModel.objects.filter(slug=slug).first()
        if model is None:
            raise NotFound
        made = make_standard_flavors(model, actor=self.person, now=timezone.now())
        return Response({"made": [flavor.slug for flavor in made]})


class OneFlavor(Endpoint):
    """One flavor."""

    @call("Read a flavor", answer=FlavorAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, slug: str) -> Response:
        """Read one flavor with its price per hour and how many could start now."""
        found = Flavor.objects.filter(is_active=True, slug=slug).select_related("device_model").first()
        if found is None:
            raise NotFound
        return Response(_one(found))

    @call("Change a flavor", body=TermsBody, answer=FlavorAnswer, refusals=(400, 404, 415, 422), tag=TAG)
    def put(self, request: Request, slug: str) -> Response:
        """Change words and terms of a flavor, or switch it off; what it takes of a device never changes. Operators."""
        self.require_operator()
        found = Flavor.objects.filter(slug=slug).select_related("device_model").first()
        if found is None:
            raise NotFound
        done = change_flavor(flavor=found, terms=self.take(TermsBody), actor=self.person, now=timezone.now())
        return Response(_one(done))


class Currency(Endpoint):
    """The currency of all prices."""

    @call("Read the currency", answer=CurrencyAnswer, tag=TAG)
    def get(self, request: Request) -> Response:
        """Read in which currency prices are."""
        return Response(_currency_row())

    @call(
        "Set the currency", body=CurrencyBody, answer=CurrencyAnswer, refusals=(400, 409, 415, 422), tag=TAG
    )
    def put(self, request: Request) -> Response:
        """Say in which currency prices are, as long as none is set: finance only."""
        self.require_finance()
        set_currency(actor=self.person, now=db_now(), **self.take(CurrencyBody))
        return Response(_currency_row())


class QuoteEndpoint(Endpoint):
    """What a request would cost and when it would start. Changes nothing."""

    write_scope = Scope.READ

    @call(
        "Quote a request", body=RequestBody, answer=QuoteAnswer, refusals=(400, 404, 409, 415, 422), tag=TAG
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Say what a request would cost, when it would start, why not now, and what would start earlier."""
        values = self.take(RequestBody)
        team = team_to_quote_for(self.rights, values.get("team"))
        spec, now = spec_of(values), timezone.now()
        check_may_ask(self.rights, team, spec.priority)
        flavor = check_spec(team, spec, now=now)
        check_possible(team, flavor, spec.count, spec.nodes)
        price = quote_of(team, flavor, spec, now=now)
        seen = preview(team=team, flavor=flavor, spec=spec, user_id=self.person.pk, now=now)
        reached = budget_says(team, flavor, spec, price, now=now)
        stop = stopping(reached, spec.is_preemptible)
        rule = stop or asking_approval(reached)
        payer = paying_wallets([team]).get(team.pk)
        power = expected_electricity(
            flavor, count=spec.units, duration_s=spec.duration_s, starts_at=spec.starts_at or seen.starts_at or now,
            now=now,
        )  # fmt: skip
        advice = advice_for_request(self.person, team, flavor, spec, now=now)
        return Response(
            {
                "team": team.slug,
                "flavor": flavor.slug,
                "count": spec.count,
                "duration_s": spec.duration_s,
                "price": money(price.amount_micro, price.currency),
                "price_per_hour": money(price.hourly_micro, price.currency),
                "usual_price": money(price.usual_micro, price.currency),
                "discounts": [{"name": one.name, "percent": one.off_milli / 10} for one in price.discounts],
                "minimum": money(price.minimum_micro or None, price.currency),
                "electricity": power
                and {
                    "amount": money(power.amount_micro, price.currency),
                    "kwh": power.watt_hours / 1000,
                    "is_most": power.is_most,
                },
                "is_now": seen.is_now,
                "starts_at": instant(seen.starts_at),
                "starts_by": instant(seen.by),
                "position": seen.position,
                "is_impossible": seen.is_impossible,
                "reasons": [reason_row(reason) for reason in all_as_seen(self.rights, seen.reasons)],
                "offers": [offer_row(offer) for offer in seen.offers],
                "budget": rule
                and {
                    "action": rule.action,
                    "is_refused": stop is not None,
                    "sentence": reached_sentence(rule.figures()),
                },
                "wallet": payer
                and {
                    "team": payer.team.slug,
                    "balance": money(payer.balance_micro, payer.currency),
                    "hold": money(price.hold_micro, payer.currency),
                },
                "advice": advice_row(advice) if advice else None,
            }
        )


class Rates(Endpoint):
    """Prices of devices."""

    parameters = frozenset({"device_model"})

    @call(
        "List prices", answer=RateAnswer, is_list=True,
        parameters=[query("device_model", "Slug of the device model.")], tag=TAG,
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """List every price of a whole device for an hour: past, present and planned."""
        rows = Rate.objects.filter(card__is_default=True).select_related("card", "device_model")
        model = request.query_params.get("device_model")
        rows = rows.filter(device_model__slug=model) if model else rows
        return Response({"next": None, "results": [rate_row(rate) for rate in rows]})

    @call("Set a price", body=RateBody, answer=RateAnswer, status=201, refusals=(409, 422), tag=TAG)
    @once
    def post(self, request: Request) -> Response:
        """Set a price from an instant in the future on: finance only. The past is billed already."""
        self.require_finance()
        values = self.take(RateBody)
        rate = set_rate(
            model=_model(values["device_model"]), micro_per_hour=values["price_per_hour"],
            micro_per_gib_hour=values.get("price_per_gib_hour", 0),
            minimum_micro=values.get("minimum", 0), starts_at=values["starts_at"], actor=self.person, now=db_now(),
        )  # fmt: skip
        rate.refresh_from_db()
        return Response(rate_row(rate), status=201, headers={"Location": "/api/v1/rates/"})


class PreviewRateBody(Body):
    """A price of a whole device for an hour, to be tried."""

    device_model = Text(most=40)
    price_per_hour = PriceField()
    price_per_gib_hour = PriceField(required=False)
    minimum = PriceField(required=False)


class RatePreviews(Endpoint):
    """What a price would have come to."""

    @call("Preview a price", body=PreviewRateBody, answer=RatePreviewAnswer, refusals=(409, 422), tag=TAG)
    @once
    def post(self, request: Request) -> Response:
        """Say what each team's last whole month would have come to at another price; nothing changes. Finance.

        Preemptible leases, discounts and refunds lower it as they lowered the old one. `month` is null where the books
        have no month before this one.
        """
        self.require_finance()
        values = self.take(PreviewRateBody)
        model, price = _model(values["device_model"]), values["price_per_hour"]
        per_gib, minimum = values.get("price_per_gib_hour", 0), values.get("minimum", 0)
        effect = effect_of_price(
            model=model, micro_per_hour=price, micro_per_gib_hour=per_gib, minimum_micro=minimum, now=db_now()
        )
        code = currency()
        rows = [{"team": team.slug, "name": team.name, **_effect_row(team, code)} for team in effect.teams]
        return Response(
            {"device_model": model.slug, "price_per_hour": money(price, code),
             "price_per_gib_hour": money(per_gib, code), "minimum": money(minimum, code),
             "month": str(effect.period) if effect.period else None, "teams": rows, **_effect_row(effect.whole, code)}
        )  # fmt: skip


def _effect_row(effect: TeamAtNewPrice, code: str) -> Row:
    return {"charged": money(effect.charged_micro, code), "then": money(effect.then_micro, code)}


class MoveRateBody(Body):
    """When a planned price begins."""

    starts_at = Instant()


class OneRate(Endpoint):
    """A planned price."""

    @call(
        "Move a planned price",
        body=MoveRateBody,
        answer=RateAnswer,
        refusals=(400, 404, 409, 415, 422),
        tag=TAG,
    )
    def put(self, request: Request, key: int) -> Response:
        """Let a price that has not begun begin at another instant; it gets a new id. Finance."""
        self.require_finance()
        starts_at = self.take(MoveRateBody)["starts_at"]
        moved = move_rate(rate_id=key, starts_at=starts_at, actor=self.person, now=db_now())
        moved.refresh_from_db()
        return Response(rate_row(moved))

    @call("Withdraw a planned price", status=204, refusals=(404, 409), tag=TAG)
    def delete(self, request: Request, key: int) -> Response:
        """Take back a price that has not begun; the one before it goes on. Finance."""
        self.require_finance()
        withdraw_rate(rate_id=key, actor=self.person, now=db_now())
        return Response(status=204)


def _model(slug: str) -> DeviceModel:
    """Return a device model by its slug; raises Invalid naming the field."""
    model = DeviceModel.objects.filter(slug=slug).first()
    if model is None:
        raise Invalid(fields={"device_model": _("There is no such device model.")})
    return model


def _currency_row() -> Row:
    return {"currency": currency(), "is_fixed": Rate.objects.filter(card__is_default=True).exists()}


def prices_now(now: datetime) -> dict[int, Rate]:
    """Return the prices at an instant by device model, each with its card."""
    rates = Rate.objects.filter(Q(card__is_default=True), valid__contains=now).select_related("card")
    return {rate.device_model_id: rate for rate in rates}


def _one(flavor: Flavor) -> Row:
    return flavor_row(
        flavor, prices_now(timezone.now()), free_units().get(flavor.pk), speeds_of([flavor])[flavor.pk]
    )


def flavor_row(flavor: Flavor, prices: dict[int, Rate], free: int | None, speed: int | None) -> Row:
    """Return a flavor in the caller's language; its device model must be at hand."""
    rate = prices.get(flavor.device_model_id)
    hourly = int(pricing.exact_micro(flavor.share_milli * 3600, rate.price_of(flavor))) if rate else None
    return {
        "slug": flavor.slug,
        "name": flavor.shown_name,
        "summary": flavor.shown_summary,
        "device_model": flavor.device_model.slug,
        "mode": flavor.mode,
        "profile": flavor.profile,
        "share_milli": flavor.share_milli,
        "quota_milli": cost_milli(flavor, 1),
        "speed_milli": speed,
        "memory_mib": flavor.memory_mib,
        "max_memory_mib": flavor.max_memory_mib,
        "cpu_milli": flavor.cpu_milli,
        "host_memory_mib": flavor.host_memory_mib,
        "max_count": flavor.max_count,
        "min_duration_s": flavor.min_duration_s,
        "max_duration_s": flavor.max_duration_s,
        "preemptible_milli": flavor.preemptible_milli,
        "is_active": flavor.is_active,
        "price_per_hour": money(hourly, rate.card.currency if rate else ""),
        "free": free,
    }


def offer_row(offer: Offer) -> Row:
    """Return a counter-offer."""
    return {
        "kind": offer.kind,
        "flavor": offer.flavor.slug,
        "count": offer.count,
        "duration_s": offer.duration_s,
        "starts_at": instant(offer.starts_at),
        "starts_by": instant(offer.by),
        "is_now": offer.is_now,
        "is_preemptible": offer.is_preemptible,
        "booked_at": instant(offer.booked_at),
        "price": money(offer.quote.amount_micro, offer.quote.currency),
    }


def rate_row(rate: Rate) -> Row:
    """Return a price; its card and device model must be at hand."""
    card: RateCard = rate.card
    return {
        "id": rate.pk,
        "device_model": rate.device_model.slug,
        "price_per_hour": money(rate.micro_per_hour, card.currency),
        "price_per_gib_hour": money(rate.micro_per_gib_hour, card.currency),
        "minimum": money(rate.minimum_micro, card.currency),
        "valid_from": instant(rate.valid.lower),
        "valid_until": instant(rate.valid.upper),
    }
