"""Carries out the reconciler's steps: at once for drivers that answer at once, else one thread per device."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from nodeagent.drivers.base import Driver, Reading
from nodeagent.guard import Guard
from nodeagent.lanes import work_through
from nodeagent.power import change_power, read_power
from nodeagent.protocol.messages import Desired, HealthFact, ProcessSample
from nodeagent.reconcile import Reconciler
from nodeagent.runtimes.base import RuntimeRefusedError
from nodeagent.steps import UNIT_STEPS, Step, carry_out, read_health, read_partitions
from nodeagent.works import NS

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_EVERY_S = 10


class Worker:
    """One per agent. ``changed`` is set when there is something new to report."""

    def __init__(
        self,
        reconciler: Reconciler,
        driver: Driver,
        clock: Callable[[], int],
        guard: Guard | None = None,
    ) -> None:
        self.reconciler = reconciler
        self.changed = asyncio.Event()
        self._driver = driver
        self._clock = clock
        self._poked = asyncio.Event()
        self._guard = guard
        self._strangers: tuple[HealthFact, ...] = ()
        self._jobs: set[asyncio.Task[None]] = set()
        self._threads = (
            ThreadPoolExecutor(len(reconciler.lanes) + 1, "driver") if driver.is_blocking else None
        )

    def accept(self, desired: Desired) -> None:
        """Take a desired state and begin to work on it; raises FenceError."""
        self.reconciler.accept(desired, self._clock())
        self.drive()
        self._poked.set()

    async def run(self) -> None:
        """Keep time until cancelled: ends of leases, retries, a look at every device now and then."""
        look_at = self._clock()
        while True:
            if self._clock() >= look_at:
                await self._look_around()
                look_at = self._clock() + LOOK_EVERY_S * NS
            self.drive()
            await self._rest(look_at)

    async def measure(self) -> Reading:
        """Return a reading of all devices, off the loop where the driver is slow."""
        return await self._call(self._driver.metrics)

    async def examine(self) -> None:
        """Ask the devices how they are and act on it."""
        health = await self._call(partial(read_health, self._driver))
        self.reconciler.note_health((*health, *self._strangers), self._clock())
        self._announce()

    async def watch(self) -> tuple[ProcessSample, ...] | None:
        """Return the processes on all devices; None where the driver plays them."""
        if self._guard is None:
            return None
        found = await self._call(partial(self._guard.go, self._guard.prepare(self.reconciler)))
        self._strangers = found.facts
        return found.processes

    def drive(self) -> None:
        """Do, or set going, everything that can be done now."""
        self.reconciler.tick(self._clock())
        self._power()
        if self._threads is None:
            work_through(self.reconciler, self._driver, self._clock)
        else:
            for device in self.reconciler.lanes:
                self._set_going(device)
        self._announce()

    def _power(self) -> None:
        """Let the node sleep or wake it, where that is due; off the loop where the driver is slow."""
        goal = self.reconciler.next_power(self._clock())
        if not goal:
            return
        if self._threads is None:
            self.reconciler.settle_power(goal, change_power(self._driver, goal), self._clock())
            return
        self.reconciler.power.is_busy = True
        job = asyncio.get_running_loop().create_task(self._power_off_loop(goal))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _power_off_loop(self, goal: str) -> None:
        outcome = await self._call(partial(change_power, self._driver, goal))
        self.reconciler.settle_power(goal, outcome, self._clock())
        self._announce()
        self._poked.set()

    def close(self) -> None:
        """Stop taking work; a step in progress finishes, leases stay as they are."""
        for job in self._jobs:
            job.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        self.reconciler.ledger.save()
        self._driver.close()

    def _set_going(self, device: str) -> None:
        if device in self.reconciler.busy:
            return
        step = self.reconciler.next_step(device, self._clock())
        if step is None:
            return
        self.reconciler.busy.add(device)
        job = asyncio.get_running_loop().create_task(self._work_off_loop(device, step))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _work_off_loop(self, device: str, step: Step | None) -> None:
        """Do a device's steps one after the other, always on the newest goal."""
        loop = asyncio.get_running_loop()
        try:
            while step is not None:
                outcome = await loop.run_in_executor(
                    self._threads, carry_out, self._driver, step, self.reconciler.units.runtime
                )
                self.reconciler.settle(step, outcome, self._clock())
                self._announce()
                if step.kind in UNIT_STEPS:
                    self._poked.set()  # what concerns the whole lease may open the way on its other devices
                step = self.reconciler.next_step(device, self._clock())
        finally:
            self.reconciler.busy.discard(device)
            self._poked.set()

    async def _look_around(self) -> None:
        for device in list(self.reconciler.devices):
            if device in self.reconciler.busy:
                continue
            self.reconciler.busy.add(device)
            try:
                facts = await self._call(partial(read_partitions, self._driver, device))
            finally:
                self.reconciler.busy.discard(device)
            self.reconciler.observed(device, facts, self._clock())
        await self._look_at_units()
        if not self.reconciler.power.is_busy:
            self.reconciler.observed_power(await self._call(partial(read_power, self._driver)))

    async def _look_at_units(self) -> None:
        runtime = self.reconciler.units.runtime
        if runtime is None:
            return
        try:
            known, whole = await self._call(runtime.known), await self._call(runtime.whole)
        except RuntimeRefusedError as no:
            log.warning("cannot tell which leases are open: %s", no)
            return
        self.reconciler.observed_units(known, whole, self._clock())

    async def _rest(self, look_at: int) -> None:
        wake = self.reconciler.next_wake()
        until = look_at if wake is None else min(wake, look_at)
        self._poked.clear()
        try:
            await asyncio.wait_for(self._poked.wait(), max(0.001, (until - self._clock()) / NS))
        except TimeoutError:
            return

    async def _call(self, verb: Callable[[], T]) -> T:
        if self._threads is None:
            return verb()
        return await asyncio.get_running_loop().run_in_executor(self._threads, verb)

    def _announce(self) -> None:
        self.reconciler.ledger.save()
        if self.reconciler.changed:
            self.changed.set()
