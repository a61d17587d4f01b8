"""The clock that all the agent's times are of."""

from __future__ import annotations

import time


def boot_clock() -> int:
    """Return nanoseconds since boot, suspended time included: it goes on while the agent is down."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
