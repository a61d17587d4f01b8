"""Flavors, quotes and prices over HTTP."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import Scope
from portal.api.describe import call, query
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Instant, Price, Text
from portal.api.idempotency import once
from portal.api.representations import Row, reason_row
from portal.api.requests import RequestBody, spec_of, team_to_ask_for
from portal.api.responses import FlavorAnswer, RateAnswer
from portal.api.responses_requests import QuoteAnswer
from portal.api.wire import instant, money
from portal.catalog import pricing
from portal.catalog.models import Flavor, Rate, RateCard
from portal.catalog.services import set_rate
from portal.common.errors import Invalid, NotFound
from portal.fleet.models import DeviceModel
from portal.leases.forecasting import Offer, free_units, preview
from portal.leases.requests import check_may_ask, check_possible, check_spec, quote_of
from portal.leases.visible_reasons import all_as_seen

TAG = "catalogue"


class RateBody(Body):
    """A price of a whole device for an hour, from an instant on."""

    device_model = Text(most=40)
    price_per_hour = Price()
    starts_at = Instant()


class Flavors(Endpoint):
    """What can be asked for."""

    @call("List flavors", answer=FlavorAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List what can be asked for, with price per hour and how many could start now."""
        rows = Flavor.objects.filter(is_active=True).select_related("device_model")
        prices, free = prices_now(timezone.now()), free_units()
        return Response({"next": None, "results": [flavor_row(f, prices, free.get(f.pk)) for f in rows]})


class OneFlavor(Endpoint):
    """One flavor."""

    @call("Read a flavor", answer=FlavorAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, slug: str) -> Response:
        """Read one flavor with its price per hour and how many could start now."""
        found = Flavor.objects.filter(is_active=True, slug=slug).select_related("device_model").first()
        if found is None:
            raise NotFound
        return Response(flavor_row(found, prices_now(timezone.now()), free_units().get(found.pk)))


class Quote(Endpoint):
    """What a request would cost and when it would start. Changes nothing."""

    write_scope = Scope.READ

    @call(
        "Quote a request", body=RequestBody, answer=QuoteAnswer, refusals=(400, 404, 409, 415, 422), tag=TAG
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Say what a request would cost, when it would start, why not now, and what would start earlier."""
        values = self.take(RequestBody)
        team, spec, now = team_to_ask_for(self.rights, values.get("team")), spec_of(values), timezone.now()
        check_may_ask(self.rights, team, spec.priority)
        flavor = check_spec(spec, now=now)
        check_possible(team, flavor, spec.count, spec.nodes)
        price = quote_of(flavor, spec, now=now)
        seen = preview(team=team, flavor=flavor, spec=spec, now=now)
        return Response(
            {
                "team": team.slug,
                "flavor": flavor.slug,
                "count": spec.count,
                "duration_s": spec.duration_s,
                "price": money(price.amount_micro, price.currency),
                "price_per_hour": money(price.hourly_micro, price.currency),
                "is_now": seen.is_now,
                "starts_at": instant(seen.starts_at),
                "starts_by": instant(seen.by),
                "position": seen.position,
                "is_impossible": seen.is_impossible,
                "reasons": [reason_row(reason) for reason in all_as_seen(self.rights, seen.reasons)],
                "offers": [offer_row(offer) for offer in seen.offers],
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
        model = DeviceModel.objects.filter(slug=values["device_model"]).first()
        if model is None:
            raise Invalid(fields={"device_model": _("There is no such device model.")})
        rate = set_rate(
            model=model, micro_per_hour=values["price_per_hour"], starts_at=values["starts_at"],
            actor=self.person, now=timezone.now(),
        )  # fmt: skip
        rate.refresh_from_db()
        return Response(rate_row(rate), status=201, headers={"Location": "/api/v1/rates/"})


def prices_now(now: datetime) -> dict[int, tuple[int, str]]:
    """Return by device model (micro-units per hour of a whole device, currency) at an instant."""
    rates = Rate.objects.filter(Q(card__is_default=True), valid__contains=now).select_related("card")
    return {rate.device_model_id: (rate.micro_per_hour, rate.card.currency) for rate in rates}


def flavor_row(flavor: Flavor, prices: dict[int, tuple[int, str]], free: int | None) -> Row:
    """Return a flavor in the caller's language; its device model must be at hand."""
    micro, currency = prices.get(flavor.device_model_id, (None, ""))
    hourly = None if micro is None else int(pricing.exact_micro(flavor.share_milli * 3600, micro))
    return {
        "slug": flavor.slug,
        "name": flavor.shown_name,
        "summary": flavor.shown_summary,
        "device_model": flavor.device_model.slug,
        "mode": flavor.mode,
        "profile": flavor.profile,
        "share_milli": flavor.share_milli,
        "memory_mib": flavor.memory_mib,
        "max_memory_mib": flavor.max_memory_mib,
        "cpu_milli": flavor.cpu_milli,
        "host_memory_mib": flavor.host_memory_mib,
        "max_count": flavor.max_count,
        "min_duration_s": flavor.min_duration_s,
        "max_duration_s": flavor.max_duration_s,
        "price_per_hour": money(hourly, currency),
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
        "valid_from": instant(rate.valid.lower),
        "valid_until": instant(rate.valid.upper),
    }
