"""Who has more in a scratch folder than a node gives: such a lease ends, before the disk is full for everybody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from nodeagent.protocol.messages import Welcome
from nodeagent.reconcile.lease_records import READY
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.runtimes.scratch import ScratchFolders

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 30


class ScratchWatch:
    """Measures the scratch folders of a node's leases, one after another."""

    def __init__(
        self,
        reconciler: Reconciler,
        scratch: ScratchFolders,
        clock: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        """``wake`` lets the worker look after what changed here."""
        self._reconciler = reconciler
        self._scratch = scratch
        self._clock = clock
        self._wake = wake
        self._thread = ThreadPoolExecutor(1, "scratch-watch")

    async def run(self) -> None:
        """Look every half a minute until cancelled."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def welcomed(self, welcome: Welcome) -> None:
        """Do nothing: what leases may have is for the node to say."""

    async def look(self) -> None:
        """Measure each lease's folder, and end those whose is too large."""
        loop = asyncio.get_running_loop()
        for record in list(self._reconciler.lease_records.values()):
            if record.phase != READY:
                continue
            held = await loop.run_in_executor(self._thread, self._scratch.excess_gib, record.key)
            if held is not None and record.phase == READY:
                self._reconciler.end_overfull(record, held, self._scratch.limit_gib, self._clock())
                self._wake()
