"""Filters that every template has: values as people read them."""

from __future__ import annotations

from datetime import datetime

from django import template

from portal.common import moments

register = template.Library()


@register.filter
def moment(at: datetime | None) -> str:
    """Return an instant in the zone in use, such as "22 Nov, 10:30"; "" for none."""
    return moments.moment(at) if at else ""


@register.filter
def month(at: datetime | None) -> str:
    """Return the billing month that begins at an instant; "" for none."""
    return moments.month(at) if at else ""
