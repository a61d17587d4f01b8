"""The one place that repeats a transaction after the database refused it for others' sake."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import InterfaceError, OperationalError, close_old_connections, connection

from portal.common.errors import Unavailable

T = TypeVar("T")
RETRYABLE = {"40001", "40P01", "55P03", "57P01", "57P02", "57P03"}
ATTEMPTS = 5


def is_passing(error: Exception) -> bool:
    """Say whether repeating may help: serialization, deadlock, lock timeout, lost connection."""
    if isinstance(error, InterfaceError):
        return True
    if not isinstance(error, OperationalError):
        return False
    state = getattr(error.__cause__, "sqlstate", None)
    return state is None or state in RETRYABLE or str(state).startswith("08")


def is_unreachable(error: BaseException) -> bool:
    """Say whether there is no database to talk to: PostgreSQL gives every other failure a code."""
    if isinstance(error, Unavailable) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, InterfaceError):
        return True
    return isinstance(error, OperationalError) and getattr(error.__cause__, "sqlstate", None) is None


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
