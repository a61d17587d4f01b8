"""Database work of sockets: a few threads of their own for each kind, connections handed back after each call.

Kinds are kept apart so that browsers cannot hold up the reports of agents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import close_old_connections, connections

T = TypeVar("T")


class DatabaseThreads:
    """A pool of ``workers`` threads, made at the first call."""

    def __init__(self, name: str, workers: int) -> None:
        self._threads = ThreadPoolExecutor(max_workers=workers, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, done in one of the threads; its errors come through."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, _run, work)


def _run(work: Callable[[], T]) -> T:
    close_old_connections()
    try:
        return work()
    finally:
        connections.close_all()
