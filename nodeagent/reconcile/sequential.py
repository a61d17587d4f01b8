"""Steps one after the other on the caller's thread: for drivers that answer at once, dry runs and the soak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nodeagent.drivers.base import Driver
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.steps import carry_out

MOST_STEPS: Final = 100_000


def work_through(reconciler: Reconciler, driver: Driver, clock: Callable[[], int]) -> int:
    """Do every step that can be done now, on all devices; returns how many.

    A step of a whole lease on one device may open the way on another, so devices are asked again until none has
    anything left.
    """
    steps, is_moving = 0, True
    while is_moving:
        is_moving = False
        for device in reconciler.lanes:
            while (step := reconciler.next_step(device, clock())) is not None:
                reconciler.settle(step, carry_out(driver, step, reconciler.units.runtime), clock())
                reconciler.ledger.save()  # what was cleared is known to be, before something else takes its place
                steps, is_moving = steps + 1, True
    return steps
