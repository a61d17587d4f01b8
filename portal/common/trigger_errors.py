"""What a refusal of the books' triggers means for people, where code did not ask first."""

from __future__ import annotations

import logging

from django.db import IntegrityError
from django.utils.translation import gettext as _

from portal.common.errors import BerthError, Conflict, PeriodClosed

log = logging.getLogger(__name__)
# The constraint names that the triggers of billing 0004 give their refusals.
CLOSED_MONTH, BOOKS = "closed_month", "books"


def is_about_closed_month(error: Exception) -> bool:
    """Say whether the database refused something because it would change a closed month."""
    return constraint_of(error) == CLOSED_MONTH


def refused_by_guard(error: Exception) -> BerthError | None:
    """Return the refusal for people where a trigger of the books refused; None for any other error."""
    if not isinstance(error, IntegrityError) or constraint_of(error) not in (CLOSED_MONTH, BOOKS):
        return None
    log.warning("refused by the books: %s", error)
    if is_about_closed_month(error):
        return PeriodClosed()
    return Conflict(_("The books do not allow this, so nothing was changed."))


def constraint_of(error: Exception) -> str:
    """Return the name of the constraint, or the trigger's word for it, by which the database refused; "" for none."""
    diagnosis = getattr(error.__cause__, "diag", None)
    return str(getattr(diagnosis, "constraint_name", None) or "")
