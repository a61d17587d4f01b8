from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from portal.common.retry import with_retries
from portal.common.threads import DatabaseThreads

T = TypeVar("T")
_threads = DatabaseThreads("gateway-db", workers=3)


async def in_database(work: Callable[[], T]) -> T:
    """Run ``work`` in a database thread of this gateway, repeated where the database asks for it."""
    return await _threads.run(lambda: with_retries(work))
