"""Database work of browser sockets: two threads of their own, connections handed back after each call.

Apart from the threads of the agents' sockets, so that browsers cannot hold up reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import close_old_connections, connections

T = TypeVar("T")
_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="live-db")


async def in_database(work: Callable[[], T]) -> T:
    """Run ``work``, which only reads, in a database thread. Errors of the database come through."""
    return await asyncio.get_running_loop().run_in_executor(_threads, _run, work)


def _run(work: Callable[[], T]) -> T:
    close_old_connections()
    try:
        return work()
    finally:
        connections.close_all()
