"""Prices: what a device hour costs, cost and will cost; finance sets the next price."""

from __future__ import annotations

from datetime import datetime

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from portal.billing.periods import month_bounds
from portal.catalog.services import set_rate
from portal.common.errors import BerthError, Forbidden, Invalid
from portal.web.access import done, person, rights_of
from portal.web.rates_forms import RateForm
from portal.web.rates_rows import card_currency, model_prices


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Show all prices to everybody; a POST by finance sets a new one."""
    now = timezone.now()
    is_finance = rights_of(request).is_finance
    if request.method == "POST":
        if not is_finance:
            raise Forbidden(_("Only finance works on months and prices."))
        form = RateForm(request.POST)
        if form.is_valid() and _stored(request, form, now):
            return done(request, _("The new price is set."), "web:rates")
    else:
        form = RateForm(
            initial={"starts_at": month_bounds(now)[1], "model": request.GET.get("model", "")[:40]}
        )
    context = {
        "models": model_prices(now=now),
        "form": form,
        "currency": card_currency(),
        "is_finance": is_finance,
    }
    return render(request, "web/rates.html", context, status=422 if form.is_bound else 200)


def _stored(request: HttpRequest, form: RateForm, now: datetime) -> bool:
    """Set the price; False when it was refused, with the reason on the form."""
    try:
        set_rate(
            model=form.cleaned_data["model"],
            micro_per_hour=form.micro_per_hour(),
            starts_at=form.cleaned_data["starts_at"],
            actor=person(request),
            now=now,
        )
    except Invalid as error:
        for field, text in error.fields.items():
            form.add_error(field, text)
        return False
    except BerthError as error:
        form.add_error(None, str(error.detail))
        return False
    return True
