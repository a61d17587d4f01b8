"""Database work of agent sockets: a small pool of threads of its own, connections handed back after each call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import connections

from portal.common.retry import with_retries

T = TypeVar("T")
_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="agent-db")


async def in_database(work: Callable[[], T]) -> T:
    """Run ``work`` in a database thread, repeated where the database asks for it."""
    return await asyncio.get_running_loop().run_in_executor(_threads, _run, work)


def _run(work: Callable[[], T]) -> T:
    try:
        return with_retries(work)
    finally:
        connections.close_all()
