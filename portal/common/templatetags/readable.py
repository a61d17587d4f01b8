"""Filters that every template has: values as people read them."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

from django import template
from django.utils.formats import number_format

from portal.common import moments
from portal.common.units import amount_places, memory_text, price_places, rounded

register = template.Library()


@register.filter
def moment(at: datetime | None) -> str:
    """Return an instant in the zone in use, such as "22 Nov, 10:30"; "" for none."""
    return moments.moment(at) if at else ""


@register.filter
def month(first: date | None) -> str:
    """Return the billing month that begins on a day; "" for none."""
    return moments.month(first) if first else ""


@register.filter
def amount(value: Decimal, kind: str = "") -> str:
    """Return an amount with two decimals, more for the very small; ``"price"``: with all it has, never rounded."""
    places = price_places(value) if kind == "price" else amount_places(value)
    return number_format(rounded(value, places), places, use_l10n=True, force_grouping=True)


@register.filter
def memory(mib: int | None) -> str:
    """Return MiB as GiB to a tenth; "" for none."""
    return "" if mib is None else memory_text(mib)
