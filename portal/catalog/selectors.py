from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.utils.translation import get_language

from portal.catalog.models import Flavor, Rate
from portal.common.rows import Rows

_RATES = Rows(Rate, "card")


def shown_names(copied: Iterable[str]) -> dict[str, str]:
    """Return the reader's word for flavor names that a document copied.

    A name the catalogue no longer knows stays as it was copied. One query, none in the common language.
    """
    names = {name: name for name in copied}
    if names and (get_language() or "").startswith("zh"):
        names |= {flavor.name: flavor.shown_name for flavor in Flavor.objects.filter(name__in=names)}
    return names


def rates_now(model_ids: Iterable[int], *, now: datetime) -> dict[int, Rate]:
    """Return the price in force for each device model that has one."""
    rows = _RATES.where(
        "card.is_default AND it.device_model_id = ANY(%s) AND it.valid @> %s::timestamptz",
        [list(model_ids), now],
    )
    return {rate.device_model_id: rate for rate in rows}
