"""Carries out a pool's calls in threads, looks at the cluster, and tells away from gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from nodeagent.backends.base import Backend, BackendAwayError, BackendRefusedError, PoolFacts
from nodeagent.backends.leases import Call, CallOutcome, PoolLeases, lane_of
from nodeagent.drivers.base import DriverReading
from nodeagent.protocol.messages import Desired, DeviceFact, ProcessSample
from nodeagent.reconcile.lease_records import NS

log = logging.getLogger(__name__)
T = TypeVar("T")

CALLERS: Final = 4  # more side by side only wait for the controller's lock
LOOK_SOON_S = 0.2
LOOK_EVERY_S = 3.0
LOOK_IDLE_S = 15.0
FACTS_EVERY_S = 5.0
STRAYS_EVERY: Final = 10


class PoolWorker:
    """One per agent. ``changed`` is set when there is something new to report.

    ``grown`` is set when the pool has more units than this life of the agent told the portal of.
    """

    def __init__(
        self,
        reconciler: PoolLeases,
        backend: Backend,
        clock: Callable[[], int],
        keep_time: Callable[[], None] = lambda: None,
    ) -> None:
        self.reconciler = reconciler
        self.changed = asyncio.Event()
        self.grown = asyncio.Event()
        self.processes: tuple[ProcessSample, ...] | None = None
        self._backend = backend
        self._clock = clock
        self._keep_time = keep_time
        self._poked = asyncio.Event()
        self._soon = asyncio.Event()
        self._jobs: set[asyncio.Task[None]] = set()
        self._callers = ThreadPoolExecutor(CALLERS, "cluster")
        self._watchers = ThreadPoolExecutor(2, "cluster-look")
        self._looks = 0

    def accept(self, desired: Desired) -> None:
        """Take a desired state and begin to work on it; raises FenceError."""
        self.reconciler.accept(desired, self._clock())
        self.drive()
        self._poked.set()
        self._soon.set()

    async def run(self) -> None:
        """Keep time, look at the cluster and count the pool until cancelled."""
        loop = asyncio.get_running_loop()
        watchers = [loop.create_task(self._look_forever()), loop.create_task(self._count_forever())]
        try:
            while True:
                for watcher in watchers:
                    if watcher.done():
                        watcher.result()
                self.drive()
                await self._rest()
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)

    def drive(self) -> None:
        """Set going everything that can be done now."""
        self.reconciler.tick(self._clock())
        for call in self.reconciler.next_calls(self._clock()):
            job = asyncio.get_running_loop().create_task(self._make(call))
            self._jobs.add(job)
            job.add_done_callback(self._jobs.discard)
        self._announce()

    async def _make(self, call: Call) -> None:
        outcome = await self._off_loop(self._callers, partial(make_call, self._backend, call))
        if outcome.is_away:
            self.reconciler.see_away(outcome.detail)
        self.reconciler.settle(call, outcome, self._clock())
        self._announce()
        self._poked.set()
        self._soon.set()

    async def look(self) -> None:
        """Look at the cluster's jobs once; what does not answer is away, and nothing is concluded from it."""
        self._looks += 1
        asked, began = self.reconciler.names(), self._clock()
        strays = self._looks % STRAYS_EVERY == 1
        if not asked and not strays and not self.reconciler.away:
            return
        try:
            found = await self._off_loop(
                self._watchers,
                partial(self._backend.observe, asked, strays=strays or bool(self.reconciler.away)),
            )
        except (BackendAwayError, BackendRefusedError) as no:
            self.reconciler.see_away(str(no))
        else:
            self.reconciler.see_away("")
            self.reconciler.observe(found, asked, began, self._clock())
        self._announce()
        self._poked.set()

    async def count(self) -> None:
        """Count the pool's units once."""
        try:
            facts = await self._off_loop(self._watchers, self._backend.facts)
        except BackendAwayError as no:
            self.reconciler.see_away(str(no))
        except BackendRefusedError as no:
            self.reconciler.see_facts(PoolFacts(0, notes=((no.code, no.detail),)))
        else:
            self.reconciler.see_facts(facts)
            if facts.units > len(self.reconciler.devices):
                self.grown.set()
        self._announce()

    async def inventory(self) -> tuple[DeviceFact, ...]:
        """Return the pool's units."""
        return tuple(self.reconciler.devices.values())

    async def measure(self) -> DriverReading:
        """Return no figures: what goes on in a unit is not known here, and unknown is never zero."""
        return DriverReading()

    async def recent_reading(self, within_ns: int) -> DriverReading:
        """Return no figures either."""
        return DriverReading()

    def close(self) -> None:
        """Stop taking work; a call in progress finishes, jobs stay as they are."""
        for job in self._jobs:
            job.cancel()
        for threads in (self._callers, self._watchers):
            threads.shutdown(wait=True, cancel_futures=True)
        self.reconciler.ledger.save()

    async def _look_forever(self) -> None:
        while True:
            await self.look()
            self._keep_time()
            if self.reconciler.is_moving(self._clock()) and not self.reconciler.away:
                await asyncio.sleep(LOOK_SOON_S)
                continue
            self._soon.clear()
            patience = LOOK_EVERY_S if self.reconciler.names() or self.reconciler.away else LOOK_IDLE_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._soon.wait()

    async def _count_forever(self) -> None:
        while True:
            await self.count()
            await asyncio.sleep(FACTS_EVERY_S)

    async def _rest(self) -> None:
        now = self._clock()
        wake = self.reconciler.next_wake(now)
        patience = None if wake is None else max(0.001, (wake - now) / NS)
        self._poked.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._poked.wait()

    async def _off_loop(self, threads: ThreadPoolExecutor, verb: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, verb)

    def _announce(self) -> None:
        self.reconciler.ledger.save()
        if self.reconciler.changed:
            self.changed.set()


def make_call(backend: Backend, call: Call) -> CallOutcome:
    """Make one call; every answer is a value."""
    try:
        if call.kind == "ensure" and call.order is not None:
            return CallOutcome(backend.ensure(call.order))
        if call.kind == "extend":
            backend.extend(call.job, call.ends_in_s)
        elif call.kind == "tell":
            backend.tell(call.job)
        else:
            backend.end(call.job, asks=call.asks)
        return CallOutcome()
    except BackendAwayError as no:
        return CallOutcome(detail=str(no), is_away=True)
    except BackendRefusedError as no:
        return CallOutcome(code=no.code, detail=no.detail, is_passing=no.is_passing)
    except Exception as no:
        log.exception("a call for %s failed", lane_of(call))
        return CallOutcome(code="driver_error", detail=f"{type(no).__name__}: {no}")
