"""Waiting for devices that are not there yet at the start: a kernel module loads, a vendor's tool answers late."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from nodeagent.drivers.base import Driver
from nodeagent.drivers.errors import DriverUnavailableError
from nodeagent.drivers.vendor import VendorDriver

log = logging.getLogger(__name__)

USUAL_S: Final = 120.0
REST_S: Final = 30.0
FIRST_PAUSE_S: Final = 1.0
MOST_PAUSE_S: Final = 10.0
AGAIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How many seconds a start waits for the first device, and for the rest of them once one has answered.

    ``clock`` in seconds never goes back; ``pause`` lets some of them pass.
    """

    first_s: float = USUAL_S
    rest_s: float = REST_S
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


def missing(driver: Driver) -> frozenset[int | str]:
    """Return what did not answer when a driver was opened and may yet: devices by index, else by name."""
    return frozenset(driver.unanswered) if isinstance(driver, VendorDriver) else frozenset()


def late(driver: Driver) -> str:
    """Return that as sentences, "" for nothing."""
    return "; ".join(driver.unanswered.values()) if isinstance(driver, VendorDriver) else ""


def wait_for_devices(find: Callable[[], Driver], patience: Patience) -> Driver:
    """Open the driver again and again until all devices answer, or as many as do within the time.

    Raises DriverUnavailableError at once where waiting is no use, and when no device answered in time.
    """
    begin = patience.clock()
    pause, said, answered_at = FIRST_PAUSE_S, "", None
    while True:
        driver, waits_for = _look(find)
        if driver is not None and not waits_for:
            return driver
        now = patience.clock()
        if driver is None:
            left = begin + patience.first_s - now
        else:
            answered_at = now if answered_at is None else answered_at
            left = answered_at + min(patience.first_s, patience.rest_s) - now
        if left <= 0:
            if driver is None:
                raise DriverUnavailableError(_in_vain(waits_for, now - begin), waits_for=waits_for)
            log.warning("going on without what does not answer: %s; it is asked again", waits_for)
            return driver
        if waits_for != said:
            log.warning("waiting up to %.0f s for the devices of this node: %s", left, waits_for)
            said = waits_for
        if driver is not None:
            driver.close()
        patience.pause(min(pause, left))
        pause = min(2 * pause, MOST_PAUSE_S)


async def wait_for_latecomers(
    find: Callable[[], Driver], have: Driver, rest: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Ask once a minute after what was missing when ``have`` was opened; ends once some of it answers.

    ``find`` opens another driver that only looks, in a thread of its own. Where nothing is missing it waits for ever.
    A look that fails in a way that nobody thought of is logged, once for each way, and takes nothing from the agent.
    """
    gone, said = missing(have), set[str]()
    while True:
        await rest(AGAIN_S)
        if not gone:
            continue
        try:
            now = await asyncio.to_thread(_missing_now, find)
        except Exception as no:
            if repr(no) not in said:
                said.add(repr(no))
                log.exception(
                    "cannot look for the devices that are missing; the agent goes on and looks again"
                )
            continue
        if now is not None and now < gone:
            return


def _missing_now(find: Callable[[], Driver]) -> frozenset[int | str] | None:
    """Return what is missing now; None where no device answers at all."""
    try:
        driver = find()
    except DriverUnavailableError:
        return None
    driver.close()
    return missing(driver)


def _look(find: Callable[[], Driver]) -> tuple[Driver | None, str]:
    """Return the driver where there is one, and what may still come up."""
    try:
        driver = find()
    except DriverUnavailableError as no:
        if not no.waits_for:
            raise
        return None, no.waits_for
    return driver, late(driver)


def _in_vain(waits_for: str, waited_s: float) -> str:
    return (
        f"no device answered within {waited_s:.0f} s ({waits_for}); see to the vendor's driver, its unit starts the "
        f"agent again by itself (berth-agent install), and `berth-agent check` tells what is missing"
    )
