"""Prices: what a device hour costs, cost and will cost; finance sets the next price."""

from __future__ import annotations

from datetime import datetime

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from portal.billing.periods import month_bounds
from portal.billing.price_effect import PriceEffect, effect_of_price
from portal.catalog.services import move_rate, set_currency, set_rate, withdraw_rate
from portal.common.clock import db_now
from portal.common.errors import BerthError, Forbidden, Invalid
from portal.web.access import done, person, refused, rights_of
from portal.web.fields import MomentField
from portal.web.rates.forms import CurrencyForm, RateForm
from portal.web.rates.rows import ModelPrices, card_currency, effect_shown, model_prices


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Show all prices to everybody; a POST by finance sets a new one, or says what last month had come to by it."""
    now = timezone.now()
    is_finance = rights_of(request).is_finance
    models = model_prices(now=now)
    tried: PriceEffect | None = None
    if request.method == "POST":
        if not is_finance:
            raise Forbidden(_("Only finance works on billing periods and prices."))
        form = RateForm(request.POST)
        if form.is_valid() and request.POST.get("do") == "preview":
            tried = effect_of_price(
                model=form.cleaned_data["model"],
                micro_per_hour=form.micro_per_hour(),
                micro_per_gib_hour=form.micro_per_gib_hour(),
                minimum_micro=form.minimum_micro(),
                now=now,
            )
        elif form.is_valid() and _stored(request, form):
            return done(request, _("The new price is set."), "web:rates")
    else:
        form = RateForm(initial=_usual(models, request.GET.get("model", "")[:40], now))
    context = {
        "models": models,
        "form": form,
        "tried": effect_shown(tried) if tried else None,
        "has_prices": any(model.prices for model in models),
        "currency_form": CurrencyForm(initial={"currency": card_currency() or "EUR"}),
        "currency": card_currency(),
        "is_finance": is_finance,
    }
    return render(request, "web/rates.html", context, status=422 if form.is_bound and not tried else 200)


@require_POST
def currency(request: HttpRequest) -> HttpResponse:
    """Say in which currency prices are, as long as there are none."""
    if not rights_of(request).is_finance:
        raise Forbidden(_("Only finance works on billing periods and prices."))
    wanted = request.POST.get("currency", "")[:20]
    try:
        card = set_currency(currency=wanted, actor=person(request), now=db_now())
    except BerthError as error:
        return refused(request, error, "web:rates")
    return done(request, _("Prices are in %(currency)s now.") % {"currency": card.currency}, "web:rates")


@require_POST
def withdraw(request: HttpRequest, key: int) -> HttpResponse:
    """Take back a price that has not begun."""
    if not rights_of(request).is_finance:
        raise Forbidden(_("Only finance works on billing periods and prices."))
    try:
        rate = withdraw_rate(rate_id=key, actor=person(request), now=db_now())
    except BerthError as error:
        return refused(request, error, "web:rates")
    said = _("The planned price of %(model)s is withdrawn.") % {"model": rate.device_model.name}
    return done(request, said, "web:rates")


@require_POST
def move(request: HttpRequest, key: int) -> HttpResponse:
    """Let a planned price begin at another instant."""
    if not rights_of(request).is_finance:
        raise Forbidden(_("Only finance works on billing periods and prices."))
    try:
        starts_at = MomentField().clean(request.POST.get("starts_at", "")[:40])
        rate = move_rate(rate_id=key, starts_at=starts_at, actor=person(request), now=db_now())
    except ValidationError as error:
        return refused(request, Invalid(fields={"starts_at": " ".join(error.messages)}), "web:rates")
    except BerthError as error:
        return refused(request, error, "web:rates")
    said = _("The planned price of %(model)s is moved.") % {"model": rate.device_model.name}
    return done(request, said, "web:rates")


def _usual(models: list[ModelPrices], wanted: str, now: datetime) -> dict[str, object]:
    """Return what the form begins with: a model without a price first, from now on; else from the next month on."""
    unpriced = [model.slug for model in models if not model.prices]
    slug = wanted or next(iter(unpriced), "")
    is_first = slug in unpriced
    return {"model": slug, "starts_at": now.replace(second=0) if is_first else month_bounds(now)[1]}


def _stored(request: HttpRequest, form: RateForm) -> bool:
    """Set the price; False when it was refused, with the reason on the form."""
    try:
        set_rate(
            model=form.cleaned_data["model"],
            micro_per_hour=form.micro_per_hour(),
            micro_per_gib_hour=form.micro_per_gib_hour(),
            minimum_micro=form.minimum_micro(),
            starts_at=form.cleaned_data["starts_at"],
            actor=person(request),
            now=db_now(),
        )
    except Invalid as error:
        for field, text in error.fields.items():
            form.add_error(field, text)
        return False
    except BerthError as error:
        form.add_error(None, str(error.detail))
        return False
    return True
