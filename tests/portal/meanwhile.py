"""Somebody else's work in the middle of a transaction, begun and left where it waits for what is locked here."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from django.db import connections

from portal.common.sql import fetch

# Within a transaction PostgreSQL goes on showing the sessions as they were at the first look, unless told otherwise.
_LOOK_ANEW = "SELECT 1 FROM pg_stat_clear_snapshot()"
_WAITS = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


def meanwhile(work: Callable[[], Any], pool: ThreadPoolExecutor) -> Future[Any]:
    """Let somebody else work until they are done or wait for what this transaction has locked."""

    def apart() -> Any:
        try:
            return work()
        finally:
            connections.close_all()

    waiting = pool.submit(apart)
    while not waiting.done() and not is_anybody_blocked():
        pass
    return waiting


def is_anybody_blocked() -> bool:
    """Say whether a session on this database waits for a lock now."""
    fetch(_LOOK_ANEW)
    return bool(fetch(_WAITS))
