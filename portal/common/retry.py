"""The one place that repeats a transaction after the database refused it for others' sake."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError, close_old_connections, connection
from django.utils.translation import gettext_lazy as _

from portal.common.errors import Unavailable

log = logging.getLogger(__name__)
T = TypeVar("T")
RETRYABLE = {"40001", "40P01", "55P03", "57P01", "57P02", "57P03"}
# What the database cannot do now but may do later. Repeating at once would only add to its load.
CANNOT_NOW = {
    "53000": _("The database lacks resources."),
    "53100": _("The disk of the database is full."),
    "53200": _("The database is out of memory."),
    "53300": _("The database has no connection left."),
    "53400": _("The database has reached a configured limit."),
    "58030": _("The disk of the database does not answer."),
    "57014": _("The database took too long and was stopped."),
    "57P05": _("The connection to the database had ended."),
    "25006": _("The database only takes reads at present."),
    "25P03": _("The work took too long and was undone."),
    "25P04": _("The work took too long and was undone."),
}
ATTEMPTS = 5


def is_passing(error: Exception) -> bool:
    """Say whether repeating may help: serialization, deadlock, lock timeout, lost connection."""
    if isinstance(error, InterfaceError):
        return True
    if not isinstance(error, OperationalError):
        return False
    state = _sqlstate(error)
    return state is None or state in RETRYABLE or state.startswith("08")


def unavailable(error: BaseException) -> Unavailable | None:
    """Return the refusal for a database that cannot do its work now, None for any other error.

    Nothing was changed: the transaction that met the error is undone. Every way out of a request asks here
    (pages, API, and what fails before a view is reached), so that none of them answers 500 to a full disk.
    """
    if isinstance(error, Unavailable):
        return error
    if not isinstance(error, (DatabaseError, InterfaceError)):
        return None
    if is_passing(error):
        return Unavailable()
    reason = CANNOT_NOW.get(_sqlstate(error) or "")
    if reason is None:
        return None
    log.error("the database cannot do its work now: %s", error)
    return Unavailable(reason)


def is_unreachable(error: BaseException) -> bool:
    """Say whether there is no database to talk to: PostgreSQL gives every other failure a code."""
    if isinstance(error, Unavailable) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, InterfaceError):
        return True
    return isinstance(error, OperationalError) and _sqlstate(error) is None


def _sqlstate(error: BaseException) -> str | None:
    state = getattr(error.__cause__, "sqlstate", None)
    return str(state) if state else None


def with_retries(work: Callable[[], T]) -> T:
    """Run ``work``, which opens its own transaction, up to five times with jitter.

    Must be called outside a transaction. Raises ``Unavailable`` when the fifth try fails too.
    """
    if connection.in_atomic_block:
        return work()
    for attempt in range(ATTEMPTS):
        try:
            return work()
        except (OperationalError, InterfaceError) as error:
            if not is_passing(error):
                raise
            if attempt == ATTEMPTS - 1:
                raise Unavailable from error
            close_old_connections()
            time.sleep(random.uniform(0.005, 0.02) * 2**attempt)  # noqa: S311 (jitter, not a secret)
    raise AssertionError("unreachable")
