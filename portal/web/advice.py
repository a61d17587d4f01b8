"""Advice about the size of leases on pages: on a receipt, when extending, beside the form; and how to dismiss it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from portal.accounts.models import User
from portal.advice.dismissing import dismiss_advice, restore_advice
from portal.advice.selectors import is_dismissed
from portal.advice.sizing import SizeAdvice
from portal.advice.words import advice_text
from portal.catalog.models import Flavor
from portal.common.clock import db_now
from portal.leases.models import Lease
from portal.leases.requests import spec_of
from portal.web.access import done, person
from portal.web.links import form_address
from portal.web.own_paths import own_path


@dataclass(frozen=True, slots=True)
class AdviceCard:
    """What is said about a size; ``title`` is "" where nothing would do for less, ``url`` asks for what would do.

    ``suggested`` is that flavor's value in the form, ``flavor`` the one that advice is dismissed for.
    """

    title: str
    text: str
    flavor: str
    suggested: str
    url: str
    is_dismissed: bool


def lease_advice(user: User, lease: Lease, advice: SizeAdvice | None) -> AdviceCard | None:
    """Return what the page of a lease says about its size; None where nothing is said."""
    if advice is None:
        return None
    asked = replace(
        spec_of(lease.request), duration_s=lease.request.duration_s, starts_at=None,
        flavor=advice.size.flavor.slug if advice.size else "",
    )  # fmt: skip
    url = form_address(lease.team.slug, asked) if advice.size else ""
    return advice_card(
        advice, url=url, is_dismissed=advice.size is not None and is_dismissed(user, lease.flavor)
    )


def advice_card(advice: SizeAdvice, *, url: str = "", is_dismissed: bool = False) -> AdviceCard:
    """Return advice in words."""
    return AdviceCard(
        title=str(advice.verdict.label) if advice.size else "",
        text=advice_text(advice),
        flavor=advice.flavor.slug,
        suggested=advice.size.flavor.slug if advice.size else "",
        url=url,
        is_dismissed=is_dismissed,
    )


@require_POST
def dismiss(request: HttpRequest, slug: str) -> HttpResponse:
    """Show this person no more advice about a flavor."""
    flavor = _flavor(slug)
    dismiss_advice(user=person(request), flavor=flavor, now=db_now())
    if request.headers.get("HX-Request") == "true":
        return HttpResponse()
    return _back(request, _("You get no more advice about %(flavor)s.") % {"flavor": flavor.shown_name})


@require_POST
def restore(request: HttpRequest, slug: str) -> HttpResponse:
    """Show this person advice about a flavor again."""
    flavor = _flavor(slug)
    restore_advice(user=person(request), flavor=flavor)
    return _back(request, _("You get advice about %(flavor)s again.") % {"flavor": flavor.shown_name})


def _flavor(slug: str) -> Flavor:
    found = Flavor.objects.filter(slug=slug).first()
    if found is None:
        raise Http404
    return found


def _back(request: HttpRequest, said: str) -> HttpResponse:
    wanted: Any = own_path(request.POST.get("next"), default="")
    answer = done(request, said, "web:request_new")
    return HttpResponseRedirect(wanted) if wanted else answer
