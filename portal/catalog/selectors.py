from __future__ import annotations

from collections.abc import Iterable

from django.utils.translation import get_language

from portal.catalog.models import Flavor


def shown_names(copied: Iterable[str]) -> dict[str, str]:
    """Return the reader's word for flavor names that a document copied.

    A name the catalogue no longer knows stays as it was copied. One query, none in the common language.
    """
    names = {name: name for name in copied}
    if names and (get_language() or "").startswith("zh"):
        names |= {flavor.name: flavor.shown_name for flavor in Flavor.objects.filter(name__in=names)}
    return names
