from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from portal.common.threads import DatabaseThreads

T = TypeVar("T")
_threads = DatabaseThreads("live-db", workers=2)


async def in_database(work: Callable[[], T]) -> T:
    """Run ``work``, which only reads, in a database thread of the browsers' sockets."""
    return await _threads.run(work)
