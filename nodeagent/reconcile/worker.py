"""Carries out the reconciler's steps: at once for drivers that answer at once, else one thread per device."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from nodeagent.drivers.base import Driver, DriverReading
from nodeagent.processes.guard import Guard
from nodeagent.protocol.messages import Desired, DeviceFact, HealthFact, ProcessSample
from nodeagent.reconcile.holdings import scan_scope
from nodeagent.reconcile.lease_records import NS
from nodeagent.reconcile.power import change_power, read_power
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.sequential import work_through
from nodeagent.reconcile.steps import UNIT_STEPS, DeviceStep, carry_out, read_health, read_partitions
from nodeagent.runtimes.base import RuntimeRefusedError

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_EVERY_S = 10
WATCH_EVERY_S = 5
# For looks, health, processes, figures and power, so that one that hangs takes no device's lane.
SPARE_THREADS = 6


class Worker:
    """One per agent. ``changed`` is set when there is something new to report.

    ``listeners`` are called, in the loop, after everything that may have changed a lease; they do not wait.
    """

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
        self.processes: tuple[ProcessSample, ...] | None = None
        self._jobs: set[asyncio.Task[None]] = set()
        self.listeners: list[Callable[[], None]] = []
        self._newest: tuple[int, DriverReading] | None = None
        self._threads = (
            ThreadPoolExecutor(len(reconciler.lanes) + SPARE_THREADS, "driver")
            if driver.is_blocking
            else None
        )

    def accept(self, desired: Desired) -> None:
        """Take a desired state and begin to work on it; raises FenceError."""
        self.reconciler.accept(desired, self._clock())
        self.drive()
        self._poked.set()

    async def run(self) -> None:
        """Keep time until cancelled: ends of leases, retries, a look at every device now and then."""
        loop = asyncio.get_running_loop()
        watchers = [loop.create_task(self._look_forever()), loop.create_task(self._watch_forever())]
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

    async def _look_forever(self) -> None:
        """Look at every device now and then; one that does not answer holds up neither the others nor any end."""
        while True:
            await self._look_around()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _watch_forever(self) -> None:
        """Ask after health and processes, whether or not the portal listens."""
        while True:
            await self.watch()
            await self.examine()
            await asyncio.sleep(WATCH_EVERY_S)

    async def measure(self) -> DriverReading:
        """Return a reading of all devices, off the loop where the driver is slow."""
        reading = await self._call(self._driver.metrics)
        self._newest = self._clock(), reading
        return reading

    async def recent_reading(self, within_ns: int) -> DriverReading:
        """Return the last reading where it is so young, else a new one: who asks often makes devices do no more."""
        if self._newest is not None and self._clock() - self._newest[0] <= within_ns:
            return self._newest[1]
        return await self.measure()

    async def examine(self) -> None:
        """Ask the devices how they are and act on it."""
        health = await self._call(partial(read_health, self._driver))
        known = None if health is None else (*health, *self._strangers)
        self.reconciler.observe_health(known, self._clock())
        self._announce()
        self._poked.set()

    async def watch(self) -> None:
        """Look at the processes on all devices, where the driver does not play them."""
        if self._guard is None:
            return
        scope = scan_scope(self.reconciler, is_isolating=self._guard.is_isolating)
        found = await self._call(partial(self._guard.run_once, scope))
        self._strangers, self.processes = found.facts, found.processes
        self.reconciler.health.crowded = found.crowded

    async def inventory(self) -> tuple[DeviceFact, ...]:
        """Return the devices as they are now, off the loop where the driver is slow."""
        return tuple(await self._call(self._driver.inventory))

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

    async def _work_off_loop(self, device: str, step: DeviceStep | None) -> None:
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
        await asyncio.gather(*(self._look_at(device) for device in list(self.reconciler.devices)))
        await self._look_at_units()
        if not self.reconciler.power.is_busy:
            self.reconciler.observe_power(await self._call(partial(read_power, self._driver)))
        self._poked.set()

    async def _look_at(self, device: str) -> None:
        if device in self.reconciler.busy:
            return
        self.reconciler.busy.add(device)
        try:
            facts = await self._call(partial(read_partitions, self._driver, device))
        finally:
            self.reconciler.busy.discard(device)
        self.reconciler.observe_partitions(device, facts, self._clock())

    async def _look_at_units(self) -> None:
        units = self.reconciler.units
        if units.runtime is None:
            return
        units.begin_look()
        try:
            known, whole = await self._call(units.runtime.known), await self._call(units.runtime.whole)
        except RuntimeRefusedError as no:
            log.warning("cannot tell which leases are open: %s", no)
            return
        self.reconciler.observe_units(known, whole, self._clock())

    async def _rest(self) -> None:
        wake = self.reconciler.next_wake()
        patience = None if wake is None else max(0.001, (wake - self._clock()) / NS)
        self._poked.clear()
        # Not wait_for: before Python 3.12 that loses a cancellation that comes together with a poke.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._poked.wait()

    async def _call(self, verb: Callable[[], T]) -> T:
        if self._threads is None:
            return verb()
        return await asyncio.get_running_loop().run_in_executor(self._threads, verb)

    def _announce(self) -> None:
        self.reconciler.ledger.save()
        for listener in self.listeners:
            listener()
        if self.reconciler.changed:
            self.changed.set()

    def poke(self) -> None:
        """Look soon at what is to be done: something outside of the desired state has changed it."""
        self._poked.set()
